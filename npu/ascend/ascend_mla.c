/*
 * Multi-head latent attention. All rows take the absorbed form, prompts too: W_UK goes into the query, W_UV behind the sum,
 * and attention is over the latents in their pages. The operation takes latents of 512, rope parts of 64 and powers of two
 * of heads. Smaller models are filled up with zeros, which changes no result: zero columns add nothing to scores, and zero
 * heads are not read. A norm over a latent that is filled up divides by more: eps and weights make up for that.
 *
 * The front of an MLA is all that comes before attention. One operation computes it for DeepSeek-V3's sizes; another
 * computes what follows kv_a, for all sizes. They rotate pairs, so the rope rows of kv_a, or of q_b too, are interleaved
 * for them. Their results are halves, so the caches are the same in all forms.
 */
#include <math.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "npu/ascend/ascend_attention.h"
#include "npu/ascend/ascend_weight.h"

#define T(v) td_ascend_tensor(r, v)
#define LATENT TD_ASCEND_MLA_LATENT
#define ROPE TD_ASCEND_MLA_ROPE
#define PIECE 16 /* rows of a sequence that the operation takes together, in layout TND */

static uint32_t heads_to(uint32_t heads) {
    uint32_t to = 1;
    while (to < heads) to *= 2;
    return to;
}

static size_t q_width(const td_mla_desc *m) {
    return td_round_up((size_t)heads_to(m->heads) * (m->nope_dim + ROPE), 32);
}

static size_t place_mla(const td_block_desc *desc, td_ascend_places *at) {
    const td_mla_desc *m = &desc->mla;
    size_t             used = 0, rows = desc->max_tok, heads = heads_to(m->heads), v = (size_t)m->heads * m->v_dim,
           hidden = td_round_up(m->hidden, 32);
    size_t widest = m->hidden > v ? m->hidden : v;
    if (m->q_lora > widest) widest = m->q_lora;
    *at = (td_ascend_places){0};
    at->codes = td_ascend_place(&used, rows * widest);
    at->scale = td_ascend_place(&used, rows * sizeof(float));
    at->rstd = td_ascend_place(&used, rows * sizeof(float));
    at->wide = td_ascend_place(
        &used, rows * ((m->q_lora ? td_round_up(m->q_lora, 32) : q_width(m)) + LATENT + ROPE) * sizeof(td_bf16));
    at->low = td_ascend_place(&used, rows * m->q_lora * sizeof(td_bf16));
    at->q = td_ascend_place(&used, rows * (m->q_lora ? q_width(m) : 0) * sizeof(td_bf16));
    at->ctx = td_ascend_place(
        &used, rows * heads * LATENT * sizeof(td_bf16)); /* the query; later scratch for the values, transposed */
    at->q_rope = td_ascend_place(&used, rows * heads * ROPE * sizeof(td_bf16));
    at->k = td_ascend_place(&used, rows * LATENT * sizeof(td_bf16));
    at->k_rope = td_ascend_place(&used, rows * ROPE * sizeof(td_bf16));
    at->v = td_ascend_place(&used, rows * heads * LATENT * sizeof(td_bf16)); /* the sums */
    at->rows = td_ascend_place(&used, rows * v * sizeof(td_bf16));
    at->f32 = td_ascend_place(&used, rows * hidden * sizeof(td_bf16));
    at->unread = td_ascend_place(&used, TD_ASCEND_UNREAD_BYTES);
    return used;
}

static td_status check_mla(const td_ascend_npu *d, const td_block_desc *desc, td_error *err) {
    const td_mla_desc *m = &desc->mla;
    (void)d;
    if (m->kv_lora <= LATENT && m->rope_dim <= ROPE && m->heads <= TD_ASCEND_MLA_HEADS_MAX) return TD_OK;
    return td_fail(err, TD_ENOTSUP,
                   "the card's attention takes latents up to %d, rope parts up to %d and %d heads, not %u, %u and %u",
                   LATENT, ROPE, TD_ASCEND_MLA_HEADS_MAX, m->kv_lora, m->rope_dim, m->heads);
}

/* ---- the front as one operation ---------------------------------------------------------------- */

