/*
 * Start, cards, contexts, memory and copies.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/standins/cuda/driver/cuda_standin.h"

#define DEVICES_MAX 16
#define THREADS_PER_BLOCK 1024

const standin_documents STANDIN_DOCUMENTS = {.name = "cuda",
                                             .order = "guide, Streams; cuStreamWaitEvent",
                                             .free_device = "cuMemFree",
                                             .free_pinned = "cuMemFreeHost",
                                             .graph_memory = "guide, CUDA Graphs: a graph keeps addresses"};

static _Atomic bool                started;
static struct CUctx_st             primary[DEVICES_MAX];
static _Thread_local td_cu_context current;
static _Atomic uint64_t            calls_asked, ops_asked;

static int n_devices(void) {
    uint64_t n = standin_setting("TD_STANDIN_DEVICES", 2);
    return n < DEVICES_MAX ? (int)n : DEVICES_MAX;
}

td_cu_context standin_current(void) {
    return current;
}

/* Whether the file that a variable names has the word in a line. */
static bool file_has(const char *variable, const char *word) {
    const char *path = getenv(variable);
    FILE       *f = path ? fopen(path, "r") : NULL;
    char        line[128];
    bool        found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        found = !strcmp(line, word);
    }
    if (f) fclose(f);
    return found;
}

td_cu_status standin_fails(const char *call) {
    return standin_nth("TD_STANDIN_FAIL", &calls_asked) || file_has("TD_STANDIN_FAIL_CALLS", call)
               ? (td_cu_status)standin_setting("TD_STANDIN_STATUS", TD_CUDA_ERROR_UNKNOWN)
               : TD_CUDA_SUCCESS;
}

bool standin_op_fails(td_cu_context c) {
    const char *lost = getenv("TD_STANDIN_LOST");
    if (!standin_nth("TD_STANDIN_FAIL_OP", &ops_asked) && (!lost || access(lost, F_OK) != 0)) return false;
    atomic_store(&c->failure, (td_cu_status)standin_setting("TD_STANDIN_STATUS", TD_CUDA_ERROR_LAUNCH_FAILED));
    return true;
}

td_cu_status standin_enter(const char *call, int kind) {
    if (standin_in_host_function())
        standin_refuse("cuLaunchHostFunc", "%s in a host function, which may call nothing of CUDA's", call);
    if (!started) standin_refuse("cuInit", "%s before cuInit", call);
    if (kind & STANDIN_NEEDS_CONTEXT && !current)
        standin_refuse("cuCtxSetCurrent", "%s on a thread without a context", call);
    if (kind & STANDIN_NEEDS_CONTEXT && !current->retained)
        standin_refuse("cuDevicePrimaryCtxRelease", "%s on a thread whose context is released", call);
    if (kind & (STANDIN_SYNCHRONISES | STANDIN_UNSAFE)) {
        standin_lock();
        standin_capture_check(call, kind, current);
        standin_unlock();
    }
    return kind & STANDIN_NEEDS_CONTEXT && !(kind & STANDIN_RELEASES) ? standin_left() : TD_CUDA_SUCCESS;
}

td_cu_status standin_left(void) {
    return current ? atomic_load(&current->failure) : TD_CUDA_SUCCESS;
}

/* ---- start, cards ------------------------------------------------------------------------------ */

td_cu_status cuInit(unsigned flags) {
    if (standin_in_host_function())
        standin_refuse("cuLaunchHostFunc", "cuInit in a host function, which may call nothing of CUDA's");
    if (flags) standin_refuse("cuInit", "its flags are %u: they have to be 0", flags);
    td_cu_status st = (td_cu_status)standin_setting("TD_STANDIN_INIT", TD_CUDA_SUCCESS);
    if (st != TD_CUDA_SUCCESS) return st;
    if (!n_devices()) return TD_CUDA_ERROR_NO_DEVICE;
    STANDIN_CAN_FAIL;
    started = true;
    return TD_CUDA_SUCCESS;
}

