/* The blocks other than attention, compared with plain models in every weight format and activation type, at sizes that fill
 * no tile. */
#include "kernels/rows/row_quant.h"
#include "npu_test_util.h"
#include "tests/td_test.h"

/* Outputs in bf16 are rounded once (2^-9); W8A8 has steps of 1/127 of a row's maximum on both sides. */
static double tolerance(td_dtype act, td_weight_format format) {
    return format == TD_WEIGHT_W8A8 ? 3e-2 : act == TD_DT_BF16 ? 5e-3 : 1e-5;
}

static float *bf16_array(rnd *r, size_t n, float scale) {
    float *f = rnd_array(r, n, scale);
    for (size_t i = 0; i < n; i++) f[i] = td_bf16_to_f32(td_f32_to_bf16(f[i]));
    return f;
}

static double *doubles(const float *f, size_t n) {
    double *d = malloc((n + 1) * sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = (double)f[i];
    return d;
}

static void check(const char *what, td_dtype act, const void *got, const double *want, size_t n, double limit) {
    double error = error_of(act, got, want, n);
    if (!(error < limit)) fail_msg("%s: relative error %g, limit %g", what, error, limit);
}

TEST(linears) {
    rnd r = rnd_open("linear");
    for (int round = 0; round < 40; round++) {
        td_dtype         act = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        td_weight_format format = (td_weight_format)(round % 3);
        size_t           n = rnd_range(&r, 1, 150), k = rnd_range(&r, 1, 200), m = rnd_range(&r, 1, round < 6 ? 2100 : 70);
        FREED float     *w = bf16_array(&r, n * k, 1), *bias = rnd_array(&r, n, 1), *x = bf16_array(&r, m * k, 1);
        FREED double    *xd = doubles(x, m * k), *want = malloc(m * n * sizeof *want);
        AT_END(rig_close) rig g = rig_open(2, act, false);
        FREED void           *in = act_array(act, x, m * k), *out = act_array(act, NULL, m * n);
        td_npu_weight        *ws[2] = {make_weight(&g, format, w, n, k), make_weight(&g, TD_WEIGHT_F32, bias, 0, n)};
        td_block_desc         desc = {
                    .kind = TD_BLOCK_LINEAR,
                    .max_tok = (uint32_t)m,
                    .linear = {
                        .n = (uint32_t)n, .k = (uint32_t)k, .w = ws[0], .bias = round & 4 ? ws[1] : NULL, .in = in, .out = out}};
        td_npu_block *b = make_block(&g, &desc);
        run_rows(&g, b, m);
        for (size_t i = 0; i < m; i++) ref_linear(w, round & 4 ? bias : NULL, xd + i * k, n, k, want + i * n);
        check("linear", act, out, want, m * n, tolerance(act, format));
    }
}

/* int8 weights with scales are taken as they are: with inputs that quantise exactly, the result is exact. */
TEST(int8_weights_are_exact) {
    rnd                   r = rnd_open("int8 weights");
    size_t                n = 77, k = 131, m = 19;
    int8_t               *w = malloc(n * k);
    float                 scale[77], *x = malloc(m * k * sizeof *x);
    AT_END(rig_close) rig g = rig_open(2, TD_DT_F32, false);
    float                *out = calloc(m * n, sizeof *out);
    for (size_t i = 0; i < n * k; i++) w[i] = (int8_t)(rnd_u64(&r) & 255); /* -128 too */
    for (size_t i = 0; i < n; i++) scale[i] = ldexpf(1, (int)rnd_range(&r, 0, 6) - 9);
    for (size_t i = 0; i < m * k; i++)
        x[i] = i % k == 5 ? 127 : (float)rnd_range(&r, 0, 254) - 127; /* the row's scale is 1 */
    td_tensor_view v = {.dtype = TD_DT_I8, .rank = 2, .shape = {n, k}, .data = w, .scale = scale};
    td_npu_weight *weight = weight_of(&g, TD_WEIGHT_W8A8, &v);
    td_npu_block  *b =
        make_block(&g, &(td_block_desc){.kind = TD_BLOCK_LINEAR,
                                        .max_tok = 19,
                                        .linear = {.n = (uint32_t)n, .k = (uint32_t)k, .w = weight, .in = x, .out = out}});
    run_rows(&g, b, 19);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            int32_t sum = 0;
            for (size_t l = 0; l < k; l++) sum += w[j * k + l] * (int32_t)x[i * k + l];
            assert_true(out[i * n + j] == (float)sum * scale[j]);
        }
    free(w), free(x), free(out);
}

