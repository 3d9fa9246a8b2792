/* The work of a block's run, for the metrics: npu/block_work.h with the weights that there are. */
#include "npu/block_work.h"
#include "npu/host/host_device.h"

static uint64_t row_bytes(const td_npu_weight *w) {
    if (w->shape.format == TD_WEIGHT_INT4G || w->shape.format == TD_WEIGHT_FP4G) return w->bytes / w->shape.n;
    return td_work_row_bytes(w->shape.format, w->shape.k);
}

/* Each expert that a row chose is read once. */
static void add_experts(td_tier_work *sum, const td_experts_desc *x, const td_host_step *s) {
    size_t          pairs = (size_t)s->n_tok * x->top_k;
    const uint16_t *ids = x->ids;
    uint32_t        rows[TD_EXPERTS_MAX] = {0};
    for (size_t i = 0; i < pairs; i++)
        if (ids[i] < x->n_experts) rows[ids[i]]++;
    for (uint32_t e = 0; e < x->n_experts; e++)
        for (int m = 0; m < 3; m++) {
            const td_npu_weight *w = (m == 0 ? x->gate : m == 1 ? x->up : x->down)[e];
            td_work_add_product(sum, w->shape.format, w->shape.n, w->shape.k, row_bytes(w), rows[e]);
        }
}

/* The same of those that lie in slots. */
static void add_resident(td_tier_work *sum, const td_npu_block *b, const td_host_step *s) {
    const td_resident_desc *x = &b->desc.resident;
    uint64_t                rows = 0;
    bool                    chosen[TD_EXPERTS_MAX] = {false};
    for (size_t i = 0; i < (size_t)s->n_tok * x->top_k; i++) {
        const uint16_t e = td_id_number(x->ids[i]);
        if (i % x->top_k < x->first || i % x->top_k >= td_resident_end(x)) continue;
        if (!td_id_is_resident(x->ids[i]) || e >= x->n_experts || x->slot_of[e] == TD_SLOT_ELSEWHERE) continue;
        rows++;
        if (!chosen[e]) sum->bytes += b->packed.bytes;
        chosen[e] = true;
    }
    *(b->packed.product == TD_PRODUCT_BF16 ? &sum->f32_ops : &sum->int8_ops) += rows * 6 * x->hidden * x->inter;
}

td_tier_work td_host_block_work(const td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    td_block_weight list[TD_BLOCK_WEIGHTS_MAX];
    size_t          n = td_block_weights(&b->desc, list);
    td_tier_work    sum = {0};
    for (size_t i = 0; i < n; i++) {
        const td_npu_weight *w = list[i].w[0];
        switch (list[i].use) {
            case TD_USE_TABLE: sum.bytes += s->n_tok * row_bytes(w); break;
            case TD_USE_LATENT: sum.bytes += w->shape.n * row_bytes(w); break;
            case TD_USE_LINEAR:
            case TD_USE_SCORES:
                td_work_add_product(&sum, w->shape.format, w->shape.n, w->shape.k, row_bytes(w),
                                    td_work_linear_rows(&b->desc, s->n_tok));
                break;
            case TD_USE_HEAD:
                td_work_add_product(&sum, w->shape.format, w->shape.n, w->shape.k, row_bytes(w), s->n_out);
                break;
            case TD_USE_EXPERT:
            case TD_USE_VECTOR:
            case TD_USE_ROPE:
            case TD_USE_TAPS: break;
        }
    }
    if (b->desc.kind == TD_BLOCK_EXPERTS) add_experts(&sum, &b->desc.experts, s);
    if (b->desc.kind == TD_BLOCK_RESIDENT) add_resident(&sum, b, s);
    for (uint32_t q = 0; q < s->n_seq; q++)
        td_work_add_attention(
            &sum, &b->desc, td_dtype_bytes(d->act),
            &(td_work_sequence){
                .rows = s->a.seq_start[q + 1] - s->a.seq_start[q], .keys = s->a.kv_len[q], .absorbed = s->a.absorbed[q]});
    return sum;
}
