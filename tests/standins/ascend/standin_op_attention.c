/*
 * Keys and values into pages, and attention over them. Scores, softmax and sums are f32.
 *
 * Lengths changed without an update: an attention has its lengths from its first function, a replay keeps them. So a slot
 * that was written and that lies behind the length of the sequence whose page it is in was written for an attention that
 * cannot see it.
 */
#include <stdlib.h>

#include "standin_op.h"

#define TF "hicann/ops-transformer "
#define NN "hicann/ops-nn "
#define FIA TF "attention/fused_infer_attention_score"

static void need(const td_acl_executor *x, bool ok, const char *rule) {
    if (!ok) standin_bad(x, "%s", rule);
}

/* ---- slots that were written -------------------------------------------------------------------- */

#define CACHES_MAX 512
#define PENDING_MAX 65536
#define LOOKS_MAX 3 /* attentions over the cache that may pass over a slot before it is forgotten */

typedef struct {
    int64_t slot;
    int     looks;
} written;

typedef struct {
    uint64_t    id; /* of the memory that it lies in; 0: unused */
    const void *at; /* device address */
    size_t      n, room;
    written    *slots;
} cache;

static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static cache           caches[CACHES_MAX];

static cache *cache_of(const void *at, bool make) {
    cache *unused = NULL;
    standin_lock();
    const standin_memory *m = standin_memory_of(at, 1);
    uint64_t              id = m ? m->id : 0;
    standin_unlock();
    for (size_t i = 0; i < CACHES_MAX; i++) {
        if (caches[i].at == at && caches[i].id == id) return &caches[i];
        if ((!caches[i].id || caches[i].at == at) && !unused) unused = &caches[i];
    }
    if (!make || !unused) return NULL;
    unused->at = at;
    unused->id = id;
    unused->n = 0;
    return unused;
}

void standin_note_written(const void *at, int64_t slot) {
    pthread_mutex_lock(&cache_lock);
    cache *c = cache_of(at, true);
    if (c && c->n < PENDING_MAX) {
        if (c->n == c->room) c->slots = realloc(c->slots, (c->room = c->room ? c->room * 2 : 256) * sizeof *c->slots);
        c->slots[c->n++] = (written){slot, 0};
    }
    pthread_mutex_unlock(&cache_lock);
}

typedef struct {
    const int32_t *table;
    int64_t        stride, n_seq, block;
    const int64_t *kv_len;
} paging;

/** Whether a slot is seen by a sequence; and which one owns its page, with a length that ends before it. */
static bool is_seen(const paging *p, int64_t slot, int64_t *owner) {
    int64_t page = slot / p->block, owners = 0;
    *owner = -1;
    for (int64_t b = 0; b < p->n_seq; b++)
        for (int64_t i = 0; i < p->stride && i <= p->kv_len[b] / p->block; i++) {
            if (p->table[b * p->stride + i] != page) continue;
            if (i * p->block + slot % p->block < p->kv_len[b]) return true;
            *owner = b;
            owners++;
        }
    if (owners != 1) *owner = -1; /* a page in several places is what unused entries hold */
    return false;
}

static void check_written(const char *op, const void *at, const paging *p) {
    pthread_mutex_lock(&cache_lock);
    cache *c = cache_of(at, false);
    size_t kept = 0;
    for (size_t i = 0; c && i < c->n; i++) {
        written w = c->slots[i];
        int64_t owner;
        if (is_seen(p, w.slot, &owner)) continue;
        if (owner >= 0)
            standin_refuse(
                FIA ": actualSeqLengthsKv is taken when an executor is made; runtime 15 aclmdlRICaptureTaskUpdateBegin",
                "%s sees %lld keys of sequence %lld, and slot %lld behind them was written: its lengths were changed "
                "without an update of its task group",
                op, (long long)p->kv_len[owner], (long long)owner, (long long)w.slot);
        if (++w.looks < LOOKS_MAX) c->slots[kept++] = w;
    }
    if (c) c->n = kept;
    pthread_mutex_unlock(&cache_lock);
}

/* ---- writing ----------------------------------------------------------------------------------- */

static bool is_index(const standin_tensor *t) {
    return t->dtype == TD_ACL_INT32 || t->dtype == TD_ACL_INT64;
}

typedef struct {
    bool heads_first; /* scatter mode "NHSD": [blocks, heads, block, size]; else [blocks, block, heads, size] */
} scatter_args;

