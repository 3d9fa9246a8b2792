/* The way of a request from libmicrohttpd to its route. */
#include "server/http_request.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log/trace.h"
#include "server/answer/answer.h"
#include "server/anthropic/messages.h"
#include "server/connection/framing.h"
#include "server/connection/site.h"
#include "server/openai/completions.h"
#include "server/openai/responses.h"
#include "server/server_state.h"
#include "server/sglang/generate.h"
#include "server/token_answer.h"

#define BODIES_MAX ((size_t)128 << 20) /* bytes of all bodies being read */

/* ---- routes ---- */

/* What is special about a route. */
enum {
    OPEN = 1,       /* needs no API key */
    PREFIX = 2,     /* the path goes on after the one in the table */
    NO_BODY = 4,    /* a POST whose body need not be JSON */
    GENERATES = 8,  /* refused while the server starts or stops */
    SPARED = 16,    /* answered to connections of the reserve, too */
    CONSOLE = 32,   /* of the page for browsers */
    GET_FLUSH = 64, /* there with --allow-get-flush only, since any page can have a browser send a GET */
};

typedef struct {
    const char   *method, *path;
    const td_api *api; /* NULL: none of its own */
    td_work_fn    work;
    td_route_fn   handle;
    int           flags;
} route;

static const route ROUTES[] = {
    {"POST", "/v1/chat/completions", &td_api_chat, td_work_generate, td_route_generate, GENERATES},
    {"POST", "/chat/completions", &td_api_chat, td_work_generate, td_route_generate, GENERATES}, /* as llama.cpp has it */
    {"POST", "/v1/completions", &td_api_completion, td_work_generate, td_route_generate, GENERATES},
    {"POST", "/v1/messages", &td_api_messages, td_work_generate, td_route_generate, GENERATES},
    {"POST", "/v1/messages/count_tokens", &td_api_messages, td_work_count_tokens, td_route_reply, 0},
    {"POST", "/generate", &td_api_generate, td_work_generate, td_route_generate, GENERATES},
    {"POST", "/v1/responses", &td_api_response, td_work_generate, td_route_respond, GENERATES},
    {"POST", "/responses", &td_api_response, td_work_generate, td_route_respond, GENERATES}, /* as llama.cpp has it */
    {"POST", "/v1/responses/input_tokens", &td_api_response, td_work_count_input, td_route_reply, 0},
    {"GET", "/v1/responses/", NULL, NULL, td_route_get_response, PREFIX},
    {"DELETE", "/v1/responses/", NULL, NULL, td_route_delete_response, PREFIX},
    {"POST", "/v1/responses/", NULL, NULL, td_route_cancel_response, PREFIX | NO_BODY},
    {"GET", "/v1/models", NULL, NULL, td_route_models, 0},
    {"GET", "/models", NULL, NULL, td_route_models, 0}, /* as llama.cpp has it */
    {"GET", "/v1/models/", NULL, NULL, td_route_model, PREFIX},
    {"POST", "/tokenize", NULL, td_work_tokenize, td_route_tokens, 0},
    {"POST", "/detokenize", NULL, td_work_detokenize, td_route_tokens, 0},
    {"POST", "/flush_cache", NULL, NULL, td_route_flush_cache, NO_BODY},
    {"GET", "/flush_cache", NULL, NULL, td_route_flush_cache, GET_FLUSH},
    {"POST", "/reset_prefix_cache", NULL, NULL, td_route_flush_cache, NO_BODY}, /* the same by vLLM's name */
    {"POST", "/abort_request", NULL, NULL, td_route_abort_request, 0},
    {"GET", "/health", NULL, NULL, td_route_health, OPEN | SPARED},
    {"GET", "/health_generate", NULL, NULL, td_route_health_generate, 0},
    {"GET", "/get_model_info", NULL, NULL, td_route_model_info, 0},
    {"GET", "/model_info", NULL, NULL, td_route_model_info, 0},
    {"GET", "/get_server_info", NULL, NULL, td_route_server_info, 0},
    {"GET", "/server_info", NULL, NULL, td_route_server_info, 0},
    {"GET", "/v1/loads", NULL, NULL, td_route_loads, 0},
    {"GET", "/get_load", NULL, NULL, td_route_load, 0},
    {"GET", "/v1/requests", NULL, NULL, td_route_requests, 0},
    {"GET", "/metrics", NULL, NULL, td_route_metrics, SPARED},
    {"GET", "/", NULL, NULL, td_route_console, CONSOLE | OPEN},
    {"GET", "/console/", NULL, NULL, td_route_console, CONSOLE | OPEN | PREFIX},
};

static bool path_matches(const route *r, const char *url) {
    size_t n = strlen(r->path);
    return r->flags & PREFIX ? !strncmp(url, r->path, n) && url[n] : !strcmp(url, r->path);
}