/* Sizes that all editions of aclnnMlaPrologV2WeightNz's document have, for rows and weights of int8. */
static bool takes_front(const td_ascend_npu *d, const td_mla_desc *m) {
    return d->l->ops.aclnnMlaPrologV2WeightNz && (m->hidden == 7168 || m->hidden == 7680) &&
           m->q_lora == TD_ASCEND_FRONT_Q_LORA && m->kv_lora == LATENT && m->nope_dim == 128 && m->rope_dim == ROPE &&
           !m->q_a_bias && !m->kv_a_bias && td_ascend_weight_is_int8(m->q_a) && td_ascend_weight_is_int8(m->q_b) &&
           td_ascend_weight_is_int8(m->kv_a);
}

static td_status make_ones(td_ascend_npu *d, td_error *err) {
    float ones[TD_ASCEND_FRONT_Q_LORA];
    if (d->ones) return TD_OK;
    for (size_t i = 0; i < TD_ASCEND_FRONT_Q_LORA; i++) ones[i] = 1;
    TD_TRY(td_card_take(&d->base, sizeof ones, &d->ones, err));
    return td_card_upload(&d->base, d->ones, ones, sizeof ones, err);
}

/* What the operations that norm and quantise take: gamma in bf16, where that changes nothing. */
static td_status prepare_fused(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_mla_desc *m = &b->desc.mla;
    bool               front = takes_front(d, m);
    double             filled = (double)m->kv_lora / LATENT;
    if (m->q_lora && (front || d->l->ops.aclnnAddRmsNormDynamicQuant) && td_ascend_weight_is_int8(m->q_b))
        TD_TRY(td_ascend_bf16_vector_of(d, m->q_a_norm, m->q_lora, m->q_lora, 1, "q_a norm", &b->gamma16[0], err));
    if (front || d->l->ops.aclnnKvRmsNormRopeCache)
        TD_TRY(
            td_ascend_bf16_vector_of(d, m->kv_a_norm, m->kv_lora, LATENT, sqrt(filled), "kv_a norm", &b->gamma16[1], err));
    b->front = front && b->gamma16[0] && b->gamma16[1];
    b->kv_front = b->gamma16[1] && d->l->ops.aclnnKvRmsNormRopeCache;
    return b->front ? make_ones(d, err) : TD_OK;
}

static td_status prepare_mla(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_mla_desc *m = &b->desc.mla;
    size_t             q_n = (size_t)m->heads * (m->nope_dim + m->rope_dim);
    TD_TRY(prepare_fused(d, b, err));
    b->heads_to = heads_to(m->heads);
    b->latent_to = LATENT;
    b->rope_to = ROPE;
    bool           int8 = b->front || m->in_i8.q;
    td_ascend_part kv_a = {.what = "kv_a",
                           .w = m->kv_a,
                           .bias = m->kv_a_bias,
                           .n = m->kv_lora + m->rope_dim,
                           .k = m->hidden,
                           .lead = m->kv_lora,
                           .lead_to = LATENT,
                           .rope = m->rope_dim,
                           .rope_to = ROPE,
                           .blocks_to = 1,
                           .pairs = b->front || b->kv_front,
                           .int8 = int8};
    td_ascend_part q = {.what = m->q_lora ? "q_b" : "q",
                        .w = m->q_lora ? m->q_b : m->q,
                        .n = q_n,
                        .k = m->q_lora ? m->q_lora : m->hidden,
                        .lead = m->nope_dim,
                        .lead_to = m->nope_dim,
                        .rope = m->rope_dim,
                        .rope_to = ROPE,
                        .blocks_to = b->heads_to,
                        .pairs = b->front,
                        .int8 = m->q_lora ? b->front : int8};
    td_ascend_part q_a = {.what = "q_a", .w = m->q_a, .bias = m->q_a_bias, .n = m->q_lora, .k = m->hidden, .int8 = int8};
    td_ascend_part o = {.what = "o", .w = m->o, .bias = m->o_bias, .n = m->hidden, .k = (size_t)m->heads * m->v_dim};
    TD_TRY(td_ascend_matrix_of(d, (td_ascend_part[]){m->q_lora ? q_a : q, kv_a}, 2, m->hidden, &b->in, err));
    if (m->q_lora) {
        TD_TRY(td_ascend_matrix_of(d, &q, 1, m->q_lora, &b->mid, err));
        TD_TRY(td_ascend_plain_of(m->q_a_norm, "q_a norm", &b->gamma[0], err));
    }
    TD_TRY(td_ascend_matrix_of(d, &o, 1, o.k, &b->out, err));
    if (b->in->format == TD_WEIGHT_F32 || b->out->format == TD_WEIGHT_F32 || (b->mid && b->mid->format == TD_WEIGHT_F32))
        return td_fail(err, TD_ENOTSUP, "the linears of an MLA block must be of codes or bf16 on an Ascend card");
    if (!b->gamma16[1])
        TD_TRY(td_ascend_scaled_vector_of(d, m->kv_a_norm, m->kv_lora, LATENT, sqrt((double)m->kv_lora / LATENT),
                                          "kv_a norm", &b->gamma[1], err));
    TD_TRY(td_ascend_heads_of(d, m->kv_b, m->heads, b->heads_to, m->nope_dim, m->v_dim, m->kv_lora, LATENT, &b->w_uk,
                              &b->w_uv, err));
    bool in_pieces = b->heads_to == 32 || b->heads_to == 64 || b->heads_to == 128;
    return td_ascend_attention_prepare(d, b, m->kv_pages, m->kv_spare_pages, m->rope, m->rope_dim, in_pieces, PIECE, false,
                                       err);
}

