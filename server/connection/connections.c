#include "server/connection/connections.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define RESERVE_MS 2000 /* how long a connection of the reserve may take to send its headers, and then its body */
#define LINGER_MS 2000  /* how long a refused client has to read why */
#define END_MS 2000     /* how long an answer that is under way has when the server stops */

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void link_into(td_connection **list, td_connection *c) {
    c->next = *list;
    c->link = list;
    if (c->next) c->next->link = &c->next;
    *list = c;
}

static void unlink_it(td_connection *c) {
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
}

/* Under the lock. */
static void drop_locked(td_connections *all, td_connection *c) {
    if (!c) return;
    unlink_it(c);
    all->n -= !c->reserve;
    all->n_open--;
    free(c);
}

static td_connection *expected_locked(const td_connections *all, int fd) {
    td_connection *c = all->expected;
    while (c && c->fd != fd) c = c->next;
    return c;
}

void td_connections_init(td_connections *all, uint32_t max, uint32_t idle_s, uint32_t request_s) {
    *all = (td_connections){.max = max, .idle_s = idle_s, .request_s = request_s};
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
}

void td_connections_free(td_connections *all) {
    while (all->expected) drop_locked(all, all->expected);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
}

static void add(td_connections *all, struct MHD_Connection *connection, void **context) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_lock(&all->lock);
    td_connection *c = info ? expected_locked(all, info->connect_fd) : NULL;
    *context = c;
    if (c) {
        unlink_it(c);
        link_into(&all->first, c);
        c->deadline_ms = now_ms() + (c->reserve ? RESERVE_MS : 1000 * (int64_t)all->request_s);
        if (all->ending) shutdown(c->fd, SHUT_RD);
    }
    pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

