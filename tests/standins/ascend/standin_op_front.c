/*
 * What is ahead of MLA's attention, in one operation or in part.
 *
 * The whole: from the quantised rows to the query in the latents' space and the two caches. What the document leaves open is
 * computed in f32: products of int8 are scaled into f32, and norms and codes are of f32. The query's nope part is rounded to
 * bf16 before W_UK, which is bf16. Results are rounded once.
 *
 * The latent's part: norm, rope and write of what kv_a gives.
 *
 * The first's document does not say how ROPE takes its rows. The published kernel (attention/mla_prolog/op_kernel/arch22/
 * service_rope.h) takes pairs and gives halves, as InterleaveRope and KvRmsNormRopeCache do, whose documents say so.
 */
#include <stdlib.h>

#include "standin_op.h"

#define TF "hicann/ops-transformer "

enum {
    X,
    W_DQ,
    W_UQ_QR,
    W_UK,
    W_DKV_KR,
    GAMMA_CQ,
    GAMMA_CKV,
    SIN,
    COS,
    SLOTS,
    LATENT,
    ROPE,
    X_SCALE,
    W_DQ_SCALE,
    W_UQ_QR_SCALE,
    W_DKV_KR_SCALE,
    SMOOTH,
    QUERY,
    QUERY_ROPE
};

#define HCQ 1536 /* the sizes that the document fixes */
#define HCKV 512
#define D 128
#define DR 64

typedef struct {
    double epsilon_cq, epsilon_ckv;
} front_args;

static void need(const td_acl_executor *x, bool ok, const char *rule) {
    if (!ok) standin_bad(x, "%s", rule);
}

/* out[n] = sum over k of x[k] w[k, n] * x_scale * scale[n], w in NZ: [n / 32][k / 16][16][32]. */
static void product_nz(const int8_t *x, const int8_t *w, int64_t n, int64_t k, float x_scale, const float *scale,
                       float *out) {
    for (int64_t tile = 0; tile < n / 32; tile++) {
        int32_t sum[32];
        standin_tile_sums(x, w, tile, k, sum);
        for (int64_t j = tile * 32; j < tile * 32 + 32; j++) out[j] = (float)sum[j - tile * 32] * x_scale * scale[j];
    }
}

/* Pairs in, halves out: a pair (a, b) becomes a cos - b sin in the first half and b cos + a sin in the second. */
static void turn(const float *x, const td_bf16 *cos, const td_bf16 *sin, td_bf16 *out) {
    for (int i = 0; i < DR / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        out[i] = td_f32_to_bf16(a * td_bf16_to_f32(cos[i]) - b * td_bf16_to_f32(sin[i]));
        out[DR / 2 + i] = td_f32_to_bf16(b * td_bf16_to_f32(cos[DR / 2 + i]) + a * td_bf16_to_f32(sin[DR / 2 + i]));
    }
}

/* One head of row t: q [D + DR] of f32. */
static void run_head(const standin_call *c, int64_t t, int64_t head, const float *q) {
    int64_t        heads = c->t[QUERY]->view[1];
    const td_bf16 *w = (const td_bf16 *)c->at[W_UK] + head * D * HCKV;
    td_bf16       *out = (td_bf16 *)c->at[QUERY] + (t * heads + head) * HCKV;
    float          sum[HCKV] = {0};
    for (int i = 0; i < D; i++) {
        float nope = td_bf16_to_f32(td_f32_to_bf16(q[i]));
        for (int j = 0; j < HCKV; j++) sum[j] += nope * td_bf16_to_f32(w[i * HCKV + j]);
    }
    for (int j = 0; j < HCKV; j++) out[j] = td_f32_to_bf16(sum[j]);
    turn(q + D, (const td_bf16 *)c->at[COS] + t * DR, (const td_bf16 *)c->at[SIN] + t * DR,
         (td_bf16 *)c->at[QUERY_ROPE] + (t * heads + head) * DR);
}

/* Where both operations have what they write with. */
typedef struct {
    int gamma, cos, sin, slots, latent, rope;
} latent_at;

