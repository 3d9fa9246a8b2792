/*
 * Who breaks a rule of CANN's documents does not live to see the result, on the stand-in: every rule in a process of its
 * own, which must end by the signal and with the sentence that is expected. So a backend that passes on it keeps these
 * rules.
 */
#include <math.h>

#include "tests/standins/refusal.h"

#include "tests/standins/ascend/ascend_rig.h"

#define N 64 /* values of the tensors here */

/* ---- what most mistakes begin with ---------------------------------------------------------------- */

typedef struct {
    void          *x, *gamma, *out, *rstd;
    td_acl_tensor *tx, *tg, *to, *tr;
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

static td_acl_executor *prepare(ascend_rig *r, norm *n, uint64_t *bytes) {
    td_acl_executor *x;
    TRY(r->ops->aclnnRmsNormGetWorkspaceSize(n->tx, n->tg, 1e-6, n->to, n->tr, bytes, &x));
    return x;
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

static void run_twice(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    void            *ws = rig_workspace(r, bytes);
    TRY(r->ops->aclnnRmsNorm(ws, bytes, x, r->stream));
    ignore(r->ops->aclnnRmsNorm(ws, bytes, x, r->stream));
}
static void small_workspace(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, bytes), bytes - 1, x, r->stream));
}
static void host_workspace(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    ignore(r->ops->aclnnRmsNorm(rig_pinned(r, bytes), bytes, x, r->stream));
}
static void freed_tensor(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    TRY(r->acl->aclDestroyTensor(n.tg));
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, bytes), bytes, x, r->stream));
}
static void freed_memory(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    TRY(r->acl->aclrtFree(n.gamma));
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, bytes), bytes, x, r->stream));
}
static void another_ops_executor(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    ignore(r->ops->aclnnSwiGlu(rig_alloc(r, bytes), bytes, x, r->stream));
}
static void destroyed_executor(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    TRY(r->acl->aclSetAclOpExecutorRepeatable(x));
    TRY(r->acl->aclDestroyAclOpExecutor(x));
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, bytes), bytes, x, r->stream));
}
static void address_of_single_executor(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    ignore(r->acl->aclSetInputTensorAddr(x, 0, n.tx, n.x));
}
static void odd_address(ascend_rig *r) {
    ignore((long long)(intptr_t)T1(r, (char *)rig_alloc(r, 256) + 16, TD_ACL_FLOAT, 8));
}
static void view_too_large(ascend_rig *r) {
    int64_t view[] = {4, 8}, strides[] = {16, 1}, storage[] = {4, 8};
    ignore((long long)(intptr_t)r->acl->aclCreateTensor(view, 2, TD_ACL_FLOAT, strides, 0, TD_ACL_FORMAT_ND, storage, 2,
                                                        rig_alloc(r, 128)));
}
static void memory_too_small(ascend_rig *r) {
    uint64_t         bytes;
    td_acl_executor *x;
    norm             n = norm_of(r);
    n.to = T2(r, rig_alloc(r, N), TD_ACL_BF16, 1, N);
    ignore(r->ops->aclnnRmsNormGetWorkspaceSize(n.tx, n.tg, 1e-6, n.to, n.tr, &bytes, &x));
}

/* ---- dtypes, formats, shapes of 910B ------------------------------------------------------------------ */

