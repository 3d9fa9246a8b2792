/* The stand-in ends a program that breaks a rule of the CUDA driver's manual. So a backend that passes on it keeps these
 * rules. */
#include <pthread.h>

#include "tests/standins/cuda/cuda_driver_rig.h"

typedef driver_rig rule_rig;
#include "tests/standins/rules.h"

#define BYTES 4096
#define N 256

/* The calls' statuses do not matter: whoever comes back has not been stopped. */
static void ignore(td_cu_status st) {
    (void)st;
}

/* ---- start and contexts ------------------------------------------------------------------------ */

BREAKS(no_init, "cuDeviceGetCount before cuInit") { /* the rig is not open */
    int   n;
    void *library = dlopen(TD_CUDA_STANDIN "/libcuda.so.1", RTLD_NOW);
    td_cu_status (*count)(int *);
    void *at = library ? dlsym(library, "cuDeviceGetCount") : NULL;
    (void)r;
    memcpy(&count, &at, sizeof at);
    if (at) ignore(count(&n));
}
BREAKS(no_context, "on a thread without a context") {
    td_cu_address a;
    TRY(r->cu->cuCtxSetCurrent(NULL));
    ignore(r->cu->cuMemAlloc(&a, BYTES));
}
static td_cu_context second_card(driver_rig *r) {
    td_cu_context c;
    TRY(r->cu->cuDevicePrimaryCtxRetain(&c, 1));
    TRY(r->cu->cuCtxSetCurrent(c));
    return c;
}
BREAKS(other_context, "on a stream of another context than the thread's") {
    (void)second_card(r);
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
BREAKS(other_module, "of a module of another context than the thread's") {
    td_cu_stream s;
    (void)second_card(r);
    TRY(r->cu->cuStreamCreate(&s, TD_CU_STREAM_NON_BLOCKING));
    ignore(driver_add(r, r->add, 0, 0, 0, s));
}
BREAKS(other_card, "is memory of device 0, and the context is of device 1") {
    td_cu_address a = driver_alloc(r, BYTES);
    td_cu_stream  s;
    (void)second_card(r);
    TRY(r->cu->cuStreamCreate(&s, TD_CU_STREAM_NON_BLOCKING));
    ignore(r->cu->cuMemsetD8Async(a, 0, BYTES, s));
}
BREAKS(kernel_of_other_card, "a kernel of device 0 is given memory of device 1") {
    td_cu_address a;
    (void)second_card(r);
    TRY(r->cu->cuMemAlloc(&a, BYTES));
    TRY(r->cu->cuCtxSetCurrent(r->context));
    TRY(driver_add(r, r->add, a, 1, 1, r->stream));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
BREAKS(event_of_other_card, "an event of another context than its stream's") {
    (void)second_card(r);
    td_cu_event e = driver_event(r);
    TRY(r->cu->cuCtxSetCurrent(r->context));
    ignore(r->cu->cuEventRecord(e, r->stream));
}
BREAKS(released_twice, "released more often than it was retained") {
    driver_close(r);
    ignore(r->cu->cuDevicePrimaryCtxRelease(0));
}
BREAKS(released_context, "on a thread whose context is released") {
    td_cu_address a;
    driver_close(r);
    ignore(r->cu->cuMemAlloc(&a, 1));
}
BREAKS(keep_memory, "with 4096 bytes of device 0 that were not freed") {
    (void)driver_alloc(r, BYTES);
    driver_close(r);
}
BREAKS(keep_pinned, "with 4096 bytes of pinned memory that were not freed") {
    (void)driver_pinned(r, BYTES);
    driver_close(r);
}
BREAKS(keep_event, "with 1 streams, events, modules or graphs") {
    (void)driver_event(r);
    driver_close(r);
}

/* ---- memory and copies ------------------------------------------------------------------------- */

FAULTS(read_device) {
    ignore(*(volatile uint32_t *)(uintptr_t)driver_alloc(r, BYTES));
}
FAULTS(write_device) {
    *(volatile uint32_t *)(uintptr_t)driver_alloc(r, BYTES) = 1;
}
BREAKS(alloc_nothing, "no bytes are allocated") {
    td_cu_address a;
    ignore(r->cu->cuMemAlloc(&a, 0));
}
BREAKS(free_twice, "is not the beginning of device memory") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuMemFree(a));
    ignore(r->cu->cuMemFree(a));
}
BREAKS(free_inside, "is not the beginning of device memory") {
    ignore(r->cu->cuMemFree(driver_alloc(r, BYTES) + 16));
}
BREAKS(free_pinned_as_device, "is not the beginning of device memory") {
    ignore(r->cu->cuMemFree((uintptr_t)driver_pinned(r, BYTES)));
}
BREAKS(free_under_way, "is freed while operations that use it are enqueued") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(driver_add(r, r->add_slowly, a, 1, 1, r->stream));
    ignore(r->cu->cuMemFree(a));
}
BREAKS(copy_freed, "is in no live memory of a device") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuMemFree(a));
    ignore(r->cu->cuMemcpyHtoDAsync(a, driver_pinned(r, BYTES), BYTES, r->stream));
}
BREAKS(kernel_freed, "a kernel uses 1 bytes at") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuMemFree(a));
    TRY(driver_add(r, r->add, a, 1, 1, r->stream));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
