/* Who breaks a rule of the CUDA driver's manual does not live to see the result, on the stand-in. So a backend that passes
 * on it keeps these rules. */
#include <pthread.h>

#include "tests/standins/refusal.h"

#include "tests/standins/cuda/cuda_driver_rig.h"

#define BYTES 4096
#define N 256

/* The calls' statuses do not matter: whoever comes back has not been stopped. */
static void ignore(td_cu_status st) {
    (void)st;
}

/* ---- start and contexts ------------------------------------------------------------------------ */

static void no_init(void *rig) { /* the rig is not open */
    int   n;
    void *library = dlopen(TD_CUDA_STANDIN "/libcuda.so.1", RTLD_NOW);
    td_cu_status (*count)(int *);
    void *at = library ? dlsym(library, "cuDeviceGetCount") : NULL;
    (void)rig;
    memcpy(&count, &at, sizeof at);
    if (at) ignore(count(&n));
}
static void no_context(void *rig) {
    driver_rig   *r = rig;
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
static void other_context(void *rig) {
    driver_rig *r = rig;
    (void)second_card(r);
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
static void other_module(void *rig) {
    driver_rig  *r = rig;
    td_cu_stream s;
    (void)second_card(r);
    TRY(r->cu->cuStreamCreate(&s, TD_CU_STREAM_NON_BLOCKING));
    ignore(driver_add(r, r->add, 0, 0, 0, s));
}
static void other_card(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    td_cu_stream  s;
    (void)second_card(r);
    TRY(r->cu->cuStreamCreate(&s, TD_CU_STREAM_NON_BLOCKING));
    ignore(r->cu->cuMemsetD8Async(a, 0, BYTES, s));
}
static void kernel_of_other_card(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a;
    (void)second_card(r);
    TRY(r->cu->cuMemAlloc(&a, BYTES));
    TRY(r->cu->cuCtxSetCurrent(r->context));
    TRY(driver_add(r, r->add, a, 1, 1, r->stream));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
static void event_of_other_card(void *rig) {
    driver_rig *r = rig;
    (void)second_card(r);
    td_cu_event e = driver_event(r);
    TRY(r->cu->cuCtxSetCurrent(r->context));
    ignore(r->cu->cuEventRecord(e, r->stream));
}
static void released_twice(void *rig) {
    driver_rig *r = rig;
    driver_close(r);
    ignore(r->cu->cuDevicePrimaryCtxRelease(0));
}
static void released_context(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a;
    driver_close(r);
    ignore(r->cu->cuMemAlloc(&a, 1));
}
static void keep_memory(void *rig) {
    driver_rig *r = rig;
    (void)driver_alloc(r, BYTES);
    driver_close(r);
}
static void keep_pinned(void *rig) {
    driver_rig *r = rig;
    (void)driver_pinned(r, BYTES);
    driver_close(r);
}
static void keep_event(void *rig) {
    driver_rig *r = rig;
    (void)driver_event(r);
    driver_close(r);
}

/* ---- memory and copies ------------------------------------------------------------------------- */

static void read_device(void *rig) {
    ignore(*(volatile uint32_t *)(uintptr_t)driver_alloc(rig, BYTES));
}
static void write_device(void *rig) {
    *(volatile uint32_t *)(uintptr_t)driver_alloc(rig, BYTES) = 1;
}
static void alloc_nothing(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a;
    ignore(r->cu->cuMemAlloc(&a, 0));
}
static void free_twice(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuMemFree(a));
    ignore(r->cu->cuMemFree(a));
}
static void free_inside(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemFree(driver_alloc(r, BYTES) + 16));
}
static void free_pinned_as_device(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemFree((uintptr_t)driver_pinned(r, BYTES)));
}
static void free_under_way(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(driver_add(r, r->add_slowly, a, 1, 1, r->stream));
    ignore(r->cu->cuMemFree(a));
}
static void copy_freed(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuMemFree(a));
    ignore(r->cu->cuMemcpyHtoDAsync(a, driver_pinned(r, BYTES), BYTES, r->stream));
}
static void kernel_freed(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuMemFree(a));
    TRY(driver_add(r, r->add, a, 1, 1, r->stream));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
