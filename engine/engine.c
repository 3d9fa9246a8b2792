/* An engine's life, and what others ask of it. The steps are in step/. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/log/log.h"
#include "core/plural.h"
#include "core/threads/thread.h"
#include "engine/engine_impl.h"
#include "engine/engine_placement.h"
#include "engine/kv/page_fingerprint.h"
#include "kernels/kernels.h"
#include "kernels/machine/roofline.h"
#include "text/parse/answer_parser.h"

#define TEMPLATE_BYTES ((size_t)4 << 20)

/* ---- opening --------------------------------------------------------------------------------- */

static td_status measure_pool(td_pool *pool, const td_machine *m, const char *whose, td_bounds *out, td_error *err) {
    TD_TRY(td_roofline_measure(pool, m, out, err));
    td_info(TD_FIGURE("event", "machine") ": " TD_FIGURE("tier", "%s") " read " TD_FIGURE("read_gb_per_s", "%.1f") " GB/s, int8 "
            TD_FIGURE("int8_gop_per_s", "%.0f") " GOP/s, f32 " TD_FIGURE("f32_gflop_per_s", "%.0f") " GFLOP/s with "
            TD_FIGURE("threads", "%u") " threads",
            whose, out->read_bytes_per_s * 1e-9, out->int8_ops_per_s * 1e-9, out->f32_ops_per_s * 1e-9, td_pool_workers(pool));
    return TD_OK;
}

static td_status measure_bounds(td_engine *e, const td_machine *m, td_error *err) {
    TD_TRY(measure_pool(e->expert_pool, m, e->n_npu_pools ? "the expert threads" : "the threads of both tiers",
                        &e->info.expert_bounds, err));
    e->info.device_bounds = e->info.expert_bounds;
    if (!e->n_npu_pools) return TD_OK;
    td_bounds *device = &e->info.device_bounds; /* the cards' together */
    TD_TRY(measure_pool(e->npu_pools[0], m, "the device's threads", device, err));
    device->read_bytes_per_s *= e->n_npu_pools;
    device->int8_ops_per_s *= e->n_npu_pools;
    device->f32_ops_per_s *= e->n_npu_pools;
    return TD_OK;
}

/* One pool of device threads for each card, all of the same size. */
static td_status open_npu_pools(td_engine *e, const td_thread_layout *layout, uint32_t n_cards, td_error *err) {
    if (!layout->n_npu) return TD_OK;
    if (layout->n_npu % n_cards)
        return td_fail(err, TD_EINVAL, "npu-threads %u cannot be shared by tensor-parallel-size %u cards: give %u",
                       layout->n_npu, n_cards, (layout->n_npu / n_cards + 1) * n_cards);
    uint32_t each = layout->n_npu / n_cards;
    for (; e->n_npu_pools < n_cards; e->n_npu_pools++)
        TD_TRY(td_pool_create(layout->npu + e->n_npu_pools * each, each, &e->npu_pools[e->n_npu_pools], err));
    return TD_OK;
}

static td_status open_pools(td_engine *e, const td_engine_options *o, uint64_t *available_bytes, td_error *err) {
    td_machine        machine;
    td_thread_layout *layout = calloc(1, sizeof *layout);
    if (!layout) return td_fail(err, TD_ENOMEM, "out of memory for the thread layout");
    td_thread_wishes wishes = {.cpuinfer = o->cpuinfer, .subpool_count = o->subpool_count, .npu_threads = o->npu_threads};
    td_npu_wish(e->config.model.device, e->config.model.first_card, e->config.model.n_cards, &wishes);
    td_status st = td_thread_layout_here(td_kernels_here()->read, &wishes, layout, &machine, err);
    if (st == TD_OK) {
        *available_bytes = machine.available_bytes;
        td_info(
            "machine: %u core%s, %u NUMA node%s, %.1f of %.1f GiB memory available; %u expert thread%s in %u subpool%s, %u "
            "device thread%s",
            machine.n_cores, td_plural(machine.n_cores), machine.n_nodes, td_plural(machine.n_nodes),
            (double)machine.available_bytes / (1 << 30), (double)machine.memory_bytes / (1 << 30), layout->n_experts,
            td_plural(layout->n_experts), layout->n_subpools, td_plural(layout->n_subpools), layout->n_npu,
            td_plural(layout->n_npu));
        st = td_pool_create(layout->experts, layout->n_experts, &e->expert_pool, err);
    }
    if (st == TD_OK) st = open_npu_pools(e, layout, e->config.model.n_cards, err);
    if (st == TD_OK && o->measure_bounds) st = measure_bounds(e, &machine, err);
    free(layout);
    return st;
}

