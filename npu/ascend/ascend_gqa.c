/*
 * Grouped-query attention. If heads are of 128 and normed, one operation does all that comes before attention. Its pages
 * are in NZ (16 values of a head for all tokens of a page, then the next 16), which attention reads from CANN 9.1 on.
 * Otherwise another operation rotates query and keys together.
 *
 * Where rope rotates a part of a head, the values of queries and keys are placed so that rotating whole heads, by angles of 0
 * beyond that part, turns the same pairs (td_ascend_part). Scores do not change: both sides are placed alike.
 *
 * With heads of 128 the operation takes any rows of a sequence together (layout TND); of other
 * sizes, multiples of 16 up to 512, each row is a query of its own.
 */
#include "core/error.h"
#include "core/memory/mem.h"
#include "npu/ascend/ascend_attention.h"
#include "npu/ascend/ascend_weight.h"

#define T(v) td_ascend_tensor(r, v)
#define DIM_MAX 512
#define DIM_IN_PIECES 128
#define CACHE_WIDTH_MAX 65535  /* of a page's row: heads * size */
#define FRONT_DIM 128          /* of aclnnQkvRmsNormRopeCache */
#define FRONT_CANN 901         /* whose attention takes its pages */
#define ROPE_BYTES (192 << 10) /* of a core, into which a row of that operation has to fit */
#define ROPE_STEP 32           /* of aclnnRopeWithSinCosCache: heads are multiples, and rows begin at multiples */

static size_t place_gqa(const td_block_desc *desc, td_ascend_places *at) {
    const td_gqa_desc *g = &desc->gqa;
    size_t used = 0, rows = desc->max_tok, q = (size_t)g->heads * g->head_dim, kv = (size_t)g->kv_heads * g->head_dim;
    size_t widest = g->hidden > q ? g->hidden : q, hidden = td_round_up(g->hidden, 32);
    *at = (td_ascend_places){0};
    at->codes = td_ascend_place(&used, rows * widest);
    at->scale = td_ascend_place(&used, rows * sizeof(float));
    at->rstd = td_ascend_place(&used, rows * g->heads * sizeof(float));
    at->wide = td_ascend_place(&used, rows * (td_round_up(q, 32) + 2 * td_round_up(kv, 32)) * sizeof(td_bf16));
    at->low = td_ascend_place(&used, rows * q * sizeof(td_bf16));
    at->q = td_ascend_place(&used, rows * q * sizeof(td_bf16));
    at->k = td_ascend_place(&used, rows * kv * sizeof(td_bf16));
    at->v = td_ascend_place(&used, rows * kv * sizeof(td_bf16));
    at->ctx = td_ascend_place(&used, rows * q * sizeof(td_bf16));
    at->f32 = td_ascend_place(&used, rows * hidden * sizeof(td_bf16));
    return used;
}

/* The rules of its document that are the same for all layers of a model; besides, norms have to be in bf16. */
static bool may_take_front(const td_ascend_npu *d, const td_npu_block *b) {
    const td_gqa_desc *g = &b->desc.gqa;
    if (g->norm_rows || td_gqa_rope_dim(g) != g->head_dim) return false;
    return d->l->ops.aclnnQkvRmsNormRopeCache && d->l->cann_number >= FRONT_CANN && g->head_dim == FRONT_DIM && g->q_norm &&
           g->k_norm && b->in->n == ((size_t)g->heads + 2 * g->kv_heads) * g->head_dim;
}

/* The rule of its tiling besides (ops-transformer, rope_with_sin_cos_cache_tiling.cpp): it divides a core's memory by what a
 * row of all heads wants, and more than that is a division by zero. */
