/* The choice of experts. */
#include "core/error.h"
#include "npu/cuda/cuda_kind.h"

static const uint32_t SCORES[TD_ROUTER_SCORES] = {[TD_SCORE_SOFTMAX] = TD_CUDA_SCORE_SOFTMAX,
                                                  [TD_SCORE_SIGMOID] = TD_CUDA_SCORE_SIGMOID,
                                                  [TD_SCORE_SOFTMAX_CHOSEN] = TD_CUDA_SCORE_SOFTMAX_CHOSEN};

static size_t place_router(const td_block_desc *desc, td_cuda_places *at) {
    size_t used = 0;
    *at = (td_cuda_places){0};
    at->wide = td_cuda_place(&used, (size_t)desc->max_tok * desc->router.n_experts * sizeof(float));
    return used;
}

static td_status check_router(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    return td_cuda_need_shared(d, TD_CUDA_ROUTE_SHARED(desc->router.n_experts), "a router of this size", err);
}

static void launch_router(td_cuda_run *r, const td_npu_block *b) {
    const td_router_desc *d = &b->desc.router;
    td_cuda_count         n = td_cuda_n_tok(r);
    void                 *logits = r->scratch + b->at.wide;
    uint32_t              group = d->group == TD_GROUP_NONE ? 0 : d->group == TD_GROUP_MAX ? 1 : 2;
    td_cuda_product_f32(r, n, td_cuda_at_row(r, d->in, d->hidden * sizeof(td_bf16)), d->w, d->n_experts, d->hidden, logits);
    TD_CUDA_LAUNCH(r, ROUTE, TD_GRID(n.most, 1, 1), TD_CUDA_ROUTE_SHARED(d->n_experts), TD_P(n.count), TD_P(logits),
                   TD_P(d->logit_bias ? d->logit_bias->data : NULL), TD_P(d->bias ? d->bias->data : NULL),
                   TD_U(d->n_experts), TD_U(d->top_k), TD_U(SCORES[d->score]), TD_U(group), TD_U(d->n_group),
                   TD_U(d->topk_group), TD_U(d->normalise), TD_F(d->scale), TD_P(d->slot_of),
                   TD_P(td_cuda_at_row(r, d->ids, d->top_k * sizeof(uint16_t))),
                   TD_P(td_cuda_at_row(r, d->weights, d->top_k * sizeof(float))));
}

const td_cuda_block_kind td_cuda_router = {.place = place_router, .check = check_router, .launch = launch_router};
