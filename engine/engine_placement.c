#include "engine/engine_placement.h"

#include "core/log/log.h"
#include "engine/step/sampler.h"

#define CHUNK_MIN 512 /* the prefill chunk is not made smaller than this to save memory */

uint64_t td_engine_bytes_per_vocab_entry(const td_pool *expert_pool) {
    return td_sampler_bytes(1) * td_pool_workers(expert_pool);
}

td_status td_engine_place(td_engine_plan *plan, const td_model_room *room, td_placed_model *out, td_error *err) {
    uint32_t wanted = plan->chunk;
    for (;;) {
        td_status st = td_placed_model_open(&plan->model, room, NULL, out, err);
        if (st == TD_OK) break;
        if (st != TD_ENOMEM || plan->chunk / 2 < CHUNK_MIN) return st;
        plan->chunk /= 2;
        plan->model.max_tok = plan->chunk + plan->model.max_running;
    }
    if (err) *err = (td_error){0};
    if (plan->chunk < wanted)
        td_warn("memory is short: prefill goes in chunks of %u tokens instead of %u", plan->chunk, wanted);
    return TD_OK;
}