static bool may_take_rope_both(const td_ascend_npu *d, const td_npu_block *b) {
    const td_ascend_matrix *m = b->in;
    const td_gqa_desc      *g = &b->desc.gqa;
    const size_t            heads = g->heads > g->kv_heads ? g->heads : g->kv_heads;
    if (heads * 9 * g->head_dim * sizeof(float) > ROPE_BYTES) return false;
    return d->l->ops.aclnnRopeWithSinCosCache && b->desc.gqa.head_dim % ROPE_STEP == 0 && m->n % ROPE_STEP == 0 &&
           m->first[0] % ROPE_STEP == 0 && m->first[1] % ROPE_STEP == 0;
}

static td_status check_gqa(const td_ascend_npu *d, const td_block_desc *desc, td_error *err) {
    const td_gqa_desc *g = &desc->gqa;
    const char        *unknown = g->window ? "sliding window" : g->sinks ? "sinks" : g->gated ? "gate" : NULL;
    if (unknown)
        return td_fail(err, TD_ENOTSUP, "the attention of an Ascend card has no %s, which this model needs", unknown);
    if (g->head_dim < 16 || g->head_dim % 16 || g->head_dim > DIM_MAX || g->heads > 256 ||
        (size_t)g->kv_heads * g->head_dim > CACHE_WIDTH_MAX)
        return td_fail(
            err, TD_ENOTSUP,
            "the card's attention takes heads of 16 to %d in steps of 16, up to 256 of them and up to %d values of "
            "all kv heads, not %u of %u with %u kv heads",
            DIM_MAX, CACHE_WIDTH_MAX, g->heads, g->head_dim, g->kv_heads);
    (void)d;
    return TD_OK;
}

static td_status prepare_gqa(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_gqa_desc *g = &b->desc.gqa;
    size_t             q = (size_t)g->heads * g->head_dim, kv = (size_t)g->kv_heads * g->head_dim;
    size_t             head = g->head_dim, rope = td_gqa_rope_dim(g), rotated = rope == head ? 0 : rope;
    bool               int8 = g->in_i8.q != NULL;
    td_ascend_part     qkv[3] = {{"q", g->q, g->q_bias, q, g->hidden, .head = head, .rotated = rotated, .int8 = int8},
                                 {"k", g->k, g->k_bias, kv, g->hidden, .head = head, .rotated = rotated, .int8 = int8},
                                 {.what = "v", .w = g->v, .bias = g->v_bias, .n = kv, .k = g->hidden, .int8 = int8}},
                   o = {.what = "o", .w = g->o, .bias = g->o_bias, .n = g->hidden, .k = q};
    TD_TRY(td_ascend_matrix_of(d, qkv, 3, g->hidden, &b->in, err));
    TD_TRY(td_ascend_matrix_of(d, &o, 1, q, &b->out, err));
    if (b->in->format == TD_WEIGHT_F32 || b->out->format == TD_WEIGHT_F32)
        return td_fail(err, TD_ENOTSUP, "the linears of an attention must be W8A8 or bf16 on an Ascend card");
    TD_TRY(td_ascend_rotated_vector_of(d, g->q_norm, g->norm_rows ? q : head, head, rope, "q norm", &b->gamma[0], err));
    TD_TRY(td_ascend_rotated_vector_of(d, g->k_norm, g->norm_rows ? kv : head, head, rope, "k norm", &b->gamma[1], err));
    bool one = may_take_front(d, b);
    if (one) {
        TD_TRY(td_ascend_bf16_vector_of(d, g->q_norm, g->head_dim, g->head_dim, 1, "q norm", &b->gamma16[0], err));
        TD_TRY(td_ascend_bf16_vector_of(d, g->k_norm, g->head_dim, g->head_dim, 1, "k norm", &b->gamma16[1], err));
    }
    b->heads_to = g->heads;
    b->rope_to = g->head_dim;
    b->front = one && b->gamma16[0] && b->gamma16[1];
    return td_ascend_attention_prepare(d, b, g->kv_pages, g->kv_spare_pages, g->rope, rope, g->head_dim == DIM_IN_PIECES,
                                       UINT32_MAX, !one && may_take_rope_both(d, b), err);
}

