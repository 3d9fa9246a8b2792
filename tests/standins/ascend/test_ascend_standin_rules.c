/*
 * The stand-in ends a program that breaks a rule of CANN's documents. Each rule is broken in a process of its own, which
 * must end by the expected signal and with the expected sentence. So a backend that passes on the stand-in keeps these
 * rules.
 */
#include <math.h>

#include "tests/standins/ascend/ascend_rig.h"

typedef ascend_rig rule_rig;
#include "tests/standins/rules.h"

#define N 64 /* values of the tensors here */

/* ---- what most mistakes begin with ---------------------------------------------------------------- */

typedef struct {
    void            *x, *gamma, *out, *rstd;
    td_acl_tensor   *tx, *tg, *to, *tr;
    td_acl_executor *executor; /* of prepared */
    uint64_t         bytes;    /* that it wants of a workspace */
} norm;

static norm norm_of(ascend_rig *r) {
    float   ones[N];
    td_bf16 half[N];
    for (int i = 0; i < N; i++) ones[i] = 1, half[i] = td_f32_to_bf16(0.5f);
    norm n = {.x = rig_upload(r, half, sizeof half),
              .gamma = rig_upload(r, ones, sizeof ones),
              .out = rig_alloc(r, sizeof half),
              .rstd = rig_alloc(r, 32)};
    n.tx = T2(r, n.x, TD_ACL_BF16, 1, N);
    n.tg = T1(r, n.gamma, TD_ACL_FLOAT, N);
    n.to = T2(r, n.out, TD_ACL_BF16, 1, N);
    n.tr = T2(r, n.rstd, TD_ACL_FLOAT, 1, 1);
    return n;
}

static norm prepared(ascend_rig *r) {
    norm n = norm_of(r);
    TRY(r->ops->aclnnRmsNormGetWorkspaceSize(n.tx, n.tg, 1e-6, n.to, n.tr, &n.bytes, &n.executor));
    return n;
}

static void free_norm(ascend_rig *r, norm *n) {
    TRY(r->acl->aclDestroyTensor(n->tx));
    TRY(r->acl->aclDestroyTensor(n->tg));
    TRY(r->acl->aclDestroyTensor(n->to));
    TRY(r->acl->aclDestroyTensor(n->tr));
    TRY(r->acl->aclrtFree(n->x));
    TRY(r->acl->aclrtFree(n->gamma));
    TRY(r->acl->aclrtFree(n->out));
    TRY(r->acl->aclrtFree(n->rstd));
}

/* The calls' statuses do not matter: whoever comes back has not been stopped. */
static void ignore(long long st) {
    (void)st;
}

/* ---- executors, tensors, workspaces ---------------------------------------------------------------- */

BREAKS(run_twice, "has run and was not made repeatable") {
    norm  n = prepared(r);
    void *ws = rig_workspace(r, n.bytes);
    TRY(r->ops->aclnnRmsNorm(ws, n.bytes, n.executor, r->stream));
    ignore(r->ops->aclnnRmsNorm(ws, n.bytes, n.executor, r->stream));
}
BREAKS(small_workspace, "is given a workspace of 511 bytes and has asked for 512") {
    norm n = prepared(r);
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, n.bytes), n.bytes - 1, n.executor, r->stream));
}
BREAKS(host_workspace, "which is not 512 bytes of the device's memory") {
    norm n = prepared(r);
    ignore(r->ops->aclnnRmsNorm(rig_pinned(r, n.bytes), n.bytes, n.executor, r->stream));
}
BREAKS(freed_tensor, "gamma is a tensor that was destroyed") {
    norm n = prepared(r);
    TRY(r->acl->aclDestroyTensor(n.tg));
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, n.bytes), n.bytes, n.executor, r->stream));
}
BREAKS(freed_memory, "gamma, 256 bytes at") {
    norm n = prepared(r);
    TRY(r->acl->aclrtFree(n.gamma));
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, n.bytes), n.bytes, n.executor, r->stream));
}
BREAKS(another_ops_executor, "aclnnSwiGlu is given an executor of aclnnRmsNorm") {
    norm n = prepared(r);
    ignore(r->ops->aclnnSwiGlu(rig_alloc(r, n.bytes), n.bytes, n.executor, r->stream));
}
BREAKS(destroyed_executor, "of an executor of aclnnRmsNorm that is destroyed") {
    norm n = prepared(r);
    TRY(r->acl->aclSetAclOpExecutorRepeatable(n.executor));
    TRY(r->acl->aclDestroyAclOpExecutor(n.executor));
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, n.bytes), n.bytes, n.executor, r->stream));
}
BREAKS(address_of_single_executor, "that is not repeatable") {
    norm n = prepared(r);
    ignore(r->acl->aclSetInputTensorAddr(n.executor, 0, n.tx, n.x));
}
BREAKS(odd_address, "has to be a multiple of 32 bytes") {
    ignore((long long)(intptr_t)T1(r, (char *)rig_alloc(r, 256) + 16, TD_ACL_FLOAT, 8));
}
BREAKS(view_too_large, "reaches element 55 of a storage of 32") {
    int64_t view[] = {4, 8}, strides[] = {16, 1}, storage[] = {4, 8};
    ignore((long long)(intptr_t)r->acl->aclCreateTensor(view, 2, TD_ACL_FLOAT, strides, 0, TD_ACL_FORMAT_ND, storage, 2,
                                                        rig_alloc(r, 128)));
}
BREAKS(memory_too_small, "yOut, 128 bytes at") {
    norm n = norm_of(r);
    n.to = T2(r, rig_alloc(r, N), TD_ACL_BF16, 1, N);
    RUN(r, aclnnRmsNorm, n.tx, n.tg, 1e-6, n.to, n.tr);
}

/* ---- dtypes, formats, shapes of 910B ------------------------------------------------------------------ */

BREAKS(wrong_dtype, "x is of type 0, which hicann/ops-nn quant/dynamic_quant/op_host/dynamic_quant_def.cpp") {
    void *p = rig_alloc(r, 4096);
    RUN(r, aclnnDynamicQuant, T2(r, p, TD_ACL_FLOAT, 2, 32), NULL, T2(r, p, TD_ACL_INT8, 2, 32), T1(r, p, TD_ACL_FLOAT, 2));
}
BREAKS(gamma_of_another_dtype, "x2, gamma and yOut are not of x1's dtype") {
    norm n = norm_of(r);
    RUN(r, aclnnAddRmsNorm, n.tx, n.tx, n.tg, 1e-6, n.to, n.tr, n.to);
}
BREAKS(null_tensor, "gamma is a null pointer") {
    norm n = norm_of(r);
    RUN(r, aclnnRmsNorm, n.tx, NULL, 1e-6, n.to, n.tr);
}
BREAKS(
    weight_storage,
    "x2's storage is not [ceil(columns / 32), ceil(rows / 16), 16, 32]") { /* NZ of [n = 32, k = 64] with the tiles of [k, n] */
    void          *p = rig_alloc(r, 8192);
    int64_t        view[] = {32, 64}, storage[] = {1, 4, 16, 32};
    td_acl_tensor *w = r->acl->aclCreateTensor(view, 2, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, storage, 4, p);
    RUN(r, aclnnQuantMatmulV5, T2(r, p, TD_ACL_INT8, 1, 64), w, T1(r, p, TD_ACL_FLOAT, 1), T1(r, p, TD_ACL_FLOAT, 32), NULL,
        NULL, NULL, NULL, NULL, false, true, 0, T2(r, p, TD_ACL_BF16, 1, 32));
}
BREAKS(plain_weight_as_nz, "x2's format is not NZ") {
    void *p = rig_alloc(r, 8192);
    RUN(r, aclnnQuantMatmulWeightNz, T2(r, p, TD_ACL_INT8, 1, 64), T2(r, p, TD_ACL_INT8, 32, 64), T1(r, p, TD_ACL_FLOAT, 1),
        T1(r, p, TD_ACL_FLOAT, 32), NULL, NULL, NULL, NULL, NULL, false, true, 0, T2(r, p, TD_ACL_BF16, 1, 32));
}
/* Operations that do what several do. */
ARGS(norm_quant, int64_t gamma, sum, second, second_scale) = {TD_ACL_BF16, TD_ACL_BF16, 1, 1};

CALL(norm_quant) {
    void          *p = rig_alloc(r, 4096);
    td_acl_tensor *t = T2(r, p, TD_ACL_BF16, 2, 64);
    RUN(r, aclnnAddRmsNormDynamicQuant, t, t, T1(r, p, (td_acl_dtype)a->gamma, 64), NULL, NULL, 1e-6,
        T2(r, p, TD_ACL_INT8, 2, 64), T1(r, p, TD_ACL_INT8, a->second), T2(r, p, (td_acl_dtype)a->sum, 2, 64),
        T1(r, p, TD_ACL_FLOAT, 2), T1(r, p, TD_ACL_FLOAT, a->second_scale));
}
static const rule NORM_QUANT[] = {
    WRONG(norm_quant, gamma, TD_ACL_FLOAT, "gamma is of type 0, which hicann/ops-nn norm/add_rms_norm_dynamic_quant/"),
    WRONG(norm_quant, sum, TD_ACL_FLOAT, "xOut is of type 0, which hicann/ops-nn norm/add_rms_norm_dynamic_quant/"),
    WRONG(norm_quant, second, 64, "y2Out has another shape than [1]"),
    WRONG(norm_quant, second_scale, 2, "scale2Out has another shape than [1]"),
};
RULES(NORM_QUANT)
ARGS(norm_cast, int64_t gamma, first, rstd) = {TD_ACL_BF16, TD_ACL_FLOAT, 1};

