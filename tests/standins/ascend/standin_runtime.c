/*
 * The runtime's functions: start, contexts, memory, copies, streams, events, callbacks, values, versions.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

#define DEVICES_MAX 64

/* ---- sentences --------------------------------------------------------------------------------- */

const standin_documents STANDIN_DOCUMENTS = {.name = "ascend",
                                             .order = "runtime 07 aclrtRecordEvent, aclrtStreamWaitEvent",
                                             .free_device = "runtime 11-01 aclrtFree",
                                             .free_pinned = "runtime 11-02 aclrtFreeHost",
                                             .graph_memory = "runtime dev_guide 04-01, limit 7"};

static const char *text_setting(const char *variable, const char *otherwise) {
    const char *value = getenv(variable);
    return value && *value ? value : otherwise;
}

static _Thread_local char recent[1024], given[1024];

td_acl_status standin_fail(td_acl_status status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(recent, sizeof recent, format, list);
    va_end(list);
    return status;
}

static _Atomic uint64_t calls_asked, ops_asked;

static bool is_lost(void) {
    const char *path = getenv("TD_STANDIN_LOST");
    return path && *path && !access(path, F_OK);
}

td_acl_status standin_failure(td_acl_status usual) {
    if (is_lost()) usual = TD_ACL_ERROR_RT_LOST_HEARTBEAT;
    return (td_acl_status)standin_setting("TD_STANDIN_STATUS", (uint64_t)usual);
}

bool standin_fails(const char *call) {
    const char *wants = is_lost()                                      ? "TD_STANDIN_LOST"
                        : standin_nth("TD_STANDIN_FAIL", &calls_asked) ? "TD_STANDIN_FAIL"
                                                                       : NULL;
    if (wants) (void)standin_fail(TD_ACL_ERROR_RT_AICORE_EXCEPTION, "%s fails, as %s wants it", call, wants);
    return wants != NULL;
}

bool standin_op_fails(void) {
    return is_lost() || standin_nth("TD_STANDIN_FAIL_OP", &ops_asked);
}

/* "Gets and clears"; the pointer is good until the next call (runtime 13). */
const char *aclGetRecentErrMsg(void) {
    if (!recent[0]) return NULL;
    memcpy(given, recent, sizeof given);
    recent[0] = 0;
    return given;
}

/* ---- start, devices, contexts -------------------------------------------------------------------- */

static bool                           started;
static standin_context               *defaults[DEVICES_MAX];
static uint32_t                       n_set[DEVICES_MAX], n_contexts, n_streams, n_events;
static _Thread_local standin_context *current;

static uint32_t n_devices(void) {
    return (uint32_t)standin_setting("TD_STANDIN_DEVICES", 2);
}

standin_context *standin_enter(const char *call, int kind) {
    if (!started) standin_refuse("runtime 02 aclInit", "%s before aclInit", call);
    if (kind & STANDIN_NOT_IN_CALLBACK && standin_in_callback())
        standin_refuse("runtime 12 aclrtLaunchCallback",
                       "%s in a callback, which may not allocate, free, synchronise or launch", call);
    if (kind & STANDIN_NEEDS_CONTEXT && !current)
        standin_refuse("runtime 05 (ACL_ERROR_RT_CONTEXT_NULL)", "%s on a thread without a context", call);
    if (current && !current->alive)
        standin_refuse("runtime 05 aclrtSetCurrentContext", "%s on a thread whose context is destroyed", call);
    if (kind & (STANDIN_SYNCHRONISES | STANDIN_UNSAFE)) {
        standin_lock();
        standin_capture_check(call, kind, current);
        standin_unlock();
    }
    return current;
}

standin_stream *standin_stream_of(td_acl_stream stream, const char *call) {
    standin_stream *s = stream;
    if (!s)
        standin_refuse("runtime dev_guide 04-01, limit 6", "%s on the default stream, which cannot be captured: name one",
                       call);
    if (!s->alive) standin_refuse("runtime 06 aclrtDestroyStream", "%s on a stream that is destroyed", call);
    if (s->context != current)
        standin_refuse("runtime 06 (ACL_ERROR_RT_STREAM_CONTEXT)", "%s on a stream of another context than the thread's",
                       call);
    return s;
}

