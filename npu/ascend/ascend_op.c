#include "npu/ascend/ascend_op.h"

#include <stdio.h>

#include "core/log/log.h"
#include "core/memory/mem.h"
#include "npu/ascend/ascend_stream.h"

/* ---- views ------------------------------------------------------------------------------------- */

static td_ascend_view contiguous(const void *data, td_acl_dtype dtype, int64_t offset, uint32_t rank, const int64_t *shape) {
    td_ascend_view v = {.data = (void *)data, .dtype = dtype, .rank = rank, .offset = offset};
    int64_t        step = 1;
    for (uint32_t i = rank; i-- > 0; step *= shape[i]) {
        v.shape[i] = shape[i];
        v.stride[i] = step;
    }
    return v;
}

td_ascend_view td_ascend_rows_of(const void *data, td_acl_dtype dtype, size_t first, size_t rows, size_t width) {
    return contiguous(data, dtype, (int64_t)(first * width), 2, (int64_t[]){(int64_t)rows, (int64_t)width});
}

td_ascend_view td_ascend_vector(const void *data, td_acl_dtype dtype, size_t first, size_t n) {
    return contiguous(data, dtype, (int64_t)first, 1, (int64_t[]){(int64_t)n});
}

td_ascend_view td_ascend_columns(td_ascend_view rows, size_t first, size_t width) {
    rows.offset += (int64_t)first * rows.stride[rows.rank - 1];
    rows.shape[rows.rank - 1] = (int64_t)width;
    return rows;
}

td_ascend_view td_ascend_heads(td_ascend_view rows, size_t n, size_t step, size_t size) {
    rows.rank = 3;
    rows.shape[1] = (int64_t)n;
    rows.stride[1] = (int64_t)step;
    rows.shape[2] = (int64_t)size;
    rows.stride[2] = 1;
    return rows;
}

td_ascend_view td_ascend_unsqueeze(td_ascend_view v, uint32_t at) {
    for (uint32_t i = v.rank++; i > at; i--) {
        v.shape[i] = v.shape[i - 1];
        v.stride[i] = v.stride[i - 1];
    }
    v.shape[at] = 1;
    v.stride[at] = at + 1 < v.rank ? v.shape[at + 1] * v.stride[at + 1] : 1;
    return v;
}

td_ascend_view td_ascend_transposed(td_ascend_view v) {
    int64_t shape = v.shape[0], stride = v.stride[0];
    v.shape[0] = v.shape[1];
    v.stride[0] = v.stride[1];
    v.shape[1] = shape;
    v.stride[1] = stride;
    return v;
}

td_ascend_view td_ascend_in_rows(const td_ascend_run *r, const void *data, size_t width) {
    return td_ascend_rows_of(data, TD_ACL_BF16, r->step->first_row, r->step->max_tok, width);
}

td_ascend_view td_ascend_scratch_rows(const td_ascend_run *r, size_t at, td_acl_dtype dtype, size_t width) {
    return td_ascend_rows_of(r->scratch + at, dtype, 0, r->step->max_tok, width);
}

/* ---- tensors, launches ------------------------------------------------------------------------- */

static td_acl_tensor *keep(td_ascend_run *r, td_acl_tensor *t) {
    if (t && r->n_tensors < TD_ASCEND_TENSORS_MAX) {
        r->tensors[r->n_tensors++] = t;
        return t;
    }
    if (t) (void)r->d->acl->aclDestroyTensor(t);
    td_err("the runtime made no tensor");
    r->status = TD_EDEVICE;
    return NULL;
}

td_acl_tensor *td_ascend_tensor(td_ascend_run *r, td_ascend_view v) {
    int64_t storage = v.offset + 1; /* up to the last element of the view */
    for (uint32_t i = 0; i < v.rank; i++) storage += (v.shape[i] - 1) * v.stride[i];
    return keep(
        r, r->d->acl->aclCreateTensor(v.shape, v.rank, v.dtype, v.stride, v.offset, TD_ACL_FORMAT_ND, &storage, 1, v.data));
}

/* The first `skip` dimensions are left out. */
static td_acl_tensor *tensor_nz(td_ascend_run *r, const void *data, size_t stacked, size_t k, size_t n, uint64_t skip) {
    const int64_t shape[3] = {(int64_t)stacked, (int64_t)k, (int64_t)n}, stride[3] = {(int64_t)(k * n), (int64_t)n, 1};
    const int64_t storage[5] = {(int64_t)stacked, (int64_t)(n + 31) / 32, (int64_t)(k + 15) / 16, 16, 32};
    return keep(r, r->d->acl->aclCreateTensor(shape + skip, 3 - skip, TD_ACL_INT8, stride + skip, 0,
                                              TD_ACL_FORMAT_FRACTAL_NZ, storage + skip, 5 - skip, (void *)data));
}

