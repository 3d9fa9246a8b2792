#include "model/program.h"

#include <stdlib.h>

#include "core/error.h"
#include "model/arch/arch.h"

/* DeepSeek builds the norms inside MLA with the default eps, whatever rms_norm_eps says (modeling_deepseek.py). */
#define MLA_NORM_EPS 1e-6f

/* Blocks are described first, so that planning and building share one description. */
typedef struct {
    const td_program_spec *s;
    td_program            *p;       /* NULL: only measure */
    bool                   outline; /* nothing is created: */
    td_block_desc         *blocks;  /* [p->room] what each operation of p that is a block would be created from */
    size_t                 scratch; /* largest so far */
    td_shard_sizes         sizes;   /* of this card's part */
    td_activations         act;
    void                  *x;               /* the pass's residual stream: act.x or act.mtp_x */
    uint32_t               n_halves, n_moe; /* MoE layers so far in this pass */
    td_bridge_port        *port[TD_HALVES]; /* of the MoE layer that was begun last */
    void                  *normed;          /* what its router, shared expert and routed experts read; */
    td_rows_i8             normed_i8;       /* and that as int8, where they take it so, */
    float                 *normed_f32;      /* and in f32, where there is a router that takes it so */
    td_bridge_buffers      io, before;      /* its slot, and the slot of the MoE layer before when that may have deferred */
    uint32_t               layer;           /* under way; TD_NO_LAYER outside of them */
    td_npu_weight *const  *w;               /* [TD_ROLE_COUNT] its weights */
    const td_layer_op     *rest;            /* what of its listing is left */
    uint32_t               moe_layer;       /* its index in the expert store */
    td_status              status;
    td_error              *err;
} builder;

static void push(builder *b, td_op op) {
    td_program *p = b->p;
    if (!p || b->status != TD_OK) return;
    if (p->n == p->room) {
        uint32_t room = p->room ? p->room * 2 : 64;
        td_op   *ops = realloc(p->ops, room * sizeof *ops);
        if (!ops) {
            b->status = td_fail(b->err, TD_ENOMEM, "out of memory for the layer program");
            return;
        }
        p->ops = ops;
        td_block_desc *blocks = b->outline ? realloc(b->blocks, room * sizeof *blocks) : NULL;
        if (b->outline && !blocks) {
            b->status = td_fail(b->err, TD_ENOMEM, "out of memory for the outline of the layer program");
            return;
        }
        b->blocks = blocks;
        p->room = room;
    }
    p->ops[p->n++] = op;
}

static void add_block(builder *b, td_block_desc desc) {
    td_npu *d = b->s->npu;
    if (b->status != TD_OK) return;
    desc.layer = b->layer;
    desc.max_tok = b->s->max_tok;
    desc.max_kv = b->s->max_kv;
    if (!b->p) {
        size_t bytes = d->ops->block_scratch_bytes(d, &desc);
        if (bytes > b->scratch) b->scratch = bytes;
        return;
    }
    td_op op = {.kind = TD_OP_BLOCK};
    if (b->outline) {
        push(b, op);
        if (b->status == TD_OK) b->blocks[b->p->n - 1] = desc;
        return;
    }
    b->status = d->ops->block_create(d, &desc, &op.block, b->err);
    if (b->status != TD_OK) return;
    push(b, op);
    if (b->status != TD_OK) d->ops->block_destroy(d, op.block);
}

/* A norm for linears that take int8; out: for others too, out_f32: for a router; or NULL. */
static void add_norm_i8(builder *b, const td_npu_weight *gamma, const void *add, void *out, td_rows_i8 out_i8,
                        float *out_f32) {
    add_block(b, (td_block_desc){.kind = TD_BLOCK_NORM,
                                 .norm = {.hidden = b->s->config->hidden,
                                          .eps = b->s->config->eps,
                                          .gamma = gamma,
                                          .x = b->x,
                                          .add = add,
                                          .out = out || out_i8.q ? out : b->act.h,
                                          .out_i8 = out_i8,
                                          .out_f32 = out_f32}});
}

static void add_norm(builder *b, const td_npu_weight *gamma, void *x, const void *add, void *out, size_t out_stride) {
    add_block(b, (td_block_desc){.kind = TD_BLOCK_NORM,
                                 .norm = {.hidden = b->s->config->hidden,
                                          .eps = b->s->config->eps,
                                          .gamma = gamma,
                                          .x = x,
                                          .add = add,
                                          .out = out,
                                          .out_stride = out_stride}});
}

