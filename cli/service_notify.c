#include "cli/service_notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/log.h"

#define MESSAGE_MAX 1024

static td_status connect_to(const char *name, td_service_notify *n, td_error *err) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t             len = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || len < 2 || len >= sizeof to.sun_path)
        return td_fail(err, TD_EINVAL, "NOTIFY_SOCKET=%.100s is neither an absolute path nor '@' and a name", name);
    memcpy(to.sun_path, name, len);
    if (name[0] == '@') to.sun_path[0] = 0; /* '@' begins Linux's abstract socket names */
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (n->fd < 0 ||
        connect(n->fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) != 0) {
        td_fail(err, TD_EIO, "NOTIFY_SOCKET=%.100s cannot be reached: %s", name, strerror(errno));
        td_service_notify_close(n);
        return TD_EIO;
    }
    return TD_OK;
}

td_status td_service_notify_open(td_service_notify *n, td_error *err) {
    const char *name = getenv("NOTIFY_SOCKET"), *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    *n = (td_service_notify){.fd = -1};
    if (!name) return TD_OK;
    TD_TRY(connect_to(name, n, err));
    n->watchdog = usec && strtoull(usec, NULL, 10) > 0 && (!pid || strtoll(pid, NULL, 10) == getpid());
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return TD_OK;
}

void td_service_notify_close(td_service_notify *n) {
    if (n->fd >= 0) close(n->fd);
    n->fd = -1;
}

static void send_message(const td_service_notify *n, const char *message) {
    if (send(n->fd, message, strlen(message), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        td_warn("the service manager was not told: %s", strerror(errno));
}

void td_service_notify_tell(const td_service_notify *n, const char *change, const char *status_fmt, ...) {
    if (n->fd < 0) return;
    char    status[MESSAGE_MAX], message[MESSAGE_MAX + 64];
    va_list args;
    va_start(args, status_fmt);
    vsnprintf(status, sizeof status, status_fmt, args);
    va_end(args);
    for (char *c = status; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' '; /* a line break would begin another assignment */
    snprintf(message, sizeof message, "%s%sSTATUS=%s", change ? change : "", change ? "\n" : "", status);
    send_message(n, message);
}

void td_service_notify_alive(const td_service_notify *n) {
    if (n->fd >= 0 && n->watchdog) send_message(n, "WATCHDOG=1");
}