td_acl_tensor *td_ascend_tensor_nz(td_ascend_run *r, const void *data, size_t k, size_t n) {
    return tensor_nz(r, data, 1, k, n, 1);
}

td_acl_tensor *td_ascend_tensor_nz_stack(td_ascend_run *r, const void *data, size_t stacked, size_t k, size_t n) {
    return tensor_nz(r, data, stacked, k, n, 0);
}

td_acl_tensor *td_ascend_tensor_tiles(td_ascend_run *r, const void *data, size_t stacked, size_t k, size_t n) {
    const int64_t shape[5] = {(int64_t)stacked, (int64_t)n / 32, (int64_t)k / 16, 16, 32};
    return keep(
        r, r->d->acl->aclCreateTensor(shape, 5, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, shape, 5, (void *)data));
}

td_acl_tensor *td_ascend_tensor_int4(td_ascend_run *r, const void *data, size_t stacked, size_t k, size_t n) {
    const int64_t  shape[3] = {(int64_t)stacked, (int64_t)k, (int64_t)n}, *from = stacked ? shape : shape + 1;
    const uint64_t rank = stacked ? 3 : 2;
    return keep(r, r->d->acl->aclCreateTensor(from, rank, TD_ACL_INT4, NULL, 0, TD_ACL_FORMAT_ND, from, rank, (void *)data));
}

td_acl_tensor_list *td_ascend_list(td_ascend_run *r, const td_acl_tensor *t) {
    if (r->status != TD_OK || !t) return NULL;
    td_acl_tensor_list *list = r->n_lists < TD_ASCEND_LISTS_MAX ? r->d->acl->aclCreateTensorList(&t, 1) : NULL;
    if (!list) {
        td_err("the runtime made no list of tensors");
        r->status = TD_EDEVICE;
        return NULL;
    }
    size_t i = 0;
    while (r->tensors[i] != t) i++;
    r->tensors[i] = r->tensors[--r->n_tensors];
    return r->lists[r->n_lists++] = list;
}

/* An executor that will not run: only one that is repeatable may be destroyed (opbase aclDestroyAclOpExecutor). */
static void drop(td_ascend_run *r, td_acl_executor *executor) {
    if (executor && r->d->acl->aclSetAclOpExecutorRepeatable(executor) == TD_ACLNN_OK)
        (void)r->d->acl->aclDestroyAclOpExecutor(executor);
}

static void failed(td_ascend_run *r, const char *op, const char *half, td_aclnn_status code) {
    char call[96];
    snprintf(call, sizeof call, "%s%s", op, half);
    (void)td_ascend_failed(r->d, call, code, NULL);
    r->status = TD_EDEVICE;
}

static bool has_workspace(td_ascend_run *r, const char *op, uint64_t bytes) {
    size_t room = bytes > r->workspace_least ? bytes : r->workspace_least;
    r->workspace_least = 0;
    r->workspace_used = room;
    if (!r->workspace_most) {
        if (room && room < TD_ASCEND_WORKSPACE_BYTES) room = TD_ASCEND_WORKSPACE_BYTES; /* what was outgrown stays */
        r->status = td_card_arena_grow(&r->d->base, &r->d->workspace, room, NULL);
        return r->status == TD_OK;
    }
    if (bytes <= r->workspace_most) return true;
    td_err("%s asks for %llu bytes of workspace, and has asked for %zu when it was captured", op, (unsigned long long)bytes,
           r->workspace_most);
    r->status = TD_EDEVICE;
    return false;
}

void td_ascend_launch(td_ascend_run *r, const char *op, td_aclnn_status prepared, uint64_t workspace_bytes,
                      td_acl_executor *executor, td_aclnn_run run) {
    if (prepared != TD_ACLNN_OK) {
        failed(r, op, "GetWorkspaceSize", prepared);
    } else if (r->status != TD_OK || !has_workspace(r, op, workspace_bytes)) {
        drop(r, executor);
    } else {
        void           *workspace = workspace_bytes ? r->workspace_most ? r->workspace_at : r->d->workspace.at : NULL;
        td_aclnn_status code = run(workspace, workspace_bytes, executor, r->stream);
        if (code != TD_ACLNN_OK)
            failed(r, op, "", code);
        else
            td_card_launched(r->s, 1);
    }
    while (r->n_tensors) (void)r->d->acl->aclDestroyTensor(r->tensors[--r->n_tensors]);
    while (r->n_lists) (void)r->d->acl->aclDestroyTensorList(r->lists[--r->n_lists]);
}

void td_ascend_reserve(td_ascend_run *r, const char *what, td_aclnn_status prepared, uint64_t workspace_bytes,
                       td_acl_executor *executor) {
    if (prepared != TD_ACLNN_OK) failed(r, what, "", prepared);
    drop(r, executor);
    r->workspace_least = workspace_bytes;
}

size_t td_ascend_place(size_t *used, size_t bytes) {
    size_t at = *used;
    *used = at + td_round_up(bytes, TD_ASCEND_ALIGNMENT);
    return at;
}