td_acl_status aclInit(const char *config_path) {
    (void)config_path;
    if (standin_fails("aclInit")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    STANDIN_LOCKED;
    bool again = started;
    started = true;
    return again ? standin_fail(TD_ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before") : TD_ACL_SUCCESS;
}

td_acl_status aclFinalize(void) {
    const char *document = "runtime 02 aclFinalize, 04 aclrtResetDevice";
    standin_enter("aclFinalize", STANDIN_NOT_IN_CALLBACK);
    standin_lock();
    for (int32_t d = -1; d < DEVICES_MAX; d++) {
        size_t bytes = standin_memory_bytes(d);
        if (bytes && d < 0)
            standin_refuse(document, "aclFinalize with %zu bytes of pinned memory that were not freed", bytes);
        if (bytes) standin_refuse(document, "aclFinalize with %zu bytes of device %d that were not freed", bytes, d);
    }
    if (standin_graphs_alive())
        standin_refuse(document, "aclFinalize with %u captures that were not destroyed", standin_graphs_alive());
    if (n_streams || n_events || n_contexts)
        standin_refuse(document, "aclFinalize with %u streams, %u events and %u contexts that were not destroyed", n_streams,
                       n_events, n_contexts);
    started = false;
    standin_unlock();
    if (standin_setting("TD_STANDIN_FAIL", 1) == 0)
        fprintf(stderr, "ascend stand-in: %llu calls can fail\n", (unsigned long long)calls_asked);
    return TD_ACL_SUCCESS;
}

static td_acl_status check_device(int32_t device) {
    if (device >= 0 && (uint32_t)device < n_devices()) return TD_ACL_SUCCESS;
    return standin_fail(TD_ACL_ERROR_RT_INVALID_DEVICEID, "there is no device %d: there are %u", device, n_devices());
}

td_acl_status aclrtGetDeviceCount(uint32_t *count) {
    standin_enter("aclrtGetDeviceCount", STANDIN_ANYWHERE);
    *count = n_devices();
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtGetLogicDevIdByUserDevId(const int32_t device, int32_t *const driver_device) {
    standin_enter("aclrtGetLogicDevIdByUserDevId", STANDIN_ANYWHERE);
    td_acl_status st = check_device(device);
    if (st == TD_ACL_SUCCESS) *driver_device = device;
    return st;
}

td_acl_status aclrtSetDevice(int32_t device) {
    standin_enter("aclrtSetDevice", STANDIN_NOT_IN_CALLBACK);
    td_acl_status st = check_device(device);
    if (st != TD_ACL_SUCCESS) return st;
    STANDIN_LOCKED;
    if (!defaults[device]) {
        defaults[device] = calloc(1, sizeof *defaults[device]);
        standin_keep(defaults[device]);
    }
    *defaults[device] =
        (standin_context){.device = device, .alive = true, .is_default = true, .n_streams = defaults[device]->n_streams};
    n_set[device]++;
    current = defaults[device];
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtResetDevice(int32_t device) {
    standin_enter("aclrtResetDevice", STANDIN_NOT_IN_CALLBACK);
    td_acl_status st = check_device(device);
    if (st != TD_ACL_SUCCESS) return st;
    STANDIN_LOCKED;
    if (!n_set[device])
        standin_refuse("runtime 04 aclrtResetDevice", "device %d is reset more often than it was set", device);
    if (--n_set[device] == 0) {
        if (defaults[device]->n_streams)
            standin_refuse("runtime 04 aclrtResetDevice", "device %d is reset with streams on its default context", device);
        defaults[device]->alive = false;
        if (current == defaults[device]) current = NULL;
    }
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtCreateContext(td_acl_context *context, int32_t device) {
    standin_enter("aclrtCreateContext", STANDIN_NOT_IN_CALLBACK);
    *context = NULL;
    td_acl_status st = check_device(device);
    if (st != TD_ACL_SUCCESS) return st;
    if (standin_fails("aclrtCreateContext")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    standin_context *c = calloc(1, sizeof *c);
    *c = (standin_context){.device = device, .alive = true};
    STANDIN_LOCKED;
    standin_keep(c);
    n_contexts++;
    *context = current = c;
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtDestroyContext(td_acl_context context) {
    standin_context *c = context;
    if (!started) standin_refuse("runtime 02 aclInit", "aclrtDestroyContext before aclInit");
    if (!c || !c->alive || c->is_default)
        standin_refuse("runtime 05 aclrtDestroyContext",
                       "a context is destroyed that is none, is a default one or was destroyed before");
    STANDIN_LOCKED;
    if (c->n_streams)
        standin_refuse("runtime 04 aclrtResetDevice", "a context is destroyed with %u streams: streams first", c->n_streams);
    c->alive = false;
    n_contexts--;
    if (current == c) current = NULL;
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtSetCurrentContext(td_acl_context context) {
    standin_context *c = context;
    if (!c || !c->alive)
        standin_refuse("runtime 05 aclrtSetCurrentContext", "a thread takes a context that is none, or is destroyed");
    current = c;
    return TD_ACL_SUCCESS;
}

const char *aclrtGetSocName(void) {
    standin_enter("aclrtGetSocName", STANDIN_ANYWHERE);
    return text_setting("TD_STANDIN_SOC", "Ascend910B4");
}

static const char *cann(void) {
    return text_setting("TD_STANDIN_CANN", "9.1.0");
}

td_acl_status aclsysGetVersionStr(char *package, char *version) {
    if (strcmp(package, "runtime"))
        return standin_fail(TD_ACL_ERROR_INVALID_PARAM, "no package \"%s\" is installed", package);
    snprintf(version, TD_ACL_VERSION_CHARS, "%s", cann());
    return TD_ACL_SUCCESS;
}

td_acl_status aclsysGetCANNVersion(td_acl_package package, td_acl_package_version *version) {
    if (package != TD_ACL_PKG_NAME_CANN && package != TD_ACL_PKG_NAME_RUNTIME)
        return standin_fail(TD_ACL_ERROR_INVALID_PARAM, "the package is not installed");
    memset(version, 0, sizeof *version);
    snprintf(version->version, sizeof version->version, "%s", cann());
    return TD_ACL_SUCCESS;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static td_acl_status memory_add(int32_t device, size_t bytes, void **out) {
    char why[256];
    return standin_memory_add(device, bytes, out, why) ? TD_ACL_SUCCESS
                                                       : standin_fail(TD_ACL_ERROR_RT_MEMORY_ALLOCATION, "%s", why);
}

td_acl_status aclrtMalloc(void **out, size_t bytes, td_acl_malloc_how how) {
    standin_context *c = standin_enter("aclrtMalloc", STANDIN_LAUNCHES);
    (void)how;
    if (!bytes) standin_refuse("runtime 11-01 aclrtMalloc", "0 bytes of device memory are asked for");
    if (standin_fails("aclrtMalloc")) return standin_failure(TD_ACL_ERROR_RT_MEMORY_ALLOCATION);
    return memory_add(c->device, bytes, out);
}

td_acl_status aclrtFree(void *p) {
    standin_enter("aclrtFree", STANDIN_LAUNCHES);
    standin_memory_remove(p, false);
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtMallocHost(void **out, size_t bytes) {
    standin_enter("aclrtMallocHost", STANDIN_LAUNCHES);
    if (!bytes) standin_refuse("runtime 11-02 aclrtMallocHost", "0 bytes of pinned memory are asked for");
    if (standin_fails("aclrtMallocHost")) return standin_failure(TD_ACL_ERROR_RT_MEMORY_ALLOCATION);
    return memory_add(-1, bytes, out);
}

td_acl_status aclrtFreeHost(void *p) {
    standin_enter("aclrtFreeHost", STANDIN_LAUNCHES);
    standin_memory_remove(p, true);
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtGetMemInfo(td_acl_memory_kind kind, size_t *free_bytes, size_t *total_bytes) {
    standin_context *c = standin_enter("aclrtGetMemInfo", STANDIN_NEEDS_CONTEXT);
    size_t           all = standin_setting("TD_STANDIN_MEMORY", (size_t)2 << 30);
    standin_lock();
    size_t used = standin_memory_bytes(c->device);
    standin_unlock();
    bool hbm = kind == TD_ACL_HBM_MEM;
    *total_bytes = hbm ? all : 0;
    *free_bytes = hbm && standin_memory_room() > used ? standin_memory_room() - used : 0;
    return TD_ACL_SUCCESS;
}

/* ---- copies ------------------------------------------------------------------------------------ */

typedef struct {
    void       *dst;
    const void *src; /* NULL: dst is filled with value */
    size_t      bytes;
    int         value;
} copy_args;

static void run_copy(standin_op *op, standin_stream *s) {
    const copy_args *a = op->payload;
    (void)s;
    void       *dst = standin_real(a->dst, a->bytes, op->name);
    const void *src = a->src ? standin_real(a->src, a->bytes, op->name) : NULL;
    if (!src) {
        memset(dst, a->value, a->bytes);
    } else if (a->bytes == 4 && (uintptr_t)dst % 4 == 0) {
        /* A word arrives at once, and after what its stream copied before: the host polls such words. */
        uint32_t word;
        memcpy(&word, src, sizeof word);
        __atomic_store_n((uint32_t *)dst, word, __ATOMIC_RELEASE);
    } else {
        memmove(dst, src, a->bytes);
    }
}

static void drop_payload(standin_op *op) {
    free(op->payload);
}

static void submit_copy(standin_stream *s, const char *name, copy_args args) {
    standin_op *op = standin_op_new(name, STANDIN_OP_COPY, run_copy);
    copy_args  *a = malloc(sizeof *a);
    *a = args;
    op->payload = a;
    op->drop = drop_payload;
    if (a->src) standin_op_use(op, a->src, a->bytes, false, false);
    standin_op_use(op, a->dst, a->bytes, true, false);
    standin_submit(s, op);
}

/** What lies at `at`: 'd' memory of the device, 'p' pinned, 'h' other memory of the host. */
static char side_of(const void *at, size_t bytes, int32_t device, const char *call) {
    standin_lock();
    standin_memory *whole = standin_memory_of(at, bytes), *some = standin_memory_of(at, 1);
    standin_unlock();
    if (some && !whole)
        standin_refuse("runtime 11-03", "%s of %zu bytes goes beyond the end of the memory at %p", call, bytes, at);
    if (!whole) return 'h';
    if (whole->device < 0) return 'p';
    if (whole->device != device)
        standin_refuse("runtime 11-03 aclrtMemcpy",
                       "%s touches memory of device %d from device %d: access between devices was not enabled", call,
                       whole->device, device);
    return 'd';
}

static void check_sides(const char *call, char dst, char src, td_acl_copy_kind kind) {
    bool ok = kind == TD_ACL_MEMCPY_HOST_TO_DEVICE     ? dst == 'd' && src != 'd'
              : kind == TD_ACL_MEMCPY_DEVICE_TO_HOST   ? dst != 'd' && src == 'd'
              : kind == TD_ACL_MEMCPY_DEVICE_TO_DEVICE ? dst == 'd' && src == 'd'
                                                       : false;
    if (kind == TD_ACL_MEMCPY_HOST_TO_HOST)
        standin_refuse("runtime 11-03 aclrtMemcpyAsync", "%s from host to host is not supported", call);
    if (!ok)
        standin_refuse("runtime 25-02 aclrtMemcpyKind", "%s of kind %u goes from %s memory to %s memory", call, kind,
                       src == 'd' ? "device" : "host", dst == 'd' ? "device" : "host");
}

td_acl_status aclrtMemcpyAsync(void *dst, size_t dst_bytes, const void *src, size_t bytes, td_acl_copy_kind kind,
                               td_acl_stream stream) {
    const char      *call = "aclrtMemcpyAsync";
    standin_context *c = standin_enter(call, STANDIN_LAUNCHES);
    standin_stream  *s = standin_stream_of(stream, call);
    if (bytes > dst_bytes)
        standin_refuse("runtime 11-03 aclrtMemcpyAsync", "%s of %zu bytes into %zu", call, bytes, dst_bytes);
    char to = side_of(dst, bytes, c->device, call), from = side_of(src, bytes, c->device, call);
    check_sides(call, to, from, kind);
    if (to == 'h' || from == 'h')
        standin_refuse("runtime 11-03 aclrtMemcpyAsync, dev_guide 04-01 limit 5",
                       "%s with host memory that is not pinned: it would wait, and cannot be captured", call);
    if (standin_fails("aclrtMemcpyAsync")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    submit_copy(s, call, (copy_args){dst, src, bytes, 0});
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtMemsetAsync(void *p, size_t p_bytes, int32_t value, size_t bytes, td_acl_stream stream) {
    const char      *call = "aclrtMemsetAsync";
    standin_context *c = standin_enter(call, STANDIN_LAUNCHES);
    standin_stream  *s = standin_stream_of(stream, call);
    if (bytes > p_bytes) standin_refuse("runtime 11-03 aclrtMemsetAsync", "%s of %zu bytes of %zu", call, bytes, p_bytes);
    if (side_of(p, bytes, c->device, call) == 'h')
        standin_refuse("runtime 11-03 aclrtMemsetAsync", "%s of host memory that is not the runtime's", call);
    if (standin_fails("aclrtMemsetAsync")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    submit_copy(s, call, (copy_args){p, NULL, bytes, value});
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtMemcpy(void *dst, size_t dst_bytes, const void *src, size_t bytes, td_acl_copy_kind kind) {
    const char      *call = "aclrtMemcpy";
    standin_context *c = standin_enter(call, STANDIN_LAUNCHES | STANDIN_UNSAFE);
    if (bytes > dst_bytes) standin_refuse("runtime 11-03 aclrtMemcpy", "%s of %zu bytes into %zu", call, bytes, dst_bytes);
    char to = side_of(dst, bytes, c->device, call), from = side_of(src, bytes, c->device, call);
    check_sides(call, to, from, kind);
    /* "Copies at once; synchronises no stream": what an operation that is still enqueued writes or reads must not be
     * touched. */
    const void *device = to == 'd' ? dst : src;
    standin_lock();
    standin_memory *m = standin_memory_of(device, bytes);
    if (m->in_flight)
        standin_refuse("runtime 11-03 aclrtMemcpy", "%s touches memory that enqueued operations use: it waits for no stream",
                       call);
    char *there = m->real + ((const char *)device - m->given);
    if (to == 'd') {
        c->host_us += standin_setting("TD_STANDIN_COPY_US", 20);
        c->copies++;
    }
    standin_unlock();
    memcpy(to == 'd' ? there : dst, from == 'd' ? there : src, bytes);
    return TD_ACL_SUCCESS;
}

/* ---- values ------------------------------------------------------------------------------------ */

typedef struct {
    void    *at;
    uint64_t value;
    uint32_t how;
} value_args;

static void run_value_write(standin_op *op, standin_stream *s) {
    const value_args *a = op->payload;
    (void)s;
    __atomic_store_n((uint64_t *)standin_real(a->at, 8, op->name), a->value, __ATOMIC_RELEASE);
}

static void run_value_wait(standin_op *op, standin_stream *s) {
    const value_args *a = op->payload;
    uint64_t         *at = standin_real(a->at, 8, op->name);
    while (!standin_is_aborted(s)) {
        uint64_t now = __atomic_load_n(at, __ATOMIC_ACQUIRE);
        if (a->how == TD_ACL_STREAM_WAIT_VALUE_GEQ ? (int64_t)(now - a->value) >= 0 : now == a->value) return;
        usleep(20);
    }
}

static td_acl_status submit_value(const char *call, void (*run)(standin_op *, standin_stream *), value_args args,
                                  td_acl_stream stream) {
    standin_context *c = standin_enter(call, STANDIN_LAUNCHES);
    standin_stream  *s = standin_stream_of(stream, call);
    if ((uintptr_t)args.at % 8 || side_of(args.at, 8, c->device, call) != 'd')
        standin_refuse("runtime 11-09", "%s of %p, which is not an aligned word of device memory", call, args.at);
    standin_op *op = standin_op_new(call, STANDIN_OP_COPY, run);
    value_args *a = malloc(sizeof *a);
    *a = args;
    op->payload = a;
    op->drop = drop_payload;
    standin_op_use(op, a->at, 8, true, true); /* made for streams that are not ordered */
    standin_submit(s, op);
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtValueWrite(void *word, uint64_t value, uint32_t flags, td_acl_stream stream) {
    if (flags) standin_refuse("runtime 11-09 aclrtValueWrite", "its flag is %u: it is reserved, and 0", flags);
    return submit_value("aclrtValueWrite", run_value_write, (value_args){word, value, 0}, stream);
}

td_acl_status aclrtValueWait(void *word, uint64_t value, uint32_t how, td_acl_stream stream) {
    if (how != TD_ACL_STREAM_WAIT_VALUE_GEQ && how != TD_ACL_STREAM_WAIT_VALUE_EQ)
        standin_refuse("stand-in", "aclrtValueWait compares as %u: only greater-or-equal and equal are here", how);
    return submit_value("aclrtValueWait", run_value_wait, (value_args){word, value, how}, stream);
}

/* ---- streams and events ------------------------------------------------------------------------ */

td_acl_status aclrtCreateStreamWithConfig(td_acl_stream *stream, uint32_t priority, uint32_t flags) {
    standin_context *c = standin_enter("aclrtCreateStreamWithConfig", STANDIN_LAUNCHES);
    (void)priority;
    if (flags & ~(uint32_t)(TD_ACL_STREAM_FAST_LAUNCH | TD_ACL_STREAM_FAST_SYNC))
        standin_refuse("runtime 06 aclrtCreateStreamWithConfig",
                       "a stream with flags 0x%x: such a one cannot be synchronised, or is not for a host's work", flags);
    if (standin_fails("aclrtCreateStreamWithConfig")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    *stream = standin_stream_new(c);
    STANDIN_LOCKED;
    n_streams++;
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtDestroyStream(td_acl_stream stream) {
    standin_enter("aclrtDestroyStream", STANDIN_LAUNCHES);
    standin_stream_delete(standin_stream_of(stream, "aclrtDestroyStream"));
    STANDIN_LOCKED;
    n_streams--;
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtStreamAbort(td_acl_stream stream) {
    standin_enter("aclrtStreamAbort", STANDIN_LAUNCHES);
    standin_stream_abort(standin_stream_of(stream, "aclrtStreamAbort"));
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtSynchronizeStream(td_acl_stream stream) {
    standin_enter("aclrtSynchronizeStream", STANDIN_LAUNCHES | STANDIN_SYNCHRONISES);
    standin_stream *s = standin_stream_of(stream, "aclrtSynchronizeStream");
    if (s->capture)
        standin_refuse("runtime dev_guide 04-01, limit 2", "aclrtSynchronizeStream of a stream that is captured");
    td_acl_status st = standin_stream_wait(s);
    return standin_fails("aclrtSynchronizeStream") ? standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION) : st;
}

static standin_event *event_of(td_acl_event event, const char *call) {
    standin_event *e = event;
    if (!e || !e->alive)
        standin_refuse("runtime 07 aclrtDestroyEvent", "%s of an event that is none, or is destroyed", call);
    return e;
}

static standin_event *event_new(standin_event of) {
    standin_event *e = calloc(1, sizeof *e);
    *e = of;
    STANDIN_LOCKED;
    standin_keep(e);
    n_events++;
    return e;
}

td_acl_status aclrtCreateEventExWithFlag(td_acl_event *event, uint32_t flags) {
    standin_enter("aclrtCreateEventExWithFlag", STANDIN_LAUNCHES);
    if (!flags || flags & ~(uint32_t)(TD_ACL_EVENT_SYNC | TD_ACL_EVENT_TIME_LINE))
        standin_refuse("runtime 07 aclrtCreateEventExWithFlag", "an event with flags 0x%x", flags);
    if (standin_fails("aclrtCreateEventExWithFlag")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    *event = event_new((standin_event){.alive = true, .flags = flags});
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtCreateEventWithFlag(td_acl_event *event, uint32_t flags) {
    standin_enter("aclrtCreateEventWithFlag", STANDIN_LAUNCHES);
    if (flags != TD_ACL_EVENT_EXTERNAL)
        standin_refuse("runtime 07 aclrtCreateEventWithFlag",
                       "an event with flags 0x%x: ACL_EVENT_EXTERNAL goes with no other, and others are not here", flags);
    if (standin_fails("aclrtCreateEventWithFlag")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    *event = event_new((standin_event){.alive = true, .flags = flags, .is_external = true});
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtResetEvent(td_acl_event event, td_acl_stream stream) {
    standin_enter("aclrtResetEvent", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclrtResetEvent");
    standin_event  *e = event_of(event, "aclrtResetEvent");
    if (!e->is_external)
        standin_refuse("runtime 07 aclrtCreateEventExWithFlag",
                       "an event is reset that aclrtCreateEventExWithFlag has made");
    if (standin_fails("aclrtResetEvent")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    standin_submit(s, standin_reset_op(e));
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtDestroyEvent(td_acl_event event) {
    standin_enter("aclrtDestroyEvent", STANDIN_LAUNCHES);
    standin_event *e = event_of(event, "aclrtDestroyEvent");
    STANDIN_LOCKED;
    if (e->in_graphs)
        standin_refuse("runtime 07 aclrtDestroyEvent", "an event is destroyed for which a capture waits: the capture first");
    if (standin_capture_open(e->capture))
        standin_refuse("runtime 07 aclrtDestroyEvent", "an event is destroyed while a capture is made with it");
    e->alive = false;
    n_events--;
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtRecordEvent(td_acl_event event, td_acl_stream stream) {
    standin_enter("aclrtRecordEvent", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclrtRecordEvent");
    standin_event  *e = event_of(event, "aclrtRecordEvent");
    if (e->is_external && s->capture)
        standin_refuse("runtime dev_guide 04-03", "an external event is recorded in a capture, which it does not join");
    if (e->is_external && standin_fails("aclrtRecordEvent")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    standin_submit(s, standin_record_op(e));
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtStreamWaitEvent(td_acl_stream stream, td_acl_event event) {
    standin_enter("aclrtStreamWaitEvent", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclrtStreamWaitEvent");
    standin_event  *e = event_of(event, "aclrtStreamWaitEvent");
    if (e->is_external) {
        if (!s->capture)
            standin_refuse("stand-in",
                           "a stream that is not captured waits for an external event, which is made for captures");
        standin_submit(s, standin_gate_op(e));
        return TD_ACL_SUCCESS;
    }
    if (!(e->flags & TD_ACL_EVENT_SYNC))
        standin_refuse("runtime 07 aclrtCreateEventExWithFlag",
                       "a stream waits for an event that was made without ACL_EVENT_SYNC");
    standin_lock();
    if (!e->stream && !e->capture)
        standin_refuse("runtime 07 aclrtRecordEvent",
                       "a stream waits for an event that was never recorded: it waits for nothing");
    if (e->capture && !standin_capture_open(e->capture) && !s->capture)
        standin_refuse("runtime 15 (ACL_ERROR_RT_EVENT_CAPTURED)",
                       "a stream waits for an event that was last recorded into a capture");
    standin_unlock();
    standin_submit(s, standin_wait_op(e));
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtSynchronizeEvent(td_acl_event event) {
    standin_enter("aclrtSynchronizeEvent", STANDIN_LAUNCHES | STANDIN_SYNCHRONISES);
    standin_event *e = event_of(event, "aclrtSynchronizeEvent");
    standin_lock();
    standin_check_event(e, "aclrtSynchronizeEvent");
    standin_unlock();
    for (bool done = false; !done;) {
        standin_lock();
        done = standin_event_done(e);
        if (done) standin_host_saw(&e->clock);
        standin_unlock();
        if (!done) usleep(20);
    }
    return TD_ACL_SUCCESS;
}

td_acl_status aclrtQueryEventStatus(td_acl_event event, td_acl_event_state *state) {
    standin_enter("aclrtQueryEventStatus", STANDIN_NEEDS_CONTEXT | STANDIN_SYNCHRONISES);
    standin_event *e = event_of(event, "aclrtQueryEventStatus");
    STANDIN_LOCKED;
    standin_check_event(e, "aclrtQueryEventStatus");
    bool done = standin_event_done(e);
    if (done && e->stream) standin_host_saw(&e->clock);
    *state = done ? TD_ACL_EVENT_RECORDED_STATUS_COMPLETE : TD_ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return TD_ACL_SUCCESS;
}

/* ---- callbacks --------------------------------------------------------------------------------- */

td_acl_status aclrtSubscribeReport(uint64_t thread, td_acl_stream stream) {
    standin_enter("aclrtSubscribeReport", STANDIN_LAUNCHES);
    if (standin_fails("aclrtSubscribeReport")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    return standin_subscribe(thread, standin_stream_of(stream, "aclrtSubscribeReport"));
}

td_acl_status aclrtUnSubscribeReport(uint64_t thread, td_acl_stream stream) {
    standin_enter("aclrtUnSubscribeReport", STANDIN_LAUNCHES);
    return standin_unsubscribe(thread, standin_stream_of(stream, "aclrtUnSubscribeReport"));
}

td_acl_status aclrtProcessReport(int32_t timeout_ms) {
    standin_enter("aclrtProcessReport", STANDIN_LAUNCHES);
    return standin_process_report(timeout_ms);
}

td_acl_status aclrtLaunchCallback(td_acl_callback fn, void *arg, td_acl_blocking blocking, td_acl_stream stream) {
    standin_enter("aclrtLaunchCallback", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclrtLaunchCallback");
    if (!s->is_subscribed)
        standin_refuse("runtime 12 aclrtLaunchCallback",
                       "a callback is launched on a stream to which no thread has subscribed");
    if (standin_fails("aclrtLaunchCallback")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    standin_submit(s, standin_callback_op(s, fn, arg, blocking));
    return TD_ACL_SUCCESS;
}