td_cu_status cuDriverGetVersion(int *version) { /* before cuInit, too */
    *version = (int)standin_setting("TD_STANDIN_CUDA", 12080);
    return TD_CUDA_SUCCESS;
}

static const struct {
    td_cu_status status;
    const char  *name, *text;
} STATUSES[] = {
    {TD_CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {TD_CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {TD_CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {TD_CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {TD_CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {TD_CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {TD_CUDA_ERROR_NVLINK_UNCORRECTABLE, "CUDA_ERROR_NVLINK_UNCORRECTABLE",
     "uncorrectable NVLink error detected during the execution"},
    {TD_CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {TD_CUDA_ERROR_HARDWARE_STACK_ERROR, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {TD_CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {TD_CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {TD_CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
#define N_STATUSES (sizeof STATUSES / sizeof *STATUSES)

td_cu_status cuGetErrorName(td_cu_status status, const char **name) {
    *name = NULL;
    for (size_t i = 0; i < N_STATUSES; i++)
        if (STATUSES[i].status == status) *name = STATUSES[i].name;
    return *name ? TD_CUDA_SUCCESS : TD_CUDA_ERROR_INVALID_VALUE;
}

td_cu_status cuGetErrorString(td_cu_status status, const char **text) {
    *text = NULL;
    for (size_t i = 0; i < N_STATUSES; i++)
        if (STATUSES[i].status == status) *text = STATUSES[i].text;
    return *text ? TD_CUDA_SUCCESS : TD_CUDA_ERROR_INVALID_VALUE;
}

td_cu_status cuDeviceGetCount(int *count) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    STANDIN_CAN_FAIL;
    *count = n_devices();
    return TD_CUDA_SUCCESS;
}

td_cu_status cuDeviceGet(td_cu_device *device, int ordinal) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    STANDIN_CAN_FAIL;
    if (ordinal < 0 || ordinal >= n_devices()) return TD_CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return TD_CUDA_SUCCESS;
}

static bool can_register(void) {
    return standin_setting("TD_STANDIN_REGISTER", 1) != 0;
}

void standin_check_device(td_cu_device device, const char *call) {
    if (device < 0 || device >= n_devices())
        standin_refuse("cuDeviceGet", "%s of device %d, which cuDeviceGet has not given", call, device);
}

td_cu_status cuDeviceGetName(char *name, int bytes, td_cu_device device) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    STANDIN_CAN_FAIL;
    standin_check_device(device, __func__);
    snprintf(name, (size_t)bytes, "stand-in for a card");
    return TD_CUDA_SUCCESS;
}

td_cu_status cuDeviceGetPCIBusId(char *id, int bytes, td_cu_device device) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    STANDIN_CAN_FAIL;
    standin_check_device(device, __func__);
    if (bytes < 13) standin_refuse("cuDeviceGetPCIBusId", "%d bytes for domain:bus:device.function, which are 13", bytes);
    snprintf(id, (size_t)bytes, "0000:%02X:00.0", 0x3b + device);
    return TD_CUDA_SUCCESS;
}

/* Shared memory of a block: guide, Technical Specifications per Compute Capability. */
static int shared_most(uint64_t arch) {
    return arch == 80 || arch == 87 ? 163 * 1024 : arch == 90 || arch == 100 || arch == 103 ? 227 * 1024 : 99 * 1024;
}

int standin_card_fact(td_cu_device_fact fact) {
    uint64_t arch = standin_setting("TD_STANDIN_ARCH", 90);
    switch (fact) {
        case TD_CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return THREADS_PER_BLOCK;
        case TD_CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 * 1024;
        case TD_CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return shared_most(arch);
        case TD_CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return (int)standin_setting("TD_STANDIN_MULTIPROCESSORS", 4);
        case TD_CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT: return standin_setting("TD_STANDIN_KERNEL_LIMIT", 0) != 0;
        case TD_CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 64 * 1024;
        case TD_CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: return can_register();
        case TD_CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: return standin_can_64_bit();
        case TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return (int)(arch / 10);
        case TD_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return (int)(arch % 10);
        default: standin_refuse("stand-in", "cuDeviceGetAttribute of %u, which is not here", fact);
    }
}

td_cu_status cuDeviceGetAttribute(int *value, td_cu_device_fact fact, td_cu_device device) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    STANDIN_CAN_FAIL;
    standin_check_device(device, __func__);
    *value = standin_card_fact(fact);
    return TD_CUDA_SUCCESS;
}

td_cu_status cuDeviceTotalMem_v2(size_t *bytes, td_cu_device device) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    STANDIN_CAN_FAIL;
    standin_check_device(device, __func__);
    *bytes = standin_setting("TD_STANDIN_MEMORY", (size_t)2 << 30);
    return TD_CUDA_SUCCESS;
}

/* ---- contexts ---------------------------------------------------------------------------------- */

td_cu_status cuDevicePrimaryCtxRetain(td_cu_context *context, td_cu_device device) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    standin_check_device(device, __func__);
    STANDIN_CAN_FAIL;
    if (standin_setting("TD_STANDIN_REFUSE_CONTEXT", 0))
        return (td_cu_status)standin_setting("TD_STANDIN_STATUS", TD_CUDA_ERROR_DEVICE_UNAVAILABLE);
    STANDIN_LOCKED;
    td_cu_context c = &primary[device];
    if (c->retained++ == 0) {
        c->device = device;
        atomic_store(&c->failure, TD_CUDA_SUCCESS);
    }
    *context = c;
    return TD_CUDA_SUCCESS;
}

/** All of a card's things must have been given back: releasing would take them from under who still has them. */
static void check_given_back(const struct CUctx_st *c) {
    size_t bytes = standin_memory_bytes(c->device), pinned = standin_memory_bytes(-1);
    bool   last = true;
    for (int d = 0; d < DEVICES_MAX; d++) last &= !primary[d].retained;
    if (bytes)
        standin_refuse("cuDevicePrimaryCtxRelease", "a context is released with %zu bytes of device %d that were not freed",
                       bytes, c->device);
    if (c->peers)
        standin_refuse("cuDevicePrimaryCtxRelease",
                       "a context is released with access to other cards that was not disabled");
    if (c->n_things)
        standin_refuse("cuDevicePrimaryCtxRelease",
                       "a context is released with %u streams, events, modules or graphs that were not destroyed",
                       c->n_things);
    if (last && pinned)
        standin_refuse("cuDevicePrimaryCtxRelease",
                       "the last context is released with %zu bytes of pinned memory that were not freed", pinned);
    if (last && standin_setting("TD_STANDIN_FAIL", 1) == 0)
        fprintf(stderr, "cuda stand-in: %llu calls can fail\n", (unsigned long long)calls_asked);
}

td_cu_status cuDevicePrimaryCtxRelease_v2(td_cu_device device) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    standin_check_device(device, __func__);
    STANDIN_LOCKED;
    td_cu_context c = &primary[device];
    if (!c->retained)
        standin_refuse("cuDevicePrimaryCtxRelease", "the context of device %d is released more often than it was retained",
                       device);
    if (--c->retained == 0) check_given_back(c);
    return TD_CUDA_SUCCESS;
}

td_cu_status cuCtxSetCurrent(td_cu_context context) {
    STANDIN_ENTER(STANDIN_ANYWHERE);
    if (context && (context < primary || context >= primary + DEVICES_MAX || !context->retained))
        standin_refuse("cuCtxSetCurrent", "a context that is none, or is released, is made current");
    current = context;
    return TD_CUDA_SUCCESS;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void *at_of(td_cu_address a) {
    return (void *)(uintptr_t)a;
}

td_cu_status cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    STANDIN_CAN_FAIL;
    STANDIN_LOCKED;
    *total_bytes = standin_setting("TD_STANDIN_MEMORY", (size_t)2 << 30);
    *free_bytes = standin_memory_room() - standin_memory_bytes(current->device);
    return TD_CUDA_SUCCESS;
}

static td_cu_status allocate(const char *call, int device, size_t bytes, void **out) {
    char why[256];
    if (!bytes) standin_refuse(call, "no bytes are allocated");
    STANDIN_CAN_FAIL_OF(call);
    return standin_memory_add(device, bytes, out, why) ? TD_CUDA_SUCCESS : TD_CUDA_ERROR_OUT_OF_MEMORY;
}

td_cu_status cuMemAlloc_v2(td_cu_address *out, size_t bytes) {
    void *at = NULL;
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE);
    td_cu_status st = allocate("cuMemAlloc", current->device, bytes, &at);
    *out = (uintptr_t)at;
    return st;
}

td_cu_status cuMemFree_v2(td_cu_address at) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE | STANDIN_RELEASES);
    standin_lock();
    standin_memory *m = standin_memory_of(at_of(at), 1);
    if (m && m->device >= 0 && m->device != current->device)
        standin_refuse("cuMemFree", "memory of device %d is freed in the context of device %d", m->device, current->device);
    if (m) standin_signals_forget(m->real, m->bytes);
    standin_unlock();
    standin_memory_remove(at_of(at), false);
    return standin_left();
}

td_cu_status cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE);
    if (flags & ~(unsigned)(TD_CU_MEMHOSTALLOC_PORTABLE | TD_CU_MEMHOSTALLOC_DEVICEMAP))
        standin_refuse("cuMemHostAlloc",
                       "pinned memory with flags 0x%x: what is write-combined is slow for the host to read", flags);
    return allocate("cuMemHostAlloc", -1, bytes, out);
}

