#include "server/connection/acceptor.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/threads/thread.h"

#define PAUSE_MS 100   /* pause after a failure, such as too many open files: accept would only fail again at once */
#define SAY_EVERY_S 60 /* failures are logged this often at most */

/* Hand an accepted socket to libmicrohttpd; it is closed when memory is short. */
static void hand_over(td_acceptor *a, int fd, const struct sockaddr_storage *from, socklen_t n) {
    if (!td_connections_expect(a->connections, fd))
        close(fd);
    else if (MHD_add_connection(a->daemon, fd, (const struct sockaddr *)from, n) != MHD_YES)
        td_connections_unexpect(a->connections, fd);
}

static void say(int e, time_t *said_s) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (*said_s && now.tv_sec - *said_s < SAY_EVERY_S) return;
    td_warn("connections have to wait: %s", strerror(e));
    *said_s = now.tv_sec;
}

static void *accept_loop(void *arg) {
    td_acceptor *a = arg;
    time_t       said_s = 0; /* never */
    while (td_connections_await_room(a->connections)) {
        struct sockaddr_storage from;
        socklen_t               n = sizeof from;
        int                     fd = accept4(a->fd, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK), e = errno;
        if (fd >= 0) {
            hand_over(a, fd, &from, n);
        } else if (e != EINTR && e != ECONNABORTED) {
            if (!td_connections_pause(a->connections, PAUSE_MS)) break; /* the socket was shut */
            say(e, &said_s);
        }
    }
    return NULL;
}

td_status td_acceptor_start(td_acceptor *a, td_error *err) {
    TD_TRY(td_thread_start(&a->thread, "accept", accept_loop, a, err));
    a->running = true;
    return TD_OK;
}

void td_acceptor_stop(td_acceptor *a) {
    if (!a->running) return;
    td_connections_close(a->connections);
    shutdown(a->fd, SHUT_RDWR); /* accept4 returns, and fails from now on */
    pthread_join(a->thread, NULL);
    a->running = false;
}
