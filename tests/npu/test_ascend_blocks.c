/*
 * The blocks of the Ascend backend on the stand-in, each compared with the same block of the host device over the same
 * weights and rows. They run in buckets that are not full, over the rows of a half, at once, and replayed from a capture.
 *
 * Tolerances are of the root mean square of the difference, relative to that of the host's result. A value that is rounded
 * to bf16 is off by up to 2^-9 of itself, 2^-9 / sqrt(3) = 0.0011 as a root mean square. Each block rounds a few times more
 * than the host, which keeps f32 inside. And an int8 code may be another one where a bf16 value was rounded the other way,
 * which costs up to 1/127 of a row's largest value. ROUNDED is for blocks without products of such codes, CODED for those
 * with them. Experts round the scales of their weights to bf16 besides, which is one rounding more for each product. Experts
 * of 4-bit codes have bf16 rows on the card, where the host has int8 rows: they are compared with the same sums in doubles. PLAIN is five
 * roundings to bf16, 0.0025, four times over, for rows whose experts nearly cancel; int8 rows are 0.014 off.
 */
#include "coded_matrices.h"
#include "npu/raw_choice.h"
#include "tests/td_test.h"

#define EXACT 0.0
#define ROUNDED 0.006
#define CODED 0.02
#define PLAIN 0.01

/* ---- two devices ---------------------------------------------------------------------------------- */

enum { HOST, CARD, DEVICES, PAIR_MOST = 128 };

/** A buffer on both devices. */
typedef struct {
    void  *at[DEVICES];
    size_t bytes;
} both;

typedef struct {
    td_npu_weight *w[DEVICES];
} weights;

/** Host and card, with what was put on them: it goes when the pair is closed. */
typedef struct {
    rig            host;
    td_npu        *npu[DEVICES];
    td_npu_stream *stream[DEVICES];
    both           buffers[PAIR_MOST];
    weights        weights[PAIR_MOST];
    size_t         n_buffers, n_weights;
} pair;

static pair open_pair(void) {
    pair          p = {.host = rig_open(1, TD_DT_BF16, false)};
    td_error      err = {0};
    td_npu_config c = {.act_dtype = TD_DT_BF16};
    p.npu[HOST] = p.host.npu;
    p.stream[HOST] = p.host.stream;
    if (td_npu_open("npu", &c, &p.npu[CARD], &err) != TD_OK) fail_msg("%s", err.text);
    if (p.npu[CARD]->ops->stream_create(p.npu[CARD], &p.stream[CARD], &err) != TD_OK) fail_msg("%s", err.text);
    return p;
}

static void close_pair(pair *p) {
    for (size_t i = 0; i < p->n_weights; i++)
        for (int d = 0; d < DEVICES; d++) p->npu[d]->ops->weight_destroy(p->npu[d], p->weights[i].w[d]);
    for (size_t i = 0; i < p->n_buffers; i++) {
        p->npu[CARD]->ops->free(p->npu[CARD], p->buffers[i].at[CARD], p->buffers[i].bytes);
        free(p->buffers[i].at[HOST]);
    }
    p->npu[CARD]->ops->stream_destroy(p->npu[CARD], p->stream[CARD]);
    p->npu[CARD]->ops->close(p->npu[CARD]);
    rig_close(&p->host);
}

static void card_copy(pair *p, void *host, void *dev, size_t bytes, td_copy_kind kind) {
    const td_npu_ops *o = p->npu[CARD]->ops;
    void             *pinned;
    td_error          err = {0};
    OK(o->host_alloc(p->npu[CARD], bytes, &pinned, &err));
    if (kind == TD_COPY_H2D) memcpy(pinned, host, bytes);
    OK(o->copy(p->npu[CARD], p->stream[CARD], kind == TD_COPY_H2D ? dev : pinned, kind == TD_COPY_H2D ? pinned : dev, bytes,
               kind));
    OK(o->stream_sync(p->npu[CARD], p->stream[CARD]));
    if (kind == TD_COPY_D2H) memcpy(host, pinned, bytes);
    o->host_free(p->npu[CARD], pinned, bytes);
}

static both put(pair *p, const void *from, size_t bytes) { /* from NULL: zeros */
    both     b = {.bytes = bytes};
    td_error err = {0};
    b.at[HOST] = calloc(1, bytes + 64);
    if (from) memcpy(b.at[HOST], from, bytes);
    OK(p->npu[CARD]->ops->alloc(p->npu[CARD], bytes, &b.at[CARD], &err));
    if (from) card_copy(p, (void *)(uintptr_t)from, b.at[CARD], bytes, TD_COPY_H2D);
    assert_true(p->n_buffers < PAIR_MOST);
    return p->buffers[p->n_buffers++] = b;
}

/** Ids of experts, as each device has them: uint16 on the host, int32 on the card. ids NULL: zeros. */
static both put_ids(pair *p, const uint16_t *ids, size_t n) {
    both           b = put(p, NULL, n * sizeof(int32_t));
    FREED int32_t *raw = calloc(n, sizeof *raw);
    for (size_t i = 0; ids && i < n; i++) raw[i] = ((uint16_t *)b.at[HOST])[i] = ids[i];
    card_copy(p, raw, b.at[CARD], b.bytes, TD_COPY_H2D);
    return b;
}

/** Rows [n, width] of bf16, random; the same on both. */
static both put_rows(pair *p, rnd *r, size_t n, size_t width, float scale) {
    FREED float *f = rnd_array(r, n * width, scale);
    FREED void  *x = act_array(TD_DT_BF16, f, n * width);
    return put(p, x, n * width * sizeof(td_bf16));
}

static void *card_bytes(pair *p, const both *b) {
    void *host = malloc(b->bytes);
    card_copy(p, host, b->at[CARD], b->bytes, TD_COPY_D2H);
    return host;
}

static weights put_weight(pair *p, td_weight_format format, const float *f, size_t n, size_t k) { /* n 0: a vector */
    weights        all;
    td_tensor_view v = {.dtype = TD_DT_F32, .rank = n ? 2 : 1, .shape = {n ? n : k, k}, .data = f};
    td_error       err = {0};
    for (int d = 0; d < DEVICES; d++)
        if (p->npu[d]->ops->weight_create(p->npu[d], format, &v, &all.w[d], &err) != TD_OK) fail_msg("%s", err.text);
    assert_true(p->n_weights < PAIR_MOST);
    return p->weights[p->n_weights++] = all;
}

static weights random_norm(pair *p, rnd *r, size_t n, float scale, bool of_bf16) {
    FREED float *f = rnd_array(r, n, scale);
    for (size_t i = 0; of_bf16 && i < n; i++) f[i] = td_bf16_to_f32(td_f32_to_bf16(f[i]));
    return put_weight(p, TD_WEIGHT_F32, f, 0, n);
}

static weights random_weight(pair *p, rnd *r, td_weight_format format, size_t n, size_t k, float scale) {
    FREED float *f = rnd_array(r, (n ? n : 1) * k, scale);
    return put_weight(p, format, f, n, k);
}