static void wrong_dtype(ascend_rig *r) {
    uint64_t         bytes;
    td_acl_executor *x;
    void            *p = rig_alloc(r, 4096);
    ignore(r->ops->aclnnDynamicQuantGetWorkspaceSize(T2(r, p, TD_ACL_FLOAT, 2, 32), NULL, T2(r, p, TD_ACL_INT8, 2, 32),
                                                     T1(r, p, TD_ACL_FLOAT, 2), &bytes, &x));
}
static void gamma_of_another_dtype(ascend_rig *r) {
    uint64_t         bytes;
    td_acl_executor *x;
    norm             n = norm_of(r);
    ignore(r->ops->aclnnAddRmsNormGetWorkspaceSize(n.tx, n.tx, n.tg, 1e-6, n.to, n.tr, n.to, &bytes, &x));
}
static void null_tensor(ascend_rig *r) {
    uint64_t         bytes;
    td_acl_executor *x;
    norm             n = norm_of(r);
    ignore(r->ops->aclnnRmsNormGetWorkspaceSize(n.tx, NULL, 1e-6, n.to, n.tr, &bytes, &x));
}
static void weight_storage(ascend_rig *r) { /* NZ of [n = 32, k = 64] with the tiles of [k, n] */
    uint64_t         bytes;
    td_acl_executor *x;
    void            *p = rig_alloc(r, 8192);
    int64_t          view[] = {32, 64}, storage[] = {1, 4, 16, 32};
    td_acl_tensor   *w = r->acl->aclCreateTensor(view, 2, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, storage, 4, p);
    ignore(r->ops->aclnnQuantMatmulV5GetWorkspaceSize(T2(r, p, TD_ACL_INT8, 1, 64), w, T1(r, p, TD_ACL_FLOAT, 1),
                                                      T1(r, p, TD_ACL_FLOAT, 32), NULL, NULL, NULL, NULL, NULL, false, true,
                                                      0, T2(r, p, TD_ACL_BF16, 1, 32), &bytes, &x));
}
static void plain_weight_as_nz(ascend_rig *r) {
    uint64_t         bytes;
    td_acl_executor *x;
    void            *p = rig_alloc(r, 8192);
    ignore(r->ops->aclnnQuantMatmulWeightNzGetWorkspaceSize(
        T2(r, p, TD_ACL_INT8, 1, 64), T2(r, p, TD_ACL_INT8, 32, 64), T1(r, p, TD_ACL_FLOAT, 1), T1(r, p, TD_ACL_FLOAT, 32),
        NULL, NULL, NULL, NULL, NULL, false, true, 0, T2(r, p, TD_ACL_BF16, 1, 32), &bytes, &x));
}
/* Operations that do what several do. */
static void norm_quant(ascend_rig *r, td_acl_dtype gamma, td_acl_dtype sum, int64_t second) {
    uint64_t         bytes;
    td_acl_executor *x;
    void            *p = rig_alloc(r, 4096);
    td_acl_tensor   *t = T2(r, p, TD_ACL_BF16, 2, 64), *s = T1(r, p, TD_ACL_FLOAT, 2);
    ignore(r->ops->aclnnAddRmsNormDynamicQuantGetWorkspaceSize(t, t, T1(r, p, gamma, 64), NULL, NULL, 1e-6,
                                                               T2(r, p, TD_ACL_INT8, 2, 64), T1(r, p, TD_ACL_INT8, second),
                                                               T2(r, p, sum, 2, 64), s, s, &bytes, &x));
}
static void norm_quant_gamma(ascend_rig *r) {
    norm_quant(r, TD_ACL_FLOAT, TD_ACL_BF16, 1);
}
static void norm_quant_sum(ascend_rig *r) {
    norm_quant(r, TD_ACL_BF16, TD_ACL_FLOAT, 1);
}
static void norm_quant_second(ascend_rig *r) {
    norm_quant(r, TD_ACL_BF16, TD_ACL_BF16, 64);
}
static void norm_cast(ascend_rig *r, td_acl_dtype gamma, td_acl_dtype first, int64_t rstd) {
    void          *p = rig_alloc(r, 4096);
    td_acl_tensor *t = T2(r, p, TD_ACL_BF16, 2, 64);
    RUN(r, aclnnAddRmsNormCast, t, t, T1(r, rig_alloc(r, 512), gamma, 64), 1e-6, T2(r, rig_alloc(r, 512), first, 2, 64),
        T2(r, rig_alloc(r, 512), TD_ACL_BF16, 2, 64), T2(r, rig_alloc(r, 512), TD_ACL_FLOAT, 2, rstd),
        T2(r, rig_alloc(r, 512), TD_ACL_BF16, 2, 64));
}
static void norm_cast_gamma(ascend_rig *r) {
    norm_cast(r, TD_ACL_FLOAT, TD_ACL_FLOAT, 1);
}
static void norm_cast_first(ascend_rig *r) {
    norm_cast(r, TD_ACL_BF16, TD_ACL_BF16, 1);
}
static void norm_cast_rstd(ascend_rig *r) {
    norm_cast(r, TD_ACL_BF16, TD_ACL_FLOAT, 64);
}
static void norm_cast_obeys(ascend_rig *r) {
    norm_cast(r, TD_ACL_BF16, TD_ACL_FLOAT, 1);
}
static void swiglu_quant(ascend_rig *r, int64_t width, char *mode) {
    uint64_t         bytes;
    td_acl_executor *x;
    void            *p = rig_alloc(r, 65536);
    ignore(r->ops->aclnnDequantSwigluQuantGetWorkspaceSize(T2(r, p, TD_ACL_BF16, 2, width), NULL, NULL, NULL, NULL, NULL,
                                                           NULL, true, mode, T2(r, p, TD_ACL_INT8, 2, width / 2),
                                                           T1(r, p, TD_ACL_FLOAT, 2), &bytes, &x));
}
static void swiglu_quant_width(ascend_rig *r) {
    char dynamic[] = "dynamic";
    swiglu_quant(r, 9832, dynamic); /* 192 KiB / (10 * 2 bytes) = 9830.4 */
}
static void swiglu_quant_mode(ascend_rig *r) {
    swiglu_quant(r, 64, NULL);
}
/* A front of two rows, but for what is wrong with it. */
typedef struct {
    int64_t      hidden, heads, slots[2];
    td_acl_dtype slot_type;
    bool         plain_weight;
} front;
static void run_front(ascend_rig *r, front f) {
    enum { ROWS = 2 };
    int64_t q = f.heads * 192, hidden = f.hidden;
    char    mode[] = "PA_BSND";
    void   *p = rig_alloc(r, (size_t)hidden * 1536), *cache = rig_alloc(r, 2 * 128 * 512 * 2),
         *out = rig_alloc(r, (size_t)(ROWS * f.heads * 576 * 2)), *slots = rig_upload(r, f.slots, sizeof f.slots);
#define FRONT_WEIGHT(rows, columns)                                                       \
    r->acl->aclCreateTensor((const int64_t[]){rows, columns}, 2, TD_ACL_INT8, NULL, 0,    \
                            f.plain_weight ? TD_ACL_FORMAT_ND : TD_ACL_FORMAT_FRACTAL_NZ, \
                            (const int64_t[]){(columns) / 32, (rows) / 16, 16, 32}, 4, p)
    RUN(r, aclnnMlaPrologV2WeightNz, T2(r, p, TD_ACL_INT8, ROWS, hidden), FRONT_WEIGHT(hidden, 1536), FRONT_WEIGHT(1536, q),
        T3(r, p, TD_ACL_BF16, f.heads, 128, 512), FRONT_WEIGHT(hidden, 576), T1(r, p, TD_ACL_BF16, 1536),
        T1(r, p, TD_ACL_BF16, 512), T2(r, p, TD_ACL_BF16, ROWS, 64), T2(r, p, TD_ACL_BF16, ROWS, 64),
        T1(r, slots, f.slot_type, ROWS), T4(r, cache, TD_ACL_BF16, 2, 128, 1, 512),
        T4(r, rig_alloc(r, 2 * 128 * 64 * 2), TD_ACL_BF16, 2, 128, 1, 64), T2(r, p, TD_ACL_FLOAT, ROWS, 1),
        T2(r, p, TD_ACL_FLOAT, 1, 1536), T2(r, p, TD_ACL_FLOAT, 1, q), T2(r, p, TD_ACL_FLOAT, 1, 576), NULL, NULL,
        T2(r, p, TD_ACL_FLOAT, 1, 1536), 1e-6, 1e-6, mode, T3(r, out, TD_ACL_BF16, ROWS, f.heads, 512),
        T3(r, (char *)out + ROWS * f.heads * 512 * 2, TD_ACL_BF16, ROWS, f.heads, 64), NULL);
}
static void front_hidden(ascend_rig *r) {
    run_front(r, (front){1536, 2, {0, 1}, TD_ACL_INT64, false});
}
static void front_heads(ascend_rig *r) {
    run_front(r, (front){1024, 3, {0, 1}, TD_ACL_INT64, false});
}
static void front_weight(ascend_rig *r) {
    run_front(r, (front){1024, 2, {0, 1}, TD_ACL_INT64, true});
}
static void front_slot_type(ascend_rig *r) {
    run_front(r, (front){1024, 2, {0, 1}, TD_ACL_INT32, false});
}
static void front_slot_beyond(ascend_rig *r) {
    run_front(r, (front){1024, 2, {0, 256}, TD_ACL_INT64, false});
}
static void front_slot_twice(ascend_rig *r) {
    run_front(r, (front){1024, 2, {5, 5}, TD_ACL_INT64, false});
}
static void run_kv(ascend_rig *r, int64_t heads, const char *cache, td_bf16 value) {
    td_bf16 kv[2 * 576] = {[1000] = value};
    int64_t slots[2] = {3, 4};
    char    mode[16];
    void   *p = rig_alloc(r, 4096), *rope = rig_alloc(r, 128 * 64 * 2), *latent = rig_alloc(r, 128 * 512 * 2);
    snprintf(mode, sizeof mode, "%s", cache);
    RUN(r, aclnnKvRmsNormRopeCache, T4(r, rig_upload(r, kv, sizeof kv), TD_ACL_BF16, 2 / heads, heads, 1, 576),
        T1(r, p, TD_ACL_BF16, 512), T4(r, p, TD_ACL_BF16, 2, 1, 1, 64), T4(r, p, TD_ACL_BF16, 2, 1, 1, 64),
        T1(r, rig_upload(r, slots, sizeof slots), TD_ACL_INT64, 2), T4(r, rope, TD_ACL_BF16, 1, 128, 1, 64),
        T4(r, latent, TD_ACL_BF16, 1, 128, 1, 512), NULL, NULL, NULL, NULL, 1e-6, mode, false,
        T4(r, p, TD_ACL_BF16, 2, 1, 1, 64), T4(r, p, TD_ACL_BF16, 2, 1, 1, 512));
}
static void kv_heads(ascend_rig *r) {
    run_kv(r, 2, "PA_BNSD", 0);
}
static void kv_cache_mode(ascend_rig *r) {
    run_kv(r, 1, "Norm", 0);
}
static void kv_not_finite(ascend_rig *r) {
    run_kv(r, 1, "PA_BNSD", 0x7f80);
}
static void rope_mode(ascend_rig *r) {
    uint64_t         bytes;
    td_acl_executor *x;
    void            *p = rig_alloc(r, 8192);
    td_acl_tensor   *t = T3(r, p, TD_ACL_BF16, 1, 1, 64);
    ignore(r->ops->aclnnRotaryPositionEmbeddingGetWorkspaceSize(t, t, t, 3, T3(r, p, TD_ACL_BF16, 1, 1, 64), &bytes, &x));
}
static void too_many_experts(ascend_rig *r) {
    uint64_t         bytes;
    td_acl_executor *x;
    void            *p = rig_alloc(r, 65536);
    ignore(r->ops->aclnnMoeGatingTopKGetWorkspaceSize(T2(r, p, TD_ACL_FLOAT, 1, 4096), NULL, 8, 1, 1, 0, 0, 1, false, 1,
                                                      1e-20, T2(r, p, TD_ACL_FLOAT, 1, 8), T2(r, p, TD_ACL_INT32, 1, 8),
                                                      NULL, &bytes, &x));
}

/* ---- attention ------------------------------------------------------------------------------------- */

typedef struct {
    int64_t     heads, d, block, n_seq, table;
    int64_t     kv_len[4];
    const char *layout;
    bool        rope, five;
    void       *latent; /* [8, block, d] */
} mla;

static td_acl_executor *attend(ascend_rig *r, const mla *m, uint64_t *bytes, void **table) {
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
            NULL, NULL, NULL, NULL, NULL, m->rope ? rope : NULL, m->rope ? rope_key : NULL, NULL, NULL, NULL, NULL, NULL,
            m->heads, 0.1, 0, 0, (char *)m->layout, 1, 0, 0, m->block, 0, false, 0, 0, 0, 0, out, NULL, bytes, &x));
    else
        TRY(r->ops->aclnnFusedInferAttentionScoreV3GetWorkspaceSize(
            query, keys, values, NULL, NULL, NULL, kv, NULL, NULL, NULL, NULL, NULL, NULL, NULL, tt, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, m->rope ? rope : NULL, m->rope ? rope_key : NULL, NULL, m->heads, 0.1, 0, 0,
            (char *)m->layout, 1, 0, 0, m->block, 0, false, 0, 0, out, NULL, bytes, &x));
    return x;
}

static mla mla_of(ascend_rig *r) {
    return (mla){.heads = 4,
                 .d = 512,
                 .block = 128,
                 .n_seq = 1,
                 .table = 2,
                 .kv_len = {100},
                 .layout = "BSND",
                 .rope = true,
                 .latent = rig_alloc(r, 8 * 128 * 512 * 2)};
}
static void attention_heads(ascend_rig *r) {
    uint64_t b;
    void    *t;
    mla      m = mla_of(r);
    m.heads = 12;
    ignore((long long)(intptr_t)attend(r, &m, &b, &t));
}
static void attention_d(ascend_rig *r) {
    uint64_t b;
    void    *t;
    mla      m = mla_of(r);
    m.d = 256;
    ignore((long long)(intptr_t)attend(r, &m, &b, &t));
}
static void attention_block(ascend_rig *r) {
    uint64_t b;
    void    *t;
    mla      m = mla_of(r);
    m.block = 64;
    ignore((long long)(intptr_t)attend(r, &m, &b, &t));
}
static void attention_table(ascend_rig *r) {
    uint64_t b;
    void    *t;
    mla      m = mla_of(r);
    m.kv_len[0] = 300;
    ignore((long long)(intptr_t)attend(r, &m, &b, &t));
}
static void attention_version(ascend_rig *r) {
    uint64_t b;
    void    *t;
    mla      m = mla_of(r);
    m.five = true;
    ignore((long long)(intptr_t)attend(r, &m, &b, &t));
}

