#include "model/program.h"

#include <stdlib.h>

#include "core/error.h"

/* DeepSeek builds the norms inside MLA with the default eps, whatever rms_norm_eps says (modeling_deepseek.py). */
#define MLA_NORM_EPS 1e-6f

/* Blocks are described first, so that planning and building share one description. */
typedef struct {
    const td_program_spec *s;
    td_program            *p;       /* NULL: only measure */
    size_t                 scratch; /* largest so far */
    uint32_t               n_moe;   /* MoE layers so far in this pass */
    uint32_t               layer;   /* under way; TD_NO_LAYER outside of them */
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
    b->status = d->ops->block_create(d, &desc, &op.block, b->err);
    if (b->status != TD_OK) return;
    push(b, op);
    if (b->status != TD_OK) d->ops->block_destroy(d, op.block);
}

static void add_norm(builder *b, const td_npu_weight *gamma, void *x, const void *add, void *out, size_t out_stride) {
    add_block(b, (td_block_desc){.kind = TD_BLOCK_NORM,
                                 .norm = {.hidden = b->s->config->hidden, .eps = b->s->config->eps, .gamma = gamma, .x = x, .add = add,
                                          .out = out, .out_stride = out_stride}});
}

static void add_combine(builder *b, void *x, const void *first, const void *second, const void *third) {
    add_block(b, (td_block_desc){.kind = TD_BLOCK_COMBINE, .combine = {.hidden = b->s->config->hidden, .x = x, .add = {first, second, third}}});
}

static void add_attention(builder *b, uint32_t layer) {
    const td_model_config       *c = b->s->config;
    td_npu_weight *const        *w = b->s->weights->layers[layer].role;
    const td_layer_kv           *kv = &b->s->kv[layer];
    const td_activations        *a = &b->s->act;
    const td_npu_weight         *rope = b->s->weights->rope;
    float                        scale = (float)c->softmax_scale;
    if (c->attn == TD_ATTN_MLA)
        add_block(b, (td_block_desc){
                         .kind = TD_BLOCK_MLA,
                         .mla = {.hidden = c->hidden, .heads = c->heads, .q_lora = c->q_lora, .kv_lora = c->kv_lora, .nope_dim = c->nope_dim,
                                 .rope_dim = c->rope_dim, .v_dim = c->v_dim, .eps = MLA_NORM_EPS, .softmax_scale = scale, .q_a = w[TD_ROLE_Q_A],
                                 .q_a_norm = w[TD_ROLE_Q_A_NORM], .q_b = w[TD_ROLE_Q_B], .q = w[TD_ROLE_MLA_Q], .q_a_bias = w[TD_ROLE_Q_A_BIAS],
                                 .kv_a_bias = w[TD_ROLE_KV_A_BIAS], .o_bias = w[TD_ROLE_MLA_O_BIAS], .kv_a = w[TD_ROLE_KV_A],
                                 .kv_a_norm = w[TD_ROLE_KV_A_NORM], .kv_b = w[TD_ROLE_KV_B], .o = w[TD_ROLE_MLA_O], .rope = rope,
                                 .kv_latent = kv->a, .kv_rope = kv->b, .in = a->h, .out = a->attn}});
    else
        add_block(b, (td_block_desc){
                         .kind = TD_BLOCK_GQA,
                         .gqa = {.hidden = c->hidden, .heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .eps = c->eps,
                                 .softmax_scale = scale, .q = w[TD_ROLE_Q], .k = w[TD_ROLE_K], .v = w[TD_ROLE_V], .o = w[TD_ROLE_O],
                                 .q_bias = w[TD_ROLE_Q_BIAS], .k_bias = w[TD_ROLE_K_BIAS], .v_bias = w[TD_ROLE_V_BIAS], .q_norm = w[TD_ROLE_Q_NORM],
                                 .k_norm = w[TD_ROLE_K_NORM], .rope = rope, .kv_k = kv->a, .kv_v = kv->b, .in = a->h, .out = a->attn}});
}

static void add_dense_mlp(builder *b, uint32_t layer, const void *in) {
    td_npu_weight *const *w = b->s->weights->layers[layer].role;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_MLP,
                                 .mlp = {.hidden = b->s->config->hidden, .inter = b->s->config->inter, .gate = w[TD_ROLE_DENSE_GATE],
                                         .up = w[TD_ROLE_DENSE_UP], .down = w[TD_ROLE_DENSE_DOWN], .in = in, .out = b->s->act.mlp}});
}

static void add_shared_mlp(builder *b, uint32_t layer, const void *in) {
    td_npu_weight *const *w = b->s->weights->layers[layer].role;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_MLP,
                                 .mlp = {.hidden = b->s->config->hidden, .inter = b->s->config->shared_inter, .gate = w[TD_ROLE_SHARED_GATE],
                                         .up = w[TD_ROLE_SHARED_UP], .down = w[TD_ROLE_SHARED_DOWN], .out_gate = w[TD_ROLE_SHARED_OUT_GATE],
                                         .in = in, .out = b->s->act.mlp}});
}

