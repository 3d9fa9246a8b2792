#include "model/program.h"

#include <stdlib.h>

#include "core/error.h"
#include "model/layer_verbs.h"
#include "model/piece_pace.h"

/* ---- the passes -------------------------------------------------------------------------------- */

/* out = norm(x). @param stride of out's rows, elements; 0: hidden. */
static void add_norm_of(td_description *d, const td_npu_weight *gamma, void *x, void *out, size_t stride) {
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_NORM,
                                         .norm = {.hidden = d->s->config->hidden,
                                                  .eps = d->s->config->eps,
                                                  .gamma = gamma,
                                                  .x = x,
                                                  .out = out,
                                                  .out_stride = stride}});
}

/* out = W in; [hidden, k] by rows of hidden. */
static void add_linear(td_description *d, const td_npu_weight *w, uint32_t k, const void *in, void *out) {
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_LINEAR,
                                         .linear = {.n = d->s->config->hidden, .k = k, .w = w, .in = in, .out = out}});
}

static void add_embed(td_description *d, uint32_t streams, const void *images, void *out) {
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_EMBED,
                                         .embed = {.table = td_spec_weights(d->s, TD_NO_LAYER)[TD_ROLE_EMBED],
                                                   .hidden = d->s->config->hidden,
                                                   .streams = streams,
                                                   .images = images,
                                                   .out = out}});
}

static void add_head(td_description *d, const td_npu_weight *gamma, const td_npu_weight *w) {
    const td_program_spec *s = d->s;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_HEAD,
                                         .head = {.hidden = s->config->hidden,
                                                  .vocab = d->sizes.vocab,
                                                  .max_out = s->model->max_out,
                                                  .eps = s->config->eps,
                                                  .gamma = gamma,
                                                  .w = w,
                                                  .x = d->x,
                                                  .logits = s->act.logits}});
    if (!s->top_k) return;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_TOP,
                                         .top = {.vocab = d->sizes.vocab,
                                                 .k = s->top_k,
                                                 .max_out = s->model->max_out,
                                                 .logits = s->act.logits,
                                                 .top = s->act.top,
                                                 .sums = s->act.sums}});
}

/* The mixture of the last streams of a model, or of its MTP layer. */
typedef struct {
    td_mix_form          form;
    const td_npu_weight *fn, *base, *scale;
} last_mix;

static void add_last_mix(td_description *d, last_mix m, const void *x, void *out) {
    const td_model_config *c = d->s->config;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_MIX,
                                         .mix = {.form = m.form,
                                                 .hidden = c->hidden,
                                                 .streams = td_model_streams(c),
                                                 .eps = c->eps,
                                                 .mix_eps = c->sparse.mix_eps,
                                                 .fn = m.fn,
                                                 .base = m.base,
                                                 .scale = m.scale,
                                                 .x = x,
                                                 .out = out}});
}

/* x = the mixture of the last streams. */
static void join_streams(td_description *d, last_mix m) {
    add_last_mix(d, m, d->x, d->s->act.h);
    d->x = d->s->act.h;
}

/* Of a model: a family without weights for it has the mean. */
static last_mix last_mix_of(const td_description *d) {
    td_npu_weight *const *w = td_spec_weights(d->s, TD_NO_LAYER);
    if (!d->s->config->arch->weights[TD_ROLE_MIX_HEAD].name) return (last_mix){.form = TD_MIX_MEAN};
    return (last_mix){TD_MIX_LAST, w[TD_ROLE_MIX_HEAD], w[TD_ROLE_MIX_HEAD_BASE], w[TD_ROLE_MIX_HEAD_SCALE]};
}

/*
 * x = eh_proj [enorm(embed(token)) | hnorm(final_norm(x'))], x' the main model's last hidden states (DeepSeek-V3, arXiv
 * 2412.19437 section 2.2), of several streams their mixture. A rotated model's final_norm is taken back first.
 */
