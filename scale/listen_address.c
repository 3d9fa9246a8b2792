#include "scale/listen_address.h"

#include <arpa/inet.h>
#include <string.h>

static _Thread_local const td_listen_address *here;

bool td_listen_address_parse(const char *text, td_listen_address *out) {
    *out = (td_listen_address){.family = AF_INET6, .v4.s_addr = htonl(INADDR_LOOPBACK)};
    if (inet_pton(AF_INET6, text, &out->v6) == 1) return true;
    if (inet_pton(AF_INET, text, &out->v4) != 1) return false;
    out->family = AF_INET;
    out->v6 = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(out->v6.s6_addr + 12, &out->v4, sizeof out->v4);
    return true;
}

bool td_listen_address_is_any(const td_listen_address *a) {
    return a->family == AF_INET ? a->v4.s_addr == htonl(INADDR_ANY) : IN6_IS_ADDR_UNSPECIFIED(&a->v6);
}

void td_listen_address_set(const td_listen_address *a) {
    here = a && !td_listen_address_is_any(a) ? a : NULL;
}

socklen_t td_listen_address_instead(const struct sockaddr *asked, socklen_t n, struct sockaddr_storage *out) {
    struct sockaddr_in  v4;
    struct sockaddr_in6 v6;
    if (!here || !asked) return 0;
    if (asked->sa_family == AF_INET && n >= sizeof v4) {
        memcpy(&v4, asked, sizeof v4);
        if (v4.sin_addr.s_addr != htonl(INADDR_ANY)) return 0;
        v4.sin_addr = here->v4;
        memcpy(out, &v4, sizeof v4);
        return sizeof v4;
    }
    if (asked->sa_family == AF_INET6 && n >= sizeof v6) {
        memcpy(&v6, asked, sizeof v6);
        if (!IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) return 0;
        v6.sin6_addr = here->v6;
        memcpy(out, &v6, sizeof v6);
        return sizeof v6;
    }
    return 0;
}
