/* What is asked of a model and what it asks for: options, what it takes, rows whose logits are wanted, and who watches. */
#ifndef TD_MODEL_MODEL_OPTIONS_H
#define TD_MODEL_MODEL_OPTIONS_H

#include "cpu_experts/cpu_experts.h"
#include "model/checkpoint/checkpoint.h"
#include "model/layer_caches.h"

typedef struct td_model td_model;

/** For measurements: what of the routed experts' work is left out; what they add is nothing then. */
typedef enum {
    TD_EXPERTS_LEFT_NOTHING,  /* as they should be */
    TD_EXPERTS_LEFT_COMPUTED, /* tokens are handed over and sums come back, but nothing is computed */
    TD_EXPERTS_LEFT_ALL,      /* no hand-over either */
} td_experts_left;

/** Two halves from where an expert of the model gets enough rows of each: docs/performance.md, "Two halves". */
#define TD_OVERLAP_AUTO UINT32_MAX

/** A layer's output in a step: [n_tok, hidden] each, of the activations' type, on the host, there during the call. */
typedef struct {
    uint32_t        layer, n_tok;
    td_dtype        dtype;
    const void     *x;              /* the residual stream after the layer */
    const void     *routed;         /* what its routed experts add; NULL: a dense layer */
    const void     *deferred;       /* what it adds of the MoE layer before; NULL: nothing */
    const void     *expert_x;       /* what its router and routed experts read; NULL: a dense layer */
    const uint16_t *expert_ids;     /* [n_tok, top_k] that were chosen */
    const float    *expert_weights; /* [n_tok, top_k] of them */
} td_layer_output;

/** Called in stream order; must not call the model or the device. */
typedef void (*td_layer_tap)(void *user, const td_layer_output *out);

typedef struct {
    const char *model_path;      /* Hugging Face folder, or a config.json file with load_dummy */
    const char *cpu_weight_path; /* packed experts, or NULL */
    const char *override_json;   /* merged over config.json, or NULL */
    bool        load_dummy;      /* random weights of the config's shape */
    bool copy_files; /* packed files are read into memory; else they are mapped where nothing is bound to a NUMA node */
    bool w8a8;       /* NPU tier; false: bf16 weights, f32 activations */
    td_expert_format expert_format;
    td_expert_groups expert_groups;
    bool
             experts_as_stored; /* rather the format of the packed files, or with w8a8 the one that carries the checkpoint's codes exactly */
    uint32_t max_tok;        /* tokens per step */
    uint32_t max_seq;        /* sequences per step; 0: max_tok */
    uint32_t max_out;        /* rows of logits at a time */
    uint32_t context_length; /* longest sequence; 0: the model's own */
    uint32_t max_deferred;   /* D */
    uint32_t device_experts; /* of a layer's routed experts, those on the device: none or all of them, in the numbers of its
                                other linears. Then there is neither an expert store nor a hand-over */
    bool     without_mtp;    /* nothing of the MTP layer is loaded: it takes no memory, and cannot be run */
    td_experts_left experts_left;  /* not with device_experts */
    bool            async_experts; /* the experts have their own threads (npu_threads > 0) */
    uint32_t
        overlap_min_tok; /* steps of so many rows go through as two halves whose layers alternate; 0: none; TD_OVERLAP_AUTO. Of a
                                        shape bucket all steps do or none */
    bool
                 float_rows; /* norms leave rows as they are: linears that take int8 quantise by themselves, where td_host_npu_config.rows_tap sees
                                        what they read */
    bool         other_handover; /* for tests: not the form of hand-over that suits the device, but the other */
    bool         keep_routing;   /* for tests: keep what the routers chose */
    td_layer_tap layer_tap;      /* sees every layer of the main program, steps go whole then; NULL: none */
    void        *layer_tap_user;
    td_layer_range
        layers; /* end 0: the whole model; else these alone, for td_model_run_layers: no embedding, no head. All in the main
                              model, or the MTP layer alone. No deferral */
    const td_checkpoint *
        checkpoint; /* weights are read from here, not from model_path; borrowed until loaded; NULL: opened from model_path */
} td_model_options;

/** What it takes: with unified memory all of it from one, else from the device's memory and the host's. */
typedef struct {
    uint64_t npu_weight_bytes, device_scratch_bytes; /* device */
    uint64_t kv_bytes_per_page; /* device; all layers, TD_KV_PAGE tokens, and scratch that blocks want for them */
    uint64_t expert_weight_bytes, host_scratch_bytes; /* host */
    bool     unified_memory;
} td_model_plan;

#define TD_MODEL_TOP 256 /* the best logits of a row: what leaves a device of its own where the others are not asked for */

/** What log-probabilities need of a row of which the best logits will do otherwise. */
typedef struct {
    bool     wanted;
    uint32_t id;      /* whose logit comes, too; UINT32_MAX: none but the best ones' */
    double   log_sum; /* filled in: log(sum(exp(logit))) of the whole row; NAN: it was not wanted, or the row came whole */
} td_out_logprobs;

/** Rows of the last forward whose logits are wanted. */
typedef struct {
    const uint32_t *row; /* [n] numbers in the step */
    const bool
        *best; /* [n] true: the TD_MODEL_TOP largest will do, and others may come as -inf; NULL: all are wanted whole */
    td_out_logprobs *logprobs; /* [n] or NULL */
    uint32_t         n;        /* 0..max_out */
} td_out_rows;

#endif
