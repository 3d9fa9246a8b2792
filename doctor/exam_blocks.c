/*
 * Compares every block with the host device in f32. Inputs and weights are numbers that both hold exactly (rig.c), so a
 * bound covers only what the block itself rounds. Each time a value is stored as bf16 it may change by 2^-9 of itself. Rows
 * that become int8 within a block may change by half a step, and a step is 1/127 of the row's largest value. The error is
 * that of the worst row: the rms of its difference divided by its own rms.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "core/math/rng.h"
#include "doctor/check.h"
#include "npu/raw_choice.h"

#define HIDDEN 512
#define ROWS_MAX 320

/* Makes a block on a rig, runs it over `rows` rows, and copies its result to `out` as floats, [result rows, width]. */
typedef void (*build_fn)(td_rig *r, const void *arg, uint32_t rows, float *out);

typedef struct {
    build_fn    build;
    const void *arg;
    uint32_t    step_rows;
    size_t      rows, width; /* of the result */
    double      bound;
} block_case;

static double row_error(const float *got, const float *want, size_t n) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        off += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return off == 0 ? 0 : size == 0 ? INFINITY : sqrt(off / size);
}

static td_status run_on(td_npu *d, bool is_reference, const block_case *c, float *out, td_error *err) {
    td_rig r;
    td_rig_open(&r, d, is_reference, err);
    if (r.st == TD_OK) c->build(&r, c->arg, c->step_rows, out);
    return td_rig_close(&r);
}

static td_status exam_block(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    const block_case *c = arg;
    size_t            n = c->rows * c->width;
    float            *got = calloc(n, sizeof *got), *want = calloc(n, sizeof *want);
    td_status         st = got && want ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for a check");
    if (st == TD_OK) st = run_on(e->reference, true, c, want, err);
    if (st == TD_OK) st = run_on(e->cards[0], false, c, got, err);
    if (st == TD_OK) {
        double worst = 0;
        for (size_t i = 0; i < c->rows; i++) {
            double error = row_error(got + i * c->width, want + i * c->width, c->width);
            if (!(error <= worst)) worst = error; /* written so that a NaN is kept */
        }
        f->value = worst;
        f->bound = c->bound;
        f->unit = "relative error of the worst row";
    }
    free(got);
    free(want);
    return st;
}

static void give(const td_rig *r, const float *from, size_t n, float *out) {
    if (r->st == TD_OK) memcpy(out, from, n * sizeof *out);
}

/* ---- rows -------------------------------------------------------------------------------------- */

#define VOCAB 700

