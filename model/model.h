/*
 * A model: configuration, checkpoint, weights on both tiers, and the layer program that runs them.
 *
 * Life: td_model_open reads config.json and the checkpoint's index and checks every name and shape (no weight is read);
 * td_model_plan tells what it will take; td_model_load takes it; td_model_forward runs one step.
 */
#ifndef TD_MODEL_MODEL_H
#define TD_MODEL_MODEL_H

#include "cpu_experts/cpu_experts.h"
#include "model/checkpoint.h"
#include "model/layer_caches.h"
#include "model/step_rows.h"
#include "npu/npu.h"

typedef struct td_model   td_model;
typedef struct td_outline td_outline; /* model/program.h */

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
    bool experts_as_stored;   /* rather the format of the packed files, or with w8a8 the one that carries the checkpoint's
                                 codes exactly */
    uint32_t max_tok;         /* tokens per step */
    uint32_t max_seq;         /* sequences per step; 0: max_tok */
    uint32_t max_out;         /* rows of logits at a time */
    uint32_t context_length;  /* longest sequence; 0: the model's own */
    uint32_t max_deferred;    /* D */
    uint32_t device_experts;  /* of a layer's routed experts, those on the device: none or all of them, in the numbers of its
                                 other linears. Then there is neither an expert store nor a hand-over */
    bool     without_mtp;     /* nothing of the MTP layer is loaded: it takes no memory, and cannot be run */
    bool     async_experts;   /* the experts have their own threads (npu_threads > 0) */
    uint32_t overlap_min_tok; /* steps of so many rows go through as two halves whose layers alternate; 0: none;
                                 TD_OVERLAP_AUTO. Of a shape bucket all steps do or none */
    bool float_rows;          /* norms leave rows as they are: linears that take int8 quantise by themselves, where
                                 td_host_npu_config.rows_tap sees          what they read */
    bool           other_handover; /* for tests: not the form of hand-over that suits the device, but the other */
    bool           keep_routing;   /* for tests: keep what the routers chose */
    td_layer_tap   layer_tap;      /* sees every layer of the main program, steps go whole then; NULL: none */
    void          *layer_tap_user;
    td_layer_range layers; /* end 0: the whole model; else these alone, for td_model_run_layers: no embedding, no head. All
                              in the main model, or the MTP layer alone. No deferral */
    const td_checkpoint *checkpoint; /* weights are read from here, not from model_path; borrowed until loaded; NULL: opened
                                        from model_path */
} td_model_options;

/** What it takes: with unified memory all of it from one, else from the device's memory and the host's. */
typedef struct {
    uint64_t npu_weight_bytes, device_scratch_bytes; /* device */
    uint64_t kv_bytes_per_page; /* device; all layers, TD_KV_PAGE tokens, and scratch that blocks want for them */
    uint64_t expert_weight_bytes, host_scratch_bytes; /* host */
    bool     unified_memory;
} td_model_plan;

/** @param npus [n_npus] the cards, of one backend, which share the work (tensor parallel); borrowed until close, the array
 * is not. */
TD_NODISCARD td_status td_model_open(const td_model_options *o, td_npu *const *npus, uint32_t n_npus, td_pool *expert_pool,
                                     td_model **out, td_error *err);
void                   td_model_close(td_model *m);

const td_model_config *td_model_get_config(const td_model *m);
uint32_t               td_model_context_length(const td_model *m);
td_page_sharing        td_model_get_page_sharing(const td_model *m); /* what the engine may do with pages of KV */
td_experts *td_model_get_experts(const td_model *m); /* after load, for measuring: may be run while no step is; NULL: none */
void        td_model_get_plan(const td_model *m, td_model_plan *plan);
/** All of it, in whatever memory. */
static inline uint64_t td_model_plan_bytes(const td_model_plan *p, uint32_t n_pages) {
    return p->npu_weight_bytes + p->device_scratch_bytes + n_pages * p->kv_bytes_per_page + p->expert_weight_bytes +
           p->host_scratch_bytes;
}
/** What a forward pass enqueues on the first card, without building it; after open. Free with td_outline_free. */
TD_NODISCARD td_status td_model_outline(const td_model *m, uint32_t n_halves, td_outline *out, td_error *err);
uint32_t               td_model_halves(const td_model *m, uint32_t n_tok); /* that a step of so many rows goes through in */
/** Bytes of a row that a layer's hand-over copies each way, with two memories. */
void td_model_handover_bytes(const td_model *m, size_t *to_host, size_t *to_device);
/** The experts of the store, for planning: sizes and format. n_layers 0: the model has none. */
td_experts_config td_model_experts_config(const td_model *m);
/** The experts' format as people call it; static. */
const char *td_model_expert_quantization(const td_model *m);
const char *td_model_expert_kernel(const td_model *m); /* after load */

