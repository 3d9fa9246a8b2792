/* The server's life (bind, start, stop) and the way of a request from libmicrohttpd to its route. */
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "server/answer/answer.h"
#include "server/anthropic/messages.h"
#include "server/connection/framing.h"
#include "server/openai/completions.h"
#include "server/openai/responses.h"
#include "server/server_state.h"
#include "server/sglang/generate.h"

#define HTTP_THREADS 4
#define BODIES_MAX ((size_t)256 << 20) /* bytes of all bodies being read */
#define CONNECTION_MEMORY 65536        /* libmicrohttpd's pool per connection: headers (431 above) and buffers */
#define LISTEN_BACKLOG 512
#define DESCRIPTORS_SPARE 256
#define CANCEL_WAIT_S 10 /* how long the engine may take to end cancelled requests */

/* ---- routes ---- */

/* What is special about a route. */
enum {
    OPEN = 1,      /* needs no key */
    PREFIX = 2,    /* the path goes on after the one in the table */
    NO_BODY = 4,   /* a POST whose body need not be JSON */
    GENERATES = 8, /* refused while the server starts or stops */
    SPARED = 16,   /* answered to connections of the reserve, too */
    CONSOLE = 32,  /* of the page for browsers */
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
    {"POST", "/v1/completions", &td_api_completion, td_work_generate, td_route_generate, GENERATES},
    {"POST", "/v1/messages", &td_api_messages, td_work_generate, td_route_generate, GENERATES},
    {"POST", "/v1/messages/count_tokens", &td_api_messages, td_work_count_tokens, td_route_reply, 0},
    {"POST", "/generate", &td_api_generate, td_work_generate, td_route_generate, GENERATES},
    {"POST", "/v1/responses", &td_api_response, td_work_generate, td_route_generate, GENERATES},
    {"GET", "/v1/responses/", NULL, NULL, td_route_get_response, PREFIX},
    {"DELETE", "/v1/responses/", NULL, NULL, td_route_delete_response, PREFIX},
    {"POST", "/v1/responses/", NULL, NULL, td_route_cancel_response, PREFIX | NO_BODY},
    {"GET", "/v1/models", NULL, NULL, td_route_models, 0},
    {"GET", "/v1/models/", NULL, NULL, td_route_model, PREFIX},
    {"POST", "/tokenize", NULL, td_work_tokenize, td_route_reply, 0},
    {"POST", "/detokenize", NULL, td_work_detokenize, td_route_reply, 0},
    {"POST", "/flush_cache", NULL, NULL, td_route_flush_cache, NO_BODY},
    {"GET", "/flush_cache", NULL, NULL, td_route_flush_cache, 0},
    {"POST", "/reset_prefix_cache", NULL, NULL, td_route_flush_cache, NO_BODY}, /* the same in vLLM's name */
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

/* Another site's page may post a form or plain text here without being asked; JSON it may not. */
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
    if (!(found && found->flags & OPEN) && !authorized(s, c->connection))
        fail_call(c, 401, "invalid_api_key",
                  "This server needs an API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'.");
    else if (!path_known)
        c->broken = td_api_fail(&c->err, 404, "not_found", "There is no '%.200s' here; docs/server.md lists what there is.",
                                url) != TD_OK;
    else if (!found)
        c->broken = td_api_fail(&c->err, 405, "method_not_allowed", "'%.200s' does not take %.20s.", url, method) != TD_OK;
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

/* On a text thread. */
static void run_text_job(void *call, bool closing) {
    td_call *c = call;
    uint64_t begin = td_trace_begin();
    if (closing)
        c->failed = td_api_fail(&c->err, 503, "shutting_down", "The server is shutting down.") != TD_OK;
    else
        while (c->work(c)) {
        }
    td_trace_end(begin, &(td_trace_label){TD_TRACE_HTTP, c->route, {"request"}, {c->number}});
}

static td_call *call_new(td_server *s, struct MHD_Connection *connection) {
    td_connection *socket = td_connection_of(connection);
    td_call       *c = socket ? calloc(1, sizeof *c) : NULL;
    if (c)
        *c = (td_call){.server = s,
                       .connection = connection,
                       .socket = socket,
                       .cors_origin = s->opt.cors_origin,
                       .text = {.connection = connection, .run = run_text_job, .call = c},
                       .route = "refused",
                       .number = atomic_fetch_add_explicit(&s->next_call, 1, memory_order_relaxed)};
    return c;
}

static void take_body(td_call *c, const char *data, size_t n) {
    td_server *s = c->server;
    if (c->broken) return;               /* read and dropped, so that the client can read the answer */
    if (n > TD_BODY_MAX - c->body.len) { /* a chunked body, whose length is not known before */
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

/* SDKs send headers of their own (x-stainless-…), so a page of the allowed origin may send what it asks for: names of
 * headers, as a list. What is no such list is not echoed. */
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

/* "http://host:port/path", as to a proxy, means the same as "/path". */
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

/* libmicrohttpd calls once with the headers, then with pieces of the body, then without any; and again after a resume. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *uri, const char *method,
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
    if (c->work && !td_text_work_done(&s->text, &c->text)) {
        bool more = c->body.len > TD_TEXT_INLINE_BYTES || (c->api && c->api->long_texts) || c->work(c);
        if (more && td_text_work_put(&s->text, &c->text)) return MHD_YES;
        while (more) more = c->work(c); /* the server is closing */
    }
    c->rest = after_prefix(url);
    uint64_t        begin = td_trace_begin();
    enum MHD_Result result = c->handle(c);
    td_trace_end(begin, &(td_trace_label){TD_TRACE_HTTP, c->route, {"request"}, {c->number}});
    drop_body(c);
    if (c->generation) td_text_work_left(&s->text, &c->text); /* it is watched from here on */
    return result;
}

/* The answer was sent, or the connection broke. */
static void on_completed(void *cls, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode how) {
    td_server *s = cls;
    td_call   *c = *state;
    (void)connection;
    (void)how;
    if (!c) return;
    td_text_work_left(&s->text, &c->text);
    td_generation *g = c->generation;
    if (g) {
        pthread_mutex_lock(&g->lock);
        g->suspended = false;
        g->connection = NULL;
        pthread_mutex_unlock(&g->lock);
        td_generation_cancel(g);
        if (g->slot != UINT32_MAX) td_unwatch(&s->watcher, g->slot);
        td_generation_unref(g);
    }
    td_trace_async_end(c->number, &(td_trace_label){.tier = TD_TRACE_HTTP, .name = c->route});
    drop_body(c);
    td_api_request_free(&c->req);
    td_jbuf_free(&c->reply);
    td_connection_enter(c->socket, TD_READS_HEAD);
    free(c);
    *state = NULL;
}

static void log_mhd(void *cls, const char *fmt, va_list ap) TD_PRINTF(2, 0);
static void log_mhd(void *cls, const char *fmt, va_list ap) {
    char line[512];
    (void)cls;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\r\n")] = 0;
    td_debug("http: %s", line);
}

/* ---- a server from its start to its end ---- */

void td_server_options_init(td_server_options *o) {
    *o = (td_server_options){.host = "127.0.0.1",
                             .port = 30000,
                             .tool_call_parser = "auto",
                             .reasoning_parser = "auto",
                             .connections_max = 1024,
                             .stream_interval = 1,
                             .idle_timeout_s = 120,
                             .request_timeout_s = 60,
                             .stored_responses_max = 1024,
                             .stored_responses_mib = 64,
                             .watchdog_s = 300};
}

static int listen_socket(const struct addrinfo *a) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol), on = 1;
    if (fd < 0) return -1;
    /* Without it a port stays busy for a minute after its last connection. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0) return fd;
    int e = errno;
    close(fd);
    errno = e;
    return -1;
}

static void set_url(td_server *s) {
    struct sockaddr_storage at;
    socklen_t               len = sizeof at;
    unsigned                port = s->opt.port;
    if (getsockname(s->listen_fd, (struct sockaddr *)&at, &len) == 0)
        port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                              : ((struct sockaddr_in *)&at)->sin_port);
    bool v6 = strchr(s->opt.host, ':') != NULL;
    snprintf(s->url, sizeof s->url, "http://%s%.200s%s:%u", v6 ? "[" : "", s->opt.host, v6 ? "]" : "", port);
}

static td_status bind_address(td_server *s, td_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    char            port[8];
    snprintf(port, sizeof port, "%u", s->opt.port);
    int e = getaddrinfo(s->opt.host, port, &hints, &list);
    if (e) return td_fail(err, TD_EINVAL, "the host '%s' cannot be resolved: %s", s->opt.host, gai_strerror(e));
    for (const struct addrinfo *a = list; a && s->listen_fd < 0; a = a->ai_next) s->listen_fd = listen_socket(a);
    e = errno;
    freeaddrinfo(list);
    if (s->listen_fd >= 0) return TD_OK;
    if (e == EADDRINUSE)
        return td_fail(err, TD_EBUSY, "port %u on %s is in use by another program; stop it or choose another with --port",
                       s->opt.port, s->opt.host);
    return td_fail(err, TD_EINVAL, "%s port %u cannot be bound: %s", s->opt.host, s->opt.port, strerror(e));
}

/* Every connection is a descriptor: ask for as many as are allowed, with some to spare for the model's files. */
static void raise_descriptor_limit(uint32_t connections) {
    struct rlimit limit;
    rlim_t        want = (rlim_t)connections + DESCRIPTORS_SPARE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want) return;
    limit.rlim_cur = want < limit.rlim_max ? want : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < want)
        td_warn("%u connections are allowed, but only %llu open files", connections, (unsigned long long)limit.rlim_cur);
}