static void build_embed(td_rig *r, const void *arg, uint32_t rows, float *out) {
    uint32_t    token[ROWS_MAX];
    td_rig_step s = td_rig_step_new(r, rows, 0, 0, 0);
    (void)arg;
    for (uint32_t i = 0; i < rows; i++) token[i] = (i * 331 + 5) % VOCAB;
    float        *table = td_rig_noise(r, 1, (size_t)VOCAB * HIDDEN, 1);
    void         *x = td_rig_alloc(r, td_rig_act_bytes(r, (size_t)rows * HIDDEN));
    td_block_desc desc = {.kind = TD_BLOCK_EMBED, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.embed =
        (td_embed_desc){.table = td_rig_weight(r, TD_WEIGHT_BF16, table, VOCAB, HIDDEN), .hidden = HIDDEN, .out = x};
    td_npu_block *b = td_rig_block(r, &desc);
    td_rig_step_fill(r, &s, &(td_step_arrays){.counts = &(td_step_counts){.n_tok = rows}, .token = token});
    td_rig_step_upload(r, &s);
    td_rig_enqueue(r, b, &s);
    td_rig_sync(r);
    give(r, td_rig_floats(r, x, (size_t)rows * HIDDEN), (size_t)rows * HIDDEN, out);
}

typedef enum { NORM_PLAIN, NORM_F32_WEIGHTS, NORM_F32_ROWS } norm_case;

/* x += add, then the norm of x. The result has the rows of both. NORM_F32_WEIGHTS: no bf16 holds the weights. NORM_F32_ROWS:
 * the norm's rows are those in f32, which a router reads, where the device gives them. */
static void build_norm(td_rig *r, const void *arg, uint32_t rows, float *out) {
    norm_case kind = *(const norm_case *)arg;
    size_t    n = (size_t)rows * HIDDEN;
    void *x = td_rig_activations(r, td_rig_noise(r, 2, n, 1), n), *add = td_rig_activations(r, td_rig_noise(r, 3, n, 1), n),
         *to = td_rig_alloc(r, td_rig_act_bytes(r, n));
    float *gamma = td_rig_noise(r, 4, HIDDEN, 1), *floats = NULL;
    for (size_t i = 0; gamma && kind == NORM_F32_WEIGHTS && i < HIDDEN; i++) gamma[i] *= 1.001f;
    td_npu_caps caps;
    r->ops->caps(r->npu, &caps);
    if (kind == NORM_F32_ROWS && caps.norm_f32) floats = td_rig_alloc(r, n * sizeof *floats);
    td_block_desc desc = {.kind = TD_BLOCK_NORM, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.norm = (td_norm_desc){.hidden = HIDDEN,
                               .eps = 1e-6f,
                               .gamma = td_rig_weight(r, TD_WEIGHT_F32, gamma, 0, HIDDEN),
                               .x = x,
                               .add = add,
                               .out = to,
                               .out_f32 = floats};
    td_rig_run_rows(r, td_rig_block(r, &desc), rows);
    give(r, td_rig_floats(r, x, n), n, out);
    if (floats)
        td_rig_get(r, floats, out + n, n * sizeof *out);
    else
        give(r, td_rig_floats(r, to, n), n, out + n);
}

/* The int8 rows of a norm as values: code times scale. The reference gives the values without rounding. */
static void build_norm_int8(td_rig *r, const void *arg, uint32_t rows, float *out) {
    size_t n = (size_t)rows * HIDDEN;
    (void)arg;
    void         *x = td_rig_activations(r, td_rig_noise(r, 5, n, 1), n);
    void         *to = td_rig_alloc(r, td_rig_act_bytes(r, n));
    td_rows_i8    codes = {td_rig_alloc(r, n), td_rig_alloc(r, rows * sizeof(float))};
    td_block_desc desc = {.kind = TD_BLOCK_NORM, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.norm = (td_norm_desc){.hidden = HIDDEN,
                               .eps = 1e-6f,
                               .gamma = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 6, HIDDEN, 1), 0, HIDDEN),
                               .x = x,
                               .out = to};
    if (!r->is_reference) desc.norm.out_i8 = codes;
    td_rig_run_rows(r, td_rig_block(r, &desc), rows);
    if (r->is_reference) {
        give(r, td_rig_floats(r, to, n), n, out);
        return;
    }
    int8_t *q = td_rig_host(r, n);
    float   scale[ROWS_MAX];
    td_rig_get(r, codes.q, q, n);
    td_rig_get(r, codes.scale, scale, rows * sizeof *scale);
    for (size_t i = 0; r->st == TD_OK && i < n; i++) out[i] = scale[i / HIDDEN] * (float)q[i];
}

static void build_combine(td_rig *r, const void *arg, uint32_t rows, float *out) {
    size_t n = (size_t)rows * HIDDEN;
    (void)arg;
    td_block_desc desc = {.kind = TD_BLOCK_COMBINE, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.combine.hidden = HIDDEN;
    desc.combine.x = td_rig_activations(r, td_rig_noise(r, 7, n, 1), n);
    for (uint64_t i = 0; i < 3; i++) desc.combine.add[i] = td_rig_activations(r, td_rig_noise(r, 8 + i, n, 1), n);
    td_rig_run_rows(r, td_rig_block(r, &desc), rows);
    give(r, td_rig_floats(r, desc.combine.x, n), n, out);
}

/* ---- products ---------------------------------------------------------------------------------- */

typedef struct {
    td_weight_format format;
    bool             extra; /* linear: a bias; mlp: the gate of a shared expert */
} product_case;

#define WIDTH 384

static void build_linear(td_rig *r, const void *arg, uint32_t rows, float *out) {
    const product_case *c = arg;
    size_t              n = (size_t)rows * WIDTH;
    void               *in = td_rig_activations(r, td_rig_codes(r, 12, rows, HIDDEN, -6), (size_t)rows * HIDDEN),
         *to = td_rig_alloc(r, td_rig_act_bytes(r, n));
    td_block_desc desc = {.kind = TD_BLOCK_LINEAR, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.linear =
        (td_linear_desc){.n = WIDTH, .k = HIDDEN, .w = td_rig_linear(r, c->format, 13, WIDTH, HIDDEN), .in = in, .out = to};
    if (c->extra) desc.linear.bias = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 14, WIDTH, 1), 0, WIDTH);
    td_rig_run_rows(r, td_rig_block(r, &desc), rows);
    give(r, td_rig_floats(r, to, n), n, out);
}

#define INTER 256

static void build_mlp(td_rig *r, const void *arg, uint32_t rows, float *out) {
    const product_case *c = arg;
    size_t              n = (size_t)rows * HIDDEN;
    td_block_desc       desc = {.kind = TD_BLOCK_MLP, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.mlp = (td_mlp_desc){.hidden = HIDDEN,
                             .inter = INTER,
                             .gate = td_rig_linear(r, c->format, 15, INTER, HIDDEN),
                             .up = td_rig_linear(r, c->format, 16, INTER, HIDDEN),
                             .down = td_rig_linear(r, c->format, 17, HIDDEN, INTER),
                             .in = td_rig_activations(r, td_rig_codes(r, 18, rows, HIDDEN, -6), n),
                             .out = td_rig_alloc(r, td_rig_act_bytes(r, n))};
    if (c->extra) desc.mlp.out_gate = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 19, HIDDEN, 0.1f), 1, HIDDEN);
    td_rig_run_rows(r, td_rig_block(r, &desc), rows);
    give(r, td_rig_floats(r, desc.mlp.out, n), n, out);
}

static void build_head(td_rig *r, const void *arg, uint32_t rows, float *out) {
    const product_case *c = arg;
    size_t              n = (size_t)rows * VOCAB;
    uint32_t            wanted[ROWS_MAX];
    td_rig_step         s = td_rig_step_new(r, rows, 0, rows, 0);
    float              *logits = td_rig_alloc(r, n * sizeof *logits), *got = td_rig_host(r, n * sizeof *got);
    void               *x = td_rig_activations(r, td_rig_noise(r, 20, (size_t)rows * HIDDEN, 1), (size_t)rows * HIDDEN);
    td_block_desc       desc = {.kind = TD_BLOCK_HEAD, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.head = (td_head_desc){.hidden = HIDDEN,
                               .vocab = VOCAB,
                               .max_out = rows,
                               .eps = 1e-6f,
                               .gamma = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 21, HIDDEN, 1), 0, HIDDEN),
                               .w = td_rig_linear(r, c->format, 22, VOCAB, HIDDEN),
                               .x = x,
                               .logits = logits};
    for (uint32_t i = 0; i < rows; i++) wanted[i] = rows - 1 - i;
    td_npu_block *b = td_rig_block(r, &desc);
    td_rig_step_fill(r, &s, &(td_step_arrays){.counts = &(td_step_counts){.n_tok = rows, .n_out = rows}, .out_row = wanted});
    td_rig_step_upload(r, &s);
    td_rig_enqueue(r, b, &s);
    td_rig_sync(r);
    td_rig_get(r, logits, got, n * sizeof *got);
    give(r, got, n, out);
}

#define BEST 16

