#include "npu/ascend/ascend_attention.h"

#include <stdlib.h>

#include "core/error.h"
#include "npu/ascend/ascend_stream.h"
#include "npu/ascend/ascend_weight.h"

#define T(v) td_ascend_tensor(r, v)
#define MASK_SIDE 2048 /* of sparseMode 3: causal for any lengths */
#define KV_MAX ((uint32_t)1 << 24)

td_ascend_view td_ascend_cache(const td_npu_block *b, const void *data, size_t width) {
    size_t pages = (size_t)b->cut.kv_pages + b->cut.kv_spare_pages;
    return td_ascend_heads(td_ascend_rows_of(data, TD_ACL_BF16, 0, pages, TD_KV_PAGE * width), TD_KV_PAGE, width, width);
}

/* ---- preparing --------------------------------------------------------------------------------- */

static td_status make_mask(td_ascend_npu *d, td_error *err) {
    size_t bytes = (size_t)MASK_SIDE * MASK_SIDE;
    if (d->mask) return TD_OK;
    uint8_t *mask = calloc(1, bytes);
    if (!mask) return td_fail(err, TD_ENOMEM, "out of memory for the mask of attention");
    for (size_t i = 0; i < MASK_SIDE; i++)
        for (size_t j = i + 1; j < MASK_SIDE; j++) mask[i * MASK_SIDE + j] = 1;
    td_status st = td_card_take(&d->base, bytes, &d->mask, err);
    if (st == TD_OK) st = td_card_upload(&d->base, d->mask, mask, bytes, err);
    free(mask);
    return st;
}

td_status td_ascend_attention_prepare(td_ascend_npu *d, td_npu_block *b, uint32_t kv_pages, uint32_t kv_spare_pages,
                                      const td_npu_weight *rope, size_t dim, bool in_pieces, uint32_t most, bool both,
                                      td_error *err) {
    size_t positions;
    if (b->desc.max_kv < 1 || b->desc.max_kv > KV_MAX)
        return td_fail(err, TD_EINVAL, "attention takes 1 to %u keys, not %u", KV_MAX, b->desc.max_kv);
    if (!kv_pages) return td_fail(err, TD_EINVAL, "the KV cache of an attention has no pages");
    if (!TD_ASCEND_HAS(&(td_ascend_run){.d = d}, aclnnFusedInferAttentionScoreV4) &&
        !TD_ASCEND_HAS(&(td_ascend_run){.d = d}, aclnnFusedInferAttentionScoreV3))
        return td_fail(err, TD_ENOTSUP,
                       "the libraries have no attention for this card: neither "
                       "aclnnFusedInferAttentionScoreV4 nor V3");
    if (both)
        TD_TRY(td_ascend_rope_both_of(d, rope, dim, b->rope_to, &b->rope_both, &positions, err));
    else
        TD_TRY(td_ascend_rope_of(d, rope, dim, b->rope_to, &b->cos, &b->sin, &positions, err));
    b->n_positions = positions;
    b->cut = (td_ascend_cut_key){in_pieces ? most : 1, kv_pages, kv_spare_pages};
    return in_pieces ? make_mask(d, err) : TD_OK;
}

/* ---- rope -------------------------------------------------------------------------------------- */

td_ascend_view td_ascend_rope_view(const td_ascend_run *r, const td_npu_block *b, bool sin) {
    return td_ascend_rows_of(r->rope + (sin ? r->d->rope_bytes / 2 : 0), TD_ACL_BF16, r->step->first_row, r->step->max_tok,
                             b->rope_to);
}