static td_ascend_view heads_at(const td_ascend_run *r, size_t at, size_t heads, size_t size) {
    return td_ascend_heads(td_ascend_scratch_rows(r, at, TD_ACL_BF16, heads * size), heads, size, size);
}

/* [pages, tiles, tokens, 16] of a cache in NZ, the tiles those of all its heads. */
static td_ascend_view tiled_cache(const td_npu_block *b, const void *data) {
    size_t         width = (size_t)b->desc.gqa.kv_heads * b->desc.gqa.head_dim;
    td_ascend_view v = td_ascend_cache(b, data, width);
    return (td_ascend_view){.data = v.data,
                            .dtype = v.dtype,
                            .rank = 4,
                            .shape = {v.shape[0], (int64_t)width / 16, TD_KV_PAGE, 16},
                            .stride = {v.stride[0], TD_KV_PAGE * 16, 16, 1}};
}

/* A cache as attention takes it: in NZ its tiles are a head's. */
static td_ascend_view keys_or_values(const td_npu_block *b, const void *data) {
    const td_gqa_desc *g = &b->desc.gqa;
    if (!b->front) return td_ascend_cache(b, data, (size_t)g->kv_heads * g->head_dim);
    td_ascend_view v = td_ascend_unsqueeze(tiled_cache(b, data), 1);
    v.shape[1] = g->kv_heads;
    v.shape[2] = g->head_dim / 16;
    v.stride[1] = v.shape[2] * v.stride[2];
    return v;
}

static void attend_gqa(td_ascend_run *r, const td_npu_block *b) {
    const td_gqa_desc             *g = &b->desc.gqa;
    const td_ascend_attention_args args = {.q = heads_at(r, b->at.q, g->heads, g->head_dim),
                                           .out = heads_at(r, b->at.ctx, g->heads, g->head_dim),
                                           .k = keys_or_values(b, g->kv_k),
                                           .v = keys_or_values(b, g->kv_v),
                                           .heads = g->heads,
                                           .kv_heads = g->kv_heads,
                                           .scale = g->softmax_scale};
    td_ascend_op_attention(r, &args);
}

/* Rows of heads, [rows, n, dim], as [rows, n * dim]. */
static td_ascend_view flat(td_ascend_view heads) {
    heads.rank = 2;
    heads.shape[1] *= heads.shape[2];
    heads.stride[1] = 1;
    return heads;
}

/* The heads of x [rows, n, head_dim], normed where there is a norm: each by itself, or all of a row together. */
static td_ascend_view normed(td_ascend_run *r, const td_npu_block *b, td_ascend_view x, const void *gamma, size_t at) {
    const td_gqa_desc *g = &b->desc.gqa;
    if (!gamma) return x;
    td_ascend_view to = heads_at(r, at, (size_t)x.shape[1], g->head_dim);
    td_ascend_op_norm(r, g->norm_rows ? flat(x) : x, gamma, (double)g->eps, g->norm_rows ? flat(to) : to,
                      r->scratch + b->at.rstd);
    return to;
}

/* Norm and rope of query and keys, which go to their pages with the values; part: the three of a product's. */
static void launch_front_unfused(td_ascend_run *r, const td_npu_block *b, const td_ascend_view part[3]) {
    const td_gqa_desc *g = &b->desc.gqa;
    size_t             dim = g->head_dim, width = (size_t)g->kv_heads * dim;
    td_ascend_view     q = heads_at(r, b->at.q, g->heads, dim), k = heads_at(r, b->at.k, g->kv_heads, dim);
    if (b->rope_both) {
        td_ascend_view from = normed(r, b, part[0], b->gamma[0], b->at.low);
        td_ascend_op_rope_both(r, b, flat(from), flat(normed(r, b, part[1], b->gamma[1], b->at.v)), flat(q), flat(k));
    } else {
        td_ascend_op_rope(r, b, normed(r, b, part[0], b->gamma[0], b->at.low), q);
        td_ascend_op_rope(r, b, normed(r, b, part[1], b->gamma[1], b->at.low), k);
    }
    td_ascend_view values = part[2];
    if (!TD_ASCEND_HAS(r, aclnnScatterPaKvCache)) { /* what takes its place wants them without gaps */
        values = heads_at(r, b->at.v, g->kv_heads, dim);
        td_ascend_op_cast(r, part[2], values);
    }
    td_ascend_op_write(r, k, td_ascend_cache(b, g->kv_k, width), values, td_ascend_cache(b, g->kv_v, width), g->kv_heads);
}