/* @param top [rows, BEST] @param sums [rows] or NULL */
static void run_top(td_rig *r, uint32_t rows, td_logit *top, td_log_sum *sums) {
    size_t        n = (size_t)rows * VOCAB;
    td_rig_step   s = td_rig_step_new(r, rows, 0, rows, 0);
    float        *values = td_rig_noise(r, 23, n, 8), *logits = td_rig_alloc(r, n * sizeof *logits);
    td_block_desc desc = {.kind = TD_BLOCK_TOP, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.top = (td_top_desc){.vocab = VOCAB, .k = BEST, .max_out = rows, .logits = logits, .top = top, .sums = sums};
    td_npu_block *b = td_rig_block(r, &desc);
    td_rig_put(r, logits, values, n * sizeof *logits);
    td_rig_step_fill(r, &s, &(td_step_arrays){.counts = &(td_step_counts){.n_tok = rows, .n_out = rows}});
    td_rig_step_upload(r, &s);
    td_rig_enqueue(r, b, &s);
    td_rig_sync(r);
}

static void build_log_sums(td_rig *r, const void *arg, uint32_t rows, float *out) {
    td_log_sum *sums = td_rig_alloc(r, rows * sizeof *sums), *got = td_rig_host(r, rows * sizeof *got);
    (void)arg;
    run_top(r, rows, td_rig_alloc(r, rows * BEST * sizeof(td_logit)), sums);
    td_rig_get(r, sums, got, rows * sizeof *got);
    for (size_t i = 0; r->st == TD_OK && i < rows; i++) {
        out[2 * i] = got[i].max;
        out[2 * i + 1] = got[i].sum;
    }
}

static void build_top(td_rig *r, const void *arg, uint32_t rows, float *out) {
    size_t    n = (size_t)rows * BEST;
    td_logit *top = td_rig_alloc(r, n * sizeof *top), *got = td_rig_host(r, n * sizeof *got);
    (void)arg;
    run_top(r, rows, top, NULL);
    td_rig_get(r, top, got, n * sizeof *got);
    for (size_t i = 0; r->st == TD_OK && i < n; i++) {
        out[2 * i] = got[i].value;
        out[2 * i + 1] = (float)got[i].id;
    }
}

/* ---- router ------------------------------------------------------------------------------------ */

static bool is_raw(const td_rig *r) {
    td_npu_caps caps;
    r->npu->ops->caps(r->npu, &caps);
    return caps.raw_choice;
}

/* Copy a router's choice back, in order. ids, weights: [rows, top_k] */
static void get_choice(td_rig *r, const td_router_desc *d, uint32_t rows, uint16_t *ids, float *weights) {
    const size_t n = (size_t)rows * d->top_k;
    if (!is_raw(r)) {
        td_rig_get(r, d->ids, ids, n * sizeof *ids);
        td_rig_get(r, d->weights, weights, n * sizeof *weights);
        return;
    }
    int32_t *raw_ids = td_rig_host(r, n * sizeof *raw_ids);
    float   *raw_weights = td_rig_host(r, n * sizeof *raw_weights);
    td_rig_get(r, d->ids, raw_ids, n * sizeof *raw_ids);
    td_rig_get(r, d->weights, raw_weights, n * sizeof *raw_weights);
    if (r->st == TD_OK && !td_raw_choice_sort(raw_ids, raw_weights, rows, d->top_k, d->n_experts, ids, weights))
        td_rig_fail(r, TD_EDEVICE, "the router chose an expert that there is not");
}

/* The result has a row of all experts' weights, with 0 for experts that were not chosen, so that another choice is a large
 * error. */
static void build_router(td_rig *r, const void *arg, uint32_t rows, float *out) {
    td_router_desc d = *(const td_router_desc *)arg;
    size_t         n = (size_t)rows * d.top_k;
    float         *w = td_rig_noise(r, 24, (size_t)d.n_experts * HIDDEN, 0.1f);
    uint16_t      *ids = td_rig_host(r, n * sizeof *ids);
    float         *weights = td_rig_host(r, n * sizeof *weights);
    d.hidden = HIDDEN;
    d.w = td_rig_weight(r, TD_WEIGHT_F32, w, d.n_experts, HIDDEN);
    if (d.score == TD_SCORE_SIGMOID)
        d.bias = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 25, d.n_experts, 0.3f), 0, d.n_experts);
    if (d.score == TD_SCORE_SOFTMAX_CHOSEN)
        d.logit_bias = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 25, d.n_experts, 0.3f), 0, d.n_experts);
    d.in = td_rig_activations(r, td_rig_noise(r, 26, (size_t)rows * HIDDEN, 1), (size_t)rows * HIDDEN);
    d.ids = td_rig_alloc(r, n * (is_raw(r) ? sizeof(int32_t) : sizeof *ids));
    d.weights = td_rig_alloc(r, n * sizeof *weights);
    td_block_desc desc = {.kind = TD_BLOCK_ROUTER, .layer = TD_NO_LAYER, .max_tok = rows, .router = d};
    td_rig_run_rows(r, td_rig_block(r, &desc), rows);
    get_choice(r, &d, rows, ids, weights);
    for (size_t i = 0; r->st == TD_OK && i < n; i++) {
        if (ids[i] >= d.n_experts) td_rig_fail(r, TD_EDEVICE, "the router chose an expert that there is not");
        if (r->st == TD_OK && i % d.top_k && weights[i] > weights[i - 1])
            td_rig_fail(r, TD_EDEVICE, "the router's experts are not in descending order of weight");
        if (r->st == TD_OK) out[i / d.top_k * d.n_experts + ids[i]] = weights[i];
    }
}

/* ---- routed experts ---------------------------------------------------------------------------- */

enum { EXPERTS = 6, CHOSEN = 2, EXPERT_INTER = 64 };

static const td_npu_weight *const *expert_list(td_rig *r, uint64_t seed, size_t n, size_t k) {
    const td_npu_weight **list = td_rig_host(r, EXPERTS * sizeof *list);
    for (uint64_t e = 0; list && e < EXPERTS; e++) list[e] = td_rig_linear(r, TD_WEIGHT_W8A8, seed + e, n, k);
    return list;
}

