#include "quantize/expert_rounding.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "kernels/rows/convert.h"
#include "quant/column_scale.h"
#include "quant/hessian.h"
#include "quant/weight_quant.h"

#define BLOCK_ROWS 256      /* gathered at a time */
#define SAMPLE_ROWS 512     /* of the intermediate, to choose the scales of down's columns by */
#define JUDGED_ROWS 512     /* of down, likewise */
#define BORROWED_SCALE 0.5f /* on a row: a quarter of its square */

/* Which tokens went to which expert: those of expert e are tokens[first[e]] .. tokens[first[e + 1] - 1]. */
typedef struct {
    size_t   *first;  /* [n_experts + 1] */
    uint32_t *token;  /* [n_tok * top_k] */
    float    *weight; /* of the router */
} routing;

/* One expert after the other on one worker, with memory of its own. */
typedef struct {
    float   *gate_up, *rounded; /* [2 * inter, hidden]; rounded: as its codes say */
    float   *down;              /* [hidden, inter] */
    float   *h;                 /* [max(hidden, inter)]^2 */
    float   *x;                 /* [BLOCK_ROWS, hidden] */
    float   *gu;                /* [BLOCK_ROWS, 2 * inter] */
    float   *sample;            /* [SAMPLE_ROWS, inter] of down's inputs */
    size_t   n_sample;
    float   *column; /* [inter] scales of down's columns */
    int8_t  *codes;  /* of either matrix, to nearest */
    float   *scales;
    td_error err;    /* of expert `failed` */
    uint32_t failed; /* UINT32_MAX: none */
} lane;

typedef struct {
    td_quantizer           *q;
    uint32_t                layer;
    const td_expert_inputs *in;
    routing                 routes;
    td_rounded_experts     *out;
    lane                   *lanes;
    td_round_options        options;
    _Atomic uint32_t next, failed; /* relaxed: failed is the lowest expert that did, or n_experts, and read after the run */
} round_job;

/* ---- sizes ----------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static td_round_options options_of(const td_quantizer *q) {
    td_round_options o = td_round_options_of(q->method, q->experts->format == TD_EXPERT_INT8C ? 8 : 4,
                                             q->experts->format == TD_EXPERT_INT4G ? q->experts->groups.size : 0);
    if (o.group) o.scale_dtype = q->experts->groups.scale_dtype;
    return o;
}

static size_t scales_of(const td_quantizer *q, const td_round_options *o) {
    size_t hidden = q->config.hidden, inter = q->config.moe_inter;
    return 2 * inter * td_round_scales(o, hidden) + hidden * td_round_scales(o, inter);
}

/* Floats of a lane's arrays, in the order of the struct. */
#define LANE_ARRAYS 8
static void lane_sizes(const td_quantizer *q, size_t sizes[LANE_ARRAYS]) {
    size_t hidden = q->config.hidden, inter = q->config.moe_inter, k = larger(hidden, inter);
    sizes[0] = sizes[1] = 2 * inter * hidden;
    sizes[2] = hidden * inter;
    sizes[3] = k * k;
    sizes[4] = BLOCK_ROWS * hidden;
    sizes[5] = BLOCK_ROWS * 2 * inter;
    sizes[6] = SAMPLE_ROWS * inter;
    sizes[7] = inter;
}

static uint64_t lane_bytes(const td_quantizer *q, const td_round_options *o) {
    size_t   sizes[LANE_ARRAYS], hidden = q->config.hidden, inter = q->config.moe_inter;
    uint64_t bytes = 2 * inter * hidden + scales_of(q, o) * sizeof(float);
    lane_sizes(q, sizes);
    for (int i = 0; i < LANE_ARRAYS; i++) bytes += sizes[i] * sizeof(float);
    return bytes + larger(td_rounding_bytes(hidden, o) + td_round_rows_bytes(2 * inter, hidden, o),
                          td_rounding_bytes(inter, o) + td_round_rows_bytes(hidden, inter, o));
}

/* As many lanes as workers, where half of the memory there is has room for them. */
static uint32_t lanes_of(const td_quantizer *q, const td_round_options *o) {
    uint64_t fit = q->available_bytes / 2 / lane_bytes(q, o), workers = td_pool_workers(q->pool);
    uint64_t n = fit < 1 ? 1 : fit < workers ? fit : workers;
    return (uint32_t)(n < q->config.n_experts ? n : q->config.n_experts);
}

