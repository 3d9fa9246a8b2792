/* An indexer's scores in f32: what devices with f32 activations compute with. Keys are transposed into panels. */
#include <math.h>

#include "npu/host/host_attention.h"
#include "npu/host/host_index.h"

#define PANEL ((size_t)TD_ATTN_PANEL)

typedef struct {
    float *across; /* [TD_INDEX_TILE / PANEL][dim][PANEL] keys */
    float *scores; /* [heads][PANEL] */
} scratch;

static size_t lay(size_t heads, size_t dim, char *at, scratch *b) {
    size_t       used = 0;
    const size_t across = td_host_place(&used, (TD_INDEX_TILE * dim + PANEL) * sizeof(float)),
                 scores = td_host_place(&used, heads * PANEL * sizeof(float));
    if (b) *b = (scratch){(float *)(void *)(at + across), (float *)(void *)(at + scores)};
    return used;
}

static scratch open_scratch(const td_host_index *x, void *mem) {
    scratch b;
    lay(x->heads, x->dim, mem, &b);
    return b;
}

static size_t page_bytes(const td_host_npu *d, size_t rows, size_t dim) {
    (void)d;
    return rows * dim * sizeof(float);
}

static void store(const td_host_npu *d, void *page, size_t rows, size_t offset, float *key, size_t dim) {
    (void)d, (void)rows;
    memcpy((float *)page + offset * dim, key, dim * sizeof *key);
}

static size_t query_bytes(const td_host_npu *d, size_t heads, size_t dim) {
    (void)d, (void)heads, (void)dim;
    return 0;
}

static size_t bytes(const td_host_npu *d, size_t heads, size_t dim) {
    (void)d;
    return lay(heads, dim, NULL, NULL);
}

static void load(const td_host_index *x, void *mem, size_t at, const void *page, size_t n) {
    x->d->kernels->math->transpose(open_scratch(x, mem).across + at * x->dim, PANEL * x->dim, TD_DT_F32, page, x->dim, n,
                                   x->dim);
}

static void score(const td_host_index *x, void *mem, size_t i, size_t n, float *scores) {
    const scratch b = open_scratch(x, mem);
    const size_t  heads = x->heads, dim = x->dim;
    const float  *weights = x->weights + i * heads, scale = 1 / sqrtf((float)dim * (float)heads);
    for (size_t at = 0; at < n; at += PANEL) {
        const size_t some = n - at < PANEL ? n - at : PANEL;
        float        sum[TD_ATTN_PANEL] = {0};
        td_host_attn_meet(x->d->kernels->math, x->q + i * heads * dim, heads, dim, b.across + at * dim, some, b.scores,
                          PANEL);
        for (size_t h = 0; h < heads; h++)
            for (size_t k = 0; k < PANEL; k++) {
                const float value = b.scores[h * PANEL + k]; /* behind the last key there is none, and its sum is not read */
                sum[k] += weights[h] * scale * (value > 0 ? value : 0);
            }
        memcpy(scores + at, sum, some * sizeof *sum);
    }
}

const td_index_path td_index_f32 = {
    .page_bytes = page_bytes, .store = store, .query_bytes = query_bytes, .bytes = bytes, .load = load, .score = score};
