#include "server/generation/watcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/plural.h"
#include "core/threads/thread.h"

#define EVENTS_AT_ONCE 64
#define WAKE_KEY UINT64_MAX
#define STOP_KEY_COUNT (1ull << 32) /* added to the event counter: end the thread */
#define TICK_MS 1000

static uint64_t slot_key(uint32_t slot, uint32_t serial) {
    return (uint64_t)serial << 32 | slot;
}

td_status td_watcher_init(td_watcher *w, uint32_t n_slots, uint32_t watchdog_s, void (*tick)(void *user), void *tick_user) {
    *w = (td_watcher){.n_slots = n_slots,
                      .watchdog_s = watchdog_s,
                      .tick = tick,
                      .tick_user = tick_user,
                      .slots = calloc(n_slots, sizeof *w->slots),
                      .epoll_fd = -1,
                      .event_fd = -1};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    return w->slots ? TD_OK : TD_ENOMEM;
}

void td_watcher_free(td_watcher *w) {
    if (w->epoll_fd >= 0) close(w->epoll_fd);
    if (w->event_fd >= 0) close(w->event_fd);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w->slots);
}

/* ---- the slots ---- */

uint32_t td_watch(td_watcher *w, td_generation *g, int fd) {
    uint32_t slot = UINT32_MAX;
    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->n_slots && slot == UINT32_MAX && !w->closing; i++)
        if (!w->slots[i].generation) slot = i;
    if (slot != UINT32_MAX) {
        td_watch_slot *at = &w->slots[slot];
        at->generation = g;
        at->serial = (at->serial + 1) & 0x7fffffff; /* never all ones: that key is the event counter's */
        at->fd = fd;
        w->n_watched++;
        td_generation_ref(g);
        struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = slot_key(slot, at->serial)};
        /* If this fails, a client that leaves is noticed when its next token is sent: no reason to refuse. */
        if (fd >= 0 && epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
            td_warn("watching a connection failed: %s", strerror(errno));
    }
    pthread_mutex_unlock(&w->lock);
    return slot;
}

void td_unwatch(td_watcher *w, uint32_t slot) {
    pthread_mutex_lock(&w->lock);
    td_watch_slot *at = &w->slots[slot];
    td_generation *g = at->generation;
    at->generation = NULL;
    if (at->fd >= 0) epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, at->fd, NULL);
    w->n_watched--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    td_generation_unref(g);
}

/* A reference to the generation of a slot; NULL when the slot is free or its serial is another (0: any). */
static td_generation *take_ref(td_watcher *w, uint32_t slot, uint32_t serial) {
    pthread_mutex_lock(&w->lock);
    td_watch_slot *at = &w->slots[slot];
    td_generation *g = serial == 0 || serial == at->serial ? at->generation : NULL;
    if (g) td_generation_ref(g);
    pthread_mutex_unlock(&w->lock);
    return g;
}

td_generation *td_watched(td_watcher *w, uint32_t slot) {
    return take_ref(w, slot, 0);
}

/* ---- the end ---- */

bool td_watcher_close(td_watcher *w, double seconds) {
    pthread_mutex_lock(&w->lock);
    bool idle = td_await_zero(&w->changed, &w->lock, &w->n_watched, &w->hurry, seconds);
    w->closing = true; /* under the same lock: no generation starts in between */
    pthread_mutex_unlock(&w->lock);
    return idle;
}

bool td_watcher_await_idle(td_watcher *w, double seconds) {
    pthread_mutex_lock(&w->lock);
    bool idle = td_await_zero(&w->changed, &w->lock, &w->n_watched, NULL, seconds);
    pthread_mutex_unlock(&w->lock);
    return idle;
}

