#include "plan/plan_cost.h"

#include <math.h>

#include "npu/block_buffers.h"
#include "npu/block_work.h"
#include "residency/streamed_experts.h"

#define OVERLAP 1.5 /* docs/plan.md, "Time of an operation" */

/* Rows of the steps in which a server measures its CPU: an expert has many of them, or hardly any. */
#define CPU_MANY 1024
#define CPU_FEW 2

const char *td_plan_part_name(td_plan_part_kind p) {
    static const char *const NAMES[TD_PLAN_PARTS] = {[TD_PLAN_ATTENTION] = "attention, products",
                                                     [TD_PLAN_KEYS] = "attention, KV",
                                                     [TD_PLAN_ROUTER] = "router",
                                                     [TD_PLAN_SHARED] = "shared expert",
                                                     [TD_PLAN_DENSE] = "dense MLP",
                                                     [TD_PLAN_EXPERTS] = "routed experts",
                                                     [TD_PLAN_RESIDENT] = "experts on the card",
                                                     [TD_PLAN_UPLOADS] = "uploads of experts",
                                                     [TD_PLAN_HANDOVER] = "hand-over",
                                                     [TD_PLAN_SUMS] = "sums over cards",
                                                     [TD_PLAN_HEAD] = "head",
                                                     [TD_PLAN_EMBED] = "embedding",
                                                     [TD_PLAN_ROWS] = "norms, residual sums"};
    return NAMES[p];
}

const char *td_plan_part_bound(const td_plan_part *p) {
    const double most = fmax(fmax(p->read_s, p->int8_s), fmax(p->float_s, p->fixed_s));
    return most <= 0            ? ""
           : most == p->fixed_s ? "latency"
           : most == p->read_s  ? "read"
           : most == p->int8_s  ? "int8"
                                : "float";
}

double td_plan_active_experts(double n_experts, double top_k, double n_tok) {
    return n_experts * -expm1(n_tok * log1p(-top_k / n_experts));
}

double td_plan_work_s(double read_s, double compute_s) {
    return pow(pow(read_s, OVERLAP) + pow(compute_s, OVERLAP), 1 / OVERLAP);
}

/* ---- rates ------------------------------------------------------------------------------------- */

/* Bytes and operations per second that the code reaches. */
typedef struct {
    double read, int8, floats;
} rates;

typedef struct {
    rates  linear, attention;
    double attention_row; /* as td_plan_efficiency's, in keys */
    double block_s;
} device_rates;

/* A rate of all nodes together. Nodes have equal shares of all work, so it is the slowest node's rate times their number. */
static double of_all_nodes(const td_plan_machine *m, size_t offset) {
    double least = INFINITY;
    for (uint32_t i = 0; i < m->n_nodes; i++) least = fmin(least, *(const double *)((const char *)&m->node[i] + offset));
    return least * m->n_nodes;
}

static rates cpu_rates(const td_plan_machine *m) {
    return (rates){of_all_nodes(m, offsetof(td_plan_node, read_bytes_per_s)),
                   of_all_nodes(m, offsetof(td_plan_node, int8_ops_per_s)),
                   of_all_nodes(m, offsetof(td_plan_node, float_ops_per_s))};
}

static device_rates rates_of_device(const td_plan_machine *m) {
    bool                      cards = m->cards.count > 0;
    const td_plan_efficiency *e = cards ? &m->card : &m->cpu;
    rates r = cards ? (rates){m->cards.read_bytes_per_s, m->cards.int8_ops_per_s, m->cards.float_ops_per_s} : cpu_rates(m);
    return (device_rates){.linear = {r.read * e->linear_read, r.int8 * e->linear_int8, r.floats * e->float_ops},
                          .attention = {r.read * e->attention_read, r.int8, r.floats * e->attention_float},
                          .attention_row = e->attention_row,
                          .block_s = cards ? m->cards.block_s : m->block_s};
}

static rates rates_of_experts(const td_plan_machine *m) {
    rates r = cpu_rates(m);
    return (rates){r.read * m->cpu.expert_read, r.int8 * m->cpu.expert_int8, r.floats * m->cpu.float_ops};
}

/* ---- one operation ----------------------------------------------------------------------------- */