/** Enqueue desc[d] on each; on the card at once, then from a capture, which has to give the same bits in `out`. */
static void run_both(pair *p, const td_block_desc desc[DEVICES], const td_step *step, const both *out) {
    td_npu_block     *b[DEVICES];
    td_npu_graph     *g;
    td_error          err = {0};
    const td_npu_ops *o = p->npu[CARD]->ops;
    td_step           packed = *step; /* the host computes what is there */
    packed.max_tok = step->host.counts->n_tok;
    packed.max_seq = step->host.counts->n_seq;
    packed.max_out = step->host.counts->n_out;
    for (int d = 0; d < DEVICES; d++) {
        if (p->npu[d]->ops->block_create(p->npu[d], &desc[d], &b[d], &err) != TD_OK) fail_msg("device %d: %s", d, err.text);
        OK(p->npu[d]->ops->enqueue(p->npu[d], p->stream[d], b[d], d == HOST ? &packed : step));
        OK(p->npu[d]->ops->stream_sync(p->npu[d], p->stream[d]));
    }
    if (out) {
        FREED void *at_once = card_bytes(p, out);
        OK(o->graph_begin(p->npu[CARD], p->stream[CARD]));
        OK(o->enqueue(p->npu[CARD], p->stream[CARD], b[CARD], step));
        OK(o->graph_end(p->npu[CARD], p->stream[CARD], &g, &err));
        for (int i = 0; i < 2; i++) {
            OK(o->graph_launch(p->npu[CARD], p->stream[CARD], g));
            OK(o->stream_sync(p->npu[CARD], p->stream[CARD]));
            FREED void *replayed = card_bytes(p, out);
            assert_memory_equal(replayed, at_once, out->bytes);
        }
        o->graph_destroy(p->npu[CARD], g);
    }
    for (int d = 0; d < DEVICES; d++) p->npu[d]->ops->block_destroy(p->npu[d], b[d]);
}

/** Rows first .. first + rows - 1 of two results. */
static void check(pair *p, const both *b, td_dtype dtype, size_t first, size_t rows, size_t width, double tolerance,
                  const char *what) {
    FREED char   *got = card_bytes(p, b);
    FREED double *want = malloc(rows * width * sizeof *want);
    for (size_t i = 0; i < rows * width; i++) want[i] = act_get(dtype, b->at[HOST], first * width + i);
    double error = error_of(dtype, got + first * width * td_dtype_bytes(dtype), want, rows * width);
    if (!(error <= tolerance)) fail_msg("%s: the card is %.5f off, allowed is %.5f", what, error, tolerance);
}

static td_step rows_step(td_step_counts *counts, uint32_t bucket, uint32_t first_row) {
    td_step step = td_step_unified(&(td_step_arrays){.counts = counts}, 0);
    step.max_tok = bucket;
    step.first_row = first_row;
    return step;
}

/* ---- rows ------------------------------------------------------------------------------------------ */

TEST(rows_blocks) {
    enum { HIDDEN = 96, VOCAB = 50, ROWS = 7, BUCKET = 8, FIRST = 3, ALL = FIRST + BUCKET };
    rnd            r = rnd_open("rows");
    pair           p = open_pair();
    uint32_t       tokens[BUCKET] = {3, 49, 0, 7, 7, 21, 11, 0};
    td_step_counts counts = {.n_tok = ROWS};
    td_step        step = rows_step(&counts, BUCKET, FIRST);
    step.host.token = step.dev.token = tokens;
    weights table = random_weight(&p, &r, TD_WEIGHT_BF16, VOCAB, HIDDEN, 1),
            gamma = random_weight(&p, &r, TD_WEIGHT_F32, 0, HIDDEN, 2);
    both x = put_rows(&p, &r, ALL, HIDDEN, 1), add = put_rows(&p, &r, ALL, HIDDEN, 1),
         third = put_rows(&p, &r, ALL, HIDDEN, 1), out = put(&p, NULL, ALL * 2 * HIDDEN * sizeof(td_bf16)),
         codes = put(&p, NULL, ALL * HIDDEN), scale = put(&p, NULL, ALL * sizeof(float));
    td_block_desc desc[DEVICES];

#define BLOCK(rows, kind_, member, ...)                                 \
    for (int d = 0; d < DEVICES; d++) desc[d] = (td_block_desc) {       \
            .kind = kind_, .max_tok = (rows), .member = { __VA_ARGS__ } \
        }
    step.first_row = 0;
    BLOCK(ALL, TD_BLOCK_EMBED, embed, .table = table.w[d], .hidden = HIDDEN, .out = out.at[d]);
    run_both(&p, desc, &step, &out);
    check(&p, &out, TD_DT_BF16, 0, ROWS, HIDDEN, EXACT, "embed");

    BLOCK(ALL, TD_BLOCK_NORM, norm, .hidden = HIDDEN, .eps = 1e-6f, .gamma = gamma.w[d], .x = x.at[d], .out = out.at[d],
          .out_i8 = {codes.at[d], scale.at[d]});
    run_both(&p, desc, &step, &out);
    check(&p, &out, TD_DT_BF16, 0, ROWS, HIDDEN, ROUNDED, "norm");
    int8_t *q = card_bytes(&p, &codes);
    float  *s = card_bytes(&p, &scale);
    for (size_t i = 0; i < ROWS * HIDDEN; i++) assert_in_range(q[i] - ((int8_t *)codes.at[HOST])[i] + 1, 0, 2);
    for (size_t i = 0; i < ROWS; i++) assert_true(fabsf(s[i] / ((float *)scale.at[HOST])[i] - 1) < 0.01f);
    free(q);
    free(s);

    /* Rows in f32, too, where the device gives them; with weights that are no bf16, too. */
    for (int of_bf16 = 0; of_bf16 < 2; of_bf16++) {
        weights     norm = random_norm(&p, &r, HIDDEN, 2, of_bf16);
        both        floats = put(&p, NULL, ALL * HIDDEN * sizeof(float));
        td_npu_caps caps;
        p.npu[CARD]->ops->caps(p.npu[CARD], &caps);
        BLOCK(ALL, TD_BLOCK_NORM, norm, .hidden = HIDDEN, .eps = 1e-6f, .gamma = norm.w[d], .x = x.at[d], .out = out.at[d],
              .out_i8 = {codes.at[d], scale.at[d]}, .out_f32 = floats.at[d]);
        run_both(&p, desc, &step, &out);
        check(&p, &out, TD_DT_BF16, 0, ROWS, HIDDEN, ROUNDED, "norm with rows in f32");
        FREED float   *f = card_bytes(&p, &floats);
        FREED td_bf16 *rounded = card_bytes(&p, &out);
        size_t         finer = 0;
        for (size_t i = 0; i < ROWS * HIDDEN; i++) {
            assert_int_equal(td_f32_to_bf16(f[i]), caps.norm_f32 ? rounded[i] : 0);
            finer += (td_bf16_to_f32(rounded[i]) < f[i] || td_bf16_to_f32(rounded[i]) > f[i]) && caps.norm_f32;
        }
        assert_true(caps.norm_f32 && of_bf16 ? finer > ROWS * HIDDEN / 2 : !finer);
    }

    /* A stride, and a sum: what is run again would be added again, so once only. */
    BLOCK(ALL, TD_BLOCK_NORM, norm, .hidden = HIDDEN, .eps = 1e-5f, .gamma = gamma.w[d], .x = x.at[d], .add = add.at[d],
          .out = out.at[d], .out_stride = 2 * HIDDEN);
    run_both(&p, desc, &step, NULL);
    check(&p, &x, TD_DT_BF16, 0, ROWS, HIDDEN, EXACT, "residual");
    for (size_t row = 0; row < ROWS; row++) check(&p, &out, TD_DT_BF16, 2 * row, 1, HIDDEN, ROUNDED, "norm with a stride");

    BLOCK(ALL, TD_BLOCK_COMBINE, combine, .hidden = HIDDEN, .x = x.at[d], .add = {add.at[d], NULL, third.at[d]});
    run_both(&p, desc, &step, NULL);
    check(&p, &x, TD_DT_BF16, 0, ROWS, HIDDEN, ROUNDED, "combine");
    BLOCK(ALL, TD_BLOCK_COMBINE, combine, .hidden = HIDDEN, .x = x.at[d], .add = {add.at[d], out.at[d], third.at[d]});
    run_both(&p, desc, &step, NULL);
    check(&p, &x, TD_DT_BF16, 0, ROWS, HIDDEN, ROUNDED, "combine of three");

    /* Rows of a half: the same buffers from row FIRST on. */
    BLOCK(ALL, TD_BLOCK_NORM, norm, .hidden = HIDDEN, .eps = 1e-6f, .gamma = gamma.w[d], .x = add.at[d], .out = out.at[d]);
    step.first_row = FIRST;
    run_both(&p, desc, &step, &out);
    check(&p, &out, TD_DT_BF16, FIRST, ROWS, HIDDEN, ROUNDED, "norm of a half");

    /* Codes alone, as attention's linears take them, of a row of zeros too. */
    for (int of_bf16 = 0; of_bf16 < 2; of_bf16++) {
        weights norm = random_norm(&p, &r, HIDDEN, 2, of_bf16);
        both    zeros = put(&p, NULL, ALL * HIDDEN * sizeof(td_bf16));
        td_bf16 one_row[HIDDEN];
        for (size_t i = 0; i < HIDDEN; i++) one_row[i] = ((td_bf16 *)x.at[HOST])[i];
        memcpy((char *)zeros.at[HOST] + (FIRST + 1) * sizeof one_row, one_row, sizeof one_row);
        card_copy(&p, one_row, (char *)zeros.at[CARD] + (FIRST + 1) * sizeof one_row, sizeof one_row, TD_COPY_H2D);
        BLOCK(ALL, TD_BLOCK_NORM, norm, .hidden = HIDDEN, .eps = 1e-3f, .gamma = norm.w[d], .x = zeros.at[d],
              .out_i8 = {codes.at[d], scale.at[d]});
        run_both(&p, desc, &step, &codes);
        q = card_bytes(&p, &codes);
        s = card_bytes(&p, &scale);
        for (size_t row = FIRST; row < FIRST + ROWS; row++)
            for (size_t i = row * HIDDEN; i < (row + 1) * HIDDEN; i++) {
                int host = ((int8_t *)codes.at[HOST])[i];
                assert_in_range(q[i] - host + 1, 0, 2);
                assert_true(row == FIRST + 1 ? fabsf(s[row] / ((float *)scale.at[HOST])[row] - 1) < 0.01f : !q[i]);
            }
        free(q);
        free(s);
    }

    close_pair(&p);
}

