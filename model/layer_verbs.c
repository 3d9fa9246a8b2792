#include "model/layer_verbs.h"

#include "kernels/exact_sum.h"
#include "model/operations.h"

typedef struct td_layer_state {
    td_description     *d;
    void               *normed;     /* what the router, the shared expert and the routed experts read; */
    td_rows_i8          normed_i8;  /* that as int8, where they take it so, */
    float              *normed_f32; /* and in f32, where there is a router that takes it so */
    bool                routes;     /* this card chooses experts: card 0, or each where experts are on the cards */
    bool                hands_over; /* card 0 alone, to the CPU's experts */
    uint32_t            moe_layer;  /* as in the expert store */
    uint32_t            parity;     /* of the layer among those with experts in its pass */
    bool                is_first, is_last;
    void               *ids; /* the choice of experts: in the hand-over, or this card's own */
    float              *weights;
    td_bridge_port_desc handover;
    td_bridge_buffers   io;       /* of the hand-over; NULL in an outline */
    const void         *deferred; /* what the MoE layer before may have deferred to the CPU; or NULL */
    void               *shared;   /* the shared expert's output; NULL without one */
    bool                ended_stage;
} td_layer_state;

/* ---- sums -------------------------------------------------------------------------------------- */

static void add_up(td_description *d, const void *first, const void *second, const void *third) {
    const td_model_config *c = d->s->config;
    if (td_layer_streams(c, d->layer) > 1) {
        td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_SPREAD,
                                             .spread = {.hidden = c->hidden,
                                                        .streams = td_model_streams(c),
                                                        .x = d->x,
                                                        .post = d->s->act.post,
                                                        .add = {first, second, third}}});
        return;
    }
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_COMBINE,
                                         .combine = {.hidden = c->hidden,
                                                     .x = d->x,
                                                     .add = {first, second, third},
                                                     .images = td_spec_images(d->s, d->layer + 1)}});
}

/* What each card has of a sum becomes the whole, on all of them; one card has it already. */
static void sum_cards(td_description *d, void *out, const void *first, const void *second, const void *third) {
    if (d->s->shard.count == 1) return;
    td_describe_block(
        d,
        (td_block_desc){
            .kind = TD_BLOCK_ALL_REDUCE,
            .all_reduce = {.width = d->s->config->hidden, .group = d->s->group, .out = out, .add = {first, second, third}}});
}

/* ---- norms and attention ------------------------------------------------------------------------- */

void td_layer_norm(td_layer *l, td_norm_desc n) {
    td_description       *d = l->state->d;
    const td_activations *a = &d->s->act;
    n.hidden = l->c->hidden;
    n.eps = l->c->eps;
    n.x = d->x;
    /* a DeltaNet's gates, and an indexer, read it as it is */
    n.out = a->h_i8.q && !l->c->is_delta[l->index] && !l->c->sparse.indexed[l->index] ? NULL : a->h;
    n.out_i8 = a->h_i8;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_NORM, .norm = n});
}

void td_layer_add_norm(td_layer *l, td_norm_desc n) {
    const td_layer_state *st = l->state;
    n.hidden = l->c->hidden;
    n.eps = l->c->eps;
    n.x = st->d->x;
    n.add = st->d->s->act.attn;
    n.out = st->normed || st->normed_i8.q ? st->normed : st->d->s->act.h;
    n.out_i8 = st->normed_i8;
    n.out_f32 = st->normed_f32;
    td_describe_block(st->d, (td_block_desc){.kind = TD_BLOCK_NORM, .norm = n});
}

static void describe_mix(const td_layer *l, td_mix_desc m) {
    td_description *d = l->state->d;
    m.hidden = l->c->hidden;
    m.streams = td_model_streams(l->c);
    m.rounds = l->c->sparse.mix_rounds;
    m.eps = l->c->eps;
    m.mix_eps = l->c->sparse.mix_eps;
    m.x = d->x;
    m.post = d->s->act.post;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_MIX, .mix = m});
}