TEST(norms) {
    rnd r = rnd_open("norm");
    for (int round = 0; round < 20; round++) {
        td_dtype      act = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        size_t        n = rnd_range(&r, 1, 300), m = rnd_range(&r, 1, 300), stride = round & 2 ? n + rnd_range(&r, 0, 9) : 0;
        size_t        ldo = stride ? stride : n;
        bool          with_add = round & 4;
        FREED float  *x = bf16_array(&r, m * n, 1), *add = bf16_array(&r, m * n, 1), *gamma = rnd_array(&r, n, 1);
        FREED double *sum = doubles(x, m * n), *row = malloc(n * sizeof *row);
        AT_END(rig_close) rig g = rig_open(2, act, false);
        FREED void *xa = act_array(act, x, m * n), *adda = act_array(act, add, m * n), *out = act_array(act, NULL, m * ldo);
        td_npu_weight *w = make_weight(&g, TD_WEIGHT_F32, gamma, 0, n);
        td_npu_block  *b =
            make_block(&g, &BLOCK_OF(TD_BLOCK_NORM, (uint32_t)m, norm, .hidden = (uint32_t)n, .eps = 1e-5f, .gamma = w,
                                     .x = xa, .add = with_add ? adda : NULL, .out = out, .out_stride = stride));
        run_rows(&g, b, m);
        for (size_t i = 0; with_add && i < m * n; i++) sum[i] += (double)add[i];
        check("residual", act, xa, sum, m * n, tolerance(act, TD_WEIGHT_F32));
        for (size_t i = 0; i < m; i++) {
            ref_norm(gamma, 1e-5, sum + i * n, n, row);
            check("norm", act, (char *)out + i * ldo * td_dtype_bytes(act), row, n,
                  n < 8 ? 3e-2 : tolerance(act, TD_WEIGHT_F32));
        }
    }
}

TEST(mlps) {
    rnd r = rnd_open("mlp");
    for (int round = 0; round < 24; round++) {
        td_dtype         act = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        td_weight_format format = (td_weight_format)(round % 3);
        size_t           h = rnd_range(&r, 2, 90), n = rnd_range(&r, 2, 130), m = rnd_range(&r, 1, round == 0 ? 1500 : 40);
        bool             gated = round & 2;
        FREED float     *gate = bf16_array(&r, n * h, 1), *up = bf16_array(&r, n * h, 1), *down = bf16_array(&r, n * h, 1);
        FREED float     *out_gate = rnd_array(&r, h, 1), *x = bf16_array(&r, m * h, 1);
        double          *xd = doubles(x, m * h), *want = malloc(m * h * sizeof *want), *a = malloc(n * sizeof *a),
               *c = malloc(n * sizeof *c), s;
        AT_END(rig_close) rig g = rig_open(3, act, false);
        FREED void           *in = act_array(act, x, m * h), *out = act_array(act, NULL, m * h);
        td_npu_weight        *ws[4] = {make_weight(&g, format, gate, n, h), make_weight(&g, format, up, n, h),
                                       make_weight(&g, format, down, h, n), make_weight(&g, TD_WEIGHT_F32, out_gate, 1, h)};
        td_npu_block         *b = make_block(
                    &g, &BLOCK_OF(TD_BLOCK_MLP, (uint32_t)m, mlp, .hidden = (uint32_t)h, .inter = (uint32_t)n, .gate = ws[0],
                                  .up = ws[1], .down = ws[2], .out_gate = gated ? ws[3] : NULL, .in = in, .out = out));
        run_rows(&g, b, m);
        for (size_t i = 0; i < m; i++) {
            ref_linear(gate, NULL, xd + i * h, n, h, a);
            ref_linear(up, NULL, xd + i * h, n, h, c);
            for (size_t l = 0; l < n; l++) a[l] = a[l] / (1 + exp(-a[l])) * c[l];
            ref_linear(down, NULL, a, h, n, want + i * h);
            ref_linear(out_gate, NULL, xd + i * h, 1, h, &s);
            for (size_t l = 0; gated && l < h; l++) want[i * h + l] /= 1 + exp(-s);
        }
        check("mlp", act, out, want, m * h, tolerance(act, format) * 2);
        free(xd);
        free(want);
        free(a);
        free(c);
    }
}

/* ---- router ------------------------------------------------------------------------------------ */

/* Better by choice, ties to the lower index. */
static bool comes_before(const double *c, size_t a, size_t b) {
    return c[a] > c[b] || (c[a] == c[b] && a < b);
}

static size_t rank_among(const double *c, const bool *allowed, size_t n, size_t e) {
    size_t rank = 0;
    for (size_t o = 0; o < n; o++) rank += allowed[o] && o != e && comes_before(c, o, e);
    return rank;
}

/*
 * Routing by ranks: an expert is chosen when fewer than top_k allowed ones come before it. Logits are small multiples of 1/8
 * in exact arithmetic, so ties are real ties and near-ties do not exist.
 */