static void add_combine(builder *b, void *x, const void *first, const void *second, const void *third) {
    add_block(b, (td_block_desc){.kind = TD_BLOCK_COMBINE,
                                 .combine = {.hidden = b->s->config->hidden, .x = x, .add = {first, second, third}}});
}

/* What each card has of a sum becomes the whole, on all of them; one card has it already. */
static void add_all_reduce(builder *b, void *out, const void *first, const void *second, const void *third) {
    if (b->s->shard.count == 1) return;
    add_block(b, (td_block_desc){
                     .kind = TD_BLOCK_ALL_REDUCE,
                     .all_reduce = {
                         .width = b->s->config->hidden, .group = b->s->group, .out = out, .add = {first, second, third}}});
}

static void add_mla(builder *b) {
    const td_model_config *c = b->s->config;
    const td_layer_kv     *kv = &b->s->kv[b->layer];
    const td_activations  *a = &b->act;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_MLA,
                                 .mla = {.hidden = c->hidden,
                                         .heads = b->sizes.heads,
                                         .q_lora = c->q_lora,
                                         .kv_lora = c->kv_lora,
                                         .nope_dim = c->nope_dim,
                                         .rope_dim = c->rope_dim,
                                         .v_dim = c->v_dim,
                                         .eps = MLA_NORM_EPS,
                                         .softmax_scale = (float)c->softmax_scale,
                                         .q_a = b->w[TD_ROLE_Q_A],
                                         .q_a_norm = b->w[TD_ROLE_Q_A_NORM],
                                         .q_b = b->w[TD_ROLE_Q_B],
                                         .q = b->w[TD_ROLE_MLA_Q],
                                         .q_a_bias = b->w[TD_ROLE_Q_A_BIAS],
                                         .kv_a_bias = b->w[TD_ROLE_KV_A_BIAS],
                                         .o_bias = b->w[TD_ROLE_MLA_O_BIAS],
                                         .kv_a = b->w[TD_ROLE_KV_A],
                                         .kv_a_norm = b->w[TD_ROLE_KV_A_NORM],
                                         .kv_b = b->w[TD_ROLE_KV_B],
                                         .o = b->w[TD_ROLE_MLA_O],
                                         .rope = b->s->weights->rope,
                                         .kv_latent = kv->cache[0],
                                         .kv_rope = kv->cache[1],
                                         .kv_pages = b->s->kv_pages,
                                         .kv_spare_pages = b->s->kv_spare_pages,
                                         .in = a->h,
                                         .in_i8 = a->h_i8,
                                         .out = a->attn}});
}

static void add_gqa(builder *b) {
    const td_model_config *c = b->s->config;
    const td_layer_kv     *kv = &b->s->kv[b->layer];
    const td_activations  *a = &b->act;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_GQA,
                                 .gqa = {.hidden = c->hidden,
                                         .heads = b->sizes.heads,
                                         .kv_heads = b->sizes.kv_heads,
                                         .head_dim = c->head_dim,
                                         .rope_dim = c->rope.dim,
                                         .window = td_layer_caches_of(c, b->layer).cache[0].window,
                                         .norm_rows = c->qk_norm_rows,
                                         .eps = c->eps,
                                         .softmax_scale = (float)c->softmax_scale,
                                         .q = b->w[TD_ROLE_Q],
                                         .k = b->w[TD_ROLE_K],
                                         .v = b->w[TD_ROLE_V],
                                         .o = b->w[TD_ROLE_O],
                                         .q_bias = b->w[TD_ROLE_Q_BIAS],
                                         .k_bias = b->w[TD_ROLE_K_BIAS],
                                         .v_bias = b->w[TD_ROLE_V_BIAS],
                                         .o_bias = b->w[TD_ROLE_O_BIAS],
                                         .q_norm = b->w[TD_ROLE_Q_NORM],
                                         .k_norm = b->w[TD_ROLE_K_NORM],
                                         .sinks = b->w[TD_ROLE_SINKS],
                                         .rope = b->s->weights->rope,
                                         .kv_k = kv->cache[0],
                                         .kv_v = kv->cache[1],
                                         .kv_pages = b->s->kv_pages,
                                         .kv_spare_pages = b->s->kv_spare_pages,
                                         .in = a->h,
                                         .in_i8 = a->h_i8,
                                         .out = a->attn}});
}

