#include "model/placed_model.h"

#include <pthread.h>
#include <sched.h>

#include "core/error.h"
#include "model/memory_plan.h"

/* The memory of the card that has least. */
static void device_room(const td_model_room *room, const td_placed_model *m, td_memory_plan_input *in) {
    in->available_bytes = room->device_bytes ? room->device_bytes : UINT64_MAX;
    for (uint32_t i = 0; i < m->n_npus && !room->device_bytes; i++) {
        td_npu_caps caps;
        m->npus[i]->ops->caps(m->npus[i], &caps);
        if (caps.memory_free >= in->available_bytes) continue;
        in->available_bytes = caps.memory_free;
        in->taken_bytes = caps.memory_total - caps.memory_free;
    }
}

uint64_t td_placed_model_image_bytes(const td_model_room *room, const td_placed_model *m) {
    const td_vision_config *c = td_model_vision(m->model);
    const uint64_t          patches = td_model_get_spec(m->model)->max_patches;
    return c ? room->image_cache_bytes + patches * td_vision_patch_values(c) * sizeof(float) : 0;
}

td_status td_placed_model_shares(const td_model_spec *spec, const td_model_room *room, const td_placed_model *m,
                                 td_memory_shares *out, td_error *err) {
    const td_model_memory *memory = &m->memory;
    td_host_budget         host = {.available_bytes = room->available_bytes,
                                   .weight_bytes = memory->slots_least ? memory->expert_weight_bytes : td_model_host_experts(memory),
                                   .saved_bytes = memory->slots_least ? memory->saved_bytes : 0,
                                   .scratch_bytes = memory->host_scratch_bytes +
                                                    room->bytes_per_vocab_entry * td_model_get_config(m->model)->vocab +
                                                    td_placed_model_image_bytes(room, m)};
    td_memory_plan_input   in = {
          .fraction = spec->fraction,
          .weight_bytes = memory->npu_weight_bytes + memory->encoder_weight_bytes,
          .scratch_bytes = memory->device_scratch_bytes + memory->state_bytes + memory->encoder_scratch_bytes,
          .host = &host,
          .kv_bytes_per_page = memory->kv_bytes_per_page,
          .windows = memory->windows,
          .max_total_tokens = spec->max_total_tokens,
          .context_length = td_model_context_length(m->model),
          .max_running = spec->max_running,
          .slot_bytes = memory->slots_least ? memory->slot_bytes : 0,
          .slots_least = memory->slots_least,
          .slots_most = memory->slots};
    if (!memory->slots_least) in.weight_bytes += memory->slots * memory->slot_bytes;
    device_room(room, m, &in);
    if (memory->unified_memory) {
        in.taken_bytes = 0;
        in.available_bytes = host.available_bytes;
        in.weight_bytes += host.weight_bytes;
        in.scratch_bytes += host.scratch_bytes;
        in.host = NULL;
    }
    return td_memory_plan(&in, out, err);
}

static td_status open_card(const td_model_spec *spec, const td_model_room *room, const td_model_probe *probe,
                           td_placed_model *m, td_error *err) {
    td_pool           *own = room->npu_pools ? room->npu_pools[m->n_npus] : NULL;
    td_host_npu_config host = {.pool = own ? own : room->expert_pool, .own_threads = own != NULL};
    td_npu_config      config = {.act_dtype = td_model_act_dtype(spec), .host = &host, .card = spec->first_card + m->n_npus};
    if (probe) {
        host.rows_tap = probe->rows_tap;
        host.rows_tap_user = probe->user;
    }
    cpu_set_t mine;
    bool      known = pthread_getaffinity_np(pthread_self(), sizeof mine, &mine) == 0;
    td_pool_avoid(room->expert_pool); /* for the threads of a card's driver */
    td_status st = td_npu_open(spec->device, &config, &m->npus[m->n_npus], err);
    if (known) pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
    m->n_npus += st == TD_OK;
    return st;
}

static td_status open_parts(const td_model_spec *spec, const td_model_room *room, const td_model_probe *probe,
                            td_placed_model *m, td_error *err) {
    while (m->n_npus < spec->n_cards) TD_TRY(open_card(spec, room, probe, m, err));
    TD_TRY(td_model_open(spec, probe, m->npus, room->expert_pool, &m->model, err));
    td_model_get_memory(m->model, &m->memory);
    m->shares = (td_memory_shares){spec->n_pages, m->memory.slots};
    if (!spec->n_pages) TD_TRY(td_placed_model_shares(spec, room, m, &m->shares, err));
    if (!m->memory.slots_least) return TD_OK;
    td_model_set_slots(m->model, m->shares.n_slots);
    td_model_get_memory(m->model, &m->memory);
    return TD_OK;
}

td_status td_placed_model_open(const td_model_spec *spec, const td_model_room *room, const td_model_probe *probe,
                               td_placed_model *out, td_error *err) {
    *out = (td_placed_model){0};
    td_status st = open_parts(spec, room, probe, out, err);
    if (st != TD_OK) td_placed_model_close(out);
    return st;
}

void td_placed_model_close(td_placed_model *m) {
    td_model_close(m->model);
    while (m->n_npus) {
        td_npu *card = m->npus[--m->n_npus];
        card->ops->close(card);
    }
    *m = (td_placed_model){0};
}