/* The template of a file, of the tokenizer's folder, or of the model's generation, in this order. */
static td_status open_chat_template(td_engine *e, const td_engine_options *o, const char *model_type, td_error *err) {
    td_error  why = {0};
    td_status st;
    if (o->chat_template) {
        char  *source = NULL;
        size_t len = 0;
        if (td_file_read(o->chat_template, TEMPLATE_BYTES, &source, &len, err) != TD_OK)
            return td_fail_within(err, "chat-template");
        st = td_chat_template_compile(source, len, &e->chat_template, err);
        free(source);
        return st == TD_OK ? st : td_fail_within(err, "chat-template %s", o->chat_template);
    }
    const char *source = e->tokenizer ? td_tokenizer_chat_template(e->tokenizer) : NULL;
    st = source ? td_chat_template_compile(source, strlen(source), &e->chat_template, &why)
                : td_chat_template_of_model(model_type, &e->chat_template, &why);
    if (st == TD_ENOMEM) return td_fail(err, st, "the chat template: %s", why.text);
    if (st != TD_OK) e->chat_template = NULL;
    if (st != TD_OK && source)
        td_warn("the model's chat template cannot be used, so there are no chat completions: %s", why.text);
    return TD_OK;
}

td_status td_engine_open_text(td_engine *e, const td_engine_options *o, const td_model_config *c, td_error *err) {
    uint32_t    vocab = c->vocab;
    td_error    why = {0};
    const char *dir = o->tokenizer_path ? o->tokenizer_path : o->model_path;
    td_status   st = td_tokenizer_open(dir, &e->tokenizer, &why);
    if (st == TD_ENOTFOUND && e->config.model.load_dummy) {
        td_warn("no tokenizer in %s: prompts must be token ids, and there is no text", dir);
        e->tokenizer = NULL;
    } else if (st != TD_OK) {
        return td_fail(err, st, "%s", why.text);
    } else if (td_tokenizer_vocab_size(e->tokenizer) > vocab && !o->tokenizer_path) {
        return td_fail(err, TD_EFORMAT,
                       "the tokenizer in %s has ids up to %zu, but the model's vocab_size is %u: give the tokenizer of this "
                       "model (tokenizer-path)",
                       dir, td_tokenizer_vocab_size(e->tokenizer) - 1, vocab);
    } else if (td_tokenizer_vocab_size(e->tokenizer) > vocab) {
        td_warn("the tokenizer in %s has %zu ids, the model %u: requests with an id beyond the model's are refused", dir,
                td_tokenizer_vocab_size(e->tokenizer), vocab);
    }
    return open_chat_template(e, o, c->model_type, err);
}