/* out[t, h, :] = x[t, h, :] w[h], w [heads, k, n]. transposed: scratch of out's size, for libraries without the
 * operation. */
static void multiply_heads(td_ascend_run *r, td_ascend_view x, const void *w, int64_t n, td_ascend_view out,
                           char *transposed) {
    int64_t        heads = x.shape[1], k = x.shape[2], rows = x.shape[0];
    td_ascend_view weight = td_ascend_heads(td_ascend_rows_of(w, TD_ACL_BF16, 0, (size_t)heads, (size_t)(k * n)), (size_t)k,
                                            (size_t)n, (size_t)n);
    if (TD_ASCEND_HAS(r, aclnnTransposeBatchMatMul)) {
        const td_acl     *acl = r->d->acl;
        const int64_t     inside[3] = {1, 0, 2}, as_is[3] = {0, 1, 2};
        td_acl_int_array *x_order = acl->aclCreateIntArray(inside, 3), *w_order = acl->aclCreateIntArray(as_is, 3),
                         *y_order = acl->aclCreateIntArray(inside, 3);
        if (!x_order || !w_order || !y_order) r->status = TD_EDEVICE;
        TD_ASCEND_OP(r, aclnnTransposeBatchMatMul, T(x), T(weight), NULL, NULL, x_order, w_order, y_order, 0, 1, T(out));
        if (x_order) (void)acl->aclDestroyIntArray(x_order);
        if (w_order) (void)acl->aclDestroyIntArray(w_order);
        if (y_order) (void)acl->aclDestroyIntArray(y_order);
        return;
    }
    td_ascend_view heads_first = x,
                   product = td_ascend_rows_of(transposed, TD_ACL_BF16, 0, (size_t)heads, (size_t)(rows * n));
    heads_first.shape[0] = heads;
    heads_first.stride[0] = x.stride[1];
    heads_first.shape[1] = rows;
    heads_first.stride[1] = x.stride[0];
    product = td_ascend_heads(product, (size_t)rows, (size_t)n, (size_t)n);
    TD_ASCEND_OP(r, aclnnBatchMatMul, T(heads_first), T(weight), T(product), 0);
    td_ascend_view back = product;
    back.shape[0] = rows;
    back.stride[0] = n;
    back.shape[1] = heads;
    back.stride[1] = rows * n;
    td_ascend_op_cast(r, back, out);
}

static td_ascend_view heads_at(const td_ascend_run *r, size_t at, size_t heads, size_t size) {
    return td_ascend_heads(td_ascend_scratch_rows(r, at, TD_ACL_BF16, heads * size), heads, size, size);
}

static void attend_mla(td_ascend_run *r, const td_npu_block *b) {
    const td_mla_desc             *m = &b->desc.mla;
    td_ascend_view                 latent = td_ascend_cache(b, m->kv_latent, LATENT);
    const td_ascend_attention_args args = {.q = heads_at(r, b->at.ctx, b->heads_to, LATENT),
                                           .q_rope = heads_at(r, b->at.q_rope, b->heads_to, ROPE),
                                           .out = heads_at(r, b->at.v, b->heads_to, LATENT),
                                           .k = latent,
                                           .v = latent,
                                           .k_rope = td_ascend_cache(b, m->kv_rope, ROPE),
                                           .heads = b->heads_to,
                                           .kv_heads = 1,
                                           .scale = m->softmax_scale};
    td_ascend_op_attention(r, &args);
}