static void tell_pulse(const td_server *s) {
    td_engine_stats st;
    td_engine_get_stats(s->engine, &st);
    td_error        why = {0};
    td_server_pulse p = {.lost = td_engine_is_lost(s->engine, &why),
                         .stalled = atomic_load_explicit(&s->watcher.stalled, memory_order_relaxed),
                         .running = st.running,
                         .queued = st.queued};
    s->opt.on_pulse(s->opt.pulse_user, &p);
}

/* Once a second, on the watcher thread. */
static void tick(void *user) {
    td_server *s = user;
    td_connections_sweep(&s->connections);
    if (s->opt.on_pulse && (td_phase(s) == TD_SERVER_READY || td_phase(s) == TD_SERVER_DRAINING)) tell_pulse(s);
}

td_status td_server_bind(const td_server_options *o, td_server **out, td_error *err) {
    *out = NULL;
    if (o->connections_max == 0 || o->connections_max > TD_SERVER_CONNECTIONS_MAX || o->stream_interval == 0)
        return td_fail(err, TD_EINVAL, "connections_max must be 1 to %d and stream_interval at least 1",
                       TD_SERVER_CONNECTIONS_MAX);
    td_server *s = calloc(1, sizeof *s);
    if (!s) return td_fail(err, TD_ENOMEM, "out of memory");
    s->opt = *o;
    s->listen_fd = -1;
    td_text_work_init(&s->text);
    td_connections_init(&s->connections, o->connections_max, o->idle_timeout_s, o->request_timeout_s);
    td_generations_init(&s->generations, o->stream_interval);
    td_grammar_cache_init(&s->model.grammars);
    td_response_store_init(&s->responses, o->stored_responses_max, (size_t)o->stored_responses_mib << 20);
    td_status st = td_watcher_init(&s->watcher, o->connections_max, o->watchdog_s, tick, s);
    st = st == TD_OK ? bind_address(s, err) : td_fail(err, st, "out of memory");
    if (st != TD_OK) {
        td_server_free(s);
        return st;
    }
    raise_descriptor_limit(o->connections_max + TD_CONNECTIONS_RESERVE);
    set_url(s);
    *out = s;
    return TD_OK;
}

