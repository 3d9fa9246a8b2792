/*
 * What is ahead of attention whose keys and values have heads: rope of query and keys in one, and norm, rope and write in
 * one. What the documents leave open is computed in f32 and rounded once.
 *
 * Sources: ops-transformer posembedding/rope_with_sin_cos_cache, posembedding/qkv_rms_norm_rope_cache, as they are for A2
 * and A3. What is stricter here: positions and slots are looked at when an operation runs, and -1 for a slot, which leaves a
 * row out, is not here.
 */
#include <stdlib.h>

#include "standin_op.h"

#define TF "hicann/ops-transformer "
#define D 128 /* of qkv_rms_norm_rope_cache: the size of a head */

static void need(const td_acl_executor *x, bool ok, const char *rule) {
    if (!ok) standin_bad(x, "%s", rule);
}

static bool is_plain(const standin_tensor *t, td_acl_dtype dtype, uint32_t rank, int64_t a, int64_t b) {
    return t->dtype == dtype && t->format == TD_ACL_FORMAT_ND && t->n_view == rank && t->view[0] == a &&
           (rank < 2 || t->view[1] == b) && standin_contiguous(t);
}

/* x [n] becomes x turned by halves, cos and sin of the first half and of the second. */
static void turn(float *x, int64_t n, const td_bf16 *cos, const td_bf16 *sin, const td_bf16 *cos2, const td_bf16 *sin2) {
    for (int64_t i = 0; i < n / 2; i++) {
        float a = x[i], b = x[n / 2 + i];
        x[i] = a * td_bf16_to_f32(cos[i]) - b * td_bf16_to_f32(sin[i]);
        x[n / 2 + i] = b * td_bf16_to_f32(cos2[i]) + a * td_bf16_to_f32(sin2[i]);
    }
}

/* ---- rope of both ------------------------------------------------------------------------------ */

enum { ROPE_POSITIONS, ROPE_QUERY, ROPE_KEY, ROPE_TABLE, ROPE_QUERY_OUT, ROPE_KEY_OUT };

static void turn_row(const standin_call *c, int from, int to, int64_t row, int64_t size, const td_bf16 *table) {
    const standin_tensor *t = c->t[from];
    int64_t               width = t->view[1], rotary = c->t[ROPE_TABLE]->view[1];
    float                *x = malloc((size_t)size * sizeof *x);
    for (int64_t head = 0; head < width / size; head++) {
        for (int64_t i = 0; i < size; i++) x[i] = standin_get(c->at[from], t->dtype, row * t->strides[0] + head * size + i);
        turn(x, rotary, table, table + rotary / 2, table, table + rotary / 2);
        for (int64_t i = 0; i < size; i++) standin_set(c->at[to], t->dtype, row * width + head * size + i, x[i]);
    }
    free(x);
}

static void run_rope_both(const standin_call *c) {
    const standin_tensor *table = c->t[ROPE_TABLE];
    int64_t               size = *(const int64_t *)c->args;
    for (int64_t row = 0; row < c->t[ROPE_POSITIONS]->view[0]; row++) {
        int64_t position = ((const int64_t *)c->at[ROPE_POSITIONS])[row];
        if (position < 0 || position >= table->view[0])
            standin_refuse(TF "posembedding/rope_with_sin_cos_cache", "%s: position %lld of %lld", c->op,
                           (long long)position, (long long)table->view[0]);
        const td_bf16 *at = (const td_bf16 *)c->at[ROPE_TABLE] + position * table->view[1];
        turn_row(c, ROPE_QUERY, ROPE_QUERY_OUT, row, size, at);
        turn_row(c, ROPE_KEY, ROPE_KEY_OUT, row, size, at);
    }
}

