/* A trace is JSON that another parser reads; spans of a thread nest; no event is lost between buffers; its size is bounded.
 */
#include <unistd.h>

#include <jansson.h>
#include <pthread.h>
#include <sys/stat.h>

#include "core/log/trace.h"
#include "core/threads/pool.h"
#include "tests/td_test.h"

#define THREADS 4
#define ROUNDS 2000 /* of three spans and an instant: several buffers per thread */

static char path[] = "/tmp/td_trace_XXXXXX";

static void start(uint64_t max_bytes) {
    td_error err = {0};
    OK(td_trace_start(path, max_bytes, &err));
}

static json_t *parse(const char *end) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    struct stat st;
    assert_int_equal(fstat(fileno(f), &st), 0);
    size_t      size = (size_t)st.st_size, n_end = strlen(end);
    FREED char *text = malloc(size + n_end);
    assert_int_equal(fread(text, 1, size, f), size);
    memcpy(text + size, end, n_end);
    fclose(f);
    json_error_t why;
    json_t      *root = json_loadb(text, size + n_end, 0, &why);
    if (!root) fail_msg("%s at byte %d", why.text, why.position);
    assert_true(json_is_array(root));
    return root;
}

static const char *text_of(json_t *event, const char *key) {
    const char *s = json_string_value(json_object_get(event, key));
    return s ? s : "";
}

static long long number(json_t *event, const char *key) {
    return json_integer_value(json_object_get(event, key));
}
static double real(json_t *event, const char *key) {
    return json_number_value(json_object_get(event, key));
}

static size_t count(json_t *root, const char *phase, const char *name, long long tid) {
    size_t  n = 0, i;
    json_t *e;
    json_array_foreach(root, i, e) n +=
        !strcmp(text_of(e, "ph"), phase) && !strcmp(text_of(e, "name"), name) && (tid < 0 || number(e, "tid") == tid);
    return n;
}

/* Spans are written when they end, so within a thread: a span lies behind all before it, or holds the last ones whole. */
static void check_nesting(json_t *root, long long tid) {
    static double open_ts[8 * ROUNDS], open_end[8 * ROUNDS];
    size_t        n = 0, i;
    json_t       *e;
    json_array_foreach(root, i, e) {
        if (strcmp(text_of(e, "ph"), "X") || number(e, "tid") != tid) continue;
        double ts = real(e, "ts"), end = ts + real(e, "dur"), rounding = 1e-4;
        assert_true(end >= ts && ts >= 0);
        while (n && open_ts[n - 1] >= ts - rounding) {
            assert_true(open_end[n - 1] <= end + rounding);
            n--;
        }
        if (n) assert_true(open_end[n - 1] <= ts + rounding);
        open_ts[n] = ts;
        open_end[n++] = end;
    }
}

static void *trace_much(void *arg) {
    char name[16];
    snprintf(name, sizeof name, "thread %d", *(int *)arg);
    pthread_setname_np(pthread_self(), name);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t outer = td_trace_begin(), inner = td_trace_begin();
        td_trace_end(inner, &(td_trace_label){TD_TRACE_CPU, "first", {"round"}, {i}});
        inner = td_trace_begin();
        td_trace_instant(&(td_trace_label){.tier = TD_TRACE_BRIDGE, .name = "moment"});
        td_trace_end(inner, &(td_trace_label){TD_TRACE_DEVICE, "second", {"round", "largest"}, {i, UINT64_MAX / 2}});
        td_trace_end(outer, &(td_trace_label){.tier = TD_TRACE_ENGINE, .name = "outer"});
    }
    *(int *)arg = gettid();
    return NULL;
}