td_status td_server_start(td_server *s, td_engine *engine, td_error *err) {
    td_served_model_options about = {s->opt.served_model_name, s->opt.tool_call_parser, s->opt.reasoning_parser};
    td_generations         *all = &s->generations;
    s->engine = engine;
    s->started_s = (int64_t)time(NULL);
    TD_TRY(td_served_model_open(&s->model, engine, &about, err));
    all->engine = engine;
    all->tokenizer = s->model.tokenizer;
    all->model_name = s->model.name;
    if (getrandom(&all->id_seed, sizeof all->id_seed, 0) != sizeof all->id_seed) all->id_seed = (uint64_t)s->started_s;
    TD_TRY(td_watcher_start(&s->watcher, engine, &all->wake_fd, err));
    TD_TRY(td_text_work_start(&s->text, err));
    unsigned threads = s->opt.connections_max < HTTP_THREADS ? s->opt.connections_max : HTTP_THREADS;
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL,
        NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, td_connections_notify, &s->connections, MHD_OPTION_URI_LOG_CALLBACK, td_note_uri, NULL,
        MHD_OPTION_THREAD_POOL_SIZE, threads, MHD_OPTION_CONNECTION_LIMIT, UINT_MAX /* td_connections has the limit */,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT, s->opt.idle_timeout_s,
        MHD_OPTION_END);
    if (!s->daemon) return td_fail(err, TD_EIO, "the HTTP threads cannot be started: %s", strerror(errno));
    if (listen(s->listen_fd, LISTEN_BACKLOG) != 0)
        return td_fail(err, TD_EBUSY, "port %u on %s cannot be listened on: %s", s->opt.port, s->opt.host, strerror(errno));
    s->acceptor = (td_acceptor){.fd = s->listen_fd, .daemon = s->daemon, .connections = &s->connections};
    return td_acceptor_start(&s->acceptor, err);
}

