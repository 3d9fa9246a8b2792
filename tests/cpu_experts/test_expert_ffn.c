/* The expert FFN, compared with its formula in plain double precision; and the invariances that it promises, bit for bit.
 */

#include <math.h>

#include "cpu_experts/expert_state.h"
#include "kernels/rows/convert.h"
#include "quant/coded_matrix.h"
#include "tests/cpu_experts/expert_fixture.h"
#include "tests/cpu_experts/load_views.h"
#include "tests/guard_page.h"
#include "tests/td_test.h"

AT_END_OF(end_experts, td_experts, td_experts_destroy)
AT_END_OF(end_pool, td_pool, td_pool_destroy)

#define SEED 31415u

static td_experts *open_experts(td_experts_config c, td_pool *pool, const fixture_weights *w) {
    td_experts *x;
    td_error    err = {0};
    if (td_experts_create(&c, pool, &x, &err) != TD_OK || load_views(x, c.n_layers - 1, w->experts, &err) != TD_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    return x;
}

static td_experts_config config_of(const fixture_weights *w, td_expert_format format, td_dtype act, uint32_t top_k,
                                   uint32_t max_tok, uint32_t max_deferred) {
    return WITH(td_experts_config, .n_layers = 1, .n_experts = w->n_experts, .hidden = w->hidden, .inter = w->inter,
                .top_k = top_k, .format = format, .groups = fixture_groups(format), .glu = w->glu, .bias = w->biases != NULL,
                .act_dtype = act, .max_tok = max_tok, .max_deferred = max_deferred);
}

static void run_ffn(td_experts *x, const fixture_tokens *t, const void *in, uint32_t n_immediate, void *y,
                    void *y_deferred) {
    td_experts_ffn(x, x->config.n_layers - 1,
                   &WITH(td_ffn_args, .n_tok = t->n_tok, .top_k = t->top_k, .x = in, .ids = t->ids, .weights = t->weights,
                         .n_immediate = n_immediate, .y = y, .y_deferred = y_deferred));
}

/* ---- the formula in double ---------------------------------------------------------------------- */

static double quantised(double v, double scale, int qmax) {
    double q = nearbyint(v / scale);
    return (q > qmax ? qmax : q < -qmax ? -qmax : q) * scale;
}

static double row_scale(const double *v, size_t n, int qmax) {
    double amax = 0;
    for (size_t i = 0; i < n; i++) amax = fmax(amax, fabs(v[i]));
    return amax == 0 ? 1 : amax / qmax;
}

static void quantise_row(double *v, size_t n, int qmax) {
    double s = row_scale(v, n, qmax);
    for (size_t i = 0; i < n; i++) v[i] = quantised(v[i], s, qmax);
}

/* Groups of int4g: codes from -8 to 7; the weight of largest magnitude gets -8, by the sign of the scale, unless the other
 * end needs a larger one. The scale is rounded to bf16, so weights may be limited. */
static void quantise_group(double *v, size_t n) {
    double least = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        least = fmin(least, v[i]);
        most = fmax(most, v[i]);
    }
    bool   negated = most > -least;
    double large = negated ? most : -least, small = negated ? -least : most, size = fmax(large / 8, small / 7);
    double s = (double)td_bf16_to_f32(td_f32_to_bf16((float)(negated ? -size : size)));
    for (size_t i = 0; i < n; i++) v[i] = fmin(fmax(nearbyint(v[i] / s), -8), 7) * s;
}

/* Groups of NVFP4: the scale is the e4m3 nearest to amax / 6 in units of the matrix' factor; ties are too rare to matter
 * here. */
static double nearest_of(double v, const double *values, size_t n) {
    double best = values[0];
    for (size_t i = 1; i < n; i++)
        if (fabs(values[i] - fabs(v)) < fabs(best - fabs(v))) best = values[i];
    return v < 0 ? -best : best;
}

static void quantise_fp4_group(double *v, size_t n, double factor) {
    static const double E2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double              e4m3[127], amax = 0;
    for (int c = 0; c < 127; c++) e4m3[c] = c < 8 ? ldexp(c, -9) : ldexp(8 + c % 8, c / 8 - 10);
    for (size_t i = 0; i < n; i++) amax = fmax(amax, fabs(v[i]));
    double s = nearest_of(amax / 6 / factor, e4m3, 127) * factor;
    for (size_t i = 0; i < n; i++) v[i] = s == 0 ? 0 : nearest_of(v[i] / s, E2M1, 8) * s;
}

static void quantise_weights(double *row, size_t k, td_expert_format format, double factor) {
    size_t size = fixture_groups(format).size;
    switch (format) {
        case TD_EXPERT_INT4C: quantise_row(row, k, 7); break;
        case TD_EXPERT_INT8C: quantise_row(row, k, 127); break;
        case TD_EXPERT_INT4G:
            for (size_t j = 0; j < k; j += size) quantise_group(row + j, k - j < size ? k - j : size);
            break;
        case TD_EXPERT_FP4G:
            for (size_t j = 0; j < k; j += size) quantise_fp4_group(row + j, k - j < size ? k - j : size, factor);
            break;
        case TD_EXPERT_BF16:
            for (size_t j = 0; j < k; j++) row[j] = td_bf16_to_f32(td_f32_to_bf16((float)row[j]));
    }
}

