/*
 * Multi-head latent attention, from the normed input to the output projection. Absorbed rows go in pieces, whose latent
 * queries and spans have room in the scratch; beside others they are listed, and copied to where a piece multiplies them.
 * Expanded rows go some heads at a time, over keys and values that are computed for the slots of the cache that their
 * sequences have. A step that has rows of one form alone launches the kernels of that one.
 */
#include "core/error.h"
#include "npu/cuda/cuda_decode.h"

#define MULTIPLE 8               /* of every size: kernels load 16 bytes at a time */
#define EXPANDED_SLOT_BYTES 4096 /* of keys and values of a slot, or one head's */
#define EXPAND_BLOCKS 32         /* of keys, of a head: more keys take several rounds */
#define NARROW_ROWS 2            /* of a launch at most: with blocks of 16 heads they fill a card */
#define NARROW_HEADS 32          /* at most: blocks of 64 heads would be half empty */
#define COPY_BLOCKS 8            /* of a row */

static size_t q_width(const td_mla_desc *m) {
    return (size_t)m->heads * (m->nope_dim + m->rope_dim);
}
static size_t v_width(const td_mla_desc *m) {
    return (size_t)m->heads * m->v_dim;
}
/* Of the spans of a row. */
static size_t partial_bytes(const td_block_desc *desc) {
    const td_mla_desc *m = &desc->mla;
    return (size_t)m->heads * TD_CUDA_LATENT_SPANS * (m->kv_lora + 2) * sizeof(float);
}
static uint32_t piece_rows(const td_block_desc *desc) {
    return td_cuda_decode_at_once(desc->max_tok, partial_bytes(desc));
}
static uint32_t heads_at_once(const td_mla_desc *m) {
    uint32_t most = EXPANDED_SLOT_BYTES / ((m->nope_dim + m->v_dim) * (uint32_t)sizeof(td_bf16));
    return most < 1 ? 1 : most < m->heads ? most : m->heads;
}

static size_t place_mla(const td_block_desc *desc, td_cuda_places *at) {
    const td_mla_desc *m = &desc->mla;
    size_t             used = 0, rows = desc->max_tok, piece = piece_rows(desc);
    *at = (td_cuda_places){0};
    at->in = td_cuda_place_rows(&used, rows, m->hidden, false);
    at->wide = td_cuda_place(&used, rows * m->q_lora * sizeof(float));
    at->mid = td_cuda_place_rows(&used, rows, m->q_lora, true);
    at->q = td_cuda_place(&used, rows * q_width(m) * sizeof(float));
    at->k = td_cuda_place(&used, rows * (m->kv_lora + m->rope_dim) * sizeof(float));
    at->q_placed = td_cuda_place(&used, rows * q_width(m) * sizeof(td_bf16));
    at->ctx = td_cuda_place(&used, rows * v_width(m) * sizeof(float));
    at->out = td_cuda_place_rows(&used, rows, v_width(m), true);
    td_cuda_decode_place(&used, desc->max_tok, partial_bytes(desc), at);
    at->q_piece = td_cuda_place(&used, piece * q_width(m) * sizeof(td_bf16));
    at->ctx_piece = td_cuda_place(&used, piece * v_width(m) * sizeof(float));
    at->q_latent = td_cuda_place(&used, piece * m->heads * m->kv_lora * sizeof(td_bf16));
    at->ctx_latent = td_cuda_place(&used, piece * m->heads * m->kv_lora * sizeof(td_bf16));
    at->expanded = td_cuda_place(
        &used, (size_t)m->kv_pages * TD_KV_PAGE * heads_at_once(m) * (m->nope_dim + m->v_dim) * sizeof(td_bf16));
    return used;
}