/* Gives each expert another number of rows, and the last one none. */
static void build_experts(td_rig *r, const void *arg, uint32_t rows, float *out) {
    size_t    n = (size_t)rows * HIDDEN, pairs = (size_t)rows * CHOSEN;
    size_t    id_bytes = is_raw(r) ? sizeof(int32_t) : sizeof(uint16_t);
    uint16_t *ids = td_rig_host(r, pairs * id_bytes); /* little-endian: the low half of an int32 comes first */
    float    *weights = td_rig_noise(r, 60, pairs, 1);
    (void)arg;
    for (size_t i = 0; ids && i < pairs; i++)
        ids[i * id_bytes / sizeof *ids] = (uint16_t)((i / CHOSEN / 3 + i % CHOSEN) % (EXPERTS - 1));
    td_block_desc desc = {.kind = TD_BLOCK_EXPERTS, .layer = TD_NO_LAYER, .max_tok = rows};
    desc.experts = (td_experts_desc){.hidden = HIDDEN,
                                     .inter = EXPERT_INTER,
                                     .n_experts = EXPERTS,
                                     .top_k = CHOSEN,
                                     .gate = expert_list(r, 61, EXPERT_INTER, HIDDEN),
                                     .up = expert_list(r, 71, EXPERT_INTER, HIDDEN),
                                     .down = expert_list(r, 81, HIDDEN, EXPERT_INTER),
                                     .in = td_rig_activations(r, td_rig_codes(r, 91, rows, HIDDEN, -6), n),
                                     .ids = td_rig_alloc(r, pairs * id_bytes),
                                     .weights = td_rig_alloc(r, pairs * sizeof *weights),
                                     .out = td_rig_alloc(r, td_rig_act_bytes(r, n))};
    td_rig_put(r, (void *)desc.experts.ids, ids, pairs * id_bytes);
    td_rig_put(r, (void *)desc.experts.weights, weights, pairs * sizeof *weights);
    td_rig_run_rows(r, td_rig_block(r, &desc), rows);
    give(r, td_rig_floats(r, desc.experts.out, n), n, out);
}

static td_status exam_experts(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    td_npu_caps caps;
    e->cards[0]->ops->caps(e->cards[0], &caps);
    if (caps.experts) return exam_block(e, arg, f, err);
    snprintf(f->said, sizeof f->said, "it has no routed experts: they stay on the CPU");
    f->is_note = true;
    return TD_OK;
}

/* ---- attention --------------------------------------------------------------------------------- */

/* Two steps with three sequences in shuffled pages. The first step has two prompts. In the second, one sequence generates a
 * token, one continues its prompt, and one is new. */
enum { STEPS = 2, SEQS = 3, PAGES = 8, SPARE_PAGES = 2, STRIDE = 2, LARGEST = 160, SECOND = 16 };
static const struct {
    uint32_t bucket, n_seq, begin[SEQS], n[SEQS]; /* keys from earlier steps, and rows in this one */
    uint8_t  absorbed[SEQS];
} PLAN[STEPS] = {{LARGEST, 2, {0, 0, 0}, {140, 20, 0}, {0, 0, 0}}, {SECOND, 3, {140, 20, 0}, {1, 5, 3}, {1, 0, 0}}};
static const uint32_t PAGE_OF[SEQS][STRIDE] = {{5, 2}, {3, 0}, {7, 1}};
#define ATTENTION_ROWS (140 + 20 + 1 + 5 + 3)

typedef struct {
    uint32_t       pos[LARGEST], slot[LARGEST], seq_start[SEQS + 1], kv_len[SEQS], table[SEQS * STRIDE];
    uint8_t        absorbed[SEQS];
    td_step_counts counts;
} attention_step;

static td_step_arrays plan_step(attention_step *a, uint32_t n_seq, const uint32_t *begin, const uint32_t *n,
                                const uint8_t *absorbed) {
    uint32_t row = 0;
    for (uint32_t s = 0; s < n_seq; s++) {
        a->seq_start[s] = row;
        a->kv_len[s] = begin[s] + n[s];
        a->absorbed[s] = absorbed[s];
        memcpy(a->table + s * STRIDE, PAGE_OF[s], sizeof PAGE_OF[s]);
        for (uint32_t i = 0; i < n[s]; i++, row++) {
            a->pos[row] = begin[s] + i;
            a->slot[row] = PAGE_OF[s][a->pos[row] / TD_KV_PAGE] * TD_KV_PAGE + a->pos[row] % TD_KV_PAGE;
        }
    }
    a->seq_start[n_seq] = row;
    a->counts = (td_step_counts){.n_tok = row, .n_seq = n_seq};
    return (td_step_arrays){.counts = &a->counts,
                            .pos = a->pos,
                            .slot = a->slot,
                            .seq_start = a->seq_start,
                            .kv_len = a->kv_len,
                            .absorbed = a->absorbed,
                            .block_table = a->table};
}

/* Runs the steps one after the other on a block that reads rows of `hidden` from `in` and writes them to `to`. */
static void run_attention(td_rig *r, td_npu_block *b, size_t hidden, void *in, void *to, float *out) {
    size_t done = 0;
    for (uint64_t i = 0; i < STEPS; i++) {
        attention_step *a = td_rig_host(r, sizeof *a);
        td_rig_step     s = td_rig_step_new(r, PLAN[i].bucket, SEQS, 0, STRIDE);
        float          *x = td_rig_codes(r, 30 + i, PLAN[i].bucket, hidden, -6);
        if (r->st != TD_OK) return;
        td_step_arrays arrays = plan_step(a, PLAN[i].n_seq, PLAN[i].begin, PLAN[i].n, PLAN[i].absorbed);
        size_t         n = (size_t)a->counts.n_tok * hidden, bytes = td_rig_act_bytes(r, (size_t)PLAN[i].bucket * hidden);
        td_bf16       *rounded = td_rig_host(r, bytes);
        for (size_t k = 0; rounded && r->act == TD_DT_BF16 && k < (size_t)PLAN[i].bucket * hidden; k++)
            rounded[k] = td_f32_to_bf16(x[k]);
        td_rig_put(r, in, r->act == TD_DT_BF16 ? (const void *)rounded : x, bytes);
        td_rig_step_fill(r, &s, &arrays);
        td_rig_step_upload(r, &s);
        td_rig_enqueue(r, b, &s);
        td_rig_sync(r);
        give(r, td_rig_floats(r, to, n), n, out + done);
        done += n;
    }
}