/* ---- products --------------------------------------------------------------------------------------- */

TEST(linears) {
    static const struct {
        td_weight_format format;
        size_t           n, k;
        bool             bias;
    } CASES[] = {{TD_WEIGHT_W8A8, 64, 96, false}, {TD_WEIGHT_W8A8, 33, 48, true},  {TD_WEIGHT_W8A8, 100, 17, false},
                 {TD_WEIGHT_BF16, 40, 50, true},  {TD_WEIGHT_BF16, 64, 64, false}, {TD_WEIGHT_F32, 24, 32, false}};
    enum { ROWS = 5, BUCKET = 8 };
    rnd                     r = rnd_open("linears");
    AT_END(close_pair) pair p = open_pair();
    td_step_counts          counts = {.n_tok = ROWS};
    td_step                 step = rows_step(&counts, BUCKET, 0);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t  n = CASES[i].n, k = CASES[i].k;
        weights w = random_weight(&p, &r, CASES[i].format, n, k, 1), bias = random_weight(&p, &r, TD_WEIGHT_F32, 0, n, 2);
        both    in = put_rows(&p, &r, BUCKET, k, 1), out = put(&p, NULL, BUCKET * n * sizeof(td_bf16));
        td_block_desc desc[DEVICES];
        BLOCK(BUCKET, TD_BLOCK_LINEAR, linear, .n = (uint32_t)n, .k = (uint32_t)k, .w = w.w[d],
              .bias = CASES[i].bias ? bias.w[d] : NULL, .in = in.at[d], .out = out.at[d]);
        run_both(&p, desc, &step, &out);
        check(&p, &out, TD_DT_BF16, 0, ROWS, n, ROUNDED, "linear");
    }
}

static void run_mlps(void) {
    static const struct {
        td_weight_format format;
        size_t           hidden, inter;
        bool             gated;
    } CASES[] = {{TD_WEIGHT_W8A8, 64, 96, false},
                 {TD_WEIGHT_W8A8, 48, 40, true},
                 {TD_WEIGHT_BF16, 64, 24, false},
                 {TD_WEIGHT_W8A8, 32, 5000, false}};
    enum { ROWS = 6, BUCKET = 8 };
    rnd                     r = rnd_open("mlps");
    AT_END(close_pair) pair p = open_pair();
    td_step_counts          counts = {.n_tok = ROWS};
    td_step                 step = rows_step(&counts, BUCKET, 0);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t           h = CASES[i].hidden, m = CASES[i].inter;
        td_weight_format f = CASES[i].format;
        weights          gate = random_weight(&p, &r, f, m, h, 0.3f), up = random_weight(&p, &r, f, m, h, 0.3f),
                down = random_weight(&p, &r, f, h, m, 0.3f), og = random_weight(&p, &r, TD_WEIGHT_F32, 1, h, 0.3f);
        both          in = put_rows(&p, &r, BUCKET, h, 1), out = put(&p, NULL, BUCKET * h * sizeof(td_bf16));
        td_block_desc desc[DEVICES];
        BLOCK(BUCKET, TD_BLOCK_MLP, mlp, .hidden = (uint32_t)h, .inter = (uint32_t)m, .gate = gate.w[d], .up = up.w[d],
              .down = down.w[d], .out_gate = CASES[i].gated ? og.w[d] : NULL, .in = in.at[d], .out = out.at[d]);
        run_both(&p, desc, &step, &out);
        check(&p, &out, TD_DT_BF16, 0, ROWS, h, CODED, "mlp");
    }
}

/* A 910C has another operation for the middle. */
TEST(mlps) {
    run_mlps();
    setenv("TD_STANDIN_SOC", "Ascend910_9391", 1);
    run_mlps();
    unsetenv("TD_STANDIN_SOC");
}

/* ---- router, head ------------------------------------------------------------------------------------ */