FAULTS(kernel_beyond) {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(driver_add(r, r->add, a, BYTES / 4 + 1, 1, r->stream));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
ARGS(copy, int64_t device_bytes, pinned_bytes, filled) = {BYTES, BYTES, BYTES};

CALL(copy) {
    td_cu_address to = driver_alloc(r, (size_t)a->device_bytes);
    TRY(r->cu->cuMemcpyHtoDAsync(to, driver_pinned(r, (size_t)a->pinned_bytes), BYTES, r->stream));
    TRY(r->cu->cuMemsetD8Async(to, 0, (size_t)a->filled, r->stream));
    TRY(r->cu->cuStreamSynchronize(r->stream));
}
static const rule COPIES[] = {
    WRONG(copy, device_bytes, BYTES - 1, "its destination goes beyond the end of the memory"),
    WRONG(copy, pinned_bytes, BYTES - 1, "its source goes beyond the end of the memory"),
    WRONG(copy, filled, BYTES + 1, "goes beyond the end of the memory"),
    RIGHT(copy),
};
RULES(COPIES)
BREAKS(copy_unpinned, "is not pinned: it would wait") {
    static char from[BYTES];
    ignore(r->cu->cuMemcpyHtoDAsync(driver_alloc(r, BYTES), from, BYTES, r->stream));
}
BREAKS(copy_wrong_way, "is device memory") {
    ignore(r->cu->cuMemcpyDtoHAsync((void *)(uintptr_t)driver_alloc(r, BYTES), driver_alloc(r, BYTES), BYTES, r->stream));
}
BREAKS(copy_overlapping, "of memory that overlaps") {
    td_cu_address a = driver_alloc(r, BYTES);
    ignore(r->cu->cuMemcpyDtoDAsync(a, a + 16, 32, r->stream));
}
BREAKS(pointer_of_unpinned, "is not pinned memory") {
    td_cu_address a;
    static char   host[16];
    ignore(r->cu->cuMemHostGetDevicePointer(&a, host, 0));
}

/* A page of the process's own. */
static _Alignas(4096) char own[4096];

static void *registered(driver_rig *r) {
    TRY(r->cu->cuMemHostRegister(own, sizeof own, TD_CU_MEMHOSTREGISTER_PORTABLE));
    return own;
}
ARGS(pin, int64_t at, bytes, flags) = {.bytes = sizeof own}; /* at 0: the page */

CALL(pin) {
    void *p = a->at ? (void *)(uintptr_t)a->at : own;
    TRY(r->cu->cuMemHostRegister(p, (size_t)a->bytes, (unsigned)a->flags));
    TRY(r->cu->cuMemHostUnregister(p));
}
static const rule PINNED[] = {
    WRONG(pin, flags, 4, "memory is registered with flags 0x4"),
    WRONG(pin, bytes, 0, "no bytes are registered"),
    WRONG(pin, at, 4096, "and not all of them are the process's"),
    RIGHT(pin),
};
RULES(PINNED)
BREAKS(register_twice, "and some of its 64 bytes are pinned already") {
    ignore(r->cu->cuMemHostRegister((char *)registered(r) + 64, 64, 0));
}
BREAKS(register_pinned, "and some of its 4096 bytes are pinned already") {
    ignore(r->cu->cuMemHostRegister(driver_pinned(r, BYTES), BYTES, 0));
}
BREAKS(unregister_twice, "is not the beginning of pinned memory") {
    for (int i = 0; i < 2; i++) ignore(r->cu->cuMemHostUnregister(i ? own : registered(r)));
}
BREAKS(unregister_inside, "is not the beginning of pinned memory") {
    ignore(r->cu->cuMemHostUnregister((char *)registered(r) + 64));
}
BREAKS(unregister_pinned, "which came by another call: cuMemFreeHost gives it back") {
    ignore(r->cu->cuMemHostUnregister(driver_pinned(r, BYTES)));
}
BREAKS(free_registered, "which came by another call: cuMemHostUnregister gives it back") {
    ignore(r->cu->cuMemFreeHost(registered(r)));
}
BREAKS(unregister_under_way, "is freed while operations that use it are enqueued") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(driver_add(r, r->add_slowly, a, 1, 1, r->stream));
    TRY(r->cu->cuMemcpyDtoHAsync(registered(r), a, BYTES, r->stream));
    ignore(r->cu->cuMemHostUnregister(own));
}
BREAKS(keep_registered, "with 4096 bytes of pinned memory that were not freed") {
    (void)registered(r);
    driver_close(r);
}
LIVES(copy_registered) {
    td_cu_address a = driver_alloc(r, sizeof own);
    TRY(r->cu->cuMemcpyHtoDAsync(a, registered(r), sizeof own, r->stream));
    TRY(r->cu->cuStreamSynchronize(r->stream));
    TRY(r->cu->cuMemHostUnregister(own));
    TRY(r->cu->cuMemFree(a));
    driver_close(r);
}
BREAKS(copy_unregistered, "is not pinned: it would wait") {
    TRY(r->cu->cuMemHostUnregister(registered(r)));
    ignore(r->cu->cuMemcpyHtoDAsync(driver_alloc(r, sizeof own), own, sizeof own, r->stream));
}