static void linear(const td_tensor_view *w, const td_tensor_view *bias, td_expert_format format, const double *x,
                   double *y) {
    size_t  n = w->shape[0], k = w->shape[1];
    double *row = malloc(k * sizeof *row), amax = 0;
    for (size_t i = 0; i < n * k; i++) amax = fmax(amax, fabs((double)((const float *)w->data)[i]));
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < k; j++) row[j] = ((const float *)w->data)[i * k + j];
        quantise_weights(row, k, format, amax / (6 * 448));
        y[i] = 0;
        for (size_t j = 0; j < k; j++) y[i] += row[j] * x[j];
        if (bias->data) y[i] += (double)((const float *)bias->data)[i];
    }
    free(row);
}

/* format: what the weights are rounded to. int8: activations are quantised. */
static void expert_in_double(const fixture_weights *w, uint32_t e, td_expert_format format, bool int8, const float *x,
                             double *y) {
    FREED double *in = malloc(w->hidden * sizeof *in), *g = malloc(w->inter * sizeof *g), *u = malloc(w->inter * sizeof *u);
    for (size_t i = 0; i < w->hidden; i++) in[i] = x[i];
    if (int8) quantise_row(in, w->hidden, 127);
    linear(&w->experts[e].gate, &w->experts[e].gate_bias, format, in, g);
    linear(&w->experts[e].up, &w->experts[e].up_bias, format, in, u);
    for (size_t i = 0; i < w->inter; i++) {
        double limit = (double)w->glu.limit, gate = g[i], up = u[i];
        if (w->biases) gate = fmin(gate, limit), up = fmin(fmax(up, -limit), limit) + (double)w->glu.up_add;
        g[i] = up * gate / (1 + exp(-gate * (w->biases ? (double)w->glu.alpha : 1)));
    }
    if (int8) quantise_row(g, w->inter, 127);
    linear(&w->experts[e].down, &w->experts[e].down_bias, format, g, y);
}

static void compare_with_double(td_expert_format format, uint32_t hidden, uint32_t inter, bool gated, double tolerance) {
    enum { N_TOK = 9, K = 3, N_EXPERTS = 7, DEFERRED = 1 };
    AT_END(fixture_weights_free) fixture_weights w = fixture_weights_new(SEED, N_EXPERTS, hidden, inter);
    AT_END(fixture_tokens_free) fixture_tokens   t = fixture_tokens_new(SEED, N_TOK, K, N_EXPERTS, hidden);
    AT_END(end_pool) td_pool                    *pool = fixture_pool(2, 1);
    if (gated) fixture_weights_gate(&w, SEED);
    AT_END(end_experts) td_experts *x = open_experts(config_of(&w, format, TD_DT_F32, K, N_TOK, DEFERRED), pool, &w);
    AT_END(guard_free) guarded      y = guard_alloc(N_TOK * hidden * 4), yd = guard_alloc(N_TOK * hidden * 4);
    FREED double                   *out = malloc(hidden * sizeof *out), *want = calloc(2 * hidden, sizeof *want);
    run_ffn(x, &t, t.x, K - DEFERRED, y.data, yd.data);
    const double rounding = K * 0x1p-27; /* of the terms of an exact sum */
    double       worst = 0;
    for (uint32_t i = 0; i < N_TOK; i++) {
        double amax = 0;
        memset(want, 0, 2 * hidden * sizeof *want);
        for (uint32_t j = 0; j < K; j++) {
            double *sum = want + (j < K - DEFERRED ? 0 : hidden);
            expert_in_double(&w, t.ids[i * K + j], format, format != TD_EXPERT_BF16, t.x + i * hidden, out);
            for (uint32_t h = 0; h < hidden; h++) sum[h] += (double)t.weights[i * K + j] * out[h];
        }
        for (uint32_t h = 0; h < hidden; h++) amax = fmax(amax, fabs(want[h]));
        for (uint32_t h = 0; h < hidden; h++) {
            worst = fmax(worst, (fabs(want[h] - ((float *)y.data)[i * hidden + h]) - rounding) / amax);
            worst = fmax(worst, (fabs(want[hidden + h] - ((float *)yd.data)[i * hidden + h]) - rounding) / amax);
        }
    }
    print_message("  %s hidden %u inter %u%s: worst error %.2g of the largest output\n", td_experts_kernel_name(x), hidden,
                  inter, gated ? " with biases and limits" : "", worst);
    assert_true(worst < tolerance);
}

TEST(matches_the_formula) {
    print_message("seed %u\n", SEED);
    static const uint32_t shapes[][2] = {{64, 32}, {256, 128}, {100, 37}, {33, 1}, {1, 50}, {70, 200}};
    for (size_t n = 0; n < 2 * sizeof shapes / sizeof shapes[0]; n++) {
        const size_t i = n / 2;
        const bool   gated = n % 2;
        /* f32 sums in the order of k: about k eps */
        compare_with_double(TD_EXPERT_BF16, shapes[i][0], shapes[i][1], gated, 2e-5);
        /* f32 and double round a few activations to different codes: each is 1/127 of the row's largest, in one of inter
         * terms */
        for (int f = 0; f < TD_EXPERT_FORMATS; f++)
            if (f != TD_EXPERT_BF16) compare_with_double((td_expert_format)f, shapes[i][0], shapes[i][1], gated, 2e-2);
    }
}

