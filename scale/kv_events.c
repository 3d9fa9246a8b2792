#include "scale/kv_events.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/threads/thread.h"
#include "scale/kv_event_message.h"
#include "scale/kv_replay.h"

#define REPLAY_QUEUE 16                       /* requests that a peer may have waiting */
#define GREET_INTERVAL_MS 100                 /* new subscribers are greeted together, at most once in this time */
#define REPLAY_BYTES_MIN ((uint64_t)32 << 20) /* of kept messages, beside the room for telling everything twice */
#define SUBSCRIPTIONS_AT_ONCE 64              /* subscriptions taken before events are published again */

struct td_kv_events {
    td_kv_events_config config;
    td_cache_listener   listener;
    td_zmq              zmq;
    void               *context, *publisher, *router; /* router NULL: no replay_endpoint */
    int                 event_fd;
    atomic_bool         stop;
    bool                started;
    pthread_t           thread;
    td_kv_page_table    table;

    /* used by the thread alone, once it runs */
    td_kv_event_log log;
    td_kv_change    change;
    uint8_t        *text;     /* [td_kv_event_message_max] */
    bool            greeting; /* somebody subscribed since the last greeting */
    int64_t         greeted_ms;
};

/* ---- the thread ---- */

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static double now_unix_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Publishes k->change and keeps the message. Sending on XPUB never blocks. */
static void publish(td_kv_events *k) {
    const td_zmq  *zmq = &k->zmq;
    td_zmq_message m;
    uint8_t        number[8];
    size_t         n = td_kv_event_message_write(k->text, &k->change, k->table.page_tokens, now_unix_s());
    if (zmq->msg_init_size(&m, n) != 0) { /* memory is short: subscribers will be told everything again later */
        td_kv_page_table_restate(&k->table);
        return;
    }
    memcpy(zmq->msg_data(&m), k->text, n);
    td_kv_sequence_put(number, k->log.end);
    td_kv_event_log_add(&k->log, &m, (uint32_t)n, k->change.cleared);
    zmq->send(k->publisher, k->config.topic, strlen(k->config.topic), TD_ZMQ_SNDMORE | TD_ZMQ_DONTWAIT);
    zmq->send(k->publisher, number, sizeof number, TD_ZMQ_SNDMORE | TD_ZMQ_DONTWAIT);
    if (zmq->msg_send(&m, k->publisher, TD_ZMQ_DONTWAIT) < 0) zmq->msg_close(&m);
}

static void publish_changes(td_kv_events *k) {
    while (td_kv_page_table_take(&k->table, &k->change)) publish(k);
}

static void tell_everything(td_kv_events *k) {
    td_kv_page_table_restate(&k->table);
    publish_changes(k);
}

/* Takes what subscribers send: 1 and a topic to subscribe, 0 and a topic to end that. Anything else is dropped. */
static void take_subscriptions(td_kv_events *k) {
    uint8_t first = 0;
    for (int i = 0; i < SUBSCRIPTIONS_AT_ONCE; i++) {
        int n = k->zmq.recv(k->publisher, &first, sizeof first, TD_ZMQ_DONTWAIT);
        if (n < 0) return;
        if (n > 0 && first == 1) k->greeting = true;
    }
}

static void greet(td_kv_events *k) {
    k->greeting = false;
    k->greeted_ms = now_ms();
    if (k->router) {
        k->change.cleared = false;
        k->change.n_removed = k->change.n_stored = 0;
        publish(k);
    } else {
        tell_everything(k);
    }
}

/* Returns the number of the message with which a replay begins for a subscriber that asks from `first` on. */
static uint64_t replay_begin(td_kv_events *k, uint64_t first) {
    if (first >= k->log.begin) return first;
    if (!td_kv_event_log_has_base(&k->log)) tell_everything(k);
    return k->log.base;
}

static void serve_replay(td_kv_events *k) {
    td_kv_replay_request r;
    td_kv_replay_got     got = td_kv_replay_receive(&k->zmq, k->router, &r);
    if (got == TD_KV_REPLAY_BAD) td_debug("kv events: a replay request that is none was dropped");
    if (got != TD_KV_REPLAY_REQUEST) return;
    uint64_t begin = replay_begin(k, r.first);
    if (!td_kv_replay_answer(&k->zmq, k->router, &r, &k->log, begin))
        td_debug("kv events: a subscriber did not take its replay");
}