/* ---- words that streams write and wait for ------------------------------------------------------- */

/* Words in memory of a device, in the order of the calls. */
ARGS(word, int64_t bytes, wait_at, wait_flags, write_unpinned, write_flags, write_64_at, wait_64_at) = {16, .wait_64_at = 8};

CALL(word) {
    td_cu_address words = driver_alloc(r, (size_t)a->bytes);
    TRY(r->cu->cuMemsetD8Async(words, 0, (size_t)a->bytes, r->stream));
    TRY(r->cu->cuStreamWaitValue32(r->stream, words + (size_t)a->wait_at, 0, (unsigned)a->wait_flags));
    TRY(r->cu->cuStreamWriteValue32(r->stream, a->write_unpinned ? (uintptr_t)own : words, 1, (unsigned)a->write_flags));
    TRY(r->cu->cuStreamWriteValue64(r->stream, words + (size_t)a->write_64_at, 1, 0));
    TRY(r->cu->cuStreamWaitValue64(r->stream, words + (size_t)a->wait_64_at, 0, 0));
    TRY(r->cu->cuStreamSynchronize(r->stream));
}
static const rule WORDS[] = {
    WRONG(word, wait_at, 2, "which is not aligned"),
    WRONG(word, write_64_at, 4, "which is not aligned"),
    WRONG(word, write_unpinned, true, "in no live memory of a device and in no pinned memory"),
    WRONG(word, bytes, 12, "in no live memory of a device and in no pinned memory"), /* the last word ends beyond it */
    WRONG(word, wait_flags, 1 << 30, "cuStreamWaitValue32 with flags 0x40000000"),
    WRONG(word, write_flags, 1, "cuStreamWriteValue32 with flags 0x1"),
    RIGHT(word),
};
RULES(WORDS)
BREAKS(word_freed, "in no live memory of a device and in no pinned memory") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuMemFree(a));
    ignore(r->cu->cuStreamWaitValue32(r->stream, a, 0, 0));
}
BREAKS(word_of_other_card, "of a word of device 0 on a stream of device 1") {
    td_cu_address a = driver_alloc(r, BYTES);
    td_cu_stream  s;
    (void)second_card(r);
    TRY(r->cu->cuStreamCreate(&s, TD_CU_STREAM_NON_BLOCKING));
    ignore(r->cu->cuStreamWriteValue32(s, a, 1, 0));
}
BREAKS(word_freed_under_way, "is freed while operations that use it are enqueued") {
    void *word = driver_pinned(r, 4);
    TRY(r->cu->cuStreamWaitValue32(r->stream, (uintptr_t)word, 1, 0));
    ignore(r->cu->cuMemFreeHost(word));
}
BREAKS(word_that_never_comes, "a stream waits for a word that has not come for 20 ms") {
    setenv("TD_STANDIN_WAIT_MS", "20", 1);
    TRY(r->cu->cuStreamWaitValue32(r->stream, (uintptr_t)driver_pinned(r, 4), 1, 0));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}

