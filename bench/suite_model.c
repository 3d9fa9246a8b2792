/* Whole steps of a model of random weights: decode by streams and context, prefill by prompt. Head included, sampling not.
 * A card counts no work: its bytes and operations are those of the blocks that a step lists. */
#include <assert.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "bench/routing_generator.h"
#include "core/error.h"
#include "core/memory/mem.h"
#include "engine/model_folder.h"
#include "model/arch/config_file.h"
#include "model/placed_model.h"
#include "model/program.h"
#include "npu/block_work.h"

#define TEXT_TOKENS 1024 /* of each sequence at least, where tokens recur; then it begins anew */
#define TEXT_SEED 1
/* Steps before a row where experts move: those of most use come to the device, and speeds are learnt. */
#define WARM_DECODE 96
#define WARM_PREFILL 2

/* Steps of one shape over and over, with other tokens each time, so that other experts are chosen. */
typedef struct {
    td_placed_model  placed;
    td_pool         *npu_pool; /* the device's own threads, or NULL */
    td_model        *model;    /* of placed */
    uint32_t         vocab, round;
    uint32_t         n_seq, n_new, context;
    td_step_rows     rows;
    uint32_t        *token, *pages; /* [max_tok] of a sequence, [n_pages] */
    uint32_t        *out_row;       /* [max_seq] the last row of each sequence */
    bool            *best;          /* [max_seq] true: what greedy sampling takes */
    td_outline       outline;       /* what a step enqueues, on a card */
    td_routing_trace text;          /* tokens that recur, a "layer" for each sequence; without ids: none do */
} steps;

static uint32_t token_of(const steps *s, uint32_t q, uint32_t i) {
    const td_routing_trace *t = &s->text;
    if (!t->ids) return (s->round * 7919u + (q * s->n_new + i) * 104729u) % s->vocab;
    const uint64_t at = ((uint64_t)s->round * s->n_new + i) % t->n_tok;
    return (t->ids[at * t->n_layers + q] * 104729u) % s->vocab;
}

static void fill_rows(steps *s) {
    uint32_t pages = (s->context + s->n_new + TD_KV_PAGE - 1) / TD_KV_PAGE;
    td_step_rows_clear(&s->rows);
    for (uint32_t q = 0; q < s->n_seq; q++) {
        for (uint32_t i = 0; i < s->n_new; i++) s->token[i] = token_of(s, q, i);
        td_step_sequence seq = {.pages = s->pages + (size_t)q * pages,
                                .n_pages = pages,
                                .absorbed = s->n_new == 1,
                                .state = td_own_state(q, s->context)};
        td_step_rows_add(&s->rows, s->token, s->context, s->n_new, &seq);
        s->out_row[q] = s->rows.n_tok - 1;
    }
    s->round++;
}

static td_status run(void *ctx, td_error *err) {
    steps       *s = ctx;
    const float *logits;
    fill_rows(s);
    td_status st =
        td_model_forward(s->model, &s->rows, (td_out_rows){.row = s->out_row, .best = s->best, .n = s->n_seq}, &logits);
    return st == TD_OK ? st : td_fail(err, st, "a step of the model failed: %s", td_model_why(s->model, st));
}

static td_tier_work work(void *ctx) {
    td_model_work w;
    td_model_get_work(((steps *)ctx)->model, &w);
    return (td_tier_work){.bytes = w.device.bytes + w.experts.bytes,
                          .int8_ops = w.device.int8_ops + w.experts.int8_ops,
                          .f32_ops = w.device.f32_ops + w.experts.f32_ops};
}

/* Of the routed experts on this machine. */
static td_tier_work experts_work(void *ctx) {
    td_model_work w;
    td_model_get_work(((steps *)ctx)->model, &w);
    return w.experts;
}