static void add_dense_mlp(builder *b) {
    add_block(b, (td_block_desc){.kind = TD_BLOCK_MLP,
                                 .mlp = {.hidden = b->s->config->hidden,
                                         .inter = b->sizes.inter,
                                         .gate = b->w[TD_ROLE_DENSE_GATE],
                                         .up = b->w[TD_ROLE_DENSE_UP],
                                         .down = b->w[TD_ROLE_DENSE_DOWN],
                                         .in = b->act.h,
                                         .in_i8 = b->act.h_i8,
                                         .out = b->act.mlp}});
}

static void add_shared_mlp(builder *b) {
    add_block(b, (td_block_desc){.kind = TD_BLOCK_MLP,
                                 .mlp = {.hidden = b->s->config->hidden,
                                         .inter = b->sizes.shared_inter,
                                         .gate = b->w[TD_ROLE_SHARED_GATE],
                                         .up = b->w[TD_ROLE_SHARED_UP],
                                         .down = b->w[TD_ROLE_SHARED_DOWN],
                                         .out_gate = b->w[TD_ROLE_SHARED_OUT_GATE],
                                         .in = b->normed,
                                         .in_i8 = b->normed_i8,
                                         .out = b->act.mlp}});
}

static void add_router(builder *b, uint16_t *ids, float *weights) {
    const td_model_config *c = b->s->config;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_ROUTER,
                                 .router = {.hidden = c->hidden,
                                            .n_experts = c->n_experts,
                                            .top_k = c->top_k,
                                            .n_group = c->n_group,
                                            .topk_group = c->topk_group,
                                            .score = c->route_score,
                                            .group = c->route_group,
                                            .normalise = c->norm_topk,
                                            .scale = (float)c->routed_scale,
                                            .w = b->w[TD_ROLE_ROUTER],
                                            .logit_bias = b->w[TD_ROLE_LOGIT_BIAS],
                                            .bias = b->w[TD_ROLE_ROUTER_BIAS],
                                            .in = b->normed,
                                            .in_f32 = b->normed_f32,
                                            .ids = ids,
                                            .weights = weights}});
}

static void add_device_experts(builder *b) {
    const td_model_config  *c = b->s->config;
    const td_layer_experts *x = b->s->weights->experts ? &b->s->weights->experts[b->layer] : &(td_layer_experts){0};
    add_block(b, (td_block_desc){.kind = TD_BLOCK_EXPERTS,
                                 .experts = {.hidden = c->hidden,
                                             .inter = b->sizes.moe_inter,
                                             .n_experts = c->n_experts,
                                             .top_k = c->top_k,
                                             .gate = (const td_npu_weight *const *)x->gate,
                                             .up = (const td_npu_weight *const *)x->up,
                                             .down = (const td_npu_weight *const *)x->down,
                                             .in = b->normed,
                                             .in_i8 = b->normed_i8,
                                             .ids = b->act.ids,
                                             .weights = b->act.weights,
                                             .out = b->act.routed,
                                             .group = b->s->group}});
}

/* Measuring and outlining need neither port nor buffers. */
static void open_slot(builder *b, uint32_t moe_layer, bool last) {
    td_bridge_port_desc desc = {.layer = moe_layer,
                                .model_layer = b->layer,
                                .parity = b->n_moe % TD_BRIDGE_PARITIES,
                                .first = b->n_moe == 0,
                                .last = last};
    bool                deferred_arrive = b->n_moe++ > 0 && b->s->max_deferred > 0;
    b->io = b->before = (td_bridge_buffers){0};
    if (!b->p || b->outline || b->status != TD_OK) return;
    td_bridge_get_buffers(b->s->bridge, desc.parity, &b->io);
    if (deferred_arrive) td_bridge_get_buffers(b->s->bridge, (desc.parity + 1) % TD_BRIDGE_PARITIES, &b->before);
    for (; desc.half < b->n_halves && b->status == TD_OK; desc.half++)
        b->status = td_bridge_port_create(b->s->bridge, &desc, &b->port[desc.half], b->err);
}

