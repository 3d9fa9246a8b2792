/* The router: f32 logits, and the vendor's choice as it is (td_npu_caps.raw_choice). */
#include "core/error.h"
#include "npu/ascend/ascend_weight.h"

#define T(v) td_ascend_tensor(r, v)
#define GROUP_EXPERTS_MAX 2048 /* all groups' experts, each group rounded up to 32 (transformer moe/moe_gating_top_k) */

static size_t place_router(const td_block_desc *desc, td_ascend_places *at) {
    const td_router_desc *o = &desc->router;
    size_t                used = 0, rows = desc->max_tok;
    *at = (td_ascend_places){0};
    at->f32 = td_ascend_place(&used, rows * o->hidden * sizeof(float));
    at->wide = td_ascend_place(&used, rows * o->n_experts * sizeof(float));
    at->unread = td_ascend_place(&used, rows * o->n_experts * sizeof(float));
    return used;
}

/* The softmax alone, without groups, bias and scale, is an operation of its own. It may divide the chosen scores by their
 * sum, which up to CANN 8.5 the general operation does for sigmoid scores only. */
static bool is_plain_softmax(const td_ascend_npu *d, const td_router_desc *o) {
    return d->l->ops.aclnnMoeGatingTopKSoftmaxV2 && o->score == TD_SCORE_SOFTMAX && o->group == TD_GROUP_NONE && !o->bias &&
           o->scale >= 1 && o->scale <= 1;
}

static td_status check_router(const td_ascend_npu *d, const td_block_desc *desc, td_error *err) {
    const td_router_desc *o = &desc->router;
    bool                  groups = o->group != TD_GROUP_NONE;
    if (o->score == TD_SCORE_SOFTMAX_CHOSEN || o->logit_bias)
        return td_fail(err, TD_ENOTSUP,
                       "the card's router takes the softmax of all experts or their sigmoid, of logits without a bias; this "
                       "model wants %s",
                       o->logit_bias ? "a bias on the logits" : "the softmax of those that are chosen");
    if (o->score == TD_SCORE_SIGMOID && !o->normalise)
        return td_fail(err, TD_ENOTSUP,
                       "the card's router always divides sigmoid scores by their sum, which this model does not");
    bool plain = is_plain_softmax(d, o);
    if (o->score == TD_SCORE_SOFTMAX && o->normalise && !plain)
        return td_fail(err, TD_ENOTSUP,
                       "the card's router divides chosen softmax scores by their sum only without groups, bias and scale%s",
                       d->l->ops.aclnnMoeGatingTopKSoftmaxV2 ? "" : ", by aclnnMoeGatingTopKSoftmaxV2, which is not there");
    uint32_t n_group = groups ? o->n_group : 1, size = o->n_experts / n_group;
    if ((size + 31) / 32 * 32 * n_group > GROUP_EXPERTS_MAX || (o->group == TD_GROUP_TOP2_SUM && size < 2))
        return td_fail(err, TD_ENOTSUP, "the card's router does not take %u experts in %u groups", o->n_experts, n_group);
    if (!plain && !d->l->ops.aclnnMoeGatingTopK)
        return td_fail(err, TD_ENOTSUP, "the libraries have no aclnnMoeGatingTopK, which this model's router needs");
    return TD_OK;
}

static td_status prepare_router(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_router_desc *o = &b->desc.router;
    (void)d;
    TD_TRY(td_ascend_plain_of(o->w, "router", &b->gamma[0], err));
    return td_ascend_plain_of(o->bias, "router bias", &b->bias, err);
}

/* The general operation's last output is required, and written only if a flag asks for it (ops-transformer,
 * moe_gating_top_k_def.cpp). */
static void choose(td_ascend_run *r, const td_npu_block *b, td_ascend_view logits, td_ascend_view values,
                   td_ascend_view ids) {
    const td_router_desc *o = &b->desc.router;
    bool                  groups = o->group != TD_GROUP_NONE;
    if (is_plain_softmax(r->d, o)) {
        TD_ASCEND_OP(r, aclnnMoeGatingTopKSoftmaxV2, T(logits), NULL, o->top_k, o->normalise, false, T(values), T(ids),
                     NULL);
        return;
    }
    td_acl_tensor *bias = b->bias && r->status == TD_OK ? T(td_ascend_vector(b->bias, TD_ACL_FLOAT, 0, o->n_experts)) : NULL;
    TD_ASCEND_OP(r, aclnnMoeGatingTopK, T(logits), bias, o->top_k, groups ? o->topk_group : 1, groups ? o->n_group : 1,
                 o->group == TD_GROUP_TOP2_SUM, 0, o->score == TD_SCORE_SIGMOID, false, (double)o->scale, 1e-20, T(values),
                 T(ids), T(td_ascend_scratch_rows(r, b->at.unread, TD_ACL_FLOAT, o->n_experts)));
}

/* The operation gives experts by what they were chosen by, bias included, and ids as int32. */
static void launch_router(td_ascend_run *r, const td_npu_block *b) {
    const td_router_desc *o = &b->desc.router;
    size_t                n = r->step->max_tok, first = r->step->first_row;
    td_ascend_view        x = td_ascend_scratch_rows(r, b->at.f32, TD_ACL_FLOAT, o->hidden),
                   logits = td_ascend_scratch_rows(r, b->at.wide, TD_ACL_FLOAT, o->n_experts);
    if (o->in_f32 && TD_ASCEND_HAS(r, aclnnAddRmsNormCast)) /* caps.norm_f32 */
        x = td_ascend_rows_of(o->in_f32, TD_ACL_FLOAT, first, n, o->hidden);
    else
        td_ascend_op_cast(r, td_ascend_in_rows(r, o->in, o->hidden), x);
    td_ascend_op_product(
        r, x, td_ascend_transposed(td_ascend_rows_of(b->gamma[0], TD_ACL_FLOAT, 0, o->n_experts, o->hidden)), logits);
    choose(r, b, logits, td_ascend_rows_of(o->weights, TD_ACL_FLOAT, first, n, o->top_k),
           td_ascend_rows_of(o->ids, TD_ACL_INT32, first, n, o->top_k));
}

const td_ascend_block_kind td_ascend_router = {
    .place = place_router, .check = check_router, .prepare = prepare_router, .launch = launch_router};