/* ---- invariances ---------------------------------------------------------------------------------- */

enum { INV_TOK = 37, INV_K = 4, INV_EXPERTS = 24, INV_HIDDEN = 150, INV_INTER = 90, INV_DEFER = 2 };

typedef struct {
    td_expert_format format;
    td_dtype         act;
    fixture_weights  w;
    fixture_tokens   t;
    void            *in; /* [INV_TOK, INV_HIDDEN] act */
    size_t           row_bytes;
    char y[INV_TOK * INV_HIDDEN * 4], yd[INV_TOK * INV_HIDDEN * 4]; /* one worker, all tokens at once, one pass */
} invariance;

static int  done_calls;
static void count_done(void *user) {
    (void)user;
    done_calls++;
}

static void invariance_open(invariance *v, td_expert_format format, td_dtype act, bool gated) {
    v->format = format;
    v->act = act;
    v->w = fixture_weights_new(SEED + 1, INV_EXPERTS, INV_HIDDEN, INV_INTER);
    if (gated) fixture_weights_gate(&v->w, SEED + 1);
    v->t = fixture_tokens_new(SEED + 1, INV_TOK, INV_K, INV_EXPERTS, INV_HIDDEN);
    v->row_bytes = INV_HIDDEN * td_dtype_bytes(act);
    v->in = malloc(INV_TOK * v->row_bytes);
    for (size_t i = 0; i < INV_TOK * INV_HIDDEN; i++)
        if (act == TD_DT_F32)
            ((float *)v->in)[i] = v->t.x[i];
        else
            ((td_bf16 *)v->in)[i] = td_f32_to_bf16(v->t.x[i]);
    AT_END(end_pool) td_pool       *pool = fixture_pool(1, 1);
    AT_END(end_experts) td_experts *x = open_experts(config_of(&v->w, format, act, INV_K, INV_TOK, INV_DEFER), pool, &v->w);
    x->scratch.defer_tok = 0; /* never hold outputs back */
    run_ffn(x, &v->t, v->in, INV_K - INV_DEFER, v->y, v->yd);
}

static void invariance_close(invariance *v) {
    fixture_weights_free(&v->w);
    fixture_tokens_free(&v->t);
    free(v->in);
}

static void check_schedules(invariance *v, uint32_t workers, uint32_t subpools) {
    AT_END(end_pool) td_pool *pool = fixture_pool(workers, subpools);
    AT_END(end_experts)
    td_experts *x = open_experts(config_of(&v->w, v->format, v->act, INV_K, INV_TOK, INV_DEFER), pool, &v->w);
    uint32_t    planned = x->scratch.batch_tok, defer_tok = x->scratch.defer_tok;
    assert_int_equal(planned, INV_TOK);
    assert_true(defer_tok == INV_TOK);
    /* pieces of the batch, batches inside a call, one or two passes */
    static const uint32_t pieces[] = {INV_TOK, 20, 5, 1}, batches[] = {INV_TOK, 7};
    size_t                n_pieces = workers == 1 ? 4 : 2; /* more workers than free cores make every call slow */
    for (size_t p = 0; p < n_pieces; p++)
        for (size_t b = 0; b < 2; b++)
            for (int hold = 0; hold < 2; hold++) {
                AT_END(guard_free) guarded y = guard_alloc(INV_TOK * v->row_bytes), yd = guard_alloc(INV_TOK * v->row_bytes);
                x->scratch.batch_tok = batches[b];
                x->scratch.defer_tok = hold ? defer_tok : 0;
                done_calls = 0;
                int calls = 0;
                for (uint32_t at = 0; at < INV_TOK; at += pieces[p], calls++) {
                    uint32_t n = INV_TOK - at < pieces[p] ? INV_TOK - at : pieces[p];
                    td_experts_ffn(x, 0,
                                   &WITH(td_ffn_args, .n_tok = n, .top_k = INV_K, .x = (char *)v->in + at * v->row_bytes,
                                         .ids = v->t.ids + at * INV_K, .weights = v->t.weights + at * INV_K,
                                         .n_immediate = INV_K - INV_DEFER, .y = (char *)y.data + at * v->row_bytes,
                                         .y_deferred = (char *)yd.data + at * v->row_bytes, .immediate_done = count_done));
                }
                assert_int_equal(done_calls, calls);
                assert_memory_equal(y.data, v->y, INV_TOK * v->row_bytes);
                assert_memory_equal(yd.data, v->yd, INV_TOK * v->row_bytes);
            }
    x->scratch.batch_tok = planned;
}

TEST(results_do_not_depend_on_threads_shards_batch_or_schedule) {
    static const struct {
        td_expert_format format;
        td_dtype         act;
        bool             gated;
    } kinds[] = {
        {TD_EXPERT_INT4C, TD_DT_F32, false}, {TD_EXPERT_INT4C, TD_DT_BF16, false}, {TD_EXPERT_BF16, TD_DT_F32, false},
        {TD_EXPERT_BF16, TD_DT_BF16, false}, {TD_EXPERT_INT8C, TD_DT_BF16, false}, {TD_EXPERT_INT4G, TD_DT_BF16, false},
        {TD_EXPERT_FP4G, TD_DT_BF16, false}, {TD_EXPERT_FP4G, TD_DT_BF16, true},   {TD_EXPERT_BF16, TD_DT_F32, true}};
    static const uint32_t pools[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 2}, {3, 3}};
    static invariance     v;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        invariance_open(&v, kinds[i].format, kinds[i].act, kinds[i].gated);
        for (size_t p = 0; p < sizeof pools / sizeof pools[0]; p++) check_schedules(&v, pools[p][0], pools[p][1]);
        invariance_close(&v);
    }
}