/* The query's normed low rows, as q_b takes them. */
static td_ascend_input norm_low(td_ascend_run *r, const td_npu_block *b, td_ascend_view low) {
    const td_mla_desc *m = &b->desc.mla;
    char              *s = r->scratch;
    td_ascend_input    in = {.x = td_ascend_scratch_rows(r, b->at.codes, TD_ACL_INT8, m->q_lora),
                             .scale = td_ascend_vector(s + b->at.scale, TD_ACL_FLOAT, 0, r->step->max_tok)};
    if (b->gamma16[0] && b->mid->format == TD_WEIGHT_W8A8) {
        td_ascend_op_norm_quantize(r, low, b->gamma16[0], (double)m->eps, in.x, in.scale, s + b->at.low, s + b->at.unread);
        return in;
    }
    td_ascend_view normed = td_ascend_scratch_rows(r, b->at.low, TD_ACL_BF16, m->q_lora);
    td_ascend_op_norm(r, low, b->gamma[0], (double)m->eps, normed, s + b->at.rstd);
    return td_ascend_input_of(r, b, b->mid, normed);
}

/* kv [rows, latent and rope part] normed, rotated, and into their pages. */
static void write_latent(td_ascend_run *r, const td_npu_block *b, td_ascend_view kv) {
    const td_mla_desc *m = &b->desc.mla;
    td_ascend_view     latent = heads_at(r, b->at.k, 1, LATENT), rope = heads_at(r, b->at.k_rope, 1, ROPE);
    td_ascend_view     latents = td_ascend_cache(b, m->kv_latent, LATENT), ropes = td_ascend_cache(b, m->kv_rope, ROPE);
    double             eps = (double)m->eps * m->kv_lora / LATENT;
    if (b->kv_front) { /* [batch, 1, 1, size]; the rows themselves are not asked for */
        char           mode[] = "PA_BNSD";
        td_ascend_view cos = td_ascend_heads(td_ascend_rope_view(r, b, false), 1, ROPE, ROPE),
                       sin = td_ascend_heads(td_ascend_rope_view(r, b, true), 1, ROPE, ROPE);
        TD_ASCEND_OP(r, aclnnKvRmsNormRopeCache,
                     T(td_ascend_unsqueeze(td_ascend_heads(kv, 1, LATENT + ROPE, LATENT + ROPE), 1)),
                     T(td_ascend_vector(b->gamma16[1], TD_ACL_BF16, 0, LATENT)), T(td_ascend_unsqueeze(cos, 1)),
                     T(td_ascend_unsqueeze(sin, 1)), T(td_ascend_vector(r->cut->slot64, TD_ACL_INT64, 0, r->step->max_tok)),
                     T(td_ascend_unsqueeze(ropes, 2)), T(td_ascend_unsqueeze(latents, 2)), NULL, NULL, NULL, NULL, eps, mode,
                     false, T(td_ascend_unsqueeze(rope, 1)), T(td_ascend_unsqueeze(latent, 1)));
        return;
    }
    td_ascend_op_norm(r, td_ascend_columns(kv, 0, LATENT), b->gamma[1], eps,
                      td_ascend_scratch_rows(r, b->at.k, TD_ACL_BF16, LATENT), r->scratch + b->at.rstd);
    td_ascend_op_rope(r, b, td_ascend_heads(td_ascend_columns(kv, LATENT, ROPE), 1, ROPE, ROPE), rope);
    td_ascend_op_write(r, latent, latents, rope, ropes, 1);
}