static void add_mtp_input(td_description *d) {
    const td_model_config *c = d->s->config;
    const td_activations  *a = &d->s->act;
    td_npu_weight *const  *w = td_spec_weights(d->s, c->n_layers);
    void                  *hidden = c->mtp_rotated ? a->attn : a->h;
    void *second_half = a->mtp_in ? (char *)a->mtp_in + c->hidden * td_dtype_bytes(td_model_act_dtype(d->s->model)) : NULL;
    void *last = td_model_streams(c) > 1 ? a->attn : a->x;
    add_embed(d, 1, NULL, a->h);
    add_norm_of(d, w[TD_ROLE_MTP_ENORM], a->h, a->mtp_in, 2 * (size_t)c->hidden);
    if (td_model_streams(c) > 1) add_last_mix(d, last_mix_of(d), a->x, last);
    add_norm_of(d, td_spec_weights(d->s, TD_NO_LAYER)[TD_ROLE_FINAL_NORM], last, a->h, 0);
    if (c->mtp_rotated) add_linear(d, w[TD_ROLE_MTP_UNROTATE], c->hidden, a->h, hidden);
    add_norm_of(d, w[TD_ROLE_MTP_HNORM], hidden, second_half, 2 * (size_t)c->hidden);
    add_linear(d, w[TD_ROLE_MTP_EH_PROJ], 2 * c->hidden, a->mtp_in, d->x);
}

/*
 * Of DeepSeek-V4, whose tokens have several residual streams: x_i = e_proj enorm(embed(token)) + h_proj hnorm(x'_i), x'_i the
 * main model's last streams, before they are mixed (MTPBlock of the program that is published with the checkpoint).
 */
static void add_mtp_streams(td_description *d) {
    const td_model_config *c = d->s->config;
    const td_activations  *a = &d->s->act;
    td_npu_weight *const  *w = td_spec_weights(d->s, c->n_layers);
    const uint32_t         streams = td_model_streams(c);
    add_embed(d, 1, NULL, a->h);
    add_norm_of(d, w[TD_ROLE_MTP_ENORM], a->h, a->mlp, 0);
    add_linear(d, w[TD_ROLE_MTP_E_PROJ], c->hidden, a->mlp, a->attn);
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_NORM,
                                         .norm = {.hidden = c->hidden,
                                                  .streams = streams,
                                                  .eps = c->eps,
                                                  .gamma = w[TD_ROLE_MTP_HNORM],
                                                  .x = a->x,
                                                  .out = a->mtp_in}});
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_LINEAR,
                                         .linear = {.n = c->hidden,
                                                    .k = c->hidden,
                                                    .streams = streams,
                                                    .w = w[TD_ROLE_MTP_H_PROJ],
                                                    .in = a->mtp_in,
                                                    .out = d->x}});
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_SPREAD,
                                         .spread = {.hidden = c->hidden, .streams = streams, .x = d->x, .add = {a->attn}}});
}

static void show_layer(td_description *d, uint32_t layer) {
    const td_program_spec *s = d->s;
    if (!s->layer_done) return;
    td_describe_op(
        d, (td_op){.kind = TD_OP_SHOW,
                   .show = {s->act.x, s->shown_x, s->config->hidden * td_dtype_bytes(td_model_act_dtype(s->model))}});
    td_describe_op(d, (td_op){.kind = TD_OP_CALL, .call = {s->layer_done, {s->layer_done_args[layer]}}});
}

static void describe_forward(td_description *d) {
    const td_program_spec *s = d->s;
    if (s->whole) add_embed(d, td_model_streams(s->config), td_spec_images(s, 0), d->x);
    if (s->layers.first == s->config->n_layers) add_mtp_input(d);
    for (uint32_t i = s->layers.first; i < s->layers.end; i++) {
        td_describe_layer(d, i);
        show_layer(d, i);
    }
}