typedef struct {
    const td_plan_machine *machine;
    const td_plan_model   *model;
    const td_plan_rows    *rows;
    device_rates           device;
    rates                  experts;
    uint32_t               streamed; /* experts of a layer, in this step */
    td_plan_step          *out;
} pricing;

/* Time beside the counted work, given as the number of operations that take as long. */
typedef struct {
    double int8, floats;
} uncounted;

static double add_work(td_plan_part *p, double bytes, double int8_ops, double float_ops, uncounted more, const rates *r) {
    double read_s = bytes / r->read, int8_s = (int8_ops + more.int8) / r->int8;
    double float_s = (float_ops + more.floats) / r->floats;
    double time_s = td_plan_work_s(read_s, int8_s + float_s);
    p->bytes += bytes;
    p->int8_ops += int8_ops;
    p->float_ops += float_ops;
    p->read_s += read_s;
    p->int8_s += int8_s;
    p->float_s += float_s;
    p->time_s += time_s;
    return time_s;
}

static double add_tier_work(td_plan_part *p, const td_tier_work *w, uncounted more, const rates *r) {
    return add_work(p, (double)w->bytes, (double)w->int8_ops, (double)w->f32_ops, more, r);
}

static double add_fixed(td_plan_part *p, double seconds) {
    p->fixed_s += seconds;
    p->time_s += seconds;
    p->n++;
    return seconds;
}

/* Adds a copy that takes `least_s` and the time of its bytes. @return its time. */
static double add_copy(td_plan_part *p, double bytes, double bytes_per_s, double least_s) {
    double moved_s = bytes / bytes_per_s;
    p->bytes += bytes;
    p->read_s += moved_s;
    p->fixed_s += least_s;
    p->time_s += least_s + moved_s;
    return least_s + moved_s;
}

/* The rows of the step over which an operation goes: first .. end - 1. */
typedef struct {
    uint64_t first, end;
} row_range;

static row_range range_of(const td_plan_rows *r, uint32_t half) {
    uint64_t n = (uint64_t)r->n_seq * r->n_new, first = td_first_half((uint32_t)n);
    return half == TD_OUTLINE_WHOLE ? (row_range){0, n} : half == 0 ? (row_range){0, first} : (row_range){first, n};
}

static td_plan_part_kind part_of(const td_block_desc *b, bool moe_layer) {
    switch (b->kind) {
        case TD_BLOCK_MLA:
        case TD_BLOCK_GQA:
        case TD_BLOCK_DELTA:
        case TD_BLOCK_SPARSE: return TD_PLAN_ATTENTION;
        case TD_BLOCK_ROUTER: return TD_PLAN_ROUTER;
        case TD_BLOCK_MLP: return moe_layer ? TD_PLAN_SHARED : TD_PLAN_DENSE;
        case TD_BLOCK_EXPERTS:
        case TD_BLOCK_RESIDENT: return TD_PLAN_RESIDENT;
        case TD_BLOCK_ALL_REDUCE: return TD_PLAN_SUMS;
        case TD_BLOCK_HEAD:
        case TD_BLOCK_TOP: return TD_PLAN_HEAD;
        case TD_BLOCK_EMBED: return TD_PLAN_EMBED;
        default: return TD_PLAN_ROWS;
    }
}

static td_tier_work product_work(const pricing *p, const td_block_desc *b, uint64_t n_rows) {
    const td_plan_model *m = p->model;
    td_tier_work         sum = {0};
    td_work_add_matrices(&sum, b, &(td_block_formats){m->linear, m->latent, m->table}, n_rows, p->rows->n_out);
    return sum;
}

/* The attention's work over all sequences that have rows in the range. */
static td_tier_work attention_work(const pricing *p, const td_block_desc *b, row_range range) {
    const td_plan_rows *r = p->rows;
    td_tier_work        sum = {0};
    for (uint64_t q = range.first / r->n_new; q * r->n_new < range.end; q++) {
        uint64_t begin = q * r->n_new, end = begin + r->n_new;
        if (begin < range.first) begin = range.first;
        if (end > range.end) end = range.end;
        td_work_sequence s = {.rows = end - begin, .keys = r->context + end - q * r->n_new, .absorbed = r->n_new == 1};
        td_work_add_attention(&sum, b, p->model->act_bytes, &s);
    }
    return sum;
}