/* Compressors read the rows as they are, beside linears that take int8. */
void td_layer_mix(td_layer *l, td_mix_desc m) {
    m.out = l->state->d->s->act.h;
    m.out_i8 = l->state->d->s->act.h_i8;
    describe_mix(l, m);
}

void td_layer_spread_mix(td_layer *l, td_mix_desc m) {
    const td_layer_state *st = l->state;
    add_up(st->d, st->d->s->act.attn, NULL, NULL);
    m.out = st->normed || st->normed_i8.q ? st->normed : st->d->s->act.h;
    m.out_i8 = st->normed_i8;
    describe_mix(l, m);
}

static td_layer_kv kv_of(const td_layer *l) {
    const td_program_spec *s = l->state->d->s;
    return s->kv ? s->kv[l->index] : (td_layer_kv){0};
}

static const td_npu_weight *rope_of(const td_layer *l) {
    const td_program_spec *s = l->state->d->s;
    return s->weights ? s->weights->rope : NULL;
}

void td_layer_mla(td_layer *l, td_mla_desc m) {
    td_description        *d = l->state->d;
    const td_program_spec *s = d->s;
    const td_layer_kv      kv = kv_of(l);
    void *const           *next = kv.cache; /* in the order of td_mla_caches */
    m.hidden = l->c->hidden;
    m.heads = d->sizes.heads;
    m.q_lora = l->c->q_lora;
    m.kv_lora = l->c->kv_lora;
    m.nope_dim = l->c->nope_dim;
    m.rope_dim = l->c->rope_dim;
    m.v_dim = l->c->v_dim;
    m.softmax_scale = (float)l->c->softmax_scale;
    m.rope = rope_of(l);
    m.kv_latent = *next++;
    m.kv_rope = m.rope_dim ? *next++ : NULL;
    m.kv_int8 = s->model->kv_int8;
    m.kv_pages = s->kv_pages;
    m.kv_spare_pages = s->kv_spare_pages;
    if (td_model_chooses_tokens(l->c)) {
        td_index_sizes_of(l->c, l->index, &m.index);
        m.index.keys = *next++;
        m.index.open = *next++;
        m.index.open_slots = s->model->open_slots;
        m.index.chosen = s->act.chosen;
    }
    m.in = s->act.h;
    m.in_i8 = s->act.h_i8;
    m.out = s->act.attn;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_MLA, .mla = m});
    sum_cards(d, s->act.attn, s->act.attn, NULL, NULL);
}

void td_layer_gqa(td_layer *l, td_gqa_desc g) {
    td_description        *d = l->state->d;
    const td_program_spec *s = d->s;
    const td_layer_kv      kv = kv_of(l);
    g.hidden = l->c->hidden;
    g.heads = d->sizes.heads;
    g.kv_heads = d->sizes.kv_heads;
    g.head_dim = l->c->head_dim;
    g.rope_dim = l->c->rope.dim;
    g.eps = l->c->eps;
    g.softmax_scale = (float)l->c->softmax_scale;
    g.rope = rope_of(l);
    g.axes = s->axes;
    g.kv_k = kv.cache[0];
    g.kv_v = kv.cache[1];
    g.kv_int8 = s->model->kv_int8;
    g.kv_pages = g.window ? s->window_pages : s->kv_pages;
    g.kv_spare_pages = s->kv_spare_pages;
    g.in = s->act.h;
    g.in_i8 = s->act.h_i8;
    g.out = s->act.attn;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_GQA, .gqa = g});
    sum_cards(d, s->act.attn, s->act.attn, NULL, NULL);
}

