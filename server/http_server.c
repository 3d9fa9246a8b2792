/* The server's life: bind, start, stop. */
#include "server/server.h"

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
#include "server/connection/framing.h"
#include "server/connection/site.h"
#include "server/http_request.h"
#include "server/server_state.h"

#define HTTP_THREADS 4
#define CONNECTION_MEMORY 65536 /* libmicrohttpd's pool per connection: headers (431 above) and buffers */
#define LISTEN_BACKLOG 512
#define DESCRIPTORS_SPARE 256
#define CANCEL_WAIT_S 10 /* how long the engine may take to end cancelled requests */

static void log_mhd(void *cls, const char *fmt, va_list ap) TD_PRINTF(2, 0);
static void log_mhd(void *cls, const char *fmt, va_list ap) {
    char line[512];
    (void)cls;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\r\n")] = 0;
    td_debug("http: %s", line);
}

void td_server_options_init(td_server_options *o) {
    *o = (td_server_options){.host = "127.0.0.1",
                             .port = 30000,
                             .tool_call_parser = "auto",
                             .reasoning_parser = "auto",
                             .connections_max = 1024,
                             .stream_interval = 1,
                             .idle_timeout_s = 120,
                             .request_timeout_s = 60,
                             .answers_mib = 64,
                             .stored_responses_max = 1024,
                             .stored_responses_mib = 64,
                             .background_max = 64,
                             .background_timeout_s = 86400,
                             .background_events_mib = 64,
                             .background_events_s = 300,
                             .watchdog_s = 300};
}

static int listen_socket(const struct addrinfo *a) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol), on = 1;
    if (fd < 0) return -1;
    /* Without SO_REUSEADDR a port stays busy for a minute after its last connection. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0) return fd;
    int e = errno;
    close(fd);
    errno = e;
    return -1;
}

/* Find out where the server can be reached: its URL, and by whom. Others need a key, or somebody's word that they need
 * none. */
static td_status note_address(td_server *s, td_error *err) {
    struct sockaddr_storage at = {0};
    socklen_t               len = sizeof at;
    unsigned                port = s->opt.port;
    if (getsockname(s->listen_fd, (struct sockaddr *)&at, &len) == 0)
        port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                              : ((struct sockaddr_in *)&at)->sin_port);
    s->is_local = td_is_loopback((struct sockaddr *)&at);
    if (!s->is_local && !s->opt.api_key && !s->opt.allow_no_key)
        return td_fail(
            err, TD_EINVAL,
            "everybody who reaches %s could use this server, read its metrics and end its requests: give --api-key "
            "KEY, or --allow-no-key where that is meant",
            s->opt.host);
    bool v6 = strchr(s->opt.host, ':') != NULL;
    snprintf(s->url, sizeof s->url, "http://%s%.200s%s:%u", v6 ? "[" : "", s->opt.host, v6 ? "]" : "", port);
    return TD_OK;
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

/* Raise the limit of open files: every connection is a descriptor, and the model's files need some. */
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
    s->answers.max = (size_t)o->answers_mib << 20;
    s->generations.answers = &s->answers;
    td_grammar_cache_init(&s->model.grammars);
    td_response_store_init(&s->responses, o->stored_responses_max, (size_t)o->stored_responses_mib << 20);
    td_background_limits limits = {o->background_max, o->background_timeout_s, o->background_events_s,
                                   (size_t)o->background_events_mib << 20};
    td_background_init(&s->background, &limits, &s->generations, &s->watcher);
    td_status st = td_watcher_init(&s->watcher, o->connections_max + o->background_max, o->watchdog_s, tick, s);
    st = st == TD_OK ? bind_address(s, err) : td_fail(err, st, "out of memory");
    if (st == TD_OK) st = note_address(s, err);
    if (st != TD_OK) {
        td_server_free(s);
        return st;
    }
    raise_descriptor_limit(o->connections_max + TD_CONNECTIONS_RESERVE);
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
    TD_TRY(td_background_start(&s->background, err));
    unsigned threads = s->opt.connections_max < HTTP_THREADS ? s->opt.connections_max : HTTP_THREADS;
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL,
        NULL, td_on_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL, MHD_OPTION_NOTIFY_COMPLETED, td_on_completed, s,
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

/* End every running generation: with an answer to its client, or, with abort_them, by closing the connection. */
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
        bool idle = td_text_work_stop(&s->text, grace_s);
        td_background_stop(&s->background);
        td_watcher_stop(&s->watcher);
        return idle;
    }
    td_acceptor_stop(&s->acceptor);
    /* Requests that it still prepares run in the grace time. */
    bool has_texts = !td_text_work_stop(&s->text, grace_s);
    if (!td_watcher_close(&s->watcher, has_texts ? 0 : grace_s)) {
        end_all(s, false);
        if (!td_watcher_await_idle(&s->watcher, 2)) end_all(s, true); /* some clients do not read */
    }
    td_background_stop(&s->background);
    /* libmicrohttpd may not be stopped while a connection is suspended. None is, and a closed watcher keeps it so. It may
     * not be stopped either while it reads a malformed request: it then writes an answer that was not taken (0.9.75: a null
     * pointer). */
    td_connections_end(&s->connections);
    if (has_texts) { /* and its connection is suspended */
        td_err("the text of a request was still being read when the grace time ended");
        return false;
    }
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    bool ended = td_generations_await_end(&s->generations, CANCEL_WAIT_S);
    if (!ended) td_err("the engine did not end its requests within %d s", CANCEL_WAIT_S);
    td_watcher_stop(&s->watcher);
    return ended;
}

void td_server_stop_now(td_server *s) {
    td_text_work_hurry(&s->text);
    td_watcher_hurry(&s->watcher);
}

void td_server_free(td_server *s) {
    if (!s) return;
    if (s->listen_fd >= 0) close(s->listen_fd);
    td_watcher_free(&s->watcher);
    td_background_free(&s->background);
    td_generations_free(&s->generations);
    td_connections_free(&s->connections);
    td_grammar_cache_close(&s->model.grammars);
    td_response_store_close(&s->responses);
    free(s);
}