TEST(routers) {
    static const td_router_desc CASES[] = {
        {.n_experts = 16,
         .top_k = 4,
         .score = TD_SCORE_SIGMOID,
         .group = TD_GROUP_TOP2_SUM,
         .n_group = 4,
         .topk_group = 2,
         .normalise = true,
         .scale = 2.5f},
        {.n_experts = 8, .top_k = 3, .score = TD_SCORE_SOFTMAX, .scale = 1},
        {.n_experts = 8, .top_k = 8, .score = TD_SCORE_SOFTMAX, .normalise = true, .scale = 1},
        {.n_experts = 64,
         .top_k = 6,
         .score = TD_SCORE_SOFTMAX,
         .group = TD_GROUP_MAX,
         .n_group = 8,
         .topk_group = 3,
         .scale = 16},
    };
    enum { HIDDEN = 48, ROWS = 9, BUCKET = 16 };
    rnd                     r = rnd_open("routers");
    AT_END(close_pair) pair p = open_pair();
    td_step_counts          counts = {.n_tok = ROWS};
    td_step                 step = rows_step(&counts, BUCKET, 0);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t  n = CASES[i].n_experts, k = CASES[i].top_k;
        weights w = random_weight(&p, &r, TD_WEIGHT_F32, n, HIDDEN, 1),
                bias = random_weight(&p, &r, TD_WEIGHT_F32, 0, n, 0.3f);
        both in = put_rows(&p, &r, BUCKET, HIDDEN, 1), ids = put_ids(&p, NULL, BUCKET * k),
             values = put(&p, NULL, BUCKET * k * sizeof(float));
        td_block_desc desc[DEVICES];
        for (int d = 0; d < DEVICES; d++) {
            desc[d] = (td_block_desc){.kind = TD_BLOCK_ROUTER, .max_tok = BUCKET, .router = CASES[i]};
            desc[d].router.hidden = HIDDEN;
            desc[d].router.w = w.w[d];
            desc[d].router.bias = CASES[i].score == TD_SCORE_SIGMOID ? bias.w[d] : NULL;
            desc[d].router.in = in.at[d];
            desc[d].router.ids = ids.at[d];
            desc[d].router.weights = values.at[d];
        }
        /* A card that reads rows in f32 gets others as bf16. */
        td_npu_caps  caps;
        FREED float *f = calloc(BUCKET * HIDDEN, sizeof *f);
        p.npu[CARD]->ops->caps(p.npu[CARD], &caps);
        for (size_t j = 0; j < BUCKET * HIDDEN; j++) f[j] = td_bf16_to_f32(((td_bf16 *)in.at[HOST])[j]);
        both floats = put(&p, f, BUCKET * HIDDEN * sizeof *f);
        if (i % 2 && caps.norm_f32) card_copy(&p, f, in.at[CARD], in.bytes, TD_COPY_H2D);
        for (int d = 0; d < DEVICES; d++) desc[d].router.in_f32 = i % 2 ? floats.at[d] : NULL;
        run_both(&p, desc, &step, &ids);
        FREED int32_t  *raw_ids = card_bytes(&p, &ids);
        FREED float    *raw_weights = card_bytes(&p, &values), *sorted = calloc(BUCKET * k, sizeof *sorted);
        FREED uint16_t *got = calloc(BUCKET * k, sizeof *got);
        assert_true(caps.raw_choice);
        assert_true(td_raw_choice_sort(raw_ids, raw_weights, BUCKET, (uint32_t)k, (uint32_t)n, got, sorted));
        assert_memory_equal(got, ids.at[HOST], ROWS * k * sizeof *got);
        card_copy(&p, sorted, values.at[CARD], values.bytes, TD_COPY_H2D);
        check(&p, &values, TD_DT_F32, 0, ROWS, k, 1e-5, "router weights");
    }
}

TEST(heads) {
    enum { HIDDEN = 64, VOCAB = 200, ROWS = 6, BUCKET = 8, OUT = 3, MAX_OUT = 4, BEST = 5 };
    rnd                     r = rnd_open("heads");
    AT_END(close_pair) pair p = open_pair();
    uint32_t                out_row[MAX_OUT] = {5, 0, 2};
    td_step_counts          counts = {.n_tok = ROWS, .n_out = OUT};
    td_step                 step = rows_step(&counts, BUCKET, 0);
    step.max_out = MAX_OUT;
    step.host.out_row = step.dev.out_row = out_row;
    for (int f = 0; f < 2; f++) {
        weights w = random_weight(&p, &r, f ? TD_WEIGHT_BF16 : TD_WEIGHT_W8A8, VOCAB, HIDDEN, 1),
                gamma = random_weight(&p, &r, TD_WEIGHT_F32, 0, HIDDEN, 2);
        both x = put_rows(&p, &r, BUCKET, HIDDEN, 1), logits = put(&p, NULL, MAX_OUT * VOCAB * sizeof(float)),
             top = put(&p, NULL, MAX_OUT * BEST * sizeof(td_logit));
        td_block_desc desc[DEVICES];
        BLOCK(BUCKET, TD_BLOCK_HEAD, head, .hidden = HIDDEN, .vocab = VOCAB, .max_out = MAX_OUT, .eps = 1e-6f,
              .gamma = gamma.w[d], .w = w.w[d], .x = x.at[d], .logits = logits.at[d]);
        run_both(&p, desc, &step, &logits);
        check(&p, &logits, TD_DT_F32, 0, OUT, VOCAB, CODED, "head");
        BLOCK(BUCKET, TD_BLOCK_TOP, top, .vocab = VOCAB, .k = BEST, .max_out = MAX_OUT, .logits = logits.at[d],
              .top = top.at[d]);
        run_both(&p, desc, &step, &top);
        FREED td_logit *best = card_bytes(&p, &top);
        FREED float    *all = card_bytes(&p, &logits);
        for (size_t row = 0; row < OUT; row++)
            for (size_t i = 0; i < BEST; i++) {
                td_logit b = best[row * BEST + i];
                size_t   larger = 0;
                assert_true(b.id < VOCAB);
                assert_true(!memcmp(&b.value, &all[row * VOCAB + b.id], sizeof b.value));
                for (size_t v = 0; v < VOCAB; v++) larger += all[row * VOCAB + v] > b.value;
                assert_true(larger <= i); /* equal ones may come in any order */
            }
    }
}

/* ---- routed experts ---------------------------------------------------------------------------------- */

enum { EXPERTS_MOST = 8 };

typedef struct {
    uint32_t hidden, inter, n_experts, top_k, rows, bucket, first;
    bool     codes; /* rows come as int8, too */
    size_t   int4;  /* weights of 4-bit codes: 1 + a kind of coded_matrices.h */
    bool     plain; /* of them: the result is that of doubles; else the card has rounded them to int8 */
} experts_case;

typedef struct {
    weights              of[3][EXPERTS_MOST]; /* gate, up, down */
    const td_npu_weight *list[DEVICES][3][EXPERTS_MOST];
    float               *values[3][EXPERTS_MOST]; /* of 4-bit codes */
} expert_weights;

static weights put_coded(pair *p, rnd *r, size_t kind, size_t n, size_t k, float **values) {
    AT_END(free_coded) coded c = make_coded(r, kind, n, k);
    td_tensor_view           v = view_of(&c);
    weights                  all;
    td_error                 err = {0};
    for (int d = 0; d < DEVICES; d++)
        if (p->npu[d]->ops->weight_create(p->npu[d], c.format, &v, &all.w[d], &err) != TD_OK) fail_msg("%s", err.text);
    *values = values_of(&c);
    assert_true(p->n_weights < PAIR_MOST);
    return p->weights[p->n_weights++] = all;
}

