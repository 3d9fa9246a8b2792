/*
 * Grouped-query attention, from the normed input to the output projection. Short sequences are decode's, whose spans are
 * merged from memory, some rows at a time; the others are prefill's. Both give a row the same bits (gqa.cu), and a step that
 * has rows of one kind alone launches the kernels of that one.
 */
#include "core/error.h"
#include "npu/cuda/cuda_decode.h"

#define DIM_MAX 128
#define DIM_MULTIPLE 8

static size_t q_width(const td_gqa_desc *g) {
    return (size_t)g->heads * g->head_dim;
}
static size_t kv_width(const td_gqa_desc *g) {
    return (size_t)g->kv_heads * g->head_dim;
}
/* Of the spans of a row. */
static size_t partial_bytes(const td_block_desc *desc) {
    const td_gqa_desc *g = &desc->gqa;
    return (size_t)g->heads * TD_CUDA_SPANS * (g->head_dim + 2) * sizeof(float);
}

static size_t place_gqa(const td_block_desc *desc, td_cuda_places *at) {
    const td_gqa_desc *g = &desc->gqa;
    size_t             used = 0, rows = desc->max_tok;
    *at = (td_cuda_places){0};
    at->in = td_cuda_place_rows(&used, rows, g->hidden, false);
    at->q = td_cuda_place(&used, rows * q_width(g) * sizeof(float));
    at->k = td_cuda_place(&used, rows * kv_width(g) * sizeof(float));
    at->v = td_cuda_place(&used, rows * kv_width(g) * sizeof(float));
    at->q_placed = td_cuda_place(&used, rows * q_width(g) * sizeof(td_bf16));
    at->ctx = td_cuda_place(&used, rows * q_width(g) * sizeof(float));
    at->out = td_cuda_place_rows(&used, rows, q_width(g), true);
    td_cuda_decode_place(&used, desc->max_tok, partial_bytes(desc), at);
    return used;
}

static td_status check_gqa(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    const td_gqa_desc *g = &desc->gqa;
    if (g->gated) return td_fail(err, TD_ENOTSUP, "the card's attention has no gate, which this model needs");
    if (g->head_dim > DIM_MAX || g->head_dim % DIM_MULTIPLE)
        return td_fail(err, TD_ENOTSUP, "the card's attention takes heads of %d to %d in steps of %d, not of %u",
                       DIM_MULTIPLE, DIM_MAX, DIM_MULTIPLE, g->head_dim);
    size_t shared = g->head_dim <= 64 ? TD_CUDA_DECODE_SHARED(64) : TD_CUDA_DECODE_SHARED(128);
    return td_cuda_need_shared(d, shared, "attention", err);
}

static const void *data_of(const td_npu_weight *w) {
    return w ? w->data : NULL;
}

/* Where a row's keys go, and the pages of each sequence: of a cache with a window, or of others. */
static const uint32_t *slots_of(const td_gqa_desc *g, const td_step_arrays *a) {
    return g->window && a->window_slot ? a->window_slot : a->slot;
}
static const uint32_t *table_of(const td_gqa_desc *g, const td_step_arrays *a) {
    return g->window && a->window_table ? a->window_table : a->block_table;
}

/* Queries, keys and values: products, norm and rope; keys and values to the cache. */
static void place_heads(td_cuda_run *r, const td_npu_block *b) {
    const td_gqa_desc *g = &b->desc.gqa;
    void              *q = r->scratch + b->at.q, *k = r->scratch + b->at.k, *v = r->scratch + b->at.v;
    td_cuda_rows       in =
        td_cuda_input(r, &b->at.in, (const td_npu_weight *const[]){g->q, g->k, g->v}, 3, g->in, g->in_i8, g->hidden);
    td_cuda_products(r, &in, (const td_cuda_factor[]){{g->q, g->q_bias, q}, {g->k, g->k_bias, k}, {g->v, g->v_bias, v}}, 3,
                     true);
    TD_CUDA_LAUNCH(r, GQA_PLACE, TD_GRID(in.n.most, 1, 1), 0, TD_P(in.n.count), TD_P(r->step->dev.pos),
                   TD_P(slots_of(g, &r->step->dev)), TD_P(q), TD_P(k), TD_P(v), TD_P(data_of(g->q_norm)),
                   TD_P(data_of(g->k_norm)), TD_U(g->norm_rows), TD_F(g->eps), TD_P(g->rope->data), TD_U(td_gqa_rope_dim(g)),
                   TD_U(g->heads), TD_U(g->kv_heads), TD_U(g->head_dim), TD_P(r->scratch + b->at.q_placed), TD_P(g->kv_k),
                   TD_P(g->kv_v));
}