void td_layer_delta(td_layer *l, td_delta_desc e) {
    td_description        *d = l->state->d;
    const td_program_spec *s = d->s;
    const td_layer_kv      kv = kv_of(l);
    e.form = l->c->delta.form;
    e.hidden = l->c->hidden;
    e.key_heads = d->sizes.delta_k_heads;
    e.value_heads = d->sizes.delta_v_heads;
    e.key_dim = l->c->delta.k_dim;
    e.value_dim = l->c->delta.v_dim;
    e.conv_width = l->c->delta.conv;
    e.low = l->c->delta.low;
    e.floor = l->c->delta.floor;
    e.eps = l->c->eps;
    e.state = kv.cache[0];
    e.open = kv.cache[1];
    e.state_slots = s->model->state_slots;
    e.open_slots = s->model->open_slots;
    e.in = s->act.h;
    e.in_i8 = s->act.h_i8;
    e.out = s->act.attn;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_DELTA, .delta = e});
    sum_cards(d, s->act.attn, s->act.attn, NULL, NULL);
}

/* The caches are in the order of the family's list: a layer without compressed rows has the first alone. */
void td_layer_sparse(td_layer *l, td_sparse_desc p) {
    td_description        *d = l->state->d;
    const td_program_spec *s = d->s;
    const td_layer_kv      kv = kv_of(l);
    td_sparse_sizes_of(l->c, l->index, &p);
    p.rope = p.ratio && s->weights ? s->weights->rope_far : rope_of(l);
    p.kv_rows = kv.cache[0];
    p.state = kv.cache[1];
    p.open = kv.cache[2];
    p.compressed = kv.cache[3];
    p.keys = kv.cache[4];
    p.state_slots = s->model->state_slots;
    p.open_slots = s->model->open_slots;
    p.in = s->act.h;
    p.in_i8 = s->act.h_i8;
    p.out = s->act.attn;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_SPARSE, .sparse = p});
}

/* ---- layers without experts ---------------------------------------------------------------------- */

void td_layer_mlp(td_layer *l, td_mlp_desc m) {
    td_description *d = l->state->d;
    m.hidden = l->c->hidden;
    m.inter = d->sizes.inter;
    m.in = d->s->act.h;
    m.in_i8 = d->s->act.h_i8;
    m.out = d->s->act.mlp;
    td_describe_block(d, (td_block_desc){.kind = TD_BLOCK_MLP, .mlp = m});
}

void td_layer_add(td_layer *l) {
    td_description *d = l->state->d;
    void           *m = d->s->act.mlp;
    sum_cards(d, m, m, NULL, NULL);
    add_up(d, m, NULL, NULL);
}

/* ---- layers with experts ------------------------------------------------------------------------- */

/* Whether some of the layer's experts are added in the next one, and some of the layer before in this one. */
static bool defers(const td_layer_state *st) {
    return st->d->s->model->experts.max_deferred > 0 && !st->is_last;
}
static bool deferred_arrive(const td_layer_state *st) {
    return st->d->s->model->experts.max_deferred > 0 && !st->is_first;
}

/* Of the hand-over; an outline needs no buffers. */
static void open_slot(td_layer_state *st) {
    const td_program_spec *s = st->d->s;
    st->handover = (td_bridge_port_desc){.layer = st->moe_layer,
                                         .model_layer = st->d->layer,
                                         .parity = st->parity,
                                         .first = st->is_first,
                                         .last = st->is_last};
    if (!s->bridge) return;
    td_bridge_buffers before = {0};
    td_bridge_get_buffers(s->bridge, st->parity, &st->io);
    if (deferred_arrive(st)) td_bridge_get_buffers(s->bridge, (st->parity + 1) % TD_BRIDGE_PARITIES, &before);
    st->deferred = before.y_deferred;
}

/* What the experts read and write: the slot of the hand-over, or this card's own buffers. */
static void aim_at_experts(td_layer_state *st) {
    const td_program_spec *s = st->d->s;
    st->hands_over = s->shard.index == 0 && !s->device_experts;
    st->routes = st->hands_over || s->device_experts || s->packed;
    st->moe_layer = td_moe_layers_in(s->config, (td_layer_range){s->layers.first, st->d->layer});
    st->is_first = st->d->n_moe == 0;
    st->is_last = td_moe_layers_in(s->config, (td_layer_range){st->d->layer + 1, s->layers.end}) == 0;
    st->parity = st->d->n_moe++ % TD_BRIDGE_PARITIES;
    st->normed = s->act.h;
    st->ids = s->act.ids;
    st->weights = s->act.weights;
    if (st->routes) st->normed_f32 = s->act.h_f32;
    if (!st->hands_over) return;
    open_slot(st);
    st->ids = st->io.ids;
    st->weights = st->io.weights;
    if (st->io.x) st->normed = st->io.x;
    if (st->io.x_i8.q) st->normed_i8 = st->io.x_i8;
}

