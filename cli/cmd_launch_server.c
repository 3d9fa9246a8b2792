/* `tandem launch_server` binds the port, loads the model, and serves until a signal ends it. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/launch_flags.h"
#include "cli/service_notify.h"
#include "core/error.h"
#include "core/log/log.h"
#include "core/log/log_writer.h"
#include "core/log/trace.h"
#include "core/plural.h"
#include "core/threads/thread.h"

/* Read by jemalloc at the start: what was freed goes back to the system within a second, even when the thread that freed it
 * does nothing more. By default the memory of large texts stays with the idle thread that read them. */
extern const char *malloc_conf;
const char        *malloc_conf = "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0";

#define EXIT_USAGE 2
#define LAST_LINES_S 1 /* how long the process waits at its end until the log's reader has taken the last lines */

/* SIGTERM, SIGINT and SIGHUP are blocked in all threads but one, which waits for them. */
typedef struct {
    sigset_t        set;
    pthread_t       thread;
    sem_t           stop;   /* posted by each signal while serving and stopping */
    pthread_mutex_t lock;   /* guards what follows */
    td_server      *server; /* set while the server serves and stops; NULL: a signal ends the process at once */
    bool            stopping;
} signals;

static void *take_signals(void *arg) {
    signals *s = arg;
    for (int number; sigwait(&s->set, &number) == 0;) {
        pthread_mutex_lock(&s->lock);
        if (!s->server) {
            td_info("SIG%s: stopped before serving", sigabbrev_np(number));
            td_trace_stop();
            td_log_writer_flush(LAST_LINES_S);
            _exit(0);
        }
        if (s->stopping) td_server_stop_now(s->server);
        s->stopping = true;
        sem_post(&s->stop);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

/* Called when a page of a mapped model file cannot be read: the file was cut short, or the disk failed. Any request may need
 * that page, so the process ends. */
static void tell_sigbus(int number) {
    static const char text[] =
        "tandem launch_server: a mapped model file cannot be read any more: it was changed while it was served, or its disk "
        "failed "
        "(SIGBUS)\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    signal(number, SIG_DFL); /* the read is repeated when this function returns, and then ends the process */
}

static void signals_serve(signals *s, td_server *server) {
    pthread_mutex_lock(&s->lock);
    s->server = server;
    pthread_mutex_unlock(&s->lock);
}

static td_status signals_start(signals *s, td_error *err) {
    signal(SIGPIPE, SIG_IGN); /* writing to a client that has left fails with an error instead */
    signal(SIGBUS, tell_sigbus);
    signal(SIGUSR1, SIG_IGN); /* the server has no use for these two; by default they would end it */
    signal(SIGUSR2, SIG_IGN);
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGTERM);
    sigaddset(&s->set, SIGINT);
    struct sigaction hangup;
    bool             ignored = sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN; /* set by nohup */
    if (!ignored) sigaddset(&s->set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &s->set, NULL); /* inherited by every thread started from here on */
    sem_init(&s->stop, 0, 0);
    pthread_mutex_init(&s->lock, NULL);
    return td_thread_start(&s->thread, "signals", take_signals, s, err);
}

/* Waits again after EINTR. Ignored signals cause no EINTR on Linux, but they do under emulators (qemu-user). */
static void await(sem_t *s) {
    while (sem_wait(s) != 0 && errno == EINTR) continue;
}

static td_log_level log_level(const char *name) {
    static const char *const names[] = {"debug", "info", "warning", "error"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) return (td_log_level)i;
    return TD_LOG_INFO;
}

/* ---- warm-up: one token is generated, which touches pages, wakes threads, and shows whether the model is broken ---- */

typedef struct {
    sem_t     done;
    td_finish finish;
    td_error  error;
} warmup_state;

static void on_warmup(void *user, const td_event *e) {
    warmup_state *w = user;
    if (e->finish == TD_FINISH_NONE) return;
    w->finish = e->finish;
    if (e->error) w->error = *e->error;
    sem_post(&w->done);
}

static td_status warm_up(td_engine *engine, td_error *err) {
    warmup_state      w = {0};
    td_request_params p;
    td_request       *r;
    const uint32_t    ids[1] = {0}; /* any token will do */
    td_request_params_init(&p);
    p.prompt = ids;
    p.n_prompt = 1;
    p.max_tokens = 1;
    p.on_event = on_warmup;
    p.user = &w;
    sem_init(&w.done, 0, 0);
    td_status st = td_engine_submit(engine, &p, &r, err);
    if (st == TD_OK) {
        await(&w.done);
        td_request_release(r);
        if (w.finish == TD_FINISH_ERROR) st = td_fail(err, TD_EDEVICE, "the warm-up request failed: %s", w.error.text);
    }
    sem_destroy(&w.done);
    return st;
}

/* ---- serve ---- */

/* The service manager that started the process, and the state that it was told last. */
typedef struct {
    td_service_notify notify;
    td_server_pulse   last;
} service;

/* Called each second. Feeds the service manager's watchdog while steps go on and all cards serve, and tells it the load. */
static void on_pulse(void *user, const td_server_pulse *p) {
    service *s = user;
    if (!p->stalled && !p->lost) td_service_notify_alive(&s->notify);
    if (!memcmp(p, &s->last, sizeof *p)) return;
    s->last = *p;
    td_service_notify_tell(&s->notify, NULL, "%s: %u request%s running, %u waiting",
                           p->lost      ? "a card is lost (/health says which)"
                           : p->stalled ? "stalled (/health says in what)"
                                        : "serving",
                           p->running, td_plural(p->running), p->queued);
}

/* Gives routers time to send requests elsewhere: /health answers 503 while requests are still taken. A second signal ends
 * this wait. */
static void drain(const td_launch_options *o, td_server *server, signals *sig) {
    if (o->shutdown_delay_s <= 0) return;
    td_info("draining: requests are taken for %g s more, and /health says 503", o->shutdown_delay_s);
    td_server_drain(server);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    double fraction = o->shutdown_delay_s - floor(o->shutdown_delay_s);
    end.tv_sec += (time_t)o->shutdown_delay_s;
    end.tv_nsec += (long)(fraction * 1e9);
    if (end.tv_nsec >= 1000000000) end = (struct timespec){end.tv_sec + 1, end.tv_nsec - 1000000000};
    while (sem_timedwait(&sig->stop, &end) != 0 && errno == EINTR) continue;
}

static td_status serve(td_launch_options *o, td_server *server, td_engine *engine, signals *sig, service *sv,
                       td_error *err) {
    TD_TRY(td_server_start(server, engine, err));
    if (!o->skip_warmup) TD_TRY(warm_up(engine, err));
    signals_serve(sig, server);
    td_server_ready(server);
    td_service_notify_tell(&sv->notify, "READY=1", "serving %s at %s", td_server_model_name(server), td_server_url(server));
    printf("tandem: serving %s at %s\n", td_server_model_name(server), td_server_url(server));
    fflush(stdout);
    await(&sig->stop);
    drain(o, server, sig);
    td_service_notify_tell(&sv->notify, "STOPPING=1", "stopping: running requests get %g s", o->shutdown_grace_s);
    td_info("stopping: running requests get %g s; a second signal ends them at once", o->shutdown_grace_s);
    return TD_OK;
}

static td_status launch(td_launch_options *o, td_error *err) {
    static signals sig; /* the signal thread lives to the end of the process */
    service        sv = {0};
    td_server     *server;
    td_engine     *engine;
    td_kv_events  *kv_events = NULL;
    td_kv_store   *kv_store = NULL;
    td_jbuf        flags = {0};
    TD_TRY(td_service_notify_open(&sv.notify, err));
    td_flags_write_json(&o->command, &flags);
    td_jbuf_put(&flags, "", 1);
    if (flags.failed) return td_fail(err, TD_ENOMEM, "out of memory");
    o->server.flags_json = flags.data;
    o->server.on_pulse = on_pulse;
    o->server.pulse_user = &sv;

    td_status st = signals_start(&sig, err);
    if (st == TD_OK) st = td_log_writer_start(err); /* so that the engine never waits for a slow reader of the log */
    if (st == TD_OK) st = td_server_bind(&o->server, &server, err);
    if (st == TD_OK) {
        td_service_notify_tell(&sv.notify, NULL, "loading %s", o->engine.model_path);
        if (o->trace) st = td_trace_start(o->trace, TD_TRACE_BYTES_MAX, err);
        if (st == TD_OK && o->kv_events.on) st = td_kv_events_open(&o->kv_events, &kv_events, err);
        if (kv_events) o->engine.cache_listener = td_kv_events_listener(kv_events);
        if (st == TD_OK && o->has_kv_store) st = td_kv_store_open(&o->kv_store_settings, &kv_store, err);
        if (kv_store) o->engine.page_store = td_kv_store_pages(kv_store);
        if (st == TD_OK) st = td_engine_open(&o->engine, &engine, err);
        if (st == TD_OK) {
            st = serve(o, server, engine, &sig, &sv, err);
            if (st == TD_OK && td_engine_is_lost(engine, err))
                st = TD_ELOST; /* a status of failure makes a service manager start it again */
            bool ended = td_server_stop(server, st == TD_OK ? o->shutdown_grace_s : 0);
            signals_serve(&sig, NULL); /* from here on a signal ends the process at once */
            if (!ended) {              /* the engine is stuck, so closing it would never return */
                td_trace_stop();
                td_log_writer_flush(LAST_LINES_S);
                _exit(1);
            }
            td_engine_close(engine, 0);
        }
        td_kv_store_close(kv_store);
        td_kv_events_close(kv_events);
        td_trace_stop();
        td_server_free(server);
    }
    if (st != TD_OK) td_service_notify_tell(&sv.notify, NULL, "%s", err->text);
    td_service_notify_close(&sv.notify);
    td_jbuf_free(&flags);
    return st;
}

/* Whether a start would take the address. Its port may be in use, as by the server whose new flags are checked. */
static td_status check_address(const td_launch_options *o, td_error *err) {
    td_server_options any_port = o->server;
    td_server        *server;
    any_port.port = 0;
    TD_TRY(td_server_bind(&any_port, &server, err));
    td_server_free(server);
    return TD_OK;
}

int td_cmd_launch_server(int argc, char **argv) {
    td_launch_options o;
    td_error          err = {0};
    td_status         st = td_launch_flags_parse(argc, argv, &o, &err);
    int               code = EXIT_USAGE;
    if (st == TD_OK && o.help) {
        td_flags_print_help(&o.command, o.help, stdout);
        code = 0;
    } else if (st == TD_OK && o.help_markdown) {
        td_launch_flags_print_markdown(&o, stdout);
        code = 0;
    } else if (st == TD_OK && o.check) {
        td_jbuf b = {0};
        td_flags_write_json(&o.command, &b);
        printf("%.*s\n", (int)b.len, b.data);
        td_jbuf_free(&b);
        st = check_address(&o, &err);
        if (st == TD_OK) st = td_engine_check(&o.engine, &err);
        code = st == TD_OK ? 0 : 1;
    } else if (st == TD_OK) {
        td_log_set_level(log_level(o.log_level));
        td_log_set_format(!strcmp(o.log_format, "json") ? TD_LOG_JSON : TD_LOG_TEXT);
        st = launch(&o, &err);
        code = st == TD_OK ? 0 : 1;
    }
    /* If nobody reads the log, the last line goes to stderr without a wait. */
    if (td_log_writer_flush(LAST_LINES_S) && st != TD_OK) fprintf(stderr, "tandem launch_server: %s\n", err.text);
    td_launch_options_free(&o);
    return code;
}