static void put_experts(pair *p, rnd *r, const experts_case *c, td_weight_format format, expert_weights *w) {
    for (uint32_t e = 0; e < c->n_experts; e++)
        for (int m = 0; m < 3; m++) {
            size_t n = m == 2 ? c->hidden : c->inter, k = m == 2 ? c->inter : c->hidden;
            w->of[m][e] =
                c->int4 ? put_coded(p, r, c->int4 - 1, n, k, &w->values[m][e]) : random_weight(p, r, format, n, k, 0.3f);
            for (int d = 0; d < DEVICES; d++) w->list[d][m][e] = w->of[m][e].w[d];
        }
}

/* Of each row top_k that differ, beginning anywhere; the last expert gets no row where there are more than two. */
static void put_choice(pair *p, rnd *r, const experts_case *c, both *ids, both *values) {
    size_t          all = c->first + c->bucket, pairs = all * c->top_k;
    FREED uint16_t *id = calloc(pairs, sizeof *id);
    FREED float    *f = rnd_array(r, pairs, 1);
    uint32_t        used = c->n_experts > 2 ? c->n_experts - 1 : c->n_experts;
    for (size_t row = 0; row < c->first + c->rows; row++)
        for (uint32_t j = 0; j < c->top_k; j++) id[row * c->top_k + j] = (uint16_t)((row * 5 + row / 3 + j) % used);
    *ids = put_ids(p, id, pairs);
    *values = put(p, f, pairs * sizeof *f);
}

static void free_values(expert_weights *w) {
    for (size_t i = 0; i < 3 * EXPERTS_MOST; i++) free(w->values[i / EXPERTS_MOST][i % EXPERTS_MOST]);
}

/* The sum of row `row` in doubles: [hidden]. */
static void plain_experts(const experts_case *c, const expert_weights *w, const td_bf16 *x, const uint16_t *ids,
                          const float *values, double *sum) {
    FREED double *in = malloc(c->hidden * sizeof *in), *mid = malloc(c->inter * 2 * sizeof *mid),
                 *out = calloc(c->hidden, sizeof *out);
    for (uint32_t i = 0; i < c->hidden; i++) in[i] = td_bf16_to_f32(x[i]), sum[i] = 0;
    for (uint32_t j = 0; j < c->top_k; j++) {
        ref_linear(w->values[0][ids[j]], NULL, in, c->inter, c->hidden, mid);
        ref_linear(w->values[1][ids[j]], NULL, in, c->inter, c->hidden, mid + c->inter);
        for (uint32_t i = 0; i < c->inter; i++) mid[i] = mid[i] / (1 + exp(-mid[i])) * mid[c->inter + i];
        ref_linear(w->values[2][ids[j]], NULL, mid, c->hidden, c->inter, out);
        for (uint32_t i = 0; i < c->hidden; i++) sum[i] += (double)values[j] * out[i];
    }
}

/* The card's rows against doubles: it rounds weights, products, middle and sums to bf16. */
static void check_plain(pair *p, const experts_case *c, const expert_weights *w, const both *in, const both *ids,
                        const both *values, const both *out) {
    FREED char   *got = card_bytes(p, out);
    FREED double *want = malloc((size_t)c->rows * c->hidden * sizeof *want);
    for (uint32_t row = 0; row < c->rows; row++) {
        size_t at = c->first + row;
        plain_experts(c, w, (const td_bf16 *)in->at[HOST] + at * c->hidden, (const uint16_t *)ids->at[HOST] + at * c->top_k,
                      (const float *)values->at[HOST] + at * c->top_k, want + (size_t)row * c->hidden);
    }
    double error =
        error_of(TD_DT_BF16, got + (size_t)c->first * c->hidden * sizeof(td_bf16), want, (size_t)c->rows * c->hidden);
    print_message("    4-bit experts, kind %zu: %.5f off\n", c->int4 - 1, error);
    assert_true(error <= PLAIN);
}

static void run_experts(const experts_case *c) {
    rnd                                r = rnd_open("experts");
    AT_END(close_pair) pair            p = open_pair();
    td_step_counts                     counts = {.n_tok = c->rows};
    td_step                            step = rows_step(&counts, c->bucket, c->first);
    size_t                             all = c->first + c->bucket;
    AT_END(free_values) expert_weights w = {0};
    both ids, values, in = put_rows(&p, &r, all, c->hidden, 1), codes = put(&p, NULL, all * c->hidden),
                      scale = put(&p, NULL, all * sizeof(float)), out = put(&p, NULL, all * c->hidden * sizeof(td_bf16));
    put_experts(&p, &r, c, TD_WEIGHT_W8A8, &w);
    put_choice(&p, &r, c, &ids, &values);
    if (c->codes) { /* by the host's rule, the same on both */
        for (size_t row = 0; row < all; row++) {
            float most = 0, x[256];
            for (uint32_t i = 0; i < c->hidden; i++) {
                x[i] = td_bf16_to_f32(((td_bf16 *)in.at[HOST])[row * c->hidden + i]);
                most = fmaxf(most, fabsf(x[i]));
            }
            ((float *)scale.at[HOST])[row] = most / 127;
            for (uint32_t i = 0; i < c->hidden; i++)
                ((int8_t *)codes.at[HOST])[row * c->hidden + i] = (int8_t)rintf(x[i] * (127 / most));
        }
        card_copy(&p, codes.at[HOST], codes.at[CARD], codes.bytes, TD_COPY_H2D);
        card_copy(&p, scale.at[HOST], scale.at[CARD], scale.bytes, TD_COPY_H2D);
    }
    td_block_desc desc[DEVICES];
    BLOCK((uint32_t)all, TD_BLOCK_EXPERTS, experts, .hidden = c->hidden, .inter = c->inter, .n_experts = c->n_experts,
          .top_k = c->top_k, .gate = w.list[d][0], .up = w.list[d][1], .down = w.list[d][2], .in = in.at[d],
          .in_i8 = {c->codes ? codes.at[d] : NULL, c->codes ? scale.at[d] : NULL}, .ids = ids.at[d], .weights = values.at[d],
          .out = out.at[d]);
    run_both(&p, desc, &step, &out);
    if (c->plain)
        check_plain(&p, c, &w, &in, &ids, &values, &out);
    else
        check(&p, &out, TD_DT_BF16, c->first, c->rows, c->hidden, CODED, "experts");
    run_both(&p, desc, &step, &out); /* another block of the same weights finds them laid out */
}

TEST(experts) {
    static const experts_case CASES[] = {
        {.hidden = 64, .inter = 32, .n_experts = 8, .top_k = 2, .rows = 6, .bucket = 8, .first = 3, .codes = true},
        {.hidden = 40, .inter = 40, .n_experts = 6, .top_k = 3, .rows = 8, .bucket = 8}, /* tiles that are filled up */
        {.hidden = 64, .inter = 96, .n_experts = 2, .top_k = 2, .rows = 1, .bucket = 1, .codes = true},
        {.hidden = 32, .inter = 32, .n_experts = 5, .top_k = 1, .rows = 2100, .bucket = 2200, .codes = true}, /* two runs */
        {.hidden = 32, .inter = 3620, .n_experts = 2, .top_k = 1, .rows = 3, .bucket = 4},                    /* wide */
        {.hidden = 32, .inter = 5121, .n_experts = 2, .top_k = 1, .rows = 3, .bucket = 4}, /* too wide to be fused */
        {.hidden = 64,
         .inter = 32,
         .n_experts = 8,
         .top_k = 2,
         .rows = 6,
         .bucket = 8,
         .first = 3,
         .codes = true,
         .int4 = 1,
         .plain = true},
        {.hidden = 128,
         .inter = 64,
         .n_experts = 5,
         .top_k = 3,
         .rows = 9,
         .bucket = 16,
         .int4 = 2,
         .plain = true}, /* zeros, groups of 64 */
        {.hidden = 256,
         .inter = 128,
         .n_experts = 2,
         .top_k = 2,
         .rows = 1,
         .bucket = 1,
         .codes = true,
         .int4 = 3,
         .plain = true},
        {.hidden = 128,
         .inter = 96,
         .n_experts = 4,
         .top_k = 2,
         .rows = 5,
         .bucket = 8,
         .int4 = 3,
         .plain = true}, /* no whole groups: int8 */
        {.hidden = 32,
         .inter = 32,
         .n_experts = 5,
         .top_k = 1,
         .rows = 2100,
         .bucket = 2200,
         .int4 = 1,
         .plain = true}, /* two runs */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) run_experts(&CASES[i]);
}

