/* Tiles of attention in f32: what devices with f32 activations compute with. Keys are transposed into panels, values are
 * read where they are. */
#include <math.h>

#include "kernels/rows/convert.h"
#include "npu/host/host_attention.h"

#define TILE ((size_t)TD_ATTN_TILE)
#define PANEL ((size_t)TD_ATTN_PANEL)
#define SPAN_TILES ((size_t)TD_HOST_SPAN / TD_ATTN_TILE)
#define ROWS 48 /* scores and sums stay in L1 and L2 */

typedef struct {
    float        *kt;              /* [SPAN_TILES][TILE / PANEL][dk][PANEL] keys, transposed */
    float        *v;               /* [SPAN][dv] expanded values */
    float        *w_uk, *latent_t; /* expanded: [nope, kv_lora], [TILE / PANEL][kv_lora][PANEL] */
    float        *q, *s;           /* [rows][dk], [ROWS][TILE] */
    const float **values;          /* [SPAN_TILES] */
} scratch;

static size_t lay(const td_attn_shape *s, size_t q_rows, char *at, scratch *b) {
    size_t used = 0;
    bool   expanded = s->form == TD_ATTN_EXPANDED;
    size_t values = td_host_place(&used, SPAN_TILES * sizeof *b->values); /* first: its place does not depend on q_rows */
    size_t offset[6] = {
        td_host_place(&used, SPAN_TILES * s->dk * TILE * sizeof(float)),
        td_host_place(&used, expanded ? TD_HOST_SPAN * s->dv * sizeof(float) : 0),
        td_host_place(&used, expanded ? s->nope * s->kv_lora * sizeof(float) : 0),
        td_host_place(&used, expanded ? TILE * s->kv_lora * sizeof(float) : 0),
        td_host_place(&used, ROWS * TILE * sizeof(float)),
        td_host_place(&used, q_rows * s->dk * sizeof(float)),
    };
    if (b)
        *b = (scratch){.values = (const float **)(at + values),
                       .kt = (float *)(at + offset[0]),
                       .v = (float *)(at + offset[1]),
                       .w_uk = (float *)(at + offset[2]),
                       .latent_t = (float *)(at + offset[3]),
                       .s = (float *)(at + offset[4]),
                       .q = (float *)(at + offset[5])};
    return used;
}

static size_t page_bytes(size_t n) {
    return TILE * n * sizeof(float);
}

static void store(const td_host_npu *d, void *page, size_t offset, float *x, size_t n) {
    (void)d;
    memcpy((float *)page + offset * n, x, n * sizeof *x);
}

static void copy(void *page, size_t offset, const void *from, size_t from_offset, size_t n) {
    memcpy((float *)page + offset * n, (const float *)from + from_offset * n, n * sizeof(float));
}

static size_t bytes(const td_host_npu *d, const td_attn_shape *s, size_t q_rows) {
    (void)d;
    return lay(s, q_rows, NULL, NULL);
}

static scratch open_scratch(const td_attn *a, void *mem) {
    scratch b;
    lay(&a->shape, 0, mem, &b);
    return b;
}

static void open_group(const td_attn *a, void *mem, size_t group) {
    const td_attn_shape *s = &a->shape;
    if (s->form != TD_ATTN_EXPANDED) return;
    td_to_f32(td_attn_up_dtype(a->kv_b), td_attn_up(a->kv_b, group, s->nope, s->dv, s->kv_lora, 0), s->nope * s->kv_lora,
              open_scratch(a, mem).w_uk);
}

/* Keys and values of one head from the latents of a tile. */
static void expand(const td_attn *a, const scratch *b, const td_attn_tile *t, const float *latent, size_t n) {
    const td_attn_shape *s = &a->shape;
    const td_float_math *m = a->d->kernels->math;
    m->transpose(b->latent_t, s->kv_lora * PANEL, TD_DT_F32, latent, s->kv_lora, n, s->kv_lora);
    for (size_t p = 0; p * PANEL < n; p++)
        m->gemm(&(td_fgemm_args){
            .m = s->nope,
            .n = PANEL,
            .k = s->kv_lora,
            .a = b->w_uk,
            .lda = s->kv_lora,
            .b = b->latent_t + p * s->kv_lora * PANEL,
            .ldb = PANEL,
            .b_dtype = TD_DT_F32,
            .c = b->kt + (t->place * TILE + p * PANEL) * s->dk,
            .ldc = PANEL,
        });
    m->gemm(&(td_fgemm_args){
        .m = n,
        .n = s->dv,
        .k = s->kv_lora,
        .a = latent,
        .lda = s->kv_lora,
        .b = td_attn_up(a->kv_b, t->group, s->nope, s->dv, s->kv_lora, s->nope),
        .ldb = s->dv,
        .b_dtype = td_attn_up_dtype(a->kv_b),
        .c = b->v + t->place * TILE * s->dv,
        .ldc = s->dv,
    });
}

