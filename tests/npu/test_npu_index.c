/*
 * An indexer's choice (npu/host/host_index.h) against plain double precision. Scores are within what their arithmetic rounds.
 * The chosen rows are those of the best scores, to the last tie, and the same whatever rows and threads they are computed
 * with.
 */
#include "npu/host/host_index.h"
#include "npu_test_util.h"
#include "tests/td_test.h"

enum { SEQS = 2, TOKENS = 1300, LAST = 90 }; /* of each sequence the last rows are in the step */

typedef struct {
    td_dtype act;
    size_t   heads, dim, top, ratio;
    double   tolerance; /* of a score, in |w_h| |q_h| |key| summed over heads */
} indexer;

/* What a test knows of the sequences: q [SEQS * LAST][heads * dim], keys [SEQS][rows of the cache][dim]. */
typedef struct {
    indexer   x;
    size_t    keys_of_one;
    float    *q, *weights, *keys;
    uint32_t *table; /* [SEQS][pages] */
    size_t    stride;
} talk;

static talk make_talk(rnd *r, const indexer *x) {
    const size_t n = TOKENS / x->ratio, stride = TOKENS / TD_KV_PAGE + 1;
    talk         t = {.x = *x,
                      .keys_of_one = n,
                      .stride = stride,
                      .q = rnd_array(r, SEQS * LAST * x->heads * x->dim, 1),
                      .weights = rnd_array(r, SEQS * LAST * x->heads, 1),
                      .keys = rnd_array(r, SEQS * n * x->dim, 1),
                      .table = malloc(SEQS * stride * sizeof(uint32_t))};
    for (size_t k = 0; k < SEQS * n; k++) t.keys[k * x->dim + 1] *= 20; /* one value stands out */
    memset(t.weights, 0, x->heads * sizeof(float));                     /* row 0: all scores are equal */
    t.weights[x->heads] = NAN;                                          /* row 1: and none of them a number */
    for (size_t i = 0; i < SEQS * stride; i++) t.table[i] = (uint32_t)((i * 7 + 3) % (SEQS * stride));
    return t;
}

static void free_talk(talk *t) {
    free(t->q), free(t->weights), free(t->keys), free(t->table);
}

/* Rows of both sequences, chunk by chunk. chosen [SEQS * LAST][top]; scores [SEQS * LAST][ld] */
static void run(const talk *t, rnd *r, uint32_t threads, size_t chunk_max, uint32_t *chosen, float *scores) {
    AT_END(rig_close) rig g = rig_open(threads, t->x.act, false);
    td_host_npu          *d = (td_host_npu *)g.npu;
    const td_index_path  *path = td_index_path_of(d);
    const size_t          heads = t->x.heads, dim = t->x.dim, rows = SEQS * LAST, per_page = TD_KV_PAGE / t->x.ratio,
                 ld = td_host_index_ld(TOKENS, t->x.ratio);
    uint32_t pos[SEQS * LAST], seq_of[SEQS * LAST];
    /* exact sizes: what is read or written behind them is found */
    fenced cache = fence(SEQS * t->stride * g.npu->ops->kv_page_bytes(g.npu, TD_KV_INDEX, dim) / t->x.ratio),
           workers = fence(threads * path->bytes(d, heads, dim)), queries = fence(rows * path->query_bytes(d, heads, dim)),
           q = fence(rows * heads * dim * sizeof(float));
    memcpy(q.p, t->q, rows * heads * dim * sizeof(float));
    for (size_t k = 0; k < SEQS * t->keys_of_one; k++) {
        const size_t seq = k / t->keys_of_one, at = k % t->keys_of_one;
        FREED float *key = malloc(dim * sizeof *key);
        memcpy(key, t->keys + k * dim, dim * sizeof *key);
        td_host_index_store(d, cache.p, t->x.ratio, t->table[seq * t->stride + at / per_page], at % per_page, key, dim);
    }
    for (uint32_t i = 0; i < rows; i++) pos[i] = TOKENS - LAST + i % LAST;
    const uint32_t start[] = {0, LAST, 2 * LAST};
    td_host_step   s = {.n_seq = SEQS,
                        .n_tok = (uint32_t)rows,
                        .block_stride = (uint32_t)t->stride,
                        .a = {.pos = pos, .seq_start = start, .block_table = t->table}};
    for (size_t row = 0, n; row < rows; row += n) {
        n = rnd_range(r, 1, chunk_max);
        n = n < rows - row ? n : rows - row;
        td_host_find_sequences(&s, row, n, seq_of);
        td_host_index_choose(&(td_host_index){.d = d,
                                              .path = path,
                                              .s = &s,
                                              .row0 = row,
                                              .rows = n,
                                              .heads = heads,
                                              .dim = dim,
                                              .top = t->x.top,
                                              .ratio = t->x.ratio,
                                              .keys = cache.p,
                                              .seq_of = seq_of,
                                              .q = (float *)q.p + row * heads * dim,
                                              .weights = t->weights + row * heads,
                                              .queries = queries.p,
                                              .scores = scores + row * ld,
                                              .ld_scores = ld,
                                              .chosen = chosen + row * t->x.top,
                                              .workers = workers.p});
    }
    unfence(&cache), unfence(&workers), unfence(&queries), unfence(&q);
}