/* Index of a layer in the expert store, and whether a later layer of the main program has experts too. */
static uint32_t moe_index(const td_program_spec *s, uint32_t layer, bool *last) {
    *last = td_moe_layers_in(s->config, (td_layer_range){layer + 1, s->layers.end}) == 0;
    return td_moe_layers_in(s->config, (td_layer_range){s->layers.first, layer});
}

/* What the experts read and write: the slot of the hand-over, or this card's own buffers. */
static void aim_at_experts(builder *b) {
    const td_program_spec *s = b->s;
    b->normed = b->act.h;
    b->normed_i8 = b->act.h_i8;
    if (s->shard.index == 0 || s->device_experts) b->normed_f32 = b->act.h_f32;
    if (s->shard.index > 0 || s->device_experts) return;
    bool last;
    b->moe_layer = moe_index(s, b->layer, &last);
    open_slot(b, b->moe_layer, last);
    if (b->io.x) b->normed = b->io.x;
    if (b->io.x_i8.q) b->normed_i8 = b->io.x_i8;
}

/* Card 0 alone hands tokens to the CPU's experts; where the cards have the experts, each routes. */
static void route(builder *b) {
    const td_program_spec *s = b->s;
    if (s->device_experts) add_router(b, b->act.ids, b->act.weights);
    if (s->shard.index > 0 || s->device_experts) return;
    add_router(b, b->io.ids, b->io.weights);
    push(b, (td_op){.kind = TD_OP_SUBMIT, .port = {b->port[0], b->port[1]}});
    if (s->routed) {
        void *const *args = s->routed_args + b->moe_layer * TD_HALVES;
        push(b, (td_op){.kind = TD_OP_CALL, .call = {s->routed, {args[0], args[1]}}});
    }
}

/* Among several cards, what the CPU's experts add is card 0's part of the sum; of experts on the device each has its own.
 * x += shared + routed + what the MoE layer before deferred. */
static void add_experts(builder *b) {
    const td_program_spec *s = b->s;
    /* NULL, too, where the buffers are not there yet */
    void       *shared = s->config->shared_inter > 0 ? b->act.mlp : NULL;
    const void *routed = NULL, *deferred = NULL;
    if (s->device_experts) {
        if (!s->experts_left_out) add_device_experts(b);
        routed = s->experts_left_out ? NULL : b->act.routed;
    } else if (s->shard.index == 0) {
        push(b, (td_op){.kind = TD_OP_COLLECT, .port = {b->port[0], b->port[1]}});
        routed = b->io.y;
        deferred = b->before.y_deferred;
    }
    if (s->shard.count == 1) {
        add_combine(b, b->x, shared, routed, deferred);
        return;
    }
    add_all_reduce(b, b->act.mlp, shared, routed, deferred);
    add_combine(b, b->x, b->act.mlp, NULL, NULL);
}

static void add_layer_op(builder *b, const td_layer_op *op) {
    const td_activations *a = &b->act;
    switch (op->kind) {
        case TD_LAYER_NORM: add_norm_i8(b, b->w[op->norm], NULL, NULL, a->h_i8, NULL); break;
        case TD_LAYER_MLA:
            add_mla(b);
            add_all_reduce(b, a->attn, a->attn, NULL, NULL);
            break;
        case TD_LAYER_GQA:
            add_gqa(b);
            add_all_reduce(b, a->attn, a->attn, NULL, NULL);
            break;
        case TD_LAYER_ADD_NORM: add_norm_i8(b, b->w[op->norm], a->attn, b->normed, b->normed_i8, b->normed_f32); break;
        case TD_LAYER_MLP: add_dense_mlp(b); break;
        case TD_LAYER_ADD:
            add_all_reduce(b, a->mlp, a->mlp, NULL, NULL);
            add_combine(b, b->x, a->mlp, NULL, NULL);
            break;
        case TD_LAYER_ROUTE: route(b); break;
        case TD_LAYER_SHARED:
            if (b->s->config->shared_inter > 0) add_shared_mlp(b);
            break;
        case TD_LAYER_ADD_EXPERTS: add_experts(b); break;
        case TD_LAYER_END: break;
    }
}

/* A layer of its family's listing in two parts: up to the hand-over to its experts, behind which the other half may run; and
 * what comes after. A layer without experts is all in the first. */