/* Each pair's expert is here or resident on the device, by a draw: of a third of the tokens none is here, of some experts
 * none anywhere. */
static void draw_places(const invariance *v, uint16_t *here, uint16_t *there) {
    for (uint32_t i = 0; i < INV_TOK * INV_K; i++) {
        const bool is_here = i / INV_K % 3 && td_rng_u64(SEED, 200, i) & 1;
        here[i] = v->t.ids[i] | (is_here ? 0 : TD_ID_RESIDENT);
        there[i] = v->t.ids[i] | (is_here ? TD_ID_RESIDENT : 0);
    }
}

static void assert_parts_add_up(const invariance *v, int32_t *const sums[2], const void *want) {
    const size_t   words = td_exact_words(INV_HIDDEN);
    static int32_t whole[2 * (INV_HIDDEN + TD_EXACT_BLOCK)];
    char           y[INV_HIDDEN * 4];
    float          values[INV_HIDDEN];
    for (size_t t = 0; t < INV_TOK; t++) {
        for (size_t i = 0; i < words; i++) whole[i] = sums[0][t * words + i] + sums[1][t * words + i];
        td_kernels_here()->rows->exact_end(whole, INV_HIDDEN, values);
        td_from_f32(v->act, values, INV_HIDDEN, y);
        assert_memory_equal(y, (const char *)want + t * v->row_bytes, v->row_bytes);
    }
}

/* Two calls, each with a part of the pairs, give sums that add up to those of one call; with deferral as without. */
TEST(parts_of_a_sum_add_up) {
    static invariance v;
    static uint16_t   ids[2][INV_TOK * INV_K];
    enum { WORDS = 2 * (INV_HIDDEN + TD_EXACT_BLOCK) };
    static int32_t now[2][INV_TOK * WORDS], deferred[2][INV_TOK * WORDS];
    for (int f = 0; f < TD_EXPERT_FORMATS; f++) {
        invariance_open(&v, (td_expert_format)f, TD_DT_BF16, false);
        td_pool    *pool = fixture_pool(2, 2);
        td_experts *x = open_experts(config_of(&v.w, v.format, v.act, INV_K, INV_TOK, INV_DEFER), pool, &v.w);
        draw_places(&v, ids[0], ids[1]);
        for (int part = 0; part < 2; part++)
            td_experts_ffn(
                x, 0,
                &WITH(td_ffn_args, .n_tok = INV_TOK, .top_k = INV_K, .x = v.in, .ids = ids[part], .weights = v.t.weights,
                      .n_immediate = INV_K - INV_DEFER, .y = now[part], .y_deferred = deferred[part], .in_parts = true));
        assert_parts_add_up(&v, (int32_t *const[]){now[0], now[1]}, v.y);
        assert_parts_add_up(&v, (int32_t *const[]){deferred[0], deferred[1]}, v.yd);
        uint64_t     pairs;
        td_tier_work work;
        td_experts_counters(x, &pairs, &work);
        assert_int_equal(pairs, INV_TOK * INV_K);
        td_experts_destroy(x);
        td_pool_destroy(pool);
        invariance_close(&v);
    }
}

/* Nothing is here: zeros, as values or as sums, and nothing counted. */
TEST(resident_experts_leave_zeros) {
    static invariance v;
    static uint16_t   ids[INV_TOK * INV_K];
    static char       y[2][INV_TOK * INV_HIDDEN * 4], zeros[INV_TOK * INV_HIDDEN * 4];
    invariance_open(&v, TD_EXPERT_INT4C, TD_DT_BF16, false);
    td_pool    *pool = fixture_pool(2, 1);
    td_experts *x = open_experts(config_of(&v.w, v.format, v.act, INV_K, INV_TOK, INV_DEFER), pool, &v.w);
    for (size_t i = 0; i < INV_TOK * INV_K; i++) ids[i] = v.t.ids[i] | TD_ID_RESIDENT;
    memset(y, 1, sizeof y);
    done_calls = 0;
    td_experts_ffn(x, 0,
                   &WITH(td_ffn_args, .n_tok = INV_TOK, .top_k = INV_K, .x = v.in, .ids = ids, .weights = v.t.weights,
                         .n_immediate = INV_K - INV_DEFER, .y = y[0], .y_deferred = y[1], .immediate_done = count_done));
    for (int i = 0; i < 2; i++) assert_memory_equal(y[i], zeros, INV_TOK * v.row_bytes);
    assert_int_equal(done_calls, 1);
    td_tier_work work;
    uint64_t     pairs;
    td_experts_counters(x, &pairs, &work);
    assert_int_equal(pairs, 0);
    assert_int_equal(work.bytes, 0);
    td_experts_destroy(x);
    td_pool_destroy(pool);
    invariance_close(&v);
}