static void ref_route(const td_router_desc *d, const double *logits, const float *bias, uint16_t *ids, double *weights) {
    double s[TD_EXPERTS_MAX], choice[TD_EXPERTS_MAX], sum = 0;
    bool   allowed[TD_EXPERTS_MAX];
    size_t n = d->n_experts;
    memcpy(s, logits, n * sizeof *s);
    if (d->score == TD_SCORE_SOFTMAX)
        ref_softmax(s, n);
    else if (d->score == TD_SCORE_SIGMOID)
        for (size_t e = 0; e < n; e++) s[e] = 1 / (1 + exp(-s[e]));
    else if (d->score == TD_SCORE_SQRT_SOFTPLUS)
        for (size_t e = 0; e < n; e++) s[e] = sqrt(log1p(exp(s[e])));
    for (size_t e = 0; e < n; e++) choice[e] = s[e] + (bias ? (double)bias[e] : 0), allowed[e] = true;
    if (d->group != TD_GROUP_NONE) {
        double group[64];
        size_t size = n / d->n_group;
        bool   every[64];
        for (size_t g = 0; g < d->n_group; g++) {
            double best = -INFINITY, second = -INFINITY;
            for (size_t e = g * size; e < (g + 1) * size; e++) {
                if (choice[e] > best)
                    second = best, best = choice[e];
                else if (choice[e] > second)
                    second = choice[e];
            }
            group[g] = d->group == TD_GROUP_MAX || size == 1 ? best : best + second;
            every[g] = true;
        }
        for (size_t e = 0; e < n; e++) allowed[e] = rank_among(group, every, d->n_group, e / size) < d->topk_group;
    }
    size_t found = 0;
    for (size_t e = 0; e < n; e++)
        if (allowed[e] && rank_among(choice, allowed, n, e) < d->top_k) ids[found++] = (uint16_t)e;
    assert_int_equal(found, d->top_k);
    if (d->score == TD_SCORE_SOFTMAX_CHOSEN) {
        for (size_t i = 0; i < found; i++) sum += exp(logits[ids[i]]);
        for (size_t i = 0; i < found; i++) s[ids[i]] = exp(logits[ids[i]]) / sum;
        sum = 0;
    }
    for (size_t i = 0; i < found; i++) sum += s[ids[i]];
    for (size_t i = 0; i < found; i++)
        for (size_t j = i + 1; j < found; j++)
            if (s[ids[j]] > s[ids[i]] || (s[ids[j]] == s[ids[i]] && ids[j] < ids[i])) {
                uint16_t swap = ids[i];
                ids[i] = ids[j];
                ids[j] = swap;
            }
    for (size_t i = 0; i < found; i++) weights[i] = s[ids[i]] / (d->normalise ? sum + 1e-20 : 1) * (double)d->scale;
}

TEST(routers) {
    rnd r = rnd_open("router");
    for (int round = 0; round < 60; round++) {
        td_dtype       act = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        td_router_desc d = {.hidden = (uint32_t)rnd_range(&r, 1, 40), .n_group = (uint32_t)rnd_range(&r, 1, 8)};
        d.n_experts = d.n_group * (uint32_t)rnd_range(&r, 1, round == 0 ? 256 : 12);
        d.topk_group = (uint32_t)rnd_range(&r, 1, d.n_group);
        d.group = (td_router_group)rnd_range(&r, 0, 2);
        size_t allowed = d.group ? d.n_experts / d.n_group * d.topk_group : d.n_experts;
        d.top_k = (uint32_t)rnd_range(&r, 1, allowed < 12 ? allowed : 12);
        d.score = (td_router_score)rnd_range(&r, 0, TD_ROUTER_SCORES - 1);
        d.normalise = rnd_u64(&r) & 1;
        d.scale = (float)rnd_range(&r, 1, 3);
        bool   with_bias = rnd_u64(&r) & 1, with_logit_bias = rnd_u64(&r) & 1;
        size_t m = rnd_range(&r, 1, 50), E = d.n_experts, H = d.hidden;
        float *w = malloc(E * H * sizeof *w), *x = malloc(m * H * sizeof *x), bias[TD_EXPERTS_MAX],
              logit_bias[TD_EXPERTS_MAX];
        double *xd = malloc(m * H * sizeof *xd), logits[TD_EXPERTS_MAX], want_w[TD_TOP_K_MAX];
        for (size_t i = 0; i < E * H; i++) w[i] = ((float)rnd_range(&r, 0, 4) - 2) / 8;
        for (size_t i = 0; i < m * H; i++) xd[i] = (double)(x[i] = (float)rnd_range(&r, 0, 2) - 1);
        for (size_t i = 0; i < E; i++) bias[i] = ((float)rnd_range(&r, 0, 8) - 4) / 4;
        for (size_t i = 0; i < E; i++) logit_bias[i] = ((float)rnd_range(&r, 0, 8) - 4) / 4;
        rig            g = rig_open(2, act, false);
        uint16_t       want[TD_TOP_K_MAX];
        td_npu_weight *ws[3] = {make_weight(&g, TD_WEIGHT_F32, w, E, H), make_weight(&g, TD_WEIGHT_F32, bias, 0, E),
                                make_weight(&g, TD_WEIGHT_F32, logit_bias, 0, E)};
        d.w = ws[0];
        d.bias = with_bias ? ws[1] : NULL;
        d.logit_bias = with_logit_bias ? ws[2] : NULL;
        d.in = act_array(act, x, m * H);
        uint16_t *ids = calloc(m * d.top_k, sizeof *ids);
        d.ids = ids;
        d.weights = calloc(m * d.top_k, sizeof *d.weights);
        td_npu_block *b = make_block(&g, &(td_block_desc){.kind = TD_BLOCK_ROUTER, .max_tok = (uint32_t)m, .router = d});
        run_rows(&g, b, m);
        for (size_t i = 0; i < m; i++) {
            ref_linear(w, with_logit_bias ? logit_bias : NULL, xd + i * H, E, H, logits);
            ref_route(&d, logits, with_bias ? bias : NULL, want, want_w);
            for (size_t k = 0; k < d.top_k; k++) {
                assert_true(fabs((double)d.weights[i * d.top_k + k] - want_w[k]) <= 2e-6 * want_w[k] + 1e-12);
                if (ids[i * d.top_k + k] != want[k])
                    fail_msg("round %d row %zu: expert %u at place %zu, not %u", round, i, ids[i * d.top_k + k], k, want[k]);
            }
        }
        rig_close(&g);
        void *mem[] = {w, x, xd, (void *)d.in, d.ids, d.weights};
        for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) free(mem[i]);
    }
}