static td_status open_model(td_engine *e, uint64_t available_bytes, td_error *err) {
    td_model_room room = {.expert_pool = e->expert_pool,
                          .npu_pools = e->n_npu_pools ? e->npu_pools : NULL,
                          .available_bytes = available_bytes,
                          .image_cache_bytes = e->config.image_cache_bytes,
                          .bytes_per_vocab_entry = td_engine_bytes_per_vocab_entry(e->expert_pool)};
    TD_TRY(td_engine_place(&e->config, &room, &e->placed, err));
    const td_model_config *c = td_model_get_config(e->placed.model);
    if (e->config.drafts && !c->n_mtp_layers)
        return td_fail(err, TD_ENOTSUP,
                       "speculative-algorithm NEXTN: the model in %s has no multi-token-prediction layer that could draft",
                       e->model_path);
    const td_model_memory *memory = &e->placed.memory;
    /* The device's figures are one card's where each card has a memory of its own. */
    uint64_t cards = memory->unified_memory ? 1 : e->placed.n_npus;
    uint64_t npu_bytes =
                 memory->encoder_weight_bytes + cards * (memory->npu_weight_bytes + memory->slots * memory->slot_bytes),
             kv_bytes = cards * (td_model_kv_bytes(memory, e->placed.shares.n_pages) + memory->state_bytes);
    uint64_t host_experts = td_model_host_experts(memory);
    uint64_t scratch_bytes = cards * memory->device_scratch_bytes + memory->host_scratch_bytes +
                             memory->encoder_scratch_bytes + td_placed_model_image_bytes(&room, &e->placed);
    td_info("memory: %.2f GiB device tier, %.2f GiB experts, %.2f GiB working memory, %.2f GiB KV for %llu tokens",
            (double)npu_bytes / (1 << 30), (double)host_experts / (1 << 30), (double)scratch_bytes / (1 << 30),
            (double)kv_bytes / (1 << 30), (unsigned long long)e->placed.shares.n_pages * TD_KV_PAGE);
    if (memory->windows.page_bytes)
        td_info("layers with a sliding window have room for %llu of these tokens, and give back those behind their windows",
                (unsigned long long)td_window_count(memory->windows, e->placed.shares.n_pages) * TD_KV_PAGE);
    e->info.weight_bytes = npu_bytes + host_experts;
    e->info.expert_weight_bytes = host_experts;
    e->info.kv_bytes = kv_bytes;
    e->info.scratch_bytes = scratch_bytes;
    return TD_OK;
}

static void tell_residency(const td_engine *e) {
    const td_model_config *c = td_model_get_config(e->placed.model);
    td_model_work          work;
    td_model_get_work(e->placed.model, &work);
    const uint32_t all = c->n_experts * td_moe_layers_in(c, (td_layer_range){0, c->n_layers + c->n_mtp_layers});
    if (work.residency.slots)
        td_info("experts that move: the device has room for " TD_FIGURE("expert_slots", "%u") " of %u, those of most use; the "
                "CPU has %s",
                work.residency.slots, all, work.residency.drops ? "the others" : "them all");
}

static void fill_limits_and_info(td_engine *e, uint32_t n_pages) {
    const td_model_config *c = td_model_get_config(e->placed.model);
    e->limits = (td_request_limits){.tokenizer = e->tokenizer,
                                    .vocab = c->vocab,
                                    .context_length = td_model_context_length(e->placed.model),
                                    .image_token = e->images.loader ? c->vision.token : UINT32_MAX,
                                    .kv_tokens = (uint64_t)n_pages * TD_KV_PAGE,
                                    .eos_ids = c->eos_ids,
                                    .n_eos = c->n_eos};
    td_engine_info *i = &e->info;
    e->placed.npus[0]->ops->caps(e->placed.npus[0], &e->caps);
    i->architecture = c->arch_name;
    i->model_type = c->model_type;
    i->model_path = e->model_path;
    i->device = e->caps.text;
    i->quantization = e->config.quantization;
    i->expert_quantization = td_model_expert_quantization(e->placed.model);
    i->expert_kernel = td_model_expert_kernel(e->placed.model);
    const td_experts *experts = td_model_get_experts(e->placed.model);
    i->n_expert_nodes = experts ? td_experts_nodes(experts, i->expert_nodes) : 0;
    i->vocab_size = c->vocab;
    i->context_length = e->limits.context_length;
    i->max_total_tokens = e->limits.kv_tokens;
    i->kv_page_tokens = TD_KV_PAGE;
    i->max_running_requests = e->config.model.max_running;
    i->max_queued_requests = e->config.max_queued;
    i->chunked_prefill_size = e->config.chunk;
    i->bos_id = c->bos_id;
    i->image_token = e->limits.image_token;
    i->default_temperature = c->temperature;
    i->default_top_p = c->top_p;
    i->default_repetition_penalty = c->repetition_penalty;
    i->default_top_k = c->top_k_sampling;
    e->stats.s.kv_tokens_total = e->limits.kv_tokens;
}