static void scatter(const standin_call *c, int from, int to, bool heads_first) {
    const standin_tensor *x = c->t[from], *cache_tensor = c->t[to], *slots = c->t[2];
    int64_t               tokens = x->view[0], heads = x->view[1], size = x->view[2];
    int64_t               block = cache_tensor->view[heads_first ? 2 : 1];
    size_t                element = standin_dtype_bytes(x->dtype), row = (size_t)size * element;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t slot = standin_get_int(c->at[2], slots->dtype, t);
        if (slot < 0 || slot >= cache_tensor->view[0] * block)
            standin_refuse(TF "attention/scatter_pa_kv_cache", "%s: slot %lld of %lld", c->op, (long long)slot,
                           (long long)(cache_tensor->view[0] * block));
        for (int64_t u = 0; u < t; u++)
            if (standin_get_int(c->at[2], slots->dtype, u) == slot)
                standin_refuse(TF "attention/scatter_pa_kv_cache", "%s: slot %lld is there twice", c->op, (long long)slot);
        for (int64_t h = 0; h < heads; h++) {
            int64_t at =
                heads_first ? ((slot / block * heads + h) * block + slot % block) * size : (slot * heads + h) * size;
            memcpy((char *)c->at[to] + (size_t)at * element,
                   (const char *)c->at[from] + (size_t)(t * x->strides[0] + h * x->strides[1]) * element, row);
        }
        standin_note_written(cache_tensor->data + (size_t)cache_tensor->offset * element, slot);
    }
}

static void run_scatter(const standin_call *c) {
    const scatter_args *a = c->args;
    scatter(c, 0, 1, a->heads_first);
    scatter(c, 3, 4, a->heads_first);
}

static void check_scatter(const td_acl_executor *x, const standin_tensor *from, const standin_tensor *to,
                          const standin_tensor *slots, bool heads_first) {
    need(x, from->dtype == TD_ACL_BF16 || from->dtype == TD_ACL_FLOAT16 || from->dtype == TD_ACL_INT8,
         "a dtype is none of FLOAT16, BFLOAT16, INT8");
    need(x, to->dtype == from->dtype, "a cache has another dtype than what is written");
    need(x, to->format == TD_ACL_FORMAT_ND, "a cache's format is not ND, which cacheMode \"Norm\" wants");
    need(x, from->n_view == 3 && to->n_view == 4,
         "key or value has not three dimensions, or its cache not four (other cases are not here)");
    need(x, to->view[heads_first ? 1 : 2] == from->view[1] && to->view[3] == from->view[2],
         "a cache's heads or sizes are not those of what is written");
    need(x, slots->n_view == 1 && slots->view[0] == from->view[0], "slotMapping has not one slot a token");
    need(x, standin_count(from) > 0, "a tensor is empty");
    need(x, from->strides[2] == 1 && standin_contiguous(to) && standin_contiguous(slots), "a tensor is not contiguous");
    if (heads_first)
        need(x, (size_t)from->view[2] * standin_dtype_bytes(from->dtype) % 32 == 0,
             "NHSD wants heads of a multiple of 32 bytes");
}

static bool is_pair(const td_acl_int_array *a, int64_t value) {
    return a && a->n == 2 && a->values[0] == value && a->values[1] == value;
}

td_aclnn_status aclnnScatterPaKvCacheGetWorkspaceSize(const td_acl_tensor *key, td_acl_tensor *key_cache,
                                                      const td_acl_tensor *slots, const td_acl_tensor *value,
                                                      td_acl_tensor *value_cache, const td_acl_tensor *compress_lengths,
                                                      const td_acl_tensor *compress_offsets,
                                                      const td_acl_tensor *seq_lengths, char *cache_mode, char *scatter_mode,
                                                      const td_acl_int_array *strides, const td_acl_int_array *offsets,
                                                      uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnScatterPaKvCache", TF "attention/scatter_pa_kv_cache", key, key_cache, slots,
                                       value, value_cache, compress_lengths, compress_offsets, seq_lengths, cache_mode,
                                       scatter_mode, strides, offsets, STANDIN_END);
    const standin_tensor *k = standin_add(x, key, "key", STANDIN_IN),
                         *kc = standin_add(x, key_cache, "keyCacheRef", STANDIN_OUT | STANDIN_INDEXED),
                         *s = standin_add(x, slots, "slotMapping", STANDIN_IN),
                         *v = standin_add(x, value, "value", STANDIN_IN),
                         *vc = standin_add(x, value_cache, "valueCacheRef", STANDIN_OUT | STANDIN_INDEXED);
    scatter_args a = {.heads_first = scatter_mode && !strcmp(scatter_mode, "NHSD")};
    need(x, !cache_mode || !strcmp(cache_mode, "Norm"), "cacheMode is not \"Norm\", the only one here");
    need(x, !scatter_mode || !strcmp(scatter_mode, "None") || a.heads_first,
         "scatterMode is neither \"None\" nor \"NHSD\", the ones here");
    need(x, !compress_lengths && !compress_offsets && !seq_lengths, "an argument of compressed forms is given");
    need(x, is_pair(strides, 1) && is_pair(offsets, 0),
         "strides and offsets are not {1, 1} and {0, 0}, as op-plugin gives them");
    need(x, is_index(s), "slotMapping is neither INT32 nor INT64");
    check_scatter(x, k, kc, s, a.heads_first);
    check_scatter(x, v, vc, s, a.heads_first);
    need(x, v->dtype == k->dtype, "value has another dtype than key");
    need(x, v->view[0] == k->view[0] && v->view[1] == k->view[1], "value's first two dimensions are not key's");
    return standin_end(x, run_scatter, &a, sizeof a, 0, ws, executor);
}
STANDIN_SECOND(aclnnScatterPaKvCache)

