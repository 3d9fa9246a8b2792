/* CUDA C++ on the CPU: its threads, barriers, warps and matrix instructions do what a card's do, and it finds the mistakes
 * that are seeded in tests/standins/cuda/emulation_kernels.cpp. */
#include <pthread.h>

#include "tests/npu/npu_test_util.h"
#include "tests/td_test.h"

#include "tests/standins/cuda/cuda_launch.h"

#define KERNEL(name) extern const td_cuda_kernel td_cuda_kernel_##name
KERNEL(emu_index);
KERNEL(emu_reverse);
KERNEL(emu_warp);
KERNEL(emu_mma);
KERNEL(emu_copies);
KERNEL(emu_no_wait);
KERNEL(emu_no_turn);
KERNEL(emu_half_a_barrier);
KERNEL(emu_two_barriers);
KERNEL(emu_half_a_shuffle);
KERNEL(emu_two_shuffles);
KERNEL(emu_some_lanes);
KERNEL(emu_crossed);
KERNEL(emu_beyond_static);
KERNEL(emu_beyond_dynamic);
KERNEL(emu_too_much_static);
KERNEL(emu_not_aligned);
KERNEL(emu_race);

static const uint64_t orders[] = {0, 1, 2, 3};
#define ORDERS (sizeof orders / sizeof orders[0])

static void fine(void) {
    if (td_cuda_emulated_mistake()) fail_msg("%s", td_cuda_emulated_mistake());
}

TEST(indices) {
    for (size_t o = 0; o < ORDERS; o++) {
        uint32_t out[24 * 64] = {0}, *at = out;
        td_cuda_emulated_order(orders[o]);
        td_cuda_kernel_emu_index.launch(&(td_cuda_launch){{2, 3, 4}, {8, 4, 2}, 0, 0}, (void *[]){&at});
        fine();
        for (uint32_t i = 0; i < 24 * 64; i++) assert_int_equal(out[i], i / 64 * 1000 + i % 64);
    }
}

TEST(barriers_and_shared_memory) {
    for (size_t o = 0; o < ORDERS; o++) {
        int      in[3 * 96], out[3 * 96], *from = in, *to = out;
        uint32_t n = 96;
        for (int i = 0; i < 3 * 96; i++) in[i] = i * i;
        td_cuda_emulated_order(orders[o]);
        td_cuda_kernel_emu_reverse.launch(&(td_cuda_launch){{3, 1, 1}, {96, 1, 1}, 96 * sizeof(int), 0},
                                          (void *[]){&from, &to, &n});
        fine();
        for (int b = 0; b < 3; b++) {
            int sum = 0;
            for (int i = 0; i < 96; i++) sum += in[b * 96 + i];
            for (int i = 0; i < 96; i++) assert_int_equal(out[b * 96 + i], in[b * 96 + 95 - i] + sum);
        }
    }
}

TEST(warps) {
    for (size_t o = 0; o < ORDERS; o++) {
        uint64_t in[64], out[64 * 4], *from = in, *to = out;
        for (uint64_t i = 0; i < 64; i++) in[i] = i << 40 | i;
        td_cuda_emulated_order(orders[o]);
        td_cuda_kernel_emu_warp.launch(&(td_cuda_launch){{1, 1, 1}, {64, 1, 1}, 0, 0}, (void *[]){&from, &to});
        fine();
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t warp = i / 32 * 32, lane = i % 32;
            assert_int_equal(out[i * 4], in[warp + (lane ^ 5)]);
            assert_int_equal(out[i * 4 + 1], in[lane + 3 < 32 ? i + 3 : i]);
            assert_int_equal(out[i * 4 + 2], in[warp + 7]);
            assert_int_equal(out[i * 4 + 3], 0xaaaaaaaa);
        }
    }
}