td_aclnn_status aclnnRopeWithSinCosCacheGetWorkspaceSize(const td_acl_tensor *positions, const td_acl_tensor *query,
                                                         const td_acl_tensor *key, const td_acl_tensor *table,
                                                         const td_acl_int_array *sections, int64_t head_dim, bool halves,
                                                         td_acl_tensor *query_out, td_acl_tensor *key_out, uint64_t *ws,
                                                         td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnRopeWithSinCosCache", TF "posembedding/rope_with_sin_cos_cache", positions,
                                            query, key, table, sections, head_dim, halves, query_out, key_out, STANDIN_END);
    const standin_tensor *p = standin_add(x, positions, "positions", STANDIN_IN),
                         *q = standin_add(x, query, "queryIn", STANDIN_IN), *k = standin_add(x, key, "keyIn", STANDIN_IN),
                         *t = standin_add(x, table, "cosSinCache", STANDIN_IN),
                         *qo = standin_add(x, query_out, "queryOut", STANDIN_OUT),
                         *ko = standin_add(x, key_out, "keyOut", STANDIN_OUT);
    need(x, !sections, "mropeSection is given, which is not here");
    need(x, halves, "isNeoxStyle is false, which is not here");
    need(x, q->dtype == TD_ACL_BF16 && k->dtype == TD_ACL_BF16, "queryIn or keyIn is not BFLOAT16 (others are not here)");
    need(x, q->n_view == 2 && k->n_view == 2 && t->n_view == 2, "queryIn, keyIn or cosSinCache has not two dimensions");
    int64_t rows = q->view[0];
    need(x, is_plain(p, TD_ACL_INT64, 1, rows, 0), "positions are not INT64 [numTokens]");
    need(x, head_dim > 0 && head_dim % 32 == 0, "headSize is no multiple of 32, which BFLOAT16 wants");
    need(x, k->view[0] == rows && q->view[1] % head_dim == 0 && k->view[1] % head_dim == 0 && q->view[1] && k->view[1],
         "queryIn or keyIn is not [numTokens, heads * headSize]");
    need(x, q->strides[1] == 1 && k->strides[1] == 1, "the last dimension of queryIn or keyIn is not contiguous");
    need(x, q->strides[0] % 32 == 0 && k->strides[0] % 32 == 0 && q->offset % 32 == 0 && k->offset % 32 == 0,
         "rows of queryIn or keyIn are not aligned to 64 bytes");
    need(x, t->view[1] % 32 == 0 && t->view[1] > 0, "rotaryDim is no multiple of 32, which BFLOAT16 wants");
    need(x, t->view[1] <= head_dim, "rotaryDim is more than headSize");
    need(x,
         (q->view[1] > k->view[1] ? q : k)->view[1] / head_dim * (8 * t->view[1] + head_dim) * (int64_t)sizeof(float) <=
             192 << 10,
         "a row of all heads does not fit a core's memory, by which the tiling divides");
    need(x, is_plain(t, TD_ACL_BF16, 2, t->view[0], t->view[1]), "cosSinCache is not contiguous, or not of queryIn's dtype");
    need(x, is_plain(qo, TD_ACL_BF16, 2, rows, q->view[1]) && is_plain(ko, TD_ACL_BF16, 2, rows, k->view[1]),
         "queryOut or keyOut is not of its input's shape and dtype, or not contiguous");
    return standin_end(x, run_rope_both, &head_dim, sizeof head_dim, 512, ws, executor);
}
STANDIN_SECOND(aclnnRopeWithSinCosCache)

/* ---- norm, rope and write in one ------------------------------------------------------------------ */

enum { QKV, QKV_Q_GAMMA, QKV_K_GAMMA, QKV_COS, QKV_SIN, QKV_SLOTS, QKV_QUERY, QKV_K_CACHE, QKV_V_CACHE };

typedef struct {
    int64_t heads, kv_heads;
    double  epsilon;
} qkv_args;