static void take_out(td_connections *all, td_connection *c) {
    pthread_mutex_lock(&all->lock);
    drop_locked(all, c);
    pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

void td_connections_notify(void *all, struct MHD_Connection *connection, void **context,
                           enum MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        add(all, connection, context);
    else
        take_out(all, *context);
}

td_connection *td_connection_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

bool td_connection_enter(td_connection *c, td_connection_phase phase) {
    td_connections *all = c->all;
    pthread_mutex_lock(&all->lock);
    int64_t time_ms = c->reserve ? RESERVE_MS : 1000 * (int64_t)all->request_s;
    if (phase == TD_READS_HEAD && !c->reserve)
        time_ms += 1000 * (int64_t)all->idle_s; /* time until the next request begins */
    if (phase == TD_READS_HEAD) c->write_error = NULL;
    c->takes = false;
    bool go_on = !c->refused;
    if (go_on) c->deadline_ms = phase == TD_ANSWERS ? INT64_MAX : now_ms() + time_ms;
    pthread_mutex_unlock(&all->lock);
    return go_on;
}

void td_connection_takes(td_connection *c, uint64_t taken) {
    td_connections *all = c->all;
    pthread_mutex_lock(&all->lock);
    if (!c->takes) c->answer_ms = now_ms();
    c->takes = true;
    int64_t time_ms = c->reserve ? RESERVE_MS : 1000 * (int64_t)all->request_s;
    c->deadline_ms = c->answer_ms + time_ms + (int64_t)(taken * 1000 / TD_ANSWER_BYTES_PER_S);
    pthread_mutex_unlock(&all->lock);
}

void td_connection_set_errors(td_connection *c, td_error_writer write_error) {
    pthread_mutex_lock(&c->all->lock);
    c->write_error = write_error;
    pthread_mutex_unlock(&c->all->lock);
}

/* Answer a request straight to the socket. Nothing was answered to it yet, so these are the first bytes behind the last
 * answer. They fit the socket's buffer, or the client reads nothing anyway. */
static void refuse_locked(td_connection *c, const td_api_error *err) {
    td_jbuf body = {0}, head = {0};
    (c->write_error ? c->write_error : td_api_error_write)(&body, err);
    td_jbuf_printf(&head,
                   "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                   err->http, MHD_get_reason_phrase_for((unsigned)err->http), body.len);
    td_jbuf_put(&head, body.data, body.len);
    if (!body.failed && !head.failed && send(c->fd, head.data, head.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        c->deadline_ms = 0; /* the client has gone */
    else
        c->deadline_ms = now_ms() + LINGER_MS;
    shutdown(c->fd, SHUT_WR);
    c->refused = true;
    td_jbuf_free(&body);
    td_jbuf_free(&head);
}

void td_connection_refuse(td_connection *c, const td_api_error *err) {
    pthread_mutex_lock(&c->all->lock);
    if (!c->refused) refuse_locked(c, err);
    pthread_mutex_unlock(&c->all->lock);
}

void td_connections_sweep(td_connections *all) {
    td_api_error late;
    td_api_fail(&late, 408, "request_timeout", "The request did not arrive in time.");
    pthread_mutex_lock(&all->lock);
    int64_t now = now_ms();
    for (td_connection *c = all->first; c; c = c->next) {
        if (c->deadline_ms > now) continue;
        if (c->refused || c->takes) {
            all->n_untaken += c->takes;
            shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd sees the end and closes it */
            c->deadline_ms = INT64_MAX;
        } else {
            refuse_locked(c, &late);
        }
    }
    pthread_mutex_unlock(&all->lock);
}

/* Under the lock: wait for a change. @return false: there was none until until_ms. */
static bool await_change(td_connections *all, int64_t until_ms) {
    struct timespec until = {until_ms / 1000, until_ms % 1000 * 1000000};
    return pthread_cond_clockwait(&all->changed, &all->lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT;
}

bool td_connections_await_room(td_connections *all) {
    pthread_mutex_lock(&all->lock);
    while (!all->closed && all->n_open >= all->max + TD_CONNECTIONS_RESERVE) pthread_cond_wait(&all->changed, &all->lock);
    bool go_on = !all->closed;
    pthread_mutex_unlock(&all->lock);
    return go_on;
}

bool td_connections_pause(td_connections *all, int64_t ms) {
    pthread_mutex_lock(&all->lock);
    int64_t until_ms = now_ms() + ms;
    while (!all->closed && await_change(all, until_ms)) continue;
    bool go_on = !all->closed;
    pthread_mutex_unlock(&all->lock);
    return go_on;
}

bool td_connections_expect(td_connections *all, int fd) {
    td_connection *c = malloc(sizeof *c);
    pthread_mutex_lock(&all->lock);
    drop_locked(
        all,
        expected_locked(
            all,
            fd)); /* an earlier connection of this fd, for which libmicrohttpd had no memory: it closed it without telling */
    if (c) {
        *c = (td_connection){.all = all, .fd = fd, .reserve = all->n >= all->max};
        link_into(&all->expected, c);
        all->n += !c->reserve;
        all->n_open++;
    }
    pthread_mutex_unlock(&all->lock);
    return c != NULL;
}

void td_connections_unexpect(td_connections *all, int fd) {
    pthread_mutex_lock(&all->lock);
    drop_locked(all, expected_locked(all, fd));
    pthread_mutex_unlock(&all->lock);
}

void td_connections_close(td_connections *all) {
    pthread_mutex_lock(&all->lock);
    all->closed = true;
    pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

/* Under the lock: shut every socket, and wait until libmicrohttpd has closed all, END_MS at most. */
static void end_locked(td_connections *all, int how) {
    int64_t end_ms = now_ms() + END_MS;
    for (td_connection *c = all->first; c; c = c->next) shutdown(c->fd, how);
    while (all->first || all->expected)
        if (!await_change(all, end_ms)) return;
}

uint64_t td_connections_untaken(td_connections *all) {
    pthread_mutex_lock(&all->lock);
    uint64_t n = all->n_untaken;
    pthread_mutex_unlock(&all->lock);
    return n;
}

void td_connections_end(td_connections *all) {
    pthread_mutex_lock(&all->lock);
    all->ending = true;
    end_locked(all, SHUT_RD);
    if (all->first) end_locked(all, SHUT_RDWR);
    pthread_mutex_unlock(&all->lock);
}