/* What a step's blocks have to read and to compute, each weight once. */
static td_tier_work outlined_work(const steps *s) {
    static const td_block_formats FORMATS = {TD_WEIGHT_W8A8, TD_WEIGHT_BF16, TD_WEIGHT_BF16};
    const td_work_sequence sequence = {.rows = s->n_new, .keys = (uint64_t)s->context + s->n_new, .absorbed = s->n_new == 1};
    td_tier_work           sum = {0};
    for (uint32_t i = 0; i < s->outline.n; i++) {
        const td_outline_op *op = &s->outline.ops[i];
        if (op->kind != TD_OP_BLOCK) continue;
        td_work_add_matrices(&sum, &op->block, &FORMATS, (uint64_t)s->n_seq * s->n_new, s->n_seq);
        for (uint32_t q = 0; q < s->n_seq; q++) td_work_add_attention(&sum, &op->block, sizeof(td_bf16), &sequence);
    }
    return sum;
}

static void close_steps(steps *s) {
    td_outline_free(&s->outline);
    td_placed_model_close(&s->placed);
    td_pool_destroy(s->npu_pool);
    td_step_rows_close(&s->rows);
    td_routing_trace_close(&s->text);
    free(s->token);
    free(s->pages);
    free(s->out_row);
    free(s->best);
    *s = (steps){0};
}