static void kernel_beyond(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(driver_add(r, r->add, a, BYTES / 4 + 1, 1, r->stream));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
static void copy_too_much(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemcpyHtoDAsync(driver_alloc(r, BYTES), driver_pinned(r, 2 * BYTES), BYTES + 1, r->stream));
}
static void copy_from_too_little(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemcpyHtoDAsync(driver_alloc(r, 2 * BYTES), driver_pinned(r, BYTES), BYTES + 1, r->stream));
}
static void copy_unpinned(void *rig) {
    driver_rig *r = rig;
    static char from[BYTES];
    ignore(r->cu->cuMemcpyHtoDAsync(driver_alloc(r, BYTES), from, BYTES, r->stream));
}
static void copy_wrong_way(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemcpyDtoHAsync((void *)(uintptr_t)driver_alloc(r, BYTES), driver_alloc(r, BYTES), BYTES, r->stream));
}
static void copy_overlapping(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    ignore(r->cu->cuMemcpyDtoDAsync(a, a + 16, 32, r->stream));
}
static void fill_too_much(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemsetD8Async(driver_alloc(r, BYTES), 0, BYTES + 1, r->stream));
}
static void pointer_of_unpinned(void *rig) {
    driver_rig   *r = rig;
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
static void register_flags(void *rig) {
    ignore(((driver_rig *)rig)->cu->cuMemHostRegister(own, sizeof own, 4));
}
static void register_nothing(void *rig) {
    ignore(((driver_rig *)rig)->cu->cuMemHostRegister(own, 0, 0));
}
static void register_what_is_not_there(void *rig) {
    ignore(((driver_rig *)rig)->cu->cuMemHostRegister((void *)4096, sizeof own, 0));
}
static void register_twice(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemHostRegister((char *)registered(r) + 64, 64, 0));
}
static void register_pinned(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemHostRegister(driver_pinned(r, BYTES), BYTES, 0));
}
static void unregister_twice(void *rig) {
    driver_rig *r = rig;
    for (int i = 0; i < 2; i++) ignore(r->cu->cuMemHostUnregister(i ? own : registered(r)));
}
static void unregister_inside(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemHostUnregister((char *)registered(r) + 64));
}
static void unregister_pinned(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemHostUnregister(driver_pinned(r, BYTES)));
}
static void free_registered(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuMemFreeHost(registered(r)));
}
static void unregister_under_way(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(driver_add(r, r->add_slowly, a, 1, 1, r->stream));
    TRY(r->cu->cuMemcpyDtoHAsync(registered(r), a, BYTES, r->stream));
    ignore(r->cu->cuMemHostUnregister(own));
}
static void keep_registered(void *rig) {
    (void)registered(rig);
    driver_close(rig);
}
static void copy_registered(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, sizeof own);
    TRY(r->cu->cuMemcpyHtoDAsync(a, registered(r), sizeof own, r->stream));
    TRY(r->cu->cuStreamSynchronize(r->stream));
    TRY(r->cu->cuMemHostUnregister(own));
    TRY(r->cu->cuMemFree(a));
    driver_close(r);
}
static void copy_unregistered(void *rig) {
    driver_rig *r = rig;
    TRY(r->cu->cuMemHostUnregister(registered(r)));
    ignore(r->cu->cuMemcpyHtoDAsync(driver_alloc(r, sizeof own), own, sizeof own, r->stream));
}

/* ---- words that streams write and wait for ------------------------------------------------------- */

static void word_not_aligned(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuStreamWaitValue32(r->stream, driver_alloc(r, BYTES) + 2, 0, 0));
}
static void word_64_not_aligned(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuStreamWriteValue64(r->stream, driver_alloc(r, BYTES) + 4, 0, 0));
}
static void word_not_pinned(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuStreamWriteValue32(r->stream, (uintptr_t)own, 1, 0));
}
static void word_freed(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuMemFree(a));
    ignore(r->cu->cuStreamWaitValue32(r->stream, a, 0, 0));
}
static void word_beyond(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuStreamWaitValue64(r->stream, driver_alloc(r, 12) + 8, 0, 0));
}
static void word_flags(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuStreamWaitValue32(r->stream, driver_alloc(r, BYTES), 0, 1u << 30));
}
static void word_write_flags(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuStreamWriteValue32(r->stream, driver_alloc(r, BYTES), 0, 1));
}
static void word_of_other_card(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    td_cu_stream  s;
    (void)second_card(r);
    TRY(r->cu->cuStreamCreate(&s, TD_CU_STREAM_NON_BLOCKING));
    ignore(r->cu->cuStreamWriteValue32(s, a, 1, 0));
}
static void word_freed_under_way(void *rig) {
    driver_rig *r = rig;
    void       *word = driver_pinned(r, 4);
    TRY(r->cu->cuStreamWaitValue32(r->stream, (uintptr_t)word, 1, 0));
    ignore(r->cu->cuMemFreeHost(word));
}
static void word_that_never_comes(void *rig) {
    driver_rig *r = rig;
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
static void word_for_an_event(void *rig) {
    two_streams_and_a_word(rig, false);
}
static void word_and_event(void *rig) {
    two_streams_and_a_word(rig, true);
}
static void word_against_copy(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuStreamWriteValue32(r->stream, a, 7, 0));
    ignore(r->cu->cuMemcpyDtoHAsync(driver_pinned(r, BYTES), a, BYTES, r->other));
}