static void describe_head(td_description *d) {
    td_npu_weight *const *w = td_spec_weights(d->s, TD_NO_LAYER);
    if (td_model_streams(d->s->config) > 1) join_streams(d, last_mix_of(d));
    add_head(d, w[TD_ROLE_FINAL_NORM], w[TD_ROLE_LM_HEAD]);
}

/* Over the rows of the last forward, whose x stays as it is. */
static void describe_mtp(td_description *d) {
    d->x = d->s->act.mtp_x;
    if (td_layer_streams(d->s->config, d->s->config->n_layers) > 1)
        add_mtp_streams(d);
    else
        add_mtp_input(d);
    td_describe_layer(d, d->s->config->n_layers);
}

static void describe_mtp_head(td_description *d) {
    const td_model_config *c = d->s->config;
    td_npu_weight *const  *w = td_spec_weights(d->s, c->n_layers);
    d->x = d->s->act.mtp_x;
    if (td_layer_streams(c, c->n_layers) > 1)
        join_streams(d, (last_mix){TD_MIX_LAST, w[TD_ROLE_MTP_MIX_HEAD], w[TD_ROLE_MTP_MIX_HEAD_BASE],
                                   w[TD_ROLE_MTP_MIX_HEAD_SCALE]});
    add_head(d, w[TD_ROLE_MTP_NORM],
             c->mtp_rotated ? w[TD_ROLE_MTP_HEAD] : td_spec_weights(d->s, TD_NO_LAYER)[TD_ROLE_LM_HEAD]);
}

bool td_program_has_pass(const td_program_spec *s, td_pass_kind kind) {
    if (kind == TD_PASS_FORWARD) return true;
    return s->whole && (kind == TD_PASS_HEAD || s->config->n_mtp_layers);
}

typedef void (*describe_pass)(td_description *);
static const describe_pass DESCRIBE[TD_PASSES] = {[TD_PASS_FORWARD] = describe_forward,
                                                  [TD_PASS_HEAD] = describe_head,
                                                  [TD_PASS_MTP] = describe_mtp,
                                                  [TD_PASS_MTP_HEAD] = describe_mtp_head};

/* Its operations, the last one a TD_OP_STAGE. The caller frees ops, also after a failure. */
static td_description describe(const td_program_spec *s, td_pass_kind kind, td_error *err) {
    td_description d = {
        .s = s, .sizes = td_shard_sizes_of(s->config, s->shard), .x = s->act.x, .layer = TD_NO_LAYER, .err = err};
    DESCRIBE[kind](&d);
    td_describe_op(&d, (td_op){.kind = TD_OP_STAGE});
    return d;
}

/* ---- the order of hand-overs -------------------------------------------------------------------- */

/* Every operation in the order in which it is enqueued. @return the one that the walk is at, which goes on behind it; NULL:
 * there is none left. @param half out, whose the operation is. */
static const td_op *next_op(const td_program *p, uint32_t n_halves, td_program_walk *w, uint32_t *half) {
    while (w->at < p->n) {
        const td_op *op = &p->ops[w->at++];
        *half = w->half;
        if (op->kind != TD_OP_STAGE) return op;
        if (++w->half < n_halves) {
            w->at = w->stage;
            continue;
        }
        w->half = 0;
        w->stage = w->at;
    }
    return NULL;
}

static td_status list_order(td_program *p, uint32_t n_halves, td_error *err) {
    td_bridge_port **order = malloc((size_t)p->n * n_halves * sizeof *order);
    if (!order) return td_fail(err, TD_ENOMEM, "out of memory for the layer program");
    td_program_walk w = {0};
    uint32_t        half, n = 0;
    for (const td_op *op; (op = next_op(p, n_halves, &w, &half));)
        if (op->kind == TD_OP_SUBMIT) order[n++] = op->handover.port[half];
    p->order[n_halves - 1] = order;
    p->n_tickets[n_halves - 1] = n;
    return TD_OK;
}

/* ---- building ----------------------------------------------------------------------------------- */

