/* Which address bind() takes in place of "every address" (scale/listen_address.h). test_shared_cache.py shows that libraries
 * call the program's bind(). */
#include <arpa/inet.h>

#include "scale/listen_address.h"
#include "tests/td_test.h"

/* What bind() is given for an address and port 5; NULL: as asked. */
static const char *instead_of(const char *asked, char text[INET6_ADDRSTRLEN]) {
    struct sockaddr_in      v4 = {.sin_family = AF_INET, .sin_port = htons(5)};
    struct sockaddr_in6     v6 = {.sin6_family = AF_INET6, .sin6_port = htons(5), .sin6_scope_id = 7};
    struct sockaddr_storage out;
    bool                    is_v6 = inet_pton(AF_INET6, asked, &v6.sin6_addr) == 1;
    assert_true(is_v6 || inet_pton(AF_INET, asked, &v4.sin_addr) == 1);
    const struct sockaddr *a = is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
    size_t                 n = is_v6 ? sizeof v6 : sizeof v4;
    assert_int_equal(td_listen_address_instead(a, (socklen_t)n - 1, &out), 0);
    if (!td_listen_address_instead(a, (socklen_t)n, &out)) return NULL;
    assert_int_equal(out.ss_family, a->sa_family);
    memcpy(is_v6 ? (void *)&v6 : (void *)&v4, &out, n);
    assert_int_equal(is_v6 ? v6.sin6_port : v4.sin_port, htons(5));
    return inet_ntop(a->sa_family, is_v6 ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr, text, INET6_ADDRSTRLEN);
}

TEST(listens_where_it_is_told) {
    static const struct {
        const char *told, *asked, *instead;
    } CASES[] = {{"10.0.0.2", "0.0.0.0", "10.0.0.2"},
                 {"10.0.0.2", "::", "::ffff:10.0.0.2"},
                 {"10.0.0.2", "127.0.0.1", NULL},
                 {"10.0.0.2", "::1", NULL},
                 {"fd00::2", "::", "fd00::2"},
                 {"fd00::2", "0.0.0.0", "127.0.0.1"},
                 {"0.0.0.0", "0.0.0.0", NULL},
                 {"0.0.0.0", "::", NULL},
                 {"::", "::", NULL},
                 {"::", "0.0.0.0", NULL}};
    char                    text[INET6_ADDRSTRLEN];
    td_listen_address       a;
    struct sockaddr_storage out, unix_socket = {.ss_family = AF_UNIX};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        assert_true(td_listen_address_parse(CASES[i].told, &a));
        td_listen_address_set(&a);
        const char *instead = instead_of(CASES[i].asked, text);
        if (!instead != !CASES[i].instead || (instead && strcmp(instead, CASES[i].instead)))
            fail_msg("%s, asked for %s: %s", CASES[i].told, CASES[i].asked, instead ? instead : "as asked");
    }
    assert_true(td_listen_address_parse("10.0.0.2", &a));
    td_listen_address_set(&a);
    assert_int_equal(td_listen_address_instead((struct sockaddr *)&unix_socket, sizeof unix_socket, &out), 0);
    assert_int_equal(td_listen_address_instead(NULL, 0, &out), 0);
    td_listen_address_set(NULL);
    assert_null(instead_of("0.0.0.0", text));
    static const char *WRONG[] = {"", "host", "10.0.0", "10.0.0.2:5", "10.0.0.2 ", "*"};
    for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++) assert_false(td_listen_address_parse(WRONG[i], &a));
}
