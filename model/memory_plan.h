/*
 * Plans how many pages of KV fit beside the weights: in one memory that both tiers share; or in the device's memory, while
 * the experts are in the host's. Pure arithmetic.
 */
#ifndef TD_MODEL_MEMORY_PLAN_H
#define TD_MODEL_MEMORY_PLAN_H

#include "tandem.h"

/** What pages of layers with a window take, where those behind it are given back. */
typedef struct {
    uint64_t page_bytes; /* TD_KV_PAGE tokens of all these layers; 0: there are none, or they keep all tokens */
    uint32_t least;      /* so many pages suffice for all requests that run, whatever they do */
} td_window_cost;

#define TD_WINDOWS_KEPT 8 /* beyond that there is one for so many pages of KV: for the ends of prefixes */

/** How many there are beside n pages of KV. */
static inline uint32_t td_window_count(td_window_cost w, uint32_t n_pages) {
    uint64_t n = (uint64_t)w.least + n_pages / TD_WINDOWS_KEPT;
    return w.page_bytes && n < n_pages ? (uint32_t)n : n_pages;
}

/** The memory that a model takes. With unified memory, device and host are one, and the figures are those of all cards; else
 * the device's figures are those of one card. */
typedef struct {
    uint64_t       npu_weight_bytes;     /* device: weights of the device tier */
    uint64_t       device_scratch_bytes; /* device: activations, and working memory of the blocks */
    uint64_t       kv_bytes_per_page;    /* device: TD_KV_PAGE tokens of layers outside `windows`, and scratch for them */
    td_window_cost windows;              /* device: pages of layers with a window that are given back */
    uint64_t       state_bytes; /* device: states and open blocks of recurrent layers, all slots; 0: there are none */
    uint64_t       encoder_weight_bytes;  /* device, the first card: weights of the vision encoder; 0: there is none */
    uint64_t       encoder_scratch_bytes; /* device, the first card: its working memory */
    uint64_t       expert_weight_bytes;   /* host: routed experts, those included that expert-memory drop leaves out */
    uint64_t       host_scratch_bytes;    /* host: working memory */
    uint64_t       slot_bytes;            /* device: of a slot of each layer, for experts that move; 0: none do */
    uint64_t       saved_bytes;           /* host: what a slot of each layer on each card saves, with expert-memory drop */
    uint32_t       slots;                 /* of a layer, on each card: so many; or at most so many, if slots_least is set */
    uint32_t       slots_least;           /* num-gpu-experts auto, until td_model_set_slots: fewer are no use */
    uint32_t       stream_slots;          /* of streamed experts on each card, in npu_weight_bytes; 0: none are */
    bool           unified_memory;
} td_model_memory;

/** Of n pages. */
static inline uint64_t td_model_kv_bytes(const td_model_memory *m, uint32_t n_pages) {
    return n_pages * m->kv_bytes_per_page + td_window_count(m->windows, n_pages) * m->windows.page_bytes;
}

/** Routed experts in host memory, with the slots that there are. */
static inline uint64_t td_model_host_experts(const td_model_memory *m) {
    return m->expert_weight_bytes - m->slots * m->saved_bytes;
}

/** The host's memory, where the device has one of its own. */
typedef struct {
    uint64_t available_bytes; /* of the machine or its cgroup, before the weights are loaded */
    uint64_t weight_bytes;    /* the experts, without slots */
    uint64_t saved_bytes;     /* of them, by each slot of each layer on the device */
    uint64_t scratch_bytes;   /* working memory, sampling and pinned staging included */
} td_host_budget;

typedef struct {
    uint64_t              available_bytes;   /* of the device, or of the machine where there is one memory */
    uint64_t              taken_bytes;       /* of a device's memory before anything is loaded, mostly by other processes */
    double                fraction;          /* share of each memory that may be used, (0, 1] */
    uint64_t              weight_bytes;      /* in that memory */
    uint64_t              scratch_bytes;     /* working memory in it */
    const td_host_budget *host;              /* NULL: one memory */
    uint64_t              kv_bytes_per_page; /* all layers, or those without a window; it and windows not both 0 */
    td_window_cost        windows;
    uint64_t max_total_tokens; /* wanted capacity; 0: what fits, up to max_running sequences of context_length */
    uint32_t context_length, max_running;
    /* Slots for experts that move get what KV leaves, from slots_least to slots_most of a layer, or none. Without
     * max_total_tokens KV leaves half of the room, if one sequence of context_length fits in the other half. Slots without
     * which host memory does not hold the experts come before KV. */
    uint64_t slot_bytes; /* of a slot of each layer; 0: there are none, or their number is fixed and weight_bytes has them */
    uint32_t slots_least, slots_most;
} td_memory_plan_input;

typedef struct {
    uint32_t n_pages, n_slots; /* of KV; of a layer's experts on the device, 0 without slot_bytes */
} td_memory_shares;

/** @return TD_ENOMEM when the weights and one page do not fit, or max_total_tokens does not: err names the largest that
 * does, and the memory that is short. */
TD_NODISCARD td_status td_memory_plan(const td_memory_plan_input *in, td_memory_shares *out, td_error *err);

#endif