static void *run(void *arg) {
    td_kv_events    *k = arg;
    td_zmq_poll_item items[] = {{.fd = k->event_fd, .events = TD_ZMQ_POLLIN},
                                {.socket = k->publisher, .events = TD_ZMQ_POLLIN},
                                {.socket = k->router, .events = TD_ZMQ_POLLIN}};
    while (!atomic_load_explicit(&k->stop, memory_order_acquire)) {
        int64_t wait_ms = k->greeting ? k->greeted_ms + GREET_INTERVAL_MS - now_ms() : -1;
        if (k->greeting && wait_ms < 0) wait_ms = 0;
        if (k->zmq.poll(items, k->router ? 3 : 2, (long)wait_ms) < 0) continue; /* interrupted by a signal */
        uint64_t rung;
        if (items[0].revents && read(k->event_fd, &rung, sizeof rung) < 0 && errno != EAGAIN) break;
        if (items[1].revents) take_subscriptions(k);
        publish_changes(k);
        if (k->router && items[2].revents) serve_replay(k);
        if (k->greeting && now_ms() - k->greeted_ms >= GREET_INTERVAL_MS) greet(k);
    }
    return NULL;
}

/* ---- the engine's side ---- */

static td_status listen_open(void *user, uint32_t n_pages, uint32_t page_tokens, td_error *err) {
    td_kv_events *k = user;
    size_t        message_max = td_kv_event_message_max(page_tokens);
    uint32_t      whole = n_pages / TD_KV_CHANGE_PAGES + 2; /* the most messages that telling everything takes */
    uint32_t      n_max = k->config.buffer_steps > 2 * whole ? k->config.buffer_steps : 2 * whole;
    uint64_t      bytes_max = REPLAY_BYTES_MIN + 2 * (uint64_t)whole * message_max;
    if (n_max > 2 * k->config.buffer_steps) /* a peer's queue has room for 2 * buffer_steps messages */
        return td_fail(err, TD_EINVAL, "kv-events-config: for a KV cache of %u pages buffer_steps must be at least %u",
                       n_pages, whole);
    TD_TRY(td_kv_page_table_open(&k->table, n_pages, page_tokens, k->event_fd, err));
    TD_TRY(td_kv_event_log_open(&k->log, &k->zmq, n_max, bytes_max, (uint64_t)(now_unix_s() * 1e6), err));
    k->text = malloc(message_max);
    k->change.tokens = malloc(TD_KV_CHANGE_PAGES * page_tokens * sizeof *k->change.tokens);
    if (!k->text || !k->change.tokens) return td_fail(err, TD_ENOMEM, "out of memory for KV events");
    TD_TRY(td_thread_start(&k->thread, "kv_events", run, k, err));
    k->started = true;
    return TD_OK;
}

static void listen_stored(void *user, uint32_t page, uint32_t parent, const uint32_t *tokens) {
    td_kv_events *k = user;
    td_kv_page_table_store(&k->table, page, parent, tokens);
}

static void listen_removed(void *user, uint32_t page) {
    td_kv_events *k = user;
    td_kv_page_table_remove(&k->table, page);
}

static void listen_cleared(void *user) {
    td_kv_events *k = user;
    td_kv_page_table_clear(&k->table);
}

const td_cache_listener *td_kv_events_listener(td_kv_events *k) {
    return &k->listener;
}

/* ---- life ---- */

typedef struct {
    int type, receive_queue, send_queue;
    int option; /* one more option, which is set to on */
    int message_max;
} socket_form;

