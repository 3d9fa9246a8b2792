/*
 * The watcher: a thread over the generations whose answer somebody writes.
 *
 * The watcher has four tasks. It looks at suspended connections, which libmicrohttpd does not (EPOLLRDHUP), and ends the
 * generation of a client that has left. It cancels what the engine thread may not cancel itself (td_generation_attend). It
 * is the watchdog over the engine's steps. And it calls a function once a second.
 */
#ifndef TD_SERVER_GENERATION_WATCHER_H
#define TD_SERVER_GENERATION_WATCHER_H

#include "server/generation/generation.h"

/** A generation that is watched. */
typedef struct {
    td_generation *generation; /* NULL: the slot is free; holds a reference */
    uint32_t       serial;     /* tells a reused slot from the one that an event was meant for */
    int            fd;         /* of its connection; -1: it has none */
} td_watch_slot;

typedef struct {
    td_engine *engine;
    uint32_t   watchdog_s;    /* the engine is stalled if no step ends for so long while requests run; 0: off */
    void (*tick)(void *user); /* called once a second on the thread; must not block */
    void       *tick_user;
    atomic_bool stalled; /* the watchdog's verdict; relaxed: read by /health and the pulse, a late look is no harm */

    uint32_t        n_slots;   /* generations at once; constant */
    pthread_mutex_t lock;      /* guards what follows */
    pthread_cond_t  changed;   /* n_watched fell, or hurry */
    td_watch_slot  *slots;     /* [n_slots], owned */
    uint32_t        n_watched; /* slots in use */
    bool            hurry;     /* td_watcher_close is to wait no longer */
    bool            closing;   /* no generation may start any more */

    int       epoll_fd, event_fd; /* event_fd: the generations' wake_fd */
    pthread_t thread;
    bool      running;
} td_watcher;

/** n_slots: generations at once. @return TD_ENOMEM; td_watcher_free is to be called all the same. */
TD_NODISCARD td_status td_watcher_init(td_watcher *w, uint32_t n_slots, uint32_t watchdog_s, void (*tick)(void *user),
                                       void *tick_user);
void                   td_watcher_free(td_watcher *w);

/** Start the thread. @param wake_fd receives the generations' wake_fd. */
TD_NODISCARD td_status td_watcher_start(td_watcher *w, td_engine *engine, int *wake_fd, td_error *err);
void                   td_watcher_stop(td_watcher *w); /* does nothing for one that was not started */

/** Look after a generation until td_unwatch. Takes a reference. @param fd its connection's; -1: it has none. @return the slot, UINT32_MAX when all are in use or the
 * watcher is closing. */
uint32_t td_watch(td_watcher *w, td_generation *g, int fd);
void     td_unwatch(td_watcher *w, uint32_t slot);

/** The generation in a slot, with a reference; NULL: the slot is free. Slots are 0 .. n_slots - 1. */
td_generation *td_watched(td_watcher *w, uint32_t slot);

/** Wait until no generation is watched, seconds at most, or until td_watcher_hurry. From then on td_watch refuses: none can
 * start in between. @return whether none is watched. */
bool td_watcher_close(td_watcher *w, double seconds);
void td_watcher_hurry(td_watcher *w);
/** Wait until no generation is watched, seconds at most. @return whether none is. */
bool td_watcher_await_idle(td_watcher *w, double seconds);

/** What stalls the engine, in a sentence: the step, since when, and what it is in. */
void td_watchdog_describe(const td_watcher *w, char *text, size_t size);

#endif