TEST(refused_experts) {
    experts_case            c = {.hidden = 64, .inter = 32, .n_experts = 4, .top_k = 2};
    rnd                     r = rnd_open("refused experts");
    AT_END(close_pair) pair p = open_pair();
    td_npu                 *card = p.npu[CARD];
    expert_weights          w, floats;
    both                    x = put(&p, NULL, 4096);
    td_npu_block           *b;
    put_experts(&p, &r, &c, TD_WEIGHT_W8A8, &w);
    put_experts(&p, &r, &c, TD_WEIGHT_BF16, &floats);
    const td_block_desc right =
        BLOCK_OF(TD_BLOCK_EXPERTS, 4, experts, .hidden = c.hidden, .inter = c.inter, .n_experts = c.n_experts,
                 .top_k = c.top_k, .gate = w.list[CARD][0], .up = w.list[CARD][1], .down = w.list[CARD][2], .in = x.at[CARD],
                 .ids = x.at[CARD], .weights = x.at[CARD], .out = x.at[CARD]);
    struct {
        td_block_desc desc;
        const char   *sentence;
    } cases[] = {{right, "an expert's gate is neither int8 nor of 4-bit codes"},
                 {right, "takes at most 1024 experts"},
                 {right, "an expert's gate is 32 x 64, not 64 x 64"},
                 {right, "a token uses 1 to 32 of at most 2048 experts, not 5 of 4"},
                 {right, "experts need matrices, ids and weights"},
                 {{.kind = TD_BLOCK_JOIN, .max_tok = 4, .join = {.hidden = 64}}, "keeps no experts in slots"}};
    cases[0].desc.experts.gate = floats.list[CARD][0];
    cases[1].desc.experts.n_experts = 1025;
    cases[2].desc.experts.inter = 64;
    cases[3].desc.experts.top_k = 5;
    cases[4].desc.experts.ids = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_error err = {0};
        assert_int_not_equal(card->ops->block_create(card, &cases[i].desc, &b, &err), TD_OK);
        if (!strstr(err.text, cases[i].sentence)) fail_msg("%s", err.text);
    }
    td_error err = {0};
    if (card->ops->block_create(card, &right, &b, &err) != TD_OK) fail_msg("%s", err.text);
    card->ops->block_destroy(card, b);
    cases[0].desc = right; /* the weights of another expert's: each is laid out for one place */
    const td_npu_weight *rotated[EXPERTS_MOST] = {w.list[CARD][0][1], w.list[CARD][0][0], w.list[CARD][0][2],
                                                  w.list[CARD][0][3]};
    cases[0].desc.experts.gate = rotated;
    assert_int_equal(card->ops->block_create(card, &cases[0].desc, &b, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "laid out for another block"));
}

/* ---- attention ---------------------------------------------------------------------------------------- */

/* Three sequences with prompts in two steps and a token after them, in pages out of order; buckets are never full. */
enum { SEQS = 3, PAGES = 9, STRIDE = 3, SPARE = 1, STEPS = 3, TOK_MAX = 200 };
static const uint32_t LENGTHS[STEPS][SEQS] = {{130, 3, 20}, {5, 0, 30}, {1, 1, 1}};
static const uint32_t TABLE[SEQS][STRIDE] = {{4, 0, 7}, {2, 8, 1}, {6, 3, 5}};

typedef struct {
    const char      *what;
    bool             mla;
    td_weight_format format;
    size_t           hidden, heads, kv_heads, dim; /* gqa */
    size_t           rotated;                      /* of a head's values; 0: all */
    bool             norm_rows;
    size_t           q_lora, kv_lora, nope, rope, v_dim; /* mla */
    bool             extras;                             /* biases; norms of gqa */
    bool             bf16_norms;                         /* norms whose weights bf16 has, as published models' */
} attention;