/* A port for each half of a layer's hand-over; what is submitted there is collected there. */
static td_status create_ports(const td_program *p, td_bridge *bridge, uint32_t n_halves, td_error *err) {
    const td_op *submit = NULL;
    for (uint32_t i = 0; i < p->n; i++) {
        td_op *op = &p->ops[i];
        if (op->kind == TD_OP_COLLECT)
            for (uint32_t half = 0; half < n_halves; half++) op->handover.port[half] = submit->handover.port[half];
        if (op->kind != TD_OP_SUBMIT) continue;
        submit = op;
        for (td_bridge_port_desc port = op->handover.desc; port.half < n_halves; port.half++)
            TD_TRY(td_bridge_port_create(bridge, &port, &op->handover.port[port.half], err));
    }
    return TD_OK;
}

/* Whether a block of a forward pass may go in parts. @param between_bytes out, what lies between them */
static bool has_parts(const td_program_spec *s, const td_block_desc *desc, size_t *between_bytes) {
    const td_npu_ops *ops = s->npu->ops;
    *between_bytes = 0;
    return s->model->aside_tok && ops->enqueue_part &&
           ops->block_parts(s->npu, desc, s->model->aside_tok, (td_parts_wanted){.n = UINT32_MAX}, between_bytes) > 1;
}

/* Whether what one block took tells what the other will take for as many rows. */
static bool are_alike(const td_block_desc *a, const td_block_desc *b) {
    if (a->kind != b->kind) return false;
    if (a->kind == TD_BLOCK_MLP) return a->mlp.inter == b->mlp.inter;
    if (a->kind == TD_BLOCK_GQA) return a->gqa.window == b->gqa.window;
    if (a->kind == TD_BLOCK_MLA) return a->mla.index.top == b->mla.index.top;
    return true;
}

static void number_paces(td_program *p) {
    const td_block_desc *first[TD_PACES];
    uint32_t             n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        td_op *op = &p->ops[i];
        if (op->kind != TD_OP_BLOCK) continue;
        uint32_t at = 0;
        while (at < n && !are_alike(first[at], &op->block.desc)) at++;
        if (at == TD_PACES) at--; /* more than that are alike */
        if (at == n) first[n++] = &op->block.desc;
        op->block.pace = at;
    }
}

static td_status create_blocks(const td_program *p, const td_program_spec *s, td_error *err) {
    for (uint32_t i = 0; i < p->n; i++) {
        td_op *op = &p->ops[i];
        if (op->kind != TD_OP_BLOCK) continue;
        op->block.has_parts = has_parts(s, &op->block.desc, &(size_t){0});
        TD_TRY(s->npu->ops->block_create(s->npu, &op->block.desc, &op->block.built, err));
    }
    return TD_OK;
}

td_status td_program_build(const td_program_spec *s, td_pass_kind kind, td_program *out, td_error *err) {
    uint32_t       n_halves = kind == TD_PASS_FORWARD ? s->max_halves : 1;
    td_description d = describe(s, kind, err);
    *out = (td_program){.ops = d.ops, .n = d.n};
    td_status st = d.status;
    if (st == TD_OK) st = create_ports(out, s->bridge, n_halves, err);
    if (st == TD_OK) number_paces(out);
    if (st == TD_OK) st = create_blocks(out, s, err);
    for (uint32_t n = 1; n <= n_halves && st == TD_OK; n++) st = list_order(out, n, err);
    if (st != TD_OK) td_program_free(s->npu, out);
    return st;
}

/* ---- memory ------------------------------------------------------------------------------------- */