void td_experts_round_bytes(const td_quantizer *q, uint64_t *work, uint64_t *result) {
    td_round_options o = options_of(q);
    *work = lanes_of(q, &o) * lane_bytes(q, &o);
    *result =
        q->config.n_experts * (3 * (uint64_t)q->config.moe_inter * q->config.hidden + scales_of(q, &o) * sizeof(float));
}

/* ---- rows ------------------------------------------------------------------------------------ */

static td_status sort_routes(round_job *j) {
    const td_expert_inputs *in = j->in;
    size_t   n_experts = j->q->config.n_experts, top_k = j->q->config.top_k, pairs = (size_t)in->n_tok * top_k;
    routing *r = &j->routes;
    r->first = calloc(n_experts + 2, sizeof *r->first);
    r->token = malloc((pairs + 1) * sizeof *r->token);
    r->weight = malloc((pairs + 1) * sizeof *r->weight);
    if (!r->first || !r->token || !r->weight)
        return td_fail(j->q->err, TD_ENOMEM, "out of memory for the calibration's routing");
    for (size_t i = 0; i < pairs; i++) r->first[in->ids[i] + 2]++;
    for (size_t e = 2; e < n_experts + 2; e++) r->first[e] += r->first[e - 1];
    for (size_t i = 0; i < pairs; i++) { /* afterwards first[e + 1] is where e ends */
        size_t at = r->first[in->ids[i] + 1]++;
        r->token[at] = (uint32_t)(i / top_k);
        r->weight[at] = in->weights[i];
    }
    return TD_OK;
}

/* The rows of an expert: own tokens, then borrowed ones. */
typedef struct {
    const uint32_t *token;
    const float    *weight;
    size_t          own, borrowed, n_tok;
    float           borrowed_weight;
} expert_rows;

static expert_rows rows_of(const round_job *j, uint32_t e) {
    const routing *r = &j->routes;
    size_t         n_tok = j->in->n_tok, needed = larger(j->q->config.hidden, j->q->config.moe_inter);
    expert_rows    rows = {.token = r->token + r->first[e],
                           .weight = r->weight + r->first[e],
                           .own = r->first[e + 1] - r->first[e],
                           .n_tok = n_tok};
    double         squares = 0;
    for (size_t i = 0; i < rows.own; i++) squares += (double)rows.weight[i] * rows.weight[i];
    if (rows.own < needed) rows.borrowed = needed - rows.own < n_tok ? needed - rows.own : n_tok;
    rows.borrowed_weight = BORROWED_SCALE * (squares > 0 ? (float)sqrt(squares / (double)rows.own) : 1.0f);
    return rows;
}

static uint32_t row_token(const expert_rows *r, size_t i) {
    return i < r->own ? r->token[i] : (uint32_t)((2 * (i - r->own) + 1) * r->n_tok / (2 * r->borrowed));
}
static float row_weight(const expert_rows *r, size_t i) {
    return i < r->own ? r->weight[i] : r->borrowed_weight;
}

/* Rows first .. first + n - 1 into l->x, times their weights or not. */
static void gather(const round_job *j, lane *l, const expert_rows *r, size_t first, size_t n, bool weighted) {
    size_t hidden = j->q->config.hidden;
    for (size_t i = 0; i < n; i++) {
        const float *from = j->in->x + row_token(r, first + i) * hidden;
        float       *to = l->x + i * hidden, w = weighted ? row_weight(r, first + i) : 1.0f;
        for (size_t c = 0; c < hidden; c++) to[c] = from[c] * w;
    }
}

static void add_inputs(const round_job *j, lane *l, const expert_rows *r) {
    size_t hidden = j->q->config.hidden, n = r->own + r->borrowed;
    memset(l->h, 0, hidden * hidden * sizeof *l->h);
    for (size_t at = 0; at < n; at += BLOCK_ROWS) {
        size_t rows = n - at < BLOCK_ROWS ? n - at : BLOCK_ROWS;
        gather(j, l, r, at, rows, true);
        td_hessian_add(&j->q->blas, l->x, rows, hidden, hidden, l->h);
    }
}

/* silu(g) * u of each row in place of its gate part, times the row's weight. */
static void activate(lane *l, const expert_rows *r, size_t first, size_t rows, size_t inter) {
    for (size_t i = 0; i < rows; i++) {
        float *g = l->gu + i * 2 * inter, *u = g + inter, w = row_weight(r, first + i);
        for (size_t c = 0; c < inter; c++) g[c] = g[c] / (1.0f + expf(-g[c])) * u[c] * w;
    }
}

