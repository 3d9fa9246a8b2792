/* Where the engine's options put a model: its placement on pools and memories, with the largest prefill chunk that fits. */
#ifndef TD_ENGINE_ENGINE_PLACEMENT_H
#define TD_ENGINE_ENGINE_PLACEMENT_H

#include "engine/engine_options.h"
#include "model/placed_model.h"

/** What there is to place it on. The pools are borrowed until the model is closed. */
typedef struct {
    td_pool        *expert_pool;
    td_pool *const *npu_pools;       /* as td_placement has them */
    uint64_t        available_bytes; /* host memory */
    uint64_t        device_bytes;    /* as td_placement has it */
} td_engine_room;

/** What td_engine_place opens, for td_placed_model_pages. */
td_placement td_engine_placement(const td_engine_options *o, const td_engine_plan *plan, const td_engine_room *room);

/** Open the model with the largest prefill chunk whose working memory fits, plan->chunk at most, and plan the KV. A smaller
 * one is in plan->chunk then, and a warning says so. @return as td_placed_model_open. */
TD_NODISCARD td_status td_engine_place(const td_engine_options *o, td_engine_plan *plan, const td_engine_room *room,
                                       td_placed_model *out, td_error *err);

#endif