/** What the tiers have done since load, and the (token, expert) pairs. Any thread. */
typedef struct {
    td_tier_work device, experts;
    uint64_t     expert_pairs, deferred_pairs;
    uint64_t     link_down_bytes, link_up_bytes; /* copied to the device and from it; 0 with unified memory */
} td_model_work;

void td_model_get_work(const td_model *m, td_model_work *out);

/** Its cards. Any thread, which may wait for the devices' drivers. @return how many, 0: the device is the host */
uint32_t td_model_get_cards(const td_model *m, td_card_stats out[TD_CARDS_MAX]);

/** What the tiers are in right now, for people: "mla of layer 12 on the device, experts of layer 11". Any thread. */
void td_model_describe(const td_model *m, char *text, size_t size);

/** Load the weights and allocate n_pages of KV. Logs progress. */
TD_NODISCARD td_status td_model_load(td_model *m, uint32_t n_pages, td_error *err);

#define TD_MODEL_TOP 256 /* the best logits of a row: what leaves a device of its own where the others are not asked for */

/** Rows of the last forward whose logits are wanted. */
typedef struct {
    const uint32_t *row; /* [n] numbers in the step */
    const bool
            *best; /* [n] true: the TD_MODEL_TOP largest will do, and others may come as -inf; NULL: all are wanted whole */
    uint32_t n;    /* 0..max_out */
} td_out_rows;

/**
 * Run the layers for the rows of a step, and the head for some of them: KV of the rows is written, their last hidden states
 * are kept for td_model_head and td_model_mtp. Synchronous. From one thread at a time.
 * @param rows [1..max_tok rows]; must stay as they are until the next forward.
 * @param logits out: [out.n, vocab] f32 on the host, the model's, valid until the next call; untouched with out.n 0.
 * @return TD_EDEVICE when a device operation failed; the KV of the rows is then undefined.
 */
TD_NODISCARD td_status td_model_forward(td_model *m, const td_step_rows *rows, td_out_rows out, const float **logits);

/**
 * Copies of pages of the KV cache, all layers of all cards, for who keeps them elsewhere. From the thread of the passes,
 * between them; synchronous.
 */
size_t                 td_model_page_bytes(const td_model *m);
TD_NODISCARD td_status td_model_prepare_page_copies(td_model *m, td_error *err); /* before the first, after load */
TD_NODISCARD td_status td_model_read_page(td_model *m, uint32_t page, void *to);
TD_NODISCARD td_status td_model_write_page(td_model *m, uint32_t page, const void *from); /* TD_EDEVICE: it holds anything */

/** Of what the checkpoint holds, before load: names, shapes and samples of the values; 0: random weights. */
uint64_t td_model_source_hash(const td_model *m);

/** Logits of more rows of the last forward, as td_model_forward's. */
TD_NODISCARD td_status td_model_head(td_model *m, td_out_rows out, const float **logits);

/**
 * The multi-token-prediction layer (DeepSeek-V3, arXiv 2412.19437 section 2.2) over the rows of the last forward: row i is
 * fed next_token[i] and predicts the token after it. Its KV goes to the same slots of its own cache. Logits of rows of it
 * are td_model_mtp_head's, as td_model_head's.
 * @return TD_ENOTSUP when the model has no MTP layer.
 */
TD_NODISCARD td_status td_model_mtp(td_model *m, const uint32_t *next_token);
TD_NODISCARD td_status td_model_mtp_head(td_model *m, td_out_rows out, const float **logits);

/**
 * With options.layers: run those on hidden states. The step's tokens do not count, its positions and slots do; for the MTP
 * layer its tokens are the next ones, and `in` is the residual stream behind the main model.
 * @param in, out [n_tok, hidden] of the activations' type, on the host; the residual stream before and after the layers.
 * They may be the same.
 */
TD_NODISCARD td_status td_model_run_layers(td_model *m, const td_step_rows *rows, const void *in, void *out);

/** The layer and role of one of the model's weights, for td_host_npu_config.rows_tap. @return false: it is none of them. */
bool td_model_find_weight(const td_model *m, const td_npu_weight *w, uint32_t *layer, td_role *role);

/** The routed experts of the last forward, with keep_routing: ids and weights [n_tok, top_k] of MoE layer `layer` (MTP's is
 * the last). */
void td_model_get_routing(const td_model *m, uint32_t layer, const uint16_t **ids, const float **weights);

#endif