CALL(norm_cast) {
    void          *p = rig_alloc(r, 4096);
    td_acl_tensor *t = T2(r, p, TD_ACL_BF16, 2, 64);
    RUN(r, aclnnAddRmsNormCast, t, t, T1(r, rig_alloc(r, 512), (td_acl_dtype)a->gamma, 64), 1e-6,
        T2(r, rig_alloc(r, 512), (td_acl_dtype)a->first, 2, 64), T2(r, rig_alloc(r, 512), TD_ACL_BF16, 2, 64),
        T2(r, rig_alloc(r, 512), TD_ACL_FLOAT, 2, a->rstd), T2(r, rig_alloc(r, 512), TD_ACL_BF16, 2, 64));
}
static const rule NORM_CAST[] = {
    WRONG(norm_cast, gamma, TD_ACL_FLOAT, "gamma is of type 0, which hicann/ops-nn norm/add_rms_norm_cast/"),
    WRONG(norm_cast, first, TD_ACL_BF16, "y1Out is of type 27, which hicann/ops-nn norm/add_rms_norm_cast/"),
    WRONG(norm_cast, rstd, 64, "rstdOut's shape is not x1's with 1"),
    RIGHT(norm_cast),
};
RULES(NORM_CAST)
static void swiglu_quant(ascend_rig *r, int64_t width, char *mode) {
    void *p = rig_alloc(r, 65536);
    RUN(r, aclnnDequantSwigluQuant, T2(r, p, TD_ACL_BF16, 2, width), NULL, NULL, NULL, NULL, NULL, NULL, true, mode,
        T2(r, p, TD_ACL_INT8, 2, width / 2), T1(r, p, TD_ACL_FLOAT, 2));
}
BREAKS(swiglu_quant_width, "a fortieth of scaleOut and ten of x's rows are 192 KiB or more") {
    char dynamic[] = "dynamic";
    swiglu_quant(r, 9832, dynamic); /* 192 KiB / (10 * 2 bytes) = 9830.4 */
}
BREAKS(swiglu_quant_mode, "quantMode is not \"dynamic\"") {
    swiglu_quant(r, 64, NULL);
}
/* A front of two rows. */
ARGS(front, int64_t hidden, heads, slots[2], slot_type, plain_weight) = {
    .hidden = 1024, .heads = 2, .slots = {0, 1}, .slot_type = TD_ACL_INT64};

CALL(front) {
    enum { ROWS = 2 };
    int64_t q = a->heads * 192, hidden = a->hidden;
    char    mode[] = "PA_BSND";
    void   *p = rig_alloc(r, (size_t)hidden * 1536), *cache = rig_alloc(r, 2 * 128 * 512 * 2),
         *out = rig_alloc(r, (size_t)(ROWS * a->heads * 576 * 2)), *slots = rig_upload(r, a->slots, sizeof a->slots);
#define FRONT_WEIGHT(rows, columns)                                                        \
    r->acl->aclCreateTensor((const int64_t[]){rows, columns}, 2, TD_ACL_INT8, NULL, 0,     \
                            a->plain_weight ? TD_ACL_FORMAT_ND : TD_ACL_FORMAT_FRACTAL_NZ, \
                            (const int64_t[]){(columns) / 32, (rows) / 16, 16, 32}, 4, p)
    RUN(r, aclnnMlaPrologV2WeightNz, T2(r, p, TD_ACL_INT8, ROWS, hidden), FRONT_WEIGHT(hidden, 1536), FRONT_WEIGHT(1536, q),
        T3(r, p, TD_ACL_BF16, a->heads, 128, 512), FRONT_WEIGHT(hidden, 576), T1(r, p, TD_ACL_BF16, 1536),
        T1(r, p, TD_ACL_BF16, 512), T2(r, p, TD_ACL_BF16, ROWS, 64), T2(r, p, TD_ACL_BF16, ROWS, 64),
        T1(r, slots, (td_acl_dtype)a->slot_type, ROWS), T4(r, cache, TD_ACL_BF16, 2, 128, 1, 512),
        T4(r, rig_alloc(r, 2 * 128 * 64 * 2), TD_ACL_BF16, 2, 128, 1, 64), T2(r, p, TD_ACL_FLOAT, ROWS, 1),
        T2(r, p, TD_ACL_FLOAT, 1, 1536), T2(r, p, TD_ACL_FLOAT, 1, q), T2(r, p, TD_ACL_FLOAT, 1, 576), NULL, NULL,
        T2(r, p, TD_ACL_FLOAT, 1, 1536), 1e-6, 1e-6, mode, T3(r, out, TD_ACL_BF16, ROWS, a->heads, 512),
        T3(r, (char *)out + ROWS * a->heads * 512 * 2, TD_ACL_BF16, ROWS, a->heads, 64), NULL);
}
static const rule FRONT[] = {
    WRONG(front, hidden, 1536, "He is not 1024, 2048"),
    WRONG(front, heads, 3, "N is not a power of two up to 128"),
    WRONG(front, plain_weight, true, "weightDq's format is not FRACTAL_NZ"),
    WRONG(front, slot_type, TD_ACL_INT32, "cacheIndex is of type 3, which hicann/ops-transformer attention/mla_prolog_v2/"),
    WRONG(front, slots[1], 256, "slot 256 of 256"),
    WRONG(front, slots[1], 0, "slot 0 is there twice"),
};
RULES(FRONT)
ARGS(kv, int64_t heads, other_mode, value) = {.heads = 1};

CALL(kv) {
    td_bf16 kv[2 * 576] = {[1000] = (td_bf16)a->value};
    int64_t slots[2] = {3, 4};
    char    mode[16];
    void   *p = rig_alloc(r, 4096), *rope = rig_alloc(r, 128 * 64 * 2), *latent = rig_alloc(r, 128 * 512 * 2);
    snprintf(mode, sizeof mode, "%s", a->other_mode ? "Norm" : "PA_BNSD");
    RUN(r, aclnnKvRmsNormRopeCache, T4(r, rig_upload(r, kv, sizeof kv), TD_ACL_BF16, 2 / a->heads, a->heads, 1, 576),
        T1(r, p, TD_ACL_BF16, 512), T4(r, p, TD_ACL_BF16, 2, 1, 1, 64), T4(r, p, TD_ACL_BF16, 2, 1, 1, 64),
        T1(r, rig_upload(r, slots, sizeof slots), TD_ACL_INT64, 2), T4(r, rope, TD_ACL_BF16, 1, 128, 1, 64),
        T4(r, latent, TD_ACL_BF16, 1, 128, 1, 512), NULL, NULL, NULL, NULL, 1e-6, mode, false,
        T4(r, p, TD_ACL_BF16, 2, 1, 1, 64), T4(r, p, TD_ACL_BF16, 2, 1, 1, 512));
}
static const rule KV[] = {
    WRONG(kv, heads, 2, "kv's N is not 1"),
    WRONG(kv, other_mode, true, "cacheMode is not \"PA_BNSD\""),
    WRONG(kv, value, 0x7f80, "kv has a value that is not finite"),
};
RULES(KV)
BREAKS(rope_mode, "mode is 3, and hicann/ops-transformer posembedding/rotary_position_embedding/") {
    void          *p = rig_alloc(r, 8192);
    td_acl_tensor *t = T3(r, p, TD_ACL_BF16, 1, 1, 64);
    RUN(r, aclnnRotaryPositionEmbedding, t, t, t, 3, T3(r, p, TD_ACL_BF16, 1, 1, 64));
}
BREAKS(too_many_experts, "there are more than 2048 experts") {
    void *p = rig_alloc(r, 65536);
    RUN(r, aclnnMoeGatingTopK, T2(r, p, TD_ACL_FLOAT, 1, 4096), NULL, 8, 1, 1, 0, 0, 1, false, 1, 1e-20,
        T2(r, p, TD_ACL_FLOAT, 1, 8), T2(r, p, TD_ACL_INT32, 1, 8), T2(r, p, TD_ACL_FLOAT, 1, 4096));
}

ARGS(gating, int64_t renorm, without_scores) = {0};

CALL(gating) {
    void *x = rig_upload(r, (float[16]){0}, 16 * sizeof(float));
    RUN(r, aclnnMoeGatingTopK, T2(r, x, TD_ACL_FLOAT, 1, 16), NULL, 4, 1, 1, 0, a->renorm, 0, false, 1, 1e-20,
        T2(r, rig_alloc(r, 64), TD_ACL_FLOAT, 1, 4), T2(r, rig_alloc(r, 64), TD_ACL_INT32, 1, 4),
        a->without_scores ? NULL : T2(r, rig_alloc(r, 64), TD_ACL_FLOAT, 1, 16));
}
static const rule GATING[] = {
    WRONG(gating, without_scores, true, "outOut is a null pointer"),
    WRONG(gating, renorm, 1, "renorm is 1, and hicann/ops-transformer moe/moe_gating_top_k/op_host/"),
    RIGHT(gating),
};
RULES(GATING)

/* ---- attention ------------------------------------------------------------------------------------- */

ARGS(mla, int64_t heads, d, block, n_seq, table, kv_len[4], five;
     void *latent /* [8, block, d] */) = {.heads = 4, .d = 512, .block = 128, .n_seq = 1, .table = 2, .kv_len = {100}};