TEST(matrix_instructions) {
    rnd                  r = rnd_open("mma");
    _Alignas(16) int8_t  a[16 * 32], b[8 * 32];
    _Alignas(16) td_bf16 fa[16 * 16], fb[8 * 16];
    int                  d[256], *pd = d;
    float                fd[128], *pfd = fd;
    void                *pa = a, *pb = b, *pfa = fa, *pfb = fb;
    for (size_t i = 0; i < sizeof a; i++) a[i] = (int8_t)rnd_u64(&r);
    for (size_t i = 0; i < sizeof b; i++) b[i] = (int8_t)rnd_u64(&r);
    for (size_t i = 0; i < 256; i++) fa[i] = td_f32_to_bf16(rnd_real(&r));
    for (size_t i = 0; i < 128; i++) fb[i] = td_f32_to_bf16(rnd_real(&r));
    td_cuda_kernel_emu_mma.launch(&(td_cuda_launch){{1, 1, 1}, {32, 1, 1}, 0, 0},
                                  (void *[]){&pa, &pb, &pd, &pfa, &pfb, &pfd});
    fine();
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            int   want = 0;
            float f = 0;
            for (int k = 0; k < 32; k++) want += a[i * 32 + k] * b[j * 32 + k];
            for (int k = 0; k < 16; k++) f = fmaf(td_bf16_to_f32(fa[i * 16 + k]), td_bf16_to_f32(fb[j * 16 + k]), f);
            assert_int_equal(d[i * 8 + j], want);
            assert_int_equal(d[128 + i * 8 + j], want);
            assert_true(fd[i * 8 + j] == f);
        }
}

TEST(copies) {
    for (size_t o = 0; o < ORDERS; o++) {
        _Alignas(16) int in[64 * 4];
        int              out[64 * 8], *from = in, *to = out;
        for (int i = 0; i < 64 * 4; i++) in[i] = i + 1;
        td_cuda_emulated_order(orders[o]);
        td_cuda_kernel_emu_copies.launch(&(td_cuda_launch){{1, 1, 1}, {64, 1, 1}, 0, 0}, (void *[]){&from, &to});
        fine();
        for (int i = 0; i < 64 * 8; i++) assert_int_equal(out[i], i % 8 < 4 ? in[i / 8 * 4 + i % 8] : 0);
    }
}

TEST(mistakes) {
    static const struct {
        const td_cuda_kernel *kernel;
        size_t                shared_bytes;
        unsigned              threads;
        const char           *says;
    } cases[] = {
        {&td_cuda_kernel_emu_half_a_barrier, 0, 64, "has returned"},
        {&td_cuda_kernel_emu_two_barriers, 0, 64, "thread 0 is at the barrier"},
        {&td_cuda_kernel_emu_half_a_shuffle, 0, 64, "waits at __shfl_xor_sync"},
        {&td_cuda_kernel_emu_two_shuffles, 0, 64, "where other lanes are at __shfl"},
        {&td_cuda_kernel_emu_some_lanes, 0, 64, "names the lanes 0000ffff"},
        {&td_cuda_kernel_emu_crossed, 0, 64, "waits at"},
        {&td_cuda_kernel_emu_beyond_static, 0, 64, "element 63 of an array of 63"},
        {&td_cuda_kernel_emu_beyond_dynamic, 64 * sizeof(int), 64, "element 64 of an array of 64"},
        {&td_cuda_kernel_emu_too_much_static, 0, 64, "static shared arrays of more than 49152 bytes"},
        {&td_cuda_kernel_emu_not_aligned, 0, 64, "not aligned"},
        {&td_cuda_kernel_emu_no_wait, 0, 64, "without having waited for its copies"},
        {&td_cuda_kernel_emu_race, 0, 96, "blocks of 96 x 1 x 1 threads"},
        {&td_cuda_kernel_emu_race, 0, 40, "blocks of 40 x 1 x 1 threads"},
        {&td_cuda_kernel_emu_race, 0, 0, "blocks of 0 x 1 x 1 threads"},
        {&td_cuda_kernel_emu_race, 228 << 10, 64, "dynamic shared memory"},
    };
    for (size_t o = 0; o < ORDERS; o++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            _Alignas(16) int out[96] = {0};
            int             *at = out;
            td_cuda_emulated_order(orders[o]);
            cases[i].kernel->launch(&(td_cuda_launch){{2, 1, 1}, {cases[i].threads, 1, 1}, cases[i].shared_bytes, 0},
                                    (void *[]){&at});
            const char *said = td_cuda_emulated_mistake();
            if (!said || !strstr(said, cases[i].says) || !strstr(said, cases[i].kernel->name))
                fail_msg("%s with order %zu: \"%s\"", cases[i].kernel->name, o, said ? said : "");
        }
    td_cuda_kernel_emu_race.launch(&(td_cuda_launch){{0, 1, 1}, {64, 1, 1}, 0, 0}, (void *[]){&(int *){NULL}});
    assert_non_null(strstr(td_cuda_emulated_mistake(), "a grid of 0 x 1 x 1"));
}