/* The cost of a prompt's rows beside their keys, as operations: those of one key of one row, times attention_row. */
static double row_ops(const pricing *p, const td_block_desc *b, row_range range) {
    td_tier_work one = {0}, two = {0};
    if (p->rows->n_new == 1) return 0;
    td_work_add_attention(&one, b, 0,
                          &(td_work_sequence){.rows = 1, .keys = 1}); /* one key is expanded, and one row meets one key */
    td_work_add_attention(&two, b, 0, &(td_work_sequence){.rows = 2, .keys = 2}); /* two keys, which rows meet 3 times */
    return (double)(range.end - range.first) * p->device.attention_row * (double)(two.f32_ops - 2 * one.f32_ops);
}

/* Bytes of activations that a norm or a residual sum reads and writes; a cache line is read before it is written. The f32
 * copy of a norm, which some devices make for a router, is left out: descriptors of a plan do not say whether there is one.
 */
static double row_bytes(const pricing *p, const td_block_desc *b) {
    td_block_buffer list[TD_BLOCK_BUFFERS_MAX];
    td_block_desc   copy = *b;
    double          sum = 0;
    size_t          n = td_block_buffers(&copy, p->model->act_bytes == 2 ? TD_DT_BF16 : TD_DT_F32, list);
    for (size_t i = 0; i < n; i++)
        if (b->kind != TD_BLOCK_NORM || list[i].at != (void **)&copy.norm.out_f32) sum += 2 * (double)list[i].row_bytes;
    return sum;
}

/* What a layer's tokens choose: distinct experts, and pairs of a token and an expert. */
typedef struct {
    double experts, pairs;
} chosen;

/* The part of n_tok tokens' choices, top_k each, that is on the card. A prompt chooses nearly all experts, so its hits are
 * the share of them that is there, streamed ones included. */
static chosen on_the_card(const pricing *p, double n_tok, double top_k) {
    const td_plan_model *m = p->model;
    const double         there = m->resident + p->streamed;
    const double         hits = p->rows->n_new == 1 && !p->streamed ? m->hits : fmin(1, there / m->experts_in_use);
    const double         active = td_plan_active_experts(m->experts_in_use, top_k, n_tok);
    return there > 0 ? (chosen){fmin(there, hits * active), hits * n_tok * top_k} : (chosen){0, 0};
}

/* Experts in slots have the bytes and products that they have on the CPU. Of several cards each has its share of them. */
static double resident_cost(pricing *p, chosen c) {
    const td_plan_model *m = p->model;
    td_plan_part        *part = &p->out->part[TD_PLAN_RESIDENT];
    const td_tier_work   expert = td_experts_batch_work(m->experts, m->layer_bytes, 1, 0),
                       pair = td_experts_batch_work(m->experts, m->layer_bytes, 0, 1);
    const double fixed = add_fixed(part, p->device.block_s), pairs = c.pairs / m->n_cards;
    return fixed + add_work(part, c.experts / m->n_cards * (double)expert.bytes, pairs * (double)pair.int8_ops,
                            pairs * (double)pair.f32_ops, (uncounted){0}, &p->device.linear);
}

/* All of a layer's experts on the device, of several cards a stretch of each. 8-bit experts are multiplied in int8, 4-bit ones
 * in floats: a code and, for each group, a scale and an offset of 16 bits are read. */
static double device_experts_cost(pricing *p, const td_experts_desc *e, double n_tok) {
    const td_plan_model *m = p->model;
    td_plan_part        *part = &p->out->part[TD_PLAN_RESIDENT];
    const double         weights = 3.0 * e->hidden * e->inter, ops = 2 * weights * n_tok * e->top_k;
    const double         bytes = weights * (m->expert_group ? 0.5 + 4.0 / m->expert_group : 1);
    const double         active = td_plan_active_experts(m->experts_in_use, e->top_k, n_tok);
    const double         fixed = add_fixed(part, p->device.block_s);
    return fixed + add_work(part, active * bytes, m->expert_group ? 0 : ops, m->expert_group ? ops : 0, (uncounted){0},
                            &p->device.linear);
}