/** A fill on one stream, a copy of it on the other, and a word between them. */
static void two_streams_and_a_word(driver_rig *r, bool with_event) {
    td_cu_address a = driver_alloc(r, BYTES), word = (uintptr_t)driver_pinned(r, 4);
    void         *to = driver_pinned(r, BYTES);
    td_cu_event   e = driver_event(r);
    TRY(r->cu->cuMemsetD8Async(a, 1, BYTES, r->stream));
    TRY(r->cu->cuStreamWriteValue32(r->stream, word, 7, 0));
    TRY(r->cu->cuEventRecord(e, r->stream));
    TRY(r->cu->cuStreamWaitValue32(r->other, word, 7, TD_CU_STREAM_WAIT_VALUE_EQ));
    if (with_event) TRY(r->cu->cuStreamWaitEvent(r->other, e, 0));
    TRY(r->cu->cuMemcpyDtoHAsync(to, a, BYTES, r->other));
    TRY(r->cu->cuStreamSynchronize(r->other));
    TRY(r->cu->cuStreamSynchronize(r->stream));
    TRY(r->cu->cuEventDestroy(e));
    TRY(r->cu->cuMemFree(a));
    TRY(r->cu->cuMemFreeHost(to));
    TRY(r->cu->cuMemFreeHost((void *)(uintptr_t)word));
    driver_close(r);
}
BREAKS(word_for_an_event, "no event or synchronisation orders the two") {
    two_streams_and_a_word(r, false);
}
LIVES(word_and_event) {
    two_streams_and_a_word(r, true);
}
BREAKS(word_against_copy, "no event or synchronisation orders the two") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuStreamWriteValue32(r->stream, a, 7, 0));
    ignore(r->cu->cuMemcpyDtoHAsync(driver_pinned(r, BYTES), a, BYTES, r->other));
}

/* ---- streams, events, host functions ----------------------------------------------------------- */

BREAKS(default_stream, "on the default stream") {
    ignore(r->cu->cuStreamSynchronize(NULL));
}
BREAKS(blocking_stream, "without CU_STREAM_NON_BLOCKING") {
    td_cu_stream s;
    ignore(r->cu->cuStreamCreate(&s, 0));
}
BREAKS(dead_stream, "on a stream that is destroyed") {
    TRY(r->cu->cuStreamDestroy(r->stream));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
BREAKS(destroy_under_way, "a stream with unfinished operations is destroyed") {
    TRY(driver_add(r, r->add_slowly, driver_alloc(r, BYTES), 1, 1, r->stream));
    ignore(r->cu->cuStreamDestroy(r->stream));
}
BREAKS(dead_event, "of an event that is none, or is destroyed") {
    td_cu_event e = driver_event(r);
    TRY(r->cu->cuEventDestroy(e));
    ignore(r->cu->cuEventRecord(e, r->stream));
}
BREAKS(wait_for_nothing, "an event that was never recorded") {
    ignore(r->cu->cuStreamWaitEvent(r->stream, driver_event(r), 0));
}
static void allocates(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a;
    ignore(r->cu->cuMemAlloc(&a, BYTES));
}
BREAKS(host_function_calls, "in a host function, which may call nothing of CUDA's") {
    TRY(r->cu->cuLaunchHostFunc(r->stream, allocates, r));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}

/** A fill on one stream and a copy of it on the other. */
static void two_streams(driver_rig *r, bool with_event, bool with_sync) {
    td_cu_address a = driver_alloc(r, BYTES);
    void         *to = driver_pinned(r, BYTES);
    td_cu_event   e = driver_event(r);
    TRY(r->cu->cuMemsetD8Async(a, 1, BYTES, r->stream));
    TRY(r->cu->cuEventRecord(e, r->stream));
    if (with_event) TRY(r->cu->cuStreamWaitEvent(r->other, e, 0));
    if (with_sync) TRY(r->cu->cuEventSynchronize(e));
    TRY(r->cu->cuMemcpyDtoHAsync(to, a, BYTES, r->other));
    TRY(r->cu->cuStreamSynchronize(r->other));
    TRY(r->cu->cuStreamSynchronize(r->stream));
    TRY(r->cu->cuEventDestroy(e));
    TRY(r->cu->cuMemFree(a));
    TRY(r->cu->cuMemFreeHost(to));
    driver_close(r);
}
BREAKS(missing_event, "no event or synchronisation orders the two") {
    two_streams(r, false, false);
}
LIVES(by_event) {
    two_streams(r, true, false);
}
LIVES(by_sync) {
    two_streams(r, false, true);
}
BREAKS(kernel_against_copy, "no event or synchronisation orders the two") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(driver_add(r, r->add_slowly, a, N, 1, r->stream));
    ignore(r->cu->cuMemcpyDtoHAsync(driver_pinned(r, BYTES), a, BYTES, r->other));
}