/* Of a launch that may begin early; of others nobody has to wait. */
TEST(a_thread_returns_before_its_turn) {
    int array[64] = {0}, *at = array;
    for (int is_early = 0; is_early < 2; is_early++) {
        td_cuda_kernel_emu_no_turn.launch(&(td_cuda_launch){{1, 1, 1}, {64, 1, 1}, 0, is_early}, (void *[]){&at});
        const char *said = td_cuda_emulated_mistake();
        assert_int_equal(said && strstr(said, "thread 63 returns without having taken its turn"), is_early);
    }
}

/* A barrier that is missing shows as results that differ with the order. */
TEST(a_race_depends_on_the_order) {
    int first[64], again[64], *at = first;
    td_cuda_emulated_order(0);
    td_cuda_kernel_emu_race.launch(&(td_cuda_launch){{1, 1, 1}, {64, 1, 1}, 0, 0}, (void *[]){&at});
    fine();
    at = again;
    td_cuda_emulated_order(1);
    td_cuda_kernel_emu_race.launch(&(td_cuda_launch){{1, 1, 1}, {64, 1, 1}, 0, 0}, (void *[]){&at});
    fine();
    assert_memory_not_equal(first, again, sizeof first);
}

static void *there(const void *device) {
    return (char *)device - 64;
}

/* Pointers go through the reach, numbers do not; a record says how large the arguments are. */
TEST(arguments) {
    int      in[32], out[32], *from = (int *)((char *)in + 64), *to = (int *)((char *)out + 64);
    uint32_t n = 32;
    for (int i = 0; i < 32; i++) in[i] = i;
    td_cuda_emulated_reach(there);
    td_cuda_emulated_order(0);
    td_cuda_kernel_emu_reverse.launch(&(td_cuda_launch){{1, 1, 1}, {32, 1, 1}, 128, 0}, (void *[]){&from, &to, &n});
    td_cuda_emulated_reach(NULL);
    fine();
    for (int i = 0; i < 32; i++) assert_int_equal(out[i], 31 - i + 496);
    assert_int_equal(td_cuda_kernel_emu_reverse.n_args, 3);
    assert_int_equal(td_cuda_kernel_emu_reverse.arg_bytes[1], sizeof(int *));
    assert_int_equal(td_cuda_kernel_emu_reverse.arg_bytes[2], 4);
    assert_int_equal(td_cuda_kernel_emu_reverse.max_threads, 256);
}

static void *launch_many(void *failed) {
    for (int i = 0; i < 50; i++) {
        int      in[64], out[64], *from = in, *to = out;
        uint32_t n = 64;
        for (int j = 0; j < 64; j++) in[j] = j;
        td_cuda_kernel_emu_reverse.launch(&(td_cuda_launch){{1, 1, 1}, {64, 1, 1}, 256, 0}, (void *[]){&from, &to, &n});
        for (int j = 0; j < 64; j++)
            if (td_cuda_emulated_mistake() || out[j] != 63 - j + 2016) *(bool *)failed = true;
    }
    return NULL;
}

TEST(threads_launch_apart) {
    pthread_t thread[4];
    bool      failed[4] = {0};
    td_cuda_emulated_order(5);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, launch_many, &failed[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_false(failed[i]);
    }
}
