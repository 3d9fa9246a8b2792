/*
 * Who breaks a rule of the device "apart" does not live to see the result: every rule in a process of its own, which must
 * end by the signal and with the sentence that is expected. So the tests that pass on it prove what they seem to.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "npu/host/host_npu.h"

#define BYTES 4096

typedef struct {
    td_npu           *npu;
    const td_npu_ops *ops;
    td_npu_stream    *stream;
    char             *device, *pinned; /* [BYTES] each */
} opened;

static opened open_apart(void) {
    td_worker_place    place = {.cpu = TD_CPU_ANY, .node = UINT32_MAX};
    td_host_npu_config host = {.own_threads = true};
    opened             o = {0};
    td_npu_config      config = {.act_dtype = TD_DT_F32, .host = &host};
    td_status          st = td_pool_create(&place, 1, &host.pool, NULL);
    if (st == TD_OK) st = td_npu_open("apart", &config, &o.npu, NULL);
    if (st != TD_OK) _exit(1);
    o.ops = o.npu->ops;
    st = o.ops->stream_create(o.npu, &o.stream, NULL);
    if (st == TD_OK) st = o.ops->alloc(o.npu, BYTES, (void **)&o.device, NULL);
    if (st == TD_OK) st = o.ops->host_alloc(o.npu, BYTES, (void **)&o.pinned, NULL);
    if (st != TD_OK) _exit(1);
    return o;
}

/* The calls' statuses do not matter: whoever comes back has not been stopped. */
static void ignore(td_status st) {
    (void)st;
}

static void read_device(opened *o) {
    fputc(*(volatile char *)o->device, stderr);
}
static void write_device(opened *o) {
    *(volatile char *)(o->device + BYTES - 1) = 1;
}
static void copy_unpinned(opened *o) {
    char here[64] = {0};
    ignore(o->ops->copy(o->npu, o->stream, o->device, here, sizeof here, TD_COPY_H2D));
}
static void copy_backwards(opened *o) {
    ignore(o->ops->copy(o->npu, o->stream, o->pinned, o->device, 64, TD_COPY_H2D));
}
static void copy_too_much(opened *o) {
    ignore(o->ops->copy(o->npu, o->stream, o->device + 1, o->pinned, BYTES, TD_COPY_H2D));
}
static void ring_unpinned(opened *o) {
    td_bell bell = 0;
    ignore(o->ops->bell_ring(o->npu, o->stream, &bell));
}
static void alloc_in_capture(opened *o) {
    void *p;
    ignore(o->ops->graph_begin(o->npu, o->stream));
    ignore(o->ops->alloc(o->npu, 64, &p, NULL));
}
static void free_in_capture(opened *o) {
    ignore(o->ops->graph_begin(o->npu, o->stream));
    o->ops->free(o->npu, o->device, BYTES);
}
static void sync_in_capture(opened *o) {
    ignore(o->ops->graph_begin(o->npu, o->stream));
    ignore(o->ops->stream_sync(o->npu, o->stream));
}
static void keep_memory(opened *o) {
    o->ops->stream_destroy(o->npu, o->stream);
    o->ops->host_free(o->npu, o->pinned, BYTES);
    o->ops->close(o->npu);
}
static void obey(opened *o) {
    ignore(o->ops->copy(o->npu, o->stream, o->device, o->pinned, BYTES, TD_COPY_H2D));
    ignore(o->ops->stream_sync(o->npu, o->stream));
    o->ops->stream_destroy(o->npu, o->stream);
    o->ops->free(o->npu, o->device, BYTES);
    o->ops->host_free(o->npu, o->pinned, BYTES);
    o->ops->close(o->npu);
}

typedef struct {
    const char *name;
    void (*act)(opened *o);
    int         by_signal; /* 0: it lives */
    const char *sentence;
} rule;

static const rule RULES[] = {
    {"reading device memory", read_device, SIGSEGV, ""},
    {"writing device memory", write_device, SIGSEGV, ""},
    {"a copy from memory that is not pinned", copy_unpinned, SIGABRT, "is not pinned memory"},
    {"a copy the wrong way", copy_backwards, SIGABRT, "is not in its memory"},
    {"a copy beyond the end", copy_too_much, SIGABRT, "is not in its memory"},
    {"a bell that is not pinned", ring_unpinned, SIGABRT, "is not in pinned memory"},
    {"allocating during a capture", alloc_in_capture, SIGABRT, "device memory is allocated while a stream is captured"},
    {"freeing during a capture", free_in_capture, SIGABRT, "device memory is freed while a stream is captured"},
    {"synchronising during a capture", sync_in_capture, SIGABRT, "a stream is synchronised while a stream is captured"},
    {"memory that is not given back", keep_memory, SIGABRT, "4096 bytes of its memory were not given back"},
    {"none broken", obey, 0, ""},
};
#define N_RULES (sizeof RULES / sizeof *RULES)

static _Noreturn void act_alone(const rule *r, int standard_error) {
    const struct rlimit none = {0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL); /* not the test library's */
    signal(SIGABRT, SIG_DFL);
    dup2(standard_error, STDERR_FILENO);
    opened o = open_apart();
    r->act(&o);
    _exit(0);
}

static void check_rule(void **state) {
    const rule *r = *state;
    char        said[1024] = {0};
    int         status, ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) act_alone(r, ends[1]);
    close(ends[1]);
    FILE  *f = fdopen(ends[0], "r");
    size_t n = fread(said, 1, sizeof said - 1, f);
    fclose(f);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, r->by_signal);
    if (!r->by_signal) assert_int_equal(WEXITSTATUS(status), 0);
    if (!strstr(said, r->sentence)) fail_msg("%s", said);
    if (!r->by_signal) assert_int_equal(n, 0); /* an emulator has a word to say about a SIGSEGV */
}

int main(void) {
    struct CMUnitTest tests[N_RULES];
    for (size_t i = 0; i < N_RULES; i++)
        tests[i] = (struct CMUnitTest){.name = RULES[i].name, .test_func = check_rule, .initial_state = (void *)&RULES[i]};
    return _cmocka_run_group_tests("apart", tests, N_RULES, NULL, NULL);
}
