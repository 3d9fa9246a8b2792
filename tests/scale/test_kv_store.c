/*
 * The KV store over a stand-in for Mooncake. Pages that one server sends reach another byte by byte. Pages that are damaged,
 * lost, late or of another model never arrive. A store that is down costs nothing, and all buffers come back. Also
 * --kv-store-config.
 */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "core/log/log.h"
#include "core/math/rng.h"
#include "scale/kv_page_frame.h"
#include "scale/kv_store.h"
#include "tests/td_test.h"

#define PAGE_TOKENS 4
#define PAGE_BYTES 1000
#define MAX_PAGES 100
#define PATIENCE_S 30

typedef struct {
    char                 folder[64];
    td_kv_store         *store;
    const td_page_store *p;
    atomic_uint          woken;
} node;

static void doze(void) {
    nanosleep(&(struct timespec){0, 500000}, NULL);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void on_wake(void *user) {
    node *n = user;
    atomic_fetch_add(&n->woken, 1);
}

static void make_folder(char folder[64]) {
    snprintf(folder, 64, "/tmp/td_kv_store_XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static void set_faults(const char *folder, const char *text) {
    char part[100], path[100];
    snprintf(part, sizeof part, "%s/new", folder);
    snprintf(path, sizeof path, "%s/faults", folder);
    FILE *f = fopen(part, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(part, path), 0);
}

static void remove_folder(const char *folder) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static td_page_store_stats stats(const node *n) {
    td_page_store_stats s;
    n->p->stats(n->p->user, &s);
    return s;
}

static void wait_up(const node *n, bool up) {
    for (double end = now_s() + PATIENCE_S; stats(n).up != up; doze()) assert_true(now_s() < end);
}

static td_page_format format(node *n, uint64_t fingerprint) {
    return WITH(td_page_format, .page_tokens = PAGE_TOKENS, .max_pages = MAX_PAGES, .page_bytes = PAGE_BYTES,
                .fingerprint = {fingerprint, fingerprint << 32}, .wake = on_wake, .wake_user = n);
}

/* @param buffers bytes of page buffers. */
static void start(node *n, const char *folder, uint64_t fingerprint, uint64_t buffers) {
    td_kv_store_config c = WITH(td_kv_store_config, .library = TD_FAKE_MOONCAKE, .local_hostname = "127.0.0.1",
                                .listen_address = "127.0.0.1", .metadata_server = "P2PHANDSHAKE", .protocol = "tcp",
                                .local_buffer_size = 1 << 20, .page_buffer_size = buffers, .max_wait_ms = 200);
    td_error           err = {0};
    *n = (node){0};
    snprintf(n->folder, sizeof n->folder, "%s", folder);
    snprintf(c.master_server_address, sizeof c.master_server_address, "%s", folder);
    if (td_kv_store_open(&c, &n->store, &err) != TD_OK) fail_msg("%s", err.text);
    n->p = td_kv_store_pages(n->store);
    td_page_format f = format(n, fingerprint);
    OK(n->p->open(n->p->user, &f, &err));
}

static void stop(node *n) {
    n->p->close(n->p->user);
    td_page_store_stats s = stats(n);
    assert_int_equal(s.buffers_used, 0);
    assert_int_equal(s.lookups_open, 0);
    td_kv_store_close(n->store);
}

/* ---- a sequence: page i has these tokens, key and KV ---- */

typedef struct {
    uint32_t    tokens[MAX_PAGES * PAGE_TOKENS];
    td_page_key root, keys[MAX_PAGES];
} sequence;

static void fill(sequence *s, uint64_t seed, uint64_t fingerprint) {
    s->root = (td_page_key){fingerprint, fingerprint << 32};
    for (uint32_t i = 0; i < MAX_PAGES * PAGE_TOKENS; i++) s->tokens[i] = (uint32_t)td_rng_u64(seed, 1, i);
    for (uint32_t i = 0; i < MAX_PAGES; i++)
        s->keys[i] = (td_page_key){td_rng_u64(seed, 2, i), td_rng_u64(fingerprint, 3, i)};
}

static void fill_kv(const sequence *s, uint32_t i, uint8_t kv[PAGE_BYTES]) {
    for (uint32_t k = 0; k < PAGE_BYTES; k++) kv[k] = (uint8_t)td_rng_u64(s->keys[i].low, 4, k);
}

/* @return whether the store wanted it. */
static bool send(node *n, const sequence *s, uint32_t i) {
    td_page_name name = {s->keys[i], i ? s->keys[i - 1] : s->root, s->tokens + i * PAGE_TOKENS};
    uint8_t     *memory = n->p->put(n->p->user, &name);
    if (!memory) return false;
    fill_kv(s, i, memory);
    n->p->put_end(n->p->user, memory, true);
    return true;
}

static void send_all(node *n, const sequence *s, uint32_t count) {
    double end = now_s() + PATIENCE_S;
    for (uint32_t i = 0; i < count; i++)
        for (; !send(n, s, i); doze()) assert_true(now_s() < end);
    for (; stats(n).buffers_used; doze()) assert_true(now_s() < end);
}

/* Take what comes of pages first .. first + count - 1, each with its right bytes. @return how many. */
static uint32_t receive(node *n, const sequence *s, uint32_t first, uint32_t count) {
    uint8_t        kv[PAGE_BYTES];
    const void    *page;
    uint32_t       got = 0;
    td_pages_state state;
    double         end = now_s() + PATIENCE_S;
    void *l = n->p->look(n->p->user, first ? s->keys[first - 1] : s->root, s->keys + first, s->tokens + first * PAGE_TOKENS,
                         count);
    if (!l) return 0;
    while ((state = n->p->next(n->p->user, l, &page)) != TD_PAGES_OVER) {
        assert_true(now_s() < end);
        if (state == TD_PAGES_COMING) {
            doze();
            continue;
        }
        assert_true(got < count);
        fill_kv(s, first + got++, kv);
        assert_memory_equal(page, kv, PAGE_BYTES);
        n->p->taken(n->p->user, l);
    }
    n->p->end(n->p->user, l, false);
    return got;
}

/* ---- the tests ---- */

TEST(gives_to_another_what_one_sent) {
    char     folder[64];
    node     a, b;
    sequence s;
    make_folder(folder);
    start(&a, folder, 7, 1 << 20);
    start(&b, folder, 7, 0); /* the least: four buffers each way, for a hundred pages */
    wait_up(&a, true);
    wait_up(&b, true);
    fill(&s, 1, 7);
    send_all(&a, &s, 90);
    assert_int_equal(stats(&a).pages_out, 90);
    assert_int_equal(receive(&b, &s, 0, 100), 90);
    assert_int_equal(receive(&b, &s, 70, 10), 10);
    assert_int_equal(receive(&b, &s, 90, 10), 0);
    send_all(&b, &s, 90); /* all there: nothing is sent */
    assert_int_equal(stats(&b).pages_out, 0);
    assert_int_equal(stats(&b).pages_in, 100);
    assert_int_equal(stats(&b).pages_bad, 0);
    assert_true(atomic_load(&b.woken) > 0);
    stop(&a);
    stop(&b);
    remove_folder(folder);
}

TEST(another_model_finds_nothing) {
    char     folder[64];
    node     a, b;
    sequence s, other;
    make_folder(folder);
    start(&a, folder, 7, 0);
    start(&b, folder, 8, 0);
    wait_up(&a, true);
    wait_up(&b, true);
    fill(&s, 1, 7);
    fill(&other, 1, 8);
    send_all(&a, &s, 5);
    assert_int_equal(receive(&b, &other, 0, 5), 0);
    assert_int_equal(receive(&b, &s, 0, 5), 0); /* not even with the same keys: they begin with the fingerprint */
    assert_int_equal(stats(&b).pages_bad, 0);
    stop(&a);
    stop(&b);
    remove_folder(folder);
}

/* Whatever happens to pages on their way, those that arrive are right, and in order from the first one on. */
TEST(takes_no_page_that_is_not_right) {
    static const struct {
        const char *faults;
        bool        bad; /* it shows as pages that are not right */
    } WAYS[] = {{"seed=%u flip=30", true}, {"seed=%u short=30", true}, {"seed=%u long=30", true},
                {"seed=%u swap=30", true}, {"seed=%u lose=30", false}, {"seed=%u fail=30", false}};
    for (size_t way = 0; way < sizeof WAYS / sizeof WAYS[0]; way++) {
        char     folder[64], text[64];
        node     a, b;
        sequence s;
        make_folder(folder);
        start(&a, folder, 7, 1 << 20);
        start(&b, folder, 7, 1 << 20);
        wait_up(&a, true);
        wait_up(&b, true);
        fill(&s, 1, 7);
        uint64_t whole = 0;
        for (unsigned round = 0; round < 30; round++) {
            set_faults(folder, "");
            send_all(&a, &s, 20); /* again what was removed */
            snprintf(text, sizeof text, WAYS[way].faults, round);
            set_faults(folder, text);
            whole += receive(&b, &s, 0, 20);
        }
        td_page_store_stats st = stats(&b);
        assert_true(whole > 0 && whole < 30 * 20);
        assert_int_equal(st.pages_in, whole);
        assert_int_equal(st.pages_bad > 0, WAYS[way].bad);
        assert_int_equal(st.failures > 0, !strcmp(WAYS[way].faults, "seed=%u fail=30"));
        assert_true(st.up);
        stop(&a);
        stop(&b);
        remove_folder(folder);
    }
}

TEST(goes_down_and_comes_back) {
    char     folder[64];
    node     a;
    sequence s;
    make_folder(folder);
    set_faults(folder, "down=1");
    start(&a, folder, 7, 0);
    fill(&s, 1, 7);
    assert_false(send(&a, &s, 0));
    assert_int_equal(receive(&a, &s, 0, 3), 0);
    assert_int_equal(stats(&a).lookups_refused, 1);
    set_faults(folder, "");
    wait_up(&a, true);
    send_all(&a, &s, 3);
    set_faults(folder, "down=1");
    assert_int_equal(receive(&a, &s, 0, 3), 0); /* the lookup ends by itself */
    wait_up(&a, false);
    assert_true(stats(&a).failures > 0);
    assert_false(send(&a, &s, 4));
    set_faults(folder, "");
    wait_up(&a, true);
    assert_int_equal(receive(&a, &s, 0, 3), 3);
    set_faults(folder, "refuse=100");
    send_all(&a, &s, 6);
    assert_int_equal(stats(&a).pages_out, 3);
    assert_true(stats(&a).up);    /* a store that is full is not down */
    set_faults(folder, "down=1"); /* nobody asks: it is noticed all the same */
    wait_up(&a, false);
    stop(&a);
    remove_folder(folder);
}

/* A lookup that is given up while the store is at it, and all that the engine can do while it hangs. */
TEST(is_never_waited_for) {
    char        folder[64];
    node        a;
    sequence    s;
    const void *page;
    make_folder(folder);
    start(&a, folder, 7, 1 << 20);
    wait_up(&a, true);
    fill(&s, 1, 7);
    send_all(&a, &s, 5);
    set_faults(folder, "hold=1"); /* until it is let go below: who waits for the store does not come there */
    double began_s = now_s();
    void  *l = a.p->look(a.p->user, s.root, s.keys, s.tokens, 5);
    assert_non_null(l);
    assert_int_equal(a.p->next(a.p->user, l, &page), TD_PAGES_COMING);
    while (now_s() < began_s + 0.5) doze();
    a.p->end(a.p->user, l, true);
    assert_null(a.p->look(a.p->user, s.root, s.keys, s.tokens, 5)); /* longer than a prompt may wait, already */
    assert_true(send(&a, &s, 6));
    td_page_store_stats st = stats(&a);
    assert_int_equal(st.lookups_late, 1);
    assert_int_equal(st.lookups_refused, 1);
    set_faults(folder, "");
    for (double end = now_s() + PATIENCE_S; stats(&a).lookups_open || stats(&a).buffers_used; doze())
        assert_true(now_s() < end);
    assert_int_equal(receive(&a, &s, 0, 7), 5); /* page 5 was never sent */
    stop(&a);
    remove_folder(folder);
}

TEST(ends_with_everything_under_way) {
    for (unsigned round = 0; round < 10; round++) {
        char     folder[64];
        node     a;
        sequence s;
        make_folder(folder);
        start(&a, folder, 7, 0);
        wait_up(&a, true);
        fill(&s, round, 7);
        send_all(&a, &s, 20);
        set_faults(folder, "delay_ms=20");
        void *l = a.p->look(a.p->user, s.root, s.keys, s.tokens, 20);
        assert_non_null(l);
        for (uint32_t i = 20; i < 24; i++) (void)send(&a, &s, i);
        for (unsigned i = 0; i < 4 * round; i++) doze();
        a.p->end(a.p->user, l, false);
        a.p->close(a.p->user);
        assert_int_equal(stats(&a).lookups_open, 0);
        td_kv_store_close(a.store);
        remove_folder(folder);
    }
}

TEST(needs_its_library) {
    td_kv_store_config c = {.library = "/nowhere/libmooncake_store.so", .listen_address = "127.0.0.1", .protocol = "tcp"};
    td_kv_store       *k;
    td_error           err = {0};
    assert_int_equal(td_kv_store_open(&c, &k, &err), TD_ENOTFOUND);
    assert_non_null(strstr(err.text, "/nowhere/libmooncake_store.so"));
    snprintf(c.library, sizeof c.library, "libm.so.6");
    assert_int_equal(td_kv_store_open(&c, &k, &err), TD_ENOTFOUND);
    assert_non_null(strstr(err.text, "mooncake_store_create"));
}

/* ---- frames ---- */

TEST(every_byte_of_a_frame_counts) {
    node           n = {0};
    sequence       s;
    td_page_format f = format(&n, 9);
    size_t         bytes = td_kv_page_frame_bytes(&f);
    FREED uint8_t *frame = malloc(bytes);
    assert_non_null(frame);
    memset(frame, 0xaa, bytes);
    fill(&s, 3, 9);
    td_page_name name = {s.keys[1], s.keys[0], s.tokens + PAGE_TOKENS};
    fill_kv(&s, 1, td_kv_page_frame_kv(&f, frame));
    td_kv_page_frame_seal(&f, &name, frame);
    assert_null(td_kv_page_frame_fault(&f, &name, frame, bytes));
    assert_non_null(td_kv_page_frame_fault(&f, &name, frame, bytes - 1));
    for (size_t i = 0; i < bytes; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            frame[i] ^= (uint8_t)(1u << bit);
            if (!td_kv_page_frame_fault(&f, &name, frame, bytes)) fail_msg("bit %u of byte %zu does not count", bit, i);
            frame[i] ^= (uint8_t)(1u << bit);
        }
    td_page_name other = {s.keys[1], s.keys[0], s.tokens}; /* the same keys, as if their hashes were alike */
    assert_string_equal(td_kv_page_frame_fault(&f, &other, frame, bytes), "it has other tokens");
    other = (td_page_name){s.keys[1], s.keys[2], s.tokens + PAGE_TOKENS};
    assert_string_equal(td_kv_page_frame_fault(&f, &other, frame, bytes), "it is another page");
    f.fingerprint.low++;
    assert_string_equal(td_kv_page_frame_fault(&f, &name, frame, bytes), "it is another page");
}

/* ---- --kv-store-config ---- */

static td_status read_config(const char *text, td_kv_store_config *c, td_error *err) {
    char path[] = "/tmp/td_kv_store_config_XXXXXX";
    int  fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    td_status st = td_kv_store_config_read(path, c, err);
    unlink(path);
    return st;
}

TEST(config_is_read_and_refused) {
    static const struct {
        const char *text, *word;
    } WRONG[] = {{"[]", "object"},
                 {"{", "JSON"},
                 {"{}", "master_server_address is missing"},
                 {"{\"master_server_address\": \"a:1\"}", "global_segment_size is missing"},
                 {"{\"master_server_address\": 5, \"global_segment_size\": 0}", "must be a text"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": -1}", "number of bytes"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": \"4 GB\"}", "number of bytes"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": \"GB\"}", "number of bytes"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": \"2000GB\"}", "number of bytes"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": 1.5}", "number of bytes"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": 0, \"max_wait_ms\": 0}", "max_wait_ms"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": 0, \"protocol\": \"cxl\"}", "'cxl'"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": 0, \"mode\": \"embedded\"}", "'mode'"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": 0, \"local_hostname\": \"host-a\"}",
                  "listen_address"},
                 {"{\"master_server_address\": \"a:1\", \"global_segment_size\": 0, \"listen_address\": \"eth0\"}",
                  "listen_address must be an address"},
                 {"{\"master_server_address\": \"a:1\", \"master_server_address\": \"b:1\"}", "JSON"}};
    td_kv_store_config c;
    td_error           err = {0};
    OK(
        read_config("{\"master_server_address\": \"a:1\", \"global_segment_size\": \"4GB\", \"local_hostname\": "
                    "\"10.0.0.1\", \"page_buffer_size\": 1000, \"max_wait_ms\": 500}",
                    &c, &err));
    assert_true(c.global_segment_size == (uint64_t)4 << 30 && c.page_buffer_size == 1000 && c.max_wait_ms == 500);
    assert_string_equal(c.master_server_address, "a:1");
    assert_string_equal(c.local_hostname, "10.0.0.1");
    assert_string_equal(c.listen_address, "10.0.0.1");
    assert_string_equal(c.library, "libmooncake_store.so");
    assert_string_equal(c.protocol, "tcp");
    OK(read_config("{\"master_server_address\": \"a:1\", \"global_segment_size\": 0}", &c, &err));
    assert_string_equal(c.listen_address, "127.0.0.1");
    OK(
        read_config("{\"master_server_address\": \"a:1\", \"global_segment_size\": 0, \"local_hostname\": "
                    "\"host-a\", \"listen_address\": \"::\"}",
                    &c, &err));
    assert_string_equal(c.listen_address, "::");
    for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++) {
        assert_true(read_config(WRONG[i].text, &c, &err) != TD_OK);
        if (!strstr(err.text, WRONG[i].word)) fail_msg("%s: %s", WRONG[i].text, err.text);
    }
    assert_int_equal(td_kv_store_config_read("/nowhere/file", &c, &err), TD_ENOTFOUND);
}

int main(void) {
    td_log_set_level(TD_LOG_ERROR);
    return tests_run();
}
