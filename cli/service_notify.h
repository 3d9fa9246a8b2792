/*
 * What a service manager is told of the server's life, by sd_notify(3)'s protocol: a datagram of "NAME=value" lines to the
 * socket that NOTIFY_SOCKET names. Written here, and not taken from libsystemd, as sd_notify(3) itself suggests: the
 * protocol is a promise of systemd's, and the library would bring a dozen others with it.
 */
#ifndef TD_CLI_SERVICE_NOTIFY_H
#define TD_CLI_SERVICE_NOTIFY_H

#include "tandem.h"

/** After td_service_notify_open any thread may tell something: each call is one datagram. */
typedef struct {
    int  fd;       /* -1: there is no service manager */
    bool watchdog; /* it restarts a service that does not say that it is alive */
} td_service_notify;

/**
 * Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and take them out of the environment. Call it before threads start.
 * @return TD_OK, also without a service manager; TD_EINVAL for a NOTIFY_SOCKET that is neither an absolute path nor '@' and
 * a name; TD_EIO when it cannot be reached.
 */
TD_NODISCARD td_status td_service_notify_open(td_service_notify *n, td_error *err);
void                   td_service_notify_close(td_service_notify *n);

/**
 * Tell the status, a sentence. @param change "READY=1" or "STOPPING=1"; NULL: none.
 * Never blocks; news that finds no room is lost, with a line in the log.
 */
void td_service_notify_tell(const td_service_notify *n, const char *change, const char *status_fmt, ...) TD_PRINTF(3, 4);

/** For the watchdog: what it watches goes on. To be called more often than half of its time. */
void td_service_notify_alive(const td_service_notify *n);

#endif
