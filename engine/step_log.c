/* What the log says while steps run: requests as they come and go, progress of long prompts, and the load every few steps. */
#include <inttypes.h>

#include "core/log.h"
#include "engine/engine_impl.h"

#define WINDOW_STEPS 40 /* of an interval when nothing is logged: the rates in the statistics still need one */

void td_log_arrival(const td_engine *e, const td_request *r) {
    if (e->plan.log_requests)
        td_info(TD_FIGURE("event", "request") " " TD_FIGURE("request", "%" PRIu64) ": " TD_FIGURE("prompt_tokens", "%u")
                " prompt tokens, at most " TD_FIGURE("max_tokens", "%u") " to generate, temperature " TD_FIGURE("temperature", "%g"),
                r->number, r->n_prompt, r->max_tokens, r->sampling.temperature);
}

void td_log_end(const td_engine *e, const td_request *r, td_finish finish) {
    static const char *const names[] = {"", "stop", "length", "abort", "error"};
    if (e->plan.log_requests)
        td_info(TD_FIGURE("event", "request") " " TD_FIGURE("request", "%" PRIu64) ": " TD_FIGURE("finish", "%s") " after "
                TD_FIGURE("prompt_tokens", "%u") " prompt and " TD_FIGURE("completion_tokens", "%u") " generated tokens, "
                TD_FIGURE("seconds", "%.3f") " s",
                r->number, names[finish], r->n_prompt, td_request_generated(r), td_now_s() - r->submit_s);
}

/* The time left is at the pace of this step: a little too short, because later chunks attend to more. */
void td_log_prefill(const td_engine *e, double seconds) {
    for (uint32_t i = 0; i < e->scheduler.n_entries; i++) {
        const td_step_entry *entry = &e->scheduler.entries[i];
        const td_request    *r = entry->request;
        uint32_t             done = entry->first_pos + entry->n_rows;
        double               rate = entry->n_rows / seconds;
        if (entry->n_rows <= 1 || r->n_tokens <= e->plan.chunk) continue;
        td_info(TD_FIGURE("event", "prefill") ": request " TD_FIGURE("request", "%" PRIu64) ", " TD_FIGURE("done", "%u") " of "
                TD_FIGURE("total", "%u") " tokens, " TD_FIGURE("tokens_per_s", "%.1f") " tokens/s, about "
                TD_FIGURE("seconds_left", "%.0f") " s left",
                r->number, done, r->n_tokens, rate, (r->n_tokens - done) / rate);
    }
}

static void open_window(td_log_window *w, const td_engine_stats *now) {
    w->start_s = td_now_s();
    w->steps = 0;
    w->start = *now;
}

void td_log_window_open(td_engine *e) {
    pthread_mutex_lock(&e->stats.lock);
    e->stats.s.decode_tokens_per_s = 0;
    open_window(&e->window, &e->stats.s);
    pthread_mutex_unlock(&e->stats.lock);
}

void td_log_load(td_engine *e) {
    td_log_window *w = &e->window;
    if (++w->steps < (e->plan.decode_log_interval ? e->plan.decode_log_interval : WINDOW_STEPS)) return;
    double seconds = td_now_s() - w->start_s;
    pthread_mutex_lock(&e->stats.lock);
    e->stats.s.decode_tokens_per_s = (double)(e->stats.s.generation_tokens - w->start.generation_tokens) / seconds;
    td_engine_stats s = e->stats.s;
    pthread_mutex_unlock(&e->stats.lock);
    open_window(w, &s);
    if (!e->plan.decode_log_interval) return;
    td_info(TD_FIGURE("event", "decode") ": " TD_FIGURE("running", "%u") " running, " TD_FIGURE("queued", "%u") " queued, "
            TD_FIGURE("retracted", "%u") " retracted, KV " TD_FIGURE("kv_tokens_used", "%" PRIu64) " of "
            TD_FIGURE("kv_tokens_total", "%" PRIu64) " tokens (%.1f %%), " TD_FIGURE("tokens_per_s", "%.1f") " tokens/s, "
            TD_FIGURE("cache_hit_percent", "%.1f") " %% of prompt tokens cached",
            s.running, td_inbox_waiting(e->inbox), s.retracted, s.kv_tokens_used, s.kv_tokens_total,
            100.0 * (double)s.kv_tokens_used / (double)s.kv_tokens_total, s.decode_tokens_per_s,
            s.prompt_tokens ? 100.0 * (double)s.cached_tokens / (double)s.prompt_tokens : 0.0);
}