TEST(a_nan_routes_to_experts_that_exist) {
    float w[24 * 3], x[3] = {NAN, 1, INFINITY};
    for (size_t i = 0; i < 24 * 3; i++) w[i] = (float)i - 30;
    AT_END(rig_close) rig g = rig_open(1, TD_DT_F32, false);
    td_npu_weight        *weight = make_weight(&g, TD_WEIGHT_F32, w, 24, 3);
    for (int round = 0; round < 2 * TD_ROUTER_SCORES; round++) {
        uint16_t       ids[6];
        float          weights[6];
        td_router_desc d =
            WITH(td_router_desc, .hidden = 3, .n_experts = 24, .top_k = 6, .n_group = 6, .topk_group = 3,
                 .score = (td_router_score)(round / 2), .group = round & 1 ? TD_GROUP_TOP2_SUM : TD_GROUP_NONE,
                 .normalise = true, .scale = 1, .w = weight, .in = x, .ids = ids, .weights = weights);
        td_npu_block *b = make_block(&g, &(td_block_desc){.kind = TD_BLOCK_ROUTER, .max_tok = 1, .router = d});
        run_rows(&g, b, 1);
        for (int i = 0; i < 6; i++) {
            assert_true(ids[i] < 24);
            for (int k = 0; k < i; k++) assert_int_not_equal(ids[i], ids[k]);
        }
    }
}

/* The choice and its weights do not depend on which experts have a slot; the bit in the ids says it. */
TEST(a_router_marks_experts_that_have_a_slot) {
    enum { ROWS = 9, HIDDEN = 16, EXPERTS = 20, K = 5 };
    rnd                   r = rnd_open("experts in slots");
    FREED float          *w = rnd_array(&r, EXPERTS * HIDDEN, 1), *x = rnd_array(&r, ROWS * HIDDEN, 1);
    AT_END(rig_close) rig g = rig_open(2, TD_DT_F32, false);
    td_npu_weight        *weight = make_weight(&g, TD_WEIGHT_F32, w, EXPERTS, HIDDEN);
    uint16_t              ids[2][ROWS * K], slot_of[EXPERTS];
    float                 weights[2][ROWS * K];
    for (uint16_t e = 0; e < EXPERTS; e++) slot_of[e] = e % 3 ? TD_NO_SLOT : e;
    for (int marked = 0; marked < 2; marked++) {
        td_router_desc d =
            WITH(td_router_desc, .hidden = HIDDEN, .n_experts = EXPERTS, .top_k = K, .normalise = true, .scale = 1,
                 .w = weight, .in = x, .ids = ids[marked], .weights = weights[marked], .slot_of = marked ? slot_of : NULL);
        td_npu_block *b = make_block(&g, &(td_block_desc){.kind = TD_BLOCK_ROUTER, .max_tok = ROWS, .router = d});
        run_rows(&g, b, ROWS);
    }
    for (size_t i = 0; i < ROWS * K; i++) {
        assert_int_equal(td_id_number(ids[1][i]), ids[0][i]);
        assert_int_equal(td_id_is_resident(ids[1][i]), ids[0][i] % 3 == 0);
    }
    assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
}

/* ---- embed, combine, head ---------------------------------------------------------------------- */