static td_status check_sizes(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    const td_mla_desc *m = &desc->mla;
    if (m->kv_lora > TD_CUDA_LATENT_MAX || m->rope_dim > TD_CUDA_LATENT_ROPE_MAX ||
        m->nope_dim > TD_CUDA_EXPANDED_NOPE_MAX || m->v_dim > TD_CUDA_EXPANDED_DV_MAX || m->kv_lora % MULTIPLE ||
        m->rope_dim % MULTIPLE || m->nope_dim % MULTIPLE || m->v_dim % MULTIPLE)
        return td_fail(err, TD_ENOTSUP,
                       "the card's latent attention takes latents up to %d, rope parts up to %d, and heads of up to %d + "
                       "rope and %d, in steps of %d; not %u, %u, %u and %u",
                       TD_CUDA_LATENT_MAX, TD_CUDA_LATENT_ROPE_MAX, TD_CUDA_EXPANDED_NOPE_MAX, TD_CUDA_EXPANDED_DV_MAX,
                       MULTIPLE, m->kv_lora, m->rope_dim, m->nope_dim, m->v_dim);
    TD_TRY(td_cuda_need_shared(d, TD_CUDA_LATENT_SHARED(16), "latent attention", err));
    return td_cuda_need_shared(
        d, TD_CUDA_PREFILL_SHARED(TD_CUDA_EXPANDED_NOPE_MAX + TD_CUDA_LATENT_ROPE_MAX, TD_CUDA_EXPANDED_DV_MAX),
        "latent attention of prompts", err);
}

static td_status check_mla(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    const td_mla_desc *m = &desc->mla;
    TD_TRY(check_sizes(d, desc, err));
    return m->q_lora ? td_cuda_check_norm(m->q_lora, TD_CUDA_SHORT_MAX, "a norm of q_lora", err) : TD_OK;
}

/* ---- queries, latents -------------------------------------------------------------------------- */

/* The low-rank part's codes are made of values that are not rounded. */
static td_cuda_rows norm_low(td_cuda_run *r, const td_npu_block *b, td_cuda_count n, const void *low) {
    const td_mla_desc *m = &b->desc.mla;
    td_cuda_rows       rows = {.n = n, .x = r->scratch + b->at.mid.x};
    bool               coded = td_weight_takes_int8(m->q_b->shape.format);
    if (coded) {
        rows.q = r->scratch + b->at.mid.q;
        rows.scale = r->scratch + b->at.mid.scale;
    }
    TD_CUDA_LAUNCH(r, NORM_F32, TD_GRID(n.most, 1, 1), 0, TD_P(n.count), TD_P(low), TD_P(m->q_a_norm->data), TD_F(m->eps),
                   TD_U(m->q_lora), TD_P(rows.x), TD_P(rows.q), TD_U(td_cuda_row_codes(m->q_lora)), TD_P(rows.scale));
    return rows;
}

/* Queries to bf16, rotated; latents and rope parts to the cache. */
static void place(td_cuda_run *r, const td_npu_block *b) {
    const td_mla_desc    *m = &b->desc.mla;
    const td_step_arrays *a = &r->step->dev;
    void                 *q = r->scratch + b->at.q, *kv = r->scratch + b->at.k, *low = r->scratch + b->at.wide;
    td_cuda_rows in = td_cuda_input(r, &b->at.in, (const td_npu_weight *const[]){m->q_lora ? m->q_a : m->q, m->kv_a}, 2,
                                    m->in, m->in_i8, m->hidden);
    const td_cuda_factor of_q = m->q_lora ? (td_cuda_factor){m->q_a, m->q_a_bias, low} : (td_cuda_factor){m->q, NULL, q};
    td_cuda_products(r, &in, (const td_cuda_factor[]){of_q, {m->kv_a, m->kv_a_bias, kv}}, 2, true);
    if (m->q_lora) {
        td_cuda_rows rows = norm_low(r, b, in.n, low);
        td_cuda_product(r, &rows, m->q_b, NULL, q, true);
    }
    TD_CUDA_LAUNCH(r, MLA_PLACE, TD_GRID(1 + td_div_up(q_width(m) + m->rope_dim, TD_CUDA_LATENT_PLACE_VALUES), in.n.most, 1),
                   0, TD_P(in.n.count), TD_P(a->pos), TD_P(a->slot), TD_P(q), TD_P(kv), TD_P(m->kv_a_norm->data),
                   TD_F(m->eps), TD_P(m->rope->data), TD_U(m->heads), TD_U(m->nope_dim), TD_U(m->rope_dim), TD_U(m->kv_lora),
                   TD_P(r->scratch + b->at.q_placed), TD_P(m->kv_latent), TD_P(m->kv_rope));
}

/* ---- absorbed ---------------------------------------------------------------------------------- */