static td_status open_windows(td_engine *e, uint32_t n_pages, td_error *err) {
    const td_model *m = e->placed.model;
    if (!td_model_get_spec(m)->gives_windows) return TD_OK;
    return td_window_pages_open(&e->windows, td_window_count(e->placed.memory.windows, n_pages), td_model_window(m),
                                &e->cache, err);
}

/* Open what the step loop works with. */
static td_status open_steps(td_engine *e, uint32_t n_pages, const td_cache_listener *listener, td_error *err) {
    uint32_t max_running = e->config.model.max_running, longest = e->limits.context_length;
    if (longest > e->limits.kv_tokens) longest = (uint32_t)e->limits.kv_tokens;
    TD_TRY(td_kv_pages_open(&e->pages, n_pages, err));
    TD_TRY(td_prefix_cache_open(&e->cache, &e->pages, e->config.prefix_cache, err));
    if (listener) TD_TRY(td_prefix_cache_listen(&e->cache, listener, err));
    const td_model_spec *spec = td_model_get_spec(e->placed.model);
    td_state_slots      *states = spec->state_slots ? &e->states : NULL;
    if (states) TD_TRY(td_state_slots_open(states, spec->state_slots, spec->open_slots, &e->cache, err));
    TD_TRY(open_windows(e, n_pages, err));
    td_scheduler_config sc = {.max_running = max_running,
                              .chunk = e->config.chunk,
                              .max_seq_tokens = longest,
                              .max_step_s = 1e-3 * e->config.max_step_ms,
                              .least_rows = td_model_full_step(td_model_get_config(e->placed.model)),
                              .aside = spec->aside_tok < e->config.chunk ? spec->aside_tok : 0,
                              .mixed = e->config.mixed_chunk,
                              .one_form_from = td_model_one_form_from(e->placed.model)};
    td_scheduler_caches caches = {.cache = &e->cache,
                                  .states = states,
                                  .windows = spec->gives_windows ? &e->windows : NULL,
                                  .images = &e->images.cache,
                                  .exchange = &e->exchange};
    TD_TRY(td_scheduler_open(&e->scheduler, &sc, &caches, e->inbox, err));
    uint32_t workers = td_pool_workers(e->expert_pool);
    e->samplers = calloc(workers, sizeof *e->samplers);
    e->jobs = calloc((size_t)e->config.chunk + max_running, sizeof *e->jobs);
    e->job_rows = calloc(e->config.model.max_out, sizeof *e->job_rows);
    e->job_best = calloc(e->config.model.max_out, sizeof *e->job_best);
    e->job_logprobs = calloc(e->config.model.max_out, sizeof *e->job_logprobs);
    e->results = calloc(max_running, sizeof *e->results);
    if (!e->samplers || !e->jobs || !e->job_rows || !e->job_best || !e->job_logprobs || !e->results)
        return td_fail(err, TD_ENOMEM, "out of memory for the engine");
    TD_TRY(td_drafts_open(e, err));
    for (; e->n_samplers < workers; e->n_samplers++)
        TD_TRY(td_sampler_open(&e->samplers[e->n_samplers], e->limits.vocab, err));
    return TD_OK;
}

static void wake(void *user) {
    td_engine *e = user;
    td_waker_wake(e->waker);
}