/* A tied model: one table feeds embed and head, which want it laid out differently. */
TEST(embed_combine_head) {
    rnd r = rnd_open("embed, combine, head");
    for (int round = 0; round < 12; round++) {
        td_dtype act = round & 1 ? TD_DT_BF16 : TD_DT_F32;
        size_t   h = rnd_range(&r, 2, 80), vocab = rnd_range(&r, 2, 200), m = rnd_range(&r, 1, 400),
               n_out = rnd_range(&r, 1, m);
        float  *table = bf16_array(&r, vocab * h, 1), *gamma = rnd_array(&r, h, 1), *adds[3];
        double *want = malloc(m * h * sizeof *want), *normed = malloc(h * sizeof *normed),
               *logits = malloc(vocab * sizeof *logits);
        rig       g = rig_open(2, act, false);
        void     *x = act_array(act, NULL, m * h), *add[3];
        float    *got = calloc(n_out * vocab, sizeof *got);
        uint32_t *token = malloc(m * sizeof *token), *rows = malloc(n_out * sizeof *rows);
        for (size_t i = 0; i < m; i++) token[i] = (uint32_t)rnd_range(&r, 0, vocab - 1);
        for (size_t i = 0; i < n_out; i++) rows[i] = (uint32_t)rnd_range(&r, 0, m - 1);
        td_npu_weight *w = make_weight(&g, TD_WEIGHT_BF16, table, vocab, h),
                      *gw = make_weight(&g, TD_WEIGHT_F32, gamma, 0, h);
        td_block_desc head = BLOCK_OF(TD_BLOCK_HEAD, (uint32_t)m, head, (uint32_t)h, (uint32_t)vocab, (uint32_t)n_out, 1e-6f,
                                      round & 2 ? gw : NULL, w, x, got);
        td_npu_block *blocks[3] = {make_block(&g, &(td_block_desc){.kind = TD_BLOCK_EMBED,
                                                                   .max_tok = (uint32_t)m,
                                                                   .embed = {.table = w, .hidden = (uint32_t)h, .out = x}})};
        td_combine_desc c = {.hidden = (uint32_t)h, .x = x};
        for (int i = 0; i < 3; i++) {
            adds[i] = bf16_array(&r, m * h, 1);
            add[i] = act_array(act, adds[i], m * h);
            if (round % 4 != i) c.add[i] = add[i];
        }
        if (round & 4) blocks[2] = make_block(&g, &head); /* before embed runs: the layout changes under it */
        blocks[1] = make_block(&g, &(td_block_desc){.kind = TD_BLOCK_COMBINE, .max_tok = (uint32_t)m, .combine = c});
        td_step_counts counts = {.n_tok = (uint32_t)m, .n_out = (uint32_t)n_out};
        td_step        step = td_step_unified(&(td_step_arrays){.counts = &counts, .token = token, .out_row = rows}, 0);
        run_block(&g, blocks[0], &step);
        if (!blocks[2]) blocks[2] = make_block(&g, &head);
        for (size_t i = 0; i < m * h; i++) {
            assert_true(act_get(act, x, i) == (double)table[token[i / h] * h + i % h]);
            want[i] = (double)table[token[i / h] * h + i % h];
            for (int k = 0; k < 3; k++) want[i] += c.add[k] ? (double)adds[k][i] : 0;
        }
        run_block(&g, blocks[1], &step);
        check("combine", act, x, want, m * h, tolerance(act, TD_WEIGHT_F32));
        for (size_t i = 0; i < m * h; i++) want[i] = act_get(act, x, i);
        run_block(&g, blocks[2], &step);
        for (size_t i = 0; i < n_out; i++) {
            memcpy(normed, want + rows[i] * h, h * sizeof *normed);
            if (round & 2) ref_norm(gamma, 1e-6, normed, h, normed);
            ref_linear(table, NULL, normed, vocab, h, logits);
            check("head", TD_DT_F32, got + i * vocab, logits, vocab, 1e-5);
        }
        rig_close(&g);
        void *mem[] = {table, gamma,  want,   normed, logits,  x,       got,    token,
                       rows,  add[0], add[1], add[2], adds[0], adds[1], adds[2]};
        for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) free(mem[i]);
    }
}

/* ---- bits and refusals ------------------------------------------------------------------------- */

/* A row's MLP and router bits do not depend on the rows beside it or on the threads. */
TEST(rows_are_alone) {
    rnd    r = rnd_open("rows alone");
    size_t h = 75, n = 100, m = 61, e = 40, k = 5;
    for (int round = 0; round < 6; round++) {
        td_weight_format format = (td_weight_format)(round % 3);
        FREED float     *w = bf16_array(&r, n * h * 3, 1), *router = rnd_array(&r, e * h, 1), *x = bf16_array(&r, m * h, 1);
        FREED void      *whole = NULL;
        for (uint32_t threads = 1; threads <= 3; threads++) {
            AT_END(rig_close) rig g = rig_open(threads, TD_DT_BF16, false);
            char    *in = act_array(g.act, x, m * h), *out = act_array(g.act, NULL, m * h), *mine = calloc(m, h * 2 + k * 6);
            uint16_t ids[61 * 5];
            float    weights[61 * 5];
            td_npu_weight *ws[4] = {make_weight(&g, format, w, n, h), make_weight(&g, format, w + n * h, n, h),
                                    make_weight(&g, format, w + 2 * n * h, h, n),
                                    make_weight(&g, TD_WEIGHT_F32, router, e, h)};
            for (size_t row = 0; row < m;) {
                size_t        rows = threads == 1 ? m : rnd_range(&r, 1, m - row > 14 ? 14 : m - row);
                td_npu_block *b[2] = {
                    make_block(&g, &BLOCK_OF(TD_BLOCK_MLP, 61, mlp, .hidden = (uint32_t)h, .inter = (uint32_t)n,
                                             .gate = ws[0], .up = ws[1], .down = ws[2], .in = in + row * h * 2, .out = out)),
                    make_block(&g, &BLOCK_OF(TD_BLOCK_ROUTER, 61, router, .hidden = (uint32_t)h, .n_experts = (uint32_t)e,
                                             .top_k = (uint32_t)k, .scale = 1, .w = ws[3], .in = in + row * h * 2,
                                             .ids = ids, .weights = weights))};
                for (int i = 0; i < 2; i++) run_rows(&g, b[i], rows);
                for (size_t i = 0; i < rows; i++) {
                    char *at = mine + (row + i) * (h * 2 + k * 6);
                    memcpy(at, out + i * h * 2, h * 2);
                    memcpy(at + h * 2, ids + i * k, k * 2);
                    memcpy(at + h * 2 + k * 2, weights + i * k, k * 4);
                }
                row += rows;
            }
            if (!whole) {
                whole = mine;
            } else {
                assert_memory_equal(mine, whole, m * (h * 2 + k * 6));
                free(mine);
            }
            free(in), free(out);
        }
    }
}