/** Pinned memory goes the way that it came. */
static td_cu_status give_back(const char *call, const char *other, void *at, bool adopted) {
    standin_lock();
    standin_memory *m = standin_memory_of(at, 1);
    if (m && m->device < 0 && m->adopted != adopted)
        standin_refuse(call, "%s of %p, which came by another call: %s gives it back", call, at, other);
    if (m) standin_signals_forget(m->real, m->bytes);
    standin_unlock();
    standin_memory_remove(at, true);
    return standin_left();
}

td_cu_status cuMemFreeHost(void *at) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE | STANDIN_RELEASES);
    return give_back("cuMemFreeHost", "cuMemHostUnregister", at, false);
}

td_cu_status cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    unsigned char in_memory[1];
    const size_t  page = 4096;
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE);
    if (flags & ~(unsigned)(TD_CU_MEMHOSTREGISTER_PORTABLE | TD_CU_MEMHOSTREGISTER_DEVICEMAP))
        standin_refuse("cuMemHostRegister", "memory is registered with flags 0x%x", flags);
    if (!bytes) standin_refuse("cuMemHostRegister", "no bytes are registered");
    for (uintptr_t p = (uintptr_t)at / page * page; p < (uintptr_t)at + bytes; p += page)
        if (mincore((void *)p, page, in_memory) != 0)
            standin_refuse("cuMemHostRegister", "%zu bytes at %p are registered, and not all of them are the process's",
                           bytes, at);
    STANDIN_CAN_FAIL;
    if (!can_register()) return TD_CUDA_ERROR_NOT_SUPPORTED;
    if (!standin_memory_adopt(at, bytes))
        standin_refuse("cuMemHostRegister", "%p is registered, and some of its %zu bytes are pinned already", at, bytes);
    return TD_CUDA_SUCCESS;
}