static void run_scatter_nd(const standin_call *c) {
    const standin_tensor *x = c->t[0], *index = c->t[1];
    size_t                element = standin_dtype_bytes(x->dtype), row = (size_t)(standin_count(x) / x->view[0]) * element;
    for (int64_t i = 0, n = index->view[0]; i < n; i++) {
        int64_t at = standin_get_int(c->at[1], index->dtype, i);
        if (at < 0 || at >= x->view[0])
            standin_refuse(NN "index/scatter_nd_update", "%s: index %lld of %lld", c->op, (long long)at,
                           (long long)x->view[0]);
        memcpy((char *)c->at[0] + (size_t)at * row, (const char *)c->at[2] + (size_t)i * row, row);
        standin_note_written(x->data + (size_t)x->offset * element, at);
    }
}

td_aclnn_status aclnnScatterNdUpdateGetWorkspaceSize(td_acl_tensor *self, const td_acl_tensor *indices,
                                                     const td_acl_tensor *updates, uint64_t *ws,
                                                     td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnScatterNdUpdate", NN "index/scatter_nd_update", self, indices, updates, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "varRef", STANDIN_OUT | STANDIN_INDEXED),
                         *i = standin_add(x, indices, "indices", STANDIN_IN),
                         *u = standin_add(x, updates, "updates", STANDIN_IN);
    need(x, u->dtype == t->dtype, "updates has another dtype than varRef");
    need(x, is_index(i), "indices are neither INT32 nor INT64");
    need(x, i->n_view == 2 && i->view[1] == 1, "indices are not [n, 1], the only ones here");
    need(
        x,
        u->n_view == t->n_view && u->view[0] == i->view[0] && standin_count(u) * t->view[0] == standin_count(t) * u->view[0],
        "updates' shape is not that of n rows of varRef");
    need(x, standin_contiguous(t) && standin_contiguous(i) && standin_contiguous(u), "a tensor is not contiguous");
    return standin_end(x, run_scatter_nd, NULL, 0, 0, ws, executor);
}
STANDIN_SECOND(aclnnScatterNdUpdate)

/* ---- attention --------------------------------------------------------------------------------- */

typedef enum { TND, BSND, BNSD, LAYOUTS } layout_kind;
static const char *const LAYOUT_NAMES[LAYOUTS] = {"TND", "BSND", "BNSD"};

/** All numbers of a call; the lengths of n_seq sequences follow: first query row, queries, keys, first key row. */
typedef struct {
    int64_t     heads, kv_heads, d, rope_d, value_d, n_seq, block, table_stride;
    float       scale;
    layout_kind layout;
    bool        causal, paged;
    bool        heads_first; /* pages are [blocks, kv heads, block, d] */
    bool        tiled;       /* with heads_first: pages are [blocks, kv heads, d / 16, block, 16] */
    int64_t     lengths[];
} attention_args;

enum { Q, K, V, MASK, TABLE, Q_ROPE, K_ROPE, ATTENTION_OUT };

static const int64_t *lengths_of(const attention_args *a, int what) {
    return a->lengths + what * a->n_seq;
}

/** Element of query or output: sequence b, row s, head n. */
static int64_t query_at(const attention_args *a, const standin_tensor *t, int64_t b, int64_t s, int64_t n, int64_t d) {
    if (a->layout == TND) return ((lengths_of(a, 0)[b] + s) * a->heads + n) * d;
    if (a->layout == BSND) return ((b * t->view[1] + s) * a->heads + n) * d;
    return ((b * a->heads + n) * t->view[2] + s) * d;
}

/** Element 0 of a key, value or key rope: sequence b, position j, kv head h. */
static int64_t key_at(const attention_args *a, const int32_t *table, const standin_tensor *t, int64_t b, int64_t j,
                      int64_t h, int64_t d) {
    if (!a->paged) return ((lengths_of(a, 3)[b] + j) * a->kv_heads + h) * d;
    int64_t page = table[b * a->table_stride + j / a->block], blocks = t->view[0];
    if (page < 0 || page >= blocks)
        standin_refuse(FIA, "a block table names page %lld of %lld", (long long)page, (long long)blocks);
    if (a->tiled) return (page * a->kv_heads + h) * a->block * d + j % a->block * 16;
    if (a->heads_first) return ((page * a->kv_heads + h) * a->block + j % a->block) * d;
    return ((page * a->block + j % a->block) * a->kv_heads + h) * d;
}

/** Element i of it, from element 0 on. */
static int64_t inside(const attention_args *a, int64_t i) {
    return a->tiled ? i / 16 * a->block * 16 + i % 16 : i;
}