/* The console may be switched off. Its page is only there for clients that accept HTML: for others / is an unknown path. */
static bool is_offered(const td_server *s, const route *r, struct MHD_Connection *connection) {
    if (r->flags & GET_FLUSH) return s->opt.allow_get_flush;
    if (!(r->flags & CONSOLE)) return true;
    const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Accept");
    return !s->opt.disable_console && (r->flags & PREFIX || (accept && strcasestr(accept, "text/html")));
}

static bool method_matches(const route *r, const char *method) {
    return !strcmp(method, r->method) || (!strcmp(method, "HEAD") && !strcmp(r->method, "GET"));
}

/* ---- what is checked before a body is read ---- */

/* Takes the same time wherever the first difference is, so that times tell nothing about the secret. */
static bool same_secret(const char *a, const char *b) {
    size_t        na = strlen(a), nb = strlen(b);
    unsigned char diff = na != nb;
    for (size_t i = 0; i < na; i++) diff |= (unsigned char)(a[i] ^ b[nb ? i % nb : 0]);
    return diff == 0;
}

static bool authorized(const td_server *s, struct MHD_Connection *connection) {
    if (!s->opt.api_key) return true;
    const char *key = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "x-api-key"); /* Anthropic's clients */
    if (key && same_secret(key, s->opt.api_key)) return true;
    const char *header = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization");
    if (!header || strncasecmp(header, "Bearer ", 7) != 0) return false;
    header += 7;
    while (*header == ' ') header++;
    return same_secret(header, s->opt.api_key);
}

/* Browsers let another site's page post a form or plain text here, but JSON only with this server's leave. */
static bool is_json(struct MHD_Connection *connection) {
    const char *type = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Type");
    size_t      n = strlen("application/json");
    return type && !strncasecmp(type, "application/json", n) && (type[n] == 0 || type[n] == ';' || type[n] == ' ');
}

static void fail_call(td_call *c, int http, const char *code, const char *sentence) {
    c->broken = true;
    td_api_fail(&c->err, http, code, "%s", sentence);
}

static void add_method(td_call *c, const char *method) {
    size_t n = strlen(c->allow);
    snprintf(c->allow + n, sizeof c->allow - n, "%s%s", n ? ", " : "", strcmp(method, "GET") ? method : "GET, HEAD");
}

static const char *header_of(const td_call *c, const char *name) {
    return MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, name);
}

/* Whether the Host is one that this server answers to. It is asked where nothing else keeps the pages of other sites out,
 * or where names are given. */
static bool host_is_right(const td_call *c) {
    const td_server *s = c->server;
    bool             open = s->is_local && !s->opt.api_key;
    return (!s->opt.allowed_hosts && !open) || td_host_is_allowed(header_of(c, "Host"), s->opt.allowed_hosts);
}

/* A POST without JSON needs nobody's leave in a browser. */
static bool origin_is_right(const td_call *c, const route *r) {
    return !(r->flags & NO_BODY) || td_origin_is_allowed(header_of(c, "Origin"), header_of(c, "Host"), c->cors_origin);
}

static void choose_route(td_call *c, const char *method, const char *url) {
    td_server   *s = c->server;
    const route *found = NULL;
    bool         path_known = false;
    for (size_t i = 0; i < sizeof ROUTES / sizeof *ROUTES && !found; i++) {
        if (!path_matches(&ROUTES[i], url) || !is_offered(s, &ROUTES[i], c->connection)) continue;
        path_known = true;
        c->api = ROUTES[i].api;
        if (method_matches(&ROUTES[i], method)) found = &ROUTES[i];
        add_method(c, ROUTES[i].method);
    }
    if (!host_is_right(c))
        fail_call(c, 403, "host_not_allowed",
                  "This server does not answer to the name in 'Host'; --allowed-hosts gives it more names.");
    else if (!(found && found->flags & OPEN) && !authorized(s, c->connection))
        fail_call(c, 401, "invalid_api_key",
                  "This server needs an API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'.");
    else if (!path_known)
        c->broken = td_api_fail(&c->err, 404, "not_found", "There is no '%.200s' here; docs/server.md lists what there is.",
                                url) != TD_OK;
    else if (!found)
        c->broken = td_api_fail(&c->err, 405, "method_not_allowed", "'%.200s' does not take %.20s.", url, method) != TD_OK;
    else if (!origin_is_right(c, found))
        fail_call(c, 403, "origin_not_allowed", "Pages of other sites may not do this; --cors-origin lets one in.");
    else if (c->socket->reserve && !(found->flags & SPARED))
        fail_call(c, 503, "queue_full", "Too many connections are open.");
    else if (found->flags & GENERATES && td_phase(s) == TD_SERVER_STARTING)
        fail_call(c, 503, "starting", "The server is still starting.");
    else if (found->flags & GENERATES && td_phase(s) == TD_SERVER_STOPPING)
        fail_call(c, 503, "shutting_down", "The server is shutting down.");
    else if (!strcmp(found->method, "POST") && !(found->flags & NO_BODY) && !is_json(c->connection))
        fail_call(c, 415, "unsupported_media_type", "The Content-Type must be application/json.");
    if (c->broken) return;
    c->work = found->work;
    c->handle = found->handle;
    c->route = found->path;
}