/** One kernel on each stream: from is added to `to` on the second, after the first has written to `written`. */
static void two_kernels(driver_rig *r, td_cu_address written, td_cu_address from, td_cu_address to) {
    td_cu_kernel add_array;
    uint32_t     n = N;
    void        *args[] = {&to, &from, &n};
    TRY(r->cu->cuModuleGetFunction(&add_array, r->module, "add_array"));
    TRY(driver_add(r, r->add, written, N, 1, r->stream));
    TRY(r->cu->cuLaunchKernel(add_array, 1, 1, 1, 1, 1, 1, 0, r->other, args, NULL));
}
static void finish(driver_rig *r) {
    TRY(r->cu->cuStreamSynchronize(r->stream));
    TRY(r->cu->cuStreamSynchronize(r->other));
}
BREAKS(kernel_against_kernel, "no event or synchronisation orders the two") {
    td_cu_address a = driver_alloc(r, BYTES);
    two_kernels(r, a, a, driver_alloc(r, BYTES));
}
LIVES(kernels_apart) { /* slots of a cache, for all that anybody knows */
    td_cu_address a = driver_alloc(r, BYTES);
    two_kernels(r, a, driver_alloc(r, BYTES), a);
    finish(r);
}
/* A kernel that says that it reads the first half of an array; a copy writes a half on another stream. */
static void part_and_copy(driver_rig *r, uint32_t half) {
    td_cu_address from = driver_alloc(r, BYTES), to = driver_alloc(r, BYTES);
    td_cu_kernel  add_part;
    uint32_t      n = N / 2;
    void         *args[] = {&to, &from, &n};
    TRY(r->cu->cuModuleGetFunction(&add_part, r->module, "add_part"));
    TRY(r->cu->cuLaunchKernel(add_part, 1, 1, 1, 1, 1, 1, 0, r->stream, args, NULL));
    usleep(50000); /* it has run, and nobody has waited for that */
    ignore(r->cu->cuMemcpyHtoDAsync(from + half * (BYTES / 2), driver_pinned(r, BYTES / 2), BYTES / 2, r->other));
    ignore(r->cu->cuStreamSynchronize(r->other));
    TRY(r->cu->cuStreamSynchronize(r->stream));
}
LIVES(copy_beside_what_a_kernel_reads) {
    part_and_copy(r, 1);
}
BREAKS(copy_to_what_a_kernel_reads, "no event or synchronisation orders the two") {
    part_and_copy(r, 0);
}
LIVES(kernel_beside_copy) { /* both read */
    td_cu_address a = driver_alloc(r, BYTES);
    two_kernels(r, driver_alloc(r, BYTES), a, driver_alloc(r, BYTES));
    TRY(r->cu->cuMemcpyDtoHAsync(driver_pinned(r, BYTES), a, BYTES, r->stream));
    finish(r);
}

/* ---- modules and launches ---------------------------------------------------------------------- */

ARGS(launch, int64_t grid_y, block_x, block_z, shared, no_arguments) = {.grid_y = 1, .block_x = 1, .block_z = 1};

CALL(launch) {
    ignore(r->cu->cuLaunchKernel(r->add, 1, (unsigned)a->grid_y, 1, (unsigned)a->block_x, 1, (unsigned)a->block_z,
                                 (unsigned)a->shared, r->stream, a->no_arguments ? NULL : (void *[3]){0}, NULL));
}
static const rule LAUNCHES[] = {
    WRONG(launch, grid_y, 0, "a grid of 1 x 0 x 1 blocks"),
    WRONG(launch, grid_y, 65536, "a grid of 1 x 65536 x 1 blocks"),
    WRONG(launch, block_z, 65, "blocks of 1 x 1 x 65 threads"),
    WRONG(launch, block_x, 257, "with blocks of 257 threads and was compiled for 256"),
    WRONG(launch, shared, 48 * 1024 + 1, "with 49153 bytes of dynamic shared memory, and 49152 are allowed it"),
    WRONG(launch, no_arguments, true, "is launched without its 3 arguments"),
};
RULES(LAUNCHES)
BREAKS(shared_beyond_the_card, "and the card has 232448 for a block") {
    ignore(r->cu->cuFuncSetAttribute(r->add, TD_CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 * 1024 + 1));
}
BREAKS(unloaded_kernel, "of a module that is none, or is unloaded") {
    TRY(r->cu->cuModuleUnload(r->module));
    ignore(driver_add(r, r->add, driver_alloc(r, BYTES), 1, 1, r->stream));
}
BREAKS(unload_under_way, "is unloaded while 1 launches") {
    TRY(driver_add(r, r->add_slowly, driver_alloc(r, BYTES), 1, 1, r->stream));
    ignore(r->cu->cuModuleUnload(r->module));
}