static void attend(const standin_call *c, const attention_args *a, int64_t b, int64_t s, int64_t n, float *score,
                   float *sum) {
    int64_t keys = lengths_of(a, 2)[b], queries = lengths_of(a, 1)[b], seen = a->causal ? keys - queries + s + 1 : keys;
    int64_t h = n / (a->heads / a->kv_heads), q = query_at(a, c->t[Q], b, s, n, a->d);
    int64_t q_rope = a->rope_d ? query_at(a, c->t[Q_ROPE], b, s, n, a->rope_d) : 0;
    const int32_t *table = c->at[TABLE];
    float          most = -INFINITY, total = 0;
    for (int64_t j = 0; j < seen; j++) {
        float   dot = 0;
        int64_t k = key_at(a, table, c->t[K], b, j, h, a->d);
        for (int64_t i = 0; i < a->d; i++)
            dot += standin_get(c->at[Q], c->t[Q]->dtype, q + i) * standin_get(c->at[K], c->t[K]->dtype, k + inside(a, i));
        if (a->rope_d) {
            int64_t kr = key_at(a, table, c->t[K_ROPE], b, j, h, a->rope_d);
            for (int64_t i = 0; i < a->rope_d; i++)
                dot += standin_get(c->at[Q_ROPE], c->t[Q_ROPE]->dtype, q_rope + i) *
                       standin_get(c->at[K_ROPE], c->t[K_ROPE]->dtype, kr + i);
        }
        score[j] = dot * a->scale;
        most = fmaxf(most, score[j]);
    }
    for (int64_t i = 0; i < a->value_d; i++) sum[i] = 0;
    for (int64_t j = 0; j < seen; j++) {
        float   p = expf(score[j] - most);
        int64_t v = key_at(a, table, c->t[V], b, j, h, a->value_d);
        total += p;
        for (int64_t i = 0; i < a->value_d; i++) sum[i] += p * standin_get(c->at[V], c->t[V]->dtype, v + inside(a, i));
    }
    int64_t o = query_at(a, c->t[ATTENTION_OUT], b, s, n, a->value_d);
    for (int64_t i = 0; i < a->value_d; i++)
        standin_set(c->at[ATTENTION_OUT], c->t[ATTENTION_OUT]->dtype, o + i, total > 0 ? sum[i] / total : 0);
}

static void check_mask(const standin_call *c) {
    const uint8_t *m = c->at[MASK];
    for (int64_t i = 0; i < 2048; i++)
        for (int64_t j = i < 2 ? 0 : i - 2; j < 2048 && j < i + 3;
             j++) /* round the diagonal; the whole would take longer than the attention */
            if (m[i * 2048 + j] != (j > i))
                standin_refuse(FIA, "%s: the mask of sparseMode 3 is not 1 above the diagonal and 0 elsewhere", c->op);
}

static void run_attention(const standin_call *c) {
    const attention_args *a = c->args;
    int64_t               longest = 1;
    if (c->t[MASK]) check_mask(c);
    for (int64_t b = 0; b < a->n_seq; b++) longest = lengths_of(a, 2)[b] > longest ? lengths_of(a, 2)[b] : longest;
    if (a->paged) {
        paging p = {c->at[TABLE], a->table_stride, a->n_seq, a->block, lengths_of(a, 2)};
        check_written(c->op, c->t[K]->data + (size_t)c->t[K]->offset * standin_dtype_bytes(c->t[K]->dtype), &p);
    }
    float *score = malloc((size_t)longest * sizeof *score), *sum = malloc((size_t)a->value_d * sizeof *sum);
    for (int64_t b = 0; b < a->n_seq; b++)
        for (int64_t s = 0; s < lengths_of(a, 1)[b]; s++)
            for (int64_t n = 0; n < a->heads; n++) attend(c, a, b, s, n, score, sum);
    free(score);
    free(sum);
}

/** What the three versions have in common, of what this stand-in computes. */
typedef struct {
    const td_acl_tensor      *query, *mask, *table, *query_rope, *key_rope, *out;
    const td_acl_tensor_list *key, *value;
    const td_acl_int_array   *query_lengths, *kv_lengths;
    int64_t                   heads, kv_heads, sparse_mode, inner_precise, block;
    double                    scale;
    const char               *layout;
    bool                      has_more; /* an argument that is not computed with here */
} attention_call;

static const td_acl_tensor *only_entry(const td_acl_executor *x, const td_acl_tensor_list *list, const char *name) {
    if (!list || !list->alive) standin_bad(x, "%s is a null pointer, or was destroyed", name);
    need(x, list->n == 1, "a list of keys or values has not one entry, the number that pages want");
    return list->tensors[0];
}

static bool is_one_of(int64_t v, const int64_t *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}

static int64_t length_at(const td_acl_int_array *lengths, int64_t b) {
    return lengths->values[lengths->n == 1 ? 0 : b];
}