void td_ascend_rope_rows(td_ascend_run *r, const td_npu_block *b) {
    if (r->made->rope == b->cos) return;
    td_ascend_view pos = td_ascend_vector(r->made->pos, TD_ACL_INT32, 0, r->step->max_tok);
    td_ascend_op_gather(r, td_ascend_rows_of(b->cos, TD_ACL_BF16, 0, b->n_positions, b->rope_to), pos,
                        td_ascend_rope_view(r, b, false));
    td_ascend_op_gather(r, td_ascend_rows_of(b->sin, TD_ACL_BF16, 0, b->n_positions, b->rope_to), pos,
                        td_ascend_rope_view(r, b, true));
    if (r->status == TD_OK) r->made->rope = b->cos;
}

/* As [batch, rows, heads, size] with one batch: the operation takes few heads and batches, and any rows. */
void td_ascend_op_rope(td_ascend_run *r, const td_npu_block *b, td_ascend_view x, td_ascend_view out) {
    td_ascend_view cos = td_ascend_heads(td_ascend_rope_view(r, b, false), 1, b->rope_to, b->rope_to),
                   sin = td_ascend_heads(td_ascend_rope_view(r, b, true), 1, b->rope_to, b->rope_to);
    TD_ASCEND_OP(r, aclnnRotaryPositionEmbedding, T(td_ascend_unsqueeze(x, 0)), T(td_ascend_unsqueeze(cos, 0)),
                 T(td_ascend_unsqueeze(sin, 0)), 0, T(td_ascend_unsqueeze(out, 0)));
}

void td_ascend_op_rope_both(td_ascend_run *r, const td_npu_block *b, td_ascend_view q, td_ascend_view k,
                            td_ascend_view q_out, td_ascend_view k_out) {
    TD_ASCEND_OP(r, aclnnRopeWithSinCosCache, T(td_ascend_vector(r->made->pos64, TD_ACL_INT64, 0, r->step->max_tok)), T(q),
                 T(k), T(td_ascend_rows_of(b->rope_both, TD_ACL_BF16, 0, b->n_positions, b->rope_to)), NULL,
                 (int64_t)b->rope_to, true, T(q_out), T(k_out));
}

/* ---- pages ------------------------------------------------------------------------------------- */

static void write_one(td_ascend_run *r, td_ascend_view x, td_ascend_view cache) {
    td_ascend_view rows =
        td_ascend_rows_of(cache.data, cache.dtype, 0, (size_t)(cache.shape[0] * cache.shape[1]), (size_t)cache.shape[2]);
    td_ascend_view flat = x;
    flat.rank = 2;
    flat.shape[1] = x.shape[1] * x.shape[2];
    flat.stride[1] = 1;
    td_ascend_view slots = td_ascend_rows_of(r->cut->slot, TD_ACL_INT32, 0, r->step->max_tok, 1);
    TD_ASCEND_OP(r, aclnnScatterNdUpdate, T(rows), T(slots), T(flat));
}

/* Strides and offsets are nothing here, and given as op-plugin gives them (ScatterPaKvCacheNpuOpApi.cpp:76). */
void td_ascend_op_write(td_ascend_run *r, td_ascend_view keys, td_ascend_view key_cache, td_ascend_view values,
                        td_ascend_view value_cache, size_t heads) {
    if (!TD_ASCEND_HAS(r, aclnnScatterPaKvCache)) {
        write_one(r, keys, key_cache);
        write_one(r, values, value_cache);
        return;
    }
    char           norm[] = "Norm", none[] = "None";
    size_t         key = (size_t)key_cache.shape[2] / heads, value = (size_t)value_cache.shape[2] / heads;
    td_ascend_view slots = td_ascend_vector(r->cut->slot, TD_ACL_INT32, 0, r->step->max_tok);
    /* [blocks, tokens, heads, size] */
    td_ascend_view kc = td_ascend_unsqueeze(key_cache, 2), vc = td_ascend_unsqueeze(value_cache, 2);
    kc.shape[2] = vc.shape[2] = (int64_t)heads;
    kc.stride[2] = kc.shape[3] = (int64_t)key;
    vc.stride[2] = vc.shape[3] = (int64_t)value;
    const int64_t     one[2] = {1, 1}, zero[2] = {0, 0};
    td_acl_int_array *strides = r->status == TD_OK ? r->d->acl->aclCreateIntArray(one, 2) : NULL,
                     *offsets = r->status == TD_OK ? r->d->acl->aclCreateIntArray(zero, 2) : NULL;
    if ((!strides || !offsets) && r->status == TD_OK) r->status = TD_EDEVICE;
    TD_ASCEND_OP(r, aclnnScatterPaKvCache, T(keys), T(kc), T(slots), T(values), T(vc), NULL, NULL, NULL, norm, none, strides,
                 offsets);
    if (strides) (void)r->d->acl->aclDestroyIntArray(strides);
    if (offsets) (void)r->d->acl->aclDestroyIntArray(offsets);
}