static void run_attention(const attention *a) {
    rnd                     r = rnd_open(a->what);
    AT_END(close_pair) pair p = open_pair();
    weights                 w[12] = {0};
    size_t       n_w = 0, table_dim = a->mla ? a->rope : a->rotated ? a->rotated : a->dim, positions = STRIDE * TD_KV_PAGE;
    FREED float *angles = malloc(positions * table_dim * sizeof *angles);
    const float  small = 1 / sqrtf((float)a->hidden);
    for (size_t pos = 0; pos < positions; pos++)
        for (size_t i = 0; i < table_dim / 2; i++) {
            double angle = (double)pos * pow(10000, -2.0 * (double)i / (double)table_dim);
            angles[pos * table_dim + i] = (float)cos(angle);
            angles[pos * table_dim + table_dim / 2 + i] = (float)sin(angle);
        }
    weights rope = put_weight(&p, TD_WEIGHT_F32, angles, positions, table_dim);
#define LINEAR(f, n, k) w[n_w++] = random_weight(&p, &r, f, n, k, 2 * small)
#define VECTOR(k) w[n_w++] = random_weight(&p, &r, TD_WEIGHT_F32, 0, k, 1)
    size_t cache_bytes[2][DEVICES];
    for (int d = 0; d < DEVICES; d++) {
        size_t (*page)(td_npu *, td_kv_rows, size_t) = p.npu[d]->ops->kv_page_bytes;
        cache_bytes[0][d] = (PAGES + SPARE) * (a->mla ? page(p.npu[d], TD_KV_LATENT, a->kv_lora)
                                                      : a->kv_heads * page(p.npu[d], TD_KV_HEAD, a->dim));
        cache_bytes[1][d] = (PAGES + SPARE) * (a->mla ? page(p.npu[d], TD_KV_ROPE, a->rope)
                                                      : a->kv_heads * page(p.npu[d], TD_KV_HEAD, a->dim));
    }
    both cache[2];
    for (int i = 0; i < 2; i++)
        cache[i] = put(&p, NULL, cache_bytes[i][HOST] > cache_bytes[i][CARD] ? cache_bytes[i][HOST] : cache_bytes[i][CARD]);
    both in = put(&p, NULL, TOK_MAX * a->hidden * sizeof(td_bf16)),
         out = put(&p, NULL, TOK_MAX * a->hidden * sizeof(td_bf16));
    if (a->mla) {
        size_t q = a->heads * (a->nope + a->rope);
        if (a->q_lora) {
            LINEAR(a->format, a->q_lora, a->hidden);
            w[n_w++] = random_norm(&p, &r, a->q_lora, 1, a->bf16_norms);
        }
        LINEAR(a->format, q, a->q_lora ? a->q_lora : a->hidden);
        LINEAR(a->format, a->kv_lora + a->rope, a->hidden);
        w[n_w++] = random_norm(&p, &r, a->kv_lora, 1, a->bf16_norms);
        LINEAR(TD_WEIGHT_BF16, a->heads * (a->nope + a->v_dim), a->kv_lora);
        LINEAR(a->format, a->hidden, a->heads * a->v_dim);
        VECTOR(a->kv_lora + a->rope);
        VECTOR(a->hidden);
    } else {
        LINEAR(a->format, a->heads * a->dim, a->hidden);
        LINEAR(a->format, a->kv_heads * a->dim, a->hidden);
        LINEAR(a->format, a->kv_heads * a->dim, a->hidden);
        LINEAR(a->format, a->hidden, a->heads * a->dim);
        VECTOR(a->heads * a->dim);
        VECTOR(a->kv_heads * a->dim);
        VECTOR(a->kv_heads * a->dim);
        w[n_w++] = random_norm(&p, &r, (a->norm_rows ? a->heads : 1) * a->dim, 1, a->bf16_norms);
        w[n_w++] = random_norm(&p, &r, (a->norm_rows ? a->kv_heads : 1) * a->dim, 1, a->bf16_norms);
        VECTOR(a->hidden);
    }
    td_block_desc desc[DEVICES];
    for (int d = 0; d < DEVICES; d++) {
        desc[d] = (td_block_desc){.kind = a->mla ? TD_BLOCK_MLA : TD_BLOCK_GQA, .max_tok = TOK_MAX, .max_kv = positions};
        size_t         i = 0;
        td_npu_weight *q_a = a->mla && a->q_lora ? w[i++].w[d] : NULL, *q_a_norm = a->mla && a->q_lora ? w[i++].w[d] : NULL;
        if (a->mla)
            desc[d].mla = WITH(td_mla_desc, .hidden = (uint32_t)a->hidden, .heads = (uint32_t)a->heads,
                               .q_lora = (uint32_t)a->q_lora, .kv_lora = (uint32_t)a->kv_lora, .nope_dim = (uint32_t)a->nope,
                               .rope_dim = (uint32_t)a->rope, .v_dim = (uint32_t)a->v_dim, .eps = 1e-6f,
                               .softmax_scale = 1 / sqrtf((float)(a->nope + a->rope)), .q_a = q_a, .q_a_norm = q_a_norm,
                               .q_b = a->q_lora ? w[i].w[d] : NULL, .q = a->q_lora ? NULL : w[i].w[d], .kv_a = w[i + 1].w[d],
                               .kv_a_norm = w[i + 2].w[d], .kv_b = w[i + 3].w[d], .o = w[i + 4].w[d],
                               .kv_a_bias = a->extras ? w[i + 5].w[d] : NULL, .o_bias = a->extras ? w[i + 6].w[d] : NULL,
                               .rope = rope.w[d], .kv_latent = cache[0].at[d], .kv_rope = cache[1].at[d], .kv_pages = PAGES,
                               .kv_spare_pages = SPARE, .in = in.at[d], .out = out.at[d]);
        else
            desc[d].gqa =
                WITH(td_gqa_desc, .hidden = (uint32_t)a->hidden, .heads = (uint32_t)a->heads,
                     .kv_heads = (uint32_t)a->kv_heads, .head_dim = (uint32_t)a->dim, .rope_dim = (uint32_t)a->rotated,
                     .norm_rows = a->norm_rows, .eps = 1e-6f, .softmax_scale = 1 / sqrtf((float)a->dim), .q = w[0].w[d],
                     .k = w[1].w[d], .v = w[2].w[d], .o = w[3].w[d], .q_bias = a->extras ? w[4].w[d] : NULL,
                     .k_bias = a->extras ? w[5].w[d] : NULL, .v_bias = a->extras ? w[6].w[d] : NULL,
                     .q_norm = a->extras ? w[7].w[d] : NULL, .k_norm = a->extras ? w[8].w[d] : NULL,
                     .o_bias = a->extras ? w[9].w[d] : NULL, .rope = rope.w[d], .kv_k = cache[0].at[d],
                     .kv_v = cache[1].at[d], .kv_pages = PAGES, .kv_spare_pages = SPARE, .in = in.at[d], .out = out.at[d]);
    }
    uint32_t done[SEQS] = {0};
    for (int t = 0; t < STEPS; t++) {
        uint32_t pos[TOK_MAX] = {0}, slot[TOK_MAX] = {0}, seq_start[SEQS + 1] = {0}, kv_len[SEQS], pages[SEQS * STRIDE];
        uint8_t  absorbed[SEQS] = {1, 1, 1};
        td_step_counts counts = {0};
        for (uint32_t q = 0; q < SEQS; q++) {
            uint32_t rows = LENGTHS[t][q];
            if (!rows) continue;
            for (uint32_t i = 0; i < rows; i++, counts.n_tok++) {
                pos[counts.n_tok] = done[q] + i;
                slot[counts.n_tok] = TABLE[q][(done[q] + i) / TD_KV_PAGE] * TD_KV_PAGE + (done[q] + i) % TD_KV_PAGE;
            }
            done[q] += rows;
            kv_len[counts.n_seq] = done[q];
            memcpy(pages + counts.n_seq * STRIDE, TABLE[q], sizeof TABLE[q]);
            seq_start[++counts.n_seq] = counts.n_tok;
        }
        FREED float *f = rnd_array(&r, TOK_MAX * a->hidden, 1);
        FREED void  *x = act_array(TD_DT_BF16, f, TOK_MAX * a->hidden);
        memcpy(in.at[HOST], x, in.bytes);
        card_copy(&p, x, in.at[CARD], in.bytes, TD_COPY_H2D);
        td_step step =
            td_step_unified(&WITH(td_step_arrays, .counts = &counts, .pos = pos, .slot = slot, .seq_start = seq_start,
                                  .kv_len = kv_len, .absorbed = absorbed, .block_table = pages),
                            STRIDE);
        step.max_tok = counts.n_tok + (t == 2 ? 1 : 9);
        step.max_seq = t == 2 ? step.max_tok : SEQS + 1; /* the last one has a row for each sequence, as generation does */
        run_both(&p, desc, &step, &out);
        check(&p, &out, TD_DT_BF16, 0, counts.n_tok, a->hidden, CODED, a->what);
    }
}

#define MLA(what_, format_, hidden_, ...) \
    { .what = what_, .mla = true, .format = format_, .hidden = hidden_, __VA_ARGS__ }
#define GQA(what_, format_, ...) \
    { .what = what_, .format = format_, .hidden = 64, __VA_ARGS__ }

TEST(attentions) {
    static const attention CASES[] = {
        MLA("mla, 3 heads, filled up", TD_WEIGHT_W8A8, 64, .heads = 3, .q_lora = 48, .kv_lora = 40, .nope = 16, .rope = 8,
            .v_dim = 24, .extras = true),
        MLA("mla without q_lora", TD_WEIGHT_W8A8, 64, .heads = 4, .kv_lora = 64, .nope = 16, .rope = 16, .v_dim = 16),
        MLA("mla, 32 heads in pieces of 16 rows", TD_WEIGHT_W8A8, 64, .heads = 32, .q_lora = 32, .kv_lora = 512, .nope = 8,
            .rope = 64, .v_dim = 8, .bf16_norms = true),
        MLA("mla of DeepSeek-V3's sizes, two heads", TD_WEIGHT_W8A8, 7168, .heads = 2, .q_lora = 1536, .kv_lora = 512,
            .nope = 128, .rope = 64, .v_dim = 128, .bf16_norms = true),
        MLA("mla of bf16", TD_WEIGHT_BF16, 64, .heads = 2, .q_lora = 24, .kv_lora = 32, .nope = 16, .rope = 16, .v_dim = 16,
            .extras = true),
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) run_attention(&CASES[i]);
}