static td_acl_executor *attend(ascend_rig *r, const mla_args *m, uint64_t *bytes, void **table) {
    char             layout[] = "BSND";
    td_acl_executor *x = NULL;
    void            *q = rig_alloc(r, (size_t)(m->n_seq * m->heads * m->d) * 2),
         *o = rig_alloc(r, (size_t)(m->n_seq * m->heads * m->d) * 2);
    int32_t pages[32] = {0};
    for (int i = 0; i < 32; i++) pages[i] = i % 8;
    *table = rig_upload(r, pages, sizeof pages);
    td_acl_tensor *key = T3(r, m->latent, TD_ACL_BF16, 8, m->block, m->d),
                  *rope_key = T3(r, rig_alloc(r, (size_t)(8 * m->block * 64) * 2), TD_ACL_BF16, 8, m->block, 64);
    td_acl_tensor_list *keys = r->acl->aclCreateTensorList((const td_acl_tensor *const[]){key}, 1),
                       *values = r->acl->aclCreateTensorList((const td_acl_tensor *const[]){key}, 1);
    td_acl_tensor *query = T4(r, q, TD_ACL_BF16, m->n_seq, 1, m->heads, m->d),
                  *out = T4(r, o, TD_ACL_BF16, m->n_seq, 1, m->heads, m->d);
    td_acl_tensor *rope =
        T4(r, rig_alloc(r, (size_t)(m->n_seq * m->heads * 64) * 2), TD_ACL_BF16, m->n_seq, 1, m->heads, 64);
    td_acl_tensor    *tt = T2(r, *table, TD_ACL_INT32, m->n_seq, m->table);
    td_acl_int_array *kv = r->acl->aclCreateIntArray(m->kv_len, (uint64_t)m->n_seq);
    if (m->five)
        TRY(r->ops->aclnnFusedInferAttentionScoreV5GetWorkspaceSize(
            query, keys, values, NULL, NULL, NULL, kv, NULL, NULL, NULL, NULL, NULL, NULL, NULL, tt, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, rope, rope_key, NULL, NULL, NULL, NULL, NULL, m->heads, 0.1, 0, 0, layout, 1, 0, 0,
            m->block, 0, false, 0, 0, 0, 0, out, NULL, bytes, &x));
    else
        TRY(r->ops->aclnnFusedInferAttentionScoreV3GetWorkspaceSize(
            query, keys, values, NULL, NULL, NULL, kv, NULL, NULL, NULL, NULL, NULL, NULL, NULL, tt, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, rope, rope_key, NULL, m->heads, 0.1, 0, 0, layout, 1, 0, 0, m->block, 0, false, 0,
            0, out, NULL, bytes, &x));
    return x;
}

static mla_args mla_of(ascend_rig *r, const mla_args *args) {
    mla_args m = *args;
    m.latent = rig_alloc(r, 8 * 128 * 512 * 2);
    return m;
}
static void mla(ascend_rig *r, const void *args) {
    uint64_t bytes;
    void    *table;
    mla_args m = mla_of(r, args);
    ignore((long long)(intptr_t)attend(r, &m, &bytes, &table));
}
static const rule ATTENTION[] = {
    WRONG(mla, heads, 12, "MLA's heads are not a power of two up to 128"),
    WRONG(mla, d, 256, "query's d is neither 512 nor 128, with rope"),
    WRONG(mla, block, 64, "MLA's blockSize is neither 16 nor 128"),
    WRONG(mla, kv_len[0], 300, "blockTable is narrower than the pages of the longest sequence"),
    WRONG(mla, five, true, "this version is not supported on A2 and A3"),
};
RULES(ATTENTION)

/* ---- order of streams ------------------------------------------------------------------------------ */

