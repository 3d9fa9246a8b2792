/* The stand-in for the CUDA driver does what the manual says for a program that keeps its rules: streams, events, host
 * functions, graphs, updates, and failures that are not the program's fault. */

#include "tests/standins/cuda/cuda_driver_rig.h"
#include "tests/td_test.h"

#define N 64
#define BYTES (N * sizeof(uint32_t))

static void assert_all(const uint32_t *x, uint32_t value) {
    for (int i = 0; i < N; i++) assert_int_equal(x[i], value);
}

/** Additions on two streams, back and forth by events. */
TEST(streams_and_events) {
    AT_END(driver_close) driver_rig r;
    driver_open(&r);
    td_cu_address x = driver_alloc(&r, BYTES);
    uint32_t     *from = driver_pinned(&r, BYTES), *to = driver_pinned(&r, BYTES);
    td_cu_event   e[20];
    for (int i = 0; i < N; i++) from[i] = 5;
    TRY(r.cu->cuMemcpyHtoDAsync(x, from, BYTES, r.stream));
    for (uint32_t i = 0; i < 20; i++) {
        td_cu_stream here = i % 2 ? r.other : r.stream, next = i % 2 ? r.stream : r.other;
        TRY(driver_add(&r, r.add, x, N, i, here));
        e[i] = driver_event(&r);
        TRY(r.cu->cuEventRecord(e[i], here));
        TRY(r.cu->cuStreamWaitEvent(next, e[i], 0));
    }
    TRY(r.cu->cuMemcpyDtoHAsync(to, x, BYTES, r.stream));
    TRY(r.cu->cuStreamSynchronize(r.stream));
    assert_all(to, 5 + 19 * 20 / 2);
    for (int i = 0; i < 20; i++) TRY(r.cu->cuEventQuery(e[i]));
    for (int i = 0; i < 20; i++) TRY(r.cu->cuEventDestroy(e[i]));
    TRY(r.cu->cuMemFree(x));
    TRY(r.cu->cuMemFreeHost(from));
    TRY(r.cu->cuMemFreeHost(to));
}

/** An event is not done before what lies before it. */
TEST(events_are_late) {
    AT_END(driver_close) driver_rig r;
    driver_open(&r);
    td_cu_address x = driver_alloc(&r, BYTES);
    td_cu_event   e = driver_event(&r);
    TRY(r.cu->cuEventQuery(e)); /* "if not recorded: CUDA_SUCCESS" */
    TRY(driver_add(&r, r.add_slowly, x, N, 1, r.stream));
    TRY(r.cu->cuEventRecord(e, r.stream));
    assert_int_equal(r.cu->cuEventQuery(e), TD_CUDA_ERROR_NOT_READY);
    TRY(r.cu->cuEventSynchronize(e));
    TRY(r.cu->cuEventQuery(e));
    TRY(r.cu->cuStreamSynchronize(r.stream));
    TRY(r.cu->cuEventDestroy(e));
    TRY(r.cu->cuMemFree(x));
}

static void doubles(void *arg) {
    uint32_t *x = arg;
    for (int i = 0; i < N; i++) x[i] *= 2;
}

/** Down, through a host function, and up again: how a layer's experts are handed over. */
static void capture_round_trip(driver_rig *r, td_cu_address x, uint32_t *host, uint32_t value) {
    TRY(r->cu->cuStreamBeginCapture(r->stream, TD_CU_STREAM_CAPTURE_MODE_RELAXED));
    TRY(driver_add(r, r->add, x, N, value, r->stream));
    TRY(r->cu->cuMemcpyDtoHAsync(host, x, BYTES, r->stream));
    TRY(r->cu->cuLaunchHostFunc(r->stream, doubles, host));
    TRY(r->cu->cuMemcpyHtoDAsync(x, host, BYTES, r->stream));
}