/** First rows and lengths of every sequence, and the rules on them. @return the most queries of one. */
static int64_t set_lengths(const td_acl_executor *x, const attention_call *call, const standin_tensor *q,
                           attention_args *a) {
    const td_acl_int_array *ql = call->query_lengths, *kl = call->kv_lengths;
    int64_t *first = a->lengths, *queries = first + a->n_seq, *keys = queries + a->n_seq, *first_key = keys + a->n_seq,
            most = 0;
    need(x, kl && kl->alive, "pages and TND want actualSeqLengthsKv");
    need(x, kl->n == 1 || (int64_t)kl->n >= a->n_seq, "actualSeqLengthsKv has neither one entry nor one a sequence");
    for (int64_t b = 0; b < a->n_seq; b++) {
        int64_t end = a->layout == TND ? ql->values[b] : 0;
        first[b] = a->layout == TND ? (b ? ql->values[b - 1] : 0) : 0;
        queries[b] = a->layout == TND ? end - first[b] : ql ? length_at(ql, b) : q->view[a->layout == BSND ? 1 : 2];
        need(x, queries[b] >= 0, "actualSeqLengths of TND are sums, and decrease");
        if (a->layout != TND)
            need(x, queries[b] <= q->view[a->layout == BSND ? 1 : 2],
                 "a length of actualSeqLengths is more than query has rows");
        first_key[b] = a->paged ? 0 : b ? kl->values[b - 1] : 0;
        keys[b] = a->paged ? length_at(kl, b) : kl->values[b] - first_key[b];
        need(x, keys[b] >= 0, "a length of actualSeqLengthsKv is negative");
        if (a->causal) need(x, queries[b] <= keys[b], "sparseMode 3 with more queries than keys");
        most = queries[b] > most ? queries[b] : most;
    }
    if (a->layout == TND) need(x, ql->values[a->n_seq - 1] <= q->view[0], "actualSeqLengths reach beyond query's rows");
    return most;
}

/* Of bf16 without rope: the documents of CANN 9.1 have such pages for any layout of the query, those of 8.5 and before for
 * MLA and int8 only. d of 64 or 128: the published checks (op_host/checkers/common_checker.cpp). */
static void check_tiled_pages(const td_acl_executor *x, const attention_args *a, const standin_tensor *k) {
    td_acl_package_version version = {0};
    need(x, aclsysGetCANNVersion(TD_ACL_PKG_NAME_CANN, &version) == TD_ACL_SUCCESS, "CANN's version is not known");
    need(x, strcmp(version.version, "9.1") >= 0,
         "NZ pages of BFLOAT16 without rope: CANN before 9.1 has them for MLA alone");
    need(x, !a->rope_d, "NZ pages with rope are not here");
    need(x, a->d == 64 || a->d == 128, "NZ pages without rope want d of 64 or 128");
    need(x, k->view[1] == a->kv_heads && k->view[2] == a->d / 16 && k->view[3] == a->block && k->view[4] == 16,
         "an NZ cache is not (blocks, heads, d / 16, block, 16)");
}

static void check_pages(const td_acl_executor *x, attention_args *a, const standin_tensor *k, const standin_tensor *v,
                        const standin_tensor *table, int64_t most_queries) {
    /* The document says besides that a cache has at least as many blocks as all sequences' lengths make together. When
     * sequences share pages, that is more blocks than there are. The published tiling
     * (op_host/…_tiling_check_consistency.cpp) only compares the blocks of keys with those of values, and engines that share
     * pages call it so (vllm-ascend with its prefix cache). Here each page that is read is checked instead (key_at). */
    int64_t longest = 0;
    for (int64_t b = 0; b < a->n_seq; b++) {
        int64_t keys = lengths_of(a, 2)[b], n = (keys + a->block - 1) / a->block;
        longest = n > longest ? n : longest;
    }
    need(x, table->dtype == TD_ACL_INT32 && table->n_view == 2 && standin_contiguous(table),
         "blockTable is not INT32 of two dimensions");
    need(x, table->view[0] == a->n_seq, "blockTable's first dimension is not the number of sequences");
    need(x, table->view[1] >= longest, "blockTable is narrower than the pages of the longest sequence");
    a->table_stride = table->view[1];
    need(x, k->n_view >= 3 && k->n_view <= 5,
         "a cache has neither three dimensions (blocks, block, heads * d) nor four (blocks, heads, block, d) nor five (NZ: "
         "blocks, heads, d / 16, block, 16)");
    a->heads_first = k->n_view == 4;
    a->tiled = k->n_view == 5;
    if (a->tiled) {
        check_tiled_pages(x, a, k);
    } else {
        need(x, k->view[a->heads_first ? 2 : 1] == a->block, "a cache's blocks are not of blockSize");
        need(x, a->heads_first ? k->view[1] == a->kv_heads && k->view[3] == a->d : k->view[2] == a->kv_heads * a->d,
             "a cache's heads or d are not key's");
        need(x, !a->heads_first || a->layout != BSND, "query is BSND, and the cache is not (blocks, block, heads * d)");
        need(x, a->heads_first || a->kv_heads * a->d <= 65535,
             "heads * d of a cache (blocks, block, heads * d) is more than 65535");
    }
    need(x, standin_same_shape(k, v), "value's cache has another shape than key's");
    if (a->rope_d && a->d == 512) {
        need(x, a->block == 16 || a->block == 128, "MLA's blockSize is neither 16 nor 128");
    } else if (a->layout == TND) {
        need(x, a->block == 128, "blockSize of TND is not 128, the one that all versions have");
    } else if (most_queries > 1) {
        need(x, a->block % 128 == 0 && a->block >= 128 && a->block <= 512, "blockSize is not a multiple of 128 up to 512");
    } else {
        need(x, a->block % 16 == 0 && a->block > 0 && a->block <= 512, "blockSize is not a multiple of 16 up to 512");
    }
}

