#include "npu/host/host_index.h"

#include <math.h>
#include <stdlib.h>

#include "npu/host/host_attention.h"

#define TILE ((size_t)256)            /* keys of an item */
#define PANEL ((size_t)TD_ATTN_PANEL) /* keys that lie side by side when they are transposed */
#define ROWS ((size_t)16)             /* of an item */

void td_host_find_sequences(const td_host_step *s, size_t row0, size_t rows, uint32_t *seq_of) {
    for (uint32_t q = 0; q < s->n_seq; q++)
        for (size_t row = s->a.seq_start[q]; row < s->a.seq_start[q + 1]; row++)
            if (row >= row0 && row < row0 + rows) seq_of[row - row0] = q;
}

/* ---- score ------------------------------------------------------------------------------------- */

/* A worker's scratch. */
typedef struct {
    float *across; /* [TILE / PANEL][dim][PANEL] keys */
    float *scores; /* [heads][PANEL] */
} workspace;

static size_t lay_workspace(size_t heads, size_t dim, char *at, workspace *w) {
    size_t       used = 0;
    const size_t offset[] = {td_host_place(&used, (TILE * dim + PANEL) * sizeof(float)),
                             td_host_place(&used, heads * PANEL * sizeof(float))};
#define AT(i) ((float *)(at + offset[i]))
    if (w) *w = (workspace){AT(0), AT(1)};
#undef AT
    return used;
}

size_t td_host_index_worker_bytes(size_t heads, size_t dim) {
    return lay_workspace(heads, dim, NULL, NULL);
}

/* Keys [first, first + n) of a sequence, n at most TILE, as panels. */
static void load_keys(const td_host_index *x, const workspace *w, uint32_t seq, size_t first, size_t n) {
    const size_t per_page = TD_KV_PAGE / x->ratio; /* rows that lie together */
    for (size_t at = 0; at < n; at += per_page)
        x->d->kernels->math->transpose(w->across + at * x->dim, PANEL * x->dim, x->d->act,
                                       td_host_cache_row(x->d, x->s, x->keys, seq, first + at, x->ratio, x->dim), x->dim,
                                       n - at < per_page ? n - at : per_page, x->dim);
}

/* Scores [n] of row i with the keys that are loaded. */
static void score_row(const td_host_index *x, const workspace *w, size_t i, size_t n, float *scores) {
    const size_t heads = x->heads, dim = x->dim;
    const float *weights = x->weights + i * heads, scale = 1 / sqrtf((float)dim * (float)heads);
    for (size_t at = 0; at < n; at += PANEL) {
        const size_t some = n - at < PANEL ? n - at : PANEL;
        float        sum[TD_ATTN_PANEL] = {0};
        td_host_attn_meet(x->d->kernels->math, x->q + i * heads * dim, heads, dim, w->across + at * dim, some, w->scores,
                          PANEL);
        for (size_t h = 0; h < heads; h++)
            for (size_t k = 0; k < PANEL; k++) {
                const float score =
                    w->scores[h * PANEL + k]; /* behind the last key there is none, and its sum is not read */
                sum[k] += weights[h] * scale * (score > 0 ? score : 0);
            }
        memcpy(scores + at, sum, some * sizeof *sum);
    }
}

typedef struct {
    const td_host_index *x;
    size_t               tiles;
} score_job;

static void score_item(void *ctx, uint32_t item, const td_worker *worker) {
    const score_job     *j = ctx;
    const td_host_index *x = j->x;
    const size_t         first = item % j->tiles * TILE, row = item / j->tiles * ROWS,
                 end = row + ROWS < x->rows ? row + ROWS : x->rows;
    workspace w;
    lay_workspace(x->heads, x->dim, x->workers + worker->index * td_host_index_worker_bytes(x->heads, x->dim), &w);
    for (size_t i = row, last; i < end; i = last + 1) { /* rows of one sequence, of which the last sees most */
        last = i;
        while (last + 1 < end && x->seq_of[last + 1] == x->seq_of[i]) last++;
        const size_t seen = td_host_index_visible(x, last);
        if (!td_host_index_chooses(x, last) || seen <= first) continue;
        load_keys(x, &w, x->seq_of[i], first, seen - first < TILE ? seen - first : TILE);
        for (; i <= last; i++) {
            const size_t keys = td_host_index_visible(x, i);
            if (td_host_index_chooses(x, i) && keys > first)
                score_row(x, &w, i, keys - first < TILE ? keys - first : TILE, x->scores + i * x->ld_scores + first);
        }
    }
}

/* ---- choose ------------------------------------------------------------------------------------ */

/* Whether key a is chosen before b. */
static bool is_before(const float *scores, uint32_t a, uint32_t b) {
    const float x = scores[a], y = scores[b];
    if (x > y || (isnan(y) && !isnan(x))) return true;
    return a < b && !(y > x) && isnan(x) == isnan(y);
}

/* Put an entry of a heap, whose root is the last to be chosen, below those that are chosen before it. */
static void sift(const float *scores, uint32_t *heap, size_t n, size_t at) {
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_before(scores, heap[child], heap[child + 1])) child++;
        if (!is_before(scores, heap[at], heap[child])) return;
        const uint32_t up = heap[child];
        heap[child] = heap[at];
        heap[at] = up;
    }
}

static int by_number(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void choose_item(void *ctx, uint32_t i, const td_worker *worker) {
    const td_host_index *x = ctx;
    const size_t         n = x->top;
    const float         *scores = x->scores + i * x->ld_scores;
    uint32_t            *heap = x->chosen + i * n;
    (void)worker;
    if (!td_host_index_chooses(x, i)) return;
    for (size_t k = 0; k < n; k++) heap[k] = (uint32_t)k;
    for (size_t k = n / 2; k-- > 0;) sift(scores, heap, n, k);
    for (uint32_t k = (uint32_t)n; k < td_host_index_visible(x, i); k++) {
        if (!is_before(scores, k, heap[0])) continue;
        heap[0] = k;
        sift(scores, heap, n, 0);
    }
    qsort(heap, n, sizeof *heap, by_number);
}

void td_host_index_choose(const td_host_index *x) {
    size_t most = 0;
    for (size_t i = 0; i < x->rows; i++)
        if (td_host_index_chooses(x, i) && td_host_index_visible(x, i) > most) most = td_host_index_visible(x, i);
    if (!most) return;
    score_job    j = {x, (most + TILE - 1) / TILE};
    const size_t scores = x->rows * j.tiles * TILE;
    td_host_for(x->d, score_item, &j, (x->rows + ROWS - 1) / ROWS * j.tiles, scores * x->dim * x->heads);
    td_host_for(x->d, choose_item, (void *)x, x->rows, scores * 8);
}
