/* Whole steps of a model of random weights: decode by streams and context, prefill by prompt. Head included, sampling not. */
#include <assert.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "core/error.h"
#include "model/model.h"

/* Steps of one shape over and over, with other tokens each time, so that other experts are chosen. */
typedef struct {
    td_npu   *npu;
    td_model *model;
    uint32_t  n_pages, vocab, turn, n_seq;
    td_step   step;
    uint32_t *token, *pos, *slot, *blocks; /* [max_tok] each, [n_pages] */
    uint32_t *seq_start, *kv_len, *rows;   /* [n_seq + 1], [n_seq], [n_seq] the last row of each sequence */
    uint8_t  *absorbed;                    /* [n_seq] */
} steps;

static td_status run(void *ctx, td_error *err) {
    steps       *s = ctx;
    const float *logits;
    for (uint32_t i = 0; i < s->step.n_tok; i++) s->token[i] = (s->turn * 7919u + i * 104729u) % s->vocab;
    s->turn++;
    td_status st = td_model_forward(s->model, &s->step);
    if (st == TD_OK) st = td_model_head(s->model, s->rows, s->n_seq, &logits);
    return st == TD_OK ? st : td_fail(err, st, "a step of the model failed: %s", td_status_text(st));
}

static td_tier_work work(void *ctx) {
    td_model_work w;
    td_model_get_work(((steps *)ctx)->model, &w);
    return (td_tier_work){.bytes = w.device.bytes + w.experts.bytes, .int8_ops = w.device.int8_ops + w.experts.int8_ops,
                          .f32_ops = w.device.f32_ops + w.experts.f32_ops};
}

/* Sequences of n_new rows each after `context` keys. */
static void set_shape(steps *s, uint32_t n_seq, uint32_t n_new, uint32_t context) {
    uint32_t pages = (context + n_new + TD_KV_PAGE - 1) / TD_KV_PAGE, row = 0;
    s->n_seq = n_seq;
    for (uint32_t q = 0; q < n_seq; q++) {
        s->seq_start[q] = row;
        s->kv_len[q] = context + n_new;
        s->absorbed[q] = n_new == 1;
        for (uint32_t i = 0; i < n_new; i++, row++) {
            s->pos[row] = context + i;
            s->slot[row] = (q * pages) * TD_KV_PAGE + context + i;
        }
        s->rows[q] = row - 1;
    }
    s->seq_start[n_seq] = row;
    for (uint32_t i = 0; i < n_seq * pages; i++) s->blocks[i] = i;
    s->step = (td_step){.n_tok = row, .n_seq = n_seq, .block_stride = pages,
                        .host = {.token = s->token, .pos = s->pos, .slot = s->slot, .seq_start = s->seq_start, .kv_len = s->kv_len,
                                 .absorbed = s->absorbed, .block_table = s->blocks}};
}

static void close_steps(steps *s) {
    td_model_close(s->model);
    if (s->npu) s->npu->ops->close(s->npu);
    free(s->token);
    free(s->pos);
    free(s->slot);
    free(s->blocks);
    free(s->seq_start);
    free(s->kv_len);
    free(s->rows);
    free(s->absorbed);
    *s = (steps){0};
}

static td_status open_steps(steps *s, td_bench *b, uint32_t max_tok, uint32_t max_seq, uint32_t max_len, uint32_t n_pages, td_error *err) {
    *s = (steps){.n_pages = n_pages};
    TD_TRY(td_npu_open("host", &(td_npu_config){.act_dtype = TD_DT_BF16, .pool = b->pool}, &s->npu, err));
    td_model_options o = {.model_path = b->o->model_path, .override_json = b->o->override_json, .load_dummy = true, .w8a8 = true,
                          .expert_format = b->o->experts->format, .expert_groups = b->o->experts->groups, .max_tok = max_tok, .max_out = max_seq, .context_length = max_len};
    td_model_plan    plan;
    TD_TRY(td_model_open(&o, s->npu, b->pool, &s->model, err));
    td_model_get_plan(s->model, &plan);
    TD_TRY(td_bench_check_memory(b, "the model", plan.npu_weight_bytes + plan.expert_weight_bytes + plan.scratch_bytes + n_pages * plan.kv_bytes_per_page, err));
    TD_TRY(td_model_load(s->model, n_pages, err));
    s->vocab = td_model_get_config(s->model)->vocab;
    s->token = calloc(max_tok, sizeof *s->token);
    s->pos = calloc(max_tok, sizeof *s->pos);
    s->slot = calloc(max_tok, sizeof *s->slot);
    s->blocks = calloc(n_pages, sizeof *s->blocks);
    s->seq_start = calloc(max_seq + 1, sizeof *s->seq_start);
    s->kv_len = calloc(max_seq, sizeof *s->kv_len);
    s->rows = calloc(max_seq, sizeof *s->rows);
    s->absorbed = calloc(max_seq, sizeof *s->absorbed);
    bool ok = s->token && s->pos && s->slot && s->blocks && s->seq_start && s->kv_len && s->rows && s->absorbed;
    return ok ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the steps");
}