td_cu_status cuMemHostUnregister(void *at) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE | STANDIN_RELEASES);
    return give_back("cuMemHostUnregister", "cuMemFreeHost", at, true);
}

td_cu_status cuMemHostGetDevicePointer_v2(td_cu_address *out, void *at, unsigned flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    if (flags) standin_refuse("cuMemHostGetDevicePointer", "its flags are %u: they have to be 0", flags);
    standin_lock();
    standin_memory *m = standin_memory_of(at, 1);
    standin_unlock();
    if (!m || m->device >= 0) standin_refuse("cuMemHostGetDevicePointer", "%p is not pinned memory", at);
    STANDIN_CAN_FAIL;
    *out = (uintptr_t)at; /* guide, Unified Virtual Address Space: the same on both sides */
    return TD_CUDA_SUCCESS;
}

/* ---- copies ------------------------------------------------------------------------------------ */

typedef struct {
    void       *dst;
    const void *src; /* NULL: fill with value */
    size_t      bytes;
    int         value;
} copy_args;

static void run_copy(standin_op *op, td_cu_stream s) {
    const copy_args *a = op->payload;
    void            *dst = standin_real(a->dst, a->bytes, op->name);
    (void)s;
    if (a->src)
        memcpy(dst, standin_real(a->src, a->bytes, op->name), a->bytes);
    else
        memset(dst, a->value, a->bytes);
}