void td_server_ready(td_server *s) {
    atomic_store_explicit(&s->phase, TD_SERVER_READY, memory_order_relaxed);
}

const char *td_server_url(const td_server *s) {
    return s->url;
}
const char *td_server_model_name(const td_server *s) {
    return s->model.name;
}

void td_server_drain(td_server *s) {
    atomic_store_explicit(&s->phase, TD_SERVER_DRAINING, memory_order_relaxed);
}

/* Have every running generation answer (or, when abort, drop) its client. */
static void end_all(td_server *s, bool abort_them) {
    for (uint32_t i = 0; i < s->watcher.n_slots; i++) {
        td_generation *g = td_watched(&s->watcher, i);
        if (!g) continue;
        if (abort_them)
            td_generation_abort(g);
        else
            td_generation_fail(g, 503, "shutting_down", "The server is shutting down.");
        td_generation_unref(g);
    }
}

bool td_server_stop(td_server *s, double grace_s) {
    atomic_store_explicit(&s->phase, TD_SERVER_STOPPING, memory_order_relaxed);
    if (!s->daemon) {
        td_text_work_stop(&s->text);
        td_watcher_stop(&s->watcher);
        return true;
    }
    td_acceptor_stop(&s->acceptor);
    td_text_work_stop(&s->text); /* what it still prepares runs in the grace time */
    if (!td_watcher_close(&s->watcher, grace_s)) {
        end_all(s, false);
        if (!td_watcher_await_idle(&s->watcher, 2)) end_all(s, true); /* a reader that takes nothing */
    }
    /* libmicrohttpd may not be stopped while a connection is suspended: none is, and a closed watcher keeps it so. Nor while it
     * reads a malformed request: it takes no answer then, and writes the one that it has not taken (0.9.75: a null pointer).
     */
    td_connections_end(&s->connections);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    bool ended = td_generations_await_end(&s->generations, CANCEL_WAIT_S);
    if (!ended) td_err("the engine did not end its requests within %d s", CANCEL_WAIT_S);
    td_watcher_stop(&s->watcher);
    return ended;
}

void td_server_stop_now(td_server *s) {
    td_watcher_hurry(&s->watcher);
}

void td_server_free(td_server *s) {
    if (!s) return;
    if (s->listen_fd >= 0) close(s->listen_fd);
    td_watcher_free(&s->watcher);
    td_generations_free(&s->generations);
    td_connections_free(&s->connections);
    td_grammar_cache_close(&s->model.grammars);
    td_response_store_close(&s->responses);
    free(s);
}
