/*
 * Chooses the address on which a library listens that has no setting for it. Mooncake's library listens on every address of
 * the host (transfer_metadata_plugin.cpp and tcp_transport_session_impl.h of 0.3.13).
 *
 * The program has its own bind() (cli/bind.c), which shared libraries call, too. While a thread has a listen address, a
 * socket that it would bind to every address is bound to that one. Nothing else changes.
 */
#ifndef TD_SCALE_LISTEN_ADDRESS_H
#define TD_SCALE_LISTEN_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "tandem.h"

typedef struct {
    sa_family_t     family; /* AF_INET, AF_INET6 */
    struct in_addr  v4;
    struct in6_addr v6; /* for AF_INET: the same address in IPv6's form, ::ffff:a.b.c.d */
} td_listen_address;

/** @param text an address of IPv4 or IPv6, not a name. @return whether it is one. */
bool td_listen_address_parse(const char *text, td_listen_address *out);

/** Whether it is 0.0.0.0 or ::. */
bool td_listen_address_is_any(const td_listen_address *a);

/** Set the listen address of this thread. @param a borrowed until it is set again; NULL, 0.0.0.0 or :: for none. */
void td_listen_address_set(const td_listen_address *a);

/**
 * The address that bind() should use instead of the one that the calling thread gave it.
 * @param asked the address that was given, of `n` bytes, or NULL. @param out receives the address to use instead.
 * @return bytes of `out`, or 0 to use the address that was given. An IPv4 socket gets 127.0.0.1 when the listen address is
 * an IPv6 one.
 */
socklen_t td_listen_address_instead(const struct sockaddr *asked, socklen_t n, struct sockaddr_storage *out);

#endif