static void add_router(builder *b, uint32_t layer, const td_bridge_buffers *io) {
    static const td_router_group  groups[] = {[TD_ROUTE_GREEDY] = TD_GROUP_NONE, [TD_ROUTE_GROUP_MAX] = TD_GROUP_MAX, [TD_ROUTE_GROUP_TOP2] = TD_GROUP_TOP2_SUM};
    const td_model_config  *c = b->s->config;
    td_npu_weight *const   *w = b->s->weights->layers[layer].role;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_ROUTER,
                                 .router = {.hidden = c->hidden, .n_experts = c->n_experts, .top_k = c->top_k, .n_group = c->n_group,
                                            .topk_group = c->topk_group, .score = c->route_score == TD_ROUTE_SIGMOID ? TD_SCORE_SIGMOID : TD_SCORE_SOFTMAX,
                                            .group = groups[c->route_groups], .normalise = c->norm_topk, .scale = (float)c->routed_scale,
                                            .w = w[TD_ROLE_ROUTER], .bias = w[TD_ROLE_ROUTER_BIAS], .in = io->x, .ids = io->ids, .weights = io->weights}});
}

/* The other half of a layer's hand-over; measuring needs none. */
static td_bridge_port *make_port(builder *b, uint32_t moe_layer, uint32_t slot, bool last) {
    td_bridge_port *port = NULL;
    if (b->p && b->status == TD_OK) b->status = td_bridge_port_create(b->s->bridge, moe_layer, b->layer, slot, last, &port, b->err);
    return port;
}

/* router -> submit -> shared expert (while the CPU works) -> collect -> x += shared + routed + what the layer before deferred */
static void add_moe(builder *b, uint32_t layer, uint32_t moe_layer, bool last, void *x) {
    const td_program_spec *s = b->s;
    td_bridge_buffers      io = {0}, before = {0};
    uint32_t               slot = b->n_moe % TD_BRIDGE_SLOTS;
    bool                   deferred_arrive = b->n_moe++ > 0 && s->max_deferred > 0;
    if (b->p) {
        td_bridge_get_buffers(s->bridge, slot, &io);
        if (deferred_arrive) td_bridge_get_buffers(s->bridge, (slot + 1) % TD_BRIDGE_SLOTS, &before);
    }
    td_bridge_port *port = make_port(b, moe_layer, slot, last);
    add_norm(b, s->weights->layers[layer].role[TD_ROLE_POST_NORM], x, s->act.attn, io.x, 0);
    add_router(b, layer, &io);
    push(b, (td_op){.kind = TD_OP_SUBMIT, .port = port});
    if (s->routed) push(b, (td_op){.kind = TD_OP_CALL, .call = {s->routed, s->routed_args[moe_layer]}});
    if (s->config->shared_inter) add_shared_mlp(b, layer, io.x);
    push(b, (td_op){.kind = TD_OP_COLLECT, .port = port});
    add_combine(b, x, s->config->shared_inter ? s->act.mlp : NULL, io.y, before.y_deferred);
}

static void add_dense(builder *b, uint32_t layer, void *x) {
    add_norm(b, b->s->weights->layers[layer].role[TD_ROLE_POST_NORM], x, b->s->act.attn, b->s->act.h, 0);
    add_dense_mlp(b, layer, b->s->act.h);
    add_combine(b, x, b->s->act.mlp, NULL, NULL);
}

/* Index of a layer in the expert store, and whether a later layer of the main model has experts too. */
static uint32_t moe_index(const td_model_config *c, uint32_t layer, bool *last) {
    uint32_t index = 0;
    *last = true;
    for (uint32_t i = 0; i < c->n_layers + c->n_mtp_layers; i++) {
        if (i < layer && c->is_moe[i]) index++;
        if (i > layer && i < c->n_layers && c->is_moe[i]) *last = false;
    }
    return index;
}

static void add_layer(builder *b, uint32_t layer, void *x) {
    bool     last;
    uint32_t moe_layer = moe_index(b->s->config, layer, &last);
    b->layer = layer;
    add_norm(b, b->s->weights->layers[layer].role[TD_ROLE_INPUT_NORM], x, NULL, b->s->act.h, 0);
    add_attention(b, layer);
    if (b->s->config->is_moe[layer])
        add_moe(b, layer, moe_layer, last, x);
    else
        add_dense(b, layer, x);
    b->layer = TD_NO_LAYER;
}