static double block_cost(pricing *p, const td_block_desc *b, bool moe_layer, row_range range) {
    td_plan_part *part = &p->out->part[part_of(b, moe_layer)];
    if (b->kind == TD_BLOCK_HEAD && !p->rows->n_out) return 0;
    if (b->kind == TD_BLOCK_ALL_REDUCE) { /* a ring: each card sends and receives 2 (n - 1) / n of all bytes */
        const td_plan_cards *c = &p->machine->cards;
        double               n = p->model->n_cards, values = (double)(range.end - range.first) * b->all_reduce.width;
        size_t               value_bytes = b->all_reduce.exact ? sizeof(int32_t) : p->model->act_bytes;
        part->n++;
        return add_copy(part, 2 * (n - 1) / n * values * value_bytes, c->sum_bytes_per_s, c->sum_s);
    }
    if (b->kind == TD_BLOCK_EXPERTS) return device_experts_cost(p, &b->experts, (double)(range.end - range.first));
    if (b->kind == TD_BLOCK_RESIDENT)
        return resident_cost(
            p, on_the_card(p, (double)(range.end - range.first), td_resident_end(&b->resident) - b->resident.first));
    double       n_rows = (double)(range.end - range.first), fixed_s = add_fixed(part, p->device.block_s);
    td_tier_work products = product_work(p, b, range.end - range.first), attention = attention_work(p, b, range);
    if (part == &p->out->part[TD_PLAN_ROWS])
        return fixed_s + add_work(part, n_rows * row_bytes(p, b), 0, 0, (uncounted){0}, &p->device.linear);
    return fixed_s + add_tier_work(part, &products, (uncounted){0}, &p->device.linear) +
           add_tier_work(&p->out->part[TD_PLAN_KEYS], &attention, (uncounted){.floats = row_ops(p, b, range)},
                         &p->device.attention);
}

/* The cost of experts whose weights are each read once. @param n_active experts; n_pairs pairs of a token and an expert. */
static double experts_cost(pricing *p, double n_active, double n_pairs) {
    const td_plan_model *m = p->model;
    td_plan_part        *part = &p->out->part[TD_PLAN_EXPERTS];
    td_tier_work         expert = td_experts_batch_work(m->experts, m->layer_bytes, 1, 0),
                 pair = td_experts_batch_work(m->experts, m->layer_bytes, 0, 1);
    uncounted unpacking = {.int8 = n_active * p->machine->cpu.expert_row * (double)pair.int8_ops};
    return add_work(part, n_active * (double)expert.bytes, n_pairs * (double)pair.int8_ops, n_pairs * (double)pair.f32_ops,
                    unpacking, &p->experts) +
           add_fixed(part, p->machine->block_s);
}

/* ---- streamed experts -------------------------------------------------------------------------- */

td_stream_shape td_plan_stream_shape(const td_plan_model *m) {
    const uint32_t in_use = (uint32_t)m->experts_in_use, resident = (uint32_t)fmin(m->resident, m->experts_in_use),
                   most = m->stream_slots / TD_STREAM_LAYERS, others = in_use - resident;
    return (td_stream_shape){.n_layers = m->experts->n_layers,
                             .n_experts = in_use,
                             .top_k = m->experts->top_k,
                             .n_resident = resident,
                             .n_most = most < others ? most : others};
}

/* Seconds of an expert's upload, while all cards' links are busy. */
static double upload_s(const td_plan_machine *m, const td_plan_model *model) {
    const td_plan_cards *c = &m->cards;
    const double         bytes = (double)td_experts_batch_work(model->experts, model->layer_bytes, 1, 0).bytes;
    return (c->link_s + bytes / c->link_bytes_per_s) / model->n_cards;
}

/* Seconds of a layer in a step of n_tok rows whose experts all are the CPU's. */
static double cpu_s(pricing *p, double n_tok) {
    const td_plan_model *m = p->model;
    return experts_cost(p, td_plan_active_experts(m->experts_in_use, m->experts->top_k, n_tok), n_tok * m->experts->top_k);
}

