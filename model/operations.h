/*
 * The operations of a pass over a model, as data, and what they are described from.
 *
 * A pass is described first: an array of operations, whose blocks are td_block_desc. The array alone tells what a step
 * costs and how much scratch the blocks want; a program (program.h) creates its blocks and enqueues it.
 */
#ifndef TD_MODEL_OPERATIONS_H
#define TD_MODEL_OPERATIONS_H

#include "bridge/bridge.h"
#include "model/layer_caches.h"
#include "model/model_spec.h"
#include "model/weights.h"
#include "residency/streamed_experts.h"

typedef enum {
    TD_OP_BLOCK,   /* a block of the device */
    TD_OP_SUBMIT,  /* tokens go to the experts of the CPU */
    TD_OP_COLLECT, /* the experts' sums come back */
    TD_OP_TAKE,    /* of a streamed pass: the layer's streamed experts have come */
    TD_OP_LEAVE,   /* the same: the last half has done with them */
    TD_OP_SHOW,    /* rows are copied to the host, if the device has a memory of its own */
    TD_OP_CALL,    /* a function on the host */
    TD_OP_STAGE,   /* in a step of two halves, the other half goes on here (program.h) */
} td_op_kind;

typedef struct {
    td_op_kind kind;
    union {
        struct {
            td_block_desc desc;
            td_npu_block *built;     /* NULL until the program is built */
            bool          has_parts; /* in a pass that goes in pieces it may go in parts */
            uint32_t      pace;      /* below TD_PACES: the same for blocks that take about as long */
        } block;
        struct {                                 /* SUBMIT, COLLECT */
            td_bridge_port_desc desc;            /* of half 0 */
            td_bridge_port     *port[TD_HALVES]; /* NULL until it is built; [1] stays NULL if no step goes in halves */
        } handover;
        struct { /* TAKE, LEAVE */
            td_streamed_experts *experts;
            uint32_t             card, layer; /* as in the expert store */
        } streamed;
        struct {
            const void *dev;
            void       *host;
            size_t      row_bytes;
        } show;
        struct {
            td_host_fn fn;
            void      *arg[TD_HALVES];
        } call;
    };
} td_op;

/* The caches of one layer on the device, in the order of its list (model/layer_caches.h); see npu.h for the layouts. */
typedef struct {
    void *cache[TD_CACHES_MAX]; /* MLA: latents, rope parts, index keys; GQA: K, V */
} td_layer_kv;

/* What the blocks read and write; [max_tok, hidden] act_dtype unless noted. Nothing but pointers of buffers
 * (model/card_model.c). */
typedef struct {
    void      *x;     /* the residual stream; [max_tok, streams * hidden] of a model with several */
    float     *post;  /* [max_tok, streams + streams * streams]: how they take what a sublayer gives; NULL with one stream */
    void      *h;     /* normed */
    td_rows_i8 h_i8;  /* the same in int8, for linears with int8 weights; q NULL: norms do not give it */
    float     *h_f32; /* the same in f32, for routers; NULL: norms do not give it */
    void      *attn;  /* attention's output */
    void      *mlp;   /* dense or shared MLP's output */
    uint32_t  *chosen; /* [max_tok, index_top] the keys that rows attend to, of the last layer with an indexer */
    void      *routed; /* output of routed experts where the device has a part; ids and weights are their router's choice */
    int32_t   *parts;  /* [max_tok, td_exact_words(hidden)] of resident experts, their part of that sum */
    int32_t  *later[TD_BRIDGE_PARITIES]; /* the same of the deferred sum of a layer, by its parity; NULL: none is deferred */
    void     *deferred;  /* output of experts that the layer before deferred, where the device has a part of them */
    void     *ids;       /* [max_tok, top_k], as the device's routers give them */
    float    *weights;   /* [max_tok, top_k] */
    void     *mtp_x;     /* the MTP layer's residual stream, of the width of x */
    void     *mtp_in;    /* [max_tok, 2*hidden], or [max_tok, streams*hidden]: what its projection reads */
    float    *logits;    /* [max_out, vocab of the shard] */
    td_logit *top;       /* [max_out, top_k] the largest of logits, or NULL */
    td_log_sum *sums;    /* [max_out] or NULL */
    void       *images;  /* [1 + taps, max_tok, hidden] features of images (td_sequence_image); NULL: steps have none */
    void       *between; /* what a block in parts needs between them (td_block_part); NULL: no pass goes in pieces */
} td_activations;