static void copy_listed(td_cuda_run *r, const td_cuda_piece *piece, size_t row_bytes, bool to_step, const void *from,
                        const void *to) {
    TD_CUDA_LAUNCH(r, COPY_LISTED, TD_GRID(COPY_BLOCKS, piece->n.most, 1), 0, TD_P(piece->n.count), TD_P(piece->list),
                   TD_U(row_bytes / 16), TD_U(to_step), TD_P(from), TD_P(to));
}

/* q and ctx have the rows of the piece. */
static void attend_piece(td_cuda_run *r, const td_npu_block *b, const td_cuda_piece *piece, const char *q, void *ctx) {
    const td_mla_desc    *m = &b->desc.mla;
    const td_step_arrays *a = &r->step->dev;
    size_t                dim = m->nope_dim + m->rope_dim, per_head = (size_t)(m->nope_dim + m->v_dim) * m->kv_lora;
    void                 *q_latent = r->scratch + b->at.q_latent, *ctx_latent = r->scratch + b->at.ctx_latent,
         *partial = r->scratch + b->at.partial;
    bool wide = m->heads > NARROW_HEADS && piece->n.most > NARROW_ROWS && TD_CUDA_LATENT_SHARED(64) <= r->d->shared_most;
    void *const                 args[] = {TD_P(piece->n.count),
                                          TD_P(piece->list),
                                          TD_P(td_cuda_n_seq(r)),
                                          TD_P(a->seq_start),
                                          TD_P(a->pos),
                                          TD_P(a->block_table),
                                          TD_U(r->step->block_stride),
                                          TD_P(q_latent),
                                          TD_P(q),
                                          TD_P(m->kv_latent),
                                          TD_P(m->kv_rope),
                                          TD_U(m->heads),
                                          TD_U(m->kv_lora),
                                          TD_U(m->nope_dim),
                                          TD_U(m->rope_dim),
                                          TD_F(m->softmax_scale),
                                          TD_U(TD_CUDA_LATENT_SPANS),
                                          TD_P(partial)};
    const td_cuda_heads_product to_latent = {.n_rows = piece->n,
                                             .x = q,
                                             .w = m->kv_b->data,
                                             .out = q_latent,
                                             .n = m->kv_lora,
                                             .k = m->nope_dim,
                                             .ldx = q_width(m),
                                             .x_head = dim,
                                             .w_head = per_head,
                                             .ldo = (size_t)m->heads * m->kv_lora,
                                             .out_head = m->kv_lora,
                                             .heads = m->heads,
                                             .by_columns = true};
    td_cuda_product_of_heads(r, &to_latent);
    td_cuda_launch(r, wide ? TD_CUDA_KERNEL_MLA_ABSORBED_64 : TD_CUDA_KERNEL_MLA_ABSORBED_16,
                   TD_GRID(TD_CUDA_LATENT_SPANS, td_div_up(m->heads, wide ? 64 : 16), piece->n.most),
                   wide ? TD_CUDA_LATENT_SHARED(64) : TD_CUDA_LATENT_SHARED(16), args, sizeof args / sizeof *args);
    TD_CUDA_LAUNCH(r, MERGE_SPANS, TD_GRID(m->heads, piece->n.most, td_div_up(m->kv_lora, TD_CUDA_MERGE_VALUES(m->kv_lora))),
                   0, TD_P(piece->n.count), TD_P(piece->list), TD_P(td_cuda_n_seq(r)), TD_P(a->seq_start), TD_P(a->pos),
                   TD_U(0), TD_P(NULL), TD_P(partial), TD_U(m->heads), TD_U(m->kv_lora), TD_U(TD_CUDA_LATENT_SPANS),
                   TD_P(NULL), TD_P(ctx_latent));
    const td_cuda_heads_product to_values = {.n_rows = piece->n,
                                             .x = ctx_latent,
                                             .w = m->kv_b->data + m->nope_dim * m->kv_lora * sizeof(td_bf16),
                                             .out = ctx,
                                             .n = m->v_dim,
                                             .k = m->kv_lora,
                                             .ldx = (size_t)m->heads * m->kv_lora,
                                             .x_head = m->kv_lora,
                                             .w_head = per_head,
                                             .ldo = v_width(m),
                                             .out_head = m->v_dim,
                                             .heads = m->heads,
                                             .out_is_f32 = true};
    td_cuda_product_of_heads(r, &to_values);
}