static void load(const td_attn *a, void *mem, const td_attn_tile *t) {
    const td_attn_shape *s = &a->shape;
    const td_float_math *m = a->d->kernels->math;
    scratch              b = open_scratch(a, mem);
    size_t               n = td_attn_tile_keys(t);
    float               *kt = b.kt + t->place * s->dk * TILE;
    const float         *keys = td_attn_keys(a, t), *values = td_attn_values(a, t);
    if (s->form == TD_ATTN_GQA) {
        m->transpose(kt, s->dk * PANEL, TD_DT_F32, keys, s->dk, n, s->dk);
        b.values[t->place] = values;
        return;
    }
    if (s->form == TD_ATTN_EXPANDED) {
        expand(a, &b, t, keys, n);
        b.values[t->place] = b.v + t->place * TILE * s->dv;
    } else {
        m->transpose(kt, s->dk * PANEL, TD_DT_F32, keys, s->kv_lora, n, s->kv_lora);
        b.values[t->place] = keys;
    }
    if (s->rope) m->transpose(kt + (s->dk - s->rope) * PANEL, s->dk * PANEL, TD_DT_F32, values, s->rope, n, s->rope);
}

static void take(const td_attn *a, void *mem, size_t at, const float *const *q, size_t n) {
    size_t dk = a->shape.dk;
    float *to = open_scratch(a, mem).q + at * dk;
    for (size_t i = 0; i < n; i++) memcpy(to + i * dk, q[i], dk * sizeof(float));
}

static void attend(const td_attn *a, void *mem, const td_attn_tile *t, size_t at, size_t nq, const size_t *n_keys,
                   td_softmax *state, float *acc, const td_attn_tile *next) {
    const td_attn_shape *s = &a->shape;
    const td_float_math *m = a->d->kernels->math;
    scratch              b = open_scratch(a, mem);
    size_t               n_max = 0, ld = td_attn_ld(s);
    td_attn_seen         seen[ROWS];
    (void)next;
    for (size_t i = 0; i < nq; i++) {
        seen[i] = td_attn_seen_of(s, t, n_keys[i]);
        if (seen[i].to > n_max) n_max = seen[i].to;
    }
    if (n_max == 0) return;
    size_t n_fill = td_round_up(n_max, 16);
    td_host_attn_meet(m, b.q + at * s->dk, nq, s->dk, b.kt + t->place * TILE * s->dk, n_fill, b.s, TILE);
    for (size_t i = 0; i < nq; i++) {
        if (seen[i].to == 0) {
            memset(b.s + i * TILE, 0, n_fill * sizeof(float));
            continue;
        }
        for (size_t j = 0; j < seen[i].from; j++) b.s[i * TILE + j] = -INFINITY;
        float factor = m->softmax(&state[i], b.s + i * TILE, seen[i].to, n_fill, s->scale);
        if (!t->first && factor != 1) m->scale_add(acc + i * ld, factor, NULL, 0, s->dv);
    }
    m->gemm(&(td_fgemm_args){
        .m = nq,
        .n = s->dv,
        .k = n_max,
        .a = b.s,
        .lda = TILE,
        .b = b.values[t->place],
        .ldb = s->dv,
        .b_dtype = TD_DT_F32,
        .accumulate = !t->first,
        .c = acc,
        .ldc = ld,
    });
}

const td_attn_path td_attn_f32 = {.rows = ROWS,
                                  .unit = 1,
                                  .page_bytes = page_bytes,
                                  .store = store,
                                  .copy = copy,
                                  .bytes = bytes,
                                  .open = open_group,
                                  .load = load,
                                  .take = take,
                                  .attend = attend};
