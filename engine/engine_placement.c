#include "engine/engine_placement.h"

#include "core/log.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

#define CHUNK_MIN 512 /* the prefill chunk is not made smaller than this to save memory */

td_placement td_engine_placement(const td_engine_options *o, const td_engine_plan *plan, const td_engine_room *room) {
    return (td_placement){
        .device = o->device,
        .expert_pool = room->expert_pool,
        .npu_pools = room->npu_pools,
        .n_cards = o->tensor_parallel_size,
        .first_card = o->base_gpu_id,
        .model = {.model_path = o->model_path,
                  .cpu_weight_path = o->cpu_weight_path,
                  .override_json = o->model_override_json,
                  .load_dummy = plan->load_dummy,
                  .copy_files = o->copy_weights,
                  .w8a8 = plan->w8a8,
                  .expert_format = plan->experts->format,
                  .expert_groups = plan->experts->groups,
                  .experts_as_stored = plan->experts_as_stored,
                  .max_tok = plan->chunk + plan->max_running,
                  .max_seq = td_scheduler_max_seq(plan->max_running),
                  .max_out = plan->max_out,
                  .context_length = o->context_length,
                  .max_deferred = plan->max_deferred,
                  .device_experts = o->num_gpu_experts,
                  .without_mtp = !plan->drafts,
                  .overlap_min_tok = o->disable_two_chunk_overlap ? 0 : TD_OVERLAP_AUTO},
        .available_bytes = room->available_bytes,
        .device_bytes = room->device_bytes,
        .fraction = o->mem_fraction_static,
        .max_total_tokens = o->max_total_tokens,
        .max_running = plan->max_running,
        .bytes_per_vocab_entry = td_sampler_bytes(1) * td_pool_workers(room->expert_pool),
    };
}

td_status td_engine_place(const td_engine_options *o, td_engine_plan *plan, const td_engine_room *room, td_placed_model *out,
                          td_error *err) {
    uint32_t wanted = plan->chunk;
    for (;;) {
        td_placement p = td_engine_placement(o, plan, room);
        td_status    st = td_placed_model_open(&p, out, err);
        if (st == TD_OK) break;
        if (st != TD_ENOMEM || plan->chunk / 2 < CHUNK_MIN) return st;
        plan->chunk /= 2;
    }
    if (err) *err = (td_error){0};
    if (plan->chunk < wanted)
        td_warn("memory is short: prefill goes in chunks of %u tokens instead of %u", plan->chunk, wanted);
    return TD_OK;
}