static void scores_agree(const talk *t, size_t row, const float *scores, size_t n) {
    const size_t heads = t->x.heads, dim = t->x.dim;
    const float *keys = t->keys + row / LAST * t->keys_of_one * dim, *weights = t->weights + row * heads;
    for (size_t k = 0; k < n; k++) {
        double want = 0, size = 0, key_square = 0;
        for (size_t c = 0; c < dim; c++) key_square += (double)keys[k * dim + c] * (double)keys[k * dim + c];
        for (size_t h = 0; h < heads; h++) {
            const float *q = t->q + (row * heads + h) * dim;
            double       dot = 0, square = 0;
            for (size_t c = 0; c < dim; c++) {
                dot += (double)q[c] * (double)keys[k * dim + c];
                square += (double)q[c] * (double)q[c];
            }
            want += (double)weights[h] * (dot > 0 ? dot : 0);
            size += fabs((double)weights[h]) * sqrt(square * key_square);
        }
        const double unit = 1 / sqrt((double)(heads * dim));
        if (isnan(want) ? !isnan(scores[k]) : fabs((double)scores[k] - want * unit) > t->x.tolerance * size * unit)
            fail_msg("row %zu, key %zu: score %g, not %g; %g of what it may be off", row, k, (double)scores[k], want * unit,
                     fabs((double)scores[k] - want * unit) / (t->x.tolerance * size * unit));
    }
}

/* How many of n scores are chosen before score k. */
static size_t chosen_before(const float *scores, size_t n, size_t k) {
    size_t before = 0;
    for (size_t i = 0; i < n; i++)
        before += isnan(scores[k]) ? !isnan(scores[i]) || i < k : scores[i] > scores[k] || (scores[i] == scores[k] && i < k);
    return before;
}

static void choice_is_the_best(const uint32_t *chosen, size_t top, const float *scores, size_t n) {
    size_t found = 0;
    for (size_t k = 0; k < n; k++)
        if (chosen_before(scores, n, k) < top) {
            assert_true(found < top);
            assert_int_equal(chosen[found++], k);
        }
    assert_int_equal(found, top);
}

/* 8 bits: of a rotated row of 128 values the largest is some three times the root of their mean square. So an error is 0.7 %
 * of that root, and a product's 0.1 % of |q| |key|; the sum over 64 heads makes it an eighth, and the worst of 200,000 is five
 * times as large. Without the rotation it would be four times that. An odd number of values is not rotated. */
static const indexer INDEXERS[] = {{TD_DT_F32, 3, 40, 700, 1, 1e-6},    {TD_DT_F32, 64, 128, 100, 4, 1e-6},
                                   {TD_DT_BF16, 64, 128, 700, 1, 8e-4}, {TD_DT_BF16, 64, 128, 100, 4, 8e-4},
                                   {TD_DT_BF16, 33, 64, 1, 1, 2e-3},    {TD_DT_BF16, 1, 24, 1200, 1, 2e-2},
                                   {TD_DT_BF16, 5, 37, 299, 4, 2e-2}};

TEST(the_best_are_chosen) {
    rnd r = rnd_open("an indexer's choice");
    for (size_t i = 0; i < sizeof INDEXERS / sizeof *INDEXERS; i++) {
        AT_END(free_talk) talk t = make_talk(&r, &INDEXERS[i]);
        const size_t           rows = SEQS * LAST, ld = td_host_index_ld(TOKENS, t.x.ratio), top = t.x.top;
        FREED uint32_t        *chosen = malloc(rows * top * sizeof *chosen), *other = malloc(rows * top * sizeof *other);
        FREED float           *scores = malloc(rows * ld * sizeof *scores), *again = malloc(rows * ld * sizeof *again);
        run(&t, &r, 1, rows, chosen, scores);
        for (size_t row = 0; row < rows; row += row < 4 ? 1 : 13) {
            const size_t n = (TOKENS - LAST + row % LAST + 1) / t.x.ratio;
            assert_true(n > top);
            scores_agree(&t, row, scores + row * ld, n);
            choice_is_the_best(chosen + row * top, top, scores + row * ld, n);
        }
        for (size_t k = 0; k < 2 * top; k++) assert_int_equal(chosen[k], k % top);
        run(&t, &r, 3, 40, other, again);
        assert_memory_equal(chosen, other, rows * top * sizeof *chosen);
    }
}