/* A model's table of rotary embeddings: for each position the cosines in the first half of a row, the sines in the second.
 */
static td_npu_weight *rope_table(td_rig *r, size_t dim) {
    size_t positions = (size_t)STRIDE * TD_KV_PAGE;
    float *t = td_rig_host(r, positions * dim * sizeof *t);
    for (size_t i = 0; t && i < positions * dim; i++) {
        size_t pos = i / dim, k = i % dim;
        double angle = (double)pos * pow(10000, -2.0 * (double)(k % (dim / 2)) / (double)dim);
        t[i] = (float)(k < dim / 2 ? cos(angle) : sin(angle));
    }
    return td_rig_weight(r, TD_WEIGHT_F32, t, positions, dim);
}

/* Allocates device memory for a KV cache with rows of n values. */
static void *cache(td_rig *r, td_kv_rows rows, size_t heads, size_t n) {
    size_t page = r->st == TD_OK ? r->ops->kv_page_bytes(r->npu, rows, n) : 1;
    return td_rig_alloc(r, (PAGES + SPARE_PAGES) * heads * page);
}

typedef struct {
    td_weight_format format;
    bool             extra;  /* GQA: norms of q and k; MLA: compressed q */
    bool             rows;   /* GQA: these norms are over whole rows */
    bool             slides; /* GQA: a sliding window and sinks */
    bool             v3;     /* MLA: DeepSeek-V3's sizes, for which some devices have a special operation; fewer heads */
} attention_case;

#define GQA_HEADS 8
#define GQA_KV_HEADS 2
#define GQA_DIM 128
#define GQA_WINDOW 20

static void build_gqa(td_rig *r, const void *arg, uint32_t rows, float *out) {
    (void)rows;
    const attention_case *c = arg;
    size_t                io_bytes = td_rig_act_bytes(r, (size_t)LARGEST * HIDDEN);
    td_block_desc         desc = {
                .kind = TD_BLOCK_GQA, .layer = TD_NO_LAYER, .max_tok = LARGEST, .max_kv = (uint32_t)STRIDE * TD_KV_PAGE};
    void *in = td_rig_alloc(r, io_bytes);
    desc.gqa = (td_gqa_desc){.hidden = HIDDEN,
                             .heads = GQA_HEADS,
                             .kv_heads = GQA_KV_HEADS,
                             .head_dim = GQA_DIM,
                             .eps = 1e-6f,
                             .softmax_scale = 0.0883883f,
                             .q = td_rig_linear(r, c->format, 40, GQA_HEADS * GQA_DIM, HIDDEN),
                             .k = td_rig_linear(r, c->format, 41, GQA_KV_HEADS * GQA_DIM, HIDDEN),
                             .v = td_rig_linear(r, c->format, 42, GQA_KV_HEADS * GQA_DIM, HIDDEN),
                             .o = td_rig_linear(r, c->format, 43, HIDDEN, GQA_HEADS * GQA_DIM),
                             .rope = rope_table(r, GQA_DIM),
                             .kv_k = cache(r, TD_KV_HEAD, GQA_KV_HEADS, GQA_DIM),
                             .kv_v = cache(r, TD_KV_HEAD, GQA_KV_HEADS, GQA_DIM),
                             .kv_pages = PAGES,
                             .kv_spare_pages = SPARE_PAGES,
                             .in = in,
                             .out = td_rig_alloc(r, io_bytes)};
    if (c->extra) {
        size_t q_norm = (c->rows ? GQA_HEADS : 1) * GQA_DIM, k_norm = (c->rows ? GQA_KV_HEADS : 1) * GQA_DIM;
        desc.gqa.norm_rows = c->rows;
        desc.gqa.q_norm = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 44, q_norm, 1), 0, q_norm);
        desc.gqa.k_norm = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 45, k_norm, 1), 0, k_norm);
    }
    if (c->slides) {
        desc.gqa.window = GQA_WINDOW;
        desc.gqa.sinks = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 46, GQA_HEADS, 1), 0, GQA_HEADS);
    }
    run_attention(r, td_rig_block(r, &desc), HIDDEN, in, desc.gqa.out, out);
}

enum { V3_HIDDEN = 7168, V3_HEADS = 2, V3_Q_LORA = 1536 };
enum { MLA_HEADS = 32, MLA_Q_LORA = 256, MLA_KV_LORA = 512, MLA_NOPE = 128, MLA_ROPE = 64, MLA_V = 128 };

