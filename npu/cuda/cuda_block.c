#include "npu/cuda/cuda_block.h"

#include <stdlib.h>

#include "core/error.h"
#include "npu/cuda/cuda_kind.h"
#include "npu/cuda/cuda_stream.h"

#define BF16_MULTIPLE 8 /* of k: kernels load 16 bytes at a time */

static const td_cuda_block_kind *const KINDS[TD_BLOCK_COUNT] = {
    [TD_BLOCK_EMBED] = &td_cuda_embed,
    [TD_BLOCK_NORM] = &td_cuda_norm,
    [TD_BLOCK_LINEAR] = &td_cuda_linear,
    [TD_BLOCK_MLA] = &td_cuda_mla,
    [TD_BLOCK_GQA] = &td_cuda_gqa,
    [TD_BLOCK_MLP] = &td_cuda_mlp,
    [TD_BLOCK_ROUTER] = &td_cuda_router,
    [TD_BLOCK_EXPERTS] = &td_cuda_experts,
    [TD_BLOCK_RESIDENT] = &td_cuda_resident,
    [TD_BLOCK_JOIN] = &td_cuda_join,
    [TD_BLOCK_COMBINE] = &td_cuda_combine,
    [TD_BLOCK_HEAD] = &td_cuda_head,
    [TD_BLOCK_ALL_REDUCE] = &td_cuda_all_reduce,
    [TD_BLOCK_TOP] = &td_cuda_top,
};

/* Blocks whose linears cuBLASLt may multiply. */
static const bool HAS_LINEARS[TD_BLOCK_COUNT] = {
    [TD_BLOCK_LINEAR] = true, [TD_BLOCK_MLA] = true, [TD_BLOCK_GQA] = true, [TD_BLOCK_MLP] = true, [TD_BLOCK_HEAD] = true};

/* The block's own arrays, and behind them what the library's products need. @return bytes of all */
static size_t place(const td_cuda_npu *d, const td_block_desc *desc, td_npu_block *b) {
    size_t used = KINDS[desc->kind]->place(desc, &b->at),
           library = HAS_LINEARS[desc->kind] ? td_cuda_library_bytes(d, desc->max_tok) : 0;
    b->uses_library = library > 0;
    b->library = td_cuda_place(&used, library);
    return used;
}

size_t td_cuda_block_scratch_bytes(td_npu *base, const td_block_desc *desc) {
    return place((td_cuda_npu *)base, desc, &(td_npu_block){0});
}

/* What the kernels take; of experts, prepare sees to that. */
static td_status check_weights(const td_block_desc *desc, td_error *err) {
    td_block_weight list[TD_BLOCK_WEIGHTS_MAX];
    size_t          n = td_block_weights(desc, list);
    TD_TRY(td_block_check_weights(desc, err));
    for (size_t i = 0; i < n; i++) {
        const td_block_weight *x = &list[i];
        bool                   of_bf16 = x->use == TD_USE_TABLE || x->use == TD_USE_LATENT;
        if (!of_bf16 && x->use != TD_USE_LINEAR && x->use != TD_USE_HEAD) continue;
        td_weight_format format = x->w[0]->shape.format;
        if (of_bf16 && format != TD_WEIGHT_BF16)
            return td_fail(err, TD_EINVAL, "the weight %s must be bf16 on a CUDA card", x->what);
        if (format == TD_WEIGHT_F32)
            return td_fail(err, TD_ENOTSUP, "the weight %s is f32, which the card does not multiply rows with", x->what);
        if (!of_bf16 && format == TD_WEIGHT_BF16 && x->k % BF16_MULTIPLE)
            return td_fail(err, TD_ENOTSUP, "the weight %s is bf16 and has %zu inputs; the card takes multiples of %d",
                           x->what, x->k, BF16_MULTIPLE);
    }
    return TD_OK;
}

td_status td_cuda_block_create(td_npu *base, const td_block_desc *desc, td_npu_block **out, td_error *err) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    *out = NULL;
    if (d->base.config.bare) return td_fail(err, TD_EINVAL, "the card was opened without its kernels");
    TD_TRY(td_block_check(desc, TD_CUDA_GRID_MAX, err));
    TD_TRY(td_block_check_stateless(desc, err));
    const td_cuda_block_kind *kind = KINDS[desc->kind];
    TD_TRY(td_card_enter(&d->base));
    if (kind->check) TD_TRY(kind->check(d, desc, err));
    TD_TRY(check_weights(desc, err));
    td_npu_block *b = calloc(1, sizeof *b);
    if (!b) return td_fail(err, TD_ENOMEM, "out of memory for a block");
    b->desc = *desc;
    b->kind = kind;
    size_t    bytes = place(d, desc, b);
    td_status st = kind->prepare ? kind->prepare(d, b, err) : TD_OK;
    if (st != TD_OK) {
        td_cuda_block_destroy(base, b);
        return st;
    }
    if (bytes > d->block_bytes) d->block_bytes = bytes;
    *out = b;
    return TD_OK;
}

void td_cuda_block_destroy(td_npu *base, td_npu_block *b) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    if (b && b->tables && td_card_enter(&d->base) == TD_OK) td_card_give(&d->base, b->tables);
    free(b);
}

td_status td_cuda_enqueue(td_npu *base, td_npu_stream *s, td_npu_block *b, const td_step *step) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    TD_TRY(td_block_check_step(&b->desc, step));
    TD_TRY(td_card_enter(&d->base));
    if (!s->base.capture) TD_TRY(td_cuda_scratch_ready(d));
    td_cuda_run r = {.d = d,
                     .stream = s->stream,
                     .step = step,
                     .scratch = d->base.scratch.at,
                     .library = b->uses_library ? d->base.scratch.at + b->library : NULL};
    b->kind->launch(&r, b);
    td_card_launched(s, r.launches);
    return r.status;
}

/* bf16 */
size_t td_cuda_kv_page_bytes(td_npu *base, td_kv_rows what, size_t n) {
    (void)base;
    (void)what;
    return TD_KV_PAGE * n * sizeof(td_bf16);
}
