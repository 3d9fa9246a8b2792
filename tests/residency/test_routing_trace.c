/* Routing traces: a file that is one is read, and anything else is refused with a sentence. */
#include <unistd.h>

#include "residency/routing_trace.h"
#include "tests/td_test.h"

/* Two tokens, two layers, three experts, two a token. */
typedef struct {
    td_routing_header header;
    uint16_t          ids[8];
} small_file;

static small_file good(void) {
    return (small_file){.header = td_routing_header_of(2, 3, 2, 2), .ids = {0, 1, 1, 2, 2, 0, 0, 2}};
}

TEST(a_trace_is_read) {
    small_file       f = good();
    td_routing_trace t;
    char             path[] = "/tmp/td_routing_XXXXXX";
    int              fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, &f, sizeof f) == (ssize_t)sizeof f);
    OK(td_routing_trace_read(path, &t, NULL));
    assert_int_equal(t.n_tok, 2);
    assert_memory_equal(td_routing_ids(&t, 1, 0), &f.ids[4], 4);
    td_routing_trace_close(&t);
    assert_int_equal(ftruncate(fd, sizeof f - 1), 0);
    assert_int_equal(td_routing_trace_read(path, &t, NULL), TD_EFORMAT);
    close(fd);
    unlink(path);
    td_error err = {0};
    assert_int_equal(td_routing_trace_read(path, &t, &err), TD_EIO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(td_routing_trace_read("/tmp", &t, NULL), TD_EFORMAT);
}

typedef struct {
    const char *name;
    size_t      at, bytes; /* what is laid over a good file */
    uint64_t    value;
    size_t      size; /* of the file; 0: as it should be */
    const char *says;
} damage;

#define H(member) offsetof(td_routing_header, member)
static const damage DAMAGED[] = {
    {"no file of this kind", 0, 1, 'X', 0, "not a routing trace"},
    {"nothing", 0, 0, 0, 1, "not a routing trace"},
    {"no whole header", 0, 0, 0, 31, "not a routing trace"},
    {"a later version", H(version), 4, 2, 0, "version 2"},
    {"no layers", H(n_layers), 4, 0, 0, "0 layers"},
    {"too many layers", H(n_layers), 4, TD_ROUTING_LAYERS_MAX + 1, 0, "4097 layers"},
    {"no experts", H(n_experts), 4, 0, 0, "0 experts"},
    {"experts beyond an id", H(n_experts), 4, 65535, 0, "65535 experts"},
    {"no choice", H(top_k), 4, 0, 0, "0 per token"},
    {"more chosen than there are", H(top_k), 4, 4, 0, "4 per token"},
    {"no tokens", H(n_tok), 8, 0, 0, "0 tokens"},
    {"tokens that are not there", H(n_tok), 8, 3, 0, "not those of 3 tokens"},
    {"tokens whose bytes are beyond a number", H(n_tok), 8, (1ULL << 61) + 2, 0, "not those of"},
    {"an id cut in two", 0, 0, 0, sizeof(small_file) - 1, "not those of 2 tokens"},
    {"an id too many", 0, 0, 0, sizeof(small_file) + 2, "not those of 2 tokens"},
    {"an id that is no expert", sizeof(td_routing_header), 2, 3, 0, "in layer 0 token 0"},
    {"an expert chosen twice", sizeof(small_file) - 2, 2, 0, 0, "in layer 1 token 1"},
};

static void is_refused(void **state) {
    const damage    *d = *state;
    uint64_t         bytes[(sizeof(small_file) + 15) / 8] = {0};
    small_file       f = good();
    td_routing_trace t;
    td_error         err = {0};
    memcpy(bytes, &f, sizeof f);
    memcpy((char *)bytes + d->at, &d->value, d->bytes);
    assert_int_equal(td_routing_trace_parse(bytes, d->size ? d->size : sizeof f, "it", &t, &err), TD_EFORMAT);
    assert_non_null(strstr(err.text, d->says));
}
TEST_ROWS(is_refused, DAMAGED)