/* ---- one request ---- */

/* Whether nobody waits for the text of a call any more: its client has left, or the server ends. libmicrohttpd does not look
 * at the socket meanwhile. */
static bool is_unwanted(void *call) {
    td_call      *c = call;
    struct pollfd p = {.fd = c->socket->fd, .events = POLLRDHUP};
    return td_text_work_cancelled(&c->server->text) || poll(&p, 1, 0) > 0;
}

/* On a text thread. Only of a short text the grammar is compiled elsewhere; to the others it adds little. */
static td_text_kind run_text_job(void *call, bool closing) {
    td_call     *c = call;
    td_text_kind left = TD_TEXT_ENDED;
    uint64_t     begin = td_trace_begin();
    if (closing || is_unwanted(c)) {
        c->failed = td_api_fail(&c->err, 503, "shutting_down", "The server is shutting down.") != TD_OK;
    } else {
        td_tokenizer_stop_when(is_unwanted, c);
        do left = c->work(c);
        while (left == TD_TEXT_GRAMMAR && c->text.kind != TD_TEXT_SHORT);
        td_tokenizer_stop_when(NULL, NULL);
    }
    td_trace_end(begin, &(td_trace_label){TD_TRACE_HTTP, c->route, {"request"}, {c->number}});
    return left;
}

/* Whose a body is that is not read here. A large one is mostly images where it has any: in base64, which it says. What of it
 * turns out to be a long text comes to the threads for those (td_work_image). */
static td_text_kind kind_of_body(const td_call *c) {
    bool takes_images = c->server->model.info.image_token != UINT32_MAX;
    if (c->body.len <= TD_TEXT_SHORT_BYTES) return TD_TEXT_SHORT;
    return takes_images && memmem(c->body.data, c->body.len, "base64", 6) ? TD_TEXT_IMAGE : TD_TEXT_LONG;
}

/* Work on the text here while that takes no time, and then on a text thread. @return false: it is done. */
static bool works_on(td_call *c) {
    td_text_work *text = &c->server->text;
    bool          is_short = c->body.len <= TD_TEXT_INLINE_BYTES && !(c->api && c->api->long_texts);
    if (!c->work || td_text_work_done(text, &c->text)) return false;
    c->text.kind = is_short ? c->work(c) : kind_of_body(c);
    if (c->text.kind == TD_TEXT_ENDED) return false;
    if (td_text_work_put(text, &c->text)) return true;
    run_text_job(c, true); /* text threads take no work any more: the server is closing */
    return false;
}

static td_call *call_new(td_server *s, struct MHD_Connection *connection) {
    td_connection *socket = td_connection_of(connection);
    td_call       *c = socket ? calloc(1, sizeof *c) : NULL;
    if (c)
        *c = (td_call){.server = s,
                       .connection = connection,
                       .answers = &s->answers,
                       .socket = socket,
                       .cors_origin = s->opt.cors_origin,
                       .text = {.connection = connection, .run = run_text_job, .call = c},
                       .route = "refused",
                       .number = atomic_fetch_add_explicit(&s->next_call, 1, memory_order_relaxed)};
    return c;
}

static void take_body(td_call *c, const char *data, size_t n) {
    td_server *s = c->server;
    if (c->broken) return;               /* what comes is dropped, so that the client can read the answer */
    if (n > TD_BODY_MAX - c->body.len) { /* a chunked body, whose length was not known before */
        c->broken = true;
        td_api_fail(&c->err, 413, "body_too_large", "The body is larger than %zu bytes.", TD_BODY_MAX);
        td_connection_refuse(c->socket, &c->err);
    } else if (atomic_fetch_add_explicit(&s->body_bytes, n, memory_order_relaxed) + n > BODIES_MAX) {
        fail_call(c, 503, "queue_full", "Too many large requests are being read.");
        c->body_counted += n;
    } else {
        c->body_counted += n;
        td_jbuf_put(&c->body, data, n);
        if (c->body.failed) fail_call(c, 500, "internal_error", "Out of memory.");
    }
    if (c->broken) td_jbuf_free(&c->body);
}

static void drop_body(td_call *c) {
    td_jbuf_free(&c->body);
    atomic_fetch_sub_explicit(&c->server->body_bytes, c->body_counted, memory_order_relaxed);
    c->body_counted = 0;
}

