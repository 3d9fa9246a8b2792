/*
 * DeepSeek-V4's attention and its residual streams against plain double precision, and against themselves: a token's output
 * must have the same bits whatever chunk and number of threads it was computed with.
 */
#include "npu/block_weights.h"
#include "npu_test_util.h"
#include "tests/td_test.h"

enum { TOKENS = 1500, PAGES = TOKENS / TD_KV_PAGE + 1, STATES = 3, LAST = 70 };

/* ---- the layer ------------------------------------------------------------------------------- */

/* Matrices and vectors in the order of td_sparse_desc; those that the layer has not are empty. */
typedef struct {
    float *kv, *gate, *ape, *norm;
    size_t dim, width;
} compressor;

typedef struct {
    td_sparse_desc d; /* sizes */
    float         *q_a, *q_norm, *q_b, *kv, *kv_norm, *o_a, *o_b, *sinks, *rope, *index_q, *index_weights;
    compressor     rows, index;
} layer;

static float *numbers(rnd *r, size_t n, size_t k) {
    float *f = rnd_array(r, n * k, 1.7f / sqrtf((float)k));
    for (size_t i = 0; i < n * k; i++) f[i] = td_bf16_to_f32(td_f32_to_bf16(f[i]));
    return f;
}

static float *gains(rnd *r, size_t n) {
    float *f = rnd_array(r, n, 0.3f);
    for (size_t i = 0; i < n; i++) f[i] += 1;
    return f;
}

static compressor make_compressor(rnd *r, const td_sparse_desc *d, size_t dim) {
    const size_t width = td_sparse_width(d, dim);
    return (compressor){.dim = dim,
                        .width = width,
                        .kv = numbers(r, width, d->hidden),
                        .gate = numbers(r, width, d->hidden),
                        .ape = rnd_array(r, d->ratio * width, 1),
                        .norm = gains(r, dim)};
}

static layer make_layer(rnd *r, uint32_t ratio) {
    layer           l = {.d = {.hidden = 48,
                               .heads = 8,
                               .dim = 40,
                               .rope_dim = 16,
                               .q_lora = 24,
                               .window = 128,
                               .groups = 2,
                               .o_lora = TD_SPARSE_O_LORA,
                               .ratio = ratio,
                               .eps = 1e-6f,
                               .state_slots = STATES,
                               .open_slots = 2}};
    td_sparse_desc *d = &l.d;
    if (ratio == 4) d->overlap = true, d->index_heads = 32, d->index_dim = 20, d->index_top = 200;
    const size_t q = (size_t)d->heads * d->dim, low = (size_t)d->groups * d->o_lora;
    l.q_a = numbers(r, d->q_lora, d->hidden);
    l.q_norm = gains(r, d->q_lora);
    l.q_b = numbers(r, q, d->q_lora);
    l.kv = numbers(r, d->dim, d->hidden);
    l.kv_norm = gains(r, d->dim);
    l.o_a = numbers(r, low, q / d->groups);
    l.o_b = numbers(r, d->hidden, low);
    l.sinks = rnd_array(r, d->heads, 2);
    l.rope = malloc((size_t)TOKENS * d->rope_dim * sizeof *l.rope);
    for (size_t p = 0; p < TOKENS; p++)
        for (size_t i = 0; i < d->rope_dim / 2; i++) {
            const double angle = (double)p * pow(10000, -2.0 * (double)i / d->rope_dim);
            l.rope[p * d->rope_dim + i] = (float)cos(angle);
            l.rope[p * d->rope_dim + d->rope_dim / 2 + i] = (float)sin(angle);
        }
    if (ratio) l.rows = make_compressor(r, d, d->dim);
    if (!d->index_heads) return l;
    l.index = make_compressor(r, d, d->index_dim);
    l.index_q = numbers(r, (size_t)d->index_heads * d->index_dim, d->q_lora);
    l.index_weights = numbers(r, d->index_heads, d->hidden);
    return l;
}