static td_status open_page_store(td_engine *e, const td_engine_options *o, uint64_t source_hash, td_error *err) {
    if (!o->page_store) return TD_OK;
    td_model *m = e->placed.model;
    if (td_model_recurrent(m))
        return td_fail(err, TD_ENOTSUP, "kv-store: states of recurrent layers are not shared yet: leave it out");
    if (e->config.drafts) /* pages are sent before the MTP layer has computed its rows of them */
        return td_fail(err, TD_ENOTSUP, "kv-store: pages are not shared with speculative-algorithm yet: leave one out");
    uint32_t       longest = e->scheduler.config.max_seq_tokens;
    td_page_format f = {.page_tokens = TD_KV_PAGE,
                        .max_pages = (longest + TD_KV_PAGE - 1) / TD_KV_PAGE,
                        .page_bytes = td_model_page_bytes(m),
                        .wake = wake,
                        .wake_user = e};
    TD_TRY(td_model_prepare_page_copies(m, err));
    TD_TRY(td_page_fingerprint_take(&e->config, m, source_hash, &f.fingerprint, err));
    return td_page_exchange_open(&e->exchange, o->page_store, &f, m, &e->cache, err);
}

static td_status open_engine(td_engine *e, const td_engine_options *o, td_error *err) {
    uint64_t available_bytes = 0;
    TD_TRY(td_engine_resolve(o, &e->config, err));
    if (!(e->model_path = strdup(o->model_path))) return td_fail(err, TD_ENOMEM, "out of memory for the engine");
    TD_TRY(td_stats_open(&e->stats, err));
    e->stats_open = true;
    TD_TRY(open_pools(e, o, &available_bytes, err));
    td_images_read_rule(e);
    TD_TRY(open_model(e, available_bytes, err));
    uint32_t n_pages = e->placed.shares.n_pages;
    TD_TRY(td_engine_open_text(e, o, td_model_get_config(e->placed.model), err));
    uint64_t source_hash = o->page_store ? td_model_source_hash(e->placed.model) : 0;
    TD_TRY(td_model_load(e->placed.model, n_pages, err));
    TD_TRY(td_images_open(e, err));
    fill_limits_and_info(e, n_pages);
    tell_residency(e);
    TD_TRY(td_waker_create(&e->waker, err));
    TD_TRY(td_inbox_create(e->waker, e->config.max_queued, e->config.random_seed, &e->inbox, err));
    TD_TRY(open_steps(e, n_pages, o->cache_listener, err));
    TD_TRY(open_page_store(e, o, source_hash, err));
    TD_TRY(td_thread_start(&e->thread, "engine", td_engine_thread, e, err));
    e->thread_started = true;
    return TD_OK;
}

td_status td_engine_open(const td_engine_options *o, td_engine **out, td_error *err) {
    *out = NULL;
    td_engine *e = calloc(1, sizeof *e);
    if (!e) return td_fail(err, TD_ENOMEM, "out of memory for the engine");
    pthread_mutex_init(&e->trie_lock, NULL);
    td_status st = open_engine(e, o, err);
    if (st != TD_OK) {
        td_engine_close(e, 0);
        return st;
    }
    *out = e;
    return TD_OK;
}

void td_engine_close(td_engine *e, double grace_s) {
    if (!e) return;
    if (e->thread_started) {
        td_inbox_shut(e->inbox, td_now_s() + (grace_s > 0 ? grace_s : 0));
        pthread_join(e->thread, NULL);
    }
    td_page_exchange_close(&e->exchange);
    td_inbox_close(e->inbox);
    td_waker_release(e->waker);
    for (uint32_t i = 0; i < e->n_samplers; i++) td_sampler_close(&e->samplers[i]);
    free(e->samplers);
    free(e->jobs);
    free(e->job_rows);
    free(e->job_best);
    free(e->job_logprobs);
    free(e->results);
    td_drafts_close(e);
    td_scheduler_close(&e->scheduler);
    td_images_close(e);
    td_state_slots_close(&e->states);
    td_window_pages_close(&e->windows);
    td_prefix_cache_close(&e->cache);
    td_kv_pages_close(&e->pages);
    td_placed_model_close(&e->placed);
    td_chat_template_free(e->chat_template);
    td_tokenizer_close(e->tokenizer);
    while (e->n_npu_pools) td_pool_destroy(e->npu_pools[--e->n_npu_pools]);
    td_vocab_trie_release(e->trie);
    td_marker_tokens_release(e->markers);
    pthread_mutex_destroy(&e->trie_lock);
    if (e->expert_pool) td_pool_destroy(e->expert_pool);
    if (e->stats_open) td_stats_close(&e->stats);
    free(e->model_path);
    free(e);
}

