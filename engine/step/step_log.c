/* What the log says while steps run: requests that come and go, progress of long prompts, the load every few steps. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/log/log.h"
#include "engine/engine_impl.h"

#define WINDOW_STEPS 40 /* of an interval where decode_log_interval is 0: the statistics' rates need one */

/* clang-format breaks these formats within their figures. */
/* clang-format off */
void td_log_arrival(const td_engine *e, const td_request *r) {
    if (!e->config.log_requests) return;
    td_info(TD_FIGURE("event", "request") " " TD_FIGURE("request", "%" PRIu64) ": "
            TD_FIGURE("prompt_tokens", "%u") " prompt tokens, at most "
            TD_FIGURE("max_tokens", "%u") " to generate, temperature " TD_FIGURE("temperature", "%g"),
            r->number, r->n_prompt, r->max_tokens, r->sampling.temperature);
}

void td_log_end(const td_engine *e, const td_request *r, td_finish finish) {
    static const char *const names[] = {"", "stop", "length", "abort", "error"};
    if (!e->config.log_requests) return;
    td_info(TD_FIGURE("event", "request") " " TD_FIGURE("request", "%" PRIu64) ": "
            TD_FIGURE("finish", "%s") " after " TD_FIGURE("prompt_tokens", "%u") " prompt and "
            TD_FIGURE("completion_tokens", "%u") " generated tokens, " TD_FIGURE("seconds", "%.3f") " s",
            r->number, names[finish], r->n_prompt, r->n_told - r->n_prompt, td_now_s() - r->submit_s);
}

/* A line each chunk, however many steps it took. The time left is at the pace of this step: a little too short, because
 * later ones attend to more. */
void td_log_prefill(const td_engine *e, double seconds) {
    for (uint32_t i = 0; i < e->step->n_entries; i++) {
        const td_step_entry *entry = &e->step->entries[i];
        const td_request    *r = entry->request;
        uint32_t             done = entry->first_pos + entry->n_rows;
        double               rate = entry->n_rows / seconds;
        if (entry->first_pos >= r->n_prompt || entry->n_rows <= 1 || r->n_tokens <= e->config.chunk) continue;
        if (done < r->n_tokens && done / e->config.chunk == entry->first_pos / e->config.chunk) continue;
        td_info(TD_FIGURE("event", "prefill") ": request " TD_FIGURE("request", "%" PRIu64) ", "
                TD_FIGURE("done", "%u") " of " TD_FIGURE("total", "%u") " tokens, "
                TD_FIGURE("tokens_per_s", "%.1f") " tokens/s, about " TD_FIGURE("seconds_left", "%.0f") " s left",
                r->number, done, r->n_tokens, rate, (r->n_tokens - done) / rate);
    }
}
/* clang-format on */

/* Put the rates of the interval into the statistics, and begin a new interval. Under the lock. */
static void close_window(td_engine *e, td_engine_stats *s, bool idle) {
    td_log_window *w = &e->window;
    double         now = td_now_s();
    s->decode_tokens_per_s = idle ? 0 : (double)(s->generation_tokens - w->start.generation_tokens) / (now - w->start_s);
    if (!idle) s->last_decode_tokens_per_s = s->decode_tokens_per_s;
    s->device_rate = td_tier_rate_of(idle ? &s->device : &w->start.device, &s->device, &e->info.device_bounds);
    s->expert_rate = td_tier_rate_of(idle ? &s->experts : &w->start.experts, &s->experts, &e->info.expert_bounds);
    *w = (td_log_window){.start_s = now, .start = *s};
}

void td_log_window_open(td_engine *e) {
    pthread_mutex_lock(&e->stats.lock);
    close_window(e, &e->stats.s, true);
    pthread_mutex_unlock(&e->stats.lock);
}

/* ", experts 20.1 GB/s (67 % of the bound)", the last part where the bound is known; nothing for a tier that did nothing. */
static void tier_text(const char *tier, td_tier_rate rate, char *text, size_t size) {
    text[0] = 0;
    if (rate.bytes_per_s <= 0) return;
    size_t n =
        (size_t)snprintf(text, size, ", %s " TD_FIGURE("%s_gb_per_s", "%.1f") " GB/s", tier, tier, 1e-9 * rate.bytes_per_s);
    if (n < size && !isnan(rate.bound_fraction))
        snprintf(text + n, size - n, " (" TD_FIGURE("%s_bound_percent", "%.0f") " %% of the bound)", tier,
                 100 * rate.bound_fraction);
}

/* ", 61.2 % of experts on the device, 12 uploads, 3 streamed steps, 9 read again": of the interval, the last two where there
 * are some; nothing if no experts move. */
static void residency_text(const td_residency_counts *from, const td_residency_counts *to, char *text, size_t size) {
    const uint64_t hits = to->hits - from->hits + to->streamed - from->streamed, all = hits + to->misses - from->misses,
                   steps = to->stream.steps - from->stream.steps;
    text[0] = 0;
    if (!all) return;
    size_t n = (size_t)snprintf(text, size,
                                ", " TD_FIGURE("expert_hit_percent", "%.1f") " %% of experts on the device, " TD_FIGURE(
                                    "expert_uploads", "%" PRIu64) " uploads",
                                100 * (double)hits / (double)all, to->uploads - from->uploads);
    if (n < size && steps)
        n += (size_t)snprintf(text + n, size - n, ", " TD_FIGURE("streamed_steps", "%" PRIu64) " streamed steps", steps);
    if (to->drops && n < size)
        snprintf(text + n, size - n, ", " TD_FIGURE("expert_reads", "%" PRIu64) " read again", to->reads - from->reads);
}

void td_log_load(td_engine *e) {
    td_log_window *w = &e->window;
    if (++w->steps < (e->config.decode_log_interval ? e->config.decode_log_interval : WINDOW_STEPS)) return;
    pthread_mutex_lock(&e->stats.lock);
    const td_residency_counts before = w->start.residency;
    close_window(e, &e->stats.s, false);
    td_engine_stats s = e->stats.s;
    pthread_mutex_unlock(&e->stats.lock);
    if (!e->config.decode_log_interval) return;
    char experts[128], device[128], residency[160];
    tier_text("experts", s.expert_rate, experts, sizeof experts);
    tier_text("device", s.device_rate, device, sizeof device);
    residency_text(&before, &s.residency, residency, sizeof residency);
    td_info(TD_FIGURE("event", "decode") ": " TD_FIGURE("running", "%u") " running, " TD_FIGURE("queued", "%u") " queued, "
            TD_FIGURE("retracted", "%u") " retracted, KV " TD_FIGURE("kv_tokens_used", "%" PRIu64) " of "
            TD_FIGURE("kv_tokens_total", "%" PRIu64) " tokens (%.1f %%), " TD_FIGURE("tokens_per_s", "%.1f") " tokens/s, "
            TD_FIGURE("cache_hit_percent", "%.1f") " %% of prompt tokens cached%s%s%s",
            s.running, td_inbox_waiting(e->inbox, NULL), s.retracted, s.kv_tokens_used, s.kv_tokens_total,
            100.0 * (double)s.kv_tokens_used / (double)s.kv_tokens_total, s.decode_tokens_per_s,
            s.prompt_tokens ? 100.0 * (double)s.cached_tokens / (double)s.prompt_tokens : 0.0, experts, device, residency);
}