/* ---- operations -------------------------------------------------------------------------------- */

#define T(v) td_ascend_tensor(r, v)

void td_ascend_op_norm(td_ascend_run *r, td_ascend_view x, const void *gamma, double eps, td_ascend_view out, void *rstd) {
    td_ascend_view g = td_ascend_vector(gamma, TD_ACL_FLOAT, 0, (size_t)x.shape[x.rank - 1]);
    int64_t        shape[TD_ASCEND_RANK_MAX];
    for (uint32_t i = 0; i < x.rank; i++) shape[i] = i + 1 < x.rank ? x.shape[i] : 1;
    TD_ASCEND_OP(r, aclnnRmsNorm, T(x), T(g), eps, T(out), T(contiguous(rstd, TD_ACL_FLOAT, 0, x.rank, shape)));
}

void td_ascend_op_quantize(td_ascend_run *r, td_ascend_view x, td_ascend_view codes, td_ascend_view scale) {
    TD_ASCEND_OP(r, aclnnDynamicQuant, T(x), NULL, T(codes), T(scale));
}

/* The operation norms a sum, and writes it elsewhere: x + x, whose norm with four times the eps is x's own to the last bit.
 * RmsNormDynamicQuant would take x alone, and no row of zeros. Without a second smooth scale the second codes and scales are
 * one element each: newer libraries copy one there, and refuse another shape (ops-nn, op_api/add_rms_norm_dynamic_quant.cpp).
 */
void td_ascend_op_norm_quantize(td_ascend_run *r, td_ascend_view x, const void *gamma, double eps, td_ascend_view codes,
                                td_ascend_view scale, void *sum, char *unread) {
    size_t         rows = (size_t)x.shape[0], k = (size_t)x.shape[1];
    td_ascend_view twice = td_ascend_rows_of(sum, x.dtype, 0, rows, k),
                   no_codes = td_ascend_vector(unread, TD_ACL_INT8, 0, 1),
                   no_scale = td_ascend_vector(unread + TD_ASCEND_UNREAD_BYTES / 2, TD_ACL_FLOAT, 0, 1);
    TD_ASCEND_OP(r, aclnnAddRmsNormDynamicQuant, T(x), T(x), T(td_ascend_vector(gamma, x.dtype, 0, k)), NULL, NULL, 4 * eps,
                 T(codes), T(no_codes), T(twice), T(scale), T(no_scale));
}

void td_ascend_op_norm_cast(td_ascend_run *r, td_ascend_view x, const void *gamma, double eps, td_ascend_view floats,
                            td_ascend_view out, void *rstd, void *sum) {
    size_t         rows = (size_t)x.shape[0], k = (size_t)x.shape[1];
    td_ascend_view twice = td_ascend_rows_of(sum, x.dtype, 0, rows, k);
    TD_ASCEND_OP(r, aclnnAddRmsNormCast, T(x), T(x), T(td_ascend_vector(gamma, x.dtype, 0, k)), 4 * eps, T(floats), T(out),
                 T(td_ascend_rows_of(rstd, TD_ACL_FLOAT, 0, rows, 1)), T(twice));
}

static td_acl_scalar *one(td_ascend_run *r) {
    float          value = 1;
    td_acl_scalar *scalar = r->status == TD_OK ? r->d->acl->aclCreateScalar(&value, TD_ACL_FLOAT) : NULL;
    if (!scalar) r->status = r->status == TD_OK ? TD_EDEVICE : r->status;
    return scalar;
}

void td_ascend_op_add_to(td_ascend_run *r, td_ascend_view x, td_ascend_view y) {
    td_acl_scalar *alpha = one(r);
    TD_ASCEND_OP(r, aclnnInplaceAdd, T(x), T(y), alpha);
    if (alpha) (void)r->d->acl->aclDestroyScalar(alpha);
}

void td_ascend_op_add(td_ascend_run *r, td_ascend_view a, td_ascend_view b, td_ascend_view out) {
    td_acl_scalar *alpha = one(r);
    TD_ASCEND_OP(r, aclnnAdd, T(a), T(b), alpha, T(out));
    if (alpha) (void)r->d->acl->aclDestroyScalar(alpha);
}

void td_ascend_op_cast(td_ascend_run *r, td_ascend_view x, td_ascend_view out) {
    TD_ASCEND_OP(r, aclnnCast, T(x), out.dtype, T(out));
}

void td_ascend_op_gather(td_ascend_run *r, td_ascend_view x, td_ascend_view index, td_ascend_view out) {
    TD_ASCEND_OP(r, aclnnGatherV2, T(x), 0, T(index), T(out));
}

void td_ascend_op_product(td_ascend_run *r, td_ascend_view a, td_ascend_view b, td_ascend_view out) {
    TD_ASCEND_OP(r, aclnnMm, T(a), T(b), T(out), 0);
}