static void begin_layer(builder *b, uint32_t layer) {
    b->layer = layer;
    b->w = b->s->weights->layers[layer].role;
    b->normed = NULL;
    b->normed_f32 = NULL;
    b->normed_i8 = b->act.h_i8;
    if (b->s->config->is_moe[layer]) aim_at_experts(b);
    const td_layer_op *op = b->s->config->arch->layer(b->s->config, layer);
    for (bool handed_over = false; op->kind != TD_LAYER_END && !handed_over; op++) {
        add_layer_op(b, op);
        handed_over = op->kind == TD_LAYER_ROUTE;
    }
    b->rest = op;
}

static void end_layer(builder *b) {
    for (; b->rest->kind != TD_LAYER_END; b->rest++) add_layer_op(b, b->rest);
}

static void add_head(builder *b, const td_npu_weight *gamma, const td_npu_weight *w, const void *x) {
    const td_model_config *c = b->s->config;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_HEAD,
                                 .head = {.hidden = c->hidden,
                                          .vocab = b->sizes.vocab,
                                          .max_out = b->s->max_out,
                                          .eps = c->eps,
                                          .gamma = gamma,
                                          .w = w,
                                          .x = x,
                                          .logits = b->s->act.logits}});
    if (!b->s->top_k) return;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_TOP,
                                 .top = {.vocab = b->sizes.vocab,
                                         .k = b->s->top_k,
                                         .max_out = b->s->max_out,
                                         .logits = b->s->act.logits,
                                         .top = b->s->act.top,
                                         .sums = b->s->act.sums}});
}

static void add_embed(builder *b, void *out) {
    add_block(b,
              (td_block_desc){
                  .kind = TD_BLOCK_EMBED,
                  .embed = {.table = b->s->weights->model.role[TD_ROLE_EMBED], .hidden = b->s->config->hidden, .out = out}});
}

static void start_pass(builder *b, uint32_t n_halves, void *x) {
    b->sizes = td_shard_sizes_of(b->s->config, b->s->shard);
    b->act = b->s->act;
    b->x = x;
    b->n_halves = n_halves;
    b->n_moe = 0;
    b->port[0] = b->port[1] = NULL;
}

/*
 * out = eh_proj [enorm(embed(token)) | hnorm(final_norm(x))], x the main model's last hidden states; out may be x. A rotated
 * model's final_norm is taken back first.
 */
static void add_mtp_input(builder *b, void *out) {
    const td_model_config *c = b->s->config;
    const td_activations  *a = &b->act;
    td_npu_weight *const  *w = b->s->weights->layers[c->n_layers].role;
    void                  *hidden = c->mtp_turned ? a->attn : a->h;
    add_embed(b, a->h);
    add_norm(b, w[TD_ROLE_MTP_ENORM], a->h, NULL, a->mtp_cat, 2 * (size_t)c->hidden);
    add_norm(b, b->s->weights->model.role[TD_ROLE_FINAL_NORM], a->x, NULL, a->h, 0);
    if (c->mtp_turned)
        add_block(b, (td_block_desc){
                         .kind = TD_BLOCK_LINEAR,
                         .linear = {.n = c->hidden, .k = c->hidden, .w = w[TD_ROLE_MTP_UNTURN], .in = a->h, .out = hidden}});
    void *second_half = b->p ? (char *)a->mtp_cat + c->hidden * td_dtype_bytes(b->s->act_dtype) : NULL;
    add_norm(b, w[TD_ROLE_MTP_HNORM], hidden, NULL, second_half, 2 * (size_t)c->hidden);
    add_block(
        b, (td_block_desc){
               .kind = TD_BLOCK_LINEAR,
               .linear = {.n = c->hidden, .k = 2 * c->hidden, .w = w[TD_ROLE_MTP_EH_PROJ], .in = a->mtp_cat, .out = out}});
}

static void describe_main(builder *b) {
    const td_program_spec *s = b->s;
    start_pass(b, s->max_halves, s->act.x);
    if (s->whole) add_embed(b, b->x);
    if (s->layers.first == s->config->n_layers) add_mtp_input(b, b->x);
    for (uint32_t i = s->layers.first; i <= s->layers.end; i++) {
        if (i > s->layers.first) end_layer(b);
        if (i > s->layers.first && s->layer_done) {
            push(b, (td_op){.kind = TD_OP_SHOW,
                            .show = {s->act.x, s->shown_x, s->config->hidden * td_dtype_bytes(s->act_dtype)}});
            push(b, (td_op){.kind = TD_OP_CALL, .call = {s->layer_done, {s->layer_done_args[i - 1]}}});
        }
        if (i < s->layers.end) begin_layer(b, i);
        push(b, (td_op){.kind = TD_OP_TURN});
    }
    b->layer = TD_NO_LAYER;
}