/* ---- captures and graphs ----------------------------------------------------------------------- */

static void begin(driver_rig *r, td_cu_capture_mode mode) {
    TRY(r->cu->cuStreamBeginCapture(r->stream, mode));
}
/** An executable graph of one addition to x. */
static td_cu_graph_exec graph_of(driver_rig *r, td_cu_address x) {
    td_cu_graph      g;
    td_cu_graph_exec exec;
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(driver_add(r, r->add_slowly, x, N, 1, r->stream));
    TRY(r->cu->cuStreamEndCapture(r->stream, &g));
    TRY(r->cu->cuGraphInstantiate(&exec, g, 0));
    TRY(r->cu->cuGraphDestroy(g));
    return exec;
}
BREAKS(capture_allocates, "while a stream is captured and the capture's mode forbids it") {
    begin(r, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    (void)driver_alloc(r, BYTES);
}
static void *allocates_elsewhere(void *rig) {
    driver_rig *r = rig;
    TRY(r->cu->cuCtxSetCurrent(r->context));
    (void)driver_alloc(r, BYTES);
    return NULL;
}
static void on_another_thread(driver_rig *r, void *(*act)(void *)) {
    pthread_t t;
    pthread_create(&t, NULL, act, r);
    pthread_join(t, NULL);
}
BREAKS(capture_forbids_others, "while a stream is captured and the capture's mode forbids it") {
    begin(r, TD_CU_STREAM_CAPTURE_MODE_GLOBAL);
    on_another_thread(r, allocates_elsewhere);
}
LIVES(capture_lets_others) {
    begin(r, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    on_another_thread(r, allocates_elsewhere);
}
BREAKS(capture_sync, "cuStreamSynchronize of a stream that is captured") {
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
BREAKS(capture_query, "of an event that was last recorded in a capture") {
    td_cu_event e = driver_event(r);
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuEventRecord(e, r->stream));
    ignore(r->cu->cuEventQuery(e));
}
BREAKS(capture_twice, "is captured already") {
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
}
BREAKS(capture_unpinned, "is not pinned: it would wait") {
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    copy_unpinned(r);
}
BREAKS(capture_not_joined, "its first stream does not wait for") {
    td_cu_graph g;
    td_cu_event e = driver_event(r);
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuEventRecord(e, r->stream));
    TRY(r->cu->cuStreamWaitEvent(r->other, e, 0));
    ignore(r->cu->cuStreamEndCapture(r->stream, &g));
}
BREAKS(capture_ends_on_another_stream, "on a stream that is not captured") {
    td_cu_graph g;
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    ignore(r->cu->cuStreamEndCapture(r->other, &g));
}
static void *ends(void *rig) {
    driver_rig *r = rig;
    td_cu_graph g;
    TRY(r->cu->cuCtxSetCurrent(r->context));
    ignore(r->cu->cuStreamEndCapture(r->stream, &g));
    return NULL;
}
BREAKS(capture_ends_elsewhere, "ended on another thread than it was begun on") {
    begin(r, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    on_another_thread(r, ends);
}
BREAKS(capture_of_outside_event, "not recorded in the same capture") {
    td_cu_event e = driver_event(r);
    TRY(r->cu->cuEventRecord(e, r->other));
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    ignore(r->cu->cuStreamWaitEvent(r->stream, e, 0));
}
BREAKS(event_of_ended_capture, "in a capture that has ended") {
    td_cu_graph g;
    td_cu_event e = driver_event(r);
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuEventRecord(e, r->stream));
    TRY(r->cu->cuStreamEndCapture(r->stream, &g));
    ignore(r->cu->cuStreamWaitEvent(r->other, e, 0));
}
BREAKS(graph_in_capture, "graphs inside graphs are not here") {
    td_cu_graph_exec x = graph_of(r, driver_alloc(r, BYTES));
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    ignore(r->cu->cuGraphLaunch(x, r->stream));
}
BREAKS(graph_memory_freed, "is freed while a capture uses it") {
    td_cu_address a = driver_alloc(r, BYTES);
    (void)graph_of(r, a);
    ignore(r->cu->cuMemFree(a));
}
BREAKS(graph_module_unloaded, "is unloaded while 1 launches") {
    (void)graph_of(r, driver_alloc(r, BYTES));
    ignore(r->cu->cuModuleUnload(r->module));
}
BREAKS(graph_destroyed_twice, "of a graph that is not finished, or is destroyed") {
    td_cu_graph g;
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuStreamEndCapture(r->stream, &g));
    TRY(r->cu->cuGraphDestroy(g));
    ignore(r->cu->cuGraphDestroy(g));
}
BREAKS(exec_destroyed_under_way, "is destroyed while a launch of it is enqueued") {
    td_cu_graph_exec x = graph_of(r, driver_alloc(r, BYTES));
    TRY(r->cu->cuGraphLaunch(x, r->stream));
    ignore(r->cu->cuGraphExecDestroy(x));
}
BREAKS(dead_exec, "of an executable graph that is none, or is destroyed") {
    td_cu_graph_exec x = graph_of(r, driver_alloc(r, BYTES));
    TRY(r->cu->cuGraphExecDestroy(x));
    ignore(r->cu->cuGraphLaunch(x, r->stream));
}
BREAKS(graph_against_copy, "no event or synchronisation orders the two") {
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuGraphLaunch(graph_of(r, a), r->stream));
    ignore(r->cu->cuMemcpyDtoHAsync(driver_pinned(r, BYTES), a, BYTES, r->other));
}
BREAKS(race_in_graph, "no event or synchronisation orders the two") {
    td_cu_address    a = driver_alloc(r, BYTES);
    td_cu_event      e = driver_event(r), back = driver_event(r);
    td_cu_graph      g;
    td_cu_graph_exec x;
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuEventRecord(e, r->stream));
    TRY(r->cu->cuStreamWaitEvent(r->other, e, 0));
    TRY(r->cu->cuMemsetD8Async(a, 1, BYTES, r->stream)); /* after the event */
    TRY(driver_add(r, r->add, a, N, 1, r->other));
    TRY(r->cu->cuEventRecord(back, r->other));
    TRY(r->cu->cuStreamWaitEvent(r->stream, back, 0));
    TRY(r->cu->cuStreamEndCapture(r->stream, &g));
    TRY(r->cu->cuGraphInstantiate(&x, g, 0));
    ignore(r->cu->cuGraphLaunch(x, r->stream));
}

