/* Routes that generate, of all APIs: from a body to a running generation and its answer; and /health_generate. */
#include <stdlib.h>
#include <string.h>

#include "core/log/trace.h"
#include "server/answer/answer.h"
#include "server/answer/answer_stream.h"
#include "server/request/api_read.h"
#include "server/server_state.h"

#define STREAM_BLOCK 16384 /* bytes libmicrohttpd asks for at once */

/* Called by libmicrohttpd when the socket takes more bytes of a stream. */
static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max) {
    td_generation *g = cls;
    (void)pos;
    for (;;) {
        if (g->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (g->out_sent < g->out.len) return (ssize_t)td_jbuf_take(&g->out, &g->out_sent, to, max);
        if (g->out_ended) return MHD_CONTENT_READER_END_OF_STREAM;
        g->out.len = g->out_sent = 0;
        if (td_generation_wait(g)) return 0;
        pthread_mutex_lock(&g->lock);
        bool aborted = g->aborted;
        pthread_mutex_unlock(&g->lock);
        if (aborted) return MHD_CONTENT_READER_END_WITH_ERROR;
        uint64_t begin = td_trace_begin();
        td_write_stream(g);
        td_trace_end(begin, &(td_trace_label){TD_TRACE_HTTP, "write events", {"bytes"}, {g->out.len}});
    }
}

static enum MHD_Result answer_stream(td_call *c, td_generation *g) {
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, g, NULL);
    const td_header      headers[] = {{"Content-Type", "text/event-stream; charset=utf-8"},
                                      {"X-Accel-Buffering", "no"}}; /* proxies must not collect chunks */
    return td_answer_response(c, 200, r, headers, 2);
}

/* Submit, and answer: a stream now, a whole answer now if it is finished, else when the connection is resumed. */
static enum MHD_Result run(td_call *c, td_api_request *req) {
    td_server     *s = c->server;
    td_api_error   err;
    td_generation *g = td_generation_new(&s->generations, req);
    if (!g) {
        td_api_no_memory(&err);
        return td_answer_error(c, &err);
    }
    c->generation = g; /* released when the call ends */
    g->connection = c->connection;
    /* Watched before it is submitted, so that all that runs can be found, to be aborted or attended to. */
    const union MHD_ConnectionInfo *ci = MHD_get_connection_info(c->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    g->slot = ci ? td_watch(&s->watcher, g, ci->connect_fd) : UINT32_MAX;
    if (g->slot == UINT32_MAX) {
        td_api_fail(&err, 503, "queue_full", "Too many requests are running.");
        return td_answer_error(c, &err);
    }
    if (td_generation_submit(g, &err) != TD_OK) return td_answer_error(c, &err);
    if (g->req.stream.on) {
        if (g->req.api->begin) g->req.api->begin(g, &g->out);
        return answer_stream(c, g);
    }
    return td_generation_wait(g) ? MHD_YES : td_route_resumed(c);
}

/* Write the next piece of a whole answer into g->out. */
static void write_piece(td_generation *g) {
    uint64_t begin = td_trace_begin();
    td_jbuf_taken(&g->out);
    g->out_sent = 0;
    g->out_ended = g->req.api->write_answer(g, &g->out);
    td_trace_end(begin, &(td_trace_label){TD_TRACE_HTTP, "write answer", {"bytes"}, {g->out.len}});
}

static ssize_t read_answer(td_call *c, char *to, size_t max) {
    td_generation *g = c->generation;
    if (g->out_sent == g->out.len && !g->out_ended) write_piece(g);
    if (g->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = td_jbuf_take(&g->out, &g->out_sent, to, max);
    return n ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

/* Answer with all news of a finished generation: at once if they are one piece; else they are held until all is sent. */
static enum MHD_Result answer_whole(td_call *c, td_generation *g) {
    td_api_error err;
    td_generation_cancel(g); /* nothing runs: the engine keeps no more of it */
    g->out.hold.budget = g->all->answers;
    write_piece(g);
    if (g->out_ended || g->out.failed) return td_answer_json(c, 200, &g->out);
    size_t bytes = td_generation_bytes(g);
    if (td_answer_hold_set(&g->out_hold, bytes))
        return td_answer_pieces(c, 200, "application/json", MHD_SIZE_UNKNOWN, read_answer);
    td_answer_no_room(&err, &g->out_hold, bytes);
    return td_answer_error(c, &err);
}

enum MHD_Result td_route_resumed(td_call *c) {
    td_generation *g = c->generation;
    pthread_mutex_lock(&g->lock);
    bool aborted = g->aborted, has_error = g->has_error, done = g->n_unfinished == 0;
    pthread_mutex_unlock(&g->lock);
    if (aborted) return MHD_NO;
    if (has_error) return td_answer_error(c, &g->error);
    if (!done) return td_generation_wait(g) ? MHD_YES : td_route_resumed(c);
    return answer_whole(c, g);
}

td_text_kind td_work_generate(td_call *c) {
    td_server           *s = c->server;
    const td_api_context with = {&s->model.info, &s->responses};
    bool                 is_first = !c->is_read;
    if (is_first) {
        c->is_read = true;
        c->failed = td_api_read(c->api, c->body.data, c->body.len, &with, &c->req, &c->err) != TD_OK;
    }
    td_text_kind left = td_work_image(c, false);
    if (left != TD_TEXT_ENDED || c->failed) return left;
    if (is_first && !td_api_find_grammar(&c->req, &s->model.grammars)) return TD_TEXT_GRAMMAR;
    if (td_api_prepare(&c->req, &s->model, &c->err) == TD_OK) return TD_TEXT_ENDED;
    c->failed = true;
    td_api_rename_error(c->api->names, &c->err);
    return TD_TEXT_ENDED;
}

enum MHD_Result td_route_generate(td_call *c) {
    return c->failed ? td_answer_error(c, &c->err) : run(c, &c->req);
}

static bool write_probe_answer(td_generation *g, td_jbuf *b) {
    (void)g;
    td_jbuf_puts(b, "{\"status\":\"ready\"}");
    return true;
}

/* The API of the probe: it has no body to read, and no stream. */
static const td_api PROBE = {
    .id_prefix = "probe-", .internal = true, .write_error = td_api_error_write, .write_answer = write_probe_answer};

enum MHD_Result td_route_health_generate(td_call *c) {
    if (td_phase(c->server) != TD_SERVER_READY) return td_route_health(c);
    td_api_request req;
    uint32_t      *ids = calloc(1, sizeof *ids); /* any token will do: id 0 */
    if (!ids || td_api_read_probe(&PROBE, ids, 1, &req) != TD_OK) {
        td_api_error err;
        td_api_no_memory(&err);
        return td_answer_error(c, &err);
    }
    return run(c, &req);
}