/* y + y_deferred by definition: each part is the call with only those experts. */
TEST(deferral_is_exact) {
    static invariance v;
    invariance_open(&v, TD_EXPERT_INT4C, TD_DT_F32, false);
    td_pool        *pool = fixture_pool(2, 1);
    td_experts     *x = open_experts(config_of(&v.w, v.format, v.act, INV_K, INV_TOK, INV_DEFER), pool, &v.w);
    static uint16_t ids[2][INV_TOK * INV_DEFER];
    static float    weights[2][INV_TOK * INV_DEFER], y[INV_TOK * INV_HIDDEN];
    for (uint32_t t = 0; t < INV_TOK; t++)
        for (uint32_t j = 0; j < INV_K; j++) {
            ids[j / INV_DEFER][t * INV_DEFER + j % INV_DEFER] = v.t.ids[t * INV_K + j];
            weights[j / INV_DEFER][t * INV_DEFER + j % INV_DEFER] = v.t.weights[t * INV_K + j];
        }
    for (int part = 0; part < 2; part++) {
        td_experts_ffn(x, 0,
                       &WITH(td_ffn_args, .n_tok = INV_TOK, .top_k = INV_DEFER, .x = v.in, .ids = ids[part],
                             .weights = weights[part], .n_immediate = INV_DEFER, .y = y));
        assert_memory_equal(y, part ? v.yd : v.y, sizeof y);
    }
    uint64_t     pairs;
    uint32_t     layer;
    td_tier_work work;
    td_experts_counters(x, &pairs, &work);
    assert_int_equal(pairs, 2 * INV_TOK * INV_DEFER);
    assert_int_equal(work.int8_ops + work.f32_ops, pairs * 2 * (3 * INV_HIDDEN * INV_INTER));
    assert_true(work.busy_ns > 0);
    assert_false(td_experts_doing(x, &layer));
    /* Each part reads its distinct experts once. */
    uint64_t distinct = 0, weight_bytes, scratch_bytes;
    for (int part = 0; part < 2; part++)
        for (uint32_t e = 0; e < INV_EXPERTS; e++) {
            bool chosen = false;
            for (uint32_t i = 0; i < INV_TOK * INV_DEFER; i++) chosen = chosen || ids[part][i] == e;
            distinct += chosen;
        }
    td_experts_config c = config_of(&v.w, v.format, v.act, INV_K, INV_TOK, INV_DEFER);
    OK(td_experts_measure(&c, 1, 1, &weight_bytes, &scratch_bytes, NULL));
    assert_int_equal(work.bytes, distinct * (weight_bytes / INV_EXPERTS));
    td_expert_node nodes[TD_EXPERT_NODES_MAX];
    uint32_t       n_nodes = td_experts_nodes(x, nodes);
    double         share = 0;
    for (uint32_t i = 0; i < n_nodes; i++) share += nodes[i].share;
    assert_int_equal(n_nodes, 1);
    assert_int_equal(nodes[0].node, td_pool_node(pool, 0));
    assert_float_equal(share, 1, 1e-12);
    td_experts_destroy(x);
    td_pool_destroy(pool);
    invariance_close(&v);
}

static const float *seen_y;
static bool         y_was_complete;
static const void  *wanted_y;
static void         look_at_y(void *user) {
            (void)user;
            y_was_complete = !memcmp(seen_y, wanted_y, INV_TOK * INV_HIDDEN * sizeof(float));
}

TEST(y_is_complete_when_immediate_done_is_called) {
    static invariance v;
    invariance_open(&v, TD_EXPERT_INT4C, TD_DT_F32, false);
    td_pool     *pool = fixture_pool(2, 1);
    td_experts  *x = open_experts(config_of(&v.w, v.format, v.act, INV_K, INV_TOK, INV_DEFER), pool, &v.w);
    static float y[INV_TOK * INV_HIDDEN], yd[INV_TOK * INV_HIDDEN];
    seen_y = y;
    wanted_y = v.y;
    td_experts_ffn(x, 0,
                   &WITH(td_ffn_args, .n_tok = INV_TOK, .top_k = INV_K, .x = v.in, .ids = v.t.ids, .weights = v.t.weights,
                         .n_immediate = INV_K - INV_DEFER, .y = y, .y_deferred = yd, .immediate_done = look_at_y));
    assert_true(y_was_complete);
    td_experts_destroy(x);
    td_pool_destroy(pool);
    invariance_close(&v);
}

TEST(random_weights_do_not_depend_on_shards) {
    for (int format = 0; format < TD_EXPERT_FORMATS; format++) {
        td_experts_config c = WITH(td_experts_config, .n_layers = 2, .n_experts = 6, .hidden = 130, .inter = 75, .top_k = 3,
                                   .format = (td_expert_format)format, .groups = fixture_groups((td_expert_format)format),
                                   .bias = format & 1, .act_dtype = TD_DT_F32, .max_tok = 4);
        AT_END(fixture_tokens_free) fixture_tokens t = fixture_tokens_new(SEED, 4, 3, 6, 130);
        float                                      y[2][4 * 130], rms = 0;
        for (uint32_t i = 0; i < 2; i++) {
            AT_END(end_pool) td_pool       *pool = fixture_pool(2, i + 1);
            AT_END(end_experts) td_experts *x;
            OK(td_experts_create(&c, pool, &x, NULL));
            OK(td_experts_fill_layer(x, 1, 77, NULL));
            run_ffn(x, &t, t.x, 3, y[i], NULL);
        }
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        for (uint32_t i = 0; i < 4 * 130; i++) rms += y[0][i] * y[0][i];
        rms = sqrtf(rms / (4 * 130));
        assert_true(rms > 0.01f && rms < 10);
    }
}