static void build_mla(td_rig *r, const void *arg, uint32_t rows, float *out) {
    (void)rows;
    const attention_case *c = arg;
    uint32_t              hidden = c->v3 ? V3_HIDDEN : HIDDEN, heads = c->v3 ? V3_HEADS : MLA_HEADS,
             q_lora = c->v3 ? V3_Q_LORA : MLA_Q_LORA;
    size_t        q_rows = (size_t)heads * (MLA_NOPE + MLA_ROPE), kv_rows = (size_t)heads * (MLA_NOPE + MLA_V);
    size_t        io_bytes = td_rig_act_bytes(r, (size_t)LARGEST * hidden);
    td_block_desc desc = {
        .kind = TD_BLOCK_MLA, .layer = TD_NO_LAYER, .max_tok = LARGEST, .max_kv = (uint32_t)STRIDE * TD_KV_PAGE};
    void *in = td_rig_alloc(r, io_bytes);
    desc.mla =
        (td_mla_desc){.hidden = hidden,
                      .heads = heads,
                      .q_lora = c->extra ? q_lora : 0,
                      .kv_lora = MLA_KV_LORA,
                      .nope_dim = MLA_NOPE,
                      .rope_dim = MLA_ROPE,
                      .v_dim = MLA_V,
                      .eps = 1e-6f,
                      .softmax_scale = 0.0721688f,
                      .kv_a = td_rig_linear(r, c->format, 50, MLA_KV_LORA + MLA_ROPE, hidden),
                      .kv_a_norm = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 51, MLA_KV_LORA, 1), 0, MLA_KV_LORA),
                      .kv_b = td_rig_linear(r, TD_WEIGHT_BF16, 52, kv_rows, MLA_KV_LORA),
                      .o = td_rig_linear(r, c->format, 53, hidden, (size_t)heads * MLA_V),
                      .rope = rope_table(r, MLA_ROPE),
                      .kv_latent = cache(r, TD_KV_LATENT, 1, MLA_KV_LORA),
                      .kv_rope = cache(r, TD_KV_ROPE, 1, MLA_ROPE),
                      .kv_pages = PAGES,
                      .kv_spare_pages = SPARE_PAGES,
                      .in = in,
                      .out = td_rig_alloc(r, io_bytes)};
    if (c->extra) {
        desc.mla.q_a = td_rig_linear(r, c->format, 54, q_lora, hidden);
        desc.mla.q_a_norm = td_rig_weight(r, TD_WEIGHT_F32, td_rig_noise(r, 55, q_lora, 1), 0, q_lora);
        desc.mla.q_b = td_rig_linear(r, c->format, 56, q_rows, q_lora);
    } else {
        desc.mla.q = td_rig_linear(r, c->format, 57, q_rows, hidden);
    }
    run_attention(r, td_rig_block(r, &desc), hidden, in, desc.mla.out, out);
}

/* ---- captures ---------------------------------------------------------------------------------- */

/* Captures a linear and an attention together and replays them with other lengths. The reference runs them one by one. */
enum { REPLAYS = 3, BUCKET = 8 };
static const struct {
    uint32_t n_seq, begin[SEQS], n[SEQS];
} REPLAY[REPLAYS] = {{2, {0, 0, 0}, {3, 2, 0}}, {3, {3, 2, 0}, {1, 1, 4}}, {3, {4, 3, 4}, {1, 1, 1}}};
static const uint8_t NONE_ABSORBED[SEQS] = {0};
#define CAPTURE_ROWS (5 + 6 + 3)

static td_npu_graph *capture(td_rig *r, td_npu_block *first, td_npu_block *second, const td_rig_step *s) {
    td_npu_graph *g = NULL;
    if (r->st != TD_OK) return NULL;
    td_status st = r->ops->graph_begin(r->npu, r->stream);
    if (st != TD_OK) {
        td_rig_fail(r, st, "a capture cannot be begun");
        return NULL;
    }
    td_rig_step_upload(r, s);
    td_rig_enqueue(r, first, s);
    td_rig_enqueue(r, second, s);
    st = r->ops->graph_end(r->npu, r->stream, &g, r->st == TD_OK ? r->err : NULL);
    if (r->st == TD_OK) r->st = st;
    return g;
}

static void launch(td_rig *r, td_npu_graph *g) {
    if (r->st != TD_OK) return;
    td_status st = r->ops->graph_launch(r->npu, r->stream, g);
    if (st != TD_OK) td_rig_fail(r, st, "a capture cannot be replayed");
}

static void build_capture(td_rig *r, const void *arg, uint32_t rows, float *out) {
    (void)rows;
    size_t n_in = (size_t)BUCKET * HIDDEN, done = 0;
    void  *in = td_rig_alloc(r, td_rig_act_bytes(r, n_in)), *middle = td_rig_alloc(r, td_rig_act_bytes(r, n_in)),
         *to = td_rig_alloc(r, td_rig_act_bytes(r, n_in));
    td_block_desc linear = {.kind = TD_BLOCK_LINEAR, .layer = TD_NO_LAYER, .max_tok = BUCKET},
                  gqa = {.kind = TD_BLOCK_GQA,
                         .layer = TD_NO_LAYER,
                         .max_tok = BUCKET,
                         .max_kv = (uint32_t)STRIDE * TD_KV_PAGE};
    (void)arg;
    linear.linear = (td_linear_desc){
        .n = HIDDEN, .k = HIDDEN, .w = td_rig_linear(r, TD_WEIGHT_BF16, 60, HIDDEN, HIDDEN), .in = in, .out = middle};
    gqa.gqa = (td_gqa_desc){.hidden = HIDDEN,
                            .heads = GQA_HEADS,
                            .kv_heads = GQA_KV_HEADS,
                            .head_dim = GQA_DIM,
                            .eps = 1e-6f,
                            .softmax_scale = 0.0883883f,
                            .q = td_rig_linear(r, TD_WEIGHT_BF16, 61, GQA_HEADS * GQA_DIM, HIDDEN),
                            .k = td_rig_linear(r, TD_WEIGHT_BF16, 62, GQA_KV_HEADS * GQA_DIM, HIDDEN),
                            .v = td_rig_linear(r, TD_WEIGHT_BF16, 63, GQA_KV_HEADS * GQA_DIM, HIDDEN),
                            .o = td_rig_linear(r, TD_WEIGHT_BF16, 64, HIDDEN, GQA_HEADS * GQA_DIM),
                            .rope = rope_table(r, GQA_DIM),
                            .kv_k = cache(r, TD_KV_HEAD, GQA_KV_HEADS, GQA_DIM),
                            .kv_v = cache(r, TD_KV_HEAD, GQA_KV_HEADS, GQA_DIM),
                            .kv_pages = PAGES,
                            .kv_spare_pages = SPARE_PAGES,
                            .in = middle,
                            .out = to};
    td_npu_block   *first = td_rig_block(r, &linear), *second = td_rig_block(r, &gqa);
    td_rig_step     s = td_rig_step_new(r, BUCKET, SEQS, 0, STRIDE);
    attention_step *a = td_rig_host(r, sizeof *a);
    td_npu_graph   *g = NULL;
    for (uint64_t i = 0; r->st == TD_OK && i < REPLAYS; i++) {
        td_step_arrays arrays = plan_step(a, REPLAY[i].n_seq, REPLAY[i].begin, REPLAY[i].n, NONE_ABSORBED);
        float         *x = td_rig_codes(r, 70 + i, BUCKET, HIDDEN, -6);
        td_bf16       *rounded = td_rig_host(r, n_in * sizeof *rounded);
        for (size_t k = 0; rounded && k < n_in; k++) rounded[k] = td_f32_to_bf16(x[k]);
        td_rig_put(r, in, r->act == TD_DT_BF16 ? (const void *)rounded : x, td_rig_act_bytes(r, n_in));
        td_rig_step_fill(r, &s, &arrays);
        if (r->is_reference) {
            td_rig_enqueue(r, first, &s);
            td_rig_enqueue(r, second, &s);
        } else {
            if (!g) g = capture(r, first, second, &s);
            launch(r, g);
        }
        td_rig_sync(r);
        size_t n = (size_t)a->counts.n_tok * HIDDEN;
        give(r, td_rig_floats(r, to, n), n, out + done);
        done += n;
    }
    if (g) r->ops->graph_destroy(r->npu, g);
}