/* ---- order of streams ------------------------------------------------------------------------------ */

static void two_streams(ascend_rig *r, bool with_event, bool with_sync) {
    void        *device = rig_alloc(r, 4096), *from = rig_pinned(r, 4096), *to = rig_pinned(r, 4096);
    td_acl_event e;
    TRY(r->acl->aclrtCreateEventExWithFlag(&e, TD_ACL_EVENT_SYNC));
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
static void missing_event(ascend_rig *r) {
    two_streams(r, false, false);
}
static void by_event(ascend_rig *r) {
    two_streams(r, true, false);
    rig_close(r);
}
static void by_sync(ascend_rig *r) {
    two_streams(r, false, true);
    rig_close(r);
}
static void shared_workspace(ascend_rig *r) {
    uint64_t bytes;
    norm     n = norm_of(r), m = norm_of(r);
    void    *ws = rig_alloc(r, 4096);
    TRY(r->ops->aclnnRmsNorm(ws, 4096, prepare(r, &n, &bytes), r->stream));
    ignore(r->ops->aclnnRmsNorm(ws, 4096, prepare(r, &m, &bytes), r->other));
}
static void wait_for_nothing(ascend_rig *r) {
    td_acl_event e;
    TRY(r->acl->aclrtCreateEventExWithFlag(&e, TD_ACL_EVENT_SYNC));
    ignore(r->acl->aclrtStreamWaitEvent(r->stream, e));
}
static void wait_for_a_clock(ascend_rig *r) {
    td_acl_event e;
    TRY(r->acl->aclrtCreateEventExWithFlag(&e, TD_ACL_EVENT_TIME_LINE));
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    ignore(r->acl->aclrtStreamWaitEvent(r->other, e));
}

/* ---- memory and copies ----------------------------------------------------------------------------- */

static void read_device(ascend_rig *r) {
    ignore(*(volatile char *)rig_alloc(r, 64));
}
static void write_device(ascend_rig *r) {
    *(volatile char *)rig_alloc(r, 64) = 1;
}
static void copy_wrong_way(ascend_rig *r) {
    ignore(r->acl->aclrtMemcpyAsync(rig_alloc(r, 64), 64, rig_pinned(r, 64), 64, TD_ACL_MEMCPY_DEVICE_TO_HOST, r->stream));
}
static void copy_unpinned(ascend_rig *r) {
    char here[64] = {0};
    ignore(r->acl->aclrtMemcpyAsync(rig_alloc(r, 64), 64, here, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
}
static void copy_too_much(ascend_rig *r) {
    ignore(
        r->acl->aclrtMemcpyAsync(rig_alloc(r, 64), 128, rig_pinned(r, 128), 128, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
}
static void copy_over_its_limit(ascend_rig *r) {
    ignore(
        r->acl->aclrtMemcpyAsync(rig_alloc(r, 128), 64, rig_pinned(r, 128), 128, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
}
static void hold_stream(ascend_rig *r) { /* for ever */
    const uint64_t zero = 0;
    TRY(r->acl->aclrtValueWait(rig_upload(r, &zero, sizeof zero), 1, TD_ACL_STREAM_WAIT_VALUE_EQ, r->stream));
}
static void copy_under_way(ascend_rig *r) {
    void *device = rig_alloc(r, 64), *pinned = rig_pinned(r, 64);
    char  here[64];
    hold_stream(r);
    TRY(r->acl->aclrtMemcpyAsync(device, 64, pinned, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
    ignore(r->acl->aclrtMemcpy(here, 64, device, 64, TD_ACL_MEMCPY_DEVICE_TO_HOST));
}
static void free_under_way(ascend_rig *r) {
    void *device = rig_alloc(r, 64), *pinned = rig_pinned(r, 64);
    hold_stream(r);
    TRY(r->acl->aclrtMemcpyAsync(device, 64, pinned, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, r->stream));
    ignore(r->acl->aclrtFree(device));
}
static void free_twice(ascend_rig *r) {
    void *device = rig_alloc(r, 64);
    TRY(r->acl->aclrtFree(device));
    ignore(r->acl->aclrtFree(device));
}
static void keep_memory(ascend_rig *r) {
    rig_alloc(r, 4096);
    rig_close(r);
}
static void other_card(ascend_rig *r) {
    td_acl_context c;
    td_acl_stream  s;
    void          *p = rig_alloc(r, 64), *pinned = rig_pinned(r, 64);
    TRY(r->acl->aclrtCreateContext(&c, 1));
    TRY(r->acl->aclrtCreateStreamWithConfig(&s, 0, 0));
    ignore(r->acl->aclrtMemcpyAsync(p, 64, pinned, 64, TD_ACL_MEMCPY_HOST_TO_DEVICE, s));
}
static void odd_value(ascend_rig *r) {
    ignore(r->acl->aclrtValueWrite((char *)rig_alloc(r, 64) + 4, 1, 0, r->stream));
}
static void pinned_value(ascend_rig *r) {
    ignore(r->acl->aclrtValueWait(rig_pinned(r, 64), 1, TD_ACL_STREAM_WAIT_VALUE_EQ, r->stream));
}

/* ---- contexts and streams -------------------------------------------------------------------------- */

static void *no_context_thread(void *arg) {
    ascend_rig *r = arg;
    ignore(r->acl->aclrtSynchronizeStream(r->stream));
    return NULL;
}
static void no_context(ascend_rig *r) {
    pthread_t t;
    pthread_create(&t, NULL, no_context_thread, r);
    pthread_join(t, NULL);
}
static void other_context(ascend_rig *r) {
    td_acl_context c;
    TRY(r->acl->aclrtCreateContext(&c, 0));
    ignore(r->acl->aclrtSynchronizeStream(r->stream));
}
static void context_with_streams(ascend_rig *r) {
    ignore(r->acl->aclrtDestroyContext(r->context));
}
static void dead_stream(ascend_rig *r) {
    TRY(r->acl->aclrtDestroyStream(r->other));
    ignore(r->acl->aclrtSynchronizeStream(r->other));
}
static void default_stream(ascend_rig *r) {
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
static void callback_allocates(ascend_rig *r) {
    static void *p;
    callback(r, allocates, &p);
}
static void callback_launches(ascend_rig *r) {
    callback(r, launches, rig_alloc(r, 64));
}
static void callback_synchronises(ascend_rig *r) {
    callback(r, synchronises, r);
}
static void callback_obeys(ascend_rig *r) {
    static int n;
    callback(r, counts, &n);
    if (n != 1) _exit(7);
    rig_close(r);
}
static void callback_unsubscribed(ascend_rig *r) {
    ignore(r->acl->aclrtLaunchCallback(counts, NULL, TD_ACL_CALLBACK_BLOCK, r->stream));
}
static void callback_captured_unsubscribed(ascend_rig *r) {
    TRY(r->acl->aclmdlRICaptureBegin(r->stream, TD_ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL));
    ignore(r->acl->aclrtLaunchCallback(counts, NULL, TD_ACL_CALLBACK_BLOCK, r->stream));
}
static void callback_unpolled(ascend_rig *r) {
    setenv("TD_STANDIN_POLL_MS", "50", 1);
    TRY(r->acl->aclrtSubscribeReport((uint64_t)pthread_self(),
                                     r->stream)); /* and then this thread waits for the stream instead */
    TRY(r->acl->aclrtLaunchCallback(counts, NULL, TD_ACL_CALLBACK_BLOCK, r->stream));
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
}
static void two_subscribers(ascend_rig *r) {
    TRY(r->acl->aclrtSubscribeReport(1, r->stream));
    ignore(r->acl->aclrtSubscribeReport(2, r->stream));
}
static void subscriber_of_two_cards(ascend_rig *r) {
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
static void capture_sync(ascend_rig *r) {
    begin(r);
    ignore(r->acl->aclrtSynchronizeStream(r->stream));
}
static void capture_sync_other(ascend_rig *r) {
    begin(r);
    ignore(r->acl->aclrtSynchronizeStream(r->other));
}
static void capture_query(ascend_rig *r) {
    td_acl_event       e;
    td_acl_event_state state;
    TRY(r->acl->aclrtCreateEventExWithFlag(&e, TD_ACL_EVENT_SYNC));
    begin(r);
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    ignore(r->acl->aclrtQueryEventStatus(e, &state));
}
static void capture_plain_copy(ascend_rig *r) {
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
static void capture_ends_elsewhere(ascend_rig *r) {
    pthread_t t;
    begin(r);
    pthread_create(&t, NULL, end_elsewhere, r);
    pthread_join(t, NULL);
}
static void capture_not_joined(ascend_rig *r) {
    td_acl_event e;
    td_acl_graph g;
    void        *p = rig_alloc(r, 64);
    TRY(r->acl->aclrtCreateEventExWithFlag(&e, TD_ACL_EVENT_SYNC));
    begin(r);
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    TRY(r->acl->aclrtStreamWaitEvent(r->other, e));
    TRY(r->acl->aclrtMemsetAsync(p, 64, 0, 64, r->other));
    ignore(r->acl->aclmdlRICaptureEnd(r->stream, &g));
}
static void capture_freed(ascend_rig *r) {
    void *p = rig_alloc(r, 64);
    begin(r);
    TRY(r->acl->aclrtMemsetAsync(p, 64, 0, 64, r->stream));
    end(r);
    ignore(r->acl->aclrtFree(p));
}
static void capture_race(ascend_rig *r) { /* two captured streams on the same memory */
    td_acl_event e, back;
    void        *p = rig_alloc(r, 64);
    TRY(r->acl->aclrtCreateEventExWithFlag(&e, TD_ACL_EVENT_SYNC));
    TRY(r->acl->aclrtCreateEventExWithFlag(&back, TD_ACL_EVENT_SYNC));
    begin(r);
    TRY(r->acl->aclrtRecordEvent(e, r->stream));
    TRY(r->acl->aclrtStreamWaitEvent(r->other, e));
    TRY(r->acl->aclrtMemsetAsync(p, 64, 1, 64, r->stream));
    TRY(r->acl->aclrtMemsetAsync(p, 64, 2, 64, r->other));
    TRY(r->acl->aclrtRecordEvent(back, r->other));
    TRY(r->acl->aclrtStreamWaitEvent(r->stream, back));
    ignore(r->acl->aclmdlRIExecuteAsync(end(r), r->stream));
}
static void capture_destroyed(ascend_rig *r) {
    void *p = rig_alloc(r, 64);
    begin(r);
    TRY(r->acl->aclrtMemsetAsync(p, 64, 0, 64, r->stream));
    td_acl_graph g = end(r);
    TRY(r->acl->aclmdlRIDestroy(g));
    ignore(r->acl->aclmdlRIExecuteAsync(g, r->stream));
}
static void group_takes_copies(ascend_rig *r) {
    void *p = rig_alloc(r, 64);
    begin(r);
    TRY(r->acl->aclmdlRICaptureTaskGrpBegin(r->stream));
    ignore(r->acl->aclrtMemsetAsync(p, 64, 0, 64, r->stream));
}

/** A capture of one attention in a task group, after a write of the slot that `positions` names. */
typedef struct {
    mla               m;
    td_acl_graph      graph;
    td_acl_task_group group;
    uint64_t          bytes;
    void             *workspace, *slots;
} decode;

static decode capture_decode(ascend_rig *r, int64_t kv_len) {
    decode           c = {.m = mla_of(r)};
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
    TRY(r->acl->aclmdlRICaptureTaskGrpBegin(r->stream));
    TRY(r->ops->aclnnFusedInferAttentionScoreV3(c.workspace, c.bytes, x, r->stream));
    TRY(r->acl->aclmdlRICaptureTaskGrpEnd(r->stream, &c.group));
    c.graph = end(r);
    return c;
}
static void step_decode(ascend_rig *r, decode *c, int32_t position) {
    TRY(r->acl->aclrtMemcpy(c->slots, 4, &position, 4, TD_ACL_MEMCPY_HOST_TO_DEVICE)); /* page i of the sequence is page i */
    TRY(r->acl->aclmdlRIExecuteAsync(c->graph, r->stream));
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
static void lengths_not_updated(ascend_rig *r) {
    decode c = capture_decode(r, 100);
    step_decode(r, &c, 99);
    step_decode(r, &c, 100); /* key 100 is written, and 100 keys are seen */
}
static void lengths_updated(ascend_rig *r) {
    decode c = capture_decode(r, 127);
    step_decode(r, &c, 126);
    for (int64_t n = 128; n < 131; n++) { /* over the end of a page */
        update_decode(r, &c, n, r->stream);
        step_decode(r, &c, (int32_t)n - 1);
    }
}
static void update_not_ordered(ascend_rig *r) {
    decode c = capture_decode(r, 100);
    step_decode(r, &c, 99);
    update_decode(r, &c, 101, r->other);
    ignore(r->acl->aclmdlRIExecuteAsync(c.graph, r->stream));
}
static void update_of_another_op(ascend_rig *r) {
    uint64_t         bytes;
    decode           c = capture_decode(r, 100);
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    TRY(r->acl->aclmdlRICaptureTaskUpdateBegin(r->stream, c.group));
    ignore(r->ops->aclnnRmsNorm(rig_alloc(r, bytes), bytes, x, r->stream));
}
static void update_of_nothing(ascend_rig *r) {
    decode c = capture_decode(r, 100);
    TRY(r->acl->aclmdlRICaptureTaskUpdateBegin(r->stream, c.group));
    ignore(r->acl->aclmdlRICaptureTaskUpdateEnd(r->stream));
}
static void slot_twice(ascend_rig *r) {
    int32_t slots[8] = {5, 6, 5};
    void   *cache = rig_alloc(r, 2 * 128 * 64 * 2), *s = rig_upload(r, slots, sizeof slots), *k = rig_alloc(r, 3 * 64 * 2);
    RUN(r, aclnnScatterPaKvCache, T3(r, k, TD_ACL_BF16, 3, 1, 64), T4(r, cache, TD_ACL_BF16, 2, 128, 1, 64),
        T1(r, s, TD_ACL_INT32, 3), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
}
static void slot_beyond(ascend_rig *r) {
    int32_t slots[8] = {256};
    void   *cache = rig_alloc(r, 2 * 128 * 64 * 2), *s = rig_upload(r, slots, sizeof slots), *k = rig_alloc(r, 64 * 2);
    RUN(r, aclnnScatterPaKvCache, T3(r, k, TD_ACL_BF16, 1, 1, 64), T4(r, cache, TD_ACL_BF16, 2, 128, 1, 64),
        T1(r, s, TD_ACL_INT32, 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
}

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

static void capture_sum(seat *s, int which) {
    TRY(s->r->acl->aclmdlRICaptureBegin(s->stream, TD_ACL_MODEL_RI_CAPTURE_MODE_RELAXED));
    TRY(SUM(s));
    TRY(s->r->acl->aclmdlRICaptureEnd(s->stream, &s->captures[which]));
}

static void destroy_held(seat *s) {
    capture_sum(s, 0);
    ignore(s->r->acl->HcclCommDestroy(s->comm));
}
static void communicator_before_capture(ascend_rig *r) {
    on_two_cards(r, destroy_held);
}
static void broadcast_from(seat *s, uint32_t root, uint64_t n) {
    ignore(s->r->acl->HcclBroadcast(rig_alloc(s->r, 64), n, TD_HCCL_DATA_TYPE_INT32, root, s->comm, s->stream));
    ignore(s->r->acl->aclrtSynchronizeStream(s->stream));
}
static void broadcast_roots(seat *s) {
    broadcast_from(s, s->rank, 8);
}
static void broadcast_of_two_roots(ascend_rig *r) {
    on_two_cards(r, broadcast_roots);
}
static void broadcast_sizes(seat *s) {
    broadcast_from(s, 0, 8 + s->rank);
}
static void broadcast_of_two_sizes(ascend_rig *r) {
    on_two_cards(r, broadcast_sizes);
}
static void broadcast_beyond(seat *s) {
    broadcast_from(s, 2, 8);
}
static void broadcast_of_no_root(ascend_rig *r) {
    on_two_cards(r, broadcast_beyond);
}
static void launch_another(seat *s) {
    capture_sum(s, 0);
    capture_sum(s, 1);
    ignore(s->r->acl->aclmdlRIExecuteAsync(s->captures[s->rank], s->stream));
    ignore(s->r->acl->aclrtSynchronizeStream(s->stream));
}
static void captures_that_do_not_pair(ascend_rig *r) {
    on_two_cards(r, launch_another);
}
static void launch_the_same(seat *s) {
    capture_sum(s, 0);
    capture_sum(s, 1);
    for (int i = 0; i < 4; i++) TRY(s->r->acl->aclmdlRIExecuteAsync(s->captures[i % 2], s->stream));
    TRY(s->r->acl->aclrtSynchronizeStream(s->stream));
    for (int i = 0; i < 2; i++) TRY(s->r->acl->aclmdlRIDestroy(s->captures[i]));
    TRY(s->r->acl->HcclCommDestroy(s->comm));
}
static void captures_that_pair(ascend_rig *r) {
    on_two_cards(r, launch_the_same);
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
static void abort_and_leave(seat *s) {
    abort_alone(s);
    TRY(s->r->acl->HcclCommDestroy(s->comm));
}
static void abort_and_stay(seat *s) {
    abort_alone(s);
    if (s->rank == 1) return;
    ignore(SUM(s));
    ignore(s->r->acl->aclrtSynchronizeStream(s->stream));
}
static void aborted_stream(ascend_rig *r) {
    on_two_cards(r, abort_and_leave);
}
static void aborted_communicator(ascend_rig *r) {
    on_two_cards(r, abort_and_stay);
}
static void gather_alone(seat *s) {
    if (s->rank == 1) return;
    void *all;
    TRY(s->r->acl->aclrtMalloc(&all, 128, TD_ACL_MEM_MALLOC_HUGE_FIRST));
    if (s->r->acl->HcclAllGather(s->x, all, 16, TD_HCCL_DATA_TYPE_BFP16, s->comm, s->stream) != TD_HCCL_E_TIMEOUT) _exit(7);
}
static void first_of_a_kind_alone(ascend_rig *r) {
    setenv("TD_STANDIN_CONNECT_MS", "100", 1);
    on_two_cards(r, gather_alone);
}
static void capture_aborted(ascend_rig *r) {
    begin(r);
    ignore(r->acl->aclrtStreamAbort(r->stream));
}

static void element_beyond(ascend_rig *r) {
    const int64_t index[4] = {3};
    void         *x = rig_alloc(r, 64), *i = rig_upload(r, index, sizeof index), *out = rig_alloc(r, 64);
    RUN(r, aclnnGather, T2(r, x, TD_ACL_INT32, 1, 3), 1, T2(r, i, TD_ACL_INT64, 1, 1), T2(r, out, TD_ACL_INT32, 1, 1));
}

static void sum_of_other_shapes(ascend_rig *r) {
    float          value = 1;
    void          *x = rig_alloc(r, 64), *y = rig_alloc(r, 64);
    td_acl_scalar *alpha = r->acl->aclCreateScalar(&value, TD_ACL_FLOAT);
    RUN(r, aclnnInplaceAdd, T2(r, x, TD_ACL_BF16, 2, 4), T1(r, y, TD_ACL_BF16, 3), alpha);
}

static void obey(ascend_rig *r) {
    uint64_t         bytes;
    norm             n = norm_of(r);
    td_acl_executor *x = prepare(r, &n, &bytes);
    void            *ws = rig_workspace(r, bytes);
    TRY(r->acl->aclSetAclOpExecutorRepeatable(x));
    TRY(r->ops->aclnnRmsNorm(ws, bytes, x, r->stream));
    TRY(r->acl->aclSetInputTensorAddr(x, 0, n.tx, n.x));
    TRY(r->ops->aclnnRmsNorm(ws, bytes, x, r->stream));
    TRY(r->acl->aclrtSynchronizeStream(r->stream));
    TRY(r->acl->aclDestroyAclOpExecutor(x));
    TRY(r->acl->aclrtFree(ws));
    free_norm(r, &n);
    rig_close(r);
}

/* ---- routed experts ------------------------------------------------------------------------------------ */

/* Two tokens of 64 values, three experts, two a token; inner size 32. What is not given here is as it should be. */
enum { EXPERTS = 3, TOKENS = 2, CHOSEN = 2, PAIRS = TOKENS * CHOSEN, WIDE = 64 };

typedef struct {
    td_acl_dtype x, counts;
    int64_t      active, places_type;
    int32_t      id;
    float        scale;
    int64_t      range[2];
} route;

static void route3(ascend_rig *r, route a) {
    int32_t ids[PAIRS] = {0, 2, 1, a.id};
    float   scale[TOKENS] = {1, a.scale};
    void   *p = rig_alloc(r, 1024), *dx = rig_upload(r, (int16_t[TOKENS * WIDE]){0}, TOKENS * WIDE * sizeof(int16_t)),
         *di = rig_upload(r, ids, sizeof ids), *ds = rig_upload(r, scale, sizeof scale);
    td_acl_int_array *range = r->acl->aclCreateIntArray(a.range, 2);
    RUN(r, aclnnMoeInitRoutingV3, T2(r, dx, a.x, TOKENS, WIDE), T2(r, di, TD_ACL_INT32, TOKENS, CHOSEN),
        T1(r, ds, TD_ACL_FLOAT, TOKENS), NULL, a.active, 0, EXPERTS, 0, 1, true, -1, range, a.places_type,
        T2(r, rig_alloc(r, 512), a.x, PAIRS, WIDE), T1(r, p, TD_ACL_INT32, PAIRS),
        T1(r, rig_alloc(r, 512), a.counts, EXPERTS), T1(r, rig_alloc(r, 512), TD_ACL_FLOAT, PAIRS));
}
static route route_right(void) {
    return (route){.x = TD_ACL_INT8, .counts = TD_ACL_INT64, .active = PAIRS, .range = {0, EXPERTS}, .scale = 1};
}

static void route_x(ascend_rig *r) {
    route a = route_right();
    a.x = TD_ACL_INT16;
    route3(r, a);
}
static void route_counts(ascend_rig *r) {
    route a = route_right();
    a.counts = TD_ACL_INT32;
    route3(r, a);
}
static void route_active(ascend_rig *r) {
    route a = route_right();
    a.active = TOKENS;
    route3(r, a);
}
static void route_places(ascend_rig *r) {
    route a = route_right();
    a.places_type = 1;
    route3(r, a);
}
static void route_expert_beyond(ascend_rig *r) {
    route a = route_right();
    a.id = EXPERTS;
    route3(r, a);
}
static void route_not_finite(ascend_rig *r) {
    route a = route_right();
    a.scale = (float)INFINITY;
    route3(r, a);
}
static void route_range(ascend_rig *r) {
    route a = route_right();
    a.range[1] = EXPERTS - 1;
    route3(r, a);
}
static void route_obeys(ascend_rig *r) {
    route a = route_right();
    a.id = 0;
    route3(r, a);
}

static void route2(ascend_rig *r, td_acl_dtype x, td_acl_dtype counts, int64_t counts_type) {
    void *dx = rig_alloc(r, 1024), *di = rig_upload(r, (int32_t[PAIRS]){0, 1, 2, 0}, PAIRS * sizeof(int32_t));
    RUN(r, aclnnMoeInitRoutingV2, T2(r, dx, x, TOKENS, WIDE), T2(r, di, TD_ACL_INT32, TOKENS, CHOSEN), 0, 0, EXPERTS, 0,
        counts_type, false, T2(r, rig_alloc(r, 1024), x, PAIRS, WIDE), T1(r, rig_alloc(r, 64), TD_ACL_INT32, PAIRS),
        T1(r, rig_alloc(r, 64), counts, EXPERTS), NULL);
}
static void route_codes_by_the_older(ascend_rig *r) {
    route2(r, TD_ACL_INT8, TD_ACL_INT32, 2);
}
static void route_counts_of_the_older(ascend_rig *r) {
    route2(r, TD_ACL_BF16, TD_ACL_INT64, 2);
}
static void route_without_counts(ascend_rig *r) {
    route2(r, TD_ACL_BF16, TD_ACL_INT32, 0);
}

typedef struct {
    td_acl_dtype scale, out, token;
    int64_t      list[EXPERTS], list_type, split, axis, activation, storage_k, entries;
    bool         without_scale;
} grouped;

static td_acl_tensor_list *list_of(ascend_rig *r, td_acl_tensor *t, int64_t entries) {
    const td_acl_tensor *all[2] = {t, t};
    return r->acl->aclCreateTensorList(all, (uint64_t)entries);
}

static void grouped_product(ascend_rig *r, grouped a) {
    const int64_t  view[] = {EXPERTS, WIDE, 32}, storage[] = {EXPERTS, 1, a.storage_k, 16, 32};
    td_acl_tensor *w = r->acl->aclCreateTensor(view, 3, TD_ACL_INT8, NULL, 0, TD_ACL_FORMAT_FRACTAL_NZ, storage, 5,
                                               rig_alloc(r, EXPERTS * WIDE * 64)),
                  *s = T2(r, rig_alloc(r, 512), a.scale, EXPERTS, 32), *ts = T1(r, rig_alloc(r, 64), a.token, PAIRS);
    RUN(r, aclnnGroupedMatmulV5, list_of(r, T2(r, rig_alloc(r, 512), TD_ACL_INT8, PAIRS, WIDE), a.entries), list_of(r, w, 1),
        NULL, a.without_scale ? NULL : list_of(r, s, 1), NULL, NULL, NULL, list_of(r, ts, 1),
        T1(r, rig_upload(r, a.list, sizeof a.list), TD_ACL_INT64, EXPERTS), NULL, NULL, NULL, a.split, a.axis, a.list_type,
        a.activation, NULL, list_of(r, T2(r, rig_alloc(r, 1024), a.out, PAIRS, 32), 1), NULL, NULL);
}
static grouped grouped_right(void) {
    return (grouped){.scale = TD_ACL_BF16,
                     .out = TD_ACL_BF16,
                     .token = TD_ACL_FLOAT,
                     .list = {1, 0, 3},
                     .list_type = 1,
                     .split = 2,
                     .storage_k = 4,
                     .entries = 1};
}

static void grouped_scale(ascend_rig *r) {
    grouped a = grouped_right();
    a.scale = TD_ACL_FLOAT;
    grouped_product(r, a);
}
static void grouped_out(ascend_rig *r) {
    grouped a = grouped_right();
    a.out = TD_ACL_INT32;
    grouped_product(r, a);
}
static void grouped_token_scale(ascend_rig *r) {
    grouped a = grouped_right();
    a.without_scale = true;
    a.out = TD_ACL_INT32;
    grouped_product(r, a);
}
static void grouped_storage(ascend_rig *r) {
    grouped a = grouped_right();
    a.storage_k = 2;
    grouped_product(r, a);
}
static void grouped_split(ascend_rig *r) {
    grouped a = grouped_right();
    a.split = 0;
    grouped_product(r, a);
}
static void grouped_axis(ascend_rig *r) {
    grouped a = grouped_right();
    a.axis = 2;
    grouped_product(r, a);
}
static void grouped_list_type(ascend_rig *r) {
    grouped a = grouped_right();
    a.list_type = 2;
    grouped_product(r, a);
}
static void grouped_activation(ascend_rig *r) {
    grouped a = grouped_right();
    a.activation = 5;
    grouped_product(r, a);
}
static void grouped_two_tensors(ascend_rig *r) {
    grouped a = grouped_right();
    a.entries = 2;
    grouped_product(r, a);
}
static void grouped_rows_beyond(ascend_rig *r) {
    grouped a = grouped_right();
    a.list[1] = 1;
    grouped_product(r, a);
}
static void grouped_counts_as_sums(ascend_rig *r) {
    grouped a = grouped_right();
    a.list_type = 0;
    grouped_product(r, a);
}
static void grouped_obeys(ascend_rig *r) {
    grouped a = grouped_right();
    a.list[2] = 2;
    grouped_product(r, a); /* the last row is nobody's */
}

static void middle(ascend_rig *r, td_acl_dtype x, int64_t wide, int64_t scales, bool list, char *round_mode) {
    char  dynamic[] = "dynamic";
    void *p = rig_alloc(r, 1 << 17), *groups = rig_upload(r, (int64_t[EXPERTS]){1, 1, 2}, EXPERTS * sizeof(int64_t));
    RUN(r, aclnnDequantSwigluQuantV2, T2(r, p, x, PAIRS, wide), T2(r, p, TD_ACL_FLOAT, scales, wide),
        T1(r, p, TD_ACL_FLOAT, PAIRS), NULL, NULL, NULL, list ? T1(r, groups, TD_ACL_INT64, EXPERTS) : NULL, true, dynamic,
        TD_ACL_INT8, round_mode, -1, 0, 7, 1.702, 1, T2(r, rig_alloc(r, 1 << 16), TD_ACL_INT8, PAIRS, wide / 2),
        T1(r, rig_alloc(r, 64), TD_ACL_FLOAT, PAIRS));
}
static void middle_of_floats(ascend_rig *r) {
    middle(r, TD_ACL_BF16, WIDE, EXPERTS, true, NULL);
}
static void middle_odd(ascend_rig *r) {
    middle(r, TD_ACL_INT32, 96, EXPERTS, true, NULL);
}
static void middle_wide(ascend_rig *r) {
    middle(r, TD_ACL_INT32, 7296, EXPERTS, true, NULL);
}
static void middle_one_scale(ascend_rig *r) {
    middle(r, TD_ACL_INT32, WIDE, 1, true, NULL);
}
static void middle_without_groups(ascend_rig *r) {
    middle(r, TD_ACL_INT32, WIDE, EXPERTS, false, NULL);
}
static void middle_rounds(ascend_rig *r) {
    char round_mode[] = "floor";
    middle(r, TD_ACL_INT32, WIDE, EXPERTS, true, round_mode);
}
static void middle_obeys(ascend_rig *r) {
    middle(r, TD_ACL_INT32, WIDE, EXPERTS, true, NULL);
}

/* Products and middle in one; right as it is. */
typedef struct {
    int64_t k, n, sums[EXPERTS];
    bool    plain_view, bias;
} gate_up;
#define GATE_UP_RIGHT .k = 64, .n = 64, .sums = {1, 1, 4}

static void products_and_middle(ascend_rig *r, gate_up a) {
    const int64_t  tiles[] = {EXPERTS, a.n / 32, (a.k + 15) / 16, 16, 32}, plain[] = {EXPERTS, a.k, a.n};
    size_t         bytes = (size_t)(tiles[0] * tiles[1] * tiles[2]) * 512;
    td_acl_tensor *w = r->acl->aclCreateTensor(a.plain_view ? plain : tiles, a.plain_view ? 3 : 5, TD_ACL_INT8, NULL, 0,
                                               TD_ACL_FORMAT_FRACTAL_NZ, tiles, 5, rig_alloc(r, bytes));
    td_acl_tensor *scale = T2(r, rig_alloc(r, (size_t)(EXPERTS * a.n * 4)), TD_ACL_FLOAT, EXPERTS, a.n);
    RUN(r, aclnnGroupedMatmulSwigluQuantWeightNZ,
        T2(r, rig_upload(r, (int8_t[PAIRS * 128]){0}, PAIRS * 128), TD_ACL_INT8, PAIRS, a.k), w, a.bias ? scale : NULL, NULL,
        scale, T1(r, rig_upload(r, (float[PAIRS]){0}, PAIRS * sizeof(float)), TD_ACL_FLOAT, PAIRS),
        T1(r, rig_upload(r, a.sums, sizeof a.sums), TD_ACL_INT64, EXPERTS),
        T2(r, rig_alloc(r, (size_t)(PAIRS * a.n / 2)), TD_ACL_INT8, PAIRS, a.n / 2),
        T1(r, rig_alloc(r, 64), TD_ACL_FLOAT, PAIRS), NULL);
}
static void gate_up_counts(ascend_rig *r) {
    products_and_middle(r, (gate_up){.k = 64, .n = 64, .sums = {1, 0, 3}});
}
static void gate_up_plain_view(ascend_rig *r) {
    products_and_middle(r, (gate_up){GATE_UP_RIGHT, .plain_view = true});
}
static void gate_up_wide(ascend_rig *r) {
    products_and_middle(r, (gate_up){.k = 16, .n = 10272, .sums = {1, 1, 4}});
}
static void gate_up_tiles(ascend_rig *r) {
    products_and_middle(r, (gate_up){.k = 72, .n = 64, .sums = {1, 1, 4}});
}
static void gate_up_bias(ascend_rig *r) {
    products_and_middle(r, (gate_up){GATE_UP_RIGHT, .bias = true});
}
static void gate_up_obeys(ascend_rig *r) {
    products_and_middle(r, (gate_up){GATE_UP_RIGHT});
}

/* ---- heads ------------------------------------------------------------------------------------------- */

/* Rope of query and keys of one head each, out of rows of `stride`. */
static void both(ascend_rig *r, int64_t size, int64_t rotary, int64_t stride, int64_t position) {
    const int64_t  view[] = {2, size}, strides[] = {stride, 1}, storage[] = {2, stride}, at[] = {0, position};
    td_acl_tensor *x =
        r->acl->aclCreateTensor(view, 2, TD_ACL_BF16, strides, 0, TD_ACL_FORMAT_ND, storage, 2, rig_alloc(r, 1024));
    RUN(r, aclnnRopeWithSinCosCache, T1(r, rig_upload(r, at, sizeof at), TD_ACL_INT64, 2), x, x,
        T2(r, rig_alloc(r, 1024), TD_ACL_BF16, 4, rotary), NULL, size, true, T2(r, rig_alloc(r, 512), TD_ACL_BF16, 2, size),
        T2(r, rig_alloc(r, 512), TD_ACL_BF16, 2, size));
}
static void both_head_size(ascend_rig *r) {
    both(r, 48, 32, 96, 1);
}
static void both_rotary(ascend_rig *r) {
    both(r, 32, 64, 64, 1);
}
static void both_alignment(ascend_rig *r) {
    both(r, 32, 32, 48, 1);
}
static void both_position(ascend_rig *r) {
    both(r, 32, 32, 64, 4);
}
static void both_obeys(ascend_rig *r) {
    both(r, 32, 32, 64, 3);
}

typedef struct {
    td_acl_dtype gamma;
    int64_t      size, block, second_slot, kv_heads;
    char         mode[8];
} heads_front;
#define HEADS_FRONT_RIGHT .gamma = TD_ACL_BF16, .size = 128, .block = 128, .second_slot = 5, .kv_heads = 1, .mode = "PA_NZ"

static void qkv_front(ascend_rig *r, heads_front a) {
    enum { ROWS = 2, Q_HEADS = 2, PAGES = 2 };
    const int64_t slots[ROWS] = {4, a.second_slot}, all = Q_HEADS + 2 * a.kv_heads, size[] = {1, ROWS, all, a.size},
                  heads[] = {Q_HEADS, a.kv_heads, a.kv_heads};
    td_acl_tensor *rows = T2(r, rig_alloc(r, 1024), TD_ACL_BF16, ROWS, a.size), *cache[2];
    for (int i = 0; i < 2; i++)
        cache[i] = T4(r, rig_alloc(r, 1 << 18), TD_ACL_BF16, PAGES, a.kv_heads * a.size / 16, a.block, 16);
    RUN(r, aclnnQkvRmsNormRopeCache, T2(r, rig_alloc(r, 8192), TD_ACL_BF16, ROWS, all * a.size),
        T1(r, rig_alloc(r, 512), a.gamma, a.size), T1(r, rig_alloc(r, 512), a.gamma, a.size), rows, rows,
        T1(r, rig_upload(r, slots, sizeof slots), TD_ACL_INT64, ROWS),
        T2(r, rig_alloc(r, 4096), TD_ACL_BF16, ROWS, Q_HEADS * a.size), cache[0], cache[1], NULL, NULL, NULL, NULL,
        r->acl->aclCreateIntArray(size, 4), r->acl->aclCreateIntArray(heads, 3), 1e-6, a.mode, NULL, NULL, NULL);
}
static void heads_front_size(ascend_rig *r) {
    heads_front a = {HEADS_FRONT_RIGHT};
    a.size = 64;
    qkv_front(r, a);
}
static void heads_front_gamma(ascend_rig *r) {
    heads_front a = {HEADS_FRONT_RIGHT};
    a.gamma = TD_ACL_FLOAT;
    qkv_front(r, a);
}
static void heads_front_block(ascend_rig *r) {
    heads_front a = {HEADS_FRONT_RIGHT};
    a.block = 16;
    qkv_front(r, a);
}
static void heads_front_mode(ascend_rig *r) {
    heads_front a = {HEADS_FRONT_RIGHT};
    strcpy(a.mode, "PA");
    qkv_front(r, a);
}
static void heads_front_slot_twice(ascend_rig *r) {
    heads_front a = {HEADS_FRONT_RIGHT};
    a.second_slot = 4;
    qkv_front(r, a);
}
static void heads_front_slot_beyond(ascend_rig *r) {
    heads_front a = {HEADS_FRONT_RIGHT};
    a.second_slot = 256;
    qkv_front(r, a);
}
static void heads_front_obeys(ascend_rig *r) {
    heads_front a = {HEADS_FRONT_RIGHT};
    qkv_front(r, a);
}

/* Attention of one query over NZ pages of one head. */
static void tiled_pages(ascend_rig *r, int64_t size, int64_t tile, const char *cann) {
    const int64_t       pages[] = {1, 1, size / 16, 128, tile}, keys[] = {3};
    char                layout[] = "BSND";
    td_acl_tensor      *k = rig_tensor(r, rig_alloc(r, 1 << 17), TD_ACL_BF16, 5, pages);
    td_acl_tensor_list *l = r->acl->aclCreateTensorList((const td_acl_tensor *const[]){k}, 1);
    setenv("TD_STANDIN_CANN", cann, 1);
    RUN(r, aclnnFusedInferAttentionScoreV4, T4(r, rig_alloc(r, 1024), TD_ACL_BF16, 1, 1, 1, size), l, l, NULL, NULL, NULL,
        r->acl->aclCreateIntArray(keys, 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        T2(r, rig_upload(r, (int32_t[1]){0}, sizeof(int32_t)), TD_ACL_INT32, 1, 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, 0, 0, layout, 1, 0, 0, 128, 0, false, 0, 0, 0,
        T4(r, rig_alloc(r, 1024), TD_ACL_BF16, 1, 1, 1, size), NULL);
}
static void tiled_pages_too_early(ascend_rig *r) {
    tiled_pages(r, 128, 16, "9.0.0");
}
static void tiled_pages_size(ascend_rig *r) {
    tiled_pages(r, 32, 16, "9.1.0");
}
static void tiled_pages_tile(ascend_rig *r) {
    tiled_pages(r, 128, 32, "9.1.0");
}
static void tiled_pages_obey(ascend_rig *r) {
    tiled_pages(r, 128, 16, "9.1.0");
}

static void back(ascend_rig *r, td_acl_dtype weights, int64_t mode, int32_t place) {
    void *x = rig_alloc(r, 1024), *p = rig_upload(r, (int32_t[PAIRS]){0, 1, 2, place}, PAIRS * sizeof(int32_t));
    RUN(r, aclnnMoeFinalizeRoutingV2, T2(r, x, TD_ACL_BF16, PAIRS, WIDE), T1(r, p, TD_ACL_INT32, PAIRS), NULL, NULL, NULL,
        T2(r, rig_upload(r, (float[PAIRS]){0}, PAIRS * sizeof(float)), weights, TOKENS, CHOSEN), NULL, mode,
        T2(r, rig_alloc(r, 512), TD_ACL_BF16, TOKENS, WIDE));
}
static void back_by_columns(ascend_rig *r) {
    back(r, TD_ACL_FLOAT, 0, 3);
}
static void back_weights(ascend_rig *r) {
    back(r, TD_ACL_FLOAT16, 2, 3);
}
static void back_beyond(ascend_rig *r) {
    back(r, TD_ACL_FLOAT, 2, PAIRS);
}
static void back_obeys(ascend_rig *r) {
    back(r, TD_ACL_FLOAT, 2, 3);
}

/* ---- the table --------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    void (*act)(ascend_rig *r);
    int         by_signal; /* 0: it lives */
    const char *sentence;
} rule;

#define BREAKS(act, sentence) \
    { #act, act, SIGABRT, sentence }
static const rule RULES[] = {
    BREAKS(run_twice, "has run and was not made repeatable"),
    BREAKS(small_workspace, "is given a workspace of 511 bytes and has asked for 512"),
    BREAKS(host_workspace, "which is not 512 bytes of the device's memory"),
    BREAKS(freed_tensor, "gamma is a tensor that was destroyed"),
    BREAKS(freed_memory, "gamma, 256 bytes at"),
    BREAKS(another_ops_executor, "aclnnSwiGlu is given an executor of aclnnRmsNorm"),
    BREAKS(destroyed_executor, "of an executor of aclnnRmsNorm that is destroyed"),
    BREAKS(address_of_single_executor, "that is not repeatable"),
    BREAKS(odd_address, "has to be a multiple of 32 bytes"),
    BREAKS(view_too_large, "reaches element 55 of a storage of 32"),
    BREAKS(memory_too_small, "yOut, 128 bytes at"),
    BREAKS(wrong_dtype, "x is neither FLOAT16 nor BFLOAT16"),
    BREAKS(gamma_of_another_dtype, "x2, gamma and yOut are not of x1's dtype"),
    BREAKS(null_tensor, "gamma is a null pointer"),
    BREAKS(weight_storage, "x2's storage is not [ceil(columns / 32), ceil(rows / 16), 16, 32]"),
    BREAKS(plain_weight_as_nz, "x2's format is not NZ"),
    BREAKS(norm_quant_gamma, "x2, gamma or xOut is not of x1's dtype"),
    BREAKS(norm_quant_sum, "x2, gamma or xOut is not of x1's dtype"),
    BREAKS(norm_quant_second, "y2Out has another shape than [1]"),
    BREAKS(norm_cast_gamma, "x2, gamma, y2Out or xOut is not of x1's dtype"),
    BREAKS(norm_cast_first, "y1Out or rstdOut is not FLOAT"),
    BREAKS(norm_cast_rstd, "rstdOut's shape is not x1's with 1"),
    {"norm_cast_obeys", norm_cast_obeys, 0, ""},
    BREAKS(swiglu_quant_width, "a fortieth of scaleOut and ten of x's rows are 192 KiB or more"),
    BREAKS(swiglu_quant_mode, "quantMode is not \"dynamic\""),
    BREAKS(front_hidden, "He is not 1024, 2048"),
    BREAKS(front_heads, "N is not a power of two up to 128"),
    BREAKS(front_weight, "weightDq's format is not FRACTAL_NZ"),
    BREAKS(front_slot_type, "cacheIndex has another dtype"),
    BREAKS(front_slot_beyond, "slot 256 of 256"),
    BREAKS(front_slot_twice, "slot 5 is there twice"),
    BREAKS(kv_heads, "kv's N is not 1"),
    BREAKS(kv_cache_mode, "cacheMode is not \"PA_BNSD\""),
    BREAKS(kv_not_finite, "kv has a value that is not finite"),
    BREAKS(rope_mode, "mode is neither 0 (halves) nor 1 (pairs)"),
    BREAKS(too_many_experts, "there are more than 2048 experts"),
    BREAKS(attention_heads, "MLA's heads are not a power of two up to 128"),
    BREAKS(attention_d, "query's d is neither 512 nor 128, with rope"),
    BREAKS(attention_block, "MLA's blockSize is neither 16 nor 128"),
    BREAKS(attention_table, "blockTable is narrower than the pages of the longest sequence"),
    BREAKS(attention_version, "this version is not supported on A2 and A3"),
    BREAKS(missing_event, "no event or synchronisation orders the two"),
    {"by_event", by_event, 0, ""},
    {"by_sync", by_sync, 0, ""},
    BREAKS(shared_workspace, "no event or synchronisation orders the two"),
    BREAKS(wait_for_nothing, "an event that was never recorded"),
    BREAKS(wait_for_a_clock, "an event that was made without ACL_EVENT_SYNC"),
    {"read_device", read_device, SIGSEGV, ""},
    {"write_device", write_device, SIGSEGV, ""},
    BREAKS(copy_wrong_way, "of kind 2 goes from host memory to device memory"),
    BREAKS(copy_unpinned, "with host memory that is not pinned"),
    BREAKS(copy_too_much, "goes beyond the end of the memory"),
    BREAKS(copy_over_its_limit, "of 128 bytes into 64"),
    BREAKS(copy_under_way, "memory that enqueued operations use"),
    BREAKS(free_under_way, "is freed while operations that use it are enqueued"),
    BREAKS(free_twice, "is not the beginning of device memory"),
    BREAKS(keep_memory, "aclFinalize with 4096 bytes of device 0"),
    BREAKS(other_card, "touches memory of device 0 from device 1"),
    BREAKS(odd_value, "not an aligned word of device memory"),
    BREAKS(pinned_value, "not an aligned word of device memory"),
    BREAKS(no_context, "on a thread without a context"),
    BREAKS(other_context, "on a stream of another context than the thread's"),
    BREAKS(context_with_streams, "a context is destroyed with 2 streams"),
    BREAKS(dead_stream, "on a stream that is destroyed"),
    BREAKS(default_stream, "on the default stream"),
    BREAKS(callback_allocates, "aclrtMalloc in a callback"),
    BREAKS(callback_launches, "aclrtMemsetAsync in a callback"),
    BREAKS(callback_synchronises, "aclrtSynchronizeStream in a callback"),
    {"callback_obeys", callback_obeys, 0, ""},
    BREAKS(callback_unsubscribed, "on a stream to which no thread has subscribed"),
    BREAKS(callback_captured_unsubscribed, "on a stream to which no thread has subscribed"),
    BREAKS(callback_unpolled, "does not call aclrtProcessReport in a loop"),
    BREAKS(two_subscribers, "one stream has one thread"),
    BREAKS(subscriber_of_two_cards, "a thread serves one device"),
    BREAKS(capture_sync, "aclrtSynchronizeStream while a stream of the device is captured"),
    BREAKS(capture_sync_other, "aclrtSynchronizeStream while a stream of the device is captured"),
    BREAKS(capture_query, "aclrtQueryEventStatus while a stream of the device is captured"),
    BREAKS(capture_plain_copy, "aclrtMemcpy while a stream is captured and the mode forbids it"),
    BREAKS(capture_ends_elsewhere, "ended on another thread than it was begun on"),
    BREAKS(capture_not_joined, "its first stream does not wait for"),
    BREAKS(capture_freed, "is freed while a capture uses it"),
    BREAKS(capture_race, "no event or synchronisation orders the two"),
    BREAKS(capture_destroyed, "is not finished, or is destroyed"),
    BREAKS(group_takes_copies, "in a task group, which takes single operations only"),
    BREAKS(lengths_not_updated, "its lengths were changed without an update"),
    {"lengths_updated", lengths_updated, 0, ""},
    BREAKS(update_not_ordered, "no event or synchronisation orders the two"),
    BREAKS(update_of_another_op, "an update has aclnnRmsNorm where the task group has aclnnFusedInferAttentionScoreV3"),
    BREAKS(update_of_nothing, "an update of 0 operations, for a task group of 1"),
    BREAKS(slot_twice, "slot 5 is there twice"),
    BREAKS(slot_beyond, "slot 256 of 256"),
    BREAKS(communicator_before_capture, "captured collectives hold: captures go first"),
    BREAKS(captures_that_do_not_pair, "ranks of one communicator meet with HcclAllReduce of capture"),
    BREAKS(broadcast_of_two_roots, "broadcast from roots"),
    BREAKS(broadcast_of_two_sizes, "ranks of one communicator meet with HcclBroadcast of"),
    BREAKS(broadcast_of_no_root, "root 2 of 2 ranks"),
    {"captures_that_pair", captures_that_pair, 0, ""},
    {"aborted_stream", aborted_stream, 0, ""},
    BREAKS(aborted_communicator, "on a communicator of which a collective was aborted"),
    {"first_of_a_kind_alone", first_of_a_kind_alone, 0, ""},
    BREAKS(capture_aborted, "a stream is aborted while it is captured"),
    BREAKS(element_beyond, "index 3 of 3"),
    BREAKS(sum_of_other_shapes, "other is not broadcast to selfRef's shape"),
    BREAKS(route_x, "x is none of FLOAT16, BFLOAT16, FLOAT, INT8"),
    BREAKS(route_counts, "expertTokensCountOrCumsumOut is not INT64 [expertNum]"),
    BREAKS(route_active, "activeNum is not rows * k"),
    BREAKS(route_places, "rowIdxType is not 0"),
    BREAKS(route_expert_beyond, "expertIdx has expert 3 of 3"),
    BREAKS(route_not_finite, "scale 1 is not finite"),
    BREAKS(route_range, "activeExpertRange is not [0, expertNum]"),
    {"route_obeys", route_obeys, 0, ""},
    BREAKS(route_codes_by_the_older, "x is none of FLOAT16, BFLOAT16, FLOAT"),
    BREAKS(route_counts_of_the_older, "expertTokensCountOrCumsumOut is not INT32 [expertNum]"),
    BREAKS(route_without_counts, "expertTokensCountOrCumsumFlag is neither 1 nor 2"),
    BREAKS(grouped_scale, "scale is not BFLOAT16"),
    BREAKS(grouped_out, "out is not BFLOAT16 with a scale, or not INT32 without"),
    BREAKS(grouped_token_scale, "perTokenScale is not FLOAT [M], or without scale"),
    BREAKS(grouped_storage, "weight's storage is not [E, ceil(N / 32), ceil(K / 16), 16, 32]"),
    BREAKS(grouped_split, "splitItem is neither 2 nor 3"),
    BREAKS(grouped_axis, "groupType is not 0"),
    BREAKS(grouped_list_type, "groupListType is neither 0 nor 1"),
    BREAKS(grouped_activation, "actType is not 0"),
    BREAKS(grouped_two_tensors, "a list has not one tensor"),
    BREAKS(grouped_rows_beyond, "group 2 has rows 2 to 5 of 4"),
    BREAKS(grouped_counts_as_sums, "group 1 has rows 1 to 0 of 4"),
    {"grouped_obeys", grouped_obeys, 0, ""},
    BREAKS(middle_of_floats, "weightScale or activationScale is given, and x is not INT32"),
    BREAKS(middle_odd, "no multiple of 64"),
    BREAKS(middle_wide, "more than 7232"),
    BREAKS(middle_one_scale, "weightScale is not FLOAT [groups, 2 H]"),
    BREAKS(middle_without_groups, "groupIndex, which A2 and A3 want, is a null pointer"),
    BREAKS(middle_rounds, "roundMode is neither null nor"),
    {"middle_obeys", middle_obeys, 0, ""},
    BREAKS(gate_up_counts, "group 1 has rows 1 to 0 of 4"),
    BREAKS(gate_up_plain_view, "weight is not NZ of [E, N / 32, K / 16, 16, 32]"),
    BREAKS(gate_up_wide, "N is more than 10240"),
    BREAKS(gate_up_tiles, "K none of 16"),
    BREAKS(gate_up_bias, "bias is given, which A8W8 does not take"),
    {"gate_up_obeys", gate_up_obeys, 0, ""},
    BREAKS(both_head_size, "headSize is no multiple of 32"),
    BREAKS(both_rotary, "rotaryDim is more than headSize"),
    BREAKS(both_alignment, "not aligned to 64 bytes"),
    BREAKS(both_position, "position 4 of 4"),
    {"both_obeys", both_obeys, 0, ""},
    BREAKS(heads_front_size, "D is not 128"),
    BREAKS(heads_front_gamma, "a gamma is not [D] of qkv's dtype"),
    BREAKS(heads_front_block, "no multiple of 32 tokens"),
    BREAKS(heads_front_mode, "cacheMode is not \"PA_NZ\""),
    BREAKS(heads_front_slot_twice, "slot 4 is there twice"),
    BREAKS(heads_front_slot_beyond, "slot 256 of 256"),
    {"heads_front_obeys", heads_front_obeys, 0, ""},
    BREAKS(tiled_pages_too_early, "CANN before 9.1 has them for MLA alone"),
    BREAKS(tiled_pages_size, "want d of 64 or 128"),
    BREAKS(tiled_pages_tile, "is not (blocks, heads, d / 16, block, 16)"),
    {"tiled_pages_obey", tiled_pages_obey, 0, ""},
    BREAKS(back_by_columns, "dropPadMode is not 2"),
    BREAKS(back_weights, "scales are not of expandedX's dtype"),
    BREAKS(back_beyond, "expandedRowIdx has 4 of 4"),
    {"back_obeys", back_obeys, 0, ""},
    {"obey", obey, 0, ""},
};
#define N_RULES (sizeof RULES / sizeof *RULES)

static void act(const void *what) {
    static ascend_rig rig;
    rig_open(&rig);
    ((const rule *)what)->act(&rig);
}

static void check_rule(void **state) {
    const rule *r = *state;
    refusal_check(act, r, r->by_signal, r->sentence, "ascend stand-in: ");
}

int main(void) {
    struct CMUnitTest tests[N_RULES];
    for (size_t i = 0; i < N_RULES; i++)
        tests[i] = (struct CMUnitTest){.name = RULES[i].name, .test_func = check_rule, .initial_state = (void *)&RULES[i]};
    return _cmocka_run_group_tests("standin", tests, N_RULES, NULL, NULL);
}
