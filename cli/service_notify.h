/*
 * Tells a service manager when the server is ready, stopping or alive, by the protocol of sd_notify(3): datagrams of
 * "NAME=value" lines to the socket that NOTIFY_SOCKET names. libsystemd is not needed for it: sd_notify(3) promises a stable
 * protocol and suggests writing it oneself, and the library would bring a dozen others.
 */
#ifndef TD_CLI_SERVICE_NOTIFY_H
#define TD_CLI_SERVICE_NOTIFY_H

#include "tandem.h"

/** Where to send. After td_service_notify_open any thread may call the functions below: each call sends one datagram. */
typedef struct {
    int  fd;       /* -1: there is no service manager */
    bool watchdog; /* the manager restarts a service that does not report being alive */
} td_service_notify;

/**
 * Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and take them out of the environment. Call it before threads start.
 * @return TD_OK, also without a service manager; TD_EINVAL for a NOTIFY_SOCKET that is neither an absolute path nor '@' and
 * a name; TD_EIO when it cannot be reached.
 */
TD_NODISCARD td_status td_service_notify_open(td_service_notify *n, td_error *err);
void                   td_service_notify_close(td_service_notify *n);

/**
 * Send the status, a sentence. @param change "READY=1" or "STOPPING=1", or NULL. Never blocks: if the socket is full, the
 * message is lost, and the log says so.
 */
void td_service_notify_tell(const td_service_notify *n, const char *change, const char *status_fmt, ...) TD_PRINTF(3, 4);

/** Tell the watchdog that the service is alive. Call it more than twice in each period of the watchdog. */
void td_service_notify_alive(const td_service_notify *n);

#endif