static void hand_over(td_layer_state *st) {
    const td_program_spec *s = st->d->s;
    td_describe_op(st->d, (td_op){.kind = TD_OP_SUBMIT, .handover = {.desc = st->handover}});
    if (!s->routed) return;
    void *const *args = s->routed_args + st->handover.layer * TD_HALVES;
    td_describe_op(st->d, (td_op){.kind = TD_OP_CALL, .call = {s->routed, {args[0], args[1]}}});
}

/* An operation of streamed passes; the MTP layer has none. */
static void describe_streamed(const td_layer *l, td_op_kind kind) {
    const td_layer_state *st = l->state;
    td_streamed_experts  *experts = st->d->s->streamed;
    if (experts && l->index < l->c->n_layers)
        td_describe_op(st->d, (td_op){.kind = kind, .streamed = {experts, st->d->s->shard.index, st->moe_layer}});
}

/* The stage ends with the hand-over, behind which the other half may run. */
void td_layer_route(td_layer *l, td_router_desc r) {
    td_layer_state        *st = l->state;
    const td_program_spec *s = st->d->s;
    r.hidden = l->c->hidden;
    r.n_experts = l->c->n_experts;
    r.top_k = l->c->top_k;
    r.in = st->normed;
    r.in_f32 = st->normed_f32;
    r.ids = st->ids;
    r.weights = st->weights;
    if (s->resident) r.slot_of = td_resident_slot_of(s->resident, s->shard.index, st->moe_layer);
    describe_streamed(l, TD_OP_TAKE);
    if (st->routes) td_describe_block(st->d, (td_block_desc){.kind = TD_BLOCK_ROUTER, .router = r});
    if (st->hands_over) hand_over(st);
    td_describe_op(st->d, (td_op){.kind = TD_OP_STAGE});
    st->ended_stage = true;
}

void td_layer_shared(td_layer *l, td_mlp_desc m) {
    td_layer_state *st = l->state;
    m.hidden = l->c->hidden;
    m.inter = st->d->sizes.shared_inter;
    m.in = st->normed;
    m.in_i8 = st->normed_i8;
    m.out = st->shared = st->d->s->act.mlp;
    td_describe_block(st->d, (td_block_desc){.kind = TD_BLOCK_MLP, .mlp = m});
}

static void add_device_experts(td_layer *l, td_experts_desc e) {
    const td_layer_state  *st = l->state;
    const td_program_spec *s = st->d->s;
    e.hidden = l->c->hidden;
    e.inter = st->d->sizes.moe_inter;
    e.n_experts = l->c->n_experts;
    e.top_k = l->c->top_k;
    e.in = st->normed;
    e.in_i8 = st->normed_i8;
    e.ids = st->ids;
    e.weights = st->weights;
    e.out = s->act.routed;
    e.group = s->group;
    td_describe_block(st->d, (td_block_desc){.kind = TD_BLOCK_EXPERTS, .experts = e});
}

/* Experts that are resident on the device, of each row's choices first to end - 1, while the CPU computes the others. Of
 * several cards each computes those in its slots, and their parts are added, before the CPU is waited for. */
