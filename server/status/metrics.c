/* /metrics: the engine's counters in Prometheus's text format 0.0.4, under SGLang's names where it has one; docs/metrics.md
 * lists them. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/log/log_writer.h"
#include "server/answer/answer.h"
#include "server/server_state.h"

/* One sample of a family. */
typedef struct {
    const char *label, *label_value, *kind; /* labels besides model_name: one of name `label`, and "kind"; NULL: none */
    double      value;
} sample;

/* Write a label; backslash, quote and newline in its value are escaped. */
static void write_label(td_jbuf *b, const char *name, const char *value) {
    td_jbuf_printf(b, "%s=\"", name);
    for (const char *p = value; *p; p++) {
        if (*p == '\\' || *p == '"') td_jbuf_put(b, "\\", 1);
        if (*p == '\n')
            td_jbuf_puts(b, "\\n");
        else
            td_jbuf_put(b, p, 1);
    }
    td_jbuf_puts(b, "\"");
}

static void write_head(td_jbuf *b, const char *name, const char *type, const char *help) {
    td_jbuf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_labels(td_jbuf *b, const char *model, const char *label, const char *value, const char *kind) {
    td_jbuf_puts(b, "{");
    write_label(b, "model_name", model);
    if (label) {
        td_jbuf_puts(b, ",");
        write_label(b, label, value);
    }
    if (kind) {
        td_jbuf_puts(b, ",");
        write_label(b, "kind", kind);
    }
    td_jbuf_puts(b, "}");
}

static void write_family(td_jbuf *b, const char *model, const char *name, const char *type, const char *help,
                         const sample *samples, size_t n) {
    write_head(b, name, type, help);
    for (size_t i = 0; i < n; i++) {
        td_jbuf_puts(b, name);
        write_labels(b, model, samples[i].label, samples[i].label_value, samples[i].kind);
        td_jbuf_printf(b, " %.17g\n", samples[i].value);
    }
}

static void write_histogram(td_jbuf *b, const char *model, const char *name, const char *help, const td_histogram *h) {
    uint64_t sum = 0;
    write_head(b, name, "histogram", help);
    for (uint32_t i = 0; i <= h->n; i++) {
        char le[32] = "+Inf";
        if (i < h->n) snprintf(le, sizeof le, "%.9g", h->bound_s[i]);
        sum += h->count[i];
        td_jbuf_printf(b, "%s_bucket", name);
        write_labels(b, model, "le", le, NULL);
        td_jbuf_printf(b, " %llu\n", (unsigned long long)sum);
    }
    td_jbuf_printf(b, "%s_sum", name);
    write_labels(b, model, NULL, NULL, NULL);
    td_jbuf_printf(b, " %.17g\n%s_count", h->sum_s, name);
    write_labels(b, model, NULL, NULL, NULL);
    td_jbuf_printf(b, " %llu\n", (unsigned long long)sum);
}

/* A family with a sample for each tier, or for each tier and kind of operation. */
static void write_tier_family(td_jbuf *b, const char *model, const char *name, const char *type, const char *help,
                              const double device[2], const double experts[2], bool kinds) {
    const char  *kind[2] = {kinds ? "int8" : NULL, "f32"};
    const sample samples[] = {{"tier", "device", kind[0], device[0]},
                              {"tier", "experts", kind[0], experts[0]},
                              {"tier", "device", kind[1], device[1]},
                              {"tier", "experts", kind[1], experts[1]}};
    write_family(b, model, name, type, help, samples, kinds ? 4 : 2);
}

static void write_tiers(td_jbuf *b, const char *model, const td_engine_stats *s, const td_engine_info *info) {
    const td_tier_work *d = &s->device, *x = &s->experts;
    const td_tier_rate *dr = &s->device_rate, *xr = &s->expert_rate;
    const td_bounds    *db = &info->device_bounds, *xb = &info->expert_bounds;
#define ONE(v) ((const double[]){(double)(v), 0})
#define TWO(i, f) ((const double[]){(double)(i), (double)(f)})
    write_tier_family(b, model, "tandem:tier_bytes_total", "counter", "Bytes of weights and KV that had to be read.",
                      ONE(d->bytes), ONE(x->bytes), false);
    write_tier_family(b, model, "tandem:tier_operations_total", "counter", "Operations, two per multiply-add.",
                      TWO(d->int8_ops, d->f32_ops), TWO(x->int8_ops, x->f32_ops), true);
    write_tier_family(b, model, "tandem:tier_busy_seconds_total", "counter", "Time of the tier's operations, without waits.",
                      ONE(1e-9 * (double)d->busy_ns), ONE(1e-9 * (double)x->busy_ns), false);
    write_tier_family(b, model, "tandem:tier_bytes_per_second", "gauge",
                      "Bytes per busy second over the last log interval; 0 when idle.", ONE(dr->bytes_per_s),
                      ONE(xr->bytes_per_s), false);
    if (db->read_bytes_per_s <= 0) return; /* the bounds were not measured */
    write_tier_family(b, model, "tandem:tier_bound_fraction", "gauge",
                      "The measured bound's time over the busy time, over the last log interval.", ONE(dr->bound_fraction),
                      ONE(xr->bound_fraction), false);
    write_tier_family(b, model, "tandem:tier_bound_bytes_per_second", "gauge",
                      "Reads of the tier's threads, measured at start.", ONE(db->read_bytes_per_s),
                      ONE(xb->read_bytes_per_s), false);
    write_tier_family(b, model, "tandem:tier_bound_operations_per_second", "gauge",
                      "Peak of the tier's threads, measured at start.", TWO(db->int8_ops_per_s, db->f32_ops_per_s),
                      TWO(xb->int8_ops_per_s, xb->f32_ops_per_s), true);
#undef ONE
#undef TWO
}

/* Only with --speculative-algorithm. */
static void write_drafts(td_jbuf *b, const char *model, const td_engine_stats *st) {
    double rate = st->drafts_verified ? (double)st->drafts_accepted / (double)st->drafts_verified : 0;
    double length = st->drafted_seqs ? (double)st->drafted_tokens / (double)st->drafted_seqs : 1;
    write_family(b, model, "sglang:spec_accept_rate", "gauge",
                 "Share of the verified drafts that were accepted, since start.", &(sample){.value = rate}, 1);
    write_family(b, model, "sglang:spec_accept_length", "gauge", "Tokens of a request in a drafted step, since start.",
                 &(sample){.value = length}, 1);
    write_family(b, model, "tandem:drafts_verified_total", "counter", "Drafts that a step computed.",
                 &(sample){.value = (double)st->drafts_verified}, 1);
    write_family(b, model, "tandem:drafts_accepted_total", "counter", "Those that were the token.",
                 &(sample){.value = (double)st->drafts_accepted}, 1);
    write_family(b, model, "tandem:drafted_steps_total", "counter", "Steps that computed drafts.",
                 &(sample){.value = (double)st->drafted_steps}, 1);
    write_family(
        b, model, "tandem:draft_gain", "gauge",
        "Tokens per second with drafting, of those without, as last measured for the number of streams; 1: not yet.",
        &(sample){.value = st->draft_gain}, 1);
}

static double count_of(const atomic_uint_fast64_t *count) {
    return (double)atomic_load_explicit(count, memory_order_relaxed);
}

static void write_images(td_jbuf *b, const char *model, const td_api_image_counts *images, const td_image_counts *encoded) {
    write_family(b, model, "tandem:images_total", "counter", "Images of requests that were loaded, by result.",
                 (sample[]){{"result", "ok", NULL, count_of(&images->loaded)},
                            {"result", "refused", NULL, count_of(&images->refused)}},
                 2);
    write_family(b, model, "tandem:image_tokens_total", "counter", "Tokens of prompts that stand for those.",
                 &(sample){.value = count_of(&images->tokens)}, 1);
    write_family(b, model, "tandem:image_load_seconds_total", "counter", "Time in which they were decoded and resized.",
                 &(sample){.value = 1e-9 * count_of(&images->ns)}, 1);
    write_family(b, model, "tandem:image_tokens_held", "gauge", "Tokens of images that requests hold in memory.",
                 &(sample){.value = (double)atomic_load_explicit(&images->held, memory_order_relaxed)}, 1);
    write_family(b, model, "tandem:images_encoded_total", "counter", "Images that the vision encoder was run for.",
                 &(sample){.value = (double)encoded->encoded}, 1);
    write_family(b, model, "tandem:image_encode_seconds_total", "counter", "Time of that.",
                 &(sample){.value = 1e-9 * (double)encoded->ns}, 1);
    write_family(b, model, "tandem:image_cache_bytes", "gauge", "What is kept of what it made of images, in bytes.",
                 &(sample){.value = (double)encoded->cache_bytes}, 1);
    write_family(b, model, "tandem:image_cache_bytes_max", "gauge", "Room for that.",
                 &(sample){.value = (double)encoded->cache_bytes_max}, 1);
    write_family(b, model, "tandem:image_cache_evictions_total", "counter", "Images that it gave up for others.",
                 &(sample){.value = (double)encoded->evictions}, 1);
}

/* The KV cache's shape, as labels. */
static void write_cache_config(td_jbuf *b, const char *model, uint64_t page_tokens, uint64_t n_pages) {
    static const char NAME[] = "sglang:cache_config_info";
    write_head(b, NAME, "gauge", "Always 1; its labels have the tokens of a KV page and the pages.");
    td_jbuf_printf(b, "%s{", NAME);
    write_label(b, "model_name", model);
    td_jbuf_printf(b, ",page_size=\"%llu\",num_pages=\"%llu\"} 1\n", (unsigned long long)page_tokens,
                   (unsigned long long)n_pages);
}

/* The experts' bytes by where they lie. */
static void write_nodes(td_jbuf *b, const char *model, const td_engine_stats *s, const td_engine_info *info) {
    sample samples[TD_EXPERT_NODES_MAX];
    char   names[TD_EXPERT_NODES_MAX][12];
    if (info->n_expert_nodes == 0) return;
    for (uint32_t i = 0; i < info->n_expert_nodes; i++) {
        const td_expert_node *n = &info->expert_nodes[i];
        if (n->node == UINT32_MAX)
            strcpy(names[i], "any");
        else
            snprintf(names[i], sizeof names[i], "%u", n->node);
        samples[i] = (sample){"node", names[i], NULL, floor(n->share * (double)s->experts.bytes)};
    }
    write_family(b, model, "tandem:node_expert_bytes_total", "counter",
                 "Bytes of the routed experts' weights that had to be read, by the NUMA node that they lie on.", samples,
                 info->n_expert_nodes);
}

/* Only with --stream-experts. */
static void write_streamed(td_jbuf *b, const char *model, uint64_t pairs, const td_stream_counts *s) {
    write_family(b, model, "tandem:expert_streamed_total", "counter",
                 "(token, expert) pairs that the device computed, of an expert that was streamed to it for that step.",
                 &(sample){.value = (double)pairs}, 1);
    write_family(b, model, "tandem:streamed_steps_total", "counter", "Steps with streamed experts.",
                 &(sample){.value = (double)s->steps}, 1);
    write_family(b, model, "tandem:streamed_uploads_total", "counter", "Copies of a streamed expert, by how they ended.",
                 (sample[]){{"result", "ok", NULL, (double)s->uploads}, {"result", "failed", NULL, (double)s->failed}}, 2);
    write_family(b, model, "tandem:streamed_upload_bytes_total", "counter", "Bytes of those that ended well.",
                 &(sample){.value = (double)s->upload_bytes}, 1);
    write_family(b, model, "tandem:streamed_upload_seconds_total", "counter", "Time of those that ended well.",
                 &(sample){.value = 1e-9 * (double)s->upload_ns}, 1);
    write_family(b, model, "tandem:streamed_layer_experts", "gauge", "Experts of a layer that the last such step streamed.",
                 &(sample){.value = s->share}, 1);
    write_family(b, model, "tandem:streamed_from_rows", "gauge",
                 "Rows of a step from which on streaming pays, by the speeds measured last; 0: it does not.",
                 &(sample){.value = s->crossover}, 1);
}

/* Only where some of the routed experts are on the device. */
static void write_residency(td_jbuf *b, const char *model, const td_residency_counts *r) {
    write_family(b, model, "tandem:expert_hits_total", "counter",
                 "(token, expert) pairs that the device computed, of an expert that was resident there.",
                 &(sample){.value = (double)r->hits}, 1);
    write_family(b, model, "tandem:expert_misses_total", "counter", "Those that the CPU computed.",
                 &(sample){.value = (double)r->misses}, 1);
    write_family(b, model, "tandem:expert_uploads_total", "counter", "Copies of an expert to the device, by how they ended.",
                 (sample[]){{"result", "ok", NULL, (double)r->uploads}, {"result", "failed", NULL, (double)r->failed}}, 2);
    write_family(b, model, "tandem:expert_upload_bytes_total", "counter", "Bytes of those that ended well.",
                 &(sample){.value = (double)r->upload_bytes}, 1);
    write_family(b, model, "tandem:expert_upload_seconds_total", "counter",
                 "Time of the copies, and of reading experts again.", &(sample){.value = 1e-9 * (double)r->upload_ns}, 1);
    write_family(b, model, "tandem:expert_reads_total", "counter",
                 "Experts read again from their file to leave the device, by how that ended.",
                 (sample[]){{"result", "ok", NULL, (double)r->reads}, {"result", "failed", NULL, (double)r->unread}}, 2);
    write_family(b, model, "tandem:expert_dropped_bytes", "gauge", "Host memory that resident experts do not take.",
                 &(sample){.value = (double)r->dropped_bytes}, 1);
    write_family(b, model, "tandem:resident_experts", "gauge", "Experts that are on the device, of all layers.",
                 &(sample){.value = r->resident}, 1);
    write_family(b, model, "tandem:resident_expert_slots", "gauge", "Experts that the device has room for.",
                 &(sample){.value = r->slots}, 1);
    if (r->stream.slots) write_streamed(b, model, r->streamed, &r->stream);
}

/* The store that shares pages with other hosts. */
static void write_page_store(td_jbuf *b, const char *model, const td_page_store_stats *p) {
    double bytes = (double)p->page_bytes;
    write_family(b, model, "tandem:kv_store_up", "gauge", "Whether the KV store can be reached.", &(sample){.value = p->up},
                 1);
    write_family(b, model, "tandem:kv_store_pages_total", "counter",
                 "KV pages: sent to the store, taken from it, thrown away because they were not what was asked for, and not "
                 "sent because there was no room or the store was down.",
                 (sample[]){{"what", "out", NULL, (double)p->pages_out},
                            {"what", "in", NULL, (double)p->pages_in},
                            {"what", "bad", NULL, (double)p->pages_bad},
                            {"what", "unsent", NULL, (double)p->pages_unsent}},
                 4);
    write_family(
        b, model, "tandem:kv_store_bytes_total", "counter", "Bytes of pages sent and taken.",
        (sample[]){{"what", "out", NULL, bytes * (double)p->pages_out}, {"what", "in", NULL, bytes * (double)p->pages_in}},
        2);
    write_family(b, model, "tandem:kv_store_seconds_total", "counter", "Time of the calls that sent and took pages.",
                 (sample[]){{"what", "out", NULL, p->out_s}, {"what", "in", NULL, p->in_s}}, 2);
    write_family(b, model, "tandem:kv_store_lookups_total", "counter",
                 "Looks for a prompt's pages: begun, given up at their deadline, not begun because the store was down or "
                 "too much was asked of it.",
                 (sample[]){{"what", "begun", NULL, (double)p->lookups},
                            {"what", "late", NULL, (double)p->lookups_late},
                            {"what", "refused", NULL, (double)p->lookups_refused}},
                 3);
    write_family(b, model, "tandem:kv_store_failures_total", "counter", "Calls of the store that failed.",
                 &(sample){.value = (double)p->failures}, 1);
    write_family(b, model, "tandem:kv_store_lookups_open", "gauge", "Looks that are under way.",
                 &(sample){.value = p->lookups_open}, 1);
    write_family(b, model, "tandem:kv_store_buffers_used", "gauge", "Page buffers that hold something.",
                 &(sample){.value = p->buffers_used}, 1);
    write_family(b, model, "tandem:kv_store_buffers", "gauge", "Page buffers.", &(sample){.value = p->buffers}, 1);
}

static void write_card_family(td_jbuf *b, const char *model, const char *name, const char *type, const char *help,
                              const double *value, uint32_t n) {
    sample samples[TD_CARDS_MAX];
    char   names[TD_CARDS_MAX][12];
    for (uint32_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "%u", i);
        samples[i] = (sample){"card", names[i], NULL, value[i]};
    }
    write_family(b, model, name, type, help, samples, n);
}