/* Evenly spaced rows, enlarged so that their sum of squares is about that of all. */
static void keep_sample(lane *l, size_t first, size_t rows, size_t n, size_t inter) {
    size_t wanted = n < SAMPLE_ROWS ? n : SAMPLE_ROWS;
    float  enlarge = sqrtf((float)n / (float)wanted);
    for (; l->n_sample < wanted; l->n_sample++) {
        size_t row = l->n_sample * n / wanted;
        if (row >= first + rows) return;
        const float *from = l->gu + (row - first) * 2 * inter;
        float       *to = l->sample + l->n_sample * inter;
        for (size_t c = 0; c < inter; c++) to[c] = from[c] * enlarge;
    }
}

static void add_intermediates(const round_job *j, lane *l, const expert_rows *r) {
    const td_blas *b = &j->q->blas;
    size_t         hidden = j->q->config.hidden, inter = j->q->config.moe_inter, n = r->own + r->borrowed;
    memset(l->h, 0, inter * inter * sizeof *l->h);
    l->n_sample = 0;
    for (size_t at = 0; at < n; at += BLOCK_ROWS) {
        size_t rows = n - at < BLOCK_ROWS ? n - at : BLOCK_ROWS;
        gather(j, l, r, at, rows, false);
        b->sgemm(TD_BLAS_ROWS, TD_BLAS_PLAIN, TD_BLAS_TRANS, (int)rows, (int)(2 * inter), (int)hidden, 1, l->x, (int)hidden,
                 l->rounded, (int)hidden, 0, l->gu, (int)(2 * inter));
        activate(l, r, at, rows, inter);
        td_hessian_add(b, l->gu, rows, inter, 2 * inter, l->h);
        keep_sample(l, at, rows, n, inter);
    }
}

/* ---- one expert ------------------------------------------------------------------------------ */

static td_status read_matrix(const round_job *j, lane *l, td_role role, uint32_t e, float *out) {
    td_scratch     scratch = {0};
    td_tensor_view v;
    td_status s = td_checkpoint_get(j->q->source, &j->q->config, role, j->layer, e, TD_FORM_FLOAT, &scratch, &v, &l->err);
    if (s == TD_OK) td_to_f32(v.dtype, v.data, v.shape[0] * v.shape[1], out);
    td_scratch_reset(&scratch);
    return s;
}

/* A matrix, where its codes go, and which of the fit's figures are its own. */
typedef struct {
    float  *w;            /* [n, k] */
    size_t  n, k, n_rows; /* n_rows: of inputs in the Hessian */
    int8_t *codes;
    float  *scales;
    int     fit;
} target;

static td_round_options options_for(const round_job *j, const target *t) {
    td_round_options o = j->options;
    if (t->n_rows) o.damping = td_round_damping(t->k, t->n_rows);
    return o;
}

/* The error of rounding w to nearest, with the Hessian in l->h. */
static td_status measure_nearest(const round_job *j, lane *l, const target *t, td_expert_fit *f) {
    td_round_options nearest = j->options;
    nearest.method = TD_ROUND_NEAREST;
    if (!td_hessian_mirror(l->h, t->k)) return td_fail(&l->err, TD_EDEVICE, "the inputs are not numbers");
    TD_TRY(td_round_matrix(&j->q->blas, t->w, t->n, t->k, NULL, &nearest, l->codes, l->scales, &l->err));
    return td_round_error(&j->q->blas, t->w, t->n, t->k, l->h, &nearest, l->codes, l->scales, &f->nearest[t->fit], &l->err);
}

/* @param known l->h is the Hessian. */
static td_status round_target(const round_job *j, lane *l, const target *t, bool known, td_expert_fit *f) {
    td_round_options o = options_for(j, t);
    TD_TRY(td_round_matrix(&j->q->blas, t->w, t->n, t->k, known ? l->h : NULL, &o, t->codes, t->scales, &l->err));
    return known ? td_round_error(&j->q->blas, t->w, t->n, t->k, l->h, &j->options, t->codes, t->scales, &f->error[t->fit],
                                  &l->err)
                 : TD_OK;
}

/*
 * Multiplies column c of down by s_c and divides row c of up by it, which leaves the expert's result the same. No code of up
 * changes, only its scales, of which those of groups are rounded to their type once more. s is chosen so that a sample of
 * down's rows, and the int8 rows it reads, are rounded best.
 */