/* In any number of parts, of which some have no rows. */
TEST(an_mlp_in_parts) {
    rnd                   r = rnd_open("parts");
    const uint32_t        h = 75, n = 100, m = 600;
    AT_END(rig_close) rig g = rig_open(2, TD_DT_BF16, false);
    const td_npu_ops     *o = g.npu->ops;
    FREED float          *w = bf16_array(&r, (size_t)n * h * 3, 1), *x = bf16_array(&r, (size_t)m * h, 1);
    FREED char           *in = act_array(g.act, x, (size_t)m * h), *out = act_array(g.act, NULL, (size_t)m * h),
               *whole = malloc((size_t)m * h * 2);
    if (!o->enqueue_part) return;
    const td_block_desc desc =
        BLOCK_OF(TD_BLOCK_MLP, m, mlp, .hidden = h, .inter = n, .gate = make_weight(&g, TD_WEIGHT_W8A8, w, n, h),
                 .up = make_weight(&g, TD_WEIGHT_W8A8, w + n * h, n, h),
                 .down = make_weight(&g, TD_WEIGHT_W8A8, w + 2 * n * h, h, n), .in = in, .out = out);
    td_npu_block  *b = make_block(&g, &desc);
    td_step_counts counts = {.n_tok = m};
    td_step        step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
    run_block(&g, b, &step);
    memcpy(whole, out, (size_t)m * h * 2);
    for (uint32_t parts = 2; parts < 9; parts++) {
        memset(out, 0, (size_t)m * h * 2);
        for (uint32_t i = 0; i < parts; i++)
            OK(o->enqueue_part(g.npu, g.stream, b, &step, &(td_block_part){.i = i, .n = parts}));
        assert_memory_equal(out, whole, (size_t)m * h * 2);
    }
}