static void describe_head(builder *b) {
    start_pass(b, 1, b->s->act.x);
    const td_role_weights *w = &b->s->weights->model;
    add_head(b, w->role[TD_ROLE_FINAL_NORM], w->role[TD_ROLE_LM_HEAD], b->x);
    push(b, (td_op){.kind = TD_OP_TURN});
}

/* Over the rows of the last forward, whose x stays as it is: the layer's input, the layer. */
static void describe_mtp(builder *b) {
    const td_model_config *c = b->s->config;
    start_pass(b, 1, b->s->act.mtp_x);
    add_mtp_input(b, b->x);
    begin_layer(b, c->n_layers);
    end_layer(b);
    push(b, (td_op){.kind = TD_OP_TURN});
    b->layer = TD_NO_LAYER;
}

static void describe_mtp_head(builder *b) {
    const td_model_config *c = b->s->config;
    td_npu_weight *const  *w = b->s->weights->layers[c->n_layers].role;
    start_pass(b, 1, b->s->act.mtp_x);
    add_head(b, w[TD_ROLE_MTP_NORM], c->mtp_turned ? w[TD_ROLE_MTP_HEAD] : b->s->weights->model.role[TD_ROLE_LM_HEAD], b->x);
    push(b, (td_op){.kind = TD_OP_TURN});
}

/* ---- the order of hand-overs -------------------------------------------------------------------- */

/* Every operation in the order in which it is enqueued. */
typedef struct {
    const td_program *p;
    uint32_t          n_halves, turn, at, half; /* turn: where the turn under way begins */
} walk;

/* @return NULL: there is none left. */
static const td_op *next_op(walk *w, uint32_t *half) {
    while (w->at < w->p->n) {
        const td_op *op = &w->p->ops[w->at++];
        *half = w->half;
        if (op->kind != TD_OP_TURN) return op;
        if (++w->half < w->n_halves) {
            w->at = w->turn;
            continue;
        }
        w->half = 0;
        w->turn = w->at;
    }
    return NULL;
}

static td_status list_order(td_program *p, uint32_t n_halves, td_error *err) {
    td_bridge_port **order = malloc((size_t)p->n * n_halves * sizeof *order);
    if (!order) return td_fail(err, TD_ENOMEM, "out of memory for the layer program");
    walk     w = {.p = p, .n_halves = n_halves};
    uint32_t half, n = 0;
    for (const td_op *op; (op = next_op(&w, &half));)
        if (op->kind == TD_OP_SUBMIT) order[n++] = op->port[half];
    p->order[n_halves - 1] = order;
    p->n_tickets[n_halves - 1] = n;
    return TD_OK;
}

static td_status finish(builder *b) {
    for (uint32_t n = 1; n <= b->n_halves && b->status == TD_OK; n++) b->status = list_order(b->p, n, b->err);
    if (b->status != TD_OK) td_program_free(b->s->npu, b->p);
    return b->status;
}

static builder start(const td_program_spec *s, td_program *out, td_error *err) {
    *out = (td_program){0};
    return (builder){.s = s, .p = out, .layer = TD_NO_LAYER, .err = err};
}

td_status td_program_build_main(const td_program_spec *s, td_program *out, td_error *err) {
    builder b = start(s, out, err);
    describe_main(&b);
    return finish(&b);
}

td_status td_program_build_head(const td_program_spec *s, td_program *out, td_error *err) {
    builder b = start(s, out, err);
    describe_head(&b);
    return finish(&b);
}

td_status td_program_build_mtp(const td_program_spec *s, td_program *out, td_error *err) {
    builder b = start(s, out, err);
    describe_mtp(&b);
    return finish(&b);
}

td_status td_program_build_mtp_head(const td_program_spec *s, td_program *out, td_error *err) {
    builder b = start(s, out, err);
    describe_mtp_head(&b);
    return finish(&b);
}

/* A spec whose weights and buffers are all NULL. */
typedef struct {
    td_program_spec  spec;
    td_model_weights none;
    td_layer_kv     *no_kv;
} bare_spec;