typedef struct {
    uint32_t n_seq, n_new, context, calls;
} step_shape;

static void name_shape(const step_shape *p, char name[TD_BENCH_SHAPE_BYTES]) {
    if (p->n_new == 1) snprintf(name, TD_BENCH_SHAPE_BYTES, "%u streams, context %u", p->n_seq, p->context);
    else snprintf(name, TD_BENCH_SHAPE_BYTES, "%u prompts of %u tokens", p->n_seq, p->n_new);
}

#define SHAPES_MAX 8

/* Those that the filter lets through and the model's context has room for. */
static td_status select_shapes(const td_bench *b, const step_shape *all, size_t n_all, step_shape *shapes, size_t *n, td_error *err) {
    td_model_config config;
    TD_TRY(td_model_config_read(b->o->model_path, b->o->override_json, &config, err));
    assert(n_all <= SHAPES_MAX);
    *n = 0;
    for (size_t i = 0; i < n_all; i++) {
        char name[TD_BENCH_SHAPE_BYTES];
        name_shape(&all[i], name);
        if (!td_bench_wanted(b, name)) continue;
        if (all[i].context + all[i].n_new <= config.max_position) shapes[(*n)++] = all[i];
        else fprintf(stderr, "%s: left out, the model has %u positions\n", name, config.max_position);
    }
    return *n ? TD_OK : td_fail(err, TD_EINVAL, "no row is left to measure");
}

static td_status time_shapes(td_bench *b, const step_shape *all, size_t n_all, td_error *err) {
    steps      s;
    step_shape shapes[SHAPES_MAX];
    size_t     n;
    uint32_t   max_tok = 0, max_seq = 0, max_len = 0, max_pages = 0;
    TD_TRY(select_shapes(b, all, n_all, shapes, &n, err));
    for (size_t i = 0; i < n; i++) {
        uint32_t n_seq = shapes[i].n_seq, len = shapes[i].context + shapes[i].n_new, pages = n_seq * ((len + TD_KV_PAGE - 1) / TD_KV_PAGE);
        if (n_seq * shapes[i].n_new > max_tok) max_tok = n_seq * shapes[i].n_new;
        if (n_seq > max_seq) max_seq = n_seq;
        if (len > max_len) max_len = len;
        if (pages > max_pages) max_pages = pages;
    }
    td_status st = open_steps(&s, b, max_tok, max_seq, max_len, max_pages, err);
    for (size_t i = 0; i < n && st == TD_OK; i++) {
        const step_shape *p = &shapes[i];
        td_bench_case     c = {.m = p->n_seq * p->n_new, .kernel = td_model_expert_kernel(s.model), .calls = p->calls, .run = run, .work = work, .ctx = &s};
        name_shape(p, c.shape);
        set_shape(&s, p->n_seq, p->n_new, p->context);
        st = td_bench_time(b, &c, err);
    }
    close_steps(&s);
    return st;
}

td_status td_bench_decode(td_bench *b, td_error *err) {
    static const step_shape SHAPES[] = {{1, 1, 16, 8},    {1, 1, 1024, 8}, {1, 1, 4096, 8}, {1, 1, 16384, 8},
                                        {4, 1, 16, 4},    {16, 1, 16, 4},  {16, 1, 1024, 4}, {32, 1, 16, 2}};
    return time_shapes(b, SHAPES, sizeof SHAPES / sizeof *SHAPES, err);
}

td_status td_bench_prefill(td_bench *b, td_error *err) {
    static const step_shape SHAPES[] = {{1, 128, 0, 2}, {1, 512, 0, 1}, {1, 2048, 0, 1}, {1, 8192, 0, 1}};
    return time_shapes(b, SHAPES, sizeof SHAPES / sizeof *SHAPES, err);
}