static void attend_absorbed(td_cuda_run *r, const td_npu_block *b) {
    const td_mla_desc *m = &b->desc.mla;
    size_t             q_bytes = q_width(m) * sizeof(td_bf16), v_bytes = v_width(m) * sizeof(float);
    char              *q = r->scratch + b->at.q_placed, *ctx = r->scratch + b->at.ctx;
    td_cuda_decode     rows = td_cuda_decode_rows(r, b, r->step->dev.absorbed, piece_rows(&b->desc));
    td_cuda_piece      piece;
    for (uint32_t i = 0; td_cuda_decode_piece(&rows, i, &piece); i++) {
        if (!piece.list) {
            attend_piece(r, b, &piece, q, ctx);
            continue;
        }
        copy_listed(r, &piece, q_bytes, false, q, r->scratch + b->at.q_piece);
        attend_piece(r, b, &piece, r->scratch + b->at.q_piece, r->scratch + b->at.ctx_piece);
        copy_listed(r, &piece, v_bytes, true, r->scratch + b->at.ctx_piece, ctx);
    }
}

/* ---- expanded ---------------------------------------------------------------------------------- */

/* Rows of sequences that are not absorbed. */
static void attend_expanded(td_cuda_run *r, const td_npu_block *b) {
    const td_mla_desc    *m = &b->desc.mla;
    const td_step_arrays *a = &r->step->dev;
    uint32_t              per_head = m->nope_dim + m->v_dim, at_once = heads_at_once(m);
    size_t                key_blocks = td_div_up(b->desc.max_kv, TD_CUDA_EXPAND_KEYS);
    void                 *expanded = r->scratch + b->at.expanded;
    if (r->step->kind == TD_STEP_GENERATED) return;
    for (uint32_t head = 0; head < m->heads; head += at_once) {
        uint32_t    n = m->heads - head < at_once ? m->heads - head : at_once;
        const char *kv_b = m->kv_b->data + (size_t)head * per_head * m->kv_lora * sizeof(td_bf16);
        TD_CUDA_LAUNCH(
            r, MLA_EXPAND,
            TD_GRID(key_blocks < EXPAND_BLOCKS ? key_blocks : EXPAND_BLOCKS, n * td_div_up(per_head, TD_CUDA_EXPAND_OUT), 1),
            TD_CUDA_EXPAND_SHARED, TD_P(td_cuda_n_seq(r)), TD_P(a->kv_len), TD_P(a->block_table),
            TD_U(r->step->block_stride), TD_P(a->absorbed), TD_P(m->kv_latent), TD_U(m->kv_lora), TD_P(kv_b), TD_U(n),
            TD_U(per_head), TD_P(expanded));
        TD_CUDA_LAUNCH(r, MLA_PREFILL, TD_GRID(td_cuda_prefill_blocks(r->step), n, 1),
                       TD_CUDA_PREFILL_SHARED(TD_CUDA_EXPANDED_NOPE_MAX + TD_CUDA_LATENT_ROPE_MAX, TD_CUDA_EXPANDED_DV_MAX),
                       TD_P(td_cuda_n_seq(r)), TD_P(a->seq_start), TD_P(a->pos), TD_P(a->block_table),
                       TD_U(r->step->block_stride), TD_P(a->absorbed), TD_P(r->scratch + b->at.q_placed), TD_P(m->kv_rope),
                       TD_P(expanded), TD_U(n), TD_U(head), TD_U(m->heads), TD_U(m->nope_dim), TD_U(m->rope_dim),
                       TD_U(m->v_dim), TD_F(m->softmax_scale), TD_P(r->scratch + b->at.ctx));
    }
}

static void launch_mla(td_cuda_run *r, const td_npu_block *b) {
    const td_mla_desc *m = &b->desc.mla;
    place(r, b);
    attend_absorbed(r, b);
    attend_expanded(r, b);
    td_cuda_rows in = td_cuda_rows_of_f32(r, &b->at.out, m->o, td_cuda_n_tok(r), r->scratch + b->at.ctx, v_width(m));
    td_cuda_product(r, &in, m->o, m->o_bias, td_cuda_at_row(r, m->out, m->hidden * sizeof(td_bf16)), false);
}

const td_cuda_block_kind td_cuda_mla = {.place = place_mla, .check = check_mla, .launch = launch_mla};