static td_status open_bare(const td_program_spec *s, bare_spec *bare, td_error *err) {
    uint32_t n = s->config->n_layers + s->config->n_mtp_layers;
    *bare = (bare_spec){.spec = *s, .none = {.layers = calloc(n, sizeof *bare->none.layers)}};
    bare->no_kv = calloc(n, sizeof *bare->no_kv);
    bare->spec.weights = &bare->none;
    bare->spec.kv = bare->no_kv;
    bare->spec.act = (td_activations){0};
    return bare->none.layers && bare->no_kv ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the layer program");
}

static void close_bare(bare_spec *bare) {
    free(bare->none.layers);
    free(bare->no_kv);
}

td_status td_program_scratch_bytes(const td_program_spec *s, size_t *bytes, td_error *err) {
    bare_spec bare;
    td_status st = open_bare(s, &bare, err);
    if (st == TD_OK) {
        builder b = {.s = &bare.spec, .err = err};
        describe_main(&b);
        if (s->whole) describe_head(&b);
        if (s->whole && s->config->n_mtp_layers) {
            describe_mtp(&b);
            describe_mtp_head(&b);
        }
        *bytes = b.scratch;
    }
    close_bare(&bare);
    return st;
}

/* ---- outlines ---------------------------------------------------------------------------------- */

/* The program's operations as they would be enqueued, behind those that are in the outline. */
static td_status append_outline(td_outline *out, const builder *b, uint32_t n_halves, td_error *err) {
    td_outline_op *ops = realloc(out->ops, (out->n + (size_t)b->p->n * n_halves) * sizeof *ops);
    if (!ops) return td_fail(err, TD_ENOMEM, "out of memory for the outline of the layer program");
    out->ops = ops;
    walk     w = {.p = b->p, .n_halves = n_halves};
    uint32_t half;
    for (const td_op *op; (op = next_op(&w, &half));)
        ops[out->n++] = (td_outline_op){
            .kind = op->kind, .half = n_halves > 1 ? half : TD_OUTLINE_WHOLE, .block = b->blocks[op - b->p->ops]};
    return TD_OK;
}

static td_status outline_program(const td_program_spec *s, void (*describe)(builder *b), uint32_t n_halves, td_outline *out,
                                 td_error *err) {
    td_program p = {0};
    builder    b = {.s = s, .p = &p, .outline = true, .layer = TD_NO_LAYER, .err = err};
    describe(&b);
    td_status st = b.status == TD_OK ? append_outline(out, &b, n_halves, err) : b.status;
    free(b.blocks);
    free(p.ops);
    return st;
}

td_status td_program_outline(const td_program_spec *s, uint32_t n_halves, td_outline *out, td_error *err) {
    bare_spec bare;
    *out = (td_outline){0};
    td_status st = open_bare(s, &bare, err);
    if (st == TD_OK) st = outline_program(&bare.spec, describe_main, n_halves, out, err);
    if (st == TD_OK && s->whole) st = outline_program(&bare.spec, describe_head, 1, out, err);
    close_bare(&bare);
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

td_status td_program_enqueue(const td_program *p, td_npu *d, td_npu_stream *s, const td_step_bucket *bucket) {
    walk     w = {.p = p, .n_halves = halves_of(p, bucket)};
    uint32_t half;
    for (const td_op *op; (op = next_op(&w, &half));) {
        const td_step *step = w.n_halves > 1 ? &bucket->half[half] : &bucket->whole;
        switch (op->kind) {
            case TD_OP_BLOCK: TD_TRY(d->ops->enqueue(d, s, op->block, step)); break;
            case TD_OP_SUBMIT: TD_TRY(td_bridge_enqueue_submit(op->port[half], s, step)); break;
            case TD_OP_COLLECT: TD_TRY(td_bridge_enqueue_collect(op->port[half], s, step)); break;
            case TD_OP_SHOW: TD_TRY(enqueue_show(op, d, s, step)); break;
            case TD_OP_CALL: TD_TRY(d->ops->host_call(d, s, op->call.fn, op->call.arg[half])); break;
            case TD_OP_TURN: break;
        }
    }
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
        if (p->ops[i].kind == TD_OP_BLOCK) d->ops->block_destroy(d, p->ops[i].block);
    for (int i = 0; i < TD_HALVES; i++) free(p->order[i]);
    free(p->ops);
    *p = (td_program){0};
}
