/*
 * Where a library listens that has no setting for it: Mooncake's listens on every address of the host
 * (transfer_metadata_plugin.cpp and tcp_transport_session_impl.h of its 0.3.13).
 *
 * The program has a bind() of its own (cli/bind.c), which the loader takes for the calls of shared libraries, too. While a
 * thread has a listen address, what it would bind to every address is bound to that one. Nothing else changes.
 */
#ifndef TD_SCALE_LISTEN_ADDRESS_H
#define TD_SCALE_LISTEN_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "tandem.h"

typedef struct {
    sa_family_t     family; /* AF_INET, AF_INET6 */
    struct in_addr  v4;
    struct in6_addr v6; /* of AF_INET: the same address as IPv6 has it, ::ffff:a.b.c.d */
} td_listen_address;

/** @param text an address of IPv4 or IPv6, no name. @return whether it is one. */
bool td_listen_address_parse(const char *text, td_listen_address *out);

/** 0.0.0.0 or :: */
bool td_listen_address_is_any(const td_listen_address *a);

/** For this thread, until it is set again. @param a NULL, or 0.0.0.0 or ::, for none; the caller's until then. */
void td_listen_address_set(const td_listen_address *a);

/**
 * What bind() is given, by the thread that calls it.
 * @param asked of `n` bytes, NULL is fine.  @param out receives what is to be taken instead.
 * @return bytes of `out`; 0: take what was asked. A socket of IPv4 gets 127.0.0.1 when the address is one of IPv6.
 */
socklen_t td_listen_address_instead(const struct sockaddr *asked, socklen_t n, struct sockaddr_storage *out);

#endif