/** What passes are described from. An outline leaves out what memory holds: bridge, weights, kv and act. */
typedef struct {
    td_npu                 *npu;
    td_shard                shard;  /* of the weights that this card has; card 0 alone talks to the experts of the CPU */
    td_npu_group           *group;  /* the cards whose sums make a whole; NULL with one */
    td_bridge              *bridge; /* NULL if the model has no MoE layer, or device_experts is set; or of an outline */
    bool                    device_experts; /* the routed experts are on the device: a block like the others, no hand-over */
    const td_packed_expert *packed;   /* of experts that are resident on the device, beside the CPU's; NULL: none are */
    td_resident_experts    *resident; /* these experts; NULL: of an outline */
    td_streamed_experts    *streamed; /* others that pass through the device's memory; NULL: none, or of an outline */
    bool                    experts_left_out; /* with device_experts: tokens are routed, no expert is computed */
    const td_model_spec    *model;            /* settled: sizes of steps, types, deferral */
    const td_model_config  *config;
    const td_model_weights *weights; /* NULL: of an outline */
    const td_layer_kv      *kv;      /* [n_layers + n_mtp_layers]; NULL: of an outline */
    td_layer_range          layers;  /* of the pass over the layers */
    td_rope_axes            axes;    /* of the config, where the device has such rope; else none */
    bool                    whole; /* the pass begins with the embedding; false: with act.x, and there are no other passes */
    td_activations          act;
    uint32_t                top_k;
    uint32_t                max_halves;               /* 1, or TD_HALVES with experts */
    uint32_t                kv_pages, kv_spare_pages; /* of each cache; */
    uint32_t                window_pages;             /* of those with a window, in place of kv_pages */
    /* for tests: called after the submit of each MoE layer, in stream order; NULL: none. args[moe layer * TD_HALVES +
     * half] */
    td_host_fn routed;
    void     **routed_args;
    /* called after each layer, of steps that go whole then, in stream order; NULL: none. args[layer] */
    td_host_fn layer_done;
    void     **layer_done_args;
    void      *shown_x; /* [max_tok, hidden] on the host: the residual stream when layer_done is called */
} td_program_spec;

/** Weights by role: of a layer, or of the whole model with TD_NO_LAYER. In an outline all are NULL. */
td_npu_weight *const *td_spec_weights(const td_program_spec *s, uint32_t layer);

/** The table of act.images that stands for embeddings (0), or that layer `table - 1` adds; NULL: there is none. */
const void *td_spec_images(const td_program_spec *s, uint32_t table);

/** A pass that is being described. */
typedef struct td_description {
    const td_program_spec *s;
    td_shard_sizes         sizes; /* of this card's part */
    void                  *x;     /* the pass's residual stream: act.x or act.mtp_x */
    uint32_t               layer; /* under way; TD_NO_LAYER outside of layers */
    uint32_t               n_moe; /* layers with experts so far */
    td_op                 *ops;   /* [n], the caller's in the end */
    uint32_t               n, room;
    td_status              status; /* the first failure stays, and nothing is added behind it */
    td_error              *err;
} td_description;

/** Append a copy of the operation; a failure stays in d->status. */
void td_describe_op(td_description *d, td_op op);
/** A block of the layer under way; layer, max_tok and max_kv are filled in here. */
void td_describe_block(td_description *d, td_block_desc block);

#endif