static void two_streams(ascend_rig *r, bool with_event, bool with_sync) {
    void        *device = rig_alloc(r, 4096), *from = rig_pinned(r, 4096), *to = rig_pinned(r, 4096);
    td_acl_event e = rig_event(r);
    TRY(r->acl->aclrtMemcpyAsync(device, 4096, from, 4096, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    if (with_event) TRY(r->acl->aclrtStreamWaitEvent(r->other, e));
    if (with_sync) TRY(r->acl->aclrtSynchronizeStream(r->stream));
    TRY(r->acl->aclrtMemcpyAsync(to, 4096, device, 4096, TD_ACL_MEMCPY_DEVICE_TO_HOST, r->other));
    TRY(r->acl->aclrtSynchronizeStream(r->other));
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
    TRY(r->acl->aclrtDestroyEvent(e));
    TRY(r->acl->aclrtFree(device));
    TRY(r->acl->aclrtFreeHost(from));
    TRY(r->acl->aclrtFreeHost(to));
}
BREAKS(missing_event, "no event or synchronisation orders the two") {
    two_streams(r, false, false);
}
LIVES(by_event) {
    two_streams(r, true, false);
    rig_close(r);
}
LIVES(by_sync) {
    two_streams(r, false, true);
    rig_close(r);
}
BREAKS(shared_workspace, "no event or synchronisation orders the two") {
    norm  n = prepared(r), m = prepared(r);
    void *ws = rig_alloc(r, 4096);
    TRY(r->ops->aclnnRmsNorm(ws, 4096, n.executor, r->stream));
    ignore(r->ops->aclnnRmsNorm(ws, 4096, m.executor, r->other));
}
BREAKS(wait_for_nothing, "an event that was never recorded") {
    ignore(r->acl->aclrtStreamWaitEvent(r->stream, rig_event(r)));
}
BREAKS(wait_for_a_clock, "an event that was made without ACL_EVENT_SYNC") {
    td_acl_event e;
    TRY(r->acl->aclrtCreateEventExWithFlag(&e, TD_ACL_EVENT_TIME_LINE));
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    ignore(r->acl->aclrtStreamWaitEvent(r->other, e));
}

/* ---- memory and copies ----------------------------------------------------------------------------- */

FAULTS(read_device) {
    ignore(*(volatile char *)rig_alloc(r, 64));
}
FAULTS(write_device) {
    *(volatile char *)rig_alloc(r, 64) = 1;
}
BREAKS(copy_wrong_way, "of kind 2 goes from host memory to device memory") {
    ignore(r->acl->aclrtMemcpyAsync(rig_alloc(r, 64), 64, rig_pinned(r, 64), 64, TD_ACL_MEMCPY_DEVICE_TO_HOST, r->stream));
}
BREAKS(copy_unpinned, "with host memory that is not pinned") {
    char here[64] = {0};
    ignore(r->acl->aclrtMemcpyAsync(rig_alloc(r, 64), 64, here, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
}
BREAKS(copy_too_much, "goes beyond the end of the memory") {
    ignore(
        r->acl->aclrtMemcpyAsync(rig_alloc(r, 64), 128, rig_pinned(r, 128), 128, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
}
BREAKS(copy_over_its_limit, "of 128 bytes into 64") {
    ignore(
        r->acl->aclrtMemcpyAsync(rig_alloc(r, 128), 64, rig_pinned(r, 128), 128, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
}
static void hold_stream(ascend_rig *r) { /* for ever */
    const uint64_t zero = 0;
    TRY(r->acl->aclrtValueWait(rig_upload(r, &zero, sizeof zero), 1, TD_ACL_STREAM_WAIT_VALUE_EQ, r->stream));
}
BREAKS(copy_under_way, "memory that enqueued operations use") {
    void *device = rig_alloc(r, 64), *pinned = rig_pinned(r, 64);
    char  here[64];
    hold_stream(r);
    TRY(r->acl->aclrtMemcpyAsync(device, 64, pinned, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
    ignore(r->acl->aclrtMemcpy(here, 64, device, 64, TD_ACL_MEMCPY_DEVICE_TO_HOST));
}
BREAKS(free_under_way, "is freed while operations that use it are enqueued") {
    void *device = rig_alloc(r, 64), *pinned = rig_pinned(r, 64);
    hold_stream(r);
    TRY(r->acl->aclrtMemcpyAsync(device, 64, pinned, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
    ignore(r->acl->aclrtFree(device));
}
BREAKS(free_twice, "is not the beginning of device memory") {
    void *device = rig_alloc(r, 64);
    TRY(r->acl->aclrtFree(device));
    ignore(r->acl->aclrtFree(device));
}
BREAKS(keep_memory, "aclFinalize with 4096 bytes of device 0") {
    rig_alloc(r, 4096);
    rig_close(r);
}
BREAKS(other_card, "touches memory of device 0 from device 1") {
    td_acl_context c;
    td_acl_stream  s;
    void          *p = rig_alloc(r, 64), *pinned = rig_pinned(r, 64);
    TRY(r->acl->aclrtCreateContext(&c, 1));
    TRY(r->acl->aclrtCreateStreamWithConfig(&s, 0, 0));
    ignore(r->acl->aclrtMemcpyAsync(p, 64, pinned, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, s));
}
BREAKS(odd_value, "not an aligned word of device memory") {
    ignore(r->acl->aclrtValueWrite((char *)rig_alloc(r, 64) + 4, 1, 0, r->stream));
}
BREAKS(pinned_value, "not an aligned word of device memory") {
    ignore(r->acl->aclrtValueWait(rig_pinned(r, 64), 1, TD_ACL_STREAM_WAIT_VALUE_EQ, r->stream));
}

/* ---- contexts and streams -------------------------------------------------------------------------- */

static void *no_context_thread(void *arg) {
    ascend_rig *r = arg;
    ignore(r->acl->aclrtSynchronizeStream(r->stream));
    return NULL;
}
BREAKS(no_context, "on a thread without a context") {
    pthread_t t;
    pthread_create(&t, NULL, no_context_thread, r);
    pthread_join(t, NULL);
}
BREAKS(other_context, "on a stream of another context than the thread's") {
    td_acl_context c;
    TRY(r->acl->aclrtCreateContext(&c, 0));
    ignore(r->acl->aclrtSynchronizeStream(r->stream));
}
BREAKS(context_with_streams, "a context is destroyed with 2 streams") {
    ignore(r->acl->aclrtDestroyContext(r->context));
}
BREAKS(dead_stream, "on a stream that is destroyed") {
    TRY(r->acl->aclrtDestroyStream(r->other));
    ignore(r->acl->aclrtSynchronizeStream(r->other));
}
BREAKS(default_stream, "on the default stream") {
    ignore(r->acl->aclrtSynchronizeStream(NULL));
}

/* ---- callbacks ------------------------------------------------------------------------------------- */

static ascend_rig *in_callback_rig;
static void        allocates(void *arg) {
           ignore(in_callback_rig->acl->aclrtMalloc(arg, 64, 0));
}
static void launches(void *arg) {
    ignore(in_callback_rig->acl->aclrtMemsetAsync(arg, 64, 0, 64, in_callback_rig->other));
}
static void synchronises(void *arg) {
    ignore(in_callback_rig->acl->aclrtSynchronizeStream(((ascend_rig *)arg)->other));
}
static void counts(void *arg) {
    ++*(int *)arg;
}

static void callback(ascend_rig *r, td_acl_callback fn, void *arg) {
    in_callback_rig = r;
    rig_report_start(r, r->stream);
    TRY(r->acl->aclrtLaunchCallback(fn, arg, TD_ACL_CALLBACK_BLOCK, r->stream));
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
    rig_report_stop(r, r->stream);
}
BREAKS(callback_allocates, "aclrtMalloc in a callback") {
    static void *p;
    callback(r, allocates, &p);
}
BREAKS(callback_launches, "aclrtMemsetAsync in a callback") {
    callback(r, launches, rig_alloc(r, 64));
}
BREAKS(callback_synchronises, "aclrtSynchronizeStream in a callback") {
    callback(r, synchronises, r);
}
LIVES(callback_obeys) {
    static int n;
    callback(r, counts, &n);
    if (n != 1) _exit(7);
    rig_close(r);
}
BREAKS(callback_unsubscribed, "on a stream to which no thread has subscribed") {
    ignore(r->acl->aclrtLaunchCallback(counts, NULL, TD_ACL_CALLBACK_BLOCK, r->stream));
}
BREAKS(callback_captured_unsubscribed, "on a stream to which no thread has subscribed") {
    TRY(r->acl->aclmdlRICaptureBegin(r->stream, TD_ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL));
    ignore(r->acl->aclrtLaunchCallback(counts, NULL, TD_ACL_CALLBACK_BLOCK, r->stream));
}
BREAKS(callback_unpolled, "does not call aclrtProcessReport in a loop") {
    setenv("TD_STANDIN_POLL_MS", "50", 1);
    TRY(r->acl->aclrtSubscribeReport((uint64_t)pthread_self(),
                                     r->stream)); /* and then this thread waits for the stream instead */
    TRY(r->acl->aclrtLaunchCallback(counts, NULL, TD_ACL_CALLBACK_BLOCK, r->stream));
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
}
BREAKS(two_subscribers, "one stream has one thread") {
    TRY(r->acl->aclrtSubscribeReport(1, r->stream));
    ignore(r->acl->aclrtSubscribeReport(2, r->stream));
}
BREAKS(subscriber_of_two_cards, "a thread serves one device") {
    td_acl_context c;
    td_acl_stream  s;
    TRY(r->acl->aclrtSubscribeReport(1, r->stream));
    TRY(r->acl->aclrtCreateContext(&c, 1));
    TRY(r->acl->aclrtCreateStreamWithConfig(&s, 0, 0));
    ignore(r->acl->aclrtSubscribeReport(1, s));
}

/* ---- captures -------------------------------------------------------------------------------------- */

static void begin(ascend_rig *r) {
    TRY(r->acl->aclmdlRICaptureBegin(r->stream, TD_ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
}
static td_acl_graph end(ascend_rig *r) {
    td_acl_graph g;
    TRY(r->acl->aclmdlRICaptureEnd(r->stream, &g));
    return g;
}
BREAKS(capture_sync, "aclrtSynchronizeStream while a stream of the device is captured") {
    begin(r);
    ignore(r->acl->aclrtSynchronizeStream(r->stream));
}
BREAKS(capture_sync_other, "aclrtSynchronizeStream while a stream of the device is captured") {
    begin(r);
    ignore(r->acl->aclrtSynchronizeStream(r->other));
}
BREAKS(capture_query, "aclrtQueryEventStatus while a stream of the device is captured") {
    td_acl_event       e = rig_event(r);
    td_acl_event_state state;
    begin(r);
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    ignore(r->acl->aclrtQueryEventStatus(e, &state));
}
BREAKS(capture_plain_copy, "aclrtMemcpy while a stream is captured and the mode forbids it") {
    char  here[64] = {0};
    void *p = rig_alloc(r, 64);
    begin(r);
    ignore(r->acl->aclrtMemcpy(p, 64, here, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE));
}
static void *end_elsewhere(void *arg) {
    ascend_rig  *r = arg;
    td_acl_graph g;
    TRY(r->acl->aclrtSetCurrentContext(r->context));
    ignore(r->acl->aclmdlRICaptureEnd(r->stream, &g));
    return NULL;
}
BREAKS(capture_ends_elsewhere, "ended on another thread than it was begun on") {
    pthread_t t;
    begin(r);
    pthread_create(&t, NULL, end_elsewhere, r);
    pthread_join(t, NULL);
}
BREAKS(capture_not_joined, "its first stream does not wait for") {
    td_acl_event e = rig_event(r);
    td_acl_graph g;
    void        *p = rig_alloc(r, 64);
    begin(r);
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    TRY(r->acl->aclrtStreamWaitEvent(r->other, e));
    TRY(r->acl->aclrtMemsetAsync(p, 64, 0, 64, r->other));
    ignore(r->acl->aclmdlRICaptureEnd(r->stream, &g));
}
BREAKS(capture_freed, "is freed while a capture uses it") {
    void *p = rig_alloc(r, 64);
    begin(r);
    TRY(r->acl->aclrtMemsetAsync(p, 64, 0, 64, r->stream));
    end(r);
    ignore(r->acl->aclrtFree(p));
}
BREAKS(capture_race, "no event or synchronisation orders the two") { /* two captured streams on the same memory */
    td_acl_event e = rig_event(r), back = rig_event(r);
    void        *p = rig_alloc(r, 64);
    begin(r);
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    TRY(r->acl->aclrtStreamWaitEvent(r->other, e));
    TRY(r->acl->aclrtMemsetAsync(p, 64, 1, 64, r->stream));
    TRY(r->acl->aclrtMemsetAsync(p, 64, 2, 64, r->other));
    TRY(r->acl->aclrtRecordEvent(back, r->other));
    TRY(r->acl->aclrtStreamWaitEvent(r->stream, back));
    ignore(r->acl->aclmdlRIExecuteAsync(end(r), r->stream));
}
BREAKS(capture_destroyed, "is not finished, or is destroyed") {
    void *p = rig_alloc(r, 64);
    begin(r);
    TRY(r->acl->aclrtMemsetAsync(p, 64, 0, 64, r->stream));
    td_acl_graph g = end(r);
    TRY(r->acl->aclmdlRIDestroy(g));
    ignore(r->acl->aclmdlRIExecuteAsync(g, r->stream));
}
BREAKS(group_takes_copies, "in a task group, which takes single operations only") {
    void *p = rig_alloc(r, 64);
    begin(r);
    TRY(r->acl->aclmdlRICaptureTaskGrpBegin(r->stream));
    ignore(r->acl->aclrtMemsetAsync(p, 64, 0, 64, r->stream));
}

/** A capture of one attention in a task group, after a write of the slot that `positions` names. */
typedef struct {
    mla_args          m;
    td_acl_graph      graph;
    td_acl_task_group group;
    uint64_t          bytes;
    void             *workspace, *slots;
    td_acl_event      ready; /* external, ahead of the group; NULL: none */
} decode;

static decode capture_decode_behind(ascend_rig *r, int64_t kv_len, td_acl_event ready) {
    decode           c = {.m = mla_of(r, &mla_right), .ready = ready};
    td_acl_executor *x, *w;
    void            *table;
    uint64_t         none;
    int32_t          slot[8] = {0};
    c.m.kv_len[0] = kv_len;
    x = attend(r, &c.m, &c.bytes, &table);
    c.workspace = rig_alloc(r, c.bytes);
    c.slots = rig_upload(r, slot, sizeof slot);
    TRY(r->ops->aclnnScatterNdUpdateGetWorkspaceSize(T2(r, c.m.latent, TD_ACL_BF16, 1024, 512),
                                                     T2(r, c.slots, TD_ACL_INT32, 1, 1),
                                                     T2(r, rig_alloc(r, 1024), TD_ACL_BF16, 1, 512), &none, &w));
    begin(r);
    TRY(r->ops->aclnnScatterNdUpdate(NULL, 0, w, r->stream));
    if (ready) TRY(r->acl->aclrtStreamWaitEvent(r->stream, ready));
    if (ready) TRY(r->acl->aclrtResetEvent(ready, r->stream));
    TRY(r->acl->aclmdlRICaptureTaskGrpBegin(r->stream));
    TRY(r->ops->aclnnFusedInferAttentionScoreV3(c.workspace, c.bytes, x, r->stream));
    TRY(r->acl->aclmdlRICaptureTaskGrpEnd(r->stream, &c.group));
    c.graph = end(r);
    return c;
}
static decode capture_decode(ascend_rig *r, int64_t kv_len) {
    return capture_decode_behind(r, kv_len, NULL);
}
static void launch_decode(ascend_rig *r, decode *c, int32_t position) {
    TRY(r->acl->aclrtMemcpy(c->slots, 4, &position, 4, TD_ACL_MEMCPY_HOST_TO_DEVICE)); /* page i of the sequence is page i */
    TRY(r->acl->aclmdlRIExecuteAsync(c->graph, r->stream));
}
static void step_decode(ascend_rig *r, decode *c, int32_t position) {
    launch_decode(r, c, position);
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
}
static void update_decode(ascend_rig *r, decode *c, int64_t kv_len, td_acl_stream s) {
    void    *table;
    uint64_t bytes;
    c->m.kv_len[0] = kv_len;
    td_acl_executor *x = attend(r, &c->m, &bytes, &table);
    TRY(r->acl->aclmdlRICaptureTaskUpdateBegin(s, c->group));
    TRY(r->ops->aclnnFusedInferAttentionScoreV3(c->workspace, c->bytes, x, s));
    TRY(r->acl->aclmdlRICaptureTaskUpdateEnd(s));
}
BREAKS(lengths_not_updated, "its lengths were changed without an update") {
    decode c = capture_decode(r, 100);
    step_decode(r, &c, 99);
    step_decode(r, &c, 100); /* key 100 is written, and 100 keys are seen */
}
LIVES(lengths_updated) {
    decode c = capture_decode(r, 127);
    step_decode(r, &c, 126);
    for (int64_t n = 128; n < 131; n++) { /* over the end of a page */
        update_decode(r, &c, n, r->stream);
        step_decode(r, &c, (int32_t)n - 1);
    }
}
BREAKS(update_not_ordered, "no event or synchronisation orders the two") {
    decode c = capture_decode(r, 100);
    step_decode(r, &c, 99);
    update_decode(r, &c, 101, r->other);
    ignore(r->acl->aclmdlRIExecuteAsync(c.graph, r->stream));
}

/* Updates beside a run, behind an external event. */
static td_acl_event external(ascend_rig *r) {
    td_acl_event e;
    TRY(r->acl->aclrtCreateEventWithFlag(&e, TD_ACL_EVENT_EXTERNAL));
    return e;
}
/** A run, and the lengths of it while it runs. */
static void step_beside(ascend_rig *r, decode *c, int64_t kv_len) {
    launch_decode(r, c, (int32_t)kv_len - 1);
    update_decode(r, c, kv_len, r->other);
    TRY(r->acl->aclrtRecordEvent(c->ready, r->other));
}
LIVES(lengths_updated_beside_a_run) {
    decode c = capture_decode_behind(r, 127, external(r));
    for (int64_t n = 127; n < 131; n++) {
        step_beside(r, &c, n);
        TRY(r->acl->aclrtSynchronizeStream(r->stream));
        TRY(r->acl->aclrtSynchronizeStream(r->other));
    }
    TRY(r->acl->aclrtRecordEvent(c.ready, r->other)); /* or before the run, which does not wait then */
    step_decode(r, &c, 129);
    TRY(r->acl->aclmdlRIDestroy(c.graph));
    TRY(r->acl->aclrtDestroyEvent(c.ready));
}
BREAKS(update_beside_a_run_of_before, "no event or synchronisation orders the two") {
    decode c = capture_decode_behind(r, 127, external(r));
    TRY(r->acl->aclrtRecordEvent(c.ready, r->other));
    launch_decode(r, &c, 126);
    update_decode(r, &c, 128, r->other); /* which that run need not wait for: it has its record */
}
BREAKS(event_not_recorded, "of a stream on which a run waits for an external event that nobody has recorded") {
    decode c = capture_decode_behind(r, 100, external(r));
    step_decode(r, &c, 99);
}
BREAKS(event_recorded_behind, "is recorded on the stream on which a run waits for it") {
    decode c = capture_decode_behind(r, 100, external(r));
    launch_decode(r, &c, 99);
    ignore(r->acl->aclrtRecordEvent(c.ready, r->stream));
}
BREAKS(event_recorded_twice, "and no run of a capture has waited in between") {
    decode c = capture_decode_behind(r, 100, external(r));
    TRY(r->acl->aclrtRecordEvent(c.ready, r->other));
    ignore(r->acl->aclrtRecordEvent(c.ready, r->other));
}
BREAKS(event_awaited_twice, "waits for an event for which a run waits already") {
    decode c = capture_decode_behind(r, 100, external(r));
    TRY(r->acl->aclmdlRIExecuteAsync(c.graph, r->stream));
    ignore(r->acl->aclmdlRIExecuteAsync(c.graph, r->stream));
}
BREAKS(event_left_by_an_abort, "a run that was stopped may have left set: reset it") {
    decode c = capture_decode_behind(r, 100, external(r));
    launch_decode(r, &c, 99);
    TRY(r->acl->aclrtStreamAbort(r->stream));
    ignore(r->acl->aclrtSynchronizeStream(r->stream));
    ignore(r->acl->aclmdlRIExecuteAsync(c.graph, r->stream));
}
LIVES(event_reset_behind_an_abort) {
    decode c = capture_decode_behind(r, 100, external(r));
    launch_decode(r, &c, 99);
    TRY(r->acl->aclrtStreamAbort(r->stream));
    ignore(r->acl->aclrtSynchronizeStream(r->stream));
    TRY(r->acl->aclrtResetEvent(c.ready, r->other));
    TRY(r->acl->aclrtSynchronizeStream(r->other));
    step_beside(r, &c, 100);
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
}
BREAKS(event_not_reset, "does not reset it: its second run would not wait") {
    begin(r);
    TRY(r->acl->aclrtStreamWaitEvent(r->stream, external(r)));
    ignore(r->acl->aclmdlRIExecuteAsync(end(r), r->stream));
}
BREAKS(event_of_a_capture, "is recorded in a capture, which it does not join") {
    begin(r);
    ignore(r->acl->aclrtRecordEvent(external(r), r->stream));
}
BREAKS(event_destroyed_early, "for which a capture waits: the capture first") {
    decode c = capture_decode_behind(r, 100, external(r));
    ignore(r->acl->aclrtDestroyEvent(c.ready));
}
BREAKS(event_reset_of_ex, "an event is reset that aclrtCreateEventExWithFlag has made") {
    ignore(r->acl->aclrtResetEvent(rig_event(r), r->stream));
}
BREAKS(event_flags, "ACL_EVENT_EXTERNAL goes with no other") {
    td_acl_event e;
    ignore(r->acl->aclrtCreateEventWithFlag(&e, TD_ACL_EVENT_EXTERNAL | TD_ACL_EVENT_SYNC));
}
BREAKS(update_of_another_op, "an update has aclnnRmsNorm where the task group has aclnnFusedInferAttentionScoreV3") {
    decode c = capture_decode(r, 100);
    norm   n = prepared(r);
    TRY(r->acl->aclmdlRICaptureTaskUpdateBegin(r->stream, c.group));
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, n.bytes), n.bytes, n.executor, r->stream));
}
BREAKS(update_of_nothing, "an update of 0 operations, for a task group of 1") {
    decode c = capture_decode(r, 100);
    TRY(r->acl->aclmdlRICaptureTaskUpdateBegin(r->stream, c.group));
    ignore(r->acl->aclmdlRICaptureTaskUpdateEnd(r->stream));
}
ARGS(scatter, int64_t third_slot, without_value, without_strides, offset) = {.third_slot = 7};

CALL(scatter) {
    int32_t slots[8] = {5, 6, (int32_t)a->third_slot};
    void   *keys = rig_alloc(r, 2 * 128 * 64 * 2), *values = rig_alloc(r, 2 * 128 * 64 * 2),
         *s = rig_upload(r, slots, sizeof slots), *k = rig_alloc(r, 3 * 64 * 2);
    td_acl_tensor    *rows = T3(r, k, TD_ACL_BF16, 3, 1, 64);
    td_acl_int_array *strides = r->acl->aclCreateIntArray((const int64_t[]){1, 1}, 2),
                     *offsets = r->acl->aclCreateIntArray((const int64_t[]){a->offset, 0}, 2);
    RUN(r, aclnnScatterPaKvCache, rows, T4(r, keys, TD_ACL_BF16, 2, 128, 1, 64), T1(r, s, TD_ACL_INT32, 3),
        a->without_value ? NULL : rows, T4(r, values, TD_ACL_BF16, 2, 128, 1, 64), NULL, NULL, NULL, NULL, NULL,
        a->without_strides ? NULL : strides, offsets);
}
static const rule SCATTER[] = {
    WRONG(scatter, without_value, true,
          "value is a null pointer, and required by hicann/ops-transformer@51c4221 attention/"),
    WRONG(scatter, without_strides, true, "strides and offsets are not {1, 1} and {0, 0}"),
    WRONG(scatter, offset, 1, "strides and offsets are not {1, 1} and {0, 0}"),
    WRONG(scatter, third_slot, 5, "slot 5 is there twice"),
    WRONG(scatter, third_slot, 256, "slot 256 of 256"),
};
RULES(SCATTER)

/* ---- several cards --------------------------------------------------------------------------------- */

/* One of two cards: joined, and the links of HcclAllReduce made. */
typedef struct seat {
    ascend_rig         *r;
    const td_hccl_root *root;
    uint32_t            rank;
    void (*act)(struct seat *);
    pthread_t      thread;
    td_acl_context context;
    td_acl_stream  stream;
    td_hccl_comm   comm;
    void          *x;
    td_acl_graph   captures[2];
} seat;

#define SUM(s) \
    (s)->r->acl->HcclAllReduce((s)->x, (s)->x, 16, TD_HCCL_DATA_TYPE_BFP16, TD_HCCL_REDUCE_SUM, (s)->comm, (s)->stream)

static void *sit(void *arg) {
    seat         *s = arg;
    const td_acl *acl = s->r->acl;
    TRY(acl->aclrtCreateContext(&s->context, (int32_t)s->rank));
    TRY(acl->aclrtCreateStreamWithConfig(&s->stream, 0, TD_ACL_STREAM_FAST_LAUNCH));
    TRY(acl->HcclCommInitRootInfo(2, s->root, s->rank, &s->comm));
    TRY(acl->aclrtMalloc(&s->x, 64, TD_ACL_MEM_MALLOC_HUGE_FIRST));
    TRY(SUM(s));
    TRY(acl->aclrtSynchronizeStream(s->stream));
    s->act(s);
    return NULL;
}

static void on_two_cards(ascend_rig *r, void (*act)(seat *)) {
    static td_hccl_root root;
    seat                seats[2] = {{.rank = 0}, {.rank = 1}};
    TRY(r->acl->HcclGetRootInfo(&root));
    for (int i = 0; i < 2; i++) {
        seats[i].r = r, seats[i].root = &root, seats[i].act = act;
        pthread_create(&seats[i].thread, NULL, sit, &seats[i]);
    }
    for (int i = 0; i < 2; i++) pthread_join(seats[i].thread, NULL);
}

/* A rule that both break or keep, each at its seat s. */
#define RULE_OF_TWO(form, name)     \
    static void name##_at(seat *);  \
    form {                          \
        on_two_cards(r, name##_at); \
    }                               \
    static void name##_at(seat *s)
#define TWO_BREAK(name, sentence) RULE_OF_TWO(BREAKS(name, sentence), name)
#define TWO_LIVE(name) RULE_OF_TWO(LIVES(name), name)

static void capture_sum(seat *s, int which) {
    TRY(s->r->acl->aclmdlRICaptureBegin(s->stream, TD_ACL_MODEL_RI_CAPTURE_MODE_RELAXED));
    TRY(SUM(s));
    TRY(s->r->acl->aclmdlRICaptureEnd(s->stream, &s->captures[which]));
}

TWO_BREAK(communicator_before_capture, "captured collectives hold: captures go first") {
    capture_sum(s, 0);
    ignore(s->r->acl->HcclCommDestroy(s->comm));
}
static void broadcast_from(seat *s, uint32_t root, uint64_t n) {
    ignore(s->r->acl->HcclBroadcast(rig_alloc(s->r, 64), n, TD_HCCL_DATA_TYPE_INT32, root, s->comm, s->stream));
    ignore(s->r->acl->aclrtSynchronizeStream(s->stream));
}
TWO_BREAK(broadcast_of_two_roots, "broadcast from roots") {
    broadcast_from(s, s->rank, 8);
}
TWO_BREAK(broadcast_of_two_sizes, "ranks of one communicator meet with HcclBroadcast of") {
    broadcast_from(s, 0, 8 + s->rank);
}
TWO_BREAK(broadcast_of_no_root, "root 2 of 2 ranks") {
    broadcast_from(s, 2, 8);
}
TWO_BREAK(captures_that_do_not_pair, "ranks of one communicator meet with HcclAllReduce of capture") {
    capture_sum(s, 0);
    capture_sum(s, 1);
    ignore(s->r->acl->aclmdlRIExecuteAsync(s->captures[s->rank], s->stream));
    ignore(s->r->acl->aclrtSynchronizeStream(s->stream));
}
TWO_LIVE(captures_that_pair) {
    capture_sum(s, 0);
    capture_sum(s, 1);
    for (int i = 0; i < 4; i++) TRY(s->r->acl->aclmdlRIExecuteAsync(s->captures[i % 2], s->stream));
    TRY(s->r->acl->aclrtSynchronizeStream(s->stream));
    for (int i = 0; i < 2; i++) TRY(s->r->acl->aclmdlRIDestroy(s->captures[i]));
    TRY(s->r->acl->HcclCommDestroy(s->comm));
}

/* Card 1 does not come. */
static void abort_alone(seat *s) {
    if (s->rank == 1) return;
    TRY(SUM(s));
    TRY(SUM(s));
    usleep(20000);
    TRY(s->r->acl->aclrtStreamAbort(s->stream));
    if (s->r->acl->aclrtSynchronizeStream(s->stream) != TD_ACL_ERROR_RT_STREAM_ABORT) _exit(7);
    TRY(s->r->acl->aclrtSynchronizeStream(s->stream));
}
TWO_LIVE(aborted_stream) {
    abort_alone(s);
    TRY(s->r->acl->HcclCommDestroy(s->comm));
}
TWO_BREAK(aborted_communicator, "on a communicator of which a collective was aborted") {
    abort_alone(s);
    if (s->rank == 1) return;
    ignore(SUM(s));
    ignore(s->r->acl->aclrtSynchronizeStream(s->stream));
}
static void gather_alone(seat *s) {
    if (s->rank == 1) return;
    void *all;
    TRY(s->r->acl->aclrtMalloc(&all, 128, TD_ACL_MEM_MALLOC_HUGE_FIRST));
    if (s->r->acl->HcclAllGather(s->x, all, 16, TD_HCCL_DATA_TYPE_BFP16, s->comm, s->stream) != TD_HCCL_E_TIMEOUT) _exit(7);
}
LIVES(first_of_a_kind_alone) {
    setenv("TD_STANDIN_CONNECT_MS", "100", 1);
    on_two_cards(r, gather_alone);
}
BREAKS(capture_aborted, "a stream is aborted while it is captured") {
    begin(r);
    ignore(r->acl->aclrtStreamAbort(r->stream));
}

BREAKS(row_beyond, "index 3 of 3") {
    const int64_t index[4] = {3};
    void         *x = rig_alloc(r, 64), *i = rig_upload(r, index, sizeof index), *out = rig_alloc(r, 64);
    RUN(r, aclnnGatherV2, T2(r, x, TD_ACL_INT32, 3, 1), 0, T1(r, i, TD_ACL_INT64, 1), T2(r, out, TD_ACL_INT32, 1, 1));
}

BREAKS(sum_of_other_shapes, "other is not broadcast to selfRef's shape") {
    float          value = 1;
    void          *x = rig_alloc(r, 64), *y = rig_alloc(r, 64);
    td_acl_scalar *alpha = r->acl->aclCreateScalar(&value, TD_ACL_FLOAT);
    RUN(r, aclnnInplaceAdd, T2(r, x, TD_ACL_BF16, 2, 4), T1(r, y, TD_ACL_BF16, 3), alpha);
}

LIVES(obey) {
    norm  n = prepared(r);
    void *ws = rig_workspace(r, n.bytes);
    TRY(r->acl->aclSetAclOpExecutorRepeatable(n.executor));
    TRY(r->ops->aclnnRmsNorm(ws, n.bytes, n.executor, r->stream));
    TRY(r->acl->aclSetInputTensorAddr(n.executor, 0, n.tx, n.x));
    TRY(r->ops->aclnnRmsNorm(ws, n.bytes, n.executor, r->stream));
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
    TRY(r->acl->aclDestroyAclOpExecutor(n.executor));
    TRY(r->acl->aclrtFree(ws));
    free_norm(r, &n);
    rig_close(r);
}

/* ---- routed experts ------------------------------------------------------------------------------------ */

/* Two tokens of 64 values, three experts, two a token; inner size 32. What is not given here is as it should be. */
enum { EXPERTS = 3, TOKENS = 2, CHOSEN = 2, PAIRS = TOKENS * CHOSEN, WIDE = 64 };

ARGS(route, int64_t x, counts, counts_type, active, places_type, id, infinite, range[2]) = {
    .x = TD_ACL_INT8, .counts = TD_ACL_INT64, .counts_type = 1, .active = PAIRS, .range = {0, EXPERTS}};

CALL(route) {
    int32_t ids[PAIRS] = {0, 2, 1, (int32_t)a->id};
    float   scale[TOKENS] = {1, a->infinite ? (float)INFINITY : 1};
    void   *p = rig_alloc(r, 1024), *dx = rig_upload(r, (int16_t[TOKENS * WIDE]){0}, TOKENS * WIDE * sizeof(int16_t)),
         *di = rig_upload(r, ids, sizeof ids), *ds = rig_upload(r, scale, sizeof scale);
    td_acl_int_array *range = r->acl->aclCreateIntArray(a->range, 2);
    RUN(r, aclnnMoeInitRoutingV3, T2(r, dx, (td_acl_dtype)a->x, TOKENS, WIDE), T2(r, di, TD_ACL_INT32, TOKENS, CHOSEN),
        T1(r, ds, TD_ACL_FLOAT, TOKENS), NULL, a->active, 0, EXPERTS, 0, a->counts_type, true, -1, range, a->places_type,
        T2(r, rig_alloc(r, 512), (td_acl_dtype)a->x, PAIRS, WIDE), T1(r, p, TD_ACL_INT32, PAIRS),
        T1(r, rig_alloc(r, 512), (td_acl_dtype)a->counts, EXPERTS), T1(r, rig_alloc(r, 512), TD_ACL_FLOAT, PAIRS));
}
static const rule ROUTE[] = {
    WRONG(route, x, TD_ACL_INT16, "expandedXOut is of type 6, which hicann/ops-transformer moe/moe_init_routing_v3/"),
    WRONG(route, counts, TD_ACL_INT32, "expertTokensCountOrCumsumOut is not INT64 [expertNum]"),
    WRONG(route, counts_type, 0, "expertTokensNumType is 0, and hicann/ops-transformer moe/moe_init_routing_v3/op_host/"),
    WRONG(route, active, TOKENS, "activeNum is not rows * k"),
    WRONG(route, places_type, 1, "rowIdxType is not 0"),
    WRONG(route, id, EXPERTS, "expertIdx has expert 3 of 3"),
    WRONG(route, infinite, true, "scale 1 is not finite"),
    WRONG(route, range[1], EXPERTS - 1, "activeExpertRange is not [0, expertNum]"),
    RIGHT(route),
};
RULES(ROUTE)

ARGS(route_older, int64_t x, counts, counts_type) = {TD_ACL_BF16, TD_ACL_INT32, 2};

CALL(route_older) {
    void *dx = rig_alloc(r, 1024), *di = rig_upload(r, (int32_t[PAIRS]){0, 1, 2, 0}, PAIRS * sizeof(int32_t));
    RUN(r, aclnnMoeInitRoutingV2, T2(r, dx, (td_acl_dtype)a->x, TOKENS, WIDE), T2(r, di, TD_ACL_INT32, TOKENS, CHOSEN), 0, 0,
        EXPERTS, 0, a->counts_type, false, T2(r, rig_alloc(r, 1024), (td_acl_dtype)a->x, PAIRS, WIDE),
        T1(r, rig_alloc(r, 64), TD_ACL_INT32, PAIRS), T1(r, rig_alloc(r, 64), (td_acl_dtype)a->counts, EXPERTS), NULL);
}
static const rule ROUTE_OLDER[] = {
    WRONG(route_older, x, TD_ACL_INT8, "x is of type 2, which hicann/ops-transformer moe/moe_init_routing_v2/"),
    WRONG(route_older, counts, TD_ACL_INT64,
          "expertTokensCountOrCumsumOut is of type 9, which hicann/ops-transformer moe/moe_init_routing_v2/"),
    WRONG(route_older, counts_type, 0, "expertTokensCountOrCumsumFlag is neither 1 nor 2"),
};
RULES(ROUTE_OLDER)

/* The last row of four belongs to no expert. */
ARGS(grouped, int64_t scale, out, list[EXPERTS], list_type, split, axis, activation, storage_k, entries;
     int64_t without_scale /* and then int32 goes out */) = {
    .scale = TD_ACL_BF16, .out = TD_ACL_BF16, .list = {1, 0, 2}, .list_type = 1, .split = 2, .storage_k = 4, .entries = 1};

static td_acl_tensor_list *list_of(ascend_rig *r, td_acl_tensor *t, int64_t entries) {
    const td_acl_tensor *all[2] = {t, t};
    return r->acl->aclCreateTensorList(all, (uint64_t)entries);
}

CALL(grouped) {
    const int64_t  view[] = {EXPERTS, WIDE, 32}, storage[] = {EXPERTS, 1, a->storage_k, 16, 32};
    td_acl_tensor *w = r->acl->aclCreateTensor(view, 3, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, storage, 5,
                                               rig_alloc(r, EXPERTS * WIDE * 64)),
                  *s = T2(r, rig_alloc(r, 512), (td_acl_dtype)a->scale, EXPERTS, 32),
                  *ts = T1(r, rig_alloc(r, 64), TD_ACL_FLOAT, PAIRS);
    RUN(r, aclnnGroupedMatmulV5, list_of(r, T2(r, rig_alloc(r, 512), TD_ACL_INT8, PAIRS, WIDE), a->entries),
        list_of(r, w, 1), NULL, a->without_scale ? NULL : list_of(r, s, 1), NULL, NULL, NULL, list_of(r, ts, 1),
        T1(r, rig_upload(r, a->list, sizeof a->list), TD_ACL_INT64, EXPERTS), NULL, NULL, NULL, a->split, a->axis,
        a->list_type, a->activation, NULL,
        list_of(r, T2(r, rig_alloc(r, 1024), (td_acl_dtype)(a->without_scale ? TD_ACL_INT32 : a->out), PAIRS, 32), 1), NULL,
        NULL);
}
static const rule GROUPED[] = {
    WRONG(grouped, scale, TD_ACL_FLOAT, "scale is not BFLOAT16"),
    WRONG(grouped, out, TD_ACL_INT32, "out is not BFLOAT16 with a scale, or not INT32 without"),
    WRONG(grouped, without_scale, true, "perTokenScale is not FLOAT [M], or without scale"),
    WRONG(grouped, storage_k, 2, "weight's storage is not [E, ceil(N / 32), ceil(K / 16), 16, 32]"),
    WRONG(grouped, split, 0, "splitItem is 0, and hicann/ops-transformer gmm/grouped_matmul/op_host/"),
    WRONG(grouped, axis, 2, "groupType is not 0"),
    WRONG(grouped, list_type, 2, "groupListType is neither 0 nor 1"),
    WRONG(grouped, activation, 5, "actType is not 0"),
    WRONG(grouped, entries, 2, "a list has not one tensor"),
    WRONG(grouped, list[2], 4, "group 2 has rows 1 to 5 of 4"),
    WRONG(grouped, list_type, 0, "group 1 has rows 1 to 0 of 4"),
    RIGHT(grouped),
};
RULES(GROUPED)

ARGS(int4, int64_t x, out, groups, offset_groups, n, without_offset, scale, with_scale) = {
    .x = TD_ACL_BF16, .out = TD_ACL_BF16, .groups = 2, .offset_groups = 2, .n = 32, .scale = TD_ACL_BF16};

CALL(int4) {
    td_acl_tensor *w = T3(r, rig_alloc(r, EXPERTS * WIDE * 32), TD_ACL_INT4, EXPERTS, WIDE, a->n),
                  *s = T3(r, rig_alloc(r, 1024), (td_acl_dtype)a->scale, EXPERTS, a->groups, a->n),
                  *o = T3(r, rig_alloc(r, 1024), TD_ACL_BF16, EXPERTS, a->offset_groups, a->n),
                  *y = T2(r, rig_alloc(r, 512), TD_ACL_BF16, EXPERTS, a->n);
    RUN(r, aclnnGroupedMatmulV5, list_of(r, T2(r, rig_alloc(r, 1024), (td_acl_dtype)a->x, PAIRS, WIDE), 1), list_of(r, w, 1),
        NULL, a->with_scale ? list_of(r, y, 1) : NULL, NULL, list_of(r, s, 1), a->without_offset ? NULL : list_of(r, o, 1),
        NULL, T1(r, rig_upload(r, (int64_t[EXPERTS]){1, 0, 2}, EXPERTS * sizeof(int64_t)), TD_ACL_INT64, EXPERTS), NULL,
        NULL, NULL, 2, 0, 1, 0, NULL, list_of(r, T2(r, rig_alloc(r, 1024), (td_acl_dtype)a->out, PAIRS, a->n), 1), NULL,
        NULL);
}
static const rule INT4[] = {
    WRONG(int4, x, TD_ACL_FLOAT, "x and weight are neither INT8 nor BFLOAT16 with INT4"),
    WRONG(int4, out, TD_ACL_INT32, "out is not BFLOAT16"),
    WRONG(int4, without_offset, true, "must not be null in antiquant"),
    WRONG(int4, scale, TD_ACL_FLOAT, "antiquantScale is of type 0, which hicann/ops-transformer gmm/grouped_matmul/"),
    WRONG(int4, offset_groups, 4, "groups do not divide K, or differ"),
    WRONG(int4, groups, 3, "groups do not divide K, or differ"),
    WRONG(int4, n, 31, "a tensor of INT4 whose rows do not begin with a byte"),
    WRONG(int4, with_scale, true, "scale or perTokenScale is given in antiquant"),
    RIGHT(int4),
};
RULES(INT4)

/* A product of bf16 rows with 4-bit codes. */
ARGS(int4_product, int64_t x, w, out, n, k_of_w, group, groups, offset_groups, scale, offset, bias, with_quant_scale,
     with_quant_offset) = {.x = TD_ACL_BF16,
                           .w = TD_ACL_INT4,
                           .out = TD_ACL_BF16,
                           .n = 32,
                           .k_of_w = 128,
                           .group = 64,
                           .groups = 2,
                           .offset_groups = 2,
                           .scale = TD_ACL_BF16,
                           .offset = TD_ACL_BF16,
                           .bias = TD_ACL_FLOAT};

CALL(int4_product) {
    td_acl_tensor *f = T1(r, rig_alloc(r, 512), TD_ACL_FLOAT, a->n);
    RUN(r, aclnnWeightQuantBatchMatmulV2, T2(r, rig_alloc(r, 4096), (td_acl_dtype)a->x, 3, 128),
        T2(r, rig_alloc(r, 16384), (td_acl_dtype)a->w, a->k_of_w, a->n),
        T2(r, rig_alloc(r, 4096), (td_acl_dtype)a->scale, a->groups, a->n),
        T2(r, rig_alloc(r, 4096), (td_acl_dtype)a->offset, a->offset_groups, a->n), a->with_quant_scale ? f : NULL,
        a->with_quant_offset ? f : NULL, T1(r, rig_alloc(r, 512), (td_acl_dtype)a->bias, a->n), (int)a->group,
        T2(r, rig_alloc(r, 4096), (td_acl_dtype)a->out, 3, a->n));
}
static const rule INT4_PRODUCT[] = {
    WRONG(int4_product, x, TD_ACL_FLOAT, "x is of type 0, which hicann/ops-nn matmul/weight_quant_batch_matmul_v2/"),
    WRONG(int4_product, w, TD_ACL_INT8, "x is not BFLOAT16, or weight not INT4"),
    WRONG(int4_product, out, TD_ACL_FLOAT16, "y has not x's dtype"),
    WRONG(int4_product, n, 31, "a tensor of INT4 whose rows do not begin with a byte"),
    WRONG(int4_product, k_of_w, 64, "the shapes do not go together"),
    WRONG(int4_product, group, 16, "antiquantGroupSize is 16, and hicann/ops-nn matmul/weight_quant_batch_matmul_v2/"),
    WRONG(int4_product, group, 48, "antiquantGroupSize is neither 0 nor a multiple of 32"),
    WRONG(int4_product, group, 128, "antiquantGroupSize is neither 0 nor a multiple of 32"),
    WRONG(int4_product, group, 0, "antiquantScale is not [ceil(k / group), n]"),
    WRONG(int4_product, groups, 4, "antiquantScale is not [ceil(k / group), n]"),
    WRONG(int4_product, offset_groups, 4, "antiquantOffset has another shape than antiquantScale"),
    WRONG(int4_product, scale, TD_ACL_FLOAT16, "antiquantScale or antiquantOffset has not x's dtype"),
    WRONG(int4_product, offset, TD_ACL_FLOAT16, "antiquantScale or antiquantOffset has not x's dtype"),
    WRONG(int4_product, bias, TD_ACL_FLOAT16, "bias is not n values of FLOAT"),
    WRONG(int4_product, with_quant_scale, true, "quantScale is given, and y is not INT8"),
    WRONG(int4_product, with_quant_offset, true, "quantOffset is given without quantScale"),
    RIGHT(int4_product),
};
RULES(INT4_PRODUCT)

ARGS(middle, int64_t x, wide, scales, without_groups, rounds) = {.x = TD_ACL_INT32, .wide = WIDE, .scales = EXPERTS};

CALL(middle) {
    char  dynamic[] = "dynamic", floors[] = "floor";
    void *p = rig_alloc(r, 1 << 17), *groups = rig_upload(r, (int64_t[EXPERTS]){1, 1, 2}, EXPERTS * sizeof(int64_t));
    RUN(r, aclnnDequantSwigluQuantV2, T2(r, p, (td_acl_dtype)a->x, PAIRS, a->wide),
        T2(r, p, TD_ACL_FLOAT, a->scales, a->wide), T1(r, p, TD_ACL_FLOAT, PAIRS), NULL, NULL, NULL,
        a->without_groups ? NULL : T1(r, groups, TD_ACL_INT64, EXPERTS), true, dynamic, TD_ACL_INT8,
        a->rounds ? floors : NULL, -1, 0, 7, 1.702, 1, T2(r, rig_alloc(r, 1 << 16), TD_ACL_INT8, PAIRS, a->wide / 2),
        T1(r, rig_alloc(r, 64), TD_ACL_FLOAT, PAIRS));
}
static const rule MIDDLE[] = {
    WRONG(middle, x, TD_ACL_BF16, "weightScale or activationScale is given, and x is not INT32"),
    WRONG(middle, wide, 96, "no multiple of 64"),
    WRONG(middle, wide, 7296, "more than 7232"),
    WRONG(middle, scales, 1, "weightScale is not FLOAT [groups, 2 H]"),
    WRONG(middle, without_groups, true, "groupIndex, which A2 and A3 want, is a null pointer"),
    WRONG(middle, rounds, true, "roundMode is neither null nor"),
    RIGHT(middle),
};
RULES(MIDDLE)

/* Products and middle in one; right as it is. */
ARGS(gate_up, int64_t k, n, sums[EXPERTS], plain_view, bias) = {.k = 64, .n = 64, .sums = {1, 1, 4}};

CALL(gate_up) {
    const int64_t  tiles[] = {EXPERTS, a->n / 32, (a->k + 15) / 16, 16, 32}, plain[] = {EXPERTS, a->k, a->n};
    size_t         bytes = (size_t)(tiles[0] * tiles[1] * tiles[2]) * 512;
    td_acl_tensor *w = r->acl->aclCreateTensor(a->plain_view ? plain : tiles, a->plain_view ? 3 : 5, TD_ACL_INT8, NULL, 0,
                                               TD_ACL_FORMAT_FRACTAL_NZ, tiles, 5, rig_alloc(r, bytes));
    td_acl_tensor *scale = T2(r, rig_alloc(r, (size_t)(EXPERTS * a->n * 4)), TD_ACL_FLOAT, EXPERTS, a->n);
    RUN(r, aclnnGroupedMatmulSwigluQuantWeightNZ,
        T2(r, rig_upload(r, (int8_t[PAIRS * 128]){0}, PAIRS * 128), TD_ACL_INT8, PAIRS, a->k), w, a->bias ? scale : NULL,
        NULL, scale, T1(r, rig_upload(r, (float[PAIRS]){0}, PAIRS * sizeof(float)), TD_ACL_FLOAT, PAIRS),
        T1(r, rig_upload(r, a->sums, sizeof a->sums), TD_ACL_INT64, EXPERTS),
        T2(r, rig_alloc(r, (size_t)(PAIRS * a->n / 2)), TD_ACL_INT8, PAIRS, a->n / 2),
        T1(r, rig_alloc(r, 64), TD_ACL_FLOAT, PAIRS), NULL);
}
static const rule GATE_UP[] = {
    WRONG(gate_up, sums[1], 0, "group 1 has rows 1 to 0 of 4"),
    WRONG(gate_up, plain_view, true, "weight is not NZ of [E, N / 32, K / 16, 16, 32]"),
    WRONG(gate_up, n, 10272, "N is more than 10240"),
    WRONG(gate_up, k, 72, "K none of 16"),
    WRONG(gate_up, bias, true, "bias is given, which A8W8 does not take"),
    RIGHT(gate_up),
};
RULES(GATE_UP)

/* ---- heads ------------------------------------------------------------------------------------------- */

/* Rope of query and keys of `heads` heads each, out of rows of `stride` for each head. */
ARGS(both, int64_t size, rotary, stride, position, heads) = {
    .size = 32, .rotary = 32, .stride = 64, .position = 3, .heads = 1};

CALL(both) {
    const int64_t wide = a->size * a->heads, stride = a->stride * a->heads, view[] = {2, wide}, strides[] = {stride, 1},
                  storage[] = {2, stride}, at[] = {0, a->position};
    td_acl_tensor *x = r->acl->aclCreateTensor(view, 2, TD_ACL_BF16, strides, 0, TD_ACL_FORMAT_ND, storage, 2,
                                               rig_alloc(r, (size_t)stride * 8));
    RUN(r, aclnnRopeWithSinCosCache, T1(r, rig_upload(r, at, sizeof at), TD_ACL_INT64, 2), x, x,
        T2(r, rig_alloc(r, 1024), TD_ACL_BF16, 4, a->rotary), NULL, a->size, true,
        T2(r, rig_alloc(r, (size_t)wide * 8), TD_ACL_BF16, 2, wide),
        T2(r, rig_alloc(r, (size_t)wide * 8), TD_ACL_BF16, 2, wide));
}
static const rule BOTH[] = {
    WRONG(both, size, 48, "headSize is no multiple of 32"),
    WRONG(both, rotary, 64, "rotaryDim is more than headSize"),
    WRONG(both, stride, 48, "not aligned to 64 bytes"),
    WRONG(both, position, 4, "position 4 of 4"),
    WRONG(both, heads, 171, "a row of all heads does not fit a core's memory"),
    RIGHT(both),
};
RULES(BOTH)

ARGS(heads_front, int64_t gamma, size, block, second_slot, other_mode) = {
    .gamma = TD_ACL_BF16, .size = 128, .block = 128, .second_slot = 5};

CALL(heads_front) {
    enum { ROWS = 2, Q_HEADS = 2, KV_HEADS = 1, PAGES = 2 };
    char mode[] = "PA_NZ";
    if (a->other_mode) mode[2] = 0;
    const int64_t slots[ROWS] = {4, a->second_slot}, all = Q_HEADS + 2 * KV_HEADS, size[] = {1, ROWS, all, a->size},
                  heads[] = {Q_HEADS, KV_HEADS, KV_HEADS};
    td_acl_tensor *rows = T2(r, rig_alloc(r, 1024), TD_ACL_BF16, ROWS, a->size), *cache[2];
    for (int i = 0; i < 2; i++)
        cache[i] = T4(r, rig_alloc(r, 1 << 18), TD_ACL_BF16, PAGES, KV_HEADS * a->size / 16, a->block, 16);
    RUN(r, aclnnQkvRmsNormRopeCache, T2(r, rig_alloc(r, 8192), TD_ACL_BF16, ROWS, all * a->size),
        T1(r, rig_alloc(r, 512), (td_acl_dtype)a->gamma, a->size), T1(r, rig_alloc(r, 512), (td_acl_dtype)a->gamma, a->size),
        rows, rows, T1(r, rig_upload(r, slots, sizeof slots), TD_ACL_INT64, ROWS),
        T2(r, rig_alloc(r, 4096), TD_ACL_BF16, ROWS, Q_HEADS * a->size), cache[0], cache[1], NULL, NULL, NULL, NULL,
        r->acl->aclCreateIntArray(size, 4), r->acl->aclCreateIntArray(heads, 3), 1e-6, mode, NULL, NULL, NULL);
}
static const rule HEADS_FRONT[] = {
    WRONG(heads_front, size, 64, "D is not 128"),
    WRONG(heads_front, gamma, TD_ACL_FLOAT,
          "qGamma is of type 0, which hicann/ops-transformer@3c7c35b posembedding/qkv_rms_norm_rope_cache/"),
    WRONG(heads_front, block, 16, "no multiple of 32 tokens"),
    WRONG(heads_front, other_mode, true,
          "cacheMode is \"PA\", and hicann/ops-transformer@3c7c35b posembedding/qkv_rms_norm_rope_cache/"),
    WRONG(heads_front, second_slot, 4, "slot 4 is there twice"),
    WRONG(heads_front, second_slot, 256, "slot 256 of 256"),
    RIGHT(heads_front),
};
RULES(HEADS_FRONT)

/* Attention of one query over NZ pages of one head. */
ARGS(tiled_pages, int64_t size, tile, early) = {.size = 128, .tile = 16};

CALL(tiled_pages) {
    const int64_t       pages[] = {1, 1, a->size / 16, 128, a->tile}, keys[] = {3};
    char                layout[] = "BSND";
    td_acl_tensor      *k = rig_tensor(r, rig_alloc(r, 1 << 17), TD_ACL_BF16, 5, pages);
    td_acl_tensor_list *l = r->acl->aclCreateTensorList((const td_acl_tensor *const[]){k}, 1);
    setenv("TD_STANDIN_CANN", a->early ? "9.0.0" : "9.1.0", 1);
    RUN(r, aclnnFusedInferAttentionScoreV4, T4(r, rig_alloc(r, 1024), TD_ACL_BF16, 1, 1, 1, a->size), l, l, NULL, NULL, NULL,
        r->acl->aclCreateIntArray(keys, 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        T2(r, rig_upload(r, (int32_t[1]){0}, sizeof(int32_t)), TD_ACL_INT32, 1, 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, layout, 1, 0, 0, 128, 0, false, 0, 0, 0,
        T4(r, rig_alloc(r, 1024), TD_ACL_BF16, 1, 1, 1, a->size), NULL);
}
static const rule TILED_PAGES[] = {
    WRONG(tiled_pages, early, true, "CANN before 9.1 has them for MLA alone"),
    WRONG(tiled_pages, size, 32, "want d of 64 or 128"),
    WRONG(tiled_pages, tile, 32, "is not (blocks, heads, d / 16, block, 16)"),
    RIGHT(tiled_pages),
};
RULES(TILED_PAGES)

ARGS(back, int64_t weights, mode, place) = {.weights = TD_ACL_FLOAT, .mode = 2, .place = 3};

CALL(back) {
    void *x = rig_alloc(r, 1024), *p = rig_upload(r, (int32_t[PAIRS]){0, 1, 2, (int32_t)a->place}, PAIRS * sizeof(int32_t));
    RUN(r, aclnnMoeFinalizeRoutingV2, T2(r, x, TD_ACL_BF16, PAIRS, WIDE), T1(r, p, TD_ACL_INT32, PAIRS), NULL, NULL, NULL,
        T2(r, rig_upload(r, (float[PAIRS]){0}, PAIRS * sizeof(float)), (td_acl_dtype)a->weights, TOKENS, CHOSEN), NULL,
        a->mode, T2(r, rig_alloc(r, 512), TD_ACL_BF16, TOKENS, WIDE));
}
static const rule BACK[] = {
    WRONG(back, mode, 0, "dropPadMode is not 2"),
    WRONG(back, weights, TD_ACL_FLOAT16, "scales are not of expandedX's dtype"),
    WRONG(back, place, PAIRS, "expandedRowIdx has 4 of 4"),
    RIGHT(back),
};
RULES(BACK)

static void act(const void *what) {
    static ascend_rig rig;
    rig_open(&rig);
    rule_break(what, &rig);
}

int main(void) {
    return rules_run("ascend stand-in: ", act);
}