/* Cards that have a memory of their own, by the device's numbers. @param streams experts are streamed to them */
static void write_cards(td_jbuf *b, const char *model, td_engine *e, bool streams) {
    enum { TOTAL, FREE, LAUNCHES, CAPTURES, REPLAYS, FAILURES, TEMPERATURE, STREAMED, STREAMED_S, FIGURES };
    double        value[FIGURES][TD_CARDS_MAX];
    td_card_stats cards[TD_CARDS_MAX];
    uint32_t      n = td_engine_get_cards(e, cards);
    if (n == 0) return;
    for (uint32_t i = 0; i < n; i++) {
        const td_card_stats *c = &cards[i];
        value[TOTAL][i] = (double)c->memory_total;
        value[FREE][i] = (double)c->memory_free;
        value[LAUNCHES][i] = (double)c->launches;
        value[CAPTURES][i] = (double)c->captures;
        value[REPLAYS][i] = (double)c->replays;
        value[FAILURES][i] = (double)c->failures;
        value[TEMPERATURE][i] = c->temperature_c;
        value[STREAMED][i] = (double)c->streamed_bytes;
        value[STREAMED_S][i] = 1e-9 * (double)c->streamed_ns;
    }
    if (streams) {
        write_card_family(b, model, "tandem:card_streamed_bytes_total", "counter",
                          "Bytes of streamed experts that came to the card.", value[STREAMED], n);
        write_card_family(b, model, "tandem:card_streamed_seconds_total", "counter", "How long its link took for them.",
                          value[STREAMED_S], n);
    }
    write_card_family(b, model, "tandem:card_memory_bytes", "gauge", "Memory of the card.", value[TOTAL], n);
    write_card_family(b, model, "tandem:card_memory_free_bytes", "gauge", "What of it nobody has taken.", value[FREE], n);
    write_card_family(b, model, "tandem:card_launches_total", "counter",
                      "Calls that gave the card work; a step that was captured is one.", value[LAUNCHES], n);
    write_card_family(b, model, "tandem:card_captures_total", "counter", "Steps that were captured.", value[CAPTURES], n);
    write_card_family(b, model, "tandem:card_replays_total", "counter", "Launches of captured steps.", value[REPLAYS], n);
    write_card_family(b, model, "tandem:card_failures_total", "counter",
                      "Calls of the card's runtime that failed, and waits that ended with a failed operation.",
                      value[FAILURES], n);
    if (!isnan(value[TEMPERATURE][0]))
        write_card_family(b, model, "tandem:card_temperature_celsius", "gauge", "Temperature of the card.",
                          value[TEMPERATURE], n);
}

