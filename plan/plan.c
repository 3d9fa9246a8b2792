#include "plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "core/plural.h"
#include "engine/engine_placement.h"
#include "model/arch/config_file.h"
#include "model/layer_caches.h"
#include "residency/streamed_experts.h"

#define ROOMY ((uint64_t)1 << 52) /* bytes, more than any model needs */
#define DEVICE_OF_CARDS "apart"   /* a device whose memory is its own; it is planned for here, never run */

/* ---- the model on its pools -------------------------------------------------------------------- */

typedef struct {
    td_engine_config config;
    td_pool         *experts, *cards[TD_SHARDS_MAX];
    uint32_t         n_cards;
    td_model_room    room; /* of the machine that is planned for */
    td_placed_model  placed;
    td_plan_model    model;
} planner;

/* Makes pools of threads that never run anything. The model's memory depends on their number. */
static td_status open_expert_pool(const td_plan_machine *m, td_pool **out, td_error *err) {
    td_worker_place *places = calloc(TD_POOL_WORKERS_MAX, sizeof *places);
    uint32_t         n = 0;
    if (!places) return td_fail(err, TD_ENOMEM, "out of memory for the plan's threads");
    for (uint32_t i = 0; i < m->n_nodes; i++)
        for (uint32_t c = 0; c < (uint32_t)m->node[i].cores && n < TD_POOL_WORKERS_MAX; c++)
            places[n++] = (td_worker_place){.cpu = TD_CPU_ANY, .subpool = i, .node = TD_NODE_ANY};
    td_status st = td_pool_create(places, n, out, err);
    free(places);
    return st;
}