static void check_mla(const td_acl_executor *x, const attention_args *a, const standin_tensor *q, const standin_tensor *qr,
                      const standin_tensor *kr, const standin_tensor *k, int64_t most_queries, bool masked) {
    static const int64_t TND_HEADS[] = {32, 64, 128}, HEADS[] = {1, 2, 4, 8, 16, 32, 64, 128};
    need(x, qr && kr, "queryRope is given without keyRope, or keyRope without queryRope");
    need(x, qr->dtype == q->dtype && kr->dtype == k->dtype, "queryRope or keyRope has another dtype than query and key");
    need(x, a->rope_d == 64 && qr->n_view == q->n_view && standin_rows(qr) == standin_rows(q),
         "queryRope is not query's shape with 64 for d");
    need(x, a->d == 512 || a->d == 128, "query's d is neither 512 nor 128, with rope");
    need(x, standin_contiguous(qr) && standin_contiguous(kr), "queryRope or keyRope is not contiguous");
    if (a->d == 128) {
        need(x, a->layout == TND, "query's d is 128 with rope, and the layout is not TND (NTD_TND is not here)");
        need(x, !a->paged, "query's d is 128 with rope, and pages are not supported then");
        need(x, a->value_d == 128, "value's d is not 128");
        need(x, kr->n_view == 3 && kr->view[0] == k->view[0] && kr->view[1] == k->view[1],
             "keyRope is not key's shape with 64 for d");
        return;
    }
    need(x, a->paged, "query's d is 512 with rope, and there is no blockTable");
    need(x, a->kv_heads == 1, "query's d is 512 with rope, and key has more than one head");
    need(x, a->layout == TND ? is_one_of(a->heads, TND_HEADS, 3) : is_one_of(a->heads, HEADS, 8),
         a->layout == TND ? "MLA's heads are none of 32, 64, 128, in TND" : "MLA's heads are not a power of two up to 128");
    need(x, most_queries <= 16, "MLA decodes 1 to 16 queries a sequence");
    need(x, most_queries == 1 ? !masked : masked,
         most_queries == 1 ? "MLA with one query takes no mask, and sparseMode 0"
                           : "MLA with several queries wants sparseMode 3 with its mask");
    need(x, kr->n_view == k->n_view && kr->view[0] == k->view[0], "keyRope's cache is not of key's shape with 64 for d");
}

/* Of the parts' sums where several cores share a piece, which they do where pieces have uneven lengths (ops-transformer,
 * fia_tiling_nonquant_mla.cpp: the flash-decode part). */
#define SHARED_SUMS 65536

static bool are_even(const attention_args *a) {
    for (int64_t b = 1; b < a->n_seq; b++)
        if (lengths_of(a, 2)[b] != lengths_of(a, 2)[0]) return false;
    return true;
}

