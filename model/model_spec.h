/*
 * The resolved configuration of a model: which files, on which device, in which numbers, for steps of which size.
 *
 *   td_engine_options --td_engine_resolve--> td_model_spec --td_model_open--> the settled spec of the model
 *
 * Options of the API have defaults, names and limits; td_engine_resolve (engine/engine_options.h) resolves them to a spec.
 * td_model_open copies the spec once, and settles in the copy what only the checkpoint and the device can tell. Experts,
 * bridge and cards then read that copy through const pointers: an option is added to the API, here (or to td_experts_config,
 * if the expert tier needs it), and where it is used.
 */
#ifndef TD_MODEL_MODEL_SPEC_H
#define TD_MODEL_MODEL_SPEC_H

#include "cpu_experts/cpu_experts.h"
#include "model/arch/model_config.h"
#include "model/checkpoint/checkpoint.h"

typedef struct td_model td_model; /* model/model.h */

/** overlap_min_tok that leaves the choice to the model: docs/performance.md, "Two halves". */
#define TD_OVERLAP_AUTO UINT32_MAX

/** Snapshots of recurrent states that are of use for each sequence that may run: small states leave memory to others. */
#define TD_SNAPSHOTS_PER_SEQUENCE 64

/** Strings and the checkpoint are the caller's; they are read until the weights are loaded. */
typedef struct {
    /* files */
    const char          *model_path;      /* a folder in Hugging Face's layout; with load_dummy also a config.json file */
    const char          *cpu_weight_path; /* a folder of packed experts; NULL if the model_path has the experts */
    const char          *override_json;   /* merged over config.json; NULL for nothing */
    const td_checkpoint *checkpoint;      /* weights are read from here if not NULL, else from model_path */
    bool                 load_dummy;      /* random weights of the config's shape */
    bool                 without_mtp;     /* the MTP layer is not loaded: it takes no memory, and cannot be run */
    td_layer_range       layers;          /* .end 0: the whole model; else these layers alone (td_model_run_layers),
                                             without embedding, head and deferral: main layers, or the MTP layer */

    /* device */
    const char *device;         /* a name that td_npu_open knows */
    uint32_t    n_cards;        /* cards that share the work (tensor parallel), at least 1 */
    uint32_t    first_card;     /* the first of them among those that the process sees */
    uint32_t    device_experts; /* routed experts of a layer that the device keeps, as td_engine_options.num_gpu_experts */
    bool        stream_experts; /* others pass through its memory, as td_engine_options.stream_experts */

    bool drop_experts; /* those on the device leave host memory, as td_engine_options.expert_memory says */

    /* numbers */
    bool w8a8;              /* the device tier in int8; false: bf16 weights, f32 activations */
    bool kv_int8;           /* keys, values and latents in 8 bits a value; false: in the type of activations. With w8a8 */
    bool experts_as_stored; /* experts.format gives way to the format of packed files, and with w8a8 to the format that holds
                               the checkpoint's codes exactly */
    td_experts_config experts; /* the caller sets format, groups, max_deferred and copy_files; td_model_open settles
                                  shape and sizes, and n_layers 0 if the CPU has no experts */

    /* sizes */
    uint32_t max_tok;        /* tokens of a step */
    uint32_t max_seq;        /* sequences of a step */
    uint32_t max_out;        /* rows of logits that one call gives */
    uint32_t context_length; /* longest sequence; 0: the model's own, which td_model_open puts here */
    uint32_t max_patches;    /* of the largest picture; 0: no images. td_model_open sets it to 0 where none can be taken */
    bool     in_pieces; /* a pass may go in pieces, with others between them (td_model_start_pieces); td_model_open takes it
                           back where the device or the model cannot */
    uint32_t aside_tok; /* with it, rows of max_tok that are such a pass's: td_model_open sets it */
    uint32_t overlap_min_tok; /* a step of so many tokens is run as two halves whose layers alternate; 0: none is. A device
                                 that shares its threads with the experts splits no step */

    /* Slots of recurrent layers (npu/npu.h, TD_STATE_BLOCK). td_model_open adds to state_slots those of snapshots, and sets
     * all three to 0 if the model has no such layers. */
    uint32_t state_slots;    /* states that steps need; 0: max_seq */
    uint32_t open_slots;     /* open blocks; 0: max_seq */
    uint64_t snapshot_bytes; /* for states that are kept at the ends of prefixes, on each card; 0: none are */

    /** Layers with a window have pages of their own (td_step_sequence.windows), which sequences give back; false: they have a
     * page for each of the others. td_model_open sets it to false if no layer has a window. */
    bool gives_windows;

    /* memory of the KV cache: either n_pages, or as many pages as the other three allow */
    uint32_t n_pages;          /* not 0: exactly so many, and whether they fit is not checked */
    double   fraction;         /* share of each memory that the model may use, (0, 1] */
    uint64_t max_total_tokens; /* tokens to have room for; 0: what fits, up to max_running sequences of context_length */
    uint32_t max_running;      /* sequences that run at the same time */
} td_model_spec;

/** A spec with the usual choices: the host device, bf16 weights, all layers, one row of logits, steps that go whole. Callers
 * change what they want otherwise, and set either n_pages or the memory to plan with. */
static inline td_model_spec td_model_spec_of(const char *model_path, uint32_t max_tok) {
    return (td_model_spec){.model_path = model_path,
                           .device = "host",
                           .n_cards = 1,
                           .experts.format = TD_EXPERT_BF16,
                           .max_tok = max_tok,
                           .max_seq = max_tok,
                           .max_out = 1,
                           .fraction = 0.9,
                           .max_running = 1};
}

/** Type of the activations, and of the KV cache but for kv_int8. */
static inline td_dtype td_model_act_dtype(const td_model_spec *s) {
    return s->w8a8 ? TD_DT_BF16 : TD_DT_F32;
}

#endif