TEST(plan_counts_what_create_takes) {
    td_experts_config c = WITH(td_experts_config, .n_layers = 3, .n_experts = 5, .hidden = 200, .inter = 90, .top_k = 2,
                               .format = TD_EXPERT_INT4C, .act_dtype = TD_DT_BF16, .max_tok = 100, .max_deferred = 1);
    for (uint32_t s = 1; s <= 3; s++) {
        uint64_t                        weights, scratch, mapped = 0;
        AT_END(end_pool) td_pool       *pool = fixture_pool(3, s);
        AT_END(end_experts) td_experts *x;
        OK(td_experts_measure(&c, s, td_pool_workers(pool), &weights, &scratch, NULL));
        OK(td_experts_create(&c, pool, &x, NULL));
        for (uint32_t i = 0; i < s; i++) mapped += x->layout.shard[i].bytes;
        assert_int_equal(weights, mapped * c.n_layers);
        assert_int_equal(scratch, x->arena.size + td_pool_workers(pool) * x->scratch.worker_bytes);
    }
    /* DeepSeek-V3 with 8192 tokens stays within a few hundred MiB */
    uint64_t          weights, scratch;
    td_experts_config v3 =
        WITH(td_experts_config, .n_layers = 59, .n_experts = 256, .hidden = 7168, .inter = 2048, .top_k = 8,
             .format = TD_EXPERT_INT4C, .act_dtype = TD_DT_BF16, .max_tok = 8192, .max_deferred = 6);
    OK(td_experts_measure(&v3, 2, 64, &weights, &scratch, NULL));
    assert_true(scratch < (uint64_t)640 << 20 && scratch > (uint64_t)64 * 2 << 20);
    assert_true(weights > (uint64_t)59 * 256 * 3 * 7168 * 1024 &&
                weights < (uint64_t)59 * 256 * 3 * 7168 * 1024 / 100 * 102);
    v3.inter = TD_GEMM_K_MAX + 1; /* what create would refuse */
    td_error err = {0};
    assert_int_equal(td_experts_measure(&v3, 2, 64, &weights, &scratch, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "intermediate size 65537"));
}

TEST(bad_views_are_refused) {
    fixture_weights   w = fixture_weights_new(SEED, 3, 64, 32);
    td_pool          *pool = fixture_pool(1, 1);
    td_experts_config c = config_of(&w, TD_EXPERT_INT4C, TD_DT_F32, 2, 4, 0);
    td_experts       *x = NULL;
    td_error          err = {0};
    OK(td_experts_create(&c, pool, &x, &err));
    w.experts[1].down.shape[1] = 33;
    assert_int_equal(load_views(x, 0, w.experts, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "down_proj of expert 1"));
    w.experts[1].down.shape[1] = 32;
    w.experts[2].up.dtype = TD_DT_I8;
    assert_int_equal(load_views(x, 0, w.experts, &err), TD_ENOTSUP);
    w.experts[2].up.dtype = TD_DT_F32;
    fixture_weights_gate(&w, SEED); /* biases that the model has not, and the other way round */
    assert_int_equal(load_views(x, 0, w.experts, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "gate_proj of expert 0 has a bias"));
    x->config.bias = true;
    w.experts[1].down_bias.shape[0] = 63;
    assert_int_equal(load_views(x, 0, w.experts, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "bias of down_proj of expert 1"));
    w.experts[1].down_bias = (td_tensor_view){0};
    assert_int_equal(load_views(x, 0, w.experts, &err), TD_EINVAL);
    x->config.bias = false;
    for (size_t e = 0; e < 3; e++)
        w.experts[e].gate_bias = w.experts[e].up_bias = w.experts[e].down_bias = (td_tensor_view){0};
    w.values[3 * 64 * 32 + 17] = INFINITY; /* gate of expert 1 */
    assert_int_equal(load_views(x, 0, w.experts, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "expert 1 in MoE layer 0"));
    assert_int_equal(load_views(x, 1, w.experts, &err), TD_EINVAL);
    td_experts_destroy(x);
    c.format = TD_EXPERT_BF16;
    OK(td_experts_create(&c, pool, &x, &err));
    assert_int_equal(load_views(x, 0, w.experts, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "expert 1 in MoE layer 0"));
    td_experts_destroy(x);
    w.values[3 * 64 * 32 + 17] = 0;
    c.bias = true;
    OK(td_experts_create(&c, pool, &x, &err));
    fixture_weights biased = fixture_weights_new(SEED, 3, 64, 32);
    fixture_weights_gate(&biased, SEED);
    OK(load_views(x, 0, biased.experts, &err));
    biased.biases[3 * (2 * 32 + 64) - 1] = NAN; /* down of expert 2 */
    assert_int_equal(load_views(x, 0, biased.experts, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, "expert 2 in MoE layer 0"));
    td_expert_source none = {0};
    assert_int_equal(td_experts_load(x, 0, &none, &err), TD_ENOTSUP);
    assert_non_null(strstr(err.text, "have biases"));
    td_experts_destroy(x);
    fixture_weights_free(&biased);
    c.bias = false;
    c.glu.limit = NAN;
    assert_int_equal(td_experts_create(&c, pool, &x, &err), TD_EINVAL);
    assert_non_null(strstr(err.text, "gated unit"));
    c.glu.limit = 0;
    c.hidden = TD_GEMM_K_MAX + 1;
    assert_int_equal(td_experts_create(&c, pool, &x, &err), TD_ENOTSUP);
    assert_null(x);
    td_pool_destroy(pool);
    fixture_weights_free(&w);
}