static td_status equalise(const round_job *j, lane *l, const target *down, float *up_scales) {
    if (j->options.method == TD_ROUND_NEAREST) return TD_OK;
    double           gain;
    size_t           up_groups = td_round_scales(&j->options, j->q->config.hidden);
    td_round_options o = options_for(j, down);
    size_t           rows = down->n < JUDGED_ROWS ? down->n : JUDGED_ROWS;
    for (size_t r = 0; r < rows; r++)
        memcpy(l->rounded + r * down->k, down->w + (r * down->n / rows) * down->k, down->k * sizeof *l->rounded);
    TD_TRY(td_column_scales(&j->q->blas, l->rounded, rows, down->k, l->h, l->sample, l->n_sample, &o, l->column, &gain,
                            &l->err));
    td_scale_columns(down->w, down->n, down->k, l->column, down->w);
    td_scale_hessian(l->h, down->k, l->column, l->h);
    for (size_t c = 0; c < down->k; c++)
        for (size_t g = 0; g < up_groups; g++) {
            float *s = &up_scales[c * up_groups + g], fit = td_fit_scale(j->options.scale_dtype, fabsf(*s / l->column[c]));
            *s = copysignf(fit, *s);
        }
    return TD_OK;
}

static void dequantise(const int8_t *codes, const float *scales, size_t n, size_t k, const td_round_options *o, float *out) {
    size_t n_scales = td_round_scales(o, k), group = o->group ? o->group : k;
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < k; c++) out[r * k + c] = (float)codes[r * k + c] * scales[r * n_scales + c / group];
}