/** A graph keeps addresses and values, is launched again and again, and is made to add something else by an update. */
TEST(graphs) {
    AT_END(driver_close) driver_rig r;
    td_cu_graph                     g[3];
    td_cu_graph_exec                x;
    td_cu_update_result             result;
    td_cu_capture_state             capturing;
    driver_open(&r);
    td_cu_address a = driver_alloc(&r, BYTES);
    uint32_t     *host = driver_pinned(&r, BYTES);
    TRY(r.cu->cuMemsetD8Async(a, 0, BYTES, r.stream));
    TRY(r.cu->cuStreamSynchronize(r.stream));
    for (uint32_t i = 0; i < 2; i++) {
        capture_round_trip(&r, a, host, i + 1);
        TRY(r.cu->cuStreamIsCapturing(r.stream, &capturing));
        assert_int_equal(capturing, TD_CU_STREAM_CAPTURE_STATUS_ACTIVE);
        TRY(r.cu->cuStreamEndCapture(r.stream, &g[i]));
    }
    capture_round_trip(&r, a, host, 0);
    TRY(r.cu->cuLaunchHostFunc(r.stream, doubles, host));
    TRY(r.cu->cuStreamEndCapture(r.stream, &g[2]));
    TRY(r.cu->cuStreamIsCapturing(r.stream, &capturing));
    assert_int_equal(capturing, TD_CU_STREAM_CAPTURE_STATUS_NONE);
    TRY(r.cu->cuGraphInstantiate(&x, g[0], 0));
    for (int i = 0; i < 3; i++) TRY(r.cu->cuGraphLaunch(x, r.stream)); /* 2, 6, 14 */
    TRY(r.cu->cuGraphExecUpdate(x, g[1], &result));                    /* not the launches that are enqueued */
    TRY(r.cu->cuGraphLaunch(x, r.stream));                             /* (14 + 2) * 2 */
    TRY(r.cu->cuStreamSynchronize(r.stream));
    assert_all(host, 32);
    assert_int_equal(r.cu->cuGraphExecUpdate(x, g[2], &result), TD_CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    assert_int_equal(result.result, TD_CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    for (int i = 0; i < 3; i++) TRY(r.cu->cuGraphDestroy(g[i]));
    TRY(r.cu->cuGraphLaunch(x, r.other)); /* as it was: the failed update has changed nothing */
    TRY(r.cu->cuStreamSynchronize(r.other));
    assert_all(host, 68);
    TRY(r.cu->cuGraphExecDestroy(x));
    TRY(r.cu->cuMemFree(a));
    TRY(r.cu->cuMemFreeHost(host));
}

/** Two streams in one capture, joined by events: every order that a replay picks has the same result. */
TEST(graph_of_two_streams) {
    AT_END(driver_close) driver_rig r;
    td_cu_graph                     g;
    td_cu_graph_exec                x;
    driver_open(&r);
    td_cu_address a = driver_alloc(&r, BYTES), b = driver_alloc(&r, BYTES);
    uint32_t     *to = driver_pinned(&r, 2 * BYTES);
    td_cu_event   fork = driver_event(&r), join = driver_event(&r);
    TRY(r.cu->cuMemsetD8Async(a, 0, BYTES, r.stream));
    TRY(r.cu->cuStreamBeginCapture(r.stream, TD_CU_STREAM_CAPTURE_MODE_RELAXED));
    TRY(driver_add(&r, r.add, a, N, 1, r.stream));
    TRY(r.cu->cuMemcpyDtoDAsync(b, a, BYTES, r.stream));
    TRY(r.cu->cuEventRecord(fork, r.stream));
    TRY(r.cu->cuStreamWaitEvent(r.other, fork, 0));
    TRY(driver_add(&r, r.add, b, N, 10, r.other));
    TRY(driver_add(&r, r.add, a, N, 2, r.stream));
    TRY(r.cu->cuEventRecord(join, r.other));
    TRY(r.cu->cuStreamWaitEvent(r.stream, join, 0));
    TRY(r.cu->cuMemcpyDtoHAsync(to, a, BYTES, r.stream));
    TRY(r.cu->cuMemcpyDtoHAsync(to + N, b, BYTES, r.stream));
    TRY(r.cu->cuStreamEndCapture(r.stream, &g));
    TRY(r.cu->cuGraphInstantiate(&x, g, 0));
    for (uint32_t i = 0; i < 10; i++) {
        TRY(r.cu->cuGraphLaunch(x, r.stream));
        TRY(r.cu->cuStreamSynchronize(r.stream));
        assert_all(to, 3 * i + 3);
        assert_all(to + N, 3 * i + 11);
    }
    TRY(r.cu->cuGraphExecDestroy(x));
    TRY(r.cu->cuGraphDestroy(g));
    TRY(r.cu->cuEventDestroy(fork));
    TRY(r.cu->cuEventDestroy(join));
    TRY(r.cu->cuMemFree(a));
    TRY(r.cu->cuMemFree(b));
    TRY(r.cu->cuMemFreeHost(to));
}

/** A stream waits for a word of the host's, and the host for one of the stream's: by its own thread, in captures too. */
TEST(words) {
    AT_END(driver_close) driver_rig r;
    td_cu_graph                     g;
    td_cu_graph_exec                x;
    td_cu_event                     fork, join;
    driver_open(&r);
    td_cu_address     a = driver_alloc(&r, BYTES);
    uint32_t         *host = driver_pinned(&r, BYTES);
    _Atomic uint32_t *go = driver_pinned(&r, 4), *done = driver_pinned(&r, 4);
    _Atomic uint64_t *wide = driver_pinned(&r, 8);
    td_cu_address     word;
    TRY(r.cu->cuMemHostGetDevicePointer(&word, go, 0));
    TRY(r.cu->cuMemsetD8Async(a, 0, BYTES, r.stream));
    TRY(r.cu->cuStreamWaitValue32(r.stream, word, 5, TD_CU_STREAM_WAIT_VALUE_GEQ));
    TRY(driver_add(&r, r.add, a, N, 3, r.stream));
    TRY(r.cu->cuMemcpyDtoHAsync(host, a, BYTES, r.stream));
    TRY(r.cu->cuStreamWriteValue32(r.stream, (uintptr_t)done, 9, 0));
    usleep(2000);
    assert_int_equal(*done, 0);
    assert_int_equal(host[0], 0);
    *go = 6;
    while (*done != 9) usleep(10);
    assert_all(host, 3);
    /* >= is cyclic: 6 lies behind 0xfffffff0 */
    TRY(r.cu->cuStreamWaitValue32(r.stream, word, 0xfffffff0u, TD_CU_STREAM_WAIT_VALUE_GEQ));
    TRY(r.cu->cuStreamWaitValue32(r.stream, word, 2, TD_CU_STREAM_WAIT_VALUE_AND));
    TRY(r.cu->cuStreamWriteValue64(r.stream, (uintptr_t)wide, 0x100000000ull, 0));
    TRY(r.cu->cuStreamWaitValue64(r.stream, (uintptr_t)wide, 0x100000000ull, TD_CU_STREAM_WAIT_VALUE_EQ));
    TRY(r.cu->cuStreamSynchronize(r.stream));
    assert_true(*wide == 0x100000000ull);
    /* In a graph one branch waits for the host, which waits for the other branch. */
    fork = driver_event(&r);
    join = driver_event(&r);
    TRY(r.cu->cuStreamBeginCapture(r.stream, TD_CU_STREAM_CAPTURE_MODE_RELAXED));
    TRY(r.cu->cuEventRecord(fork, r.stream));
    TRY(r.cu->cuStreamWaitEvent(r.other, fork, 0));
    TRY(r.cu->cuStreamWriteValue32(r.other, (uintptr_t)done, 1, 0));
    TRY(r.cu->cuEventRecord(join, r.other));
    TRY(r.cu->cuStreamWaitValue32(r.stream, word, 1, TD_CU_STREAM_WAIT_VALUE_EQ));
    TRY(r.cu->cuStreamWriteValue32(r.stream, word, 0, 0)); /* for the next time */
    TRY(r.cu->cuStreamWaitEvent(r.stream, join, 0));
    TRY(driver_add(&r, r.add, a, N, 1, r.stream));
    TRY(r.cu->cuMemcpyDtoHAsync(host, a, BYTES, r.stream));
    TRY(r.cu->cuStreamEndCapture(r.stream, &g));
    TRY(r.cu->cuGraphInstantiate(&x, g, 0));
    for (uint32_t i = 0; i < 10; i++) {
        *done = *go = 0;
        TRY(r.cu->cuGraphLaunch(x, r.stream));
        while (!*done) usleep(10);
        *go = 1;
        TRY(r.cu->cuStreamSynchronize(r.stream));
        assert_all(host, 4 + i);
        assert_int_equal(*go, 0);
    }
    TRY(r.cu->cuGraphExecDestroy(x));
    TRY(r.cu->cuGraphDestroy(g));
    TRY(r.cu->cuEventDestroy(fork));
    TRY(r.cu->cuEventDestroy(join));
    setenv("TD_STANDIN_64_BIT", "0", 1); /* not every card has them */
    assert_int_equal(r.cu->cuStreamWriteValue64(r.stream, (uintptr_t)wide, 1, 0), TD_CUDA_ERROR_NOT_SUPPORTED);
    unsetenv("TD_STANDIN_64_BIT");
    TRY(r.cu->cuMemFree(a));
    TRY(r.cu->cuMemFreeHost(host));
    TRY(r.cu->cuMemFreeHost((void *)(uintptr_t)go));
    TRY(r.cu->cuMemFreeHost((void *)(uintptr_t)done));
    TRY(r.cu->cuMemFreeHost((void *)(uintptr_t)wide));
}

/** What is not the caller's fault is a status: no memory, a card that is not there, an image that is damaged or another's.
 */
TEST(statuses) {
    AT_END(driver_close) driver_rig r;
    td_cu_address                   a;
    td_cu_device                    card;
    td_cu_module                    m;
    td_cu_kernel                    k;
    size_t                          free_bytes, total, then;
    driver_open(&r);
    TRY(r.cu->cuMemGetInfo(&free_bytes, &total));
    assert_int_equal(r.cu->cuMemAlloc(&a, free_bytes + 1), TD_CUDA_ERROR_OUT_OF_MEMORY);
    TRY(r.cu->cuMemAlloc(&a, 4096));
    TRY(r.cu->cuMemGetInfo(&then, &total));
    assert_int_equal(then, free_bytes - 4096);
    TRY(r.cu->cuMemFree(a));
    assert_int_equal(r.cu->cuDeviceGet(&card, 2), TD_CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(r.cu->cuModuleLoadData(&m, DRIVER_IMAGE("80")), TD_CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_int_equal(r.cu->cuModuleLoadData(&m, "tandem cuda stand-in image\nsm_90\n"), TD_CUDA_ERROR_INVALID_IMAGE);
    assert_int_equal(r.cu->cuModuleLoadData(&m,
                                            "\x7f"
                                            "ELF"),
                     TD_CUDA_ERROR_INVALID_IMAGE);
    assert_int_equal(r.cu->cuModuleGetFunction(&k, r.module, "subtract"), TD_CUDA_ERROR_NOT_FOUND);
}

/** A kernel that fails takes its context with it: every later call says so, and everything can be given back. */
FIRST_TEST(failed_kernel) {
    AT_END(driver_close) driver_rig r;
    td_cu_event                     e;
    driver_open(&r);
    td_cu_address a = driver_alloc(&r, BYTES);
    uint32_t     *host = driver_pinned(&r, BYTES);
    setenv("TD_STANDIN_FAIL_OP", "2", 1);
    setenv("TD_STANDIN_STATUS", "214", 1);
    TRY(r.cu->cuMemsetD8Async(a, 0, BYTES, r.stream));
    TRY(r.cu->cuStreamSynchronize(r.stream));
    TRY(driver_add(&r, r.add, a, N, 1, r.stream));
    (void)r.cu->cuLaunchHostFunc(r.stream, doubles, NULL); /* is not called */
    assert_int_equal(r.cu->cuStreamSynchronize(r.stream), TD_CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_int_equal(r.cu->cuEventCreate(&e, 0), TD_CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_int_equal(driver_add(&r, r.add, a, N, 1, r.other), TD_CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_int_equal(r.cu->cuMemFree(a), TD_CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_int_equal(r.cu->cuMemFreeHost(host), TD_CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_int_equal(r.cu->cuModuleUnload(r.module), TD_CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_int_equal(r.cu->cuStreamDestroy(r.stream), TD_CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_int_equal(r.cu->cuStreamDestroy(r.other), TD_CUDA_ERROR_ECC_UNCORRECTABLE);
    TRY(r.cu->cuDevicePrimaryCtxRelease(0));
    unsetenv("TD_STANDIN_FAIL_OP");
    unsetenv("TD_STANDIN_STATUS");
    driver_open(&r); /* the card's next context is a new one */
}