static void prefill(td_cuda_run *r, const td_npu_block *b) {
    const td_gqa_desc    *g = &b->desc.gqa;
    const td_step_arrays *a = &r->step->dev;
    bool                  small = g->head_dim <= 64;
    void *const           args[] = {TD_P(td_cuda_n_seq(r)),
                                    TD_P(a->seq_start),
                                    TD_P(a->pos),
                                    TD_P(table_of(g, a)),
                                    TD_U(r->step->block_stride),
                                    TD_U(r->step->kind == TD_STEP_PROMPTS ? 0 : TD_SHORT_ROWS),
                                    TD_P(r->scratch + b->at.q_placed),
                                    TD_P(g->kv_k),
                                    TD_P(g->kv_v),
                                    TD_U(g->heads),
                                    TD_U(g->kv_heads),
                                    TD_U(g->head_dim),
                                    TD_U(g->window),
                                    TD_P(data_of(g->sinks)),
                                    TD_F(g->softmax_scale),
                                    TD_U(TD_CUDA_SPANS),
                                    TD_P(r->scratch + b->at.ctx)};
    if (r->step->kind == TD_STEP_GENERATED || (r->step->kind != TD_STEP_PROMPTS && r->step->max_tok < TD_SHORT_ROWS)) return;
    td_cuda_launch(r, small ? TD_CUDA_KERNEL_GQA_PREFILL_64 : TD_CUDA_KERNEL_GQA_PREFILL_128,
                   TD_GRID(td_cuda_prefill_blocks(r->step), g->heads, 1),
                   small ? TD_CUDA_PREFILL_SHARED(64, 64) : TD_CUDA_PREFILL_SHARED(128, 128), args,
                   sizeof args / sizeof *args);
}

static void decode(td_cuda_run *r, const td_npu_block *b, const td_cuda_piece *piece) {
    const td_gqa_desc    *g = &b->desc.gqa;
    const td_step_arrays *a = &r->step->dev;
    bool                  small = g->head_dim <= 64;
    void                 *partial = r->scratch + b->at.partial;
    void *const           args[] = {TD_P(piece->n.count),
                                    TD_P(piece->list),
                                    TD_P(td_cuda_n_seq(r)),
                                    TD_P(a->seq_start),
                                    TD_P(a->pos),
                                    TD_P(table_of(g, a)),
                                    TD_U(r->step->block_stride),
                                    TD_P(r->scratch + b->at.q_placed),
                                    TD_P(g->kv_k),
                                    TD_P(g->kv_v),
                                    TD_U(g->heads),
                                    TD_U(g->kv_heads),
                                    TD_U(g->head_dim),
                                    TD_U(g->window),
                                    TD_F(g->softmax_scale),
                                    TD_U(TD_CUDA_SPANS),
                                    TD_P(partial)};
    td_cuda_launch(
        r, small ? TD_CUDA_KERNEL_GQA_DECODE_64 : TD_CUDA_KERNEL_GQA_DECODE_128,
        TD_GRID(TD_CUDA_SPANS, g->kv_heads * td_div_up(g->heads / g->kv_heads, TD_CUDA_DECODE_HEADS), piece->n.most),
        small ? TD_CUDA_DECODE_SHARED(64) : TD_CUDA_DECODE_SHARED(128), args, sizeof args / sizeof *args);
    TD_CUDA_LAUNCH(r, MERGE_SPANS,
                   TD_GRID(g->heads, piece->n.most, td_div_up(g->head_dim, TD_CUDA_MERGE_VALUES(g->head_dim))), 0,
                   TD_P(piece->n.count), TD_P(piece->list), TD_P(td_cuda_n_seq(r)), TD_P(a->seq_start), TD_P(a->pos),
                   TD_U(g->window), TD_P(data_of(g->sinks)), TD_P(partial), TD_U(g->heads), TD_U(g->head_dim),
                   TD_U(TD_CUDA_SPANS), TD_P(r->scratch + b->at.ctx), TD_P(NULL));
}

static void launch_gqa(td_cuda_run *r, const td_npu_block *b) {
    const td_gqa_desc *g = &b->desc.gqa;
    td_cuda_piece      piece;
    place_heads(r, b);
    prefill(r, b);
    td_cuda_decode rows = td_cuda_decode_rows(r, b, NULL, td_cuda_decode_at_once(b->desc.max_tok, partial_bytes(&b->desc)));
    for (uint32_t i = 0; td_cuda_decode_piece(&rows, i, &piece); i++) decode(r, b, &piece);
    td_cuda_rows in = td_cuda_rows_of_f32(r, &b->at.out, g->o, td_cuda_n_tok(r), r->scratch + b->at.ctx, q_width(g));
    td_cuda_product(r, &in, g->o, g->o_bias, td_cuda_at_row(r, g->out, g->hidden * sizeof(td_bf16)), false);
}

const td_cuda_block_kind td_cuda_gqa = {.place = place_gqa, .check = check_gqa, .launch = launch_gqa};