/* ---- attention --------------------------------------------------------------------------------- */

/* Arguments that are nothing here: quantisation, padding, prefixes, sums of softmax. */
#define NONE5 NULL, NULL, NULL, NULL, NULL
#define ATTENTION_TENSORS                                                                                            \
    query, keys, values, NULL, mask, ends, lengths, NONE5, NULL, NULL, pages, NULL, NULL, NONE5, NULL, NULL, q_rope, \
        k_rope, NULL
#define ATTENTION_NUMBERS                                                                                        \
    (int64_t) a->heads, (double)a->scale, INT32_MAX, INT32_MAX, layout, (int64_t)a->kv_heads, single ? 0 : 3, 0, \
        TD_KV_PAGE, 0, false, 0, 0
#define ATTENTION_V4 ATTENTION_TENSORS, NULL, NULL, ATTENTION_NUMBERS, 0, to, NULL
#define ATTENTION_V3 ATTENTION_TENSORS, ATTENTION_NUMBERS, to, NULL

/* In a capture the workspace is that of any lengths, which updates of the graph bring: even lengths may need less than
 * uneven ones, whose pieces several cores share. A library that does not say how much is given what shared pieces take at
 * most for latents. With 24 cores these are two pieces of 256 rows each, 512 f32 and two scales of 8 a row. */
#define SHARED_SUMS ((size_t)24 * 2 * 256 * (512 + 16) * sizeof(float))

void td_ascend_op_attention(td_ascend_run *r, const td_ascend_attention_args *a) {
    const td_acl   *acl = r->d->acl;
    const td_aclnn *ops = &r->d->l->ops;
    td_ascend_cut  *cut = r->cut;
    bool            single = cut->n == r->step->max_tok; /* each row a piece: as a batch of one query each */
    bool newer = TD_ASCEND_HAS(r, aclnnFusedInferAttentionScoreV4), captured = r->s->base.capture && !r->workspace_most;
    char layout[8] = "TND";
    if (single) memcpy(layout, "BSND", 5);
    td_acl_int_array *ends = single ? NULL : acl->aclCreateIntArray(cut->rows_end, cut->n);
    td_acl_int_array *lengths = acl->aclCreateIntArray(cut->keys, cut->n);
    if (!lengths || (!single && !ends)) r->status = TD_EDEVICE;
    if (r->status == TD_OK) {
        td_acl_tensor *query = T(single ? td_ascend_unsqueeze(a->q, 1) : a->q), *mask = NULL, *q_rope = NULL, *k_rope = NULL,
                      *to = T(single ? td_ascend_unsqueeze(a->out, 1) : a->out),
                      *pages = T(td_ascend_rows_of(cut->table, TD_ACL_INT32, 0, cut->n, cut->stride));
        td_acl_tensor_list *keys = td_ascend_list(r, T(a->k)), *values = td_ascend_list(r, T(a->v));
        if (!single) mask = T(td_ascend_rows_of(r->d->mask, TD_ACL_INT8, 0, MASK_SIDE, MASK_SIDE));
        if (a->q_rope.rank) {
            q_rope = T(single ? td_ascend_unsqueeze(a->q_rope, 1) : a->q_rope);
            k_rope = T(a->k_rope);
        }
        if (captured && r->status == TD_OK) {
            bool             told = newer ? ops->aclnnFusedInferAttentionScoreV4GetMaxWorkspaceSize != NULL
                                          : ops->aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize != NULL;
            uint64_t         most = 0;
            td_acl_executor *executor = NULL;
            td_aclnn_status  prepared;
            if (newer)
                prepared = (told ? ops->aclnnFusedInferAttentionScoreV4GetMaxWorkspaceSize
                                 : ops->aclnnFusedInferAttentionScoreV4GetWorkspaceSize)(ATTENTION_V4, &most, &executor);
            else
                prepared = (told ? ops->aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize
                                 : ops->aclnnFusedInferAttentionScoreV3GetWorkspaceSize)(ATTENTION_V3, &most, &executor);
            td_ascend_reserve(r, "attention's workspace", prepared, told ? most : most + SHARED_SUMS, executor);
        }
        if (newer)
            TD_ASCEND_OP(r, aclnnFusedInferAttentionScoreV4, ATTENTION_V4);
        else
            TD_ASCEND_OP(r, aclnnFusedInferAttentionScoreV3, ATTENTION_V3);
    }
    if (ends) (void)acl->aclDestroyIntArray(ends);
    if (lengths) (void)acl->aclDestroyIntArray(lengths);
}