/* out[D] = head `head` of row `row`, normed and turned. */
static void front_head(const standin_call *c, const qkv_args *a, int64_t row, int64_t head, int gamma, float out[D]) {
    const td_bf16 *qkv = (const td_bf16 *)c->at[QKV] + (row * (a->heads + 2 * a->kv_heads) + head) * D,
                  *cos = (const td_bf16 *)c->at[QKV_COS] + row * D, *sin = (const td_bf16 *)c->at[QKV_SIN] + row * D;
    for (int i = 0; i < D; i++) out[i] = td_bf16_to_f32(qkv[i]);
    (void)standin_norm_row(out, D, a->epsilon, c->at[gamma], TD_ACL_BF16, out);
    turn(out, D, cos, sin, cos + D / 2, sin + D / 2);
}

/* Into NZ pages: [blocks, heads * D / 16, block, 16]. */
static void store_head(const standin_call *c, int cache, int64_t slot, int64_t head, const float x[D]) {
    const standin_tensor *t = c->t[cache];
    int64_t               tiles = t->view[1], block = t->view[2];
    td_bf16              *to = (td_bf16 *)c->at[cache] + slot / block * tiles * block * 16 + slot % block * 16;
    for (int i = 0; i < D; i++) to[(head * D + i) / 16 * block * 16 + i % 16] = td_f32_to_bf16(x[i]);
}

static void run_qkv(const standin_call *c) {
    const qkv_args *a = c->args;
    const int64_t  *slots = c->at[QKV_SLOTS];
    int64_t         n = c->t[QKV_K_CACHE]->view[0] * c->t[QKV_K_CACHE]->view[2];
    float           x[D];
    for (int64_t row = 0; row < c->t[QKV]->view[0]; row++) {
        int64_t slot = slots[row];
        if (slot < 0 || slot >= n)
            standin_refuse(TF "posembedding/qkv_rms_norm_rope_cache", "%s: slot %lld of %lld", c->op, (long long)slot,
                           (long long)n);
        for (int64_t i = 0; i < row; i++)
            if (slots[i] == slot)
                standin_refuse(TF "posembedding/qkv_rms_norm_rope_cache", "%s: slot %lld is there twice", c->op,
                               (long long)slot);
        for (int64_t head = 0; head < a->heads; head++) {
            front_head(c, a, row, head, QKV_Q_GAMMA, x);
            for (int i = 0; i < D; i++)
                ((td_bf16 *)c->at[QKV_QUERY])[(row * a->heads + head) * D + i] = td_f32_to_bf16(x[i]);
        }
        for (int64_t head = 0; head < a->kv_heads; head++) {
            front_head(c, a, row, a->heads + head, QKV_K_GAMMA, x);
            store_head(c, QKV_K_CACHE, slot, head, x);
            const td_bf16 *v =
                (const td_bf16 *)c->at[QKV] + (row * (a->heads + 2 * a->kv_heads) + a->heads + a->kv_heads + head) * D;
            for (int i = 0; i < D; i++) x[i] = td_bf16_to_f32(v[i]);
            store_head(c, QKV_V_CACHE, slot, head, x);
        }
        for (int cache = QKV_K_CACHE; cache <= QKV_V_CACHE; cache++)
            standin_note_written(c->t[cache]->data + (size_t)c->t[cache]->offset * sizeof(td_bf16), slot);
    }
}

static void need_cache(const td_acl_executor *x, const standin_tensor *t, int64_t blocks, int64_t kv_heads, int64_t block) {
    need(x, t->dtype == TD_ACL_BF16, "a cache is not of qkv's dtype (INT8 is not here)");
    need(x,
         t->n_view == 4 && t->view[0] == blocks && t->view[1] == kv_heads * D / 16 && t->view[2] == block &&
             t->view[3] == 16 && standin_contiguous(t),
         "a cache is not [blocks, Nk * 128 / 16, block, 16], or not contiguous");
}

