/* Routes that generate: from a body to a running generation and its answer, whatever its API is; and /health_generate. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/trace.h"
#include "server/generation/generation.h"

#define FORCED_CALLS "json-list" /* the format of what tool_choice makes a model write */
#define STREAM_BLOCK 16384       /* bytes libmicrohttpd asks for at once */

td_status td_check_model(const td_server *s, const char *name, td_api_error *err) {
    if (!name) return TD_OK;
    for (uint32_t i = 0; i < s->n_model_names; i++)
        if (!strcmp(name, s->model_names[i])) return TD_OK;
    td_api_fail(err, 404, "model_not_found", "The model '%.200s' does not exist; this server has '%s'.", name,
                s->model_name);
    strcpy(err->param, "model");
    return TD_EINVAL;
}

/* libmicrohttpd wants bytes of a stream. */
static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max) {
    td_generation *g = cls;
    (void)pos;
    for (;;) {
        if (g->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (g->out_sent < g->out.len) {
            size_t n = g->out.len - g->out_sent < max ? g->out.len - g->out_sent : max;
            memcpy(to, g->out.data + g->out_sent, n);
            g->out_sent += n;
            return (ssize_t)n;
        }
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

/* Submit, and answer now (stream), when finished already, or when resumed. */
static enum MHD_Result run(td_call *c, td_api_request *req) {
    td_server     *s = c->server;
    td_api_error   err;
    td_generation *g = td_generation_new(s, req);
    if (!g) {
        td_api_fail(&err, 500, "internal_error", "Out of memory.");
        return td_answer_error(c, &err);
    }
    c->generation = g; /* released when the call ends */
    g->connection = c->connection;
    /* Watched before the engine has it: what runs can be found, to be aborted or attended to. */
    const union MHD_ConnectionInfo *ci = MHD_get_connection_info(c->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    g->slot = ci ? td_watch(s, g, ci->connect_fd) : UINT32_MAX;
    if (g->slot == UINT32_MAX) {
        td_api_fail(&err, 503, "queue_full", "Too many requests are running.");
        return td_answer_error(c, &err);
    }
    if (td_generation_submit(g, &err) != TD_OK) return td_answer_error(c, &err);
    if (g->req.stream) {
        if (g->req.api->begin) g->req.api->begin(g, &g->out);
        return answer_stream(c, g);
    }
    return td_generation_wait(g) ? MHD_YES : td_route_resumed(c);
}

enum MHD_Result td_route_resumed(td_call *c) {
    td_generation *g = c->generation;
    pthread_mutex_lock(&g->lock);
    bool aborted = g->aborted, has_error = g->has_error, done = g->n_unfinished == 0;
    pthread_mutex_unlock(&g->lock);
    if (aborted) return MHD_NO;
    if (has_error) return td_answer_error(c, &g->error);
    if (!done) return td_generation_wait(g) ? MHD_YES : td_route_resumed(c);
    td_jbuf  b = {0};
    uint64_t begin = td_trace_begin();
    g->req.api->write_answer(g, &b);
    td_trace_end(begin, &(td_trace_label){TD_TRACE_HTTP, "write answer", {"bytes"}, {b.len}});
    return td_answer_json(c, 200, &b);
}

/* The server's formats, as far as the request wants them: a grammar's text is forced calls or all content, and may come
 * behind a reasoning that ends. Then the prompt, which tells where the answer begins. */
static td_status encode(const td_server *s, td_api_request *req, td_api_error *err) {
    const char *reasoning = req->form == TD_READ_CHAT ? s->reasoning_format : NULL;
    if (req->has_grammar) {
        req->tool_format = req->forces_call ? FORCED_CALLS : NULL;
        req->reasoning_format = reasoning && td_reasoning_format_ends(reasoning) ? reasoning : NULL;
    } else {
        req->tool_format = req->tools ? s->tool_format : NULL;
        req->reasoning_format = req->separate_reasoning ? reasoning : NULL;
    }
    bool own_calls = req->tool_format && !req->forces_call;
    req->keeps_special = (own_calls && s->tools_in_special) || (req->reasoning_format && s->reasoning_in_special);
    return td_api_encode(req, s->tokenizer, &s->chat, &s->info, err);
}

/* What all requests need before they can run. */
static td_status prepare_grammars(td_server *s, td_api_request *req, td_api_error *err) {
    TD_TRY(td_api_compile_grammar(req, &s->grammars, err));
    for (size_t i = 0; i < (req->each ? req->n_prompts : 1); i++) {
        const td_api_request *own = td_api_of_prompt(req, i);
        td_error              cause = {0};
        td_status             st = own->grammar ? td_engine_prepare_grammar(s->engine, own->grammar, &cause) : TD_OK;
        if (st != TD_OK) return td_api_from_status(err, st, &cause, own->grammar_param);
    }
    return TD_OK;
}

static td_status prepare(td_server *s, td_api_request *req, td_api_error *err) {
    TD_TRY(td_check_model(s, req->model, err));
    if (!td_api_find_grammar(req, &s->grammars)) TD_TRY(prepare_grammars(s, req, err));
    return encode(s, req, err);
}

bool td_work_generate(td_call *c) {
    td_server           *s = c->server;
    const td_api_context with = {&s->info, &s->responses};
    if (!c->is_read) {
        c->is_read = true;
        c->failed = td_api_read(c->api, c->body.data, c->body.len, &with, &c->req, &c->err) != TD_OK;
        if (!c->failed && !td_api_find_grammar(&c->req, &s->grammars)) return true;
    }
    if (c->failed || prepare(s, &c->req, &c->err) == TD_OK) return false;
    c->failed = true;
    td_api_rename_error(c->api, &c->err);
    return false;
}

enum MHD_Result td_route_generate(td_call *c) {
    return c->failed ? td_answer_error(c, &c->err) : run(c, &c->req);
}

static void write_probe_answer(td_generation *g, td_jbuf *b) {
    (void)g;
    td_jbuf_puts(b, "{\"status\":\"ready\"}");
}

/* It has no body, and no stream. */
static const td_api PROBE = {
    .id_prefix = "probe-", .internal = true, .write_error = td_api_error_write, .write_answer = write_probe_answer};

enum MHD_Result td_route_health_generate(td_call *c) {
    if (td_phase(c->server) != TD_SERVER_READY) return td_route_health(c);
    td_api_request req;
    uint32_t      *ids = calloc(1, sizeof *ids); /* any token will do: id 0 */
    if (!ids || td_api_read_probe(&PROBE, ids, 1, &req) != TD_OK) {
        td_api_error err;
        td_api_fail(&err, 500, "internal_error", "Out of memory.");
        return td_answer_error(c, &err);
    }
    return run(c, &req);
}