/* Query into the space of latents, latent and rope part into their pages: an operation each. */
static void launch_front_unfused(td_ascend_run *r, const td_npu_block *b) {
    const td_mla_desc *m = &b->desc.mla;
    char              *s = r->scratch;
    size_t             head = (size_t)m->nope_dim + ROPE;
    td_ascend_view     wide = td_ascend_scratch_rows(r, b->at.wide, TD_ACL_BF16, b->in->n), q = wide;
    td_ascend_op_matrix(r, td_ascend_block_input(r, b, b->in, m->in, m->in_i8, m->hidden), b->in, wide);
    if (m->q_lora) {
        q = td_ascend_scratch_rows(r, b->at.q, TD_ACL_BF16, b->mid->n);
        td_ascend_op_matrix(r, norm_low(r, b, td_ascend_columns(wide, 0, m->q_lora)), b->mid, q);
    }
    multiply_heads(r, td_ascend_heads(q, b->heads_to, head, m->nope_dim), b->w_uk, LATENT,
                   heads_at(r, b->at.ctx, b->heads_to, LATENT), s + b->at.v);
    td_ascend_op_rope(r, b, td_ascend_heads(td_ascend_columns(q, m->nope_dim, ROPE), b->heads_to, head, ROPE),
                      heads_at(r, b->at.q_rope, b->heads_to, ROPE));
    write_latent(r, b, td_ascend_columns(wide, b->in->first[1], LATENT + ROPE));
}

static void launch_front(td_ascend_run *r, const td_npu_block *b) {
    const td_mla_desc *m = &b->desc.mla;
    td_ascend_input    in = td_ascend_block_input(r, b, b->in, m->in, m->in_i8, m->hidden);
    td_ascend_view     w_uk = td_ascend_rows_of(b->w_uk, TD_ACL_BF16, 0, b->heads_to, (size_t)m->nope_dim * LATENT);
    char               mode[] = "PA_BSND";
    TD_ASCEND_OP(r, aclnnMlaPrologV2WeightNz, T(in.x), td_ascend_tensor_part(r, b->in, 0),
                 td_ascend_tensor_part(r, b->mid, 0), T(td_ascend_heads(w_uk, m->nope_dim, LATENT, LATENT)),
                 td_ascend_tensor_part(r, b->in, 1), T(td_ascend_vector(b->gamma16[0], TD_ACL_BF16, 0, m->q_lora)),
                 T(td_ascend_vector(b->gamma16[1], TD_ACL_BF16, 0, m->kv_lora)), T(td_ascend_rope_view(r, b, true)),
                 T(td_ascend_rope_view(r, b, false)), T(td_ascend_vector(r->cut->slot64, TD_ACL_INT64, 0, r->step->max_tok)),
                 T(td_ascend_unsqueeze(td_ascend_cache(b, m->kv_latent, LATENT), 2)),
                 T(td_ascend_unsqueeze(td_ascend_cache(b, m->kv_rope, ROPE), 2)), T(td_ascend_unsqueeze(in.scale, 1)),
                 td_ascend_tensor_part_scale(r, b->in, 0), td_ascend_tensor_part_scale(r, b->mid, 0),
                 td_ascend_tensor_part_scale(r, b->in, 1), NULL, NULL,
                 T(td_ascend_rows_of(r->d->ones, TD_ACL_FLOAT, 0, 1, m->q_lora)), (double)m->eps, (double)m->eps, mode,
                 T(heads_at(r, b->at.ctx, b->heads_to, LATENT)), T(heads_at(r, b->at.q_rope, b->heads_to, ROPE)), NULL);
}

static void launch_mla(td_ascend_run *r, const td_npu_block *b) {
    const td_mla_desc *m = &b->desc.mla;
    char              *s = r->scratch;
    size_t             rows = r->step->max_tok;
    td_ascend_rope_rows(r, b);
    if (b->front)
        launch_front(r, b);
    else
        launch_front_unfused(r, b);
    td_ascend_attend(r, b);

    multiply_heads(r,
                   td_ascend_heads(td_ascend_scratch_rows(r, b->at.v, TD_ACL_BF16, (size_t)b->heads_to * LATENT), m->heads,
                                   LATENT, LATENT),
                   b->w_uv, m->v_dim, heads_at(r, b->at.rows, m->heads, m->v_dim), s + b->at.ctx);
    td_ascend_view values = td_ascend_rows_of(s + b->at.rows, TD_ACL_BF16, 0, rows, (size_t)m->heads * m->v_dim);
    td_ascend_op_matrix_to(r, td_ascend_input_of(r, b, b->out, values), b->out, s + b->at.f32,
                           td_ascend_in_rows(r, m->out, m->hidden));
}

const td_ascend_block_kind td_ascend_mla = {
    .place = place_mla, .check = check_mla, .prepare = prepare_mla, .launch = launch_mla, .attend = attend_mla};