td_stream_speeds td_plan_stream_speeds(const td_plan_machine *machine, const td_plan_model *m) {
    td_plan_step unused = {0};
    pricing      p = {.machine = machine,
                      .model = m,
                      .device = rates_of_device(machine),
                      .experts = rates_of_experts(machine),
                      .out = &unused};
    const double k = m->experts->top_k, many = fmin(m->max_tok, CPU_MANY), few = fmin(m->max_tok, CPU_FEW);
    const chosen all = {m->experts_in_use, m->max_tok * k};
    return (td_stream_speeds){.upload = upload_s(machine, m),
                              .card_row = resident_cost(&p, all) / all.pairs,
                              .cpu_row = cpu_s(&p, many) / (many * k),
                              .cpu_read = cpu_s(&p, few) / td_plan_active_experts(m->experts_in_use, k, few)};
}

/* ---- the step in time -------------------------------------------------------------------------- */

typedef struct {
    double now_s, all_s; /* when the ticket's immediate sum is ready, and when its deferred sum is */
} ticket;

typedef struct {
    double   device_s, experts_s; /* when the device and the expert threads are free */
    ticket   open[TD_HALVES];     /* of the current layer, one for each half */
    uint32_t n_left[TD_HALVES];   /* hand-overs that follow in the step */

    double   link_s;                   /* when the link to the device is free */
    double   left_s[TD_STREAM_LAYERS]; /* when the slots of the last layers with streamed experts were free again */
    uint32_t n_taken, n_gone;          /* such layers so far: whose experts came, whose slots are free again */
} timeline;

/* With deferral, the experts that a token needs in its own layer are computed first, the deferred ones after them
 * (TD_EXPERTS_HELD_TOK in cpu_experts.h). */
static ticket run_experts(pricing *p, double begin_s, double n_tok, bool last) {
    const td_experts_config *c = p->model->experts;
    const chosen             there = on_the_card(p, n_tok, c->top_k);
    double                   in_use = p->model->experts_in_use, pairs = n_tok * c->top_k - there.pairs;
    double                   active = td_plan_active_experts(in_use, c->top_k, n_tok) - there.experts, now = active;
    if (pairs <= 0) return (ticket){begin_s, begin_s};
    if (!last && c->max_deferred && n_tok <= TD_EXPERTS_HELD_TOK)
        now = td_plan_active_experts(in_use, c->top_k - c->max_deferred, n_tok) -
              on_the_card(p, n_tok, c->top_k - c->max_deferred).experts;
    ticket t = {.now_s = begin_s + experts_cost(p, now, pairs * now / active)};
    t.all_s = now < active ? t.now_s + experts_cost(p, active - now, pairs * (active - now) / active) : t.now_s;
    return t;
}

static bool is_inline(const pricing *p) {
    return p->machine->cards.count == 0;
}

static void submit(pricing *p, timeline *t, uint32_t half, row_range range) {
    uint32_t             slot = half == TD_OUTLINE_WHOLE ? 0 : half;
    double               n_tok = (double)(range.end - range.first);
    bool                 last = --t->n_left[slot] == 0;
    const td_plan_cards *c = &p->machine->cards;
    if (is_inline(p)) { /* the experts run on the stream's own threads when they are collected */
        t->open[slot] = run_experts(p, 0, n_tok, last);
        return;
    }
    td_plan_part *part = &p->out->part[TD_PLAN_HANDOVER];
    t->device_s += add_copy(part, n_tok * (double)p->model->to_host, c->link_bytes_per_s, c->link_s);
    double ready_s = t->device_s + add_fixed(part, c->handover_s);
    t->open[slot] = run_experts(p, fmax(ready_s, t->experts_s), n_tok, last);
    t->experts_s = t->open[slot].all_s;
}

static void collect(pricing *p, timeline *t, uint32_t half, row_range range) {
    const ticket        *x = &t->open[half == TD_OUTLINE_WHOLE ? 0 : half];
    const td_plan_cards *c = &p->machine->cards;
    if (is_inline(p)) {
        t->device_s += x->all_s;
        return;
    }
    td_plan_part *part = &p->out->part[TD_PLAN_HANDOVER];
    double        n_tok = (double)(range.end - range.first), seen_s = x->now_s + add_fixed(part, c->handover_s);
    if (seen_s > t->device_s) {
        p->out->waited_s += seen_s - t->device_s;
        t->device_s = seen_s;
    }
    const double copy_s = add_copy(part, n_tok * (double)p->model->to_device, c->link_bytes_per_s, c->link_s);
    t->device_s += copy_s;
    t->link_s += copy_s; /* uploads go the same way */
}