TEST(grouped_attentions) {
    static const attention CASES[] = {
        GQA("gqa, heads of 32, a row a piece", TD_WEIGHT_W8A8, .heads = 4, .kv_heads = 2, .dim = 32, .extras = true),
        GQA("gqa, heads of 16", TD_WEIGHT_W8A8, .heads = 6, .kv_heads = 3, .dim = 16),
        GQA("gqa, heads of 128 without norms", TD_WEIGHT_W8A8, .heads = 2, .kv_heads = 1, .dim = 128),
        GQA("gqa, normed heads of 128 in pieces", TD_WEIGHT_W8A8, .heads = 4, .kv_heads = 2, .dim = 128, .extras = true,
            .bf16_norms = true),
        GQA("gqa, heads of 128 whose norms are no bf16", TD_WEIGHT_W8A8, .heads = 4, .kv_heads = 1, .dim = 128,
            .extras = true),
        GQA("gqa that rotates half of a head, with norms and biases", TD_WEIGHT_W8A8, .heads = 4, .kv_heads = 2, .dim = 128,
            .rotated = 64, .extras = true, .bf16_norms = true),
        GQA("gqa that rotates a quarter of a head", TD_WEIGHT_W8A8, .heads = 4, .kv_heads = 2, .dim = 32, .rotated = 8),
        GQA("gqa that rotates half, heads of 16, of bf16", TD_WEIGHT_BF16, .heads = 4, .kv_heads = 2, .dim = 16,
            .rotated = 8, .extras = true),
        GQA("gqa with norms of whole rows", TD_WEIGHT_W8A8, .heads = 4, .kv_heads = 2, .dim = 128, .rotated = 64,
            .norm_rows = true, .extras = true),
        GQA("gqa, more heads than one operation rotates", TD_WEIGHT_W8A8, .heads = 44, .kv_heads = 2, .dim = 128),
        GQA("gqa of bf16", TD_WEIGHT_BF16, .heads = 2, .kv_heads = 2, .dim = 128, .extras = true),
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) run_attention(&CASES[i]);
}

static void refuse(pair *p, const td_block_desc *desc, const char *sentence) {
    td_error      err = {0};
    td_npu_block *b = NULL;
    assert_int_equal(p->npu[CARD]->ops->block_create(p->npu[CARD], desc, &b, &err), TD_ENOTSUP);
    assert_null(b);
    if (!strstr(err.text, sentence)) fail_msg("%s", err.text);
}

/* What the host has and the vendor's operations have not. */
TEST(what_the_card_has_not_is_refused) {
    rnd                     r = rnd_open("refused");
    AT_END(close_pair) pair p = open_pair();
    weights                 w = random_weight(&p, &r, TD_WEIGHT_F32, 0, 64, 1);
    td_block_desc           gqa = {
                  .kind = TD_BLOCK_GQA, .max_tok = 8, .max_kv = 16, .gqa = {.hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16}};
    for (int i = 0; i < 4; i++) {
        td_block_desc      desc = gqa;
        static const char *says[4] = {"no sliding window", "no sinks", "no gate", "no rope by rows and columns"};
        if (i == 0) desc.gqa.window = 128;
        if (i == 1) desc.gqa.sinks = w.w[CARD];
        if (i == 2) desc.gqa.gated = true;
        if (i == 3) desc.gqa.axes.columns = 2;
        refuse(&p, &desc, says[i]);
    }
    gqa.gqa.full = true;
    gqa.gqa.axes.columns = 2;
    refuse(&p, &gqa, "no attention to all rows");
    refuse(&p, &BLOCK_OF(TD_BLOCK_NORM, 1, norm, .hidden = 64, .beta = w.w[CARD], .x = &r, .out = &r), "no layer norms");
    refuse(&p, &BLOCK_OF(TD_BLOCK_LINEAR, 1, linear, .n = 64, .k = 64, .activation = TD_ACTIVATE_GELU_ERF),
           "no activations of linears");
    refuse(&p, &BLOCK_OF(TD_BLOCK_EMBED, 1, embed, .hidden = 64, .images = &r, .out = &r), "no rows of images");
    refuse(&p, &BLOCK_OF(TD_BLOCK_COMBINE, 1, combine, .hidden = 64, .x = &r, .images = &r), "no rows of images");
    td_block_desc f32 = BLOCK_OF(TD_BLOCK_COMBINE, 1, combine, .hidden = 64, .x = &r, .add = {&r});
    f32.rows_f32 = true;
    refuse(&p, &f32, "no blocks with rows in f32");
    td_block_desc router = {.kind = TD_BLOCK_ROUTER,
                            .max_tok = 8,
                            .router = {.hidden = 64, .n_experts = 64, .top_k = 4, .scale = 1, .logit_bias = w.w[CARD]}};
    refuse(&p, &router, "a bias on the logits");
    router.router.logit_bias = NULL;
    router.router.score = TD_SCORE_SOFTMAX_CHOSEN;
    refuse(&p, &router, "softmax of those that are chosen");
}

/* Which operations were launched: TD_ASCEND_FUSED=0 is this test's other form. */
TEST(fused_or_not) {
    static const char *const FUSED[] = {"aclnnGroupedMatmulSwigluQuantWeightNZ",
                                        "aclnnRopeWithSinCosCache",
                                        "aclnnQkvRmsNormRopeCache",
                                        "aclnnAddRmsNormCast",
                                        "aclnnAddRmsNormDynamicQuant",
                                        "aclnnDequantSwigluQuant",
                                        "aclnnKvRmsNormRopeCache",
                                        "aclnnMlaPrologV2WeightNz",
                                        "aclnnMoeInitRoutingV3",
                                        "aclnnDequantSwigluQuantV2"};
    const char              *value = getenv("TD_ASCEND_FUSED");
    bool                     fused = !value || strcmp(value, "0") != 0;
    size_t                   bytes = 0, room = (size_t)1 << 20;
    FREED char              *text = malloc(room + 1);
    FILE                    *f = fopen(getenv("TD_STANDIN_LOG"), "rb");
    assert_non_null(f);
    bytes = fread(text, 1, room, f);
    text[bytes] = 0;
    fclose(f);
    assert_non_null(strstr(text, "aclnnSwiGlu"));
    for (size_t i = 0; i < sizeof FUSED / sizeof *FUSED; i++)
        if ((strstr(text, FUSED[i]) != NULL) != fused) fail_msg("%s was %slaunched", FUSED[i], fused ? "not " : "");
}

/* A filter of cmocka, as "grouped*". */
int main(int argc, char **argv) {
    char log[] = "/tmp/td_ascend_blocks_XXXXXX";
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    setenv("TD_STANDIN_DELAY_US", "5", 0);
    int file = mkstemp(log);
    if (file < 0) return 1;
    close(file);
    setenv("TD_STANDIN_LOG", log, 1);
    int failed = tests_run();
    unlink(log);
    return failed;
}