/* ---- in captures ----------------------------------------------------------------------------------- */

static td_ascend_attention *add_attention(td_npu_graph *g) {
    if (g->n_attentions == g->attentions_room) {
        size_t               room = g->attentions_room ? 2 * g->attentions_room : 64;
        td_ascend_attention *more = realloc(g->attentions, room * sizeof *more);
        if (!more) return NULL;
        g->attentions = more;
        g->attentions_room = room;
    }
    return &g->attentions[g->n_attentions];
}

/* The capture goes on here when the attention has its lengths, in this run of the graph and in each later one. */
static td_status await_lengths(td_ascend_run *r, td_ascend_attention *a) {
    const td_acl *acl = r->d->acl;
    if (!td_ascend_updates_beside(r->d)) return TD_OK;
    TD_TRY(
        td_ascend_queued(r->d, "aclrtCreateEventWithFlag", acl->aclrtCreateEventWithFlag(&a->ready, TD_ACL_EVENT_EXTERNAL)));
    TD_TRY(td_ascend_queued(r->d, "aclrtStreamWaitEvent", acl->aclrtStreamWaitEvent(r->stream, a->ready)));
    return td_ascend_queued(r->d, "aclrtResetEvent", acl->aclrtResetEvent(a->ready, r->stream));
}

void td_ascend_attend(td_ascend_run *r, const td_npu_block *b) {
    td_npu_graph *g = r->s->base.capture;
    const td_acl *acl = r->d->acl;
    if (r->status != TD_OK || !g) {
        b->kind->attend(r, b);
        return;
    }
    td_ascend_attention *a = add_attention(g);
    if (!a) {
        r->status = TD_ENOMEM;
        return;
    }
    *a = (td_ascend_attention){.block = b, .step = r->made};
    g->n_attentions++;
    td_ascend_cut_set_longest(r->made, r->cut); /* so that no update asks for more workspace */
    r->status = await_lengths(r, a);
    if (r->status == TD_OK)
        r->status = td_ascend_queued(r->d, "aclmdlRICaptureTaskGrpBegin", acl->aclmdlRICaptureTaskGrpBegin(r->stream));
    if (r->status != TD_OK) return;
    b->kind->attend(r, b);
    td_status ended =
        td_ascend_queued(r->d, "aclmdlRICaptureTaskGrpEnd", acl->aclmdlRICaptureTaskGrpEnd(r->stream, &a->group));
    if (r->status == TD_OK) r->status = ended;
    a->workspace_at = r->d->workspace.at;
    a->workspace_bytes = r->workspace_used;
}
