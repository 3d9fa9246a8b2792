/* /metrics: the engine's counters in Prometheus's text format 0.0.4, under SGLang's names where it has one. */
#include "server/server_state.h"

typedef struct {
    const char *name, *type, *help;
    double      value;
} metric;

/* A label value: backslash, quote and newline are escaped. */
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

static void write_histogram(td_jbuf *b, const char *model, const char *name, const char *help, const td_histogram *h) {
    uint64_t sum = 0;
    write_head(b, name, "histogram", help);
    for (uint32_t i = 0; i <= h->n; i++) {
        sum += h->count[i];
        td_jbuf_printf(b, "%s_bucket{", name);
        write_label(b, "model_name", model);
        if (i < h->n)
            td_jbuf_printf(b, ",le=\"%.9g\"} %llu\n", h->bound_s[i], (unsigned long long)sum);
        else
            td_jbuf_printf(b, ",le=\"+Inf\"} %llu\n", (unsigned long long)sum);
    }
    td_jbuf_printf(b, "%s_sum{", name);
    write_label(b, "model_name", model);
    td_jbuf_printf(b, "} %.17g\n%s_count{", h->sum_s, name);
    write_label(b, "model_name", model);
    td_jbuf_printf(b, "} %llu\n", (unsigned long long)sum);
}

enum MHD_Result td_route_metrics(td_call *c) {
    const td_server *s = c->server;
    td_engine_stats  st;
    td_jbuf          b = {0};
    td_engine_get_stats(s->engine, &st);
    const metric metrics[] = {
        {"sglang:num_running_reqs", "gauge", "Requests being generated.", st.running},
        {"sglang:num_queue_reqs", "gauge", "Requests waiting.", st.queued},
        {"sglang:num_used_tokens", "gauge", "Tokens of the KV cache that requests hold.", (double)st.kv_tokens_used},
        {"tandem:cached_kv_tokens", "gauge", "Tokens of the KV cache that only the prefix cache holds, until room is needed.",
         (double)st.kv_tokens_cached},
        {"tandem:evicted_pages_total", "counter", "Pages that the prefix cache gave up for requests.",
         (double)st.cache_evictions},
        {"sglang:max_total_num_tokens", "gauge", "Capacity of the KV cache in tokens.", (double)st.kv_tokens_total},
        {"sglang:token_usage", "gauge", "Share of the KV cache in use, 0 to 1.",
         st.kv_tokens_total ? (double)st.kv_tokens_used / (double)st.kv_tokens_total : 0},
        {"sglang:gen_throughput", "gauge", "Generated tokens per second over the last log interval.",
         st.decode_tokens_per_s},
        {"sglang:cache_hit_rate", "gauge", "Share of prompt tokens taken from the prefix cache since start.",
         st.prompt_tokens ? (double)st.cached_tokens / (double)st.prompt_tokens : 0},
        {"sglang:num_requests_total", "counter", "Requests accepted.", (double)st.requests_total},
        {"sglang:num_aborted_requests_total", "counter", "Requests cancelled.", (double)st.requests_aborted},
        {"sglang:prompt_tokens_total", "counter", "Prompt tokens processed.", (double)st.prompt_tokens},
        {"sglang:cached_tokens_total", "counter", "Prompt tokens taken from the prefix cache.", (double)st.cached_tokens},
        {"sglang:generation_tokens_total", "counter", "Tokens generated.", (double)st.generation_tokens},
        {"tandem:failed_requests_total", "counter", "Requests that ended with an error.", (double)st.requests_failed},
        {"tandem:prefill_steps_total", "counter", "Steps that processed prompt tokens.", (double)st.steps_prefill},
        {"tandem:decode_steps_total", "counter", "Steps that only generated.", (double)st.steps_decode},
        {"tandem:experts_deferred_total", "counter", "(token, expert) pairs whose output was added one layer later.",
         (double)st.experts_deferred},
        {"tandem:weight_bytes", "gauge", "Bytes of weights held.", (double)s->info.weight_bytes},
        {"tandem:kv_bytes", "gauge", "Bytes reserved for the KV cache.", (double)s->info.kv_bytes},
    };
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        write_head(&b, metrics[i].name, metrics[i].type, metrics[i].help);
        td_jbuf_printf(&b, "%s{", metrics[i].name);
        write_label(&b, "model_name", s->model_name);
        td_jbuf_printf(&b, "} %.17g\n", metrics[i].value);
    }
    write_histogram(&b, s->model_name, "sglang:time_to_first_token_seconds", "From arrival to the first token.", &st.ttft);
    write_histogram(&b, s->model_name, "sglang:inter_token_latency_seconds", "Between tokens of a request.", &st.tpot);
    write_histogram(&b, s->model_name, "sglang:time_per_output_token_seconds",
                    "Between tokens of a request; the older name.", &st.tpot);
    write_histogram(&b, s->model_name, "sglang:queue_time_seconds", "From arrival to the first step.", &st.queue_time);
    return td_answer_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}