/* ---- asking ---------------------------------------------------------------------------------- */

void td_engine_get_info(const td_engine *e, td_engine_info *info) {
    *info = e->info;
}

const td_tokenizer *td_engine_tokenizer(const td_engine *e) {
    return e->tokenizer;
}

const td_chat_template *td_engine_chat_template(const td_engine *e) {
    return e->chat_template;
}

void td_engine_get_stats(td_engine *e, td_engine_stats *s) {
    pthread_mutex_lock(&e->stats.lock);
    *s = e->stats.s;
    pthread_mutex_unlock(&e->stats.lock);
    td_model_work work; /* with what is done of the step under way: a long one takes many seconds */
    td_model_get_work(e->placed.model, &work);
    s->device = work.device;
    s->experts = work.experts;
    s->residency = work.residency;
    s->queued = td_inbox_waiting(e->inbox, &s->queued_tokens);
    s->has_page_store = e->exchange.store != NULL;
    if (s->has_page_store) e->exchange.store->stats(e->exchange.store->user, &s->page_store);
}

uint32_t td_engine_get_cards(td_engine *e, td_card_stats out[TD_CARDS_MAX]) {
    return td_model_get_cards(e->placed.model, out);
}

bool td_engine_is_lost(td_engine *e, td_error *why) {
    return td_model_is_lost(e->placed.model, why);
}

void td_engine_flush_cache(td_engine *e) {
    td_inbox_flush(e->inbox);
}

void td_engine_get_step(td_engine *e, td_engine_step *s) {
    pthread_mutex_lock(&e->stats.lock);
    *s = e->stats.step;
    s->seconds = td_now_s() - e->stats.step_begin_s;
    pthread_mutex_unlock(&e->stats.lock);
    if (s->phase == TD_STEP_FORWARD || s->phase == TD_STEP_HEAD || s->phase == TD_STEP_DRAFTING ||
        s->phase == TD_STEP_ENCODING)
        td_model_describe(e->placed.model, s->where, sizeof s->where);
}

static td_status make_trie(td_engine *e, td_error *err) {
    if (!e->tokenizer) return td_fail(err, TD_EINVAL, "grammar: the model was loaded without a tokenizer");
    pthread_mutex_lock(&e->trie_lock);
    td_status st = e->trie ? TD_OK : td_vocab_trie_make(e->tokenizer, e->limits.vocab, &e->trie);
    pthread_mutex_unlock(&e->trie_lock);
    return st == TD_OK ? TD_OK : td_fail(err, st, "out of memory for the vocabulary's trie");
}

td_status td_engine_prepare_grammar(td_engine *e, td_grammar *g, td_error *err) {
    td_grammar_place *place;
    TD_TRY(make_trie(e, err));
    TD_TRY(td_grammar_place_open(g, e->trie, &place, err));
    td_grammar_place_close(place);
    return TD_OK;
}