void td_watcher_hurry(td_watcher *w) {
    pthread_mutex_lock(&w->lock);
    w->hurry = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* ---- the thread ---- */

static void attend_all(td_watcher *w) {
    for (uint32_t i = 0; i < w->n_slots; i++) {
        td_generation *g = td_watched(w, i);
        if (!g) continue;
        td_generation_attend(g);
        td_generation_unref(g);
    }
}

static void client_left(td_watcher *w, uint64_t key) {
    td_generation *g = take_ref(w, (uint32_t)key, (uint32_t)(key >> 32));
    if (!g) return;
    td_debug("request %s: the client has gone", g->id);
    td_generation_abort(g);
    td_generation_unref(g);
}

typedef struct {
    uint64_t steps;
    time_t   since_s; /* since when requests run and no step has ended */
} progress;

void td_watchdog_describe(const td_watcher *w, char *text, size_t size) {
    static const char *const phases[] = {[TD_STEP_SCHEDULING] = "being scheduled",
                                         [TD_STEP_FORWARD] = "in its forward pass",
                                         [TD_STEP_HEAD] = "in the head",
                                         [TD_STEP_SAMPLING] = "sampling",
                                         [TD_STEP_DELIVERING] = "delivering its tokens",
                                         [TD_STEP_DRAFTING] = "drafting the next ones",
                                         [TD_STEP_ENCODING] = "encoding an image"};
    td_engine_step           step;
    td_engine_get_step(w->engine, &step);
    bool on_tiers = step.phase == TD_STEP_FORWARD || step.phase == TD_STEP_HEAD || step.phase == TD_STEP_DRAFTING ||
                    step.phase == TD_STEP_ENCODING;
    if (step.phase == TD_STEP_NONE)
        snprintf(text, size, "no step has ended for %u s, and none is under way", w->watchdog_s);
    else
        snprintf(text, size,
                 "no step has ended for %u s: step %llu (%u token%s, %u sequence%s) began %.0f s ago and is %s%s%s",
                 w->watchdog_s, (unsigned long long)step.number, step.tokens, td_plural(step.tokens), step.sequences,
                 td_plural(step.sequences), step.seconds, phases[step.phase], on_tiers ? ", " : "",
                 !on_tiers       ? ""
                 : step.where[0] ? step.where
                                 : "with no operation under way on either tier");
}

static void watchdog(td_watcher *w, progress *p) {
    td_engine_stats st;
    td_engine_step  step;
    struct timespec now;
    td_engine_get_stats(w->engine, &st);
    td_engine_get_step(w->engine, &step);
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t steps = st.steps_prefill + st.steps_decode + st.pieces + st.images.pieces;
    if (steps != p->steps || (st.running == 0 && step.phase == TD_STEP_NONE)) *p = (progress){steps, now.tv_sec};
    bool stalled = now.tv_sec - p->since_s >= (time_t)w->watchdog_s;
    if (stalled == atomic_load_explicit(&w->stalled, memory_order_relaxed)) return;
    if (stalled) {
        char why[TD_ERROR_TEXT_MAX];
        td_watchdog_describe(w, why, sizeof why);
        td_err(TD_FIGURE("event", "stalled") ": %s", why);
    } else {
        td_info("steps go on");
    }
    atomic_store_explicit(&w->stalled, stalled, memory_order_relaxed);
}

static void *watch_loop(void *arg) {
    td_watcher        *w = arg;
    struct epoll_event ev[EVENTS_AT_ONCE];
    struct timespec    now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    progress p = {0, now.tv_sec};
    time_t   ticked_s = now.tv_sec;
    for (;;) {
        int n = epoll_wait(w->epoll_fd, ev, EVENTS_AT_ONCE, TICK_MS);
        for (int i = 0; i < n; i++) {
            uint64_t count;
            if (ev[i].data.u64 != WAKE_KEY) {
                client_left(w, ev[i].data.u64);
            } else if (read(w->event_fd, &count, sizeof count) == sizeof count) {
                if (count >= STOP_KEY_COUNT) return NULL;
                attend_all(w);
            }
        }
        if (w->watchdog_s) watchdog(w, &p);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec == ticked_s) continue;
        w->tick(w->tick_user);
        ticked_s = now.tv_sec;
    }
}

td_status td_watcher_start(td_watcher *w, td_engine *engine, int *wake_fd, td_error *err) {
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = WAKE_KEY};
    w->engine = engine;
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epoll_fd < 0 || w->event_fd < 0 || epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->event_fd, &ev) != 0)
        return td_fail(err, TD_EIO, "the server's event queue cannot be made: %s", strerror(errno));
    *wake_fd = w->event_fd;
    TD_TRY(td_thread_start(&w->thread, "watcher", watch_loop, w, err));
    w->running = true;
    return TD_OK;
}

void td_watcher_stop(td_watcher *w) {
    if (!w->running) return;
    uint64_t stop = STOP_KEY_COUNT;
    ssize_t  told =
        write(w->event_fd, &stop, sizeof stop); /* fails only when the counter reaches 2^64, which wakes never add up to */
    (void)told;
    pthread_join(w->thread, NULL);
    w->running = false;
}
