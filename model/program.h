/*
 * The layer program: what a forward pass enqueues, as data.
 *
 * A program is a list of operations on the device stream, built once from the configuration: architectures differ in the blocks they
 * list, not in code that runs them. It is cut into turns. A step that goes through whole takes them one after the other; of a step in two
 * halves both take each turn before the next one begins (A.0 B.0 A.1 B.1 ...), so that the device has work while the CPU tier does a half's
 * experts. The blocks are the same: a half is a step of its own over other rows of the same buffers.
 */
#ifndef TD_MODEL_PROGRAM_H
#define TD_MODEL_PROGRAM_H

#include "bridge/bridge.h"
#include "model/layer_caches.h"
#include "model/step_buf.h"
#include "model/weights.h"

typedef enum { TD_OP_BLOCK, TD_OP_SUBMIT, TD_OP_COLLECT, TD_OP_SHOW, TD_OP_CALL, TD_OP_TURN } td_op_kind;

typedef struct {
    td_op_kind kind;
    union {
        td_npu_block   *block;
        td_bridge_port *port[TD_HALVES]; /* SUBMIT, COLLECT; [1] NULL where no step goes in halves */
        struct { /* SHOW: rows of the device are copied to the host, where it has a memory of its own */
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

typedef struct {
    td_op           *ops; /* the last one is TD_OP_TURN */
    uint32_t         n, room;
    td_bridge_port **order[TD_HALVES]; /* the ports in the order of their submits: of a whole step, of one in halves */
    uint32_t         n_tickets[TD_HALVES];
} td_program;

/* The caches of one layer on the device, in the order of its list (model/layer_caches.h); see npu.h for the layouts. */
typedef struct {
    void *cache[TD_CACHES_MAX]; /* MLA: latents, rope parts; GQA: K, V */
} td_layer_kv;

/* What the blocks read and write; [max_tok, hidden] act_dtype unless noted. Nothing but pointers of buffers (model/card.c). */
typedef struct {
    void       *x;       /* the residual stream */
    void       *h;       /* normed */
    td_rows_i8  h_i8;    /* or that as int8, with int8_rows */
    float      *h_f32;   /* and in f32, for routers, where the device's norms give it; else NULL */
    void       *attn;    /* attention's output */
    void       *mlp;     /* dense or shared MLP's output */
    void       *routed;  /* experts that are on the device: their output, and what the router chose for them */
    uint16_t   *ids;     /* [max_tok, top_k] */
    float      *weights; /* [max_tok, top_k] */
    void       *mtp_x;   /* the MTP layer's residual stream */
    void       *mtp_cat; /* [max_tok, 2*hidden] */
    float      *logits;  /* [max_out, vocab of the shard] */
    td_logit   *top;     /* [max_out, top_k of them], or NULL */
    td_log_sum *sums;    /* [max_out] or NULL */
} td_activations;

typedef struct {
    td_npu                 *npu;
    td_shard                shard;  /* of the weights that this card has; card 0 alone talks to the experts of the CPU */
    td_npu_group           *group;  /* the cards whose sums make a whole; NULL with one */
    td_bridge              *bridge; /* NULL: no MoE layer, or */
    bool                    device_experts; /* the routed experts are on the device: a block like the others, no hand-over */
    bool                    experts_left_out; /* with device_experts: they are nowhere, tokens are routed for nothing */
    const td_model_config  *config;
    const td_model_weights *weights;
    const td_layer_kv      *kv;     /* [n_layers + n_mtp_layers] */
    td_layer_range          layers; /* of the main program */
    bool           whole; /* it begins with the embedding; false: with what is in act.x, and there are no other programs */
    td_activations act;
    td_dtype       act_dtype;
    bool           int8_rows; /* norms quantise for the linears and MLPs behind them, which take int8 */
    uint32_t       max_tok, max_out, max_kv, max_deferred, top_k;
    uint32_t       max_halves;               /* 1, or TD_HALVES with experts */
    uint32_t       kv_pages, kv_spare_pages; /* of each cache, as blocks have them */
    /* for tests: called after the submit of each MoE layer, in stream order; NULL: none. args[moe layer * TD_HALVES + half]
     */
    td_host_fn routed;
    void     **routed_args;
    /* called after each layer of a main program, whose steps go whole then, in stream order; NULL: none. args[layer] */
    td_host_fn layer_done;
    void     **layer_done_args;
    void      *shown_x; /* [max_tok, hidden] on the host: the residual stream when layer_done is called */
} td_program_spec;

/** The layers, after the embedding where wanted: leaves the last residual stream in act.x. */
TD_NODISCARD td_status td_program_build_main(const td_program_spec *s, td_program *out, td_error *err);
/** Final norm and head over step->out_row: fills act.logits, and with top_k act.top. So does the MTP layer's. */
TD_NODISCARD td_status td_program_build_head(const td_program_spec *s, td_program *out, td_error *err);
/** The MTP layer: reads act.x, leaves its residual stream in act.mtp_x. Its norm and head over step->out_row: fills
 * act.logits. */
TD_NODISCARD td_status td_program_build_mtp(const td_program_spec *s, td_program *out, td_error *err);
TD_NODISCARD td_status td_program_build_mtp_head(const td_program_spec *s, td_program *out, td_error *err);
/** Largest scratch that one of the blocks needs, for planning. @param s npu, shard, config, layers, whole, act_dtype and
 * max_* are read, the rest may be empty. */
TD_NODISCARD td_status td_program_scratch_bytes(const td_program_spec *s, size_t *bytes, td_error *err);

/** An operation of a pass, for planning. */
typedef struct {
    td_op_kind    kind;  /* BLOCK, SUBMIT, COLLECT */
    uint32_t      half;  /* that it is for; TD_OUTLINE_WHOLE: the whole step */
    td_block_desc block; /* of BLOCK: its sizes; weights and buffers are NULL */
} td_outline_op;

#define TD_OUTLINE_WHOLE UINT32_MAX

typedef struct td_outline {
    td_outline_op *ops; /* [n] */
    uint32_t       n;
} td_outline;

/** What a forward pass, layers and head, enqueues, in that order, of a step that goes through whole or in halves. Nothing is
 * built. @param s as of td_program_scratch_bytes. @param n_halves 1, or s->max_halves. Free with td_outline_free. */
TD_NODISCARD td_status td_program_outline(const td_program_spec *s, uint32_t n_halves, td_outline *out, td_error *err);
void                   td_outline_free(td_outline *o);

/** Enqueue it for a bucket: in halves where the bucket has them and the program has ports for them. */
TD_NODISCARD td_status td_program_enqueue(const td_program *p, td_npu *d, td_npu_stream *s, const td_step_bucket *bucket);
/** What the bridge is told of a pass over the bucket. */
td_bridge_pass td_program_pass(const td_program *p, const td_step_bucket *bucket);
void           td_program_free(td_npu *d, td_program *p);

#endif
