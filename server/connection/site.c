#include "server/connection/site.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

bool td_is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return a->sa_family == AF_INET6 && (IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127));
}

/* Bytes of a Host header before its port. */
static size_t name_len(const char *host) {
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    return n < strlen(host) ? n : strlen(host);
}

static bool is_name(const char *host, size_t n, const char *name) {
    return strlen(name) == n && !strncasecmp(host, name, n);
}

/* No name ends in a number (URL Standard, 3.5): what does is an address. */
static bool is_local(const char *host, size_t n) {
    static const char below[] = ".localhost";
    size_t            m = strlen(below);
    return is_name(host, n, "localhost") || (n > m && !strncasecmp(host + n - m, below, m)) || host[0] == '[' ||
           (n > 0 && strspn(host, "0123456789.") >= n && isdigit((unsigned char)host[n - 1]));
}

bool td_host_is_allowed(const char *host, const char *allowed) {
    if (!host) return true;
    size_t n = name_len(host);
    if (!allowed) return is_local(host, n);
    for (const char *at = allowed; *at; at += strspn(at, ", ")) {
        size_t m = strcspn(at, ", ");
        if ((m == 1 && *at == '*') || (m == n && !strncasecmp(at, host, n))) return true;
        at += m;
    }
    return false;
}

bool td_origin_is_allowed(const char *origin, const char *host, const char *cors_origin) {
    if (!origin || (cors_origin && (!strcmp(cors_origin, "*") || !strcasecmp(cors_origin, origin)))) return true;
    size_t scheme = !strncasecmp(origin, "http://", 7) ? 7 : !strncasecmp(origin, "https://", 8) ? 8 : 0;
    return scheme && host && !strcasecmp(origin + scheme, host);
}