/* Row t of what kv_a gave, f32 [HCKV + DR], into the caches. */
static void run_latent(const standin_call *c, latent_at i, double epsilon, int64_t t, float *row) {
    const int64_t *slots = c->at[i.slots];
    int64_t        slot = slots[t], n = c->t[i.latent]->view[0] * c->t[i.latent]->view[1];
    if (slot < 0 || slot >= n)
        standin_refuse(TF "cacheIndex", "%s: slot %lld of %lld", c->op, (long long)slot, (long long)n);
    for (int64_t u = 0; u < t; u++)
        if (slots[u] == slot) standin_refuse(TF "cacheIndex", "%s: slot %lld is there twice", c->op, (long long)slot);
    td_bf16 *latent = (td_bf16 *)c->at[i.latent] + slot * HCKV;
    turn(row + HCKV, (const td_bf16 *)c->at[i.cos] + t * DR, (const td_bf16 *)c->at[i.sin] + t * DR,
         (td_bf16 *)c->at[i.rope] + slot * DR);
    (void)standin_norm_row(row, HCKV, epsilon, c->at[i.gamma], TD_ACL_BF16, row);
    for (int j = 0; j < HCKV; j++) latent[j] = td_f32_to_bf16(row[j]);
    standin_note_written(c->t[i.latent]->data + c->t[i.latent]->offset * (int64_t)sizeof *latent, slot);
    standin_note_written(c->t[i.rope]->data + c->t[i.rope]->offset * (int64_t)sizeof *latent, slot);
}

static void run_front(const standin_call *c) {
    int64_t       rows = c->t[X]->view[0], hidden = c->t[X]->view[1], heads = c->t[QUERY]->view[1], q_n = heads * (D + DR);
    float        *row = malloc((size_t)(HCQ + HCKV + DR + q_n) * sizeof *row), *q = row + HCQ + HCKV + DR;
    int8_t        codes[HCQ];
    const float  *x_scale = c->at[X_SCALE], *smooth = c->at[SMOOTH];
    const int8_t *x = c->at[X];
    for (int64_t t = 0; t < rows; t++, x += hidden) {
        product_nz(x, c->at[W_DQ], HCQ, hidden, x_scale[t], c->at[W_DQ_SCALE], row);
        product_nz(x, c->at[W_DKV_KR], HCKV + DR, hidden, x_scale[t], c->at[W_DKV_KR_SCALE], row + HCQ);
        (void)standin_norm_row(row, HCQ, ((const front_args *)c->args)->epsilon_cq, c->at[GAMMA_CQ], TD_ACL_BF16, row);
        for (int i = 0; i < HCQ; i++) row[i] *= smooth[i];
        float scale = standin_quant_row(row, HCQ, codes);
        product_nz(codes, c->at[W_UQ_QR], q_n, HCQ, scale, c->at[W_UQ_QR_SCALE], q);
        for (int64_t head = 0; head < heads; head++) run_head(c, t, head, q + head * (D + DR));
        run_latent(c, (latent_at){GAMMA_CKV, COS, SIN, SLOTS, LATENT, ROPE}, ((const front_args *)c->args)->epsilon_ckv, t,
                   row + HCQ);
    }
    free(row);
}

static bool is_shape(const standin_tensor *t, uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t want[4] = {a, b, c, d};
    for (uint32_t i = 0; i < rank && i < t->n_view; i++)
        if (t->view[i] != want[i]) return false;
    return t->n_view == rank;
}

/* [k, n] of int8 in NZ. */
static void need_nz(const td_acl_executor *x, const standin_tensor *w, int64_t k, int64_t n, const char *name) {
    if (w->dtype != TD_ACL_INT8) standin_bad(x, "%s is not INT8, as x is (other cases are not here)", name);
    if (w->format != TD_ACL_FORMAT_FRACTAL_NZ) standin_bad(x, "%s's format is not FRACTAL_NZ", name);
    if (!is_shape(w, 2, k, n, 0, 0)) standin_bad(x, "%s's shape is not [%lld, %lld]", name, (long long)k, (long long)n);
    if (w->n_storage != 4 || w->storage[0] != n / 32 || w->storage[1] != k / 16 || w->storage[2] != 16 ||
        w->storage[3] != 32)
        standin_bad(x, "%s's storage is not [columns / 32, rows / 16, 16, 32]", name);
}

