#include "engine/engine_placement.h"

#include "core/log/log.h"
#include "engine/step/sampler.h"

#define CHUNK_MIN 512 /* the prefill chunk is not made smaller than this to save memory */

uint64_t td_engine_bytes_per_vocab_entry(const td_pool *expert_pool) {
    return td_sampler_bytes(1) * td_pool_workers(expert_pool);
}

td_status td_engine_place(td_engine_config *config, const td_model_room *room, td_placed_model *out, td_error *err) {
    uint32_t wanted = config->chunk;
    for (;;) {
        td_status st = td_placed_model_open(&config->model, room, NULL, out, err);
        if (st == TD_OK) break;
        if (st != TD_ENOMEM || config->chunk / 2 < CHUNK_MIN) return st;
        config->chunk /= 2;
        config->model.max_tok = config->chunk + config->model.max_running;
    }
    if (err) *err = (td_error){0};
    if (config->chunk < wanted)
        td_warn("memory is short: prefill goes in chunks of %u tokens instead of %u", config->chunk, wanted);
    return TD_OK;
}