static td_status round_expert(const round_job *j, lane *l, uint32_t e) {
    const td_model_config *c = &j->q->config;
    size_t                 hidden = c->hidden, inter = c->moe_inter;
    td_expert_codes       *out = &j->out->experts[e];
    td_expert_fit         *fit = &j->out->fits[e];
    target                 gate_up = {
                        l->gate_up,    2 * inter, hidden, 0, (int8_t *)out->codes[TD_EXPERT_GATE], (float *)out->scale[TD_EXPERT_GATE],
                        TD_FIT_GATE_UP};
    target down = {l->down,    hidden, inter, 0, (int8_t *)out->codes[TD_EXPERT_DOWN], (float *)out->scale[TD_EXPERT_DOWN],
                   TD_FIT_DOWN};
    bool   known = j->in->n_tok > 0;
    TD_TRY(read_matrix(j, l, TD_ROLE_EXPERT_GATE, e, l->gate_up));
    TD_TRY(read_matrix(j, l, TD_ROLE_EXPERT_UP, e, l->gate_up + inter * hidden));
    TD_TRY(read_matrix(j, l, TD_ROLE_EXPERT_DOWN, e, l->down));
    td_checkpoint_files_release_all(td_checkpoint_get_files(j->q->source));
    expert_rows rows = {0};
    if (known) {
        rows = rows_of(j, e);
        gate_up.n_rows = down.n_rows = rows.own + rows.borrowed;
        fit->tokens = (uint32_t)rows.own;
        fit->borrowed = (uint32_t)rows.borrowed;
        add_inputs(j, l, &rows);
        TD_TRY(measure_nearest(j, l, &gate_up, fit));
    }
    TD_TRY(round_target(j, l, &gate_up, known, fit));
    if (known) {
        dequantise(gate_up.codes, gate_up.scales, 2 * inter, hidden, &j->options, l->rounded);
        add_intermediates(j, l, &rows);
        TD_TRY(measure_nearest(j, l, &down, fit));
        TD_TRY(equalise(j, l, &down, (float *)out->scale[TD_EXPERT_UP]));
    }
    return round_target(j, l, &down, known, fit);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static td_status open_lane(const round_job *j, lane *l) {
    size_t  sizes[LANE_ARRAYS], hidden = j->q->config.hidden, inter = j->q->config.moe_inter;
    float **arrays[LANE_ARRAYS] = {&l->gate_up, &l->rounded, &l->down, &l->h, &l->x, &l->gu, &l->sample, &l->column};
    lane_sizes(j->q, sizes);
    bool ok = (l->codes = malloc(2 * inter * hidden)) && (l->scales = malloc(scales_of(j->q, &j->options) * sizeof(float)));
    for (int i = 0; i < LANE_ARRAYS; i++) ok = ok && (*arrays[i] = malloc(sizes[i] * sizeof(float)));
    return ok ? TD_OK : td_fail(j->q->err, TD_ENOMEM, "out of memory to round an expert");
}

static void close_lane(lane *l) {
    free(l->gate_up);
    free(l->rounded);
    free(l->down);
    free(l->h);
    free(l->x);
    free(l->gu);
    free(l->sample);
    free(l->column);
    free(l->codes);
    free(l->scales);
}

static void fail_expert(round_job *j, uint32_t e) {
    uint32_t lowest = atomic_load_explicit(&j->failed, memory_order_relaxed);
    while (e < lowest &&
           !atomic_compare_exchange_weak_explicit(&j->failed, &lowest, e, memory_order_relaxed, memory_order_relaxed))
        continue;
}

/* Round experts one after the other. After a failure only lower experts are still rounded, so that the failure that is
 * reported is the same every time. */
static void run_lane(void *ctx, uint32_t item, const td_worker *w) {
    round_job *j = ctx;
    lane      *l = &j->lanes[item];
    uint32_t   n = j->q->config.n_experts;
    for (uint32_t e; (e = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < n;) {
        if (e > atomic_load_explicit(&j->failed, memory_order_relaxed)) return;
        if (round_expert(j, l, e) != TD_OK) {
            fail_expert(j, e);
            l->failed = e;
            return;
        }
        if (w->index == 0 && j->in->done) j->in->done(j->in->user, e + 1);
    }
}

static td_status take_result(round_job *j) {
    const td_model_config *c = &j->q->config;
    td_rounded_experts    *out = j->out;
    size_t                 matrix = (size_t)c->moe_inter * c->hidden, scales = scales_of(j->q, &j->options),
           up_scales = c->moe_inter * td_round_scales(&j->options, c->hidden);
    out->experts = calloc(c->n_experts, sizeof *out->experts);
    out->fits = calloc(c->n_experts, sizeof *out->fits);
    out->codes = malloc(c->n_experts * 3 * matrix);
    out->scales = malloc(c->n_experts * scales * sizeof *out->scales);
    if (!out->experts || !out->fits || !out->codes || !out->scales)
        return td_fail(j->q->err, TD_ENOMEM, "out of memory for the rounded experts");
    for (size_t e = 0; e < c->n_experts; e++)
        for (td_expert_matrix m = TD_EXPERT_GATE; m <= TD_EXPERT_DOWN; m++) {
            out->experts[e].codes[m] = out->codes + (3 * e + m) * matrix;
            out->experts[e].scale[m] = out->scales + e * scales + m * up_scales;
        }
    return TD_OK;
}

static td_status run_lanes(round_job *j) {
    uint32_t n_lanes = lanes_of(j->q, &j->options), n_experts = j->q->config.n_experts;
    j->lanes = calloc(n_lanes, sizeof *j->lanes);
    if (!j->lanes) return td_fail(j->q->err, TD_ENOMEM, "out of memory to round the experts");
    td_status st = TD_OK;
    for (uint32_t i = 0; i < n_lanes; i++) j->lanes[i].failed = UINT32_MAX;
    for (uint32_t i = 0; i < n_lanes && st == TD_OK; i++) st = open_lane(j, &j->lanes[i]);
    atomic_store_explicit(&j->failed, n_experts, memory_order_relaxed);
    if (st == TD_OK) td_pool_run(j->q->pool, run_lane, j, n_lanes);
    uint32_t failed = atomic_load_explicit(&j->failed, memory_order_relaxed);
    for (uint32_t i = 0; i < n_lanes; i++) {
        const lane *l = &j->lanes[i];
        if (st == TD_OK && failed < n_experts && l->failed == failed)
            st = td_fail(j->q->err, l->err.status, "%s, layer %u, expert %u: %s", j->q->o->model_path, j->layer, failed,
                         l->err.text);
    }
    for (uint32_t i = 0; i < n_lanes; i++) close_lane(&j->lanes[i]);
    free(j->lanes);
    return st;
}

td_status td_experts_round(td_quantizer *q, uint32_t layer, const td_expert_inputs *in, td_rounded_experts *out) {
    round_job j = {.q = q, .layer = layer, .in = in, .out = out, .options = options_of(q)};
    *out = (td_rounded_experts){0};
    assert(in->n_tok || q->method != TD_ROUND_GPTQ);
    td_status st = take_result(&j);
    if (st == TD_OK) st = sort_routes(&j);
    if (st == TD_OK) st = run_lanes(&j);
    free(j.routes.first);
    free(j.routes.token);
    free(j.routes.weight);
    if (st != TD_OK) td_rounded_experts_free(out);
    return st;
}

void td_rounded_experts_free(td_rounded_experts *r) {
    free(r->experts);
    free(r->fits);
    free(r->codes);
    free(r->scales);
    *r = (td_rounded_experts){0};
}