/* Before a layer's router, once in a step: its streamed experts come, as soon as the layer that had their slots is gone. */
static void take_streamed(pricing *p, timeline *t) {
    td_plan_part *part = &p->out->part[TD_PLAN_UPLOADS];
    const double  one = upload_s(p->machine, p->model), all = p->streamed * one,
                 begin_s = fmax(t->link_s, t->left_s[t->n_taken++ % TD_STREAM_LAYERS]);
    part->n++;
    part->bytes += p->streamed * (double)td_experts_batch_work(p->model->experts, p->model->layer_bytes, 1, 0).bytes;
    part->read_s += all;
    part->time_s += all;
    t->link_s = begin_s + all;
    if (t->link_s <= t->device_s) return;
    p->out->waited_s += t->link_s - t->device_s;
    t->device_s = t->link_s;
}

/* Behind the last of a layer's experts, which are those of the last choices. */
static bool is_last_resident(const td_block_desc *b) {
    return b->kind == TD_BLOCK_RESIDENT && td_resident_end(&b->resident) == b->resident.top_k;
}

static void leave_streamed(timeline *t) {
    t->left_s[t->n_gone++ % TD_STREAM_LAYERS] = t->device_s;
}

/* Whether a layer has routed experts, which is to say a router. */
static bool has_router(const td_outline *o, uint32_t layer) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->ops[i].kind == TD_OP_BLOCK && o->ops[i].block.kind == TD_BLOCK_ROUTER && o->ops[i].block.layer == layer)
            return true;
    return false;
}

static uint32_t streamed_in(const td_plan_machine *m, const td_plan_model *model, const td_plan_rows *rows) {
    if (!model->stream_slots) return 0;
    const td_stream_shape  shape = td_plan_stream_shape(model);
    const td_stream_speeds speeds = td_plan_stream_speeds(m, model);
    return td_stream_share(&shape, &speeds, rows->n_seq * rows->n_new);
}

static void block(pricing *p, timeline *t, const td_outline_op *op, bool moe_layer, row_range range) {
    const bool is_first = op->half == TD_OUTLINE_WHOLE || op->half == 0,
               is_last = op->half == TD_OUTLINE_WHOLE || op->half > 0;
    if (p->streamed && is_first && op->block.kind == TD_BLOCK_ROUTER) take_streamed(p, t);
    t->device_s += block_cost(p, &op->block, moe_layer, range);
    if (p->streamed && is_last && is_last_resident(&op->block)) leave_streamed(t);
}

void td_plan_step_cost(const td_plan_machine *machine, const td_plan_model *model, const td_plan_rows *rows,
                       td_plan_step *out) {
    *out = (td_plan_step){.streamed = streamed_in(machine, model, rows)};
    pricing           p = {.machine = machine,
                           .model = model,
                           .rows = rows,
                           .device = rates_of_device(machine),
                           .experts = rates_of_experts(machine),
                           .streamed = out->streamed,
                           .out = out};
    timeline          t = {0};
    const td_outline *o = rows->n_halves > 1 ? &model->halves : &model->whole;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->ops[i].kind == TD_OP_SUBMIT) t.n_left[o->ops[i].half == TD_OUTLINE_WHOLE ? 0 : o->ops[i].half]++;
    for (uint32_t i = 0; i < o->n; i++) {
        const td_outline_op *op = &o->ops[i];
        row_range            range = range_of(rows, op->half);
        switch (op->kind) {
            case TD_OP_BLOCK:
                block(&p, &t, op, op->block.kind == TD_BLOCK_MLP && has_router(o, op->block.layer), range);
                break;
            case TD_OP_SUBMIT: submit(&p, &t, op->half, range); break;
            case TD_OP_COLLECT: collect(&p, &t, op->half, range); break;
            case TD_OP_TAKE:
            case TD_OP_LEAVE:
            case TD_OP_SHOW:
            case TD_OP_CALL:
            case TD_OP_STAGE: break;
        }
    }
    out->step_s = t.device_s;
}