/* A norm that quantises gives what a linear behind it would have made of its row, so an MLP has the same bits either way. */
TEST(rows_quantised_by_the_norm_are_the_same) {
    rnd r = rnd_open("int8 from the norm");
    for (int round = 0; round < 8; round++) {
        size_t   m = rnd_range(&r, 1, 40), h = rnd_range(&r, 1, 300), inter = rnd_range(&r, 1, 200);
        td_dtype act = round & 1 ? TD_DT_F32 : TD_DT_BF16;
        rig      g = rig_open(2, act, false);
        float   *values = rnd_array(&r, m * h, 3), *gamma = rnd_array(&r, h, 1), *w = rnd_array(&r, 3 * h * inter, 1);
        if (m > 2) memset(values + h, 0, h * sizeof *values); /* an all-zero row has scale 1 */
        void *x = act_array(act, values, m * h), *normed = act_array(act, NULL, m * h),
             *out[2] = {act_array(act, NULL, m * h), act_array(act, NULL, m * h)};
        td_rows_i8     rows = {malloc(m * h), malloc(m * sizeof(float))}, want = {malloc(m * h), malloc(m * sizeof(float))};
        td_npu_weight *gw = make_weight(&g, TD_WEIGHT_F32, gamma, 0, h),
                      *ws[3] = {make_weight(&g, TD_WEIGHT_W8A8, w, inter, h),
                                make_weight(&g, TD_WEIGHT_W8A8, w + h * inter, inter, h),
                                make_weight(&g, TD_WEIGHT_W8A8, w + 2 * h * inter, h, inter)};
        td_norm_desc  norm = {.hidden = (uint32_t)h, .eps = 1e-6f, .gamma = gw, .x = x, .out = normed, .out_i8 = rows};
        td_mlp_desc   mlp = WITH(td_mlp_desc, .hidden = (uint32_t)h, .inter = (uint32_t)inter, .gate = ws[0], .up = ws[1],
                                 .down = ws[2], .in = normed, .out = out[0]);
        td_npu_block *blocks[4] = {
            make_block(&g, &(td_block_desc){.kind = TD_BLOCK_NORM, .max_tok = (uint32_t)m, .norm = norm}),
            make_block(&g, &(td_block_desc){.kind = TD_BLOCK_MLP, .max_tok = (uint32_t)m, .mlp = mlp})};
        mlp.in = NULL;
        mlp.in_i8 = rows;
        mlp.out = out[1];
        blocks[2] = make_block(&g, &(td_block_desc){.kind = TD_BLOCK_MLP, .max_tok = (uint32_t)m, .mlp = mlp});
        norm.out = NULL;
        blocks[3] = make_block(&g, &(td_block_desc){.kind = TD_BLOCK_NORM, .max_tok = (uint32_t)m, .norm = norm});
        run_rows(&g, blocks[0], m);
        td_quantize_rows_i8(act, normed, m, h, h, want.q, h, want.scale, NULL);
        assert_memory_equal(rows.q, want.q, m * h);
        assert_memory_equal(rows.scale, want.scale, m * sizeof(float));
        memset(rows.q, 77, m * h);
        run_rows(&g, blocks[3], m); /* without the float rows */
        assert_memory_equal(rows.q, want.q, m * h);
        run_rows(&g, blocks[1], m);
        run_rows(&g, blocks[2], m);
        assert_memory_equal(out[0], out[1], m * h * td_dtype_bytes(act));
        td_npu_weight *bf16 = make_weight(&g, TD_WEIGHT_BF16, w, inter, h);
        td_npu_block  *none;
        td_error       err = {0};
        mlp.gate = bf16; /* does not take int8 */
        assert_int_equal(
            g.npu->ops->block_create(g.npu, &(td_block_desc){.kind = TD_BLOCK_MLP, .max_tok = 1, .mlp = mlp}, &none, &err),
            TD_EINVAL);
        norm.out_i8.q = NULL;
        assert_int_equal(g.npu->ops->block_create(g.npu, &(td_block_desc){.kind = TD_BLOCK_NORM, .max_tok = 1, .norm = norm},
                                                  &none, &err),
                         TD_EINVAL);
        rig_close(&g);
        void *mem[] = {values, gamma, w, x, normed, out[0], out[1], rows.q, rows.scale, want.q, want.scale};
        for (size_t i = 0; i < sizeof mem / sizeof *mem; i++) free(mem[i]);
    }
}

