/*
 * What a family's layer says, one line an operation, in the order of the paper.
 *
 * x is the residual stream; h, a and m are what the verbs before left behind. A verb is given a block's members (npu/npu.h)
 * that are the family's to say: weights, and what is special about them. It fills in what is the engine's: the sizes of this
 * card's part, the buffers, the KV cache. Where several cards share a layer it adds the sum over them, and where the experts
 * are on the CPU the hand-over to them. In a model of several residual streams, which mix and spread_mix make, x += y means
 * that the streams take y, each its share, and a mixture of the others (td_spread_desc).
 *
 * Keep this header narrow: a family knows nothing of buffers, cards, or how passes are run.
 */
#ifndef TD_MODEL_LAYER_VERBS_H
#define TD_MODEL_LAYER_VERBS_H

#include "model/arch/arch.h"

/** A layer that is being described. */
struct td_layer {
    const td_model_config      *c;
    uint32_t                    index;  /* in the model; an MTP layer's is n_layers or more */
    bool                        is_moe; /* it has routed experts */
    td_npu_weight *const       *w;      /* [TD_ROLE_COUNT] its weights; NULL: it has none, or an outline is made */
    const td_npu_weight *const *gates, *const *ups, *const *downs; /* [n_experts] where routed experts are on the device */
    struct td_layer_state *state;                                  /* the verbs' own */
};

/* Its weight of a role, which goes without TD_ROLE_. */
#define W(role) (l->w[TD_ROLE_##role])

#define norm(l, ...) td_layer_norm(l, (td_norm_desc){__VA_ARGS__})            /* h = norm(x) */
#define mla(l, ...) td_layer_mla(l, (td_mla_desc){__VA_ARGS__})               /* a = attention(h), over latents */
#define gqa(l, ...) td_layer_gqa(l, (td_gqa_desc){__VA_ARGS__})               /* a = attention(h), grouped queries */
#define delta(l, ...) td_layer_delta(l, (td_delta_desc){__VA_ARGS__})         /* a = delta(h), over a recurrent state */
#define sparse(l, ...) td_layer_sparse(l, (td_sparse_desc){__VA_ARGS__})      /* a = attention(h), over compressed rows */
#define mix(l, ...) td_layer_mix(l, (td_mix_desc){__VA_ARGS__})               /* h = norm(a mixture of the streams) */
#define spread_mix(l, ...) td_layer_spread_mix(l, (td_mix_desc){__VA_ARGS__}) /* the streams take a; h = norm(a mixture) */
#define add_norm(l, ...) td_layer_add_norm(l, (td_norm_desc){__VA_ARGS__})    /* x += a; h = norm(x) */
#define mlp(l, ...) td_layer_mlp(l, (td_mlp_desc){__VA_ARGS__})               /* m = mlp(h) */
#define add(l) td_layer_add(l)                                                /* x += m */
#define route(l, ...) td_layer_route(l, (td_router_desc){__VA_ARGS__})        /* e, w = router(h): experts e begin with h */
#define shared(l, ...) td_layer_shared(l, (td_mlp_desc){__VA_ARGS__})         /* m = shared expert(h), meanwhile */
#define add_experts(l, ...) td_layer_add_experts(l, (td_experts_desc){__VA_ARGS__}) /* x += m + sum of w * experts e(h) */

void td_layer_norm(td_layer *l, td_norm_desc d);
void td_layer_mla(td_layer *l, td_mla_desc d);
void td_layer_gqa(td_layer *l, td_gqa_desc d);
void td_layer_delta(td_layer *l, td_delta_desc d);
void td_layer_sparse(td_layer *l, td_sparse_desc d);
void td_layer_mix(td_layer *l, td_mix_desc d);
void td_layer_spread_mix(td_layer *l, td_mix_desc d);
void td_layer_add_norm(td_layer *l, td_norm_desc d);
void td_layer_mlp(td_layer *l, td_mlp_desc d);
void td_layer_add(td_layer *l);
void td_layer_route(td_layer *l, td_router_desc d);
void td_layer_shared(td_layer *l, td_mlp_desc d);
void td_layer_add_experts(td_layer *l, td_experts_desc d);

/** For program.c: the operations of a layer, which its family's layer() says, cut into stages. */
struct td_description;
void td_describe_layer(struct td_description *d, uint32_t index);

#endif