static td_status bind_socket(td_kv_events *k, const socket_form *f, const char *key, const char *endpoint, void **out,
                             td_error *err) {
    const td_zmq *zmq = &k->zmq;
    const int     none = 0, on = 1;
    const int64_t message_max = f->message_max;
    void         *s = *out = zmq->socket(k->context, f->type);
    if (!s) return td_fail(err, TD_ENOMEM, "kv-events-config: %s: %s", key, zmq->error_text(zmq->error()));
    int failed = zmq->setsockopt(s, TD_ZMQ_LINGER, &none, sizeof none);
    failed |= zmq->setsockopt(s, TD_ZMQ_MAXMSGSIZE, &message_max, sizeof message_max);
    failed |= zmq->setsockopt(s, TD_ZMQ_RCVHWM, &f->receive_queue, sizeof f->receive_queue);
    failed |= zmq->setsockopt(s, TD_ZMQ_SNDHWM, &f->send_queue, sizeof f->send_queue);
    failed |= zmq->setsockopt(s, TD_ZMQ_TCP_KEEPALIVE, &on, sizeof on);
    failed |= zmq->setsockopt(s, f->option, &on, sizeof on);
    if (strchr(endpoint, '[')) failed |= zmq->setsockopt(s, TD_ZMQ_IPV6, &on, sizeof on);
    if (failed) return td_fail(err, TD_EINVAL, "kv-events-config: %s: %s", key, zmq->error_text(zmq->error()));
    if (zmq->bind(s, endpoint) == 0) return TD_OK;
    int e = zmq->error();
    if (e == EADDRINUSE)
        return td_fail(err, TD_EBUSY, "kv-events-config: %s %s is in use by another program", key, endpoint);
    return td_fail(err, TD_EINVAL, "kv-events-config: %s %s cannot be bound: %s", key, endpoint, zmq->error_text(e));
}

static const char *address_of(td_kv_events *k, void *socket, char text[TD_KV_TEXT_MAX]) {
    size_t size = TD_KV_TEXT_MAX;
    return k->zmq.getsockopt(socket, TD_ZMQ_LAST_ENDPOINT, text, &size) == 0 ? text : "?";
}

static td_status open_sockets(td_kv_events *k, td_error *err) {
    const td_kv_events_config *c = &k->config;
    const socket_form          publishes = {TD_ZMQ_XPUB, 1000, (int)c->hwm, TD_ZMQ_XPUB_VERBOSE, 2 * TD_KV_TEXT_MAX};
    char                       at[TD_KV_TEXT_MAX];
    TD_TRY(td_zmq_load(&k->zmq, err));
    if (!(k->context = k->zmq.ctx_new())) return td_fail(err, TD_ENOMEM, "out of memory for KV events");
    TD_TRY(bind_socket(k, &publishes, "endpoint", c->endpoint, &k->publisher, err));
    td_info("kv events: published at %s, for whoever can connect", address_of(k, k->publisher, at));
    if (!c->replay_endpoint[0]) return TD_OK;
    /* A whole replay fits into a peer's queue, so only a peer that asks without reading loses messages. Messages in the
     * queue share the log's memory as long as the log keeps them. */
    const socket_form answers = {TD_ZMQ_ROUTER, REPLAY_QUEUE, 2 * (int)c->buffer_steps + 2, TD_ZMQ_ROUTER_MANDATORY,
                                 TD_KV_REPLAY_FRAME_MAX};
    TD_TRY(bind_socket(k, &answers, "replay_endpoint", c->replay_endpoint, &k->router, err));
    td_info("kv events: what was missed is at %s", address_of(k, k->router, at));
    return TD_OK;
}

td_status td_kv_events_open(const td_kv_events_config *c, td_kv_events **out, td_error *err) {
    *out = NULL;
    td_kv_events *k = calloc(1, sizeof *k);
    if (!k) return td_fail(err, TD_ENOMEM, "out of memory for KV events");
    k->config = *c;
    k->listener = (td_cache_listener){listen_open, listen_stored, listen_removed, listen_cleared, k, false};
    k->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    td_status st = k->event_fd >= 0 ? open_sockets(k, err)
                                    : td_fail(err, TD_EIO, "KV events: cannot make an eventfd: %s", strerror(errno));
    if (st != TD_OK) {
        td_kv_events_close(k);
        return st;
    }
    *out = k;
    return TD_OK;
}

void td_kv_events_close(td_kv_events *k) {
    if (!k) return;
    if (k->started) {
        const uint64_t one = 1;
        atomic_store_explicit(&k->stop, true, memory_order_release);
        if (write(k->event_fd, &one, sizeof one) < 0) td_debug("kv events: %s", strerror(errno));
        pthread_join(k->thread, NULL);
    }
    if (k->log.messages) td_kv_event_log_close(&k->log);
    if (k->publisher) k->zmq.close(k->publisher);
    if (k->router) k->zmq.close(k->router);
    if (k->context) k->zmq.ctx_term(k->context);
    td_kv_page_table_close(&k->table);
    if (k->event_fd >= 0) close(k->event_fd);
    free(k->change.tokens);
    free(k->text);
    free(k);
}
