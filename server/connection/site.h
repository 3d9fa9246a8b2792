/*
 * What stands between a keyless server and the pages of other sites in a browser on the same machine. Such a page may have a
 * name of its own lead to 127.0.0.1 (DNS rebinding) and then read answers: `Host` has that name. It may also send requests
 * whose answer it cannot read, without asking first: `Origin` has the page's site.
 */
#ifndef TD_SERVER_CONNECTION_SITE_H
#define TD_SERVER_CONNECTION_SITE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

/** Whether an address can be reached from this machine alone. */
bool td_is_loopback(const struct sockaddr *a);

/**
 * Whether a request for this `Host`, "NAME" or "NAME:PORT", is answered.
 * @param host    NULL: there is no such header, as HTTP/1.0 allows; no browser leaves it out.
 * @param allowed names with commas between, "*" for all; NULL: localhost, names below it, and addresses, which no other
 *                site can have.
 */
bool td_host_is_allowed(const char *host, const char *allowed);

/** Whether a request with this `Origin` comes from a page of this server, of the site that --cors-origin lets in (NULL:
 * none), or from no page at all (origin NULL). */
bool td_origin_is_allowed(const char *origin, const char *host, const char *cors_origin);

#endif
