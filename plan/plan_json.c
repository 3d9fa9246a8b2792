/* Writes a plan as one JSON object; docs/plan.md lists its members. */
#include <jansson.h>
#include <math.h>

#include "plan/plan.h"

static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *machine_json(const td_plan_machine *m) {
    json_t *nodes = json_array(), *cards = json_null();
    for (uint32_t i = 0; i < m->n_nodes; i++) {
        const td_plan_node *n = &m->node[i];
        json_array_append_new(
            nodes, json_pack("{s:i,s:o,s:o,s:o,s:o}", "cores", (int)n->cores, "memory_bytes", number(n->memory_bytes),
                             "read_gbps", number(1e-9 * n->read_bytes_per_s), "int8_gops", number(1e-9 * n->int8_ops_per_s),
                             "f32_gflops", number(1e-9 * n->float_ops_per_s)));
    }
    const td_plan_cards *c = &m->cards;
    if (c->count > 0) {
        json_decref(cards);
        cards =
            json_pack("{s:i,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "count", (int)c->count, "memory_bytes", number(c->memory_bytes),
                      "read_gbps", number(1e-9 * c->read_bytes_per_s), "int8_gops", number(1e-9 * c->int8_ops_per_s),
                      "bf16_gflops", number(1e-9 * c->float_ops_per_s), "link_gbps", number(1e-9 * c->link_bytes_per_s),
                      "link_latency_us", number(1e6 * c->link_s), "handover_us", number(1e6 * c->handover_s));
    }
    return json_pack("{s:s,s:b,s:o,s:s,s:s,s:o,s:o}", "name", m->name, "measured", m->measured, "spread", number(m->spread),
                     "kernels", m->kernels->name, "shares", m->kernels->source, "nodes", nodes, "cards", cards);
}

static json_t *memories_json(const td_plan *p) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_memories; i++) {
        const td_plan_memory *x = &p->memory[i];
        json_array_append_new(
            list, json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "memory", x->name, "capacity_bytes", number(x->capacity),
                            "usable_bytes", number(x->usable), "expert_bytes", number(x->experts), "device_weight_bytes",
                            number(x->weights), "working_bytes", number(x->working), "kv_bytes", number(x->kv),
                            "lacks_bytes", number(x->lacks)));
    }
    return list;
}

static json_t *parts_json(const td_plan_step *s) {
    json_t *list = json_array();
    for (int i = 0; i < TD_PLAN_PARTS; i++) {
        const td_plan_part *x = &s->part[i];
        if (x->time_s <= 0) continue;
        json_array_append_new(
            list, json_pack("{s:s,s:o,s:o,s:o,s:o,s:s}", "part", td_plan_part_name((td_plan_part_kind)i), "ms",
                            number(1e3 * x->time_s), "bytes", number(x->bytes), "int8_ops", number(x->int8_ops), "float_ops",
                            number(x->float_ops), "bound", td_plan_part_bound(x)));
    }
    return list;
}

static json_t *decodes_json(const td_plan *p) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_decodes; i++) {
        const td_plan_decode *d = &p->decode[i];
        json_array_append_new(list, json_pack("{s:i,s:i,s:b,s:o,s:o,s:o,s:o}", "streams", (int)d->streams, "context",
                                              (int)d->context, "fits_kv", d->has_kv, "tpot_ms", number(1e3 * d->tpot_s),
                                              "step_ms", number(1e3 * d->step.step_s), "waits_ms",
                                              number(1e3 * d->step.waited_s), "parts", parts_json(&d->step)));
    }
    return list;
}

static json_t *prefills_json(const td_plan *p) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_prefills; i++) {
        const td_plan_prefill *x = &p->prefill[i];
        json_array_append_new(
            list, json_pack("{s:i,s:i,s:b,s:i,s:o,s:o,s:o,s:o}", "prompt", (int)x->prompt, "chunks", (int)x->chunks,
                            "fits_kv", x->has_kv, "streamed_experts", (int)x->step.streamed, "ttft_ms",
                            number(1e3 * x->ttft_s), "step_ms", number(1e3 * x->step.step_s), "waits_ms",
                            number(1e3 * x->step.waited_s), "parts", parts_json(&x->step)));
    }
    return list;
}