td_status td_program_measure(const td_program_spec *s, td_program_bytes *out, td_error *err) {
    td_status st = TD_OK;
    *out = (td_program_bytes){0};
    for (td_pass_kind kind = 0; kind < TD_PASSES && st == TD_OK; kind++) {
        if (!td_program_has_pass(s, kind)) continue;
        td_description d = describe(s, kind, err);
        st = d.status;
        for (uint32_t i = 0; i < d.n; i++) {
            if (d.ops[i].kind != TD_OP_BLOCK) continue;
            const td_block_desc *desc = &d.ops[i].block.desc;
            size_t               scratch = s->npu->ops->block_scratch_bytes(s->npu, desc), between;
            if (scratch > out->scratch) out->scratch = scratch;
            if (kind == TD_PASS_FORWARD && has_parts(s, desc, &between) && between > out->between) out->between = between;
        }
        free(d.ops);
    }
    return st;
}

/* The pass's operations as they would be enqueued, behind those that are in the outline. */
static td_status append_pass(td_outline *out, const td_program_spec *s, td_pass_kind kind, uint32_t n_halves,
                             td_error *err) {
    td_description d = describe(s, kind, err);
    td_status      st = d.status;
    td_program     p = {.ops = d.ops, .n = d.n};
    td_outline_op *ops = st == TD_OK ? realloc(out->ops, (out->n + (size_t)p.n * n_halves) * sizeof *ops) : NULL;
    if (st == TD_OK && !ops) st = td_fail(err, TD_ENOMEM, "out of memory for the outline of the layer program");
    if (ops) out->ops = ops;
    td_program_walk w = {0};
    uint32_t        half;
    for (const td_op *op; ops && (op = next_op(&p, n_halves, &w, &half));) {
        ops[out->n] = (td_outline_op){.kind = op->kind, .half = n_halves > 1 ? half : TD_OUTLINE_WHOLE};
        if (op->kind == TD_OP_BLOCK) ops[out->n].block = op->block.desc;
        out->n++;
    }
    free(d.ops);
    return st;
}

td_status td_program_outline(const td_program_spec *s, uint32_t n_halves, td_outline *out, td_error *err) {
    *out = (td_outline){0};
    td_status st = append_pass(out, s, TD_PASS_FORWARD, n_halves, err);
    if (st == TD_OK && s->whole) st = append_pass(out, s, TD_PASS_HEAD, 1, err);
    if (st != TD_OK) td_outline_free(out);
    return st;
}

void td_outline_free(td_outline *o) {
    free(o->ops);
    *o = (td_outline){0};
}

/* ---- enqueuing --------------------------------------------------------------------------------- */

static td_status enqueue_show(const td_op *op, td_npu *d, td_npu_stream *s, const td_step *step) {
    if (op->show.host == op->show.dev) return TD_OK;
    return d->ops->copy(d, s, op->show.host, op->show.dev, op->show.row_bytes * step->max_tok, TD_COPY_D2H);
}

static uint32_t halves_of(const td_program *p, const td_step_bucket *bucket) {
    return p->order[bucket->n_halves - 1] ? bucket->n_halves : 1;
}

static const td_step *step_of(const td_step_bucket *bucket, uint32_t n_halves, uint32_t half) {
    return n_halves > 1 ? &bucket->half[half] : &bucket->whole;
}

/* The first half takes a layer's streamed experts, and the last half leaves them. */
static td_status enqueue_streamed(const td_op *op, td_npu_stream *s, bool is_first, bool is_last) {
    if (op->kind == TD_OP_TAKE)
        return is_first ? td_streamed_enqueue_take(op->streamed.experts, op->streamed.card, op->streamed.layer, s) : TD_OK;
    return is_last ? td_streamed_enqueue_leave(op->streamed.experts, op->streamed.card, op->streamed.layer, s) : TD_OK;
}