/* The headers that a page of the allowed origin may send: all that it asks for, since SDKs have headers of their own
 * (x-stainless-…). A value that is no list of header names is not echoed. */
static const char *headers_asked_for(struct MHD_Connection *connection) {
    static const char name[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ, ";
    const char       *asked = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    return asked && *asked && strspn(asked, name) == strlen(asked) ? asked : "Authorization, Content-Type";
}

static enum MHD_Result answer_preflight(td_call *c) {
    struct MHD_Response *r = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    const td_header      headers[] = {{"Allow", "GET, POST, DELETE, OPTIONS"},
                                      {"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                                      {"Access-Control-Allow-Headers", headers_asked_for(c->connection)},
                                      {"Access-Control-Max-Age", "600"}};
    return td_answer_response(c, MHD_HTTP_NO_CONTENT, r, headers, c->cors_origin ? 4 : 1);
}

static const char *after_prefix(const char *url) {
    for (size_t i = 0; i < sizeof ROUTES / sizeof *ROUTES; i++)
        if (ROUTES[i].flags & PREFIX && path_matches(&ROUTES[i], url)) return url + strlen(ROUTES[i].path);
    return "";
}

/* The path of a URI. "http://host:port/path", as sent to a proxy, means the same as "/path". */
static const char *path_of(const char *uri) {
    size_t scheme = !strncasecmp(uri, "http://", 7) ? 7 : !strncasecmp(uri, "https://", 8) ? 8 : 0;
    if (!scheme) return uri;
    const char *path = strchr(uri + scheme, '/');
    return path ? path : "/";
}

/* Answer a request whose body is not read: the connection ends with the answer. */
static enum MHD_Result answer_and_close(td_call *c) {
    c->broken = c->last = true;
    return td_answer_error(c, &c->err);
}

enum MHD_Result td_on_request(void *cls, struct MHD_Connection *connection, const char *uri, const char *method,
                              const char *version, const char *data, size_t *data_size, void **state) {
    td_server  *s = cls;
    td_call    *c = *state;
    const char *url = path_of(uri);
    if (!c) {
        c = *state = call_new(s, connection);
        if (!c || !td_connection_enter(c->socket, TD_READS_BODY)) return MHD_NO;
        bool preflight = !strcmp(method, "OPTIONS");
        if (preflight)
            c->route = "preflight";
        else
            choose_route(c, method, url);
        if (c->api) td_connection_set_errors(c->socket, c->api->write_error);
        td_trace_async_begin(c->number, &(td_trace_label){.tier = TD_TRACE_HTTP, .name = c->route});
        if (td_check_framing(connection, method, version, &c->err) != TD_OK) return answer_and_close(c);
        if (preflight) return MHD_YES;
        const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
        if (length && strtoull(length, NULL, 10) > TD_BODY_MAX) {
            td_api_fail(&c->err, 413, "body_too_large", "The body is larger than %zu bytes.", TD_BODY_MAX);
            return answer_and_close(c);
        }
        return MHD_YES;
    }
    if (c->generation) return td_route_resumed(c);
    if (*data_size) {
        take_body(c, data, *data_size);
        *data_size = 0;
        return MHD_YES;
    }
    if (!td_connection_enter(c->socket, TD_ANSWERS)) return MHD_NO;
    if (!strcmp(method, "OPTIONS")) return answer_preflight(c);
    if (c->broken) return td_answer_error(c, &c->err);
    if (works_on(c)) return MHD_YES;
    c->rest = after_prefix(url);
    uint64_t        begin = td_trace_begin();
    enum MHD_Result result = c->handle(c);
    td_trace_end(begin, &(td_trace_label){TD_TRACE_HTTP, c->route, {"request"}, {c->number}});
    drop_body(c);
    if (c->generation) td_text_work_left(&s->text, &c->text); /* the generation is watched from here on */
    return result;
}

void td_on_completed(void *cls, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode how) {
    td_server *s = cls;
    td_call   *c = *state;
    (void)connection;
    (void)how;
    if (!c) return;
    td_text_work_left(&s->text, &c->text);
    td_generation *g = c->generation;
    if (g) {
        td_generation_leave(g);
        if (g->slot != UINT32_MAX) td_unwatch(&s->watcher, g->slot);
        td_generation_unref(g);
    }
    td_trace_async_end(c->number, &(td_trace_label){.tier = TD_TRACE_HTTP, .name = c->route});
    drop_body(c);
    td_api_request_free(&c->req);
    td_jbuf_free(&c->reply);
    td_token_answer_free(c->tokens);
    td_kept_answer_free(c->kept);
    td_connection_enter(c->socket, TD_READS_HEAD);
    free(c);
    *state = NULL;
}