static json_t *streaming_json(const td_plan *p) {
    const td_stream_speeds *v = &p->stream_speeds;
    if (!p->streams) return json_null();
    return json_pack("{s:i,s:o,s:o,s:o,s:o}", "from_rows", (int)p->stream_crossover, "upload_us", number(1e6 * v->upload),
                     "card_row_us", number(1e6 * v->card_row), "cpu_row_us", number(1e6 * v->cpu_row), "cpu_read_us",
                     number(1e6 * v->cpu_read));
}

static json_t *rooms_json(const td_plan *p) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_rooms; i++)
        json_array_append_new(
            list, json_pack("{s:i,s:I}", "tokens", (int)p->room[i].tokens, "streams", (json_int_t)p->room[i].streams));
    return list;
}

static json_t *changes_json(const td_plan *p) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_changes; i++) {
        const td_plan_change *c = &p->change[i];
        json_array_append_new(
            list, json_pack("{s:s,s:b,s:I,s:o,s:o,s:o}", "change", c->change, "fits", c->fits, "kv_tokens_most",
                            (json_int_t)c->kv_tokens, "first_tpot_ms", number(1e3 * c->tpot_s[0]), "last_tpot_ms",
                            number(1e3 * c->tpot_s[1]), "middle_ttft_ms", number(1e3 * c->ttft_s)));
    }
    return list;
}

static json_t *images_json(const td_plan *p) {
    if (!p->images.max_tokens) return json_null();
    return json_pack("{s:i,s:o,s:o,s:o}", "max_tokens", (int)p->images.max_tokens, "encoder_weight_bytes",
                     number(p->images.weights), "encoder_working_bytes", number(p->images.working), "cache_bytes",
                     number(p->images.cache));
}

void td_plan_print_json(const td_plan *p, const td_plan_machine *m, FILE *f) {
    json_t *model =
        json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:o,s:s,s:s,s:i,s:i,s:i,s:i}", "architecture", p->architecture, "layers",
                  (int)p->n_layers, "moe_layers", (int)p->n_moe_layers, "experts", (int)p->n_experts, "experts_in_use",
                  (int)p->experts_in_use, "experts_on_card", (int)p->resident, "expert_hits", number(p->expert_hits),
                  "quantization", p->engine.quantization, "expert_quantization", p->expert_quantization, "deferred",
                  (int)p->engine.model.experts.max_deferred, "max_running_requests", (int)p->engine.model.max_running,
                  "chunked_prefill_size", (int)p->engine.chunk, "context_length", (int)p->context_length);
    json_t *o =
        json_pack("{s:o,s:o,s:b,s:o,s:o,s:I,s:I,s:I,s:o,s:o,s:o,s:I,s:i,s:o,s:o,s:o,s:o,s:o}", "machine", machine_json(m),
                  "model", model, "fits", p->fits, "lack", p->fits ? json_null() : json_string(p->lack.text), "memory",
                  memories_json(p), "kv_tokens", (json_int_t)p->kv_tokens, "kv_tokens_most", (json_int_t)p->kv_tokens_most,
                  "longest_sequence", (json_int_t)p->longest, "room", rooms_json(p), "kv_token_bytes",
                  number(p->kv_token_bytes), "kv_sliding_bytes", number(p->kv_sliding_bytes), "kv_sliding_tokens",
                  (json_int_t)p->kv_sliding_tokens, "kv_window", (int)p->kv_window, "images", images_json(p), "streaming",
                  streaming_json(p), "decode", decodes_json(p), "prefill", prefills_json(p), "changes", changes_json(p));
    json_dumpf(o, f, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fputc('\n', f);
    json_decref(o);
}