/* ---- rows alone and with others ---------------------------------------------------------------- */

/* Rows of a product must not depend on the rows beside them: docs/determinism.md. */
static td_status exam_company(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    enum { MANY = 33 };
    size_t n = (size_t)MANY * HIDDEN, differing = 0;
    td_rig r;
    (void)arg;
    td_rig_open(&r, e->cards[0], false, err);
    td_block_desc desc = {.kind = TD_BLOCK_MLP, .layer = TD_NO_LAYER, .max_tok = MANY};
    desc.mlp = (td_mlp_desc){.hidden = HIDDEN,
                             .inter = INTER,
                             .gate = td_rig_linear(&r, TD_WEIGHT_W8A8, 80, INTER, HIDDEN),
                             .up = td_rig_linear(&r, TD_WEIGHT_W8A8, 81, INTER, HIDDEN),
                             .down = td_rig_linear(&r, TD_WEIGHT_W8A8, 82, HIDDEN, INTER),
                             .in = td_rig_alloc(&r, td_rig_act_bytes(&r, n)),
                             .out = td_rig_alloc(&r, td_rig_act_bytes(&r, n))};
    td_npu_block *b = td_rig_block(&r, &desc);
    size_t        row = td_rig_act_bytes(&r, HIDDEN);
    char         *in = td_rig_host(&r, MANY * row), *whole = td_rig_host(&r, MANY * row), *alone = td_rig_host(&r, row);
    float        *x = td_rig_noise(&r, 83, n, 1);
    for (size_t i = 0; r.st == TD_OK && i < n; i++) ((td_bf16 *)in)[i] = td_f32_to_bf16(x[i]);
    td_rig_put(&r, (void *)desc.mlp.in, in, MANY * row);
    td_rig_run_rows(&r, b, MANY);
    td_rig_get(&r, desc.mlp.out, whole, MANY * row);
    for (size_t i = 0; i < MANY; i += 8) {
        td_rig_put(&r, (void *)desc.mlp.in, in + i * row, row);
        td_rig_run_rows(&r, b, 1);
        td_rig_get(&r, desc.mlp.out, alone, row);
        if (r.st == TD_OK) differing += memcmp(alone, whole + i * row, row) != 0;
    }
    if (r.st == TD_OK) {
        snprintf(f->said, sizeof f->said, "%s",
                 differing ? "a row's bits depend on the rows beside it: answers may, too (docs/determinism.md)"
                           : "the same bits");
        f->is_note = differing != 0;
    }
    return td_rig_close(&r);
}

/* ---- the list ---------------------------------------------------------------------------------- */

#define WRONG \
    "this block computes something else than the model: do not serve with this device; report this", TD_SUBJECT_NONE

static const product_case W8A8 = {TD_WEIGHT_W8A8, false}, W8A8_EXTRA = {TD_WEIGHT_W8A8, true},
                          BF16 = {TD_WEIGHT_BF16, false}, BF16_EXTRA = {TD_WEIGHT_BF16, true};
static const attention_case ATT_W8A8 = {.format = TD_WEIGHT_W8A8},
                            ATT_W8A8_EXTRA = {.format = TD_WEIGHT_W8A8, .extra = true},
                            ATT_BF16 = {.format = TD_WEIGHT_BF16},
                            ATT_BF16_EXTRA = {.format = TD_WEIGHT_BF16, .extra = true},
                            ATT_BF16_ROWS = {.format = TD_WEIGHT_BF16, .extra = true, .rows = true},
                            ATT_BF16_SLIDES = {.format = TD_WEIGHT_BF16, .slides = true},
                            ATT_V3 = {.format = TD_WEIGHT_W8A8, .extra = true, .v3 = true};
static const td_router_desc SIGMOID = {.n_experts = 256,
                                       .top_k = 8,
                                       .n_group = 8,
                                       .topk_group = 4,
                                       .score = TD_SCORE_SIGMOID,
                                       .group = TD_GROUP_TOP2_SUM,
                                       .normalise = true,
                                       .scale = 2.5f};
static const td_router_desc SOFTMAX = {
    .n_experts = 128, .top_k = 8, .n_group = 1, .topk_group = 1, .score = TD_SCORE_SOFTMAX, .normalise = true, .scale = 1};