static void need_plain(const td_acl_executor *x, const standin_tensor *t, td_acl_dtype dtype, const char *name,
                       uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    if (t->dtype != dtype) standin_bad(x, "%s has another dtype than the document's table", name);
    if (t->format != TD_ACL_FORMAT_ND || !standin_contiguous(t)) standin_bad(x, "%s is not ND and contiguous", name);
    if (!is_shape(t, rank, a, b, c, d)) standin_bad(x, "%s has another shape than the document's", name);
}

/* The one case of the document's that is here: full quantisation, caches not quantised. */
td_aclnn_status aclnnMlaPrologV2WeightNzGetWorkspaceSize(
    const td_acl_tensor *rows, const td_acl_tensor *w_dq, const td_acl_tensor *w_uq_qr, const td_acl_tensor *w_uk,
    const td_acl_tensor *w_dkv_kr, const td_acl_tensor *gamma_cq, const td_acl_tensor *gamma_ckv, const td_acl_tensor *sin,
    const td_acl_tensor *cos, const td_acl_tensor *slots, td_acl_tensor *latent_cache, td_acl_tensor *rope_cache,
    const td_acl_tensor *x_scale, const td_acl_tensor *w_dq_scale, const td_acl_tensor *w_uq_qr_scale,
    const td_acl_tensor *w_dkv_kr_scale, const td_acl_tensor *latent_quant_scale, const td_acl_tensor *rope_quant_scale,
    const td_acl_tensor *smooth_cq, double epsilon_cq, double epsilon_ckv, char *cache_mode, const td_acl_tensor *query,
    const td_acl_tensor *query_rope, const td_acl_tensor *query_scale, uint64_t *ws, td_acl_executor **executor) {
    static const int64_t HIDDEN[] = {1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192};
    td_acl_executor     *x = standin_begin(
            "aclnnMlaPrologV2WeightNz", TF "attention/mla_prolog_v2", rows, w_dq, w_uq_qr, w_uk, w_dkv_kr, gamma_cq, gamma_ckv,
            sin, cos, slots, latent_cache, rope_cache, x_scale, w_dq_scale, w_uq_qr_scale, w_dkv_kr_scale, latent_quant_scale,
            rope_quant_scale, smooth_cq, epsilon_cq, epsilon_ckv, cache_mode, query, query_rope, query_scale, STANDIN_END);
    const standin_tensor *t[QUERY_ROPE + 1];
    const td_acl_tensor  *given[] = {
         rows,         w_dq,       w_uq_qr, w_uk,       w_dkv_kr,      gamma_cq,       gamma_ckv, sin,   cos,       slots,
         latent_cache, rope_cache, x_scale, w_dq_scale, w_uq_qr_scale, w_dkv_kr_scale, smooth_cq, query, query_rope};
    static const char *const NAMES[] = {"tokenX",         "weightDq",        "weightUqQr",        "weightUk",
                                        "weightDkvKr",    "rmsnormGammaCq",  "rmsnormGammaCkv",   "ropeSin",
                                        "ropeCos",        "cacheIndex",      "kvCacheRef",        "krCacheRef",
                                        "dequantScaleX",  "dequantScaleWDq", "dequantScaleWUqQr", "dequantScaleWDkvKr",
                                        "smoothScalesCq", "queryOut",        "queryRopeOut"};
    for (int i = 0; i <= QUERY_ROPE; i++)
        t[i] = standin_add(x, given[i], NAMES[i],
                           i == LATENT || i == ROPE ? STANDIN_OUT | STANDIN_INDEXED
                           : i >= QUERY             ? STANDIN_OUT
                                                    : STANDIN_IN);
    need(x, !latent_quant_scale && !rope_quant_scale, "a scale of quantised caches is given, which are not here");
    need(x, !query_scale, "dequantScaleQNopeOut is given, and the query is not quantised");
    need(x, cache_mode && !strcmp(cache_mode, "PA_BSND"), "cacheMode is not \"PA_BSND\", the only one here");
    need(x, t[X]->n_view == 2, "tokenX is not [T, He], the form that is here");
    int64_t n = t[X]->view[0], hidden = t[X]->view[1], heads = t[QUERY]->n_view == 3 ? t[QUERY]->view[1] : 0;
    bool    known = false;
    for (size_t i = 0; i < sizeof HIDDEN / sizeof *HIDDEN; i++) known |= hidden == HIDDEN[i];
    need(x, known, "He is not 1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680 or 8192");
    need(x, n > 0 && n <= 1048576, "T is not 1 to 1048576 (empty ones are not here)");
    need(x, heads > 0 && heads <= 128 && !(heads & (heads - 1)), "N is not a power of two up to 128");
    need_plain(x, t[X], TD_ACL_INT8, "tokenX", 2, n, hidden, 0, 0);
    need_nz(x, t[W_DQ], hidden, HCQ, "weightDq");
    need_nz(x, t[W_UQ_QR], HCQ, heads * (D + DR), "weightUqQr");
    need_nz(x, t[W_DKV_KR], hidden, HCKV + DR, "weightDkvKr");
    need_plain(x, t[W_UK], TD_ACL_BF16, "weightUk", 3, heads, D, HCKV, 0);
    need_plain(x, t[GAMMA_CQ], TD_ACL_BF16, "rmsnormGammaCq", 1, HCQ, 0, 0, 0);
    need_plain(x, t[GAMMA_CKV], TD_ACL_BF16, "rmsnormGammaCkv", 1, HCKV, 0, 0, 0);
    need_plain(x, t[SIN], TD_ACL_BF16, "ropeSin", 2, n, DR, 0, 0);
    need_plain(x, t[COS], TD_ACL_BF16, "ropeCos", 2, n, DR, 0, 0);
    need_plain(x, t[SLOTS], TD_ACL_INT64, "cacheIndex", 1, n, 0, 0, 0);
    int64_t blocks = t[LATENT]->view[0], block = t[LATENT]->view[1];
    need(x, block >= 16 && block <= 1024 && block % 16 == 0, "BlockSize is not a multiple of 16 from 16 to 1024");
    need_plain(x, t[LATENT], TD_ACL_BF16, "kvCacheRef", 4, blocks, block, 1, HCKV);
    need_plain(x, t[ROPE], TD_ACL_BF16, "krCacheRef", 4, blocks, block, 1, DR);
    need_plain(x, t[X_SCALE], TD_ACL_FLOAT, "dequantScaleX", 2, n, 1, 0, 0);
    need_plain(x, t[W_DQ_SCALE], TD_ACL_FLOAT, "dequantScaleWDq", 2, 1, HCQ, 0, 0);
    need_plain(x, t[W_UQ_QR_SCALE], TD_ACL_FLOAT, "dequantScaleWUqQr", 2, 1, heads * (D + DR), 0, 0);
    need_plain(x, t[W_DKV_KR_SCALE], TD_ACL_FLOAT, "dequantScaleWDkvKr", 2, 1, HCKV + DR, 0, 0);
    need_plain(x, t[SMOOTH], TD_ACL_FLOAT, "smoothScalesCq", 2, 1, HCQ, 0, 0);
    need_plain(x, t[QUERY], TD_ACL_BF16, "queryOut", 3, n, heads, HCKV, 0);
    need_plain(x, t[QUERY_ROPE], TD_ACL_BF16, "queryRopeOut", 3, n, heads, DR, 0);
    front_args a = {epsilon_cq, epsilon_ckv};
    return standin_end(x, run_front, &a, sizeof a, 4096, ws, executor);
}
STANDIN_SECOND(aclnnMlaPrologV2WeightNz)