static void add_resident(const td_layer *l, uint32_t first, uint32_t end, int32_t *sums) {
    const td_layer_state  *st = l->state;
    const td_program_spec *s = st->d->s;
    td_resident_desc       r = {.hidden = l->c->hidden,
                                .inter = l->c->moe_inter,
                                .n_experts = l->c->n_experts,
                                .top_k = l->c->top_k,
                                .first = first,
                                .end = end,
                                .packed = s->packed,
                                .in = st->normed,
                                .ids = st->ids,
                                .weights = st->weights,
                                .sums = sums};
    if (td_expert_takes_int8(s->model->experts.format)) r.in_i8 = st->normed_i8;
    if (s->resident) {
        r.slots = td_resident_slots(s->resident, s->shard.index, st->moe_layer);
        r.slot_of = td_resident_slot_of(s->resident, s->shard.index, st->moe_layer);
    }
    td_describe_block(st->d, (td_block_desc){.kind = TD_BLOCK_RESIDENT, .resident = r});
    if (s->shard.count == 1) return;
    td_describe_block(st->d, (td_block_desc){.kind = TD_BLOCK_ALL_REDUCE,
                                             .all_reduce = {.width = (uint32_t)td_exact_words(l->c->hidden),
                                                            .exact = true,
                                                            .group = s->group,
                                                            .out = sums,
                                                            .add = {sums}}});
}

/* As with all experts on the CPU, a row's first choices are added now, and the others in the next layer. */
static void add_all_resident(const td_layer *l) {
    const td_layer_state *st = l->state;
    const td_activations *a = &st->d->s->act;
    const uint32_t        top_k = l->c->top_k, n_now = top_k - (defers(st) ? st->d->s->model->experts.max_deferred : 0);
    add_resident(l, 0, n_now, a->parts);
    if (n_now < top_k) add_resident(l, n_now, top_k, a->later[st->parity]);
}

/* Both tiers' parts of a sum. @return out */
static const void *join_parts(const td_layer *l, const void *cpus, const int32_t *devices, void *out) {
    td_describe_block(l->state->d, (td_block_desc){.kind = TD_BLOCK_JOIN,
                                                   .join = {.hidden = l->c->hidden, .parts = {cpus, devices}, .out = out}});
    return out;
}

/* Among several cards, what the CPU's experts add is card 0's part of the sum; of experts on the device each has its own. */
void td_layer_add_experts(td_layer *l, td_experts_desc e) {
    const td_layer_state  *st = l->state;
    const td_program_spec *s = st->d->s;
    const void            *routed = NULL, *deferred = st->deferred;
    if (s->packed) add_all_resident(l);
    describe_streamed(l, TD_OP_LEAVE);
    if (st->hands_over) {
        td_describe_op(st->d, (td_op){.kind = TD_OP_COLLECT, .handover = {.desc = st->handover}});
        routed = s->packed ? join_parts(l, st->io.y, s->act.parts, s->act.routed) : st->io.y;
        if (s->packed && deferred_arrive(st))
            deferred = join_parts(l, st->deferred, s->act.later[(st->parity + 1) % TD_BRIDGE_PARITIES], s->act.deferred);
    } else if (s->device_experts && !s->experts_left_out) {
        add_device_experts(l, e);
        routed = s->act.routed;
    }
    if (s->shard.count == 1) {
        add_up(st->d, st->shared, routed, deferred);
        return;
    }
    sum_cards(st->d, s->act.mlp, st->shared, routed, deferred);
    add_up(st->d, s->act.mlp, NULL, NULL);
}

/* ---- a layer --------------------------------------------------------------------------------------- */

void td_describe_layer(td_description *d, uint32_t index) {
    const td_program_spec  *s = d->s;
    const td_layer_experts *experts = s->weights && s->weights->experts ? &s->weights->experts[index] : NULL;
    td_layer_state          st = {.d = d, .normed_i8 = s->act.h_i8};
    td_layer                l = {
                       .c = s->config, .index = index, .is_moe = s->config->is_moe[index], .w = td_spec_weights(s, index), .state = &st};
    if (experts) {
        l.gates = (const td_npu_weight *const *)experts->gate;
        l.ups = (const td_npu_weight *const *)experts->up;
        l.downs = (const td_npu_weight *const *)experts->down;
    }
    d->layer = index;
    if (l.is_moe) aim_at_experts(&st);
    s->config->arch->layer(&l);
    if (!st.ended_stage) td_describe_op(d, (td_op){.kind = TD_OP_STAGE});
    d->layer = TD_NO_LAYER;
}
