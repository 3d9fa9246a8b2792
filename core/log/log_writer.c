#include "core/log/log_writer.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/threads/thread.h"

#define NOTICE_BYTES 512 /* room for the line that reports lost lines, which follows the next line that is not lost */

static struct {
    pthread_mutex_t lock; /* guards all below; what lies between tail and head belongs to the writer */
    pthread_cond_t  filled, drained;
    bool            started;
    size_t          head, tail;      /* bytes put and written since the start */
    uint64_t        dropped, untold; /* dropped lines: all, and those not reported yet */
    char            ring[TD_LOG_RING_BYTES];
} g_writer = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER};

/* Write some bytes. @return how many are done with, those included that cannot be written at all. */
static size_t write_some(const char *bytes, size_t n) {
    for (;;) {
        ssize_t done = write(STDERR_FILENO, bytes, n);
        if (done > 0) return (size_t)done;
        if (done < 0 && errno == EINTR) continue;
        if (done == 0 || errno != EAGAIN) return n;
        poll(&(struct pollfd){.fd = STDERR_FILENO, .events = POLLOUT}, 1, -1); /* another process made it non-blocking */
    }
}

static void *write_lines(void *arg) {
    (void)arg;
    pthread_mutex_lock(&g_writer.lock);
    for (;;) {
        while (g_writer.head == g_writer.tail) pthread_cond_wait(&g_writer.filled, &g_writer.lock);
        size_t at = g_writer.tail % TD_LOG_RING_BYTES, n = g_writer.head - g_writer.tail;
        if (n > TD_LOG_RING_BYTES - at) n = TD_LOG_RING_BYTES - at;
        /* Small writes: a write to a full pipe returns only when all of it is written, and the ring needs room before
         * that. */
        if (n > PIPE_BUF) n = PIPE_BUF;
        pthread_mutex_unlock(&g_writer.lock);
        n = write_some(g_writer.ring + at, n);
        pthread_mutex_lock(&g_writer.lock);
        g_writer.tail += n;
        if (g_writer.head == g_writer.tail) pthread_cond_broadcast(&g_writer.drained);
    }
    return NULL;
}

td_status td_log_writer_start(td_error *err) {
    pthread_condattr_t attr;
    pthread_t          thread;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g_writer.drained, &attr);
    pthread_condattr_destroy(&attr);
    TD_TRY(td_thread_start(&thread, "log", write_lines, NULL, err));
    pthread_detach(thread);
    pthread_mutex_lock(&g_writer.lock);
    g_writer.started = true;
    pthread_mutex_unlock(&g_writer.lock);
    return TD_OK;
}

bool td_log_writer_put(const char *line, size_t n, uint64_t *lost) {
    *lost = 0;
    pthread_mutex_lock(&g_writer.lock);
    bool   started = g_writer.started;
    size_t need = n + (g_writer.untold ? NOTICE_BYTES : 0);
    if (started && need <= TD_LOG_RING_BYTES - (g_writer.head - g_writer.tail)) {
        size_t at = g_writer.head % TD_LOG_RING_BYTES, first = n < TD_LOG_RING_BYTES - at ? n : TD_LOG_RING_BYTES - at;
        memcpy(g_writer.ring + at, line, first);
        memcpy(g_writer.ring, line + first, n - first);
        g_writer.head += n;
        *lost = g_writer.untold;
        g_writer.untold = 0;
        pthread_cond_signal(&g_writer.filled);
    } else if (started) {
        g_writer.dropped++;
        g_writer.untold++;
    }
    pthread_mutex_unlock(&g_writer.lock);
    return started;
}

bool td_log_writer_flush(double timeout_s) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(timeout_s * 1e9) % 1000000000;
    until.tv_sec += (time_t)timeout_s + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&g_writer.lock);
    while (g_writer.head != g_writer.tail)
        if (pthread_cond_timedwait(&g_writer.drained, &g_writer.lock, &until) == ETIMEDOUT) break;
    bool empty = g_writer.head == g_writer.tail;
    pthread_mutex_unlock(&g_writer.lock);
    return empty;
}

uint64_t td_log_writer_dropped(void) {
    pthread_mutex_lock(&g_writer.lock);
    uint64_t n = g_writer.dropped;
    pthread_mutex_unlock(&g_writer.lock);
    return n;
}