/* The markers of the reasoning before a grammar's text, with one reference; NULL: there is no reasoning. */
static td_status find_markers(td_engine *e, const td_request_params *p, td_marker_tokens **out, td_error *err) {
    *out = NULL;
    if (!p->reasoning_format || p->reasoning_start == TD_REASONING_CLOSED) return TD_OK;
    const td_reasoning_format *f = td_reasoning_format_find(p->reasoning_format);
    if (!f) return td_fail(err, TD_EINVAL, "reasoning_format: there is none called '%.40s'", p->reasoning_format);
    if (!f->close)
        return td_fail(err, TD_ENOTSUP, "reasoning_format: a grammar cannot follow the reasoning of '%.40s'",
                       p->reasoning_format);
    if (p->skip_special_tokens && td_answer_in_special_tokens(NULL, p->reasoning_format, e->tokenizer))
        return td_fail(err, TD_EINVAL, "skip_special_tokens: a marker of the reasoning is a special token");
    pthread_mutex_lock(&e->trie_lock);
    bool      known = e->markers && !strcmp(e->markers->open, f->open) && !strcmp(e->markers->close, f->close);
    td_status st = TD_OK;
    if (!known) {
        td_marker_tokens_release(e->markers);
        st = td_marker_tokens_make(e->tokenizer, e->limits.vocab, f->open, f->close, &e->markers);
    }
    if (st == TD_OK) *out = td_marker_tokens_hold(e->markers);
    pthread_mutex_unlock(&e->trie_lock);
    return st == TD_OK ? TD_OK : td_fail(err, st, "out of memory for the reasoning's markers");
}

/* Hold the request's text to its grammar, behind the reasoning if there is one. */
static td_status attach_form(td_engine *e, const td_request_params *p, td_request *r, td_error *err) {
    TD_TRY(make_trie(e, err));
    td_answer_form_params form = {.tokenizer = e->tokenizer,
                                  .trie = e->trie,
                                  .grammar = p->grammar,
                                  .shows_special = !p->skip_special_tokens,
                                  .stop_ids = r->stop_ids,
                                  .n_stop_ids = r->n_stop_ids};
    TD_TRY(find_markers(e, p, &form.markers, err));
    form.opened = form.markers &&
                  (p->reasoning_start == TD_REASONING_OPEN || td_reasoning_format_find(p->reasoning_format)->starts_open);
    td_status st = td_answer_form_open(&form, &r->form, err);
    td_marker_tokens_release(form.markers);
    if (st != TD_OK) return st;
    st = td_request_jump(r);
    return st == TD_OK ? TD_OK : td_fail(err, st, "grammar: %s", st == TD_ENOMEM ? "out of memory" : TD_GRAMMAR_AMBIGUOUS);
}

static td_status make_request(td_engine *e, const td_request_params *p, td_request **out, td_error *err) {
    TD_TRY(td_request_create(p, &e->limits, e->waker, out, err));
    td_status st = p->grammar ? attach_form(e, p, *out, err) : TD_OK;
    if (st != TD_OK) td_request_release(*out);
    return st;
}

td_status td_engine_submit_all(td_engine *e, const td_request_params *p, size_t n, td_request **out, td_error *err) {
    td_status st = TD_OK;
    size_t    made = 0;
    if (td_engine_is_lost(e, err)) {
        memset(out, 0, n * sizeof *out);
        return TD_ELOST;
    }
    for (; made < n && st == TD_OK; made++) st = make_request(e, &p[made], &out[made], err);
    if (st != TD_OK) {
        made--;
    } else {
        st = td_inbox_put(e->inbox, out, n); /* out is filled before, since the first event may come at once */
        if (st == TD_EBUSY) td_fail(err, st, "the queue is full: at most %u requests wait", e->config.max_queued);
        if (st == TD_ESHUTDOWN) td_fail(err, st, "the engine is shutting down");
    }
    if (st == TD_OK) return TD_OK;
    for (size_t i = 0; i < n; i++) {
        if (i < made) td_request_release(out[i]);
        out[i] = NULL;
    }
    return st;
}

td_status td_engine_submit(td_engine *e, const td_request_params *p, td_request **out, td_error *err) {
    return td_engine_submit_all(e, p, 1, out, err);
}