static const norm_case      PLAIN = NORM_PLAIN, F32_WEIGHTS = NORM_F32_WEIGHTS, F32_ROWS = NORM_F32_ROWS;
static const td_router_desc SOFTMAX_CHOSEN = {
    .n_experts = 128, .top_k = 4, .n_group = 1, .topk_group = 1, .score = TD_SCORE_SOFTMAX_CHOSEN, .scale = 1};

#define CASE(...) (&(const block_case){__VA_ARGS__})
/* At the numbers of rows for which operations have forms of their own: one stream, two, a batch, a prompt. `each`: rows of the
 * result for each of these. */
#define AT(n, text, what, exam, build, arg, each, width, bound) \
    { "block", what ", " text, exam, CASE(build, arg, n, (size_t)(each) * (n), width, bound), WRONG }
#define AT_ROWS(...)                                                                           \
    AT(1, "1 row", __VA_ARGS__), AT(2, "2 rows", __VA_ARGS__), AT(20, "20 rows", __VA_ARGS__), \
        AT(ROWS_MAX, "320 rows", __VA_ARGS__)

/* What one operation of a vendor's may do in the place of several comes first. */
static const td_check CHECKS[] = {
    AT_ROWS("norm to int8 rows", exam_block, build_norm_int8, NULL, 1, HIDDEN, 0.02),
    AT_ROWS("norm to f32 rows", exam_block, build_norm, &F32_ROWS, 2, HIDDEN, 0.006),
    AT_ROWS("mlp, w8a8", exam_block, build_mlp, &W8A8, 1, HIDDEN, 0.05),
    AT_ROWS("routed experts, w8a8", exam_experts, build_experts, NULL, 1, HIDDEN, 0.05),
    AT_ROWS("router, sigmoid with groups and bias", exam_block, build_router, &SIGMOID, 1, 256, 0.001),
    AT_ROWS("router, softmax", exam_block, build_router, &SOFTMAX, 1, 128, 0.001),
    AT_ROWS("router, softmax of the chosen", exam_block, build_router, &SOFTMAX_CHOSEN, 1, 128, 0.001),
    AT_ROWS("embed", exam_block, build_embed, NULL, 1, HIDDEN, 0),
    AT_ROWS("norm with residual", exam_block, build_norm, &PLAIN, 2, HIDDEN, 0.006),
    AT_ROWS("norm with f32 weights", exam_block, build_norm, &F32_WEIGHTS, 2, HIDDEN, 0.006),
    AT_ROWS("linear, w8a8", exam_block, build_linear, &W8A8, 1, WIDTH, 0.004),
    AT_ROWS("linear, w8a8 with bias", exam_block, build_linear, &W8A8_EXTRA, 1, WIDTH, 0.004),
    AT_ROWS("linear, bf16", exam_block, build_linear, &BF16, 1, WIDTH, 0.004),
    AT_ROWS("linear, bf16 with bias", exam_block, build_linear, &BF16_EXTRA, 1, WIDTH, 0.004),
    AT_ROWS("mlp, bf16", exam_block, build_mlp, &BF16, 1, HIDDEN, 0.015),
    AT_ROWS("mlp, bf16 with a gate", exam_block, build_mlp, &BF16_EXTRA, 1, HIDDEN, 0.015),
    AT_ROWS("combine", exam_block, build_combine, NULL, 1, HIDDEN, 0.004),
    AT_ROWS("head, bf16", exam_block, build_head, &BF16, 1, VOCAB, 0.01),
    AT_ROWS("head, w8a8", exam_block, build_head, &W8A8, 1, VOCAB, 0.03),
    AT_ROWS("top", exam_block, build_top, NULL, 1, (size_t)2 * BEST, 0),
    AT_ROWS("top, with sums for log-softmax", exam_block, build_log_sums, NULL, 1, 2, 1e-5),
    {"block", "gqa, w8a8", exam_block, CASE(build_gqa, &ATT_W8A8, 0, ATTENTION_ROWS, HIDDEN, 0.06), WRONG},
    {"block", "gqa, bf16", exam_block, CASE(build_gqa, &ATT_BF16, 0, ATTENTION_ROWS, HIDDEN, 0.02), WRONG},
    {"block", "gqa, bf16 with norms", exam_block, CASE(build_gqa, &ATT_BF16_EXTRA, 0, ATTENTION_ROWS, HIDDEN, 0.02), WRONG},
    {"block", "gqa, bf16 with norms of rows", exam_block, CASE(build_gqa, &ATT_BF16_ROWS, 0, ATTENTION_ROWS, HIDDEN, 0.02),
     WRONG},
    {"block", "gqa, bf16 with a window and sinks", exam_block,
     CASE(build_gqa, &ATT_BF16_SLIDES, 0, ATTENTION_ROWS, HIDDEN, 0.02), WRONG},
    {"block", "mla, w8a8 with compressed q", exam_block, CASE(build_mla, &ATT_W8A8_EXTRA, 0, ATTENTION_ROWS, HIDDEN, 0.06),
     WRONG},
    {"block", "mla, w8a8 of DeepSeek-V3's sizes", exam_block, CASE(build_mla, &ATT_V3, 0, ATTENTION_ROWS, V3_HIDDEN, 0.06),
     WRONG},
    {"block", "mla, bf16 with compressed q", exam_block, CASE(build_mla, &ATT_BF16_EXTRA, 0, ATTENTION_ROWS, HIDDEN, 0.02),
     WRONG},
    {"block", "mla, bf16", exam_block, CASE(build_mla, &ATT_BF16, 0, ATTENTION_ROWS, HIDDEN, 0.02), WRONG},
    {"capture", "replayed with other lengths", exam_block, CASE(build_capture, NULL, 0, CAPTURE_ROWS, HIDDEN, 0.02),
     "a replay must see what the step's arrays hold then: do not serve with this device; report this", TD_SUBJECT_NONE},
    {"rows", "alone and in company", exam_company, NULL, WRONG},
};

td_check_list td_exam_blocks(void) {
    return (td_check_list){CHECKS, sizeof CHECKS / sizeof *CHECKS};
}
