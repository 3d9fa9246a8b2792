/* A model placed for the engine: with the largest prefill chunk whose working memory fits. */
#ifndef TD_ENGINE_ENGINE_PLACEMENT_H
#define TD_ENGINE_ENGINE_PLACEMENT_H

#include "engine/engine_options.h"
#include "model/placed_model.h"

/** Host memory that sampling on the pool's threads takes, in bytes for each entry of the vocabulary. */
uint64_t td_engine_bytes_per_vocab_entry(const td_pool *expert_pool);

/** Open config->model with the largest prefill chunk whose working memory fits, config->chunk at most, and plan the KV.
 * If that chunk is smaller, it is put into config->chunk and config->model, with a warning. @return as
 * td_placed_model_open. */
TD_NODISCARD td_status td_engine_place(td_engine_config *config, const td_model_room *room, td_placed_model *out,
                                       td_error *err);

#endif