/* The same in one operation, of the whole product. */
static void launch_front(td_ascend_run *r, const td_npu_block *b, td_ascend_view wide) {
    const td_gqa_desc *g = &b->desc.gqa;
    const td_acl      *acl = r->d->acl;
    size_t             rows = r->step->max_tok, dim = g->head_dim;
    const int64_t      size[4] = {1, (int64_t)rows, (int64_t)g->heads + 2 * (int64_t)g->kv_heads, (int64_t)dim},
                  heads[3] = {g->heads, g->kv_heads, g->kv_heads};
    td_acl_int_array *sizes = r->status == TD_OK ? acl->aclCreateIntArray(size, 4) : NULL,
                     *numbers = r->status == TD_OK ? acl->aclCreateIntArray(heads, 3) : NULL;
    char mode[] = "PA_NZ";
    if (r->status == TD_OK && (!sizes || !numbers)) r->status = TD_EDEVICE;
    TD_ASCEND_OP(r, aclnnQkvRmsNormRopeCache, T(wide), T(td_ascend_vector(b->gamma16[0], TD_ACL_BF16, 0, dim)),
                 T(td_ascend_vector(b->gamma16[1], TD_ACL_BF16, 0, dim)), T(td_ascend_rope_view(r, b, false)),
                 T(td_ascend_rope_view(r, b, true)), T(td_ascend_vector(r->cut->slot64, TD_ACL_INT64, 0, rows)),
                 T(td_ascend_scratch_rows(r, b->at.q, TD_ACL_BF16, g->heads * dim)), T(tiled_cache(b, g->kv_k)),
                 T(tiled_cache(b, g->kv_v)), NULL, NULL, NULL, NULL, sizes, numbers, (double)g->eps, mode, NULL, NULL, NULL);
    if (sizes) (void)acl->aclDestroyIntArray(sizes);
    if (numbers) (void)acl->aclDestroyIntArray(numbers);
}

static void launch_gqa(td_ascend_run *r, const td_npu_block *b) {
    const td_gqa_desc *g = &b->desc.gqa;
    size_t             dim = g->head_dim;
    td_ascend_view     wide = td_ascend_scratch_rows(r, b->at.wide, TD_ACL_BF16, b->in->n), part[3];
    for (size_t i = 0; i < 3; i++) {
        size_t n = i ? g->kv_heads : g->heads;
        part[i] = td_ascend_heads(td_ascend_columns(wide, b->in->first[i], n * dim), n, dim, dim);
    }
    if (!b->rope_both) td_ascend_rope_rows(r, b);
    td_ascend_op_matrix(r, td_ascend_block_input(r, b, b->in, g->in, g->in_i8, g->hidden), b->in, wide);
    if (b->front)
        launch_front(r, b, wide);
    else
        launch_front_unfused(r, b, part);

    td_ascend_attend(r, b);

    td_ascend_view sums = td_ascend_scratch_rows(r, b->at.ctx, TD_ACL_BF16, (size_t)g->heads * dim);
    td_ascend_op_matrix_to(r, td_ascend_input_of(r, b, b->out, sums), b->out, r->scratch + b->at.f32,
                           td_ascend_in_rows(r, g->out, g->hidden));
}

const td_ascend_block_kind td_ascend_gqa = {
    .place = place_gqa, .check = check_gqa, .prepare = prepare_gqa, .launch = launch_gqa, .attend = attend_gqa};
