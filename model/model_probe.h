/*
 * What tests, benchmarks and offline tools see of a model at work, and what they change in it. A model that serves has none.
 */
#ifndef TD_MODEL_MODEL_PROBE_H
#define TD_MODEL_MODEL_PROBE_H

#include "core/dtype.h"
#include "npu/host/host_npu.h"

/** A layer's output in a step. Arrays have n_tok rows and lie on the host; they may be read during the call only. */
typedef struct {
    uint32_t        layer, n_tok;
    td_dtype        dtype;          /* of x, routed, deferred and expert_x: the activations' */
    const void     *x;              /* [n_tok, hidden] the residual stream after the layer */
    const void     *routed;         /* [n_tok, hidden] the sum of its routed experts; NULL for a dense layer */
    const void     *deferred;       /* [n_tok, hidden] the sum that the MoE layer before deferred to it; NULL if none */
    const void     *expert_x;       /* [n_tok, hidden] the input of its router and routed experts; NULL for a dense layer */
    const uint16_t *expert_ids;     /* [n_tok, top_k] the experts that its router chose */
    const float    *expert_weights; /* [n_tok, top_k] their weights */
} td_layer_output;

/** Called in stream order; must not call the model or the device. */
typedef void (*td_layer_tap)(void *user, const td_layer_output *out);

/** Which part of the routed experts' work a benchmark leaves out. Their output is zero then. */
typedef enum {
    TD_EXPERTS_LEFT_NOTHING,  /* none: the experts work as in a server */
    TD_EXPERTS_LEFT_COMPUTED, /* tokens are handed over and sums come back, but no expert is computed */
    TD_EXPERTS_LEFT_ALL,      /* tokens are routed on the device, and there is no hand-over either */
} td_experts_left;

typedef struct {
    td_experts_left experts_left;   /* for benchmarks; must be TD_EXPERTS_LEFT_NOTHING if the device has the experts */
    bool            other_handover; /* for tests: use the form of hand-over that the device would not choose */
    bool            sums_ahead;     /* for tests: by doorbells, sums of any size come ahead (td_bridge_config.ahead_bytes) */
    uint64_t        residency_seed; /* for tests: which experts are resident is drawn, anew in each pass; 0: the policy's */
    bool            keep_routing;   /* keep what the routers chose, for td_model_get_routing */
    td_layer_tap    layer_tap; /* sees every layer of the main model; steps are not split into halves then. NULL if unused */
    td_rows_tap     rows_tap;  /* sees the input rows of every linear, in f32; host device only. NULL if unused */
    void           *user;      /* the first argument of both taps */
} td_model_probe;

#endif
