/* /v1/requests: the requests that run and the last ones that ended, with their times. */
#include "server/status/request_list.h"

#include <math.h>
#include <string.h>

#include "core/trace.h"
#include "server/generation/generation.h"

static const char *finish_of(const td_generation *g) {
    static const char *const names[] = {
        [TD_FINISH_STOP] = "stop", [TD_FINISH_LENGTH] = "length", [TD_FINISH_ABORT] = "abort", [TD_FINISH_ERROR] = "error"};
    td_finish finish = g->choices[0].finish;
    return g->has_error ? "error" : finish == TD_FINISH_NONE ? "abort" : names[finish];
}

/* As it is now: under its lock, or when nobody else has it. */
static td_request_row row_of(const td_generation *g) {
    td_request_row row = {
        .choices = (uint32_t)g->n_choices, .age_s = 1e-9 * (double)(td_trace_now() - g->begin_ns), .ttft_s = INFINITY};
    td_usage used = td_generation_usage(g);
    double   between_s = 0;
    uint32_t gaps = 0;
    memcpy(row.id, g->id, sizeof row.id);
    row.cached_tokens = used.cached;
    row.completion_tokens = used.completion;
    for (size_t i = 0; i < g->req.n_prompts; i++) row.prompt_tokens += (uint32_t)g->req.prompts[i].n_ids;
    for (size_t i = 0; i < g->n_choices; i++) {
        const td_choice *c = &g->choices[i];
        if (c->completion_tokens == 0) continue;
        if (c->first_s < row.ttft_s) row.ttft_s = c->first_s;
        between_s += c->last_s - c->first_s;
        gaps += c->completion_tokens - 1;
    }
    if (isinf(row.ttft_s)) row.ttft_s = NAN;
    row.tpot_s = gaps ? between_s / gaps : NAN;
    return row;
}

void td_ended_requests_add(td_ended_requests *e, const td_generation *g) {
    if (g->req.api->internal || !g->submitted) return;
    td_request_row *row = &e->rows[e->n++ % TD_REQUESTS_ENDED_MAX];
    *row = row_of(g);
    row->finish = finish_of(g);
}

static void write_row(td_jbuf *b, const td_request_row *row) {
    static const struct {
        const char *key;
        size_t      at;
    } times[] = {{"age_s", offsetof(td_request_row, age_s)},
                 {"ttft_s", offsetof(td_request_row, ttft_s)},
                 {"tpot_s", offsetof(td_request_row, tpot_s)}};
    td_jw_open(b, '{');
    td_jw_member_str(b, "id", row->id);
    td_jw_member_str(b, "state", row->finish ? "ended" : row->completion_tokens ? "generating" : "waiting");
    td_jw_member_str(b, "finish_reason", row->finish);
    td_jw_member_int(b, "choices", row->choices);
    td_jw_member_int(b, "prompt_tokens", row->prompt_tokens);
    td_jw_member_int(b, "cached_tokens", row->cached_tokens);
    td_jw_member_int(b, "completion_tokens", row->completion_tokens);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        td_jw_key(b, times[i].key);
        td_jw_real(b, *(const double *)((const char *)row + times[i].at), 6);
    }
    td_jw_close(b, '}');
}

/* @return how many run; those beyond TD_REQUESTS_SHOWN_MAX are only counted. */
static uint32_t write_running(td_jbuf *b, td_server *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->opt.connections_max; i++) {
        td_generation *g = td_watched(s, i);
        if (!g) continue;
        if (!g->req.api->internal && n++ < TD_REQUESTS_SHOWN_MAX) {
            pthread_mutex_lock(&g->lock);
            td_request_row row = row_of(g);
            pthread_mutex_unlock(&g->lock);
            write_row(b, &row);
        }
        td_generation_unref(g);
    }
    return n;
}

enum MHD_Result td_route_requests(td_call *c) {
    td_server        *s = c->server;
    td_ended_requests ended;
    td_jbuf           b = {0};
    td_jw_open(&b, '{');
    td_jw_key(&b, "running");
    td_jw_open(&b, '[');
    uint32_t running = write_running(&b, s);
    td_jw_close(&b, ']');
    td_jw_member_int(&b, "num_running", running);
    pthread_mutex_lock(&s->lock);
    ended = s->ended;
    pthread_mutex_unlock(&s->lock);
    td_jw_key(&b, "ended"); /* the last one first */
    td_jw_open(&b, '[');
    for (uint64_t i = 0; i < ended.n && i < TD_REQUESTS_ENDED_MAX; i++)
        write_row(&b, &ended.rows[(ended.n - 1 - i) % TD_REQUESTS_ENDED_MAX]);
    td_jw_close(&b, ']');
    td_jw_close(&b, '}');
    return td_answer_json(c, 200, &b);
}