static void drop_copy(standin_op *op) {
    free(op->payload);
}

/** What lies there must be all of one piece, of the thread's card (or pinned). */
static void check_side(const char *call, const char *what, const void *at, size_t bytes, bool pinned) {
    STANDIN_LOCKED;
    standin_memory *whole = standin_memory_of(at, bytes), *some = standin_memory_of(at, 1);
    if (some && !whole)
        standin_refuse(call, "%s of %zu bytes: its %s goes beyond the end of the memory at %p", call, bytes, what, at);
    if (!whole && pinned)
        standin_refuse("guide, Asynchronous Concurrent Execution",
                       "%s: its %s %p is not pinned: it would wait, and cannot be captured", call, what, at);
    if (!whole) standin_refuse(call, "%s: its %s %p is in no live memory of a device", call, what, at);
    if (pinned != (whole->device < 0))
        standin_refuse(call, "%s: its %s %p is %s memory", call, what, at, pinned ? "device" : "pinned");
    if (!pinned && whole->device != current->device)
        standin_refuse(
            call,
            "%s: its %s is memory of device %d, and the context is of device %d: access between devices was not enabled",
            call, what, whole->device, current->device);
}

static td_cu_status copy(const char *call, copy_args args, bool to_host, bool from_host, td_cu_stream stream) {
    STANDIN_CAN_FAIL_OF(call);
    td_cu_stream s = standin_stream_of(stream, call);
    if (!args.bytes) standin_refuse(call, "%s of no bytes", call);
    check_side(call, "destination", args.dst, args.bytes, to_host);
    if (args.src) check_side(call, "source", args.src, args.bytes, from_host);
    const char *dst = args.dst, *src = args.src;
    if (src && dst < src + args.bytes && src < dst + args.bytes) standin_refuse(call, "%s of memory that overlaps", call);
    standin_op *op = standin_op_new(call, STANDIN_COPY, run_copy);
    copy_args  *a = malloc(sizeof *a);
    *a = args;
    op->payload = a;
    op->drop = drop_copy;
    if (a->src) standin_op_use(op, a->src, a->bytes, false, false);
    standin_op_use(op, a->dst, a->bytes, true, false);
    standin_submit(s, op);
    return TD_CUDA_SUCCESS;
}

td_cu_status cuMemcpyHtoDAsync_v2(td_cu_address dst, const void *src, size_t bytes, td_cu_stream stream) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    return copy("cuMemcpyHtoDAsync", (copy_args){at_of(dst), src, bytes, 0}, false, true, stream);
}

td_cu_status cuMemcpyDtoHAsync_v2(void *dst, td_cu_address src, size_t bytes, td_cu_stream stream) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    return copy("cuMemcpyDtoHAsync", (copy_args){dst, at_of(src), bytes, 0}, true, false, stream);
}

td_cu_status cuMemcpyDtoDAsync_v2(td_cu_address dst, td_cu_address src, size_t bytes, td_cu_stream stream) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    return copy("cuMemcpyDtoDAsync", (copy_args){at_of(dst), at_of(src), bytes, 0}, false, false, stream);
}

td_cu_status cuMemsetD8Async(td_cu_address dst, unsigned char value, size_t bytes, td_cu_stream stream) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    return copy("cuMemsetD8Async", (copy_args){at_of(dst), NULL, bytes, value}, false, false, stream);
}