static int in_order(const void *a, const void *b) {
    const td_logit *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The best logits are the beginning of the sorted row, equal ones by their ids. */
TEST(the_best_logits_are_those_of_the_sorted_row) {
    rnd                   r = rnd_open("top");
    AT_END(rig_close) rig g = rig_open(2, TD_DT_BF16, false);
    for (int round = 0; round < 20; round++) {
        size_t vocab = rnd_range(&r, 1, 3000), k = rnd_range(&r, 1, vocab < 256 ? vocab : 256), n = rnd_range(&r, 1, 5);
        FREED float    *logits = rnd_array(&r, n * vocab, 8);
        td_log_sum      sums[5];
        FREED td_logit *top = calloc(n * k, sizeof *top), *all = malloc(vocab * sizeof *all);
        for (size_t i = 0; i < n * vocab && round % 2; i++)
            logits[i] = rintf(logits[i]); /* many equal ones, zeros of both signs */
        for (size_t i = 0; i < n * vocab && round % 3 == 2; i += 5) logits[i] = -INFINITY;
        td_npu_block *b = make_block(
            &g, &(td_block_desc){
                    .kind = TD_BLOCK_TOP, .max_tok = 8, .top = {(uint32_t)vocab, (uint32_t)k, 5, logits, top, sums}});
        td_step_counts counts = {.n_tok = 1, .n_out = (uint32_t)n};
        td_step        step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
        run_block(&g, b, &step);
        for (size_t row = 0; row < n; row++) {
            for (uint32_t i = 0; i < vocab; i++) all[i] = (td_logit){logits[row * vocab + i], i};
            qsort(all, vocab, sizeof *all, in_order);
            for (size_t i = 0; i < k; i++) {
                assert_int_equal(top[row * k + i].id, all[i].id);
                assert_true(top[row * k + i].value == all[i].value);
            }
            double sum = 0;
            for (size_t i = 0; i < vocab; i++) sum += exp((double)all[i].value - (double)all[0].value);
            if (!isinf(all[0].value)) {
                assert_true(sums[row].max == all[0].value);
                assert_true(fabs((double)sums[row].sum - sum) <=
                            1e-6 * sum); /* exponentials are 2e-7 off, sums of 1024 f32 */
            }
        }
        logits[rnd_range(&r, 0, vocab - 1)] = round % 2 ? NAN : INFINITY;
        run_block(&g, b, &step);
        assert_true(isnan(top[0].value) && !isfinite(sums[0].sum));
    }
    td_npu_block *none;
    td_error      err = {0};
    assert_int_equal(
        g.npu->ops->block_create(
            g.npu, &(td_block_desc){.kind = TD_BLOCK_TOP, .max_tok = 1, .top = {.vocab = 4, .k = 5, .max_out = 1}}, &none,
            &err),
        TD_EINVAL);
}

/* What a run returns: of an inline device enqueuing does, of others the wait. */
static td_status status_of_run(rig *g, td_npu_block *b, const td_step *step) {
    td_npu_caps caps;
    g->npu->ops->caps(g->npu, &caps);
    td_status st = g->npu->ops->enqueue(g->npu, g->stream, b, step);
    return caps.inline_work || st != TD_OK ? st : g->npu->ops->stream_sync(g->npu, g->stream);
}

TEST(bad_blocks_are_refused) {
    rnd                   r = rnd_open("refusals");
    AT_END(rig_close) rig g = rig_open(1, TD_DT_BF16, false);
    FREED float          *f = rnd_array(&r, 64, 1);
    td_npu_weight        *w = make_weight(&g, TD_WEIGHT_W8A8, f, 8, 8), *v = make_weight(&g, TD_WEIGHT_F32, f, 0, 8), *out;
    td_npu_block         *b;
    td_error              err = {0};
    td_block_desc         bad[] = {
                {.kind = TD_BLOCK_LINEAR, .max_tok = 1},
                {.kind = TD_BLOCK_LINEAR, .max_tok = 0, .linear = {.n = 8, .k = 8, .w = w}},
                {.kind = TD_BLOCK_LINEAR, .max_tok = 1, .linear = {.n = 8, .k = 8, .w = v}},
                {.kind = TD_BLOCK_NORM, .max_tok = 1, .norm = {.hidden = 9, .gamma = v}},
                {.kind = TD_BLOCK_NORM, .max_tok = 1, .norm = {.hidden = 0, .gamma = v}},
                {.kind = TD_BLOCK_MLP, .max_tok = 1, .mlp = {.hidden = 8, .inter = 9, .gate = w, .up = w, .down = w}},
                {.kind = TD_BLOCK_ROUTER, .max_tok = 1, .router = {.hidden = 8, .n_experts = 8, .top_k = 9, .w = w}},
                {.kind = TD_BLOCK_ROUTER, .max_tok = 1, .router = {.hidden = 8, .n_experts = 8, .top_k = 2, .w = w}},
                {.kind = TD_BLOCK_EMBED, .max_tok = 1, .embed = {.hidden = 8, .table = w}},
                {.kind = TD_BLOCK_GQA, .max_tok = 1, .max_kv = 1, .gqa = {.hidden = 8, .heads = 3, .kv_heads = 2, .head_dim = 8}},
                {.kind = TD_BLOCK_COUNT, .max_tok = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (td_error){0};
        assert_int_equal(g.npu->ops->block_create(g.npu, &bad[i], &b, &err), TD_EINVAL);
        assert_true(err.text[0] != 0);
    }
    f[3] = NAN;
    td_tensor_view nan_view = {.dtype = TD_DT_F32, .rank = 2, .shape = {8, 8}, .data = f};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(
            g.npu->ops->weight_create(g.npu, (const td_weight_format[]){TD_WEIGHT_W8A8, TD_WEIGHT_BF16, TD_WEIGHT_F32}[i],
                                      &nan_view, &out, &err),
            TD_EFORMAT);
        assert_null(out);
    }

    char          rows[3 * 8 * 2];
    td_npu_block *ok = make_block(
        &g, &(td_block_desc){
                .kind = TD_BLOCK_LINEAR, .max_tok = 2, .linear = {.n = 8, .k = 8, .w = w, .in = rows, .out = rows}});
    td_step_counts too_many = {.n_tok = 3};
    td_step        step = td_step_unified(&(td_step_arrays){.counts = &too_many}, 0);
    assert_int_equal(status_of_run(&g, ok, &step), TD_EINVAL); /* more rows than the block's buffers have */
    too_many.n_tok = 2;
    step.max_tok = 1;
    assert_int_equal(status_of_run(&g, ok, &step), TD_EINVAL); /* more than the bucket has */
    too_many.n_tok = 1;
    step.first_row = 2;
    assert_int_equal(status_of_run(&g, ok, &step), TD_EINVAL); /* behind the buffers' end */
}

TEST(weights_take_what_was_planned) {
    AT_END(rig_close) rig g = rig_open(1, TD_DT_BF16, false);
    /* at most a tile of rows, a step of k, the scales and a page more than the numbers themselves */
    for (size_t n = 100; n < 1000; n += 333)
        for (size_t k = 100; k < 1000; k += 333) {
            assert_in_range(g.npu->ops->weight_bytes(g.npu, TD_WEIGHT_W8A8, 0, n, k), n * k,
                            (n + 32) * (k + 32 + 4) + 4096 + 64);
            assert_in_range(g.npu->ops->weight_bytes(g.npu, TD_WEIGHT_BF16, 0, n, k), n * k * 2,
                            (n + 32) * k * 2 + 4096 + 64);
            assert_in_range(g.npu->ops->weight_bytes(g.npu, TD_WEIGHT_F32, 0, n, k), n * k * 4,
                            (n + 16) * k * 4 + 4096 + 64);
        }
}
