/* Tiles of keys and values: where they lie, and what rows make of them. */
#include "npu/host/host_attention.h"

static size_t page_of(const td_attn *a, const td_attn_tile *t) {
    const uint32_t *table = a->shape.window ? a->step->a.window_table : a->step->a.block_table;
    return table[(size_t)t->seq * a->step->block_stride + t->tile];
}

static size_t page_of_group(const td_attn *a, const td_attn_tile *t) {
    return page_of(a, t) * a->shape.groups + t->group;
}

const void *td_attn_keys(const td_attn *a, const td_attn_tile *t) {
    const td_attn_shape *s = &a->shape;
    const char          *pages = a->k;
    if (s->form == TD_ATTN_GQA) return pages + page_of_group(a, t) * a->shape.path->page_bytes(s->dk);
    return pages + page_of(a, t) * a->shape.path->page_bytes(s->kv_lora);
}

const void *td_attn_values(const td_attn *a, const td_attn_tile *t) {
    const td_attn_shape *s = &a->shape;
    const char          *pages = a->v;
    if (s->form == TD_ATTN_GQA) return pages + page_of_group(a, t) * a->shape.path->page_bytes(s->dv);
    if (!s->rope) return NULL;
    return pages + page_of(a, t) * a->shape.path->page_bytes(s->rope);
}

void td_host_attn_meet(const td_float_math *math, const float *a, size_t m, size_t k, const float *panels, size_t n,
                       float *c, size_t ldc) {
    for (size_t at = 0; at < n; at += TD_ATTN_PANEL)
        math->gemm(&(td_fgemm_args){.m = m,
                                    .n = n - at < TD_ATTN_PANEL ? n - at : TD_ATTN_PANEL,
                                    .k = k,
                                    .a = a,
                                    .lda = k,
                                    .b = panels + at * k,
                                    .ldb = TD_ATTN_PANEL,
                                    .b_dtype = TD_DT_F32,
                                    .c = c + at,
                                    .ldc = ldc});
}
