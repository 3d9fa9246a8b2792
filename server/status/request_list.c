/* /v1/requests: the requests that run and the last ones that ended, with their times. */
#include "server/answer/answer.h"
#include "server/server_state.h"

#define SHOWN_MAX 256 /* running requests in an answer, at most */

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

/* @return how many run; those beyond SHOWN_MAX are only counted. */
static uint32_t write_running(td_jbuf *b, td_watcher *watcher) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < watcher->n_slots; i++) {
        td_generation *g = td_watched(watcher, i);
        if (!g) continue;
        if (!g->req.api->internal && n++ < SHOWN_MAX) {
            pthread_mutex_lock(&g->lock);
            td_request_row row = td_generation_row(g);
            pthread_mutex_unlock(&g->lock);
            write_row(b, &row);
        }
        td_generation_unref(g);
    }
    return n;
}

enum MHD_Result td_route_requests(td_call *c) {
    td_jbuf b = {0};
    td_jw_open(&b, '{');
    td_jw_key(&b, "running");
    td_jw_open(&b, '[');
    uint32_t running = write_running(&b, &c->server->watcher);
    td_jw_close(&b, ']');
    td_jw_member_int(&b, "num_running", running);
    td_ended_requests ended = td_generations_ended(&c->server->generations);
    td_jw_key(&b, "ended"); /* the last one first */
    td_jw_open(&b, '[');
    for (uint64_t i = 0; i < ended.n && i < TD_REQUESTS_ENDED_MAX; i++)
        write_row(&b, &ended.rows[(ended.n - 1 - i) % TD_REQUESTS_ENDED_MAX]);
    td_jw_close(&b, ']');
    td_jw_close(&b, '}');
    return td_answer_json(c, 200, &b);
}
