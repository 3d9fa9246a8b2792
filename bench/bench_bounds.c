/* Reading and multiplying as fast as the machine can, with the widest instructions that the CPU mask leaves. */
#include "bench/bench_bounds.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define READ_BYTES ((size_t)1 << 20) /* of an item */
#define PEAK_LOOPS 100000
#define PEAK_ITEMS 8 /* for each worker */

static volatile int sink;

double bench_now_s(const td_pool *pool) {
    struct timespec t;
    clock_gettime(td_pool_workers(pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *x, size_t n) {
    qsort(x, n, sizeof *x, rising);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* ---- memory ------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void read_avx512(const char *p) {
    __m512i s[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i < READ_BYTES; i += 256)
        for (size_t j = 0; j < 4; j++) {
            _mm_prefetch(p + i + 64 * j + 4096, _MM_HINT_T0);
            s[j] = _mm512_xor_si512(s[j], _mm512_load_si512(p + i + 64 * j));
        }
    sink = _mm512_reduce_add_epi32(_mm512_xor_si512(_mm512_xor_si512(s[0], s[1]), _mm512_xor_si512(s[2], s[3])));
}

__attribute__((target("avx2"))) static void read_avx2(const char *p) {
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t i = 0; i < READ_BYTES; i += 128) {
        _mm_prefetch(p + i + 4096, _MM_HINT_T0);
        _mm_prefetch(p + i + 4096 + 64, _MM_HINT_T0);
        for (size_t j = 0; j < 4; j++) s[j] = _mm256_xor_si256(s[j], _mm256_load_si256((const __m256i *)(p + i + 32 * j)));
    }
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    sink = _mm256_extract_epi32(s[0], 0) ^ _mm256_extract_epi32(s[0], 5);
}
#endif

static void read_plain(const char *p) {
    uint64_t s = 0, v;
    for (size_t i = 0; i < READ_BYTES; i += 8) {
        memcpy(&v, p + i, 8);
        s ^= v;
    }
    sink = (int)s;
}

static void read_item(void *ctx, uint32_t item, const td_worker *w) {
    const char *p = (const char *)ctx + item * READ_BYTES;
    (void)w;
#if defined(__x86_64__)
    if (td_cpu_features() & TD_CPU_AVX512) {
        read_avx512(p);
        return;
    }
    if (td_cpu_features() & TD_CPU_AVX2) {
        read_avx2(p);
        return;
    }
#endif
    read_plain(p);
}

double bench_read_bandwidth(td_pool *pool, const char *buffer, size_t bytes) {
    double t0 = bench_now_s(pool);
    td_pool_run(pool, read_item, (void *)buffer, (uint32_t)(bytes / READ_BYTES));
    return (double)bytes / (bench_now_s(pool) - t0);
}

/* ---- arithmetic -------------------------------------------------------------------------------- */

/*
 * Independent chains in named registers: a compiler is free to spill what intrinsics leave to it. 12 or 24 chains cover four or five
 * cycles of latency on two ports. The registers hold zeros, or small numbers that stay small.
 */
#define TWELVE(op, v, x)                                                                                                        \
    op v "0" x op v "1" x op v "2" x op v "3" x op v "4" x op v "5" x op v "6" x op v "7" x op v "8" x op v "9" x op v "10" x op v "11" x
#define MORE(op, v, x)                                                                                                          \
    op v "12" x op v "13" x op v "16" x op v "17" x op v "18" x op v "19" x op v "20" x op v "21" x op v "22" x op v "23" x      \
        op v "24" x op v "25" x

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) static double int8_avx512vnni(void) {
    for (int loop = 0; loop < PEAK_LOOPS; loop++)
        __asm__ volatile("vpxord %%zmm14, %%zmm14, %%zmm14\n" TWELVE("vpdpbusd %%zmm14, %%zmm14, ", "%%zmm", "\n")
                             MORE("vpdpbusd %%zmm14, %%zmm14, ", "%%zmm", "\n")::
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
                                   "xmm13", "xmm14", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25");
    return 24.0 * PEAK_LOOPS * 64 * 2;
}

__attribute__((target("avx2"))) static double int8_avxvnni(void) {
    for (int loop = 0; loop < PEAK_LOOPS; loop++)
        __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n" TWELVE("%{vex%} vpdpbusd %%ymm14, %%ymm14, ", "%%ymm", "\n")::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14");
    return 12.0 * PEAK_LOOPS * 32 * 2;
}

/* AVX2's way: a product of pairs and a sum in int16. What widens the sums comes on top, as seldom as a kernel can arrange. */
__attribute__((target("avx2"))) static double int8_avx2(void) {
    for (int loop = 0; loop < PEAK_LOOPS; loop++)
        __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n" TWELVE("vpmaddubsw %%ymm14, %%ymm14, %%ymm15\nvpaddw %%ymm14, %%ymm15, ", "%%ymm", "\n")::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");
    return 12.0 * PEAK_LOOPS * 32 * 2;
}

__attribute__((target("avx512f"))) static double f32_avx512(void) {
    for (int loop = 0; loop < PEAK_LOOPS; loop++)
        __asm__ volatile("vpxord %%zmm14, %%zmm14, %%zmm14\n" TWELVE("vfmadd231ps %%zmm14, %%zmm14, ", "%%zmm", "\n")
                             MORE("vfmadd231ps %%zmm14, %%zmm14, ", "%%zmm", "\n")::
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
                                   "xmm13", "xmm14", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25");
    return 24.0 * PEAK_LOOPS * 16 * 2;
}

__attribute__((target("avx2,fma"))) static double f32_avx2(void) {
    for (int loop = 0; loop < PEAK_LOOPS; loop++)
        __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n" TWELVE("vfmadd231ps %%ymm14, %%ymm14, ", "%%ymm", "\n")::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14");
    return 12.0 * PEAK_LOOPS * 8 * 2;
}
#endif

static double int8_operations(void) {
#if defined(__x86_64__)
    if (td_cpu_features() & TD_CPU_AVX512VNNI) return int8_avx512vnni();
    if (td_cpu_features() & TD_CPU_AVXVNNI) return int8_avxvnni();
    if (td_cpu_features() & TD_CPU_AVX2) return int8_avx2();
#endif
    return 0;
}

static double f32_operations(void) {
#if defined(__x86_64__)
    if (td_cpu_features() & TD_CPU_AVX512) return f32_avx512();
    if (td_cpu_features() & TD_CPU_AVX2) return f32_avx2();
#endif
    return 0;
}

typedef struct {
    double (*operations)(void);
    double done[PEAK_ITEMS * TD_POOL_WORKERS_MAX];
} peak_job;

static void peak_item(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    peak_job *j = ctx;
    j->done[item] = j->operations();
}

static double peak(td_pool *pool, double (*operations)(void)) {
    static peak_job job;
    uint32_t        n = PEAK_ITEMS * td_pool_workers(pool);
    job.operations = operations;
    double t0 = bench_now_s(pool), sum = 0;
    td_pool_run(pool, peak_item, &job, n);
    double t = bench_now_s(pool) - t0;
    for (uint32_t i = 0; i < n; i++) sum += job.done[i];
    return sum / t;
}

double bench_int8_peak(td_pool *pool) { return peak(pool, int8_operations); }
double bench_f32_peak(td_pool *pool) { return peak(pool, f32_operations); }