/* f16, bf16 and f32 views of the same values give the same store. */
TEST(views_of_any_float_type) {
    AT_END(fixture_weights_free) fixture_weights w = fixture_weights_new(SEED, 2, 64, 32);
    size_t                                       n = 3 * 2 * 64 * 32;
    FREED uint16_t                              *half = malloc(n * 2), *bf = malloc(n * 2);
    for (size_t i = 0; i < n; i++) { /* values that all three types hold: 2^-8 steps of at most 6 bits */
        int v = (int)(td_rng_u64(SEED, 12, i) % 127) - 63;
        w.values[i] = (float)v / 256;
        bf[i] = td_f32_to_bf16(w.values[i]);
        uint32_t bits;
        memcpy(&bits, &w.values[i], 4);
        half[i] = v ? (uint16_t)((bits >> 16 & 0x8000u) | (((bits >> 23 & 255u) - 112u) << 10) | (bits >> 13 & 0x3ffu)) : 0;
    }
    for (int format = 0; format < TD_EXPERT_FORMATS; format++) {
        AT_END(fixture_tokens_free) fixture_tokens t = fixture_tokens_new(SEED, 3, 2, 2, 64);
        float                                      y[3][3 * 64];
        for (int kind = 0; kind < 3; kind++) {
            td_expert_weights e[2];
            for (size_t i = 0; i < 2; i++) {
                e[i] = w.experts[i];
                td_tensor_view *views[3] = {&e[i].gate, &e[i].up, &e[i].down};
                for (size_t m = 0; m < 3; m++) {
                    size_t at = (size_t)((const float *)views[m]->data - w.values);
                    if (kind) views[m]->dtype = kind == 1 ? TD_DT_BF16 : TD_DT_F16;
                    if (kind) views[m]->data = (kind == 1 ? bf : half) + at;
                }
            }
            AT_END(end_pool) td_pool       *pool = fixture_pool(1, 1);
            td_experts_config               c = config_of(&w, (td_expert_format)format, TD_DT_F32, 2, 3, 0);
            AT_END(end_experts) td_experts *x;
            OK(td_experts_create(&c, pool, &x, NULL));
            OK(load_views(x, 0, e, NULL));
            run_ffn(x, &t, t.x, 2, y[kind], NULL);
        }
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        assert_memory_equal(y[0], y[2], sizeof y[0]);
    }
}

/*
 * MXFP4 as gpt-oss has it: gate_up is [experts, 2 * inter, hidden / 32] blocks of 16 bytes, with an e8m0 scale each. Rows of
 * gate and up alternate, and the even column is in the low nibble. Biases have the same order. Not a bit of a weight
 * changes.
 */
enum { OSS_EXPERTS = 3, OSS_HIDDEN = 96, OSS_INTER = 64, OSS_K = 2, OSS_TOK = 5 };

static void oss_numbers(const td_coded_matrix *m, float *out) {
    static const float E2M1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (size_t r = 0; r < m->n; r++)
        for (size_t c = 0; c < m->k; c++) {
            size_t  row = m->row_of ? m->row_of[r] : r;
            uint8_t byte = ((const uint8_t *)m->data)[row * m->k / 2 + c / 2], code = c % 2 ? byte >> 4 : byte & 15;
            float   scale = ldexpf(1, ((const uint8_t *)m->scale)[row * m->k / 32 + c / 32] - 127);
            out[r * m->k + c] = (code & 8 ? -1.0f : 1.0f) * E2M1[code & 7] * scale;
        }
}