static void add_head(builder *b, const td_npu_weight *gamma, const void *x) {
    const td_model_config *c = b->s->config;
    add_block(b, (td_block_desc){.kind = TD_BLOCK_HEAD,
                                 .head = {.hidden = c->hidden, .vocab = c->vocab, .max_out = b->s->max_out, .eps = c->eps, .gamma = gamma,
                                          .w = b->s->weights->model.role[TD_ROLE_LM_HEAD], .x = x, .logits = b->s->act.logits}});
}

static void add_embed(builder *b, void *out) {
    add_block(b, (td_block_desc){.kind = TD_BLOCK_EMBED, .embed = {.table = b->s->weights->model.role[TD_ROLE_EMBED], .hidden = b->s->config->hidden, .out = out}});
}

static void describe_main(builder *b) {
    add_embed(b, b->s->act.x);
    for (uint32_t i = 0; i < b->s->config->n_layers; i++) add_layer(b, i, b->s->act.x);
}

static void describe_head(builder *b) { add_head(b, b->s->weights->model.role[TD_ROLE_FINAL_NORM], b->s->act.x); }

/* x' = eh_proj [enorm(embed(next token)) | hnorm(final_norm(x))], then one layer and the head. */
static void describe_mtp(builder *b) {
    const td_model_config  *c = b->s->config;
    const td_activations   *a = &b->s->act;
    td_npu_weight *const   *w = b->s->weights->layers[c->n_layers].role;
    add_embed(b, a->h);
    add_norm(b, w[TD_ROLE_MTP_ENORM], a->h, NULL, a->mtp_cat, 2 * (size_t)c->hidden);
    add_norm(b, b->s->weights->model.role[TD_ROLE_FINAL_NORM], a->x, NULL, a->h, 0);
    void *second_half = b->p ? (char *)a->mtp_cat + c->hidden * td_dtype_bytes(b->s->act_dtype) : NULL;
    add_norm(b, w[TD_ROLE_MTP_HNORM], a->h, NULL, second_half, 2 * (size_t)c->hidden);
    add_block(b, (td_block_desc){.kind = TD_BLOCK_LINEAR, .linear = {.w = w[TD_ROLE_MTP_EH_PROJ], .in = a->mtp_cat, .out = a->mtp_x}});
    add_layer(b, c->n_layers, a->mtp_x);
    add_head(b, w[TD_ROLE_MTP_NORM], a->mtp_x);
}

static td_status build(const td_program_spec *s, void (*describe)(builder *), td_program *out, td_error *err) {
    builder b = {.s = s, .p = out, .layer = TD_NO_LAYER, .err = err};
    *out = (td_program){0};
    describe(&b);
    if (b.status != TD_OK) td_program_free(s->npu, out);
    return b.status;
}

td_status td_program_build_main(const td_program_spec *s, td_program *out, td_error *err) { return build(s, describe_main, out, err); }
td_status td_program_build_head(const td_program_spec *s, td_program *out, td_error *err) { return build(s, describe_head, out, err); }
td_status td_program_build_mtp(const td_program_spec *s, td_program *out, td_error *err) { return build(s, describe_mtp, out, err); }

td_status td_program_scratch_bytes(const td_program_spec *s, size_t *bytes, td_error *err) {
    uint32_t         n = s->config->n_layers + s->config->n_mtp_layers;
    td_model_weights none = {.layers = calloc(n, sizeof *none.layers)};
    td_layer_kv     *no_kv = calloc(n, sizeof *no_kv);
    td_status        st = none.layers && no_kv ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the layer program");
    if (st == TD_OK) {
        td_program_spec bare = *s;
        bare.weights = &none;
        bare.kv = no_kv;
        bare.act = (td_activations){0};
        builder b = {.s = &bare, .err = err};
        describe_main(&b);
        describe_head(&b);
        if (s->config->n_mtp_layers) describe_mtp(&b);
        *bytes = b.scratch;
    }
    free(none.layers);
    free(no_kv);
    return st;
}

td_status td_program_enqueue(const td_program *p, td_npu *d, td_npu_stream *s, const td_step *step) {
    for (uint32_t i = 0; i < p->n; i++) {
        const td_op *op = &p->ops[i];
        switch (op->kind) {
            case TD_OP_BLOCK: TD_TRY(d->ops->enqueue(d, s, op->block, step)); break;
            case TD_OP_SUBMIT: TD_TRY(td_bridge_enqueue_submit(op->port, s, step)); break;
            case TD_OP_COLLECT: TD_TRY(td_bridge_enqueue_collect(op->port, s, step)); break;
            case TD_OP_CALL: TD_TRY(d->ops->host_call(d, s, op->call.fn, op->call.arg)); break;
        }
    }
    return TD_OK;
}

void td_program_free(td_npu *d, td_program *p) {
    for (uint32_t i = 0; i < p->n; i++)
        if (p->ops[i].kind == TD_OP_BLOCK) d->ops->block_destroy(d, p->ops[i].block);
    free(p->ops);
    *p = (td_program){0};
}