/* Those of streamed passes aside. */
static td_status enqueue_op(const td_op *op, uint32_t half, td_npu *d, td_npu_stream *s, const td_step *step,
                            bool captured) {
    switch (op->kind) {
        case TD_OP_BLOCK: return d->ops->enqueue(d, s, op->block.built, step);
        case TD_OP_SUBMIT: return td_bridge_enqueue_submit(op->handover.port[half], s, step, captured);
        case TD_OP_COLLECT: return td_bridge_enqueue_collect(op->handover.port[half], s, step, captured);
        case TD_OP_SHOW: return enqueue_show(op, d, s, step);
        case TD_OP_CALL: return d->ops->host_call(d, s, op->call.fn, op->call.arg[half]);
        case TD_OP_TAKE:
        case TD_OP_LEAVE:
        case TD_OP_STAGE: break;
    }
    return TD_OK;
}

td_status td_program_enqueue(const td_program *p, td_npu *d, td_npu_stream *s, const td_step_bucket *bucket,
                             td_pass_form form) {
    const uint32_t  n_halves = halves_of(p, bucket);
    td_program_walk w = {0};
    uint32_t        half;
    for (const td_op *op; (op = next_op(p, n_halves, &w, &half));) {
        const bool moves = op->kind == TD_OP_TAKE || op->kind == TD_OP_LEAVE;
        if (moves && form.streamed) TD_TRY(enqueue_streamed(op, s, half == 0, half + 1 == n_halves));
        TD_TRY(enqueue_op(op, half, d, s, step_of(bucket, n_halves, half), form.captured));
    }
    return TD_OK;
}

const td_op *td_program_next(const td_program *p, const td_step_bucket *bucket, const td_program_cursor *cursor,
                             const td_step **step) {
    const uint32_t  n_halves = halves_of(p, bucket);
    td_program_walk w = cursor->walk;
    uint32_t        half;
    const td_op    *op = next_op(p, n_halves, &w, &half);
    if (op) *step = step_of(bucket, n_halves, half);
    return op;
}

td_status td_program_enqueue_next(const td_program *p, td_npu *d, td_npu_stream *s, const td_step_bucket *bucket,
                                  td_program_cursor *cursor) {
    const uint32_t  n_halves = halves_of(p, bucket);
    td_program_walk behind = cursor->walk;
    uint32_t        half = 0;
    const td_op    *op = next_op(p, n_halves, &behind, &half);
    const td_step  *step = step_of(bucket, n_halves, half);
    if (cursor->part.n > 1) {
        TD_TRY(d->ops->enqueue_part(d, s, op->block.built, step, &cursor->part));
        if (++cursor->part.i < cursor->part.n) return TD_OK;
    } else {
        TD_TRY(enqueue_op(op, half, d, s, step, false));
    }
    cursor->n_submitted += op->kind == TD_OP_SUBMIT;
    cursor->n_collected += op->kind == TD_OP_COLLECT;
    cursor->part = (td_block_part){0};
    cursor->walk = behind;
    return TD_OK;
}

/* Halves submit in turn, so the half of a hand-over goes by its number. */
td_status td_program_enqueue_again(const td_program *p, td_npu_stream *s, const td_step_bucket *bucket,
                                   const td_program_cursor *cursor) {
    const uint32_t n_halves = halves_of(p, bucket);
    for (uint32_t n = cursor->n_collected; n < cursor->n_submitted; n++)
        TD_TRY(td_bridge_enqueue_submit(p->order[n_halves - 1][n], s, step_of(bucket, n_halves, n % n_halves), false));
    return TD_OK;
}

td_bridge_pass td_program_pass(const td_program *p, const td_step_bucket *bucket) {
    uint32_t n_halves = halves_of(p, bucket);
    return (td_bridge_pass){.order = p->order[n_halves - 1],
                            .n_tickets = p->n_tickets[n_halves - 1],
                            .steps = {n_halves > 1 ? &bucket->half[0] : &bucket->whole, &bucket->half[1]}};
}

void td_program_free(td_npu *d, td_program *p) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->ops[i].kind == TD_OP_BLOCK && p->ops[i].block.built) d->ops->block_destroy(d, p->ops[i].block.built);
    for (int i = 0; i < TD_HALVES; i++) free(p->order[i]);
    free(p->ops);
    *p = (td_program){0};
}