td_aclnn_status aclnnQkvRmsNormRopeCacheGetWorkspaceSize(
    const td_acl_tensor *qkv, const td_acl_tensor *q_gamma, const td_acl_tensor *k_gamma, const td_acl_tensor *cos,
    const td_acl_tensor *sin, const td_acl_tensor *slots, td_acl_tensor *query, td_acl_tensor *key_cache,
    td_acl_tensor *value_cache, const td_acl_tensor *key_scale, const td_acl_tensor *value_scale,
    const td_acl_tensor *key_offset, const td_acl_tensor *value_offset, const td_acl_int_array *sizes,
    const td_acl_int_array *heads, double epsilon, char *cache_mode, const td_acl_tensor *query_rows,
    const td_acl_tensor *key_rows, const td_acl_tensor *value_rows, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnQkvRmsNormRopeCache", TF "posembedding/qkv_rms_norm_rope_cache", qkv, q_gamma, k_gamma, cos, sin,
                      slots, query, key_cache, value_cache, key_scale, value_scale, key_offset, value_offset, sizes, heads,
                      epsilon, cache_mode, query_rows, key_rows, value_rows, STANDIN_END);
    const standin_tensor *t = standin_add(x, qkv, "qkv", STANDIN_IN), *qg = standin_add(x, q_gamma, "qGamma", STANDIN_IN),
                         *kg = standin_add(x, k_gamma, "kGamma", STANDIN_IN), *cs = standin_add(x, cos, "cos", STANDIN_IN),
                         *sn = standin_add(x, sin, "sin", STANDIN_IN), *s = standin_add(x, slots, "index", STANDIN_IN),
                         *q = standin_add(x, query, "qOut", STANDIN_OUT),
                         *kc = standin_add(x, key_cache, "kCache", STANDIN_OUT | STANDIN_INDEXED),
                         *vc = standin_add(x, value_cache, "vCache", STANDIN_OUT | STANDIN_INDEXED);
    need(x, strncmp(aclrtGetSocName(), "Ascend950", 9) != 0, "950 does not have it");
    need(x, !key_scale && !value_scale && !key_offset && !value_offset, "a scale or offset of quantised caches is given");
    need(x, !query_rows && !key_rows && !value_rows,
         "qOutBeforeQuant, kOutBeforeQuant or vOutBeforeQuant is given, which this mode does not give");
    need(x, cache_mode, "cacheMode is a null pointer");
    int64_t rows = sizes->values[0] * sizes->values[1], n = sizes->values[2], nq = heads->values[0], nk = heads->values[1];
    need(x, sizes->values[0] > 0 && sizes->values[1] > 0, "a batch or a length of qkvSize is not positive");
    need(x, nq > 0 && nk > 0 && heads->values[2] == nk && n == nq + 2 * nk && nq % nk == 0,
         "headNums are not those of qkvSize, or Nk not Nv, or Nq no multiple of Nk");
    need(x, sizes->values[3] == D, "D is not 128, the only one");
    need(x, is_plain(t, TD_ACL_BF16, 2, rows, n * D), "qkv is not BFLOAT16 [B * S, N * D], contiguous");
    need(x, is_plain(qg, TD_ACL_BF16, 1, D, 0) && is_plain(kg, TD_ACL_BF16, 1, D, 0), "a gamma is not [D] of qkv's dtype");
    need(x, is_plain(cs, TD_ACL_BF16, 2, rows, D) && is_plain(sn, TD_ACL_BF16, 2, rows, D),
         "cos or sin is not [B * S, D] of qkv's dtype");
    need(x, is_plain(s, TD_ACL_INT64, 1, rows, 0), "index is not INT64 [B * S]");
    need(x, is_plain(q, TD_ACL_BF16, 2, rows, nq * D), "qOut is not [B * S, Nq * D] of qkv's dtype");
    int64_t blocks = kc->view[0], block = kc->n_view == 4 ? kc->view[2] : 0;
    need_cache(x, kc, blocks, nk, block);
    need_cache(x, vc, blocks, nk, block);
    need(x, block % 32 == 0 && block > 0, "the blocks of a cache are no multiple of 32 tokens");
    need(x, blocks >= (sizes->values[1] + block - 1) / block * sizes->values[0], "a cache has fewer blocks than B * S fill");
    qkv_args a = {nq, nk, epsilon};
    return standin_end(x, run_qkv, &a, sizeof a, 512, ws, executor);
}
STANDIN_SECOND(aclnnQkvRmsNormRopeCache)