static td_status open_card_pools(planner *p, uint32_t n, td_error *err) {
    td_worker_place place = {.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    for (; p->n_cards < n; p->n_cards++) TD_TRY(td_pool_create(&place, 1, &p->cards[p->n_cards], err));
    return TD_OK;
}

static uint64_t memory_of_nodes(const td_plan_machine *m) {
    double sum = 0;
    for (uint32_t i = 0; i < m->n_nodes; i++) sum += m->node[i].memory_bytes;
    return (uint64_t)sum;
}

/* Sets the request's options for a model whose weights are never read, on cards that need not exist. */
static td_status settle_options(planner *p, const td_plan_request *r, const td_plan_machine *m, td_error *err) {
    td_engine_options o = r->engine;
    uint32_t          has = (uint32_t)m->cards.count;
    o.load_format = "dummy";
    o.device = has ? DEVICE_OF_CARDS : "host";
    if (!r->cards_given && has) o.tensor_parallel_size = has;
    if (o.tensor_parallel_size > (has ? has : 1))
        return td_fail(err, TD_EINVAL, "--tensor-parallel-size %u: the machine has %u card%s", o.tensor_parallel_size, has,
                       td_plural(has));
    TD_TRY(td_engine_resolve(&o, &p->config, err));
    if (has) p->config.model.max_patches = 0; /* no card has a vision encoder yet */
    if (has && p->config.model.kv_int8)
        return td_fail(err, TD_ENOTSUP, "cards keep no KV cache of 8 bits: leave kv-cache-dtype int8 away");
    return TD_OK;
}

static void close_planner(planner *p) {
    td_outline_free(&p->model.whole);
    td_outline_free(&p->model.halves);
    td_placed_model_close(&p->placed);
    while (p->n_cards) td_pool_destroy(p->cards[--p->n_cards]);
    if (p->experts) td_pool_destroy(p->experts);
    *p = (planner){0};
}

/* Places the model in the machine's memory. If it does not fit, writes the reason to out->lack and places it in memory
 * without bound. */
static td_status place(planner *p, td_plan *out, td_error *err) {
    td_engine_config wanted = p->config;
    td_status        st = td_engine_place(&p->config, &p->room, &p->placed, &out->lack);
    out->fits = st == TD_OK;
    if (st != TD_ENOMEM) {
        if (st != TD_OK) *err = out->lack;
        return st;
    }
    td_model_room roomy = p->room;
    p->config = wanted; /* the options as they were, with the whole prefill chunk */
    roomy.available_bytes = ROOMY;
    if (roomy.device_bytes) roomy.device_bytes = ROOMY;
    return td_engine_place(&p->config, &roomy, &p->placed, err);
}

/* Checks how many experts of a layer tokens choose from: the number that was asked for, or all. */
static td_status settle_experts_in_use(const td_plan_request *r, td_plan_model *x, td_error *err) {
    const td_experts_config *c = x->experts;
    x->experts_in_use = r->experts_in_use ? r->experts_in_use : c->n_experts;
    if (!r->experts_in_use || (r->experts_in_use >= c->top_k && r->experts_in_use <= c->n_experts && c->n_layers))
        return TD_OK;
    if (!c->n_layers) return td_fail(err, TD_EINVAL, "experts-in-use: the model has no routed experts");
    return td_fail(err, TD_EINVAL, "experts-in-use %u: the model has %u routed experts a layer, of which a token uses %u",
                   r->experts_in_use, c->n_experts, c->top_k);
}

static td_status outline(planner *p, const td_plan_request *r, td_error *err) {
    const td_model        *m = p->placed.model;
    const td_model_config *c = td_model_get_config(m);
    const td_model_memory *memory = &p->placed.memory;
    td_plan_model         *x = &p->model;
    td_weight_format       plain = c->quant.method == TD_QUANT_NONE ? TD_WEIGHT_BF16 : TD_WEIGHT_F32;
    *x = (td_plan_model){.linear = p->config.model.w8a8 ? TD_WEIGHT_W8A8 : plain,
                         .latent = p->config.model.w8a8 ? TD_WEIGHT_BF16 : plain,
                         .table = TD_WEIGHT_BF16,
                         .act_bytes = td_dtype_bytes(td_model_act_dtype(&p->config.model)),
                         .experts = &td_model_get_spec(m)->experts,
                         .expert_group = td_model_device_expert_group(m),
                         .n_cards = p->config.model.n_cards};
    if (x->experts->n_layers) {
        x->layer_bytes = memory->expert_weight_bytes / x->experts->n_layers;
        td_model_handover_bytes(m, &x->to_host, &x->to_device);
    }
    TD_TRY(settle_experts_in_use(r, x, err));
    x->resident = memory->slots * x->n_cards;
    x->stream_slots = memory->stream_slots * x->n_cards;
    x->max_tok = p->config.model.max_tok;
    x->hits = r->expert_hits > 0 ? r->expert_hits : fmin(1, x->resident / x->experts_in_use);
    if (r->expert_hits > 0 && !memory->slots)
        return td_fail(err, TD_EINVAL, "expert-hits: no experts move: add --num-gpu-experts");
    TD_TRY(td_model_outline(m, 1, &x->whole, err));
    return td_model_halves(m, TD_CHUNK_MAX) > 1 ? td_model_outline(m, TD_HALVES, &x->halves, err) : TD_OK;
}

static td_status open_planner(planner *p, const td_plan_request *r, const td_plan_machine *m, td_plan *out, td_error *err) {
    *p = (planner){0};
    TD_TRY(settle_options(p, r, m, err));
    td_status st = open_expert_pool(m, &p->experts, err);
    if (st == TD_OK && m->cards.count > 0) st = open_card_pools(p, p->config.model.n_cards, err);
    p->room = (td_model_room){.expert_pool = p->experts,
                              .npu_pools = p->n_cards ? p->cards : NULL,
                              .available_bytes = memory_of_nodes(m),
                              .device_bytes = (uint64_t)(m->cards.count > 0 ? m->cards.memory_bytes : 0)};
    p->room.image_cache_bytes = p->config.image_cache_bytes;
    if (st == TD_OK) p->room.bytes_per_vocab_entry = td_engine_bytes_per_vocab_entry(p->experts);
    if (st == TD_OK) st = place(p, out, err);
    if (st == TD_OK) st = outline(p, r, err);
    if (st != TD_OK) close_planner(p);
    return st;
}

/* ---- memories ---------------------------------------------------------------------------------- */

static void settle_memory(td_plan_memory *x, double fraction) {
    double wanted = x->experts + x->weights + x->working + x->kv;
    x->usable = x->capacity * fraction;
    x->lacks = wanted > x->usable ? wanted - x->usable : 0;
}

static void count_sliding(const planner *p, td_plan *out) {
    const td_window_cost w = p->placed.memory.windows;
    if (!w.page_bytes) return;
    out->kv_window = td_model_window(p->placed.model);
    out->kv_sliding_bytes = (double)w.page_bytes / TD_KV_PAGE;
    out->kv_sliding_tokens = (uint64_t)td_window_count(w, (uint32_t)(out->kv_tokens / TD_KV_PAGE)) * TD_KV_PAGE;
}

static void count_images(const planner *p, td_plan *out) {
    const td_model_memory *memory = &p->placed.memory;
    if (!td_model_vision(p->placed.model)) return;
    out->images.weights = (double)memory->encoder_weight_bytes;
    out->images.working = (double)memory->encoder_scratch_bytes;
    out->images.cache = (double)td_placed_model_image_bytes(&p->room, &p->placed);
    out->images.max_tokens = td_model_get_spec(p->placed.model)->max_patches / (TD_VISION_MERGE * TD_VISION_MERGE);
}

static void list_memories(const planner *p, const td_plan_machine *m, td_plan *out) {
    const td_model_memory *memory = &p->placed.memory;
    double                 fraction = p->config.model.fraction, n = m->n_nodes;
    uint64_t               vocab = td_model_get_config(p->placed.model)->vocab;
    double                 sampling = (double)p->room.bytes_per_vocab_entry * (double)vocab;
    double                 kv = (double)td_model_kv_bytes(memory, (uint32_t)(out->kv_tokens / TD_KV_PAGE));
    out->kv_token_bytes = (double)(memory->kv_bytes_per_page + memory->windows.page_bytes) / TD_KV_PAGE;
    count_sliding(p, out);
    count_images(p, out);
    if (!out->fits) kv = (double)td_model_kv_bytes(memory, 1); /* a plan that does not fit is shown with one page */
    for (uint32_t i = 0; i < m->n_nodes; i++) {
        td_plan_memory *x = &out->memory[out->n_memories++];
        *x = (td_plan_memory){.capacity = m->node[i].memory_bytes,
                              .experts = (double)td_model_host_experts(memory) / n,
                              .working = ((double)memory->host_scratch_bytes + sampling + out->images.cache) / n};
        if (memory->unified_memory) {
            x->experts += (double)(memory->slots * memory->slot_bytes) / n;
            x->weights = ((double)memory->npu_weight_bytes + out->images.weights) / n;
            x->working += ((double)memory->device_scratch_bytes + out->images.working) / n;
            x->kv = kv / n;
        }
        snprintf(x->name, sizeof x->name, "node %u", i);
        settle_memory(x, fraction);
    }
    for (uint32_t i = 0; i < p->n_cards; i++) {
        td_plan_memory *x = &out->memory[out->n_memories++];
        *x = (td_plan_memory){.capacity = m->cards.memory_bytes,
                              .experts = (double)(memory->slots * memory->slot_bytes),
                              .weights = (double)memory->npu_weight_bytes,
                              .working = (double)memory->device_scratch_bytes,
                              .kv = kv};
        snprintf(x->name, sizeof x->name, "card %u", i);
        settle_memory(x, fraction);
    }
    for (uint32_t i = 0; i < out->n_memories && out->fits; i++) /* the nodes may fit together while one of them does not */
        if (out->memory[i].lacks > 0) {
            out->fits = false;
            (void)td_fail(&out->lack, TD_ENOMEM, "%s lacks %.2f GiB%s", out->memory[i].name,
                          out->memory[i].lacks / (1 << 30),
                          i < m->n_nodes ? ": every node has an equal share of every expert" : " for streamed experts");
        }
}

static td_status count_kv(planner *p, td_plan *out, td_error *err) {
    td_model_spec    all = p->config.model;
    td_memory_shares most;
    out->longest = out->context_length;
    if (!out->fits) return TD_OK;
    out->kv_tokens = (uint64_t)p->placed.shares.n_pages * TD_KV_PAGE;
    all.max_total_tokens = 0;
    all.max_running = UINT32_MAX;
    TD_TRY(td_placed_model_shares(&all, &p->room, &p->placed, &most, err));
    out->kv_tokens_most = (uint64_t)most.n_pages * TD_KV_PAGE;
    if (out->kv_tokens < out->longest) out->longest = out->kv_tokens;
    return TD_OK;
}

/* ---- times ------------------------------------------------------------------------------------- */

static uint64_t pages_of(uint64_t tokens) {
    return (tokens + TD_KV_PAGE - 1) / TD_KV_PAGE;
}

/* Lists each length once. */
static void add_rooms(const td_plan_list *lengths, td_plan *out) {
    for (uint32_t i = 0; i < lengths->n; i++) {
        bool known = lengths->at[i] >= out->context_length;
        for (uint32_t k = 0; k < out->n_rooms; k++) known |= out->room[k].tokens == lengths->at[i];
        if (known) continue;
        out->room[out->n_rooms].tokens = lengths->at[i];
        out->room[out->n_rooms++].streams = out->kv_tokens_most / (pages_of((uint64_t)lengths->at[i] + 1) * TD_KV_PAGE);
    }
}

/* Replaces 0 by max_running, unless that is in the list already. */
static bool is_there_already(const td_plan_list *streams, uint32_t i, uint32_t max_running) {
    for (uint32_t k = 0; k < i && !streams->at[i]; k++)
        if (streams->at[k] == max_running) return true;
    return false;
}

static void plan_decodes(const planner *p, const td_plan_request *r, const td_plan_machine *m, td_plan *out) {
    for (uint32_t i = 0; i < r->contexts.n; i++)
        for (uint32_t j = 0; j < r->streams.n; j++) {
            uint32_t streams = r->streams.at[j] ? r->streams.at[j] : out->engine.model.max_running,
                     context = r->contexts.at[i];
            if (is_there_already(&r->streams, j, out->engine.model.max_running)) continue;
            if (context >= out->context_length || streams > out->engine.model.max_running) {
                out->n_left_out++;
                continue;
            }
            td_plan_decode *d = &out->decode[out->n_decodes++];
            td_plan_rows    rows = {.n_seq = streams,
                                    .n_new = 1,
                                    .context = context,
                                    .n_out = streams,
                                    .n_halves = td_model_halves(p->placed.model, streams)};
            *d = (td_plan_decode){.streams = streams,
                                  .context = context,
                                  .has_kv = streams * pages_of((uint64_t)context + 1) * TD_KV_PAGE <= out->kv_tokens};
            td_plan_step_cost(m, &p->model, &rows, &d->step);
            d->tpot_s = d->step.step_s + m->step_s;
        }
}

static void add_step(td_plan_step *sum, const td_plan_step *x) {
    for (int i = 0; i < TD_PLAN_PARTS; i++) {
        td_plan_part       *s = &sum->part[i];
        const td_plan_part *y = &x->part[i];
        s->n += y->n;
        s->bytes += y->bytes;
        s->int8_ops += y->int8_ops;
        s->float_ops += y->float_ops;
        s->read_s += y->read_s;
        s->int8_s += y->int8_s;
        s->float_s += y->float_s;
        s->fixed_s += y->fixed_s;
        s->time_s += y->time_s;
    }
    if (x->streamed > sum->streamed) sum->streamed = x->streamed;
    sum->step_s += x->step_s;
    sum->waited_s += x->waited_s;
}

static void plan_prefills(const planner *p, const td_plan_request *r, const td_plan_machine *m, td_plan *out) {
    for (uint32_t i = 0; i < r->prompts.n; i++) {
        uint32_t prompt = r->prompts.at[i];
        if (prompt >= out->context_length) {
            out->n_left_out++;
            continue;
        }
        td_plan_prefill *x = &out->prefill[out->n_prefills++];
        *x = (td_plan_prefill){.prompt = prompt, .has_kv = pages_of((uint64_t)prompt + 1) * TD_KV_PAGE <= out->kv_tokens};
        for (uint32_t at = 0, n; at < prompt; at += n) {
            td_plan_step step;
            n = prompt - at < p->config.chunk ? prompt - at : p->config.chunk;
            td_plan_rows rows = {.n_seq = 1,
                                 .n_new = n,
                                 .context = at,
                                 .n_out = at + n == prompt,
                                 .n_halves = td_model_halves(p->placed.model, n)};
            td_plan_step_cost(m, &p->model, &rows, &step);
            add_step(&x->step, &step);
            x->chunks++;
        }
        x->ttft_s = x->step.step_s + x->chunks * m->step_s;
    }
}

/* ---- the whole --------------------------------------------------------------------------------- */

static void describe_streamed(const planner *p, const td_plan_machine *m, td_plan *out) {
    if (!p->model.stream_slots) return;
    const td_stream_shape shape = td_plan_stream_shape(&p->model);
    out->streams = true;
    out->stream_speeds = td_plan_stream_speeds(m, &p->model);
    out->stream_crossover = td_stream_crossover(&shape, &out->stream_speeds, p->model.max_tok);
}

static void describe(const planner *p, const td_plan_machine *m, td_plan *out) {
    const td_model_config *c = td_model_get_config(p->placed.model);
    snprintf(out->architecture, sizeof out->architecture, "%s", c->arch_name);
    out->n_layers = c->n_layers;
    out->n_moe_layers = td_moe_layers_in(c, (td_layer_range){0, c->n_layers});
    out->n_cards = p->n_cards;
    out->engine = p->config;
    if (p->model.experts->n_layers) {
        out->n_experts = p->model.experts->n_experts;
        out->experts_in_use = (uint32_t)p->model.experts_in_use;
        out->resident = (uint32_t)p->model.resident;
        out->expert_hits = out->resident ? p->model.hits : 0;
        describe_streamed(p, m, out);
    }
    out->context_length = td_model_context_length(p->placed.model);
    out->expert_quantization = td_model_expert_quantization(p->placed.model);
}

static td_status plan_once(const td_plan_request *r, const td_plan_machine *m, td_plan *out, td_error *err) {
    planner p;
    *out = (td_plan){0};
    TD_TRY(open_planner(&p, r, m, out, err));
    describe(&p, m, out);
    td_status st = count_kv(&p, out, err);
    if (st == TD_OK) {
        list_memories(&p, m, out);
        add_rooms(&r->contexts, out);
        add_rooms(&r->prompts, out);
        plan_decodes(&p, r, m, out);
        plan_prefills(&p, r, m, out);
    }
    close_planner(&p);
    return st;
}

static void keep_change(const td_plan *p, td_plan_change *c) {
    c->fits = p->fits;
    c->kv_tokens = p->kv_tokens_most;
    c->tpot_s[0] = p->n_decodes ? p->decode[0].tpot_s : NAN;
    c->tpot_s[1] = p->n_decodes ? p->decode[p->n_decodes - 1].tpot_s : NAN;
    c->ttft_s = p->n_prefills ? p->prefill[p->n_prefills / 2].ttft_s : NAN;
}

/* Gives every node the same increase: nodes have equal shares, so one fast node would wait for the others. */
static void more_bandwidth(td_plan_machine *m, char change[96]) {
    bool known = true;
    for (uint32_t i = 0; i < m->n_nodes; i++) known &= m->node[i].channels > 0;
    for (uint32_t i = 0; i < m->n_nodes; i++) {
        double *channels = &m->node[i].channels, factor = known ? (*channels + 1) / *channels : 1.1;
        m->node[i].read_bytes_per_s *= factor;
        *channels += known;
    }
    snprintf(change, 96, known ? "one memory channel more on every node" : "a tenth more read bandwidth on every node");
}

/* Returns the next larger number of cards that divides the model and its experts that move, or 0 if there is none. */
static uint32_t more_cards(const td_plan_request *r, uint32_t n, td_error *err) {
    td_model_config *c = malloc(sizeof *c);
    uint32_t         more = 0, moving = r->engine.num_gpu_experts;
    td_error         why = {0};
    if (moving == TD_GPU_EXPERTS_AUTO) moving = 0;
    if (c && td_model_config_read(r->engine.model_path, r->engine.model_override_json, c, err) == TD_OK)
        for (uint32_t i = n + 1; i <= TD_SHARDS_MAX && !more; i++)
            if (td_shard_check(c, i, false, &why) == TD_OK && moving % i == 0) more = i;
    free(c);
    return more;
}

static td_status try_change(const td_plan_request *r, const td_plan_machine *m, td_plan *scratch, td_plan *out,
                            td_error *err) {
    td_plan_change *c = &out->change[out->n_changes];
    TD_TRY(plan_once(r, m, scratch, err));
    keep_change(scratch, c);
    out->n_changes++;
    return TD_OK;
}

static td_status plan_changes(const td_plan_request *r, const td_plan_machine *m, td_plan *out, td_error *err) {
    td_plan         *scratch = malloc(sizeof *scratch);
    td_plan_machine *other = malloc(sizeof *other);
    td_status        st = scratch && other ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the plan");
    if (st == TD_OK) {
        *other = *m;
        more_bandwidth(other, out->change[out->n_changes].change);
        st = try_change(r, other, scratch, out, err);
    }
    uint32_t cards = st == TD_OK && out->n_cards ? more_cards(r, out->n_cards, err) : 0;
    if (cards && (cards == 1 || m->cards.sum_bytes_per_s > 0)) {
        td_plan_request with = *r;
        *other = *m;
        other->cards.count = cards;
        with.cards_given = true;
        with.engine.tensor_parallel_size = cards;
        snprintf(out->change[out->n_changes].change, sizeof out->change->change, "%u card%s instead of %u", cards,
                 td_plural(cards), out->n_cards);
        st = try_change(&with, other, scratch, out, err);
    }
    free(scratch);
    free(other);
    return st;
}

td_status td_plan_make(const td_plan_request *r, const td_plan_machine *m, td_plan *out, td_error *err) {
    TD_TRY(plan_once(r, m, out, err));
    return plan_changes(r, m, out, err);
}