/* ---- streams, events, host functions ----------------------------------------------------------- */

static void default_stream(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuStreamSynchronize(NULL));
}
static void blocking_stream(void *rig) {
    driver_rig  *r = rig;
    td_cu_stream s;
    ignore(r->cu->cuStreamCreate(&s, 0));
}
static void dead_stream(void *rig) {
    driver_rig *r = rig;
    TRY(r->cu->cuStreamDestroy(r->stream));
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
static void destroy_under_way(void *rig) {
    driver_rig *r = rig;
    TRY(driver_add(r, r->add_slowly, driver_alloc(r, BYTES), 1, 1, r->stream));
    ignore(r->cu->cuStreamDestroy(r->stream));
}
static void dead_event(void *rig) {
    driver_rig *r = rig;
    td_cu_event e = driver_event(r);
    TRY(r->cu->cuEventDestroy(e));
    ignore(r->cu->cuEventRecord(e, r->stream));
}
static void wait_for_nothing(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuStreamWaitEvent(r->stream, driver_event(r), 0));
}
static void allocates(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a;
    ignore(r->cu->cuMemAlloc(&a, BYTES));
}
static void host_function_calls(void *rig) {
    driver_rig *r = rig;
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
static void missing_event(void *rig) {
    two_streams(rig, false, false);
}
static void by_event(void *rig) {
    two_streams(rig, true, false);
}
static void by_sync(void *rig) {
    two_streams(rig, false, true);
}
static void kernel_against_copy(void *rig) {
    driver_rig   *r = rig;
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
static void kernel_against_kernel(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    two_kernels(r, a, a, driver_alloc(r, BYTES));
}
static void kernels_apart(void *rig) { /* slots of a cache, for all that anybody knows */
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    two_kernels(r, a, driver_alloc(r, BYTES), a);
    finish(r);
}
static void kernel_beside_copy(void *rig) { /* both read */
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    two_kernels(r, driver_alloc(r, BYTES), a, driver_alloc(r, BYTES));
    TRY(r->cu->cuMemcpyDtoHAsync(driver_pinned(r, BYTES), a, BYTES, r->stream));
    finish(r);
}

/* ---- modules and launches ---------------------------------------------------------------------- */

static void launch(driver_rig *r, unsigned grid_y, unsigned block_x, unsigned block_z, unsigned shared, void **args,
                   void **extra) {
    ignore(r->cu->cuLaunchKernel(r->add, 1, grid_y, 1, block_x, 1, block_z, shared, r->stream, args, extra));
}
static void grid_of_none(void *rig) {
    launch(rig, 0, 1, 1, 0, (void *[3]){0}, NULL);
}
static void grid_too_high(void *rig) {
    launch(rig, 65536, 1, 1, 0, (void *[3]){0}, NULL);
}
static void block_too_deep(void *rig) {
    launch(rig, 1, 1, 65, 0, (void *[3]){0}, NULL);
}
static void block_over_its_bounds(void *rig) {
    launch(rig, 1, 257, 1, 0, (void *[3]){0}, NULL);
}
static void shared_without_asking(void *rig) {
    launch(rig, 1, 1, 1, 48 * 1024 + 1, (void *[3]){0}, NULL);
}
static void no_arguments(void *rig) {
    launch(rig, 1, 1, 1, 0, NULL, NULL);
}
static void shared_beyond_the_card(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuFuncSetAttribute(r->add, TD_CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 * 1024 + 1));
}
static void unloaded_kernel(void *rig) {
    driver_rig *r = rig;
    TRY(r->cu->cuModuleUnload(r->module));
    ignore(driver_add(r, r->add, driver_alloc(r, BYTES), 1, 1, r->stream));
}
static void unload_under_way(void *rig) {
    driver_rig *r = rig;
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
static void capture_allocates(void *rig) {
    driver_rig *r = rig;
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
static void capture_forbids_others(void *rig) {
    driver_rig *r = rig;
    begin(r, TD_CU_STREAM_CAPTURE_MODE_GLOBAL);
    on_another_thread(r, allocates_elsewhere);
}
static void capture_lets_others(void *rig) {
    driver_rig *r = rig;
    begin(r, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    on_another_thread(r, allocates_elsewhere);
}
static void capture_sync(void *rig) {
    driver_rig *r = rig;
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    ignore(r->cu->cuStreamSynchronize(r->stream));
}
static void capture_query(void *rig) {
    driver_rig *r = rig;
    td_cu_event e = driver_event(r);
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuEventRecord(e, r->stream));
    ignore(r->cu->cuEventQuery(e));
}
static void capture_twice(void *rig) {
    begin(rig, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    begin(rig, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
}
static void capture_unpinned(void *rig) {
    begin(rig, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    copy_unpinned(rig);
}
static void capture_not_joined(void *rig) {
    driver_rig *r = rig;
    td_cu_graph g;
    td_cu_event e = driver_event(r);
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuEventRecord(e, r->stream));
    TRY(r->cu->cuStreamWaitEvent(r->other, e, 0));
    ignore(r->cu->cuStreamEndCapture(r->stream, &g));
}
static void capture_ends_on_another_stream(void *rig) {
    driver_rig *r = rig;
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
static void capture_ends_elsewhere(void *rig) {
    begin(rig, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    on_another_thread(rig, ends);
}
static void capture_of_outside_event(void *rig) {
    driver_rig *r = rig;
    td_cu_event e = driver_event(r);
    TRY(r->cu->cuEventRecord(e, r->other));
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    ignore(r->cu->cuStreamWaitEvent(r->stream, e, 0));
}
static void event_of_ended_capture(void *rig) {
    driver_rig *r = rig;
    td_cu_graph g;
    td_cu_event e = driver_event(r);
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuEventRecord(e, r->stream));
    TRY(r->cu->cuStreamEndCapture(r->stream, &g));
    ignore(r->cu->cuStreamWaitEvent(r->other, e, 0));
}
static void graph_in_capture(void *rig) {
    driver_rig      *r = rig;
    td_cu_graph_exec x = graph_of(r, driver_alloc(r, BYTES));
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    ignore(r->cu->cuGraphLaunch(x, r->stream));
}
static void graph_memory_freed(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    (void)graph_of(r, a);
    ignore(r->cu->cuMemFree(a));
}
static void graph_module_unloaded(void *rig) {
    driver_rig *r = rig;
    (void)graph_of(r, driver_alloc(r, BYTES));
    ignore(r->cu->cuModuleUnload(r->module));
}
static void graph_destroyed_twice(void *rig) {
    driver_rig *r = rig;
    td_cu_graph g;
    begin(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    TRY(r->cu->cuStreamEndCapture(r->stream, &g));
    TRY(r->cu->cuGraphDestroy(g));
    ignore(r->cu->cuGraphDestroy(g));
}
static void exec_destroyed_under_way(void *rig) {
    driver_rig      *r = rig;
    td_cu_graph_exec x = graph_of(r, driver_alloc(r, BYTES));
    TRY(r->cu->cuGraphLaunch(x, r->stream));
    ignore(r->cu->cuGraphExecDestroy(x));
}
static void dead_exec(void *rig) {
    driver_rig      *r = rig;
    td_cu_graph_exec x = graph_of(r, driver_alloc(r, BYTES));
    TRY(r->cu->cuGraphExecDestroy(x));
    ignore(r->cu->cuGraphLaunch(x, r->stream));
}
static void graph_against_copy(void *rig) {
    driver_rig   *r = rig;
    td_cu_address a = driver_alloc(r, BYTES);
    TRY(r->cu->cuGraphLaunch(graph_of(r, a), r->stream));
    ignore(r->cu->cuMemcpyDtoHAsync(driver_pinned(r, BYTES), a, BYTES, r->other));
}
static void race_in_graph(void *rig) {
    driver_rig      *r = rig;
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
static void peers_by_signal(void *rig) {
    over_two_cards(rig, true, true);
}
static void peers_without_signal(void *rig) {
    over_two_cards(rig, false, false);
}
static void peers_signal_not_awaited(void *rig) {
    over_two_cards(rig, true, false);
}
static void peer_the_other_way(void *rig) { /* access is of one direction */
    two_cards     t = two_open(rig);
    td_cu_address a;
    TRY(t.r->cu->cuMemAlloc(&a, BYTES));
    TRY(t.r->cu->cuCtxSetCurrent(t.r->context));
    TRY(driver_add(t.r, t.r->add, a, 1, 1, t.r->stream));
    ignore(t.r->cu->cuStreamSynchronize(t.r->stream));
}
static void peer_disabled(void *rig) {
    two_cards t = two_open(rig);
    uint32_t  n = 1;
    TRY(t.r->cu->cuCtxDisablePeerAccess(t.r->context));
    TRY(t.r->cu->cuLaunchKernel(t.add, 1, 1, 1, 32, 1, 1, 0, t.stream, (void *[]){&t.x, &t.x, &n}, NULL));
    ignore(t.r->cu->cuStreamSynchronize(t.stream));
}
static void peer_twice(void *rig) {
    two_cards t = two_open(rig);
    ignore(t.r->cu->cuCtxEnablePeerAccess(t.r->context, 0));
}
static void peer_itself(void *rig) {
    driver_rig *r = rig;
    ignore(r->cu->cuCtxEnablePeerAccess(r->context, 0));
}
static void peer_flags(void *rig) {
    driver_rig *r = rig;
    (void)second_card(r);
    ignore(r->cu->cuCtxEnablePeerAccess(r->context, 1));
}
static void peer_never_had(void *rig) {
    driver_rig *r = rig;
    (void)second_card(r);
    ignore(r->cu->cuCtxDisablePeerAccess(r->context));
}
static void peer_released(void *rig) {
    driver_rig *r = rig;
    driver_close(r);
    (void)second_card(r);
    ignore(r->cu->cuCtxEnablePeerAccess(r->context, 0));
}
static void peer_kept(void *rig) {
    driver_rig *r = rig;
    (void)second_card(r);
    TRY(r->cu->cuCtxEnablePeerAccess(r->context, 0));
    ignore(r->cu->cuDevicePrimaryCtxRelease(1));
}
static void peer_of_itself(void *rig) {
    driver_rig *r = rig;
    int         can;
    ignore(r->cu->cuDeviceCanAccessPeer(&can, 1, 1));
}
static void peer_memory_freed(void *rig) { /* while the other card's work that reads it is enqueued */
    two_cards    t = two_open(rig);
    td_cu_kernel slow;
    uint32_t     n = 1, one = 1;
    TRY(t.r->cu->cuModuleGetFunction(&slow, t.module, "add_slowly"));
    TRY(t.r->cu->cuLaunchKernel(slow, 1, 1, 1, 32, 1, 1, 0, t.stream, (void *[]){&t.x, &n, &one}, NULL));
    TRY(t.r->cu->cuCtxSetCurrent(t.r->context));
    ignore(t.r->cu->cuMemFree(t.x));
}

/* ---- the table --------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    void (*act)(void *rig);
    int         by_signal; /* 0: it lives */
    const char *sentence;
} rule;

#define BREAKS(act, sentence) \
    { #act, act, SIGABRT, sentence }
static const rule RULES[] = {
    BREAKS(no_init, "cuDeviceGetCount before cuInit"),
    BREAKS(no_context, "on a thread without a context"),
    BREAKS(other_context, "on a stream of another context than the thread's"),
    BREAKS(other_module, "of a module of another context than the thread's"),
    BREAKS(other_card, "is memory of device 0, and the context is of device 1"),
    BREAKS(kernel_of_other_card, "a kernel of device 0 is given memory of device 1"),
    BREAKS(event_of_other_card, "an event of another context than its stream's"),
    BREAKS(released_twice, "released more often than it was retained"),
    BREAKS(released_context, "on a thread whose context is released"),
    BREAKS(keep_memory, "with 4096 bytes of device 0 that were not freed"),
    BREAKS(keep_pinned, "with 4096 bytes of pinned memory that were not freed"),
    BREAKS(keep_event, "with 1 streams, events, modules or graphs"),
    {"read_device", read_device, SIGSEGV, ""},
    {"write_device", write_device, SIGSEGV, ""},
    BREAKS(alloc_nothing, "no bytes are allocated"),
    BREAKS(free_twice, "is not the beginning of device memory"),
    BREAKS(free_inside, "is not the beginning of device memory"),
    BREAKS(free_pinned_as_device, "is not the beginning of device memory"),
    BREAKS(free_under_way, "is freed while operations that use it are enqueued"),
    BREAKS(copy_freed, "is in no live memory of a device"),
    BREAKS(kernel_freed, "a kernel uses 1 bytes at"),
    {"kernel_beyond", kernel_beyond, SIGSEGV, ""},
    BREAKS(copy_too_much, "its destination goes beyond the end of the memory"),
    BREAKS(copy_from_too_little, "its source goes beyond the end of the memory"),
    BREAKS(copy_unpinned, "is not pinned: it would wait"),
    BREAKS(copy_wrong_way, "is device memory"),
    BREAKS(copy_overlapping, "of memory that overlaps"),
    BREAKS(fill_too_much, "goes beyond the end of the memory"),
    BREAKS(pointer_of_unpinned, "is not pinned memory"),
    BREAKS(register_flags, "memory is registered with flags 0x4"),
    BREAKS(register_nothing, "no bytes are registered"),
    BREAKS(register_what_is_not_there, "and not all of them are the process's"),
    BREAKS(register_twice, "and some of its 64 bytes are pinned already"),
    BREAKS(register_pinned, "and some of its 4096 bytes are pinned already"),
    BREAKS(unregister_twice, "is not the beginning of pinned memory"),
    BREAKS(unregister_inside, "is not the beginning of pinned memory"),
    BREAKS(unregister_pinned, "which came by another call: cuMemFreeHost gives it back"),
    BREAKS(free_registered, "which came by another call: cuMemHostUnregister gives it back"),
    BREAKS(unregister_under_way, "is freed while operations that use it are enqueued"),
    BREAKS(keep_registered, "with 4096 bytes of pinned memory that were not freed"),
    {"copy_registered", copy_registered, 0, ""},
    BREAKS(copy_unregistered, "is not pinned: it would wait"),
    BREAKS(word_not_aligned, "which is not aligned"),
    BREAKS(word_64_not_aligned, "which is not aligned"),
    BREAKS(word_not_pinned, "in no live memory of a device and in no pinned memory"),
    BREAKS(word_freed, "in no live memory of a device and in no pinned memory"),
    BREAKS(word_beyond, "in no live memory of a device and in no pinned memory"),
    BREAKS(word_flags, "cuStreamWaitValue32 with flags 0x40000000"),
    BREAKS(word_write_flags, "cuStreamWriteValue32 with flags 0x1"),
    BREAKS(word_of_other_card, "of a word of device 0 on a stream of device 1"),
    BREAKS(word_freed_under_way, "is freed while operations that use it are enqueued"),
    BREAKS(word_that_never_comes, "a stream waits for a word that has not come for 20 ms"),
    BREAKS(word_for_an_event, "no event or synchronisation orders the two"),
    {"word_and_event", word_and_event, 0, ""},
    BREAKS(word_against_copy, "no event or synchronisation orders the two"),
    BREAKS(default_stream, "on the default stream"),
    BREAKS(blocking_stream, "without CU_STREAM_NON_BLOCKING"),
    BREAKS(dead_stream, "on a stream that is destroyed"),
    BREAKS(destroy_under_way, "a stream with unfinished operations is destroyed"),
    BREAKS(dead_event, "of an event that is none, or is destroyed"),
    BREAKS(wait_for_nothing, "an event that was never recorded"),
    BREAKS(host_function_calls, "in a host function, which may call nothing of CUDA's"),
    BREAKS(missing_event, "no event or synchronisation orders the two"),
    {"by_event", by_event, 0, ""},
    {"by_sync", by_sync, 0, ""},
    BREAKS(kernel_against_copy, "no event or synchronisation orders the two"),
    BREAKS(kernel_against_kernel, "no event or synchronisation orders the two"),
    {"kernels_apart", kernels_apart, 0, ""},
    {"kernel_beside_copy", kernel_beside_copy, 0, ""},
    BREAKS(grid_of_none, "a grid of 1 x 0 x 1 blocks"),
    BREAKS(grid_too_high, "a grid of 1 x 65536 x 1 blocks"),
    BREAKS(block_too_deep, "blocks of 1 x 1 x 65 threads"),
    BREAKS(block_over_its_bounds, "with blocks of 257 threads and was compiled for 256"),
    BREAKS(shared_without_asking, "with 49153 bytes of dynamic shared memory, and 49152 are allowed it"),
    BREAKS(no_arguments, "is launched without its 3 arguments"),
    BREAKS(shared_beyond_the_card, "and the card has 232448 for a block"),
    BREAKS(unloaded_kernel, "of a module that is none, or is unloaded"),
    BREAKS(unload_under_way, "is unloaded while 1 launches"),
    BREAKS(capture_allocates, "while a stream is captured and the capture's mode forbids it"),
    BREAKS(capture_forbids_others, "while a stream is captured and the capture's mode forbids it"),
    {"capture_lets_others", capture_lets_others, 0, ""},
    BREAKS(capture_sync, "cuStreamSynchronize of a stream that is captured"),
    BREAKS(capture_query, "of an event that was last recorded in a capture"),
    BREAKS(capture_twice, "is captured already"),
    BREAKS(capture_unpinned, "is not pinned: it would wait"),
    BREAKS(capture_not_joined, "its first stream does not wait for"),
    BREAKS(capture_ends_on_another_stream, "on a stream that is not captured"),
    BREAKS(capture_ends_elsewhere, "ended on another thread than it was begun on"),
    BREAKS(capture_of_outside_event, "not recorded in the same capture"),
    BREAKS(event_of_ended_capture, "in a capture that has ended"),
    BREAKS(graph_in_capture, "graphs inside graphs are not here"),
    BREAKS(graph_memory_freed, "is freed while a capture uses it"),
    BREAKS(graph_module_unloaded, "is unloaded while 1 launches"),
    BREAKS(graph_destroyed_twice, "of a graph that is not finished, or is destroyed"),
    BREAKS(exec_destroyed_under_way, "is destroyed while a launch of it is enqueued"),
    BREAKS(dead_exec, "of an executable graph that is none, or is destroyed"),
    BREAKS(graph_against_copy, "no event or synchronisation orders the two"),
    BREAKS(race_in_graph, "no event or synchronisation orders the two"),
    {"peers_by_signal", peers_by_signal, 0, ""},
    BREAKS(peers_without_signal, "no event or synchronisation orders the two"),
    BREAKS(peers_signal_not_awaited, "no event or synchronisation orders the two"),
    BREAKS(peer_the_other_way, "a kernel of device 0 is given memory of device 1"),
    BREAKS(peer_disabled, "a kernel of device 1 is given memory of device 0"),
    BREAKS(peer_twice, "access of device 1 to device 0 is enabled twice"),
    BREAKS(peer_itself, "access of device 0 to itself"),
    BREAKS(peer_flags, "its flags are 1"),
    BREAKS(peer_never_had, "access is disabled that device 1 does not have"),
    BREAKS(peer_released, "access to a context that is none, or is released"),
    BREAKS(peer_kept, "with access to other cards that was not disabled"),
    BREAKS(peer_of_itself, "whether device 1 reaches its own memory is asked"),
    BREAKS(peer_memory_freed, "is freed while operations that use it are enqueued"),
};
#define N_RULES (sizeof RULES / sizeof *RULES)

static void act(const void *what) {
    const rule       *r = what;
    static driver_rig rig;
    if (r->act != no_init) driver_open(&rig);
    r->act(&rig);
}

static void check_rule(void **state) {
    const rule *r = *state;
    refusal_check(act, r, r->by_signal, r->sentence, "cuda stand-in: ");
}

int main(void) {
    struct CMUnitTest tests[N_RULES];
    for (size_t i = 0; i < N_RULES; i++)
        tests[i] = (struct CMUnitTest){.name = RULES[i].name, .test_func = check_rule, .initial_state = (void *)&RULES[i]};
    return _cmocka_run_group_tests("cuda_standin_rules", tests, N_RULES, NULL, NULL);
}