/* ---- several cards ------------------------------------------------------------------------------ */

/** Two cards, the second with access to the first one's memory; what is shared lies there. */
typedef struct {
    driver_rig   *r;
    td_cu_context second;
    td_cu_stream  stream; /* of the second */
    td_cu_module  module;
    td_cu_kernel  add;
    td_cu_kernel  set, await; /* on the first and on the second card */
    td_cu_address x, word;
} two_cards;

static two_cards two_open(driver_rig *r) {
    two_cards t = {.r = r, .x = driver_alloc(r, BYTES), .word = driver_alloc(r, 4)};
    TRY(r->cu->cuMemsetD8Async(t.word, 0, 4, r->stream));
    TRY(r->cu->cuStreamSynchronize(r->stream));
    TRY(r->cu->cuModuleGetFunction(&t.set, r->module, "set_signal"));
    t.second = second_card(r);
    TRY(r->cu->cuStreamCreate(&t.stream, TD_CU_STREAM_NON_BLOCKING));
    TRY(r->cu->cuModuleLoadData(&t.module, DRIVER_IMAGE("90")));
    TRY(r->cu->cuModuleGetFunction(&t.add, t.module, "add_array"));
    TRY(r->cu->cuModuleGetFunction(&t.await, t.module, "await_signal"));
    TRY(r->cu->cuCtxEnablePeerAccess(r->context, 0));
    return t;
}
/* The first card adds to x and says so, where it does; the second reads x, after it has waited, where it does. */
static void over_two_cards(driver_rig *r, bool sets, bool awaits) {
    two_cards     t = two_open(r);
    td_cu_address y;
    uint32_t      n = N;
    TRY(r->cu->cuMemAlloc(&y, BYTES));
    TRY(r->cu->cuCtxSetCurrent(r->context));
    TRY(driver_add(r, r->add, t.x, N, 1, r->stream));
    if (sets) TRY(r->cu->cuLaunchKernel(t.set, 1, 1, 1, 32, 1, 1, 0, r->stream, (void *[]){&t.word}, NULL));
    usleep(50000); /* without synchronising: the order has to come from somewhere else */
    TRY(r->cu->cuCtxSetCurrent(t.second));
    if (awaits) TRY(r->cu->cuLaunchKernel(t.await, 1, 1, 1, 32, 1, 1, 0, t.stream, (void *[]){&t.word}, NULL));
    TRY(r->cu->cuLaunchKernel(t.add, 1, 1, 1, 32, 1, 1, 0, t.stream, (void *[]){&y, &t.x, &n}, NULL));
    ignore(r->cu->cuStreamSynchronize(t.stream));
}
LIVES(peers_by_signal) {
    over_two_cards(r, true, true);
}
BREAKS(peers_without_signal, "no event or synchronisation orders the two") {
    over_two_cards(r, false, false);
}
BREAKS(peers_signal_not_awaited, "no event or synchronisation orders the two") {
    over_two_cards(r, true, false);
}
BREAKS(peer_the_other_way, "a kernel of device 0 is given memory of device 1") { /* access is of one direction */
    two_cards     t = two_open(r);
    td_cu_address a;
    TRY(t.r->cu->cuMemAlloc(&a, BYTES));
    TRY(t.r->cu->cuCtxSetCurrent(t.r->context));
    TRY(driver_add(t.r, t.r->add, a, 1, 1, t.r->stream));
    ignore(t.r->cu->cuStreamSynchronize(t.r->stream));
}
BREAKS(peer_disabled, "a kernel of device 1 is given memory of device 0") {
    two_cards t = two_open(r);
    uint32_t  n = 1;
    TRY(t.r->cu->cuCtxDisablePeerAccess(t.r->context));
    TRY(t.r->cu->cuLaunchKernel(t.add, 1, 1, 1, 32, 1, 1, 0, t.stream, (void *[]){&t.x, &t.x, &n}, NULL));
    ignore(t.r->cu->cuStreamSynchronize(t.stream));
}
BREAKS(peer_twice, "access of device 1 to device 0 is enabled twice") {
    two_cards t = two_open(r);
    ignore(t.r->cu->cuCtxEnablePeerAccess(t.r->context, 0));
}
BREAKS(peer_itself, "access of device 0 to itself") {
    ignore(r->cu->cuCtxEnablePeerAccess(r->context, 0));
}
BREAKS(peer_flags, "its flags are 1") {
    (void)second_card(r);
    ignore(r->cu->cuCtxEnablePeerAccess(r->context, 1));
}
BREAKS(peer_never_had, "access is disabled that device 1 does not have") {
    (void)second_card(r);
    ignore(r->cu->cuCtxDisablePeerAccess(r->context));
}
BREAKS(peer_released, "access to a context that is none, or is released") {
    driver_close(r);
    (void)second_card(r);
    ignore(r->cu->cuCtxEnablePeerAccess(r->context, 0));
}
BREAKS(peer_kept, "with access to other cards that was not disabled") {
    (void)second_card(r);
    TRY(r->cu->cuCtxEnablePeerAccess(r->context, 0));
    ignore(r->cu->cuDevicePrimaryCtxRelease(1));
}
BREAKS(peer_of_itself, "whether device 1 reaches its own memory is asked") {
    int can;
    ignore(r->cu->cuDeviceCanAccessPeer(&can, 1, 1));
}
BREAKS(peer_memory_freed,
       "is freed while operations that use it are enqueued") { /* while the other card's work that reads it is enqueued */
    two_cards    t = two_open(r);
    td_cu_kernel slow;
    uint32_t     n = 1, one = 1;
    TRY(t.r->cu->cuModuleGetFunction(&slow, t.module, "add_slowly"));
    TRY(t.r->cu->cuLaunchKernel(slow, 1, 1, 1, 32, 1, 1, 0, t.stream, (void *[]){&t.x, &n, &one}, NULL));
    TRY(t.r->cu->cuCtxSetCurrent(t.r->context));
    ignore(t.r->cu->cuMemFree(t.x));
}

static void act(const void *what) {
    const rule       *broken = what;
    static driver_rig rig;
    if (broken->act != no_init) driver_open(&rig);
    rule_break(broken, &rig);
}

int main(void) {
    return rules_run("cuda stand-in: ", act);
}