/* ---- the latent's part ----------------------------------------------------------------------------- */

static void run_kv(const standin_call *c) {
    float row[HCKV + DR];
    for (int64_t t = 0, rows = c->t[0]->view[0]; t < rows; t++) {
        const td_bf16 *kv = (const td_bf16 *)c->at[0] + t * c->t[0]->strides[0];
        for (int i = 0; i < HCKV + DR; i++) {
            row[i] = td_bf16_to_f32(kv[i]);
            if (!isfinite(row[i]))
                standin_refuse(TF "posembedding/kv_rms_norm_rope_cache", "%s: kv has a value that is not finite", c->op);
        }
        run_latent(c, (latent_at){1, 2, 3, 4, 6, 5}, *(const double *)c->args, t, row);
    }
}

/* One token a batch, bf16, caches not quantised and in pages: what is here of the document's cases. */
td_aclnn_status aclnnKvRmsNormRopeCacheGetWorkspaceSize(
    const td_acl_tensor *kv, const td_acl_tensor *gamma, const td_acl_tensor *cos, const td_acl_tensor *sin,
    const td_acl_tensor *slots, td_acl_tensor *rope_cache, td_acl_tensor *latent_cache, const td_acl_tensor *rope_scale,
    const td_acl_tensor *latent_scale, const td_acl_tensor *rope_offset, const td_acl_tensor *latent_offset, double epsilon,
    char *cache_mode, bool with_rows, const td_acl_tensor *rope, const td_acl_tensor *latent, uint64_t *ws,
    td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnKvRmsNormRopeCache", TF "posembedding/kv_rms_norm_rope_cache", kv, gamma, cos,
                                       sin, slots, rope_cache, latent_cache, rope_scale, latent_scale, rope_offset,
                                       latent_offset, epsilon, cache_mode, with_rows, rope, latent, STANDIN_END);
    const standin_tensor *t = standin_add(x, kv, "kv", STANDIN_IN), *g = standin_add(x, gamma, "gamma", STANDIN_IN),
                         *cs = standin_add(x, cos, "cos", STANDIN_IN), *sn = standin_add(x, sin, "sin", STANDIN_IN),
                         *s = standin_add(x, slots, "index", STANDIN_IN),
                         *rc = standin_add(x, rope_cache, "kCacheRef", STANDIN_OUT | STANDIN_INDEXED),
                         *lc = standin_add(x, latent_cache, "ckvCacheRef", STANDIN_OUT | STANDIN_INDEXED),
                         *ro = standin_add(x, rope, "kRopeOut", STANDIN_OUT),
                         *lo = standin_add(x, latent, "cKvOut", STANDIN_OUT);
    need(x, !rope_scale && !latent_scale && !rope_offset && !latent_offset,
         "a scale or offset of quantised caches is given");
    need(x, cache_mode && !strcmp(cache_mode, "PA_BNSD"), "cacheMode is not \"PA_BNSD\", the only one here");
    need(x, !with_rows, "isOutputKv is true, which is not here");
    need(x, t->n_view == 4, "kv has not four dimensions");
    need(x, t->view[1] == 1, "kv's N is not 1");
    need(x, t->view[2] == 1 && t->view[3] == HCKV + DR, "kv is not [tokens, 1, 1, 576], the case that is here");
    need(x, t->dtype == TD_ACL_BF16 && t->strides[3] == 1, "kv is not BFLOAT16 with a contiguous last dimension");
    int64_t n = t->view[0], blocks = lc->view[0], block = lc->view[1];
    need_plain(x, g, TD_ACL_BF16, "gamma", 1, HCKV, 0, 0, 0);
    need_plain(x, cs, TD_ACL_BF16, "cos", 4, n, 1, 1, DR);
    need_plain(x, sn, TD_ACL_BF16, "sin", 4, n, 1, 1, DR);
    need_plain(x, s, TD_ACL_INT64, "index", 1, n, 0, 0, 0);
    need(x, block % 16 == 0, "BlockSize is not a multiple of 16, 32 bytes of BFLOAT16");
    need_plain(x, lc, TD_ACL_BF16, "ckvCacheRef", 4, blocks, block, 1, HCKV);
    need_plain(x, rc, TD_ACL_BF16, "kCacheRef", 4, blocks, block, 1, DR);
    need_plain(x, ro, TD_ACL_BF16, "kRopeOut", 4, n, 1, 1, DR);
    need_plain(x, lo, TD_ACL_BF16, "cKvOut", 4, n, 1, 1, HCKV);
    return standin_end(x, run_kv, &epsilon, sizeof epsilon, 512, ws, executor);
}
STANDIN_SECOND(aclnnKvRmsNormRopeCache)