static td_status open_npu_pool(const td_bench *b, td_pool **out, td_error *err) {
    td_worker_place place = {.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    return td_npu_threads_needed(b->o->device, 1) ? td_pool_create(&place, 1, out, err) : TD_OK;
}

/* A card has a memory of its own. */
static td_status check_memory(const td_bench *b, const td_placed_model *m, uint32_t n_pages, td_error *err) {
    const td_model_memory *p = &m->memory;
    td_npu_caps            caps;
    if (!b->device) return td_bench_check_memory(b, "the model", td_model_memory_bytes(p, n_pages), err);
    TD_TRY(td_bench_check_memory(b, "the model's part on the host", p->expert_weight_bytes + p->host_scratch_bytes, err));
    m->npus[0]->ops->caps(m->npus[0], &caps);
    uint64_t wanted =
        p->npu_weight_bytes + p->slots * p->slot_bytes + p->device_scratch_bytes + p->kv_bytes_per_page * n_pages;
    if (wanted <= caps.memory_free) return TD_OK;
    return td_fail(err, TD_ENOMEM, "the model's part on the device takes %.2f GiB, of which %.2f GiB are free there",
                   (double)wanted / (1 << 30), (double)caps.memory_free / (1 << 30));
}

/* num-gpu-experts auto takes what the pages leave, which are planned with it. */
static void leave_room(const td_bench *b, td_model_spec *spec, td_model_room *room) {
    spec->max_total_tokens = (uint64_t)spec->n_pages * TD_KV_PAGE;
    spec->n_pages = 0;
    room->available_bytes = b->available_bytes;
}

static td_status open_steps(steps *s, td_bench *b, uint32_t max_tok, uint32_t max_seq, uint32_t max_len, uint32_t n_pages,
                            td_error *err) {
    *s = (steps){0};
    TD_TRY(open_npu_pool(b, &s->npu_pool, err));
    td_model_spec  spec = td_model_spec_of(b->o->model_path, max_tok);
    td_model_room  room = {.expert_pool = b->pool, .npu_pools = s->npu_pool ? &s->npu_pool : NULL};
    td_model_probe probe = {.experts_left = b->o->experts_left};
    if (b->o->device) spec.device = b->o->device;
    spec.first_card = b->o->first_card;
    spec.override_json = b->o->override_json;
    spec.load_dummy = true;
    spec.w8a8 = true;
    spec.experts.format = b->o->experts->format;
    spec.experts.groups = b->o->experts->groups;
    spec.max_seq = max_seq;
    spec.max_out = max_seq;
    spec.context_length = max_len;
    spec.n_pages = n_pages;
    spec.device_experts = b->o->device_experts;
    spec.stream_experts = b->o->stream_experts;
    if (spec.device_experts == TD_GPU_EXPERTS_AUTO) leave_room(b, &spec, &room);
    TD_TRY(td_placed_model_open(&spec, &room, &probe, &s->placed, err));
    s->model = s->placed.model;
    td_bench_stand(b, b->o->device ? b->o->device : "host", s->placed.npus[0]);
    TD_TRY(check_memory(b, &s->placed, n_pages, err));
    if (b->device) TD_TRY(td_model_outline(s->model, 1, &s->outline, err));
    TD_TRY(td_model_load(s->model, n_pages, err));
    s->vocab = td_model_get_config(s->model)->vocab;
    if (b->o->moves) {
        const uint32_t n_new = max_tok / max_seq;
        TD_TRY(td_routing_generate(&TD_ROUTING_TOKENS, max_seq, n_new > TEXT_TOKENS ? n_new : TEXT_TOKENS, TEXT_SEED,
                                   &s->text, err));
    }
    TD_TRY(td_step_rows_open(&s->rows, max_tok, max_seq, max_len, err));
    s->token = calloc(max_tok, sizeof *s->token);
    s->pages = calloc(n_pages, sizeof *s->pages);
    s->out_row = calloc(max_seq, sizeof *s->out_row);
    s->best = malloc(max_seq * sizeof *s->best);
    if (!s->token || !s->pages || !s->out_row || !s->best) return td_fail(err, TD_ENOMEM, "out of memory for the steps");
    for (uint32_t i = 0; i < n_pages; i++) s->pages[i] = i;
    for (uint32_t i = 0; i < max_seq; i++) s->best[i] = true;
    return TD_OK;
}

typedef struct {
    uint32_t n_seq, n_new, context, calls;
} step_shape;

static void name_shape(const step_shape *p, char name[TD_BENCH_SHAPE_BYTES]) {
    if (p->n_new == 1)
        snprintf(name, TD_BENCH_SHAPE_BYTES, "%u streams, context %u", p->n_seq, p->context);
    else
        snprintf(name, TD_BENCH_SHAPE_BYTES, "%u prompts of %u tokens", p->n_seq, p->n_new);
}

#define SHAPES_MAX 9

/* Those that the filter lets through and the model's context has room for. */
static td_status select_shapes(const td_bench *b, const step_shape *all, size_t n_all, step_shape *shapes, size_t *n,
                               td_error *err) {
    td_model_config config;
    TD_TRY(td_model_folder_check(b->o->model_path, false, err));
    TD_TRY(td_model_config_read(b->o->model_path, b->o->override_json, &config, err));
    assert(n_all <= SHAPES_MAX);
    *n = 0;
    for (size_t i = 0; i < n_all; i++) {
        char name[TD_BENCH_SHAPE_BYTES];
        name_shape(&all[i], name);
        if (!td_bench_wanted(b, name)) continue;
        if (all[i].context + all[i].n_new <= config.max_position)
            shapes[(*n)++] = all[i];
        else
            fprintf(stderr, "%s: left out, the model has %u positions\n", name, config.max_position);
    }
    return *n ? TD_OK : td_fail(err, TD_EINVAL, "no row is left to measure");
}

/* What one step more sends over the link, and in how many calls. */
static td_status print_cards(td_bench *b, steps *s, const char *shape, td_error *err) {
    td_model_work before, after;
    td_card_stats card_before[TD_CARDS_MAX] = {0}, card_after[TD_CARDS_MAX] = {0};
    uint64_t      launches = 0, replays = 0;
    td_model_get_work(s->model, &before);
    uint32_t n = td_model_get_cards(s->model, card_before);
    TD_TRY(run(s, err));
    td_model_get_work(s->model, &after);
    (void)td_model_get_cards(s->model, card_after);
    for (uint32_t i = 0; i < n; i++) {
        launches += card_after[i].launches - card_before[i].launches;
        replays += card_after[i].replays - card_before[i].replays;
    }
    td_bench_print_cards(b, shape, after.link_down_bytes - before.link_down_bytes,
                         after.link_up_bytes - before.link_up_bytes, launches, replays);
    return TD_OK;
}

/* A row of a model whose experts move, and where its pairs were computed. */
static td_status time_moving(td_bench *b, steps *s, const td_bench_case *c, td_error *err) {
    td_model_work        before, after;
    td_residency_counts *x = &after.residency;
    for (uint32_t i = 0; i < (s->n_new == 1 ? WARM_DECODE : WARM_PREFILL); i++) TD_TRY(run(s, err));
    td_model_get_work(s->model, &before);
    TD_TRY(td_bench_time(b, c, err));
    td_model_get_work(s->model, &after);
    x->hits -= before.residency.hits;
    x->streamed -= before.residency.streamed;
    x->misses -= before.residency.misses;
    x->uploads -= before.residency.uploads;
    x->stream.uploads -= before.residency.stream.uploads;
    if (x->slots) td_bench_print_moved(b, c->shape, x, td_model_get_config(s->model)->top_k);
    return TD_OK;
}

static void set_work(const td_bench *b, const steps *s, td_bench_case *c) {
    if (!b->device) {
        c->work = work;
        return;
    }
    td_tier_work w = outlined_work(s);
    c->bytes = (double)w.bytes;
    c->int8_ops = (double)w.int8_ops;
    c->float_ops = (double)w.f32_ops;
    if (td_model_get_experts(s->model)) c->experts_work = experts_work;
}

static td_status time_shapes(td_bench *b, const step_shape *all, size_t n_all, td_error *err) {
    steps      s;
    step_shape shapes[SHAPES_MAX];
    size_t     n;
    uint32_t   max_tok = 0, max_seq = 0, max_len = 0, max_pages = 0;
    TD_TRY(select_shapes(b, all, n_all, shapes, &n, err));
    for (size_t i = 0; i < n; i++) {
        uint32_t n_seq = shapes[i].n_seq, len = shapes[i].context + shapes[i].n_new,
                 pages = n_seq * ((len + TD_KV_PAGE - 1) / TD_KV_PAGE);
        if (n_seq * shapes[i].n_new > max_tok) max_tok = n_seq * shapes[i].n_new;
        if (n_seq > max_seq) max_seq = n_seq;
        if (len > max_len) max_len = len;
        if (pages > max_pages) max_pages = pages;
    }
    td_status st = open_steps(&s, b, max_tok, max_seq, max_len, max_pages, err);
    for (size_t i = 0; i < n && st == TD_OK; i++) {
        const step_shape *p = &shapes[i];
        td_bench_case     c = {
                .m = p->n_seq * p->n_new, .kernel = td_model_expert_kernel(s.model), .calls = p->calls, .run = run, .ctx = &s};
        name_shape(p, c.shape);
        s.n_seq = p->n_seq;
        s.n_new = p->n_new;
        s.context = p->context;
        set_work(b, &s, &c);
        st = b->o->moves ? time_moving(b, &s, &c, err) : td_bench_time(b, &c, err);
        if (st == TD_OK && !s.placed.memory.unified_memory) st = print_cards(b, &s, c.shape, err);
    }
    close_steps(&s);
    return st;
}

td_status td_bench_decode(td_bench *b, td_error *err) {
    static const step_shape SHAPES[] = {{1, 1, 16, 8}, {1, 1, 1024, 8}, {1, 1, 4096, 8},  {1, 1, 16384, 8}, {1, 1, 32768, 8},
                                        {4, 1, 16, 4}, {16, 1, 16, 4},  {16, 1, 1024, 4}, {32, 1, 16, 2}};
    return time_shapes(b, SHAPES, sizeof SHAPES / sizeof *SHAPES, err);
}

td_status td_bench_prefill(td_bench *b, td_error *err) {
    static const step_shape SHAPES[] = {{1, 128, 0, 2}, {1, 512, 0, 1}, {1, 2048, 0, 1}, {1, 8192, 0, 1}};
    return time_shapes(b, SHAPES, sizeof SHAPES / sizeof *SHAPES, err);
}