TEST(mxfp4_is_taken_as_gpt_oss_stores_it) {
    static uint8_t blocks[2][OSS_EXPERTS][2 * OSS_INTER * OSS_HIDDEN / 2],
        scales[2][OSS_EXPERTS][2 * OSS_INTER * OSS_HIDDEN / 32];
    uint32_t                                     row_of[2][OSS_INTER];
    td_coded_matrix                              coded[OSS_EXPERTS][TD_EXPERT_MATRICES];
    AT_END(fixture_weights_free) fixture_weights w = fixture_weights_new(SEED, OSS_EXPERTS, OSS_HIDDEN, OSS_INTER);
    AT_END(fixture_tokens_free) fixture_tokens   t = fixture_tokens_new(SEED, OSS_TOK, OSS_K, OSS_EXPERTS, OSS_HIDDEN);
    td_error                                     err = {0};
    fixture_weights_gate(&w, SEED);
    w.glu.limit = 7;
    for (uint32_t i = 0; i < OSS_INTER; i++) row_of[0][i] = 2 * i, row_of[1][i] = 2 * i + 1;
    for (size_t i = 0; i < sizeof blocks; i++) ((uint8_t *)blocks)[i] = (uint8_t)td_rng_u64(SEED, 60, i);
    for (size_t i = 0; i < sizeof scales; i++) ((uint8_t *)scales)[i] = (uint8_t)(119 + td_rng_u64(SEED, 61, i) % 6);
    td_expert_weights experts[OSS_EXPERTS];
    for (size_t e = 0; e < OSS_EXPERTS; e++) {
        experts[e] = w.experts[e];
        for (int m = 0; m < TD_EXPERT_MATRICES; m++) {
            const bool   down = m == TD_EXPERT_DOWN;
            const size_t k = down ? OSS_INTER : OSS_HIDDEN, n = down ? OSS_HIDDEN : OSS_INTER;
            coded[e][m] =
                WITH(td_coded_matrix, .codes = TD_CODES_E2M1, .bits = 4, .n = n, .k = k, .stored_n = down ? n : 2 * n,
                     .stored_k = k, .row_of = down ? NULL : row_of[m == TD_EXPERT_UP], .data = blocks[down][e],
                     .scale_dtype = TD_DT_F8_E8M0, .scale = scales[down][e], .scale_rows = 1, .scale_row_step = k / 32,
                     .scale_group_step = 1, .group = 32, .factor = 1);
            td_tensor_view *view = m == TD_EXPERT_GATE ? &experts[e].gate
                                   : m == TD_EXPERT_UP ? &experts[e].up
                                                       : &experts[e].down;
            *view = (td_tensor_view){.rank = 2, .shape = {n, k}, .coded = &coded[e][m]};
            oss_numbers(&coded[e][m], (float *)(uintptr_t)td_expert_view(&w.experts[e], (td_expert_matrix)m)->data);
        }
    }
    const td_expert_numbers *mxfp4 = td_expert_numbers_find("mxfp4");
    td_expert_numbers        found;
    assert_true(td_expert_exact_numbers(&coded[0][0], &found));
    assert_string_equal(found.name, "mxfp4");
    td_experts_config c = config_of(&w, mxfp4->format, TD_DT_F32, OSS_K, OSS_TOK, 0);
    c.groups = mxfp4->groups;
    AT_END(end_pool) td_pool       *pool = fixture_pool(2, 2);
    AT_END(end_experts) td_experts *x;
    OK(td_experts_create(&c, pool, &x, &err));
    if (load_views(x, 0, experts, &err) != TD_OK) fail_msg("%s", err.text);
    float got[OSS_INTER * OSS_HIDDEN], y[OSS_TOK * OSS_HIDDEN];
    for (uint32_t e = 0; e < OSS_EXPERTS; e++)
        for (int m = 0; m < TD_EXPERT_MATRICES; m++) {
            const td_tensor_view *v = td_expert_view(&w.experts[e], (td_expert_matrix)m);
            OK(td_experts_get_values(x, 0, e, (td_expert_matrix)m, 0, v->shape[0], got, &err));
            for (size_t i = 0; i < OSS_INTER * OSS_HIDDEN; i++) assert_true(got[i] == ((const float *)v->data)[i]);
        }
    run_ffn(x, &t, t.x, OSS_K, y, NULL);
    for (uint32_t i = 0; i < OSS_TOK; i++) {
        double out[OSS_HIDDEN], want[OSS_HIDDEN] = {0}, amax = 0;
        for (uint32_t j = 0; j < OSS_K; j++) {
            expert_in_double(&w, t.ids[i * OSS_K + j], TD_EXPERT_BF16, true, t.x + i * OSS_HIDDEN, out);
            for (uint32_t h = 0; h < OSS_HIDDEN; h++) want[h] += (double)t.weights[i * OSS_K + j] * out[h];
        }
        for (uint32_t h = 0; h < OSS_HIDDEN; h++) amax = fmax(amax, fabs(want[h]));
        for (uint32_t h = 0; h < OSS_HIDDEN; h++) assert_true(fabs(want[h] - (double)y[i * OSS_HIDDEN + h]) < 2e-2 * amax);
    }
}

TEST(many_rows_of_one_expert) {
    /* more pairs than a block and more tokens than a range of the down phase; each token alone gives the same */
    enum { N = 1100, H = 40, I = 24 };
    fixture_weights w = fixture_weights_new(SEED, 3, H, I);
    fixture_tokens  t = fixture_tokens_new(SEED, N, 2, 3, H);
    td_pool        *pool = fixture_pool(2, 1);
    td_experts     *x = open_experts(config_of(&w, TD_EXPERT_INT4C, TD_DT_F32, 2, N, 1), pool, &w);
    static float    y[N * H], yd[N * H], one[H], one_d[H];
    run_ffn(x, &t, t.x, 1, y, yd);
    td_experts_destroy(x);
    td_pool_destroy(pool);
    pool = fixture_pool(1, 1);
    x = open_experts(config_of(&w, TD_EXPERT_INT4C, TD_DT_F32, 2, N, 1), pool, &w);
    for (uint32_t i = 0; i < N; i++) {
        fixture_tokens single = {.n_tok = 1, .top_k = 2, .ids = t.ids + 2 * i, .weights = t.weights + 2 * i};
        run_ffn(x, &single, t.x + i * H, 1, one, one_d);
        assert_memory_equal(one, y + i * H, sizeof one);
        assert_memory_equal(one_d, yd + i * H, sizeof one_d);
    }
    td_experts_destroy(x);
    td_pool_destroy(pool);
    fixture_tokens_free(&t);
    fixture_weights_free(&w);
}