/* What it asks for; most: with any lengths. */
static td_aclnn_status attention(td_acl_executor *x, const attention_call *call, bool most_of_all, uint64_t *ws,
                                 td_acl_executor **executor) {
    const standin_tensor *q = standin_add(x, call->query, "query", STANDIN_IN);
    const standin_tensor *k = standin_add(x, only_entry(x, call->key, "key"), "key", STANDIN_INDEXED),
                         *v = standin_add(x, only_entry(x, call->value, "value"), "value", STANDIN_INDEXED);
    const standin_tensor *mask = standin_add(x, call->mask, "attenMask", STANDIN_OPTIONAL),
                         *table = standin_add(x, call->table, "blockTable", STANDIN_OPTIONAL);
    const standin_tensor *qr = standin_add(x, call->query_rope, "queryRope", STANDIN_OPTIONAL),
                         *kr = standin_add(x, call->key_rope, "keyRope", STANDIN_OPTIONAL | STANDIN_INDEXED);
    const standin_tensor *o = standin_add(x, call->out, "attentionOut", STANDIN_OUT);
    int                   layout = 0;
    while (layout < LAYOUTS && (!call->layout || strcmp(call->layout, LAYOUT_NAMES[layout]))) layout++;
    need(x, layout < LAYOUTS, "inputLayout is none of TND, BSND, BNSD, the ones here");
    need(x, !call->has_more,
         "an argument is given (bias, quantisation, padding, prefix, sums of softmax) that this stand-in does not compute "
         "with");
    need(x, layout != TND || (call->query_lengths && call->query_lengths->alive && call->query_lengths->n),
         "TND wants actualSeqLengths");
    need(x, q->n_view == (layout == TND ? 3 : 4), "query's dimensions are not those of inputLayout");
    int64_t         n_seq = layout == TND ? (int64_t)call->query_lengths->n : q->view[0];
    size_t          bytes = sizeof(attention_args) + 4 * (size_t)n_seq * sizeof(int64_t);
    attention_args *a = calloc(1, bytes);
    *a = (attention_args){.heads = call->heads,
                          .kv_heads = call->kv_heads ? call->kv_heads : call->heads,
                          .d = standin_last(q),
                          .rope_d = qr ? standin_last(qr) : 0,
                          .value_d = standin_last(o),
                          .n_seq = n_seq,
                          .block = call->block,
                          .scale = (float)call->scale,
                          .layout = (layout_kind)layout,
                          .causal = call->sparse_mode == 3,
                          .paged = table != NULL};
    need(x, q->dtype == TD_ACL_BF16 && k->dtype == TD_ACL_BF16 && v->dtype == TD_ACL_BF16 && o->dtype == TD_ACL_BF16,
         "query, key, value and attentionOut are not all BFLOAT16 (others are not here)");
    need(x, call->inner_precise == 0, "innerPrecise is not 0, the one that BFLOAT16 has");
    need(x, q->view[layout == BSND ? 2 : 1] == a->heads, "numHeads is not query's");
    need(x, a->heads > 0 && a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->heads <= 256,
         "numHeads is more than 256, or not a multiple of numKeyValueHeads");
    need(x, a->d <= 512 && a->d % 16 == 0, "query's d is more than 512, or not a multiple of 16");
    need(x, o->n_view == q->n_view && standin_rows(o) == standin_rows(q),
         "attentionOut is not of query's shape with value's d");
    need(x, call->sparse_mode == 0 || call->sparse_mode == 3, "sparseMode is neither 0 nor 3, the ones here");
    need(x, (call->sparse_mode == 3) == (mask != NULL), "sparseMode 0 with a mask, or 3 without one");
    need(x,
         !mask || ((mask->dtype == TD_ACL_BOOL || mask->dtype == TD_ACL_INT8 || mask->dtype == TD_ACL_UINT8) &&
                   mask->n_view == 2 && mask->view[0] == 2048 && mask->view[1] == 2048 && standin_contiguous(mask)),
         "the mask of sparseMode 3 is not BOOL, INT8 or UINT8 of [2048, 2048]");
    need(x, standin_contiguous(q) && standin_contiguous(k) && standin_contiguous(v) && standin_contiguous(o),
         "a tensor is not contiguous");
    need(x, a->paged || layout == TND, "without pages only TND is here");
    int64_t most = set_lengths(x, call, q, a);
    if (a->paged) {
        need(x, a->value_d == a->d, "with pages value's d is not key's");
        check_pages(x, a, k, v, table, most);
    } else {
        need(x,
             k->n_view == 3 && k->view[1] == a->kv_heads && k->view[2] == a->d && v->n_view == 3 &&
                 v->view[2] == a->value_d && v->view[0] == k->view[0],
             "key or value is not [tokens, heads, d]");
        need(x, call->kv_lengths->n == (uint64_t)n_seq && call->kv_lengths->values[n_seq - 1] <= k->view[0],
             "actualSeqLengthsKv are not sums of keys, one a sequence");
    }
    if (qr || kr) {
        check_mla(x, a, q, qr, kr, k, most, mask != NULL);
    } else if (layout == TND) {
        need(x, a->d == 128 && a->value_d == 128, "d is not 128, the one that all versions have in TND without rope");
    }
    uint64_t        shared = most_of_all || !are_even(a) ? SHARED_SUMS : 0;
    td_aclnn_status st = standin_end(x, run_attention, a, bytes, 4096 + 512 * (uint64_t)n_seq + shared, ws, executor);
    free(a);
    return st;
}

/* The document's list of products: V3 and V4 are for A2 and A3, V5 for 950. */
static void check_product(const td_acl_executor *x, bool is_950) {
    need(x, (strncmp(aclrtGetSocName(), "Ascend950", 9) == 0) == is_950,
         is_950 ? "this version is not supported on A2 and A3" : "this version is not supported on 950");
}

#define MORE_TENSORS                                                                                                      \
    (pse_shift || dequant_scale1 || quant_scale1 || dequant_scale2 || quant_scale2 || quant_offset2 || antiquant_scale || \
     antiquant_offset || query_padding || kv_padding || key_antiquant_scale || key_antiquant_offset ||                    \
     value_antiquant_scale || value_antiquant_offset || key_prefix || value_prefix || prefix_length ||                    \
     key_rope_antiquant_scale || with_lse || antiquant_mode || key_antiquant_mode || value_antiquant_mode)