TEST(threads_write_one_valid_file) {
    pthread_t threads[THREADS];
    int       ids[THREADS];
    start(TD_TRACE_BYTES_MAX);
    for (int i = 0; i < THREADS; i++) {
        ids[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, trace_much, &ids[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    td_trace_stop();

    json_t *root = parse(""), *e;
    size_t  k;
    assert_int_equal(json_array_size(root), 1 + THREADS * (1 + 4 * ROUNDS));
    assert_int_equal(count(root, "M", "process_name", getpid()), 1);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(count(root, "M", "thread_name", ids[i]), 1);
        assert_int_equal(count(root, "X", "outer", ids[i]), ROUNDS);
        assert_int_equal(count(root, "i", "moment", ids[i]), ROUNDS);
        check_nesting(root, ids[i]);
        long long round = 0;
        json_array_foreach(root, k, e) {
            if (number(e, "tid") != ids[i] || strcmp(text_of(e, "name"), "second")) continue;
            json_t *args = json_object_get(e, "args");
            assert_int_equal(number(args, "round"), round++);
            assert_int_equal(number(args, "largest"), INT64_MAX);
            assert_string_equal(text_of(e, "cat"), "device");
            assert_int_equal(number(e, "pid"), getpid());
        }
    }
    json_decref(root);
}

TEST(a_killed_process_leaves_a_file_that_lacks_only_its_end) {
    start(TD_TRACE_BYTES_MAX);
    int id = 0;
    trace_much(&id);
    json_auto_t *root = parse("]"); /* what the viewers do */
    assert_true(json_array_size(root) > ROUNDS);
    td_trace_stop();
}

TEST(a_second_trace_holds_nothing_of_the_first) {
    start(TD_TRACE_BYTES_MAX);
    uint64_t before = td_trace_begin();
    td_trace_instant(&(td_trace_label){.tier = TD_TRACE_HTTP, .name = "first"});
    td_trace_stop();
    start(TD_TRACE_BYTES_MAX);
    td_error err = {0};
    assert_int_equal(td_trace_start(path, TD_TRACE_BYTES_MAX, &err), TD_EINVAL);
    td_trace_end(before, &(td_trace_label){.tier = TD_TRACE_HTTP, .name = "a \"name\" \\ to \n escape"});
    td_trace_async_begin(7, &(td_trace_label){.tier = TD_TRACE_HTTP, .name = "request"});
    td_trace_async_end(7, &(td_trace_label){.tier = TD_TRACE_HTTP, .name = "request"});
    td_trace_stop();
    json_t *root = parse(""), *e = json_array_get(root, 2);
    assert_int_equal(json_array_size(root), 5);
    assert_int_equal(count(root, "M", "thread_name", gettid()), 1);
    assert_string_equal(text_of(e, "name"), "a _name_ _ to _ escape");
    assert_true(real(e, "ts") == 0 && real(e, "dur") > 0); /* cut at the trace's start */
    for (int i = 3; i < 5; i++) {
        e = json_array_get(root, (size_t)i);
        assert_string_equal(text_of(e, "ph"), i == 3 ? "b" : "e");
        assert_int_equal(number(e, "id"), 7);
    }
    json_decref(root);
}

TEST(its_size_is_bounded) {
    const uint64_t bound = 300000; /* four buffers */
    start(bound);
    int id = 0;
    trace_much(&id);
    assert_false(td_trace_on());
    td_trace_stop();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_in_range(st.st_size, bound / 2, bound);
    json_decref(parse(""));
}

TEST(off_means_no_file) {
    unlink(path);
    assert_int_equal(td_trace_begin(), 0);
    int id = 0;
    trace_much(&id);
    td_trace_stop();
    assert_int_equal(access(path, F_OK), -1);
}

TEST(a_bad_path_is_refused) {
    static const char *const bad[] = {"/no/such/folder/t.json", "/tmp", "/dev/full"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        td_error err = {0};
        assert_int_equal(td_trace_start(bad[i], TD_TRACE_BYTES_MAX, &err), TD_EIO);
        assert_non_null(strstr(err.text, bad[i]));
        assert_false(td_trace_on());
    }
}

static void work(void *ctx, uint32_t item, const td_worker *w) {
    (void)ctx, (void)item, (void)w;
    usleep(1000);
}

TEST(pools_show_their_workers) {
    td_worker_place places[3] = {
        {.cpu = TD_CPU_ANY}, {.cpu = TD_CPU_ANY, .name = "experts"}, {.cpu = TD_CPU_ANY, .name = "experts"}};
    td_pool *p;
    td_error err = {0};
    OK(td_pool_create(places, 3, &p, &err));
    start(TD_TRACE_BYTES_MAX);
    td_pool_run(p, work, NULL, 30); /* has no label: no spans */
    td_pool_label(p, &(td_trace_label){TD_TRACE_CPU, "up", {"tokens"}, {5}});
    for (int i = 0; i < 10; i++) td_pool_run(p, work, NULL, 30);
    td_pool_destroy(p);
    td_trace_stop();
    json_t *root = parse(""), *e;
    size_t  i;
    assert_int_equal(count(root, "X", "up", -1), 20);
    assert_int_equal(count(root, "M", "thread_name", -1) - count(root, "M", "thread_name", gettid()), 2);
    json_array_foreach(root, i, e) {
        if (!strcmp(text_of(e, "ph"), "M") && number(e, "tid") != gettid() && !strcmp(text_of(e, "name"), "thread_name"))
            assert_memory_equal(text_of(json_object_get(e, "args"), "name"), "experts ", 8);
        check_nesting(root, number(e, "tid"));
    }
    json_decref(root);
}

BEFORE_ALL {
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
}

AFTER_ALL {
    unlink(path);
}
