/*
 * The watcher thread: sees clients leave while libmicrohttpd has their connections suspended, cancels what the engine thread
 * may not cancel itself, ends connections that take too long, and is the watchdog over the engine's progress.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/thread.h"
#include "server/generation/generation.h"

#define EVENTS_AT_ONCE 64
#define WAKE_KEY UINT64_MAX
#define STOP_KEY_COUNT (1ull << 32) /* added to the event counter: end the thread */
#define TICK_MS 1000

static uint64_t slot_key(uint32_t slot, uint32_t serial) {
    return (uint64_t)serial << 32 | slot;
}

uint32_t td_watch(td_server *s, td_generation *g, int fd) {
    uint32_t slot = UINT32_MAX;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->opt.connections_max && slot == UINT32_MAX && !s->closing; i++)
        if (!s->slots[i].generation) slot = i;
    if (slot != UINT32_MAX) {
        td_watch_slot *w = &s->slots[slot];
        w->generation = g;
        w->serial = (w->serial + 1) & 0x7fffffff; /* never all ones: that key is the event counter's */
        w->fd = fd;
        s->n_watched++;
        atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
        struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = slot_key(slot, w->serial)};
        /* Without it a client that leaves is only noticed when its next token is sent: no reason to refuse. */
        if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
            td_warn("watching a connection failed: %s", strerror(errno));
    }
    pthread_mutex_unlock(&s->lock);
    return slot;
}

void td_unwatch(td_server *s, uint32_t slot) {
    pthread_mutex_lock(&s->lock);
    td_watch_slot *w = &s->slots[slot];
    td_generation *g = w->generation;
    w->generation = NULL;
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
    s->n_watched--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    td_generation_unref(g);
}

static void add_to_event(td_server *s, uint64_t n) {
    /* Fails only when the counter is at its limit, and then the thread is awake anyway. */
    if (write(s->event_fd, &n, sizeof n) < 0) return;
}

void td_watcher_wake(td_server *s) {
    add_to_event(s, 1);
}

/* A reference to the generation of a slot; NULL when the slot is free or its serial is another (0: any). */
static td_generation *take_ref(td_server *s, uint32_t slot, uint32_t serial) {
    pthread_mutex_lock(&s->lock);
    td_watch_slot *w = &s->slots[slot];
    td_generation *g = serial == 0 || serial == w->serial ? w->generation : NULL;
    if (g) atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&s->lock);
    return g;
}

td_generation *td_watched(td_server *s, uint32_t slot) {
    return take_ref(s, slot, 0);
}

static void attend_all(td_server *s) {
    for (uint32_t i = 0; i < s->opt.connections_max; i++) {
        td_generation *g = td_watched(s, i);
        if (!g) continue;
        td_generation_attend(g);
        td_generation_unref(g);
    }
}

static void client_left(td_server *s, uint64_t key) {
    td_generation *g = take_ref(s, (uint32_t)key, (uint32_t)(key >> 32));
    if (!g) return;
    td_debug("request %s: the client has gone", g->id);
    td_generation_abort(g);
    td_generation_unref(g);
}

typedef struct {
    uint64_t steps;
    time_t   since_s; /* when steps last moved, or nothing ran */
} progress;

void td_watchdog_describe(td_server *s, char *text, size_t size) {
    static const char *const phases[] = {[TD_STEP_SCHEDULING] = "being scheduled",
                                         [TD_STEP_FORWARD] = "in its forward pass",
                                         [TD_STEP_HEAD] = "in the head",
                                         [TD_STEP_SAMPLING] = "sampling",
                                         [TD_STEP_DELIVERING] = "delivering its tokens",
                                         [TD_STEP_DRAFTING] = "drafting the next ones"};
    td_engine_step           step;
    td_engine_get_step(s->engine, &step);
    bool on_tiers = step.phase == TD_STEP_FORWARD || step.phase == TD_STEP_HEAD || step.phase == TD_STEP_DRAFTING;
    if (step.phase == TD_STEP_NONE)
        snprintf(text, size, "no step has ended for %u s, and none is under way", s->opt.watchdog_s);
    else
        snprintf(text, size,
                 "no step has ended for %u s: step %llu (%u tokens, %u sequences) began %.0f s ago and is %s%s%s",
                 s->opt.watchdog_s, (unsigned long long)step.number, step.tokens, step.sequences, step.seconds,
                 phases[step.phase], on_tiers ? ", " : "",
                 !on_tiers       ? ""
                 : step.where[0] ? step.where
                                 : "with no operation under way on either tier");
}

static void watchdog(td_server *s, progress *p) {
    td_engine_stats st;
    td_engine_step  step;
    struct timespec now;
    td_engine_get_stats(s->engine, &st);
    td_engine_get_step(s->engine, &step);
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t steps = st.steps_prefill + st.steps_decode;
    if (steps != p->steps || (st.running == 0 && step.phase == TD_STEP_NONE)) *p = (progress){steps, now.tv_sec};
    bool stalled = now.tv_sec - p->since_s >= (time_t)s->opt.watchdog_s;
    if (stalled == atomic_load_explicit(&s->stalled, memory_order_relaxed)) return;
    if (stalled) {
        char why[TD_ERROR_TEXT_MAX];
        td_watchdog_describe(s, why, sizeof why);
        td_err(TD_FIGURE("event", "stalled") ": %s", why);
    } else {
        td_info("steps go on");
    }
    atomic_store_explicit(&s->stalled, stalled, memory_order_relaxed);
}

static void tell_pulse(td_server *s) {
    td_engine_stats st;
    td_engine_get_stats(s->engine, &st);
    td_error        why = {0};
    td_server_pulse p = {.lost = td_engine_is_lost(s->engine, &why),
                         .stalled = atomic_load_explicit(&s->stalled, memory_order_relaxed),
                         .running = st.running,
                         .queued = st.queued};
    s->opt.on_pulse(s->opt.pulse_user, &p);
}

static void *watch_loop(void *arg) {
    td_server         *s = arg;
    struct epoll_event ev[EVENTS_AT_ONCE];
    struct timespec    now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    progress p = {0, now.tv_sec};
    time_t   swept_s = now.tv_sec;
    for (;;) {
        int n = epoll_wait(s->epoll_fd, ev, EVENTS_AT_ONCE, TICK_MS);
        for (int i = 0; i < n; i++) {
            uint64_t count;
            if (ev[i].data.u64 != WAKE_KEY) {
                client_left(s, ev[i].data.u64);
            } else if (read(s->event_fd, &count, sizeof count) == sizeof count) {
                if (count >= STOP_KEY_COUNT) return NULL;
                attend_all(s);
            }
        }
        if (s->opt.watchdog_s) watchdog(s, &p);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec == swept_s) continue;
        td_connections_sweep(&s->connections);
        if (s->opt.on_pulse && (td_phase(s) == TD_SERVER_READY || td_phase(s) == TD_SERVER_DRAINING)) tell_pulse(s);
        swept_s = now.tv_sec;
    }
}

td_status td_watcher_start(td_server *s, td_error *err) {
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = WAKE_KEY};
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->event_fd < 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->event_fd, &ev) != 0)
        return td_fail(err, TD_EIO, "the server's event queue cannot be made: %s", strerror(errno));
    TD_TRY(td_thread_start(&s->watcher, "watcher", watch_loop, s, err));
    s->watching = true;
    return TD_OK;
}

void td_watcher_stop(td_server *s) {
    if (!s->watching) return;
    add_to_event(s, STOP_KEY_COUNT);
    pthread_join(s->watcher, NULL);
    s->watching = false;
}