enum MHD_Result td_route_metrics(td_call *c) {
    td_server      *s = c->server;
    const char     *model = s->model.name;
    td_engine_stats st;
    td_jbuf         b = {0};
    td_engine_get_stats(s->engine, &st);
    uint64_t n_pages = st.kv_tokens_total / s->model.info.kv_page_tokens;
    const struct {
        const char *name, *type, *help;
        double      value;
    } metrics[] = {
        {"sglang:num_running_reqs", "gauge", "Requests being generated.", st.running},
        {"sglang:num_queue_reqs", "gauge", "Requests waiting, retracted ones too.", st.queued},
        {"sglang:num_retracted_reqs", "gauge", "Requests that wait again because no KV page was free.", st.retracted},
        {"sglang:num_retracted_requests_total", "counter", "Times a running request had to wait again.",
         (double)st.retractions},
        {"sglang:num_used_tokens", "gauge", "Tokens of the KV cache that requests hold.", (double)st.kv_tokens_used},
        {"tandem:cached_kv_tokens", "gauge",
         "Tokens of the KV cache that only the prefix cache holds, until room is needed.", (double)st.kv_tokens_cached},
        {"tandem:evicted_pages_total", "counter", "Pages that the prefix cache gave up for requests.",
         (double)st.cache_evictions},
        {"tandem:window_tokens", "gauge",
         "Room for tokens in layers with a sliding window, which give back those behind it; 0: no layer does.",
         (double)st.window_tokens},
        {"tandem:used_window_tokens", "gauge", "Of that room, what requests hold.", (double)st.window_tokens_used},
        {"tandem:cached_window_tokens", "gauge", "Of that room, what is kept at cached prefixes, until it is needed.",
         (double)st.window_tokens_cached},
        {"tandem:state_snapshots", "gauge", "States of recurrent layers that are kept at the ends of cached prefixes.",
         (double)st.state_snapshots},
        {"tandem:evicted_snapshots_total", "counter", "Kept states that were dropped because room was needed.",
         (double)st.state_evictions},
        {"sglang:max_total_num_tokens", "gauge", "Capacity of the KV cache in tokens.", (double)st.kv_tokens_total},
        {"sglang:page_size", "gauge", "Tokens of a page of the KV cache.", s->model.info.kv_page_tokens},
        {"sglang:num_pages", "gauge", "Pages of the KV cache.", (double)n_pages},
        {"sglang:token_usage", "gauge", "Share of the KV cache in use, 0 to 1.",
         st.kv_tokens_total ? (double)st.kv_tokens_used / (double)st.kv_tokens_total : 0},
        {"sglang:gen_throughput", "gauge", "Generated tokens per second over the last log interval; 0 when idle.",
         st.decode_tokens_per_s},
        {"sglang:cache_hit_rate", "gauge", "Share of prompt tokens taken from the prefix cache since start.",
         st.prompt_tokens ? (double)st.cached_tokens / (double)st.prompt_tokens : 0},
        {"sglang:num_requests_total", "counter", "Requests accepted.", (double)st.requests_total},
        {"sglang:num_aborted_requests_total", "counter", "Requests cancelled.", (double)st.requests_aborted},
        {"sglang:prompt_tokens_total", "counter", "Prompt tokens processed.", (double)st.prompt_tokens},
        {"sglang:cached_tokens_total", "counter", "Prompt tokens taken from the prefix cache.", (double)st.cached_tokens},
        {"sglang:generation_tokens_total", "counter", "Tokens generated.", (double)st.generation_tokens},
        {"tandem:failed_requests_total", "counter", "Requests that ended with an error.", (double)st.requests_failed},
        {"tandem:prefill_requests", "gauge", "Running requests whose prompt is not all computed.", st.prefill_requests},
        {"tandem:prefill_tokens_done", "gauge", "Tokens of those prompts that are computed.",
         (double)st.prefill_tokens_done},
        {"tandem:prefill_tokens_left", "gauge", "Tokens of those prompts that are still to be computed.",
         (double)st.prefill_tokens_left},
        {"tandem:chunked_prefill_size", "gauge", "Prompt tokens of a step at most.", s->model.info.chunked_prefill_size},
        {"tandem:prefill_steps_total", "counter", "Steps that processed prompt tokens.", (double)st.steps_prefill},
        {"tandem:decode_steps_total", "counter", "Steps that only generated.", (double)st.steps_decode},
        {"tandem:prefill_pieces_total", "counter", "Pieces of steps of a long prompt, between which others run.",
         (double)st.pieces},
        {"tandem:expert_pairs_total", "counter", "(token, expert) pairs computed.", (double)st.expert_pairs},
        {"tandem:experts_deferred_total", "counter", "(token, expert) pairs whose output was added one layer later.",
         (double)st.experts_deferred},
        {"tandem:weight_bytes", "gauge", "Bytes of weights held.", (double)s->model.info.weight_bytes},
        {"tandem:kv_bytes", "gauge", "Bytes reserved for the KV cache.", (double)s->model.info.kv_bytes},
        {"tandem:answer_bytes", "gauge", "Bytes of answers that their clients have not taken, beyond 64 KiB of each.",
         (double)atomic_load_explicit(&s->answers.used, memory_order_relaxed)},
        {"tandem:answers_refused_total", "counter", "Answers that found no room among those.",
         (double)atomic_load_explicit(&s->answers.refused, memory_order_relaxed)},
        {"tandem:answers_untaken_total", "counter", "Answers that were cut off because their clients took too little.",
         (double)td_connections_untaken(&s->connections)},
        {"tandem:background_responses", "gauge", "Responses that run or wait in the background.",
         td_background_running(&s->background)},
        {"tandem:background_event_bytes", "gauge", "Bytes of the events that are kept of these, beyond 64 KiB of each.",
         (double)atomic_load_explicit(&s->background.events.used, memory_order_relaxed)},
        {"tandem:log_lines_dropped_total", "counter", "Log lines that found no room because nobody read standard error.",
         (double)td_log_writer_dropped()},
        {"tandem:uptime_seconds", "gauge", "Since the server began to serve.", (double)(time(NULL) - s->started_s)},
    };
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        write_family(&b, model, metrics[i].name, metrics[i].type, metrics[i].help, &(sample){.value = metrics[i].value}, 1);
    write_family(&b, model, "tandem:requests_finished_total", "counter", "Requests that ended, by reason.",
                 (sample[]){{"reason", "stop", NULL, (double)st.requests_stopped},
                            {"reason", "length", NULL, (double)st.requests_length},
                            {"reason", "abort", NULL, (double)st.requests_aborted},
                            {"reason", "error", NULL, (double)st.requests_failed}},
                 4);
    write_cache_config(&b, model, s->model.info.kv_page_tokens, n_pages);
    if (st.has_drafts) write_drafts(&b, model, &st);
    if (s->model.info.image_token != UINT32_MAX) write_images(&b, model, &s->model.images, &st.images);
    if (st.residency.slots) write_residency(&b, model, &st.residency);
    if (st.has_page_store) write_page_store(&b, model, &st.page_store);
    write_tiers(&b, model, &st, &s->model.info);
    write_nodes(&b, model, &st, &s->model.info);
    write_cards(&b, model, s->engine, st.residency.stream.slots > 0);
    write_histogram(&b, model, "sglang:time_to_first_token_seconds", "From arrival to the first token.", &st.ttft);
    write_histogram(&b, model, "sglang:inter_token_latency_seconds", "Between tokens of a request.", &st.tpot);
    write_histogram(&b, model, "sglang:time_per_output_token_seconds", "Between tokens of a request; the older name.",
                    &st.tpot);
    write_histogram(&b, model, "sglang:queue_time_seconds", "From arrival to the first step.", &st.queue_time);
    write_histogram(&b, model, "sglang:e2e_request_latency_seconds", "From arrival to the end.", &st.e2e);
    return td_answer_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}