#define CALL(more)                                                                                                      \
    {                                                                                                                   \
        .query = query, .mask = mask, .table = block_table, .query_rope = query_rope, .key_rope = key_rope, .out = out, \
        .key = key, .value = value, .query_lengths = query_lengths, .kv_lengths = kv_lengths, .heads = heads,           \
        .kv_heads = kv_heads, .sparse_mode = sparse_mode, .inner_precise = inner_precise, .block = block_tokens,        \
        .scale = scale, .layout = layout, .has_more = MORE_TENSORS || (more)                                            \
    }

#define PASS_TENSORS                                                                                                        \
    query, key, value, pse_shift, mask, query_lengths, kv_lengths, dequant_scale1, quant_scale1, dequant_scale2,            \
        quant_scale2, quant_offset2, antiquant_scale, antiquant_offset, block_table, query_padding, kv_padding,             \
        key_antiquant_scale, key_antiquant_offset, value_antiquant_scale, value_antiquant_offset, key_prefix, value_prefix, \
        prefix_length, query_rope, key_rope, key_rope_antiquant_scale
#define PASS_NUMBERS                                                                                                       \
    heads, scale, tokens_before, tokens_after, layout, kv_heads, sparse_mode, inner_precise, block_tokens, antiquant_mode, \
        with_lse, key_antiquant_mode, value_antiquant_mode

static td_aclnn_status begin_v3(TD_ACLNN_ATTENTION_V3_ARGS, bool most_of_all, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnFusedInferAttentionScoreV3", FIA, PASS_TENSORS, PASS_NUMBERS, out, lse, STANDIN_END);
    attention_call call = CALL(false);
    (void)lse, (void)tokens_before, (void)tokens_after;
    check_product(x, false);
    return attention(x, &call, most_of_all, ws, executor);
}

td_aclnn_status aclnnFusedInferAttentionScoreV3GetWorkspaceSize(TD_ACLNN_ATTENTION_V3_ARGS, uint64_t *ws,
                                                                td_acl_executor **executor) {
    return begin_v3(PASS_TENSORS, PASS_NUMBERS, out, lse, false, ws, executor);
}
td_aclnn_status aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize(TD_ACLNN_ATTENTION_V3_ARGS, uint64_t *ws,
                                                                   td_acl_executor **executor) {
    return begin_v3(PASS_TENSORS, PASS_NUMBERS, out, lse, true, ws, executor);
}
STANDIN_SECOND(aclnnFusedInferAttentionScoreV3)

static td_aclnn_status begin_v4(TD_ACLNN_ATTENTION_V4_ARGS, bool most_of_all, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnFusedInferAttentionScoreV4", FIA, PASS_TENSORS, query_dequant_scale, sink,
                                       PASS_NUMBERS, query_quant_mode, out, lse, STANDIN_END);
    attention_call   call = CALL(query_dequant_scale || sink || query_quant_mode);
    (void)lse, (void)tokens_before, (void)tokens_after;
    check_product(x, false);
    return attention(x, &call, most_of_all, ws, executor);
}

td_aclnn_status aclnnFusedInferAttentionScoreV4GetWorkspaceSize(TD_ACLNN_ATTENTION_V4_ARGS, uint64_t *ws,
                                                                td_acl_executor **executor) {
    return begin_v4(PASS_TENSORS, query_dequant_scale, sink, PASS_NUMBERS, query_quant_mode, out, lse, false, ws, executor);
}
td_aclnn_status aclnnFusedInferAttentionScoreV4GetMaxWorkspaceSize(TD_ACLNN_ATTENTION_V4_ARGS, uint64_t *ws,
                                                                   td_acl_executor **executor) {
    return begin_v4(PASS_TENSORS, query_dequant_scale, sink, PASS_NUMBERS, query_quant_mode, out, lse, true, ws, executor);
}
STANDIN_SECOND(aclnnFusedInferAttentionScoreV4)

td_aclnn_status aclnnFusedInferAttentionScoreV5GetWorkspaceSize(
    TD_ACLNN_ATTENTION_TENSOR_ARGS, const td_acl_tensor *query_dequant_scale, const td_acl_tensor *sink,
    const td_acl_int_array *query_start, const td_acl_int_array *kv_start, TD_ACLNN_ATTENTION_NUMBER_ARGS,
    int64_t query_quant_mode, int64_t pse_type, const td_acl_tensor *out, const td_acl_tensor *lse, uint64_t *ws,
    td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnFusedInferAttentionScoreV5", FIA, PASS_TENSORS, query_dequant_scale, sink, query_start, kv_start,
                      PASS_NUMBERS, query_quant_mode, pse_type, out, lse, STANDIN_END);
    attention_call call = CALL(query_dequant_scale || sink || query_quant_mode || query_start || kv_start || pse_type);
    (void)lse, (void)tokens_before, (void)tokens_after;
    check_product(x, true);
    return attention(x, &call, false, ws, executor);
}
STANDIN_SECOND(aclnnFusedInferAttentionScoreV5)