static void free_layer(layer *l) {
    float *all[] = {l->q_a,      l->q_norm,     l->q_b,       l->kv,         l->kv_norm,      l->o_a,      l->o_b,
                    l->sinks,    l->rope,       l->index_q,   l->rows.kv,    l->rows.gate,    l->rows.ape, l->rows.norm,
                    l->index.kv, l->index.gate, l->index.ape, l->index.norm, l->index_weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- double precision ------------------------------------------------------------------------ */

static void ref_turn(const layer *l, double *x, size_t dim, size_t pos, double sign) {
    const size_t half = l->d.rope_dim / 2;
    const float *table = l->rope + pos * l->d.rope_dim;
    double      *pair = x + dim - l->d.rope_dim;
    for (size_t i = 0; i < half; i++, pair += 2) {
        const double a = pair[0], b = pair[1], c = (double)table[i], s = sign * (double)table[half + i];
        pair[0] = a * c - b * s;
        pair[1] = b * c + a * s;
    }
}

/* x [TOKENS, hidden]; out [TOKENS / ratio, dim] */
static void ref_compress(const layer *l, const compressor *c, const double *x, double *out) {
    const size_t r = l->d.ratio, hidden = l->d.hidden, w = c->width, dim = c->dim;
    double      *kv = malloc(TOKENS * w * sizeof *kv), *gate = malloc(TOKENS * w * sizeof *gate);
    for (size_t t = 0; t < TOKENS; t++) {
        ref_linear(c->kv, NULL, x + t * hidden, w, hidden, kv + t * w);
        ref_linear(c->gate, NULL, x + t * hidden, w, hidden, gate + t * w);
        for (size_t i = 0; i < w; i++) gate[t * w + i] += (double)c->ape[t % r * w + i];
    }
    for (size_t row = 0; row < TOKENS / r; row++) {
        for (size_t i = 0; i < dim; i++) {
            double sum = 0, value = 0;
            for (size_t k = l->d.overlap && row ? 0 : r; k < 2 * r; k++) { /* those before r: of the run before */
                const size_t at = (row * r + k - r) * w + (l->d.overlap && k >= r ? dim : 0) + i;
                sum += exp(gate[at]);
                value += exp(gate[at]) * kv[at];
            }
            out[row * dim + i] = value / sum;
        }
        ref_norm(c->norm, 1e-6, out + row * dim, dim, out + row * dim);
        ref_turn(l, out + row * dim, dim, row * r, 1);
    }
    free(kv);
    free(gate);
}

/* The rows that are chosen among the visible. */
static void ref_choose(const layer *l, const double *x, const double *low, const double *keys, size_t pos, bool *chosen) {
    const td_sparse_desc *d = &l->d;
    const size_t          visible = (pos + 1) / d->ratio, dim = d->index_dim;
    double               *q = malloc(d->index_heads * dim * sizeof *q), *weight = malloc(d->index_heads * sizeof *weight),
           *score = calloc(visible + 1, sizeof *score);
    ref_linear(l->index_q, NULL, low, d->index_heads * dim, d->q_lora, q);
    ref_linear(l->index_weights, NULL, x, d->index_heads, d->hidden, weight);
    for (size_t h = 0; h < d->index_heads; h++) {
        ref_turn(l, q + h * dim, dim, pos, 1);
        for (size_t w = 0; w < visible; w++) {
            double dot = 0;
            for (size_t i = 0; i < dim; i++) dot += q[h * dim + i] * keys[w * dim + i];
            score[w] += dot > 0 ? weight[h] * dot : 0;
        }
    }
    for (size_t w = 0; w < visible; w++) {
        size_t before = 0;
        for (size_t v = 0; v < visible; v++) before += score[v] > score[w] || (score[v] == score[w] && v < w);
        chosen[w] = before < d->index_top;
    }
    free(q);
    free(weight);
    free(score);
}

/* The output of the rows from `from` on, out [TOKENS - from, hidden]. */
static void ref_sparse(const layer *l, const float *input, size_t from, double *out) {
    const td_sparse_desc *d = &l->d;
    const size_t hidden = d->hidden, dim = d->dim, q_rows = d->heads * dim, n_rows = d->ratio ? TOKENS / d->ratio : 0;
    double      *x = malloc(TOKENS * hidden * sizeof *x), *key = malloc((TOKENS + n_rows) * dim * sizeof *key),
           *index = malloc((n_rows + 1) * (d->index_dim + 1) * sizeof *index), *low = malloc(d->q_lora * sizeof *low),
           *q = malloc(q_rows * sizeof *q), *o = malloc(q_rows * sizeof *o),
           *projected = malloc((size_t)d->groups * d->o_lora * sizeof *projected);
    bool *met = malloc(TOKENS + n_rows);
    for (size_t i = 0; i < TOKENS * hidden; i++) x[i] = (double)input[i];
    for (size_t t = 0; t < TOKENS; t++) {
        ref_linear(l->kv, NULL, x + t * hidden, dim, hidden, key + t * dim);
        ref_norm(l->kv_norm, 1e-6, key + t * dim, dim, key + t * dim);
        ref_turn(l, key + t * dim, dim, t, 1);
    }
    if (d->ratio) ref_compress(l, &l->rows, x, key + TOKENS * dim);
    if (d->index_heads) ref_compress(l, &l->index, x, index);
    for (size_t t = from; t < TOKENS; t++) {
        ref_linear(l->q_a, NULL, x + t * hidden, d->q_lora, hidden, low);
        ref_norm(l->q_norm, 1e-6, low, d->q_lora, low);
        ref_linear(l->q_b, NULL, low, q_rows, d->q_lora, q);
        for (size_t k = 0; k < TOKENS; k++) met[k] = k <= t && k + d->window > t;
        for (size_t w = 0; w < n_rows; w++) met[TOKENS + w] = w < (t + 1) / d->ratio;
        if (d->index_heads) ref_choose(l, x + t * hidden, low, index, t, met + TOKENS);
        for (size_t h = 0; h < d->heads; h++) {
            double *of_head = q + h * dim, *to = o + h * dim, sum = exp((double)l->sinks[h]), squares = 0;
            for (size_t i = 0; i < dim; i++) squares += of_head[i] * of_head[i];
            for (size_t i = 0; i < dim; i++) of_head[i] /= sqrt(squares / (double)dim + 1e-6);
            ref_turn(l, of_head, dim, t, 1);
            memset(to, 0, dim * sizeof *to);
            for (size_t k = 0; k < TOKENS + n_rows; k++) {
                double score = 0;
                if (!met[k]) continue;
                for (size_t i = 0; i < dim; i++) score += of_head[i] * key[k * dim + i];
                const double weight = exp(score / sqrt((double)dim));
                sum += weight;
                for (size_t i = 0; i < dim; i++) to[i] += weight * key[k * dim + i];
            }
            for (size_t i = 0; i < dim; i++) to[i] /= sum;
            ref_turn(l, to, dim, t, -1);
        }
        const size_t of_group = q_rows / d->groups;
        for (size_t g = 0; g < d->groups; g++)
            ref_linear(l->o_a + g * d->o_lora * of_group, NULL, o + g * of_group, d->o_lora, of_group,
                       projected + g * d->o_lora);
        ref_linear(l->o_b, NULL, projected, hidden, (size_t)d->groups * d->o_lora, out + (t - from) * hidden);
    }
    void *all[] = {x, key, index, low, q, o, projected, met};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- the block ------------------------------------------------------------------------------- */

typedef struct {
    rig           g;
    td_block_desc desc;
    void         *buffers[7];
    td_npu_block *block;
} model;

static td_npu_weight *weight(model *m, td_weight_format format, const float *f, size_t n, size_t k) {
    return make_weight(&m->g, format, f, n, k);
}

static td_compressor compressor_weights(model *m, const layer *l, const compressor *c) {
    return (td_compressor){.kv = weight(m, TD_WEIGHT_BF16, c->kv, c->width, l->d.hidden),
                           .gate = weight(m, TD_WEIGHT_BF16, c->gate, c->width, l->d.hidden),
                           .ape = weight(m, TD_WEIGHT_F32, c->ape, l->d.ratio, c->width),
                           .norm = weight(m, TD_WEIGHT_F32, c->norm, 0, c->dim)};
}

/* Caches and slots hold NaNs at first: what is read without having been written shows. */
static void *spoiled(model *m, size_t i, size_t bytes) {
    m->buffers[i] = malloc(bytes + 1);
    assert_non_null(m->buffers[i]);
    memset(m->buffers[i], 0xff, bytes);
    return m->buffers[i];
}

static void open_model(model *m, const layer *l, uint32_t threads) {
    *m = (model){.g = rig_open(threads, TD_DT_F32, false)};
    td_sparse_desc d = l->d;
    const size_t   q = (size_t)d.heads * d.dim, low = (size_t)d.groups * d.o_lora, rows = d.ratio ? TD_KV_PAGE / d.ratio : 0;
    d.q_a = weight(m, TD_WEIGHT_BF16, l->q_a, d.q_lora, d.hidden);
    d.q_norm = weight(m, TD_WEIGHT_F32, l->q_norm, 0, d.q_lora);
    d.q_b = weight(m, TD_WEIGHT_BF16, l->q_b, q, d.q_lora);
    d.kv = weight(m, TD_WEIGHT_BF16, l->kv, d.dim, d.hidden);
    d.kv_norm = weight(m, TD_WEIGHT_F32, l->kv_norm, 0, d.dim);
    d.o_a = weight(m, TD_WEIGHT_BF16, l->o_a, low, q / d.groups);
    d.o_b = weight(m, TD_WEIGHT_BF16, l->o_b, d.hidden, low);
    d.sinks = weight(m, TD_WEIGHT_F32, l->sinks, 0, d.heads);
    d.rope = weight(m, TD_WEIGHT_F32, l->rope, TOKENS, d.rope_dim);
    if (d.ratio) d.rows = compressor_weights(m, l, &l->rows);
    if (d.index_heads) {
        d.index = compressor_weights(m, l, &l->index);
        d.index_q = weight(m, TD_WEIGHT_BF16, l->index_q, (size_t)d.index_heads * d.index_dim, d.q_lora);
        d.index_weights = weight(m, TD_WEIGHT_BF16, l->index_weights, d.index_heads, d.hidden);
    }
    d.kv_rows = spoiled(m, 0, sizeof(float) * PAGES * TD_KV_PAGE * d.dim);
    d.compressed = spoiled(m, 1, sizeof(float) * PAGES * rows * d.dim);
    d.keys = spoiled(m, 2, sizeof(float) * PAGES * rows * d.index_dim);
    d.state = spoiled(m, 3, sizeof(float) * STATES * td_sparse_state_values(&d));
    d.open = spoiled(m, 4, sizeof(float) * 2 * td_sparse_open_values(&d));
    d.in = m->buffers[5] = calloc(TOKENS * d.hidden, sizeof(float));
    d.out = m->buffers[6] = calloc(TOKENS * d.hidden, sizeof(float));
    m->desc = (td_block_desc){.kind = TD_BLOCK_SPARSE, .max_tok = TOKENS, .max_kv = TOKENS, .sparse = d};
    m->block = make_block(&m->g, &m->desc);
}

static void close_model(model *m) {
    rig_close(&m->g);
    for (size_t i = 0; i < sizeof m->buffers / sizeof *m->buffers; i++) free(m->buffers[i]);
}

/* Rows pos .. pos + n - 1, whose pages lie backwards. */
static void run_part(model *m, const float *x, uint32_t pos, uint32_t n, uint32_t in, uint32_t to) {
    uint32_t table[PAGES], *rows = malloc(2 * TOKENS * sizeof *rows), *slot = rows + TOKENS, start[2] = {0, n},
                           kv_len = pos + n, open = 1;
    uint8_t        absorbed = 0;
    td_step_counts counts = {.n_tok = n, .n_seq = 1};
    const size_t   hidden = m->desc.sparse.hidden;
    for (uint32_t p = 0; p < PAGES; p++) table[p] = PAGES - 1 - p;
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = pos + i;
        slot[i] = table[(pos + i) / TD_KV_PAGE] * TD_KV_PAGE + (pos + i) % TD_KV_PAGE;
    }
    memcpy(m->buffers[5], x + pos * hidden, n * hidden * sizeof *x);
    td_step step = td_step_unified(&(td_step_arrays){.counts = &counts,
                                                     .pos = rows,
                                                     .slot = slot,
                                                     .seq_start = start,
                                                     .kv_len = &kv_len,
                                                     .absorbed = &absorbed,
                                                     .block_table = table,
                                                     .state_in = &in,
                                                     .state_out = &to,
                                                     .state_open = &open},
                                   PAGES);
    run_block(&m->g, m->block, &step);
    free(rows);
}

typedef struct {
    uint32_t threads, chunk;
    bool     in_place; /* the state stays in one slot */
    bool     drafts;   /* some rows are wrong and come again */
} way;

/* Wrong rows behind those up to end, as many as drafts may be: up to the end of a block. */
static uint32_t draft_rows(rnd *r, uint32_t pos, uint32_t end) {
    const uint32_t left = TD_STATE_BLOCK - end % TD_STATE_BLOCK;
    const uint32_t most = pos / TD_STATE_BLOCK != end / TD_STATE_BLOCK ? left - 1 : left;
    const uint32_t n = most ? (uint32_t)rnd_range(r, 1, most) : 0;
    return n < TOKENS - end ? n : TOKENS - end;
}

/* All rows in steps of at most so many. @return [TOKENS, hidden], the caller's */
static float *run_all(rnd *r, const layer *l, const float *x, const way *w) {
    model        m;
    const size_t hidden = l->d.hidden;
    float       *out = malloc(TOKENS * hidden * sizeof *out), *wrong = rnd_array(r, TOKENS * hidden, 1.7f);
    uint32_t     state = TD_STATE_NONE;
    open_model(&m, l, w->threads);
    for (uint32_t pos = 0, n; pos < TOKENS; pos += n) {
        n = w->chunk >= TOKENS ? TOKENS : (uint32_t)rnd_range(r, 1, w->chunk);
        if (n > TOKENS - pos) n = TOKENS - pos;
        const uint32_t to = state == TD_STATE_NONE ? 0 : w->in_place ? state : (state + 1) % STATES;
        if (w->drafts && rnd_u64(r) & 1) {
            memcpy(wrong + pos * hidden, x + pos * hidden, n * hidden * sizeof *x);
            run_part(&m, wrong, pos, n + draft_rows(r, pos, pos + n), state, to);
        } else {
            run_part(&m, x, pos, n, state, to);
        }
        if (pos % TD_STATE_BLOCK + n >= TD_STATE_BLOCK) state = to;
        memcpy(out + pos * hidden, m.buffers[6], n * hidden * sizeof *out);
    }
    close_model(&m);
    free(wrong);
    return out;
}

static void check_ratio(uint32_t ratio) {
    rnd          r = rnd_open("sparse attention");
    layer        l = make_layer(&r, ratio);
    const size_t hidden = l.d.hidden, bytes = TOKENS * hidden * sizeof(float);
    float       *x = rnd_array(&r, TOKENS * hidden, 1.7f), *whole = run_all(&r, &l, x, &(way){2, TOKENS, true, false});
    double      *want = malloc(LAST * hidden * sizeof *want), worst = 0, largest = 0;
    ref_sparse(&l, x, TOKENS - LAST, want);
    for (size_t i = 0; i < LAST * hidden; i++) {
        worst = fmax(worst, fabs(want[i] - (double)whole[(TOKENS - LAST) * hidden + i]));
        largest = fmax(largest, fabs(want[i]));
    }
    print_message("  ratio %u: largest difference %.1e of %.2f\n", ratio, worst, largest);
    assert_true(worst <= 2e-5 * largest);
    static const way WAYS[] = {{1, 700, false, false}, {3, 90, true, false}, {8, 7, false, false},
                               {2, 1, true, false},    {2, 3, false, true},  {3, 90, false, true}};
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        float *again = run_all(&r, &l, x, &WAYS[i]);
        assert_memory_equal(again, whole, bytes);
        free(again);
    }
    free(x);
    free(whole);
    free(want);
    free_layer(&l);
}

TEST(window_alone) {
    check_ratio(0);
}

TEST(chosen_rows_of_four_tokens) {
    check_ratio(4);
}

TEST(rows_of_a_page) {
    check_ratio(TD_KV_PAGE);
}

/* ---- streams --------------------------------------------------------------------------------- */

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* What is mixed, and what the streams take, of some rows. */
TEST(streams_are_mixed) {
    enum { S = 4, H = 37, ROWS = 9, WIDTH = S * H, OUT = 2 * S + S * S };
    rnd    r = rnd_open("streams");
    rig    g = rig_open(3, TD_DT_F32, false);
    float *fn = numbers(&r, OUT, WIDTH), *base = rnd_array(&r, OUT, 1), scale[3] = {0.7f, 1.2f, 0.9f}, *gamma = gains(&r, H),
          *x = rnd_array(&r, ROWS * WIDTH, 2), *add = rnd_array(&r, ROWS * H, 1), out[ROWS * H], post[ROWS * (S + S * S)];
    float         *before = malloc(ROWS * WIDTH * sizeof *before);
    td_npu_weight *w[] = {make_weight(&g, TD_WEIGHT_F32, fn, OUT, WIDTH), make_weight(&g, TD_WEIGHT_F32, base, 0, OUT),
                          make_weight(&g, TD_WEIGHT_F32, scale, 0, 3), make_weight(&g, TD_WEIGHT_F32, gamma, 0, H)};
    td_npu_block  *mix = make_block(&g, &(td_block_desc){.kind = TD_BLOCK_MIX,
                                                         .max_tok = ROWS,
                                                         .mix = {.hidden = H,
                                                                 .streams = S,
                                                                 .rounds = 20,
                                                                 .eps = 1e-6f,
                                                                 .mix_eps = 1e-6f,
                                                                 .fn = w[0],
                                                                 .base = w[1],
                                                                 .scale = w[2],
                                                                 .gamma = w[3],
                                                                 .x = x,
                                                                 .out = out,
                                                                 .post = post}});
    td_npu_block  *spread =
        make_block(&g, &(td_block_desc){.kind = TD_BLOCK_SPREAD,
                                        .max_tok = ROWS,
                                        .spread = {.hidden = H, .streams = S, .x = x, .post = post, .add = {add}}});
    memcpy(before, x, ROWS * WIDTH * sizeof *before);
    run_rows(&g, mix, ROWS);
    run_rows(&g, spread, ROWS);
    for (size_t t = 0; t < ROWS; t++) {
        double f[OUT], in[WIDTH], squares = 0, sum[H] = {0}, *comb = f + 2 * S;
        for (size_t i = 0; i < WIDTH; i++) in[i] = (double)before[t * WIDTH + i], squares += in[i] * in[i];
        ref_linear(fn, NULL, in, OUT, WIDTH, f);
        for (size_t i = 0; i < OUT; i++)
            f[i] = f[i] / sqrt(squares / WIDTH + 1e-6) * (double)scale[i < S ? 0 : i < 2 * S ? 1 : 2] + (double)base[i];
        for (size_t i = 0; i < S; i++) {
            double row = 0;
            for (size_t k = 0; k < H; k++) sum[k] += (sigmoid(f[i]) + 1e-6) * in[i * H + k];
            for (size_t k = 0; k < S; k++) row += exp(comb[i * S + k]);
            for (size_t k = 0; k < S; k++) comb[i * S + k] = exp(comb[i * S + k]) / row + 1e-6;
        }
        for (int round = 0; round < 39; round++) { /* columns first and last */
            for (size_t i = 0; i < S; i++) {
                const size_t first = round % 2 ? i * S : i, step = round % 2 ? 1 : S;
                double       all = 1e-6;
                for (size_t k = 0; k < S; k++) all += comb[first + k * step];
                for (size_t k = 0; k < S; k++) comb[first + k * step] /= all;
            }
        }
        ref_norm(gamma, 1e-6, sum, H, sum);
        for (size_t k = 0; k < H; k++) assert_true(fabs(sum[k] - (double)out[t * H + k]) < 2e-5);
        for (size_t j = 0; j < S; j++)
            for (size_t k = 0; k < H; k++) {
                double want = 2 * sigmoid(f[S + j]) * (double)add[t * H + k];
                for (size_t i = 0; i < S; i++) want += comb[i * S + j] * in[i * H + k];
                assert_true(fabs(want - (double)x[t * WIDTH + j * H + k]) < 2e-5);
            }
    }
    rig_close(&g);
    float *all[] = {fn, base, gamma, x, add, before};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* The streams' mean, which nothing is done to; and what a mean is not. */
TEST(the_last_streams_are_averaged) {
    enum { S = 4, H = 37, ROWS = 9 };
    rnd           r = rnd_open("mean of streams");
    rig           g = rig_open(3, TD_DT_F32, false);
    float        *x = rnd_array(&r, ROWS * S * H, 2), out[ROWS * H];
    td_mix_desc   m = {.form = TD_MIX_MEAN, .hidden = H, .streams = S, .x = x, .out = out};
    td_error      err = {0};
    td_npu_block *none;
    run_rows(&g, make_block(&g, &(td_block_desc){.kind = TD_BLOCK_MIX, .max_tok = ROWS, .mix = m}), ROWS);
    for (size_t t = 0; t < ROWS; t++)
        for (size_t i = 0; i < H; i++) {
            double sum = 0;
            for (size_t k = 0; k < S; k++) sum += (double)x[(t * S + k) * H + i];
            assert_true(fabs(sum / S - (double)out[t * H + i]) < 1e-6);
        }
    m.gamma = make_weight(&g, TD_WEIGHT_F32, x, 0, H);
    assert_int_equal(
        g.npu->ops->block_create(g.npu, &(td_block_desc){.kind = TD_BLOCK_MIX, .max_tok = ROWS, .mix = m}, &none, &err),
        TD_EINVAL);
    assert_non_null(strstr(err.text, "a mean of 4 streams is written as it is"));
    rig_close(&g);
    free(x);
}

/* A norm and a linear of each stream are those of so many rows, and a sum that all streams take is added to each. */
TEST(each_stream_is_a_row) {
    enum { S = 4, H = 37, ROWS = 9, WIDTH = S * H, ALL = S * ROWS };
    rnd    r = rnd_open("streams as rows");
    rig    g = rig_open(3, TD_DT_F32, false);
    float *w = numbers(&r, H, H), *gamma = gains(&r, H), *x = rnd_array(&r, ROWS * WIDTH, 2),
          *add = rnd_array(&r, ROWS * H, 1), out[2][ROWS * WIDTH], normed[2][ROWS * WIDTH];
    const td_npu_weight *matrix = make_weight(&g, TD_WEIGHT_W8A8, w, H, H),
                        *gain = make_weight(&g, TD_WEIGHT_F32, gamma, 0, H);
    for (uint32_t one = 0; one < 2; one++) {
        const uint32_t streams = one ? 0 : S, rows = one ? ALL : ROWS;
        td_npu_block  *norm = make_block(
             &g, &(td_block_desc){
                     .kind = TD_BLOCK_NORM,
                     .max_tok = rows,
                     .norm = {.hidden = H, .streams = streams, .eps = 1e-6f, .gamma = gain, .x = x, .out = normed[one]}});
        td_npu_block *linear = make_block(
            &g, &(td_block_desc){
                    .kind = TD_BLOCK_LINEAR,
                    .max_tok = rows,
                    .linear = {.n = H, .k = H, .streams = streams, .w = matrix, .in = normed[one], .out = out[one]}});
        run_rows(&g, norm, rows);
        run_rows(&g, linear, rows);
    }
    assert_memory_equal(normed[0], normed[1], sizeof *normed);
    assert_memory_equal(out[0], out[1], sizeof *out);
    td_npu_block *spread = make_block(
        &g, &(td_block_desc){
                .kind = TD_BLOCK_SPREAD, .max_tok = ROWS, .spread = {.hidden = H, .streams = S, .x = out[0], .add = {add}}});
    run_rows(&g, spread, ROWS);
    for (size_t i = 0; i < ROWS * WIDTH; i++) {
        const float want = out[1][i] + add[i / WIDTH * H + i % H];
        assert_memory_equal(&out[0][i], &want, sizeof want);
    }
    rig_close(&g);
    float *all[] = {w, gamma, x, add};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}
