/* Reading and multiplying as fast as the machine can, with the widest instructions that the CPU mask leaves. */
#include "core/roofline.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/amx.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/mem.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PEAK_LOOPS   100000
#define PEAK_ITEMS   8 /* for each worker */
#define PLAIN_VALUES 4096
#define PLAIN_LOOPS  500
#define MEASURE_BYTES_MIN ((size_t)128 << 20)
#define MEASURE_BYTES_MAX ((size_t)512 << 20) /* of a subpool */
#define MEASURE_ROUNDS    3
#define MEASURE_FILL_S    0.05 /* the buffer ends where this time does: fresh pages may come slowly (a virtual machine's first use of them) */
#define MEASURE_S         0.12 /* no further round after so long: a busy machine must not delay a start for long */
#define FILL_BLOCKS       16u

static _Thread_local volatile int sink;

struct td_roofline {
    td_pool *pool;
    size_t   bytes, filled;                 /* of a subpool's buffer; how much of it was written, and is read */
    char    *buffer[TD_POOL_SUBPOOLS_MAX];  /* on its node */
    double (*operations)(void);             /* of the peak being measured: one item's worth; how many they were */
    double  *done;                          /* [items] */
};

static double clock_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double wall_s(void) { return clock_s(CLOCK_MONOTONIC); }

double td_roofline_now_s(const td_pool *pool) {
    return td_pool_workers(pool) == 1 ? clock_s(CLOCK_THREAD_CPUTIME_ID) : wall_s();
}

/* ---- memory ------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void read_avx512(const char *p) {
    __m512i s[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i < TD_ROOFLINE_BLOCK; i += 256)
        for (size_t j = 0; j < 4; j++) {
            _mm_prefetch(p + i + 64 * j + 4096, _MM_HINT_T0);
            s[j] = _mm512_xor_si512(s[j], _mm512_load_si512(p + i + 64 * j));
        }
    sink = _mm512_reduce_add_epi32(_mm512_xor_si512(_mm512_xor_si512(s[0], s[1]), _mm512_xor_si512(s[2], s[3])));
}

__attribute__((target("avx2"))) static void read_avx2(const char *p) {
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t i = 0; i < TD_ROOFLINE_BLOCK; i += 128) {
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
    for (size_t i = 0; i < TD_ROOFLINE_BLOCK; i += 8) {
        memcpy(&v, p + i, 8);
        s ^= v;
    }
    sink = (int)s;
}

void td_roofline_read_block(const char *p) {
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

static void read_item(void *ctx, uint32_t item, const td_worker *w) {
    const td_roofline *r = ctx;
    td_roofline_read_block(r->buffer[w->subpool] + item * TD_ROOFLINE_BLOCK);
}

/* A page that was never written is the system's page of zeros, which is in the cache. */
static void fill_item(void *ctx, uint32_t item, const td_worker *w) {
    const td_roofline *r = ctx;
    memset(r->buffer[w->subpool] + r->filled + item * TD_ROOFLINE_BLOCK, 1, TD_ROOFLINE_BLOCK);
}

double td_roofline_read(td_roofline *r) {
    double t0 = td_roofline_now_s(r->pool);
    td_pool_run_each(r->pool, read_item, r, (uint32_t)(r->filled / TD_ROOFLINE_BLOCK));
    return (double)r->filled * td_pool_subpools(r->pool) / (td_roofline_now_s(r->pool) - t0);
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
/* name(): run `op` on every register, and tell the operations: `ops` for an instruction. */
#define ZMM_PEAK(name, isa, op, ops)                                                                                             \
    __attribute__((target(isa))) static double name(void) {                                                                      \
        for (int loop = 0; loop < PEAK_LOOPS; loop++)                                                                            \
            __asm__ volatile("vpxord %%zmm14, %%zmm14, %%zmm14\n" TWELVE(op " %%zmm14, %%zmm14, ", "%%zmm", "\n")                \
                                 MORE(op " %%zmm14, %%zmm14, ", "%%zmm", "\n")::                                                 \
                                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",  \
                                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", \
                                       "xmm22", "xmm23", "xmm24", "xmm25");                                                      \
        return 24.0 * PEAK_LOOPS * (ops);                                                                                        \
    }
#define YMM_PEAK(name, isa, op, ops)                                                                                             \
    __attribute__((target(isa))) static double name(void) {                                                                      \
        for (int loop = 0; loop < PEAK_LOOPS; loop++)                                                                            \
            __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n" TWELVE(op, "%%ymm", "\n")::                                     \
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",      \
                                   "xmm11", "xmm14", "xmm15");                                                                   \
        return 12.0 * PEAK_LOOPS * (ops);                                                                                        \
    }

ZMM_PEAK(int8_avx512vnni, "avx512f,avx512vnni", "vpdpbusd", 64 * 2)
ZMM_PEAK(bf16_avx512, "avx512f,avx512bf16", "vdpbf16ps", 32 * 2)
ZMM_PEAK(f32_avx512, "avx512f", "vfmadd231ps", 16 * 2)
YMM_PEAK(int8_avxvnni, "avx2", "%{vex%} vpdpbusd %%ymm14, %%ymm14, ", 32 * 2)
/* AVX2's way: a product of pairs and a sum in int16. What widens the sums comes on top, as seldom as a kernel can arrange. */
YMM_PEAK(int8_avx2, "avx2", "vpmaddubsw %%ymm14, %%ymm14, %%ymm15\nvpaddw %%ymm14, %%ymm15, ", 32 * 2)
YMM_PEAK(f32_avx2, "avx2,fma", "vfmadd231ps %%ymm14, %%ymm14, ", 8 * 2)

/* Four tiles of sums, which cover a product's 52 cycles with its 16 (Intel's optimization manual). */
static double int8_amx(void) {
    td_amx_config whole = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        whole.rows[t] = TD_AMX_ROWS;
        whole.bytes[t] = TD_AMX_BYTES;
    }
    td_amx_configure(&whole);
    td_amx_zero(0);
    td_amx_zero(1);
    td_amx_zero(2);
    td_amx_zero(3);
    td_amx_zero(4);
    td_amx_zero(5);
    td_amx_zero(6);
    td_amx_zero(7);
    for (int loop = 0; loop < PEAK_LOOPS / 4; loop++) {
        td_amx_dot_u8(0, 4, 6);
        td_amx_dot_u8(1, 4, 7);
        td_amx_dot_u8(2, 5, 6);
        td_amx_dot_u8(3, 5, 7);
    }
    td_amx_release();
    return (PEAK_LOOPS / 4) * 4.0 * 2 * TD_AMX_ROWS * 16 * TD_AMX_BYTES;
}
#endif

/* The scalar tier: what the compiler makes of a plain loop over the first cache level. */
static double int8_plain(void) {
    static const int8_t x[PLAIN_VALUES], y[PLAIN_VALUES];
    for (int loop = 0; loop < PLAIN_LOOPS; loop++) {
        const int8_t *a = x, *b = y;
        int32_t       sum = 0;
        __asm__ volatile("" : "+r"(a), "+r"(b));
        for (size_t i = 0; i < PLAIN_VALUES; i++) sum += a[i] * b[i];
        sink = sum;
    }
    return 2.0 * PLAIN_LOOPS * PLAIN_VALUES;
}

static double f32_plain(void) {
    static const float x[PLAIN_VALUES], y[PLAIN_VALUES];
    for (int loop = 0; loop < PLAIN_LOOPS; loop++) {
        const float *a = x, *b = y;
        float        sum[16] = {0};
        __asm__ volatile("" : "+r"(a), "+r"(b));
        for (size_t i = 0; i < PLAIN_VALUES; i += 16)
            for (size_t j = 0; j < 16; j++) sum[j] += a[i + j] * b[i + j];
        for (size_t j = 1; j < 16; j++) sum[0] += sum[j];
        sink = (int)sum[0];
    }
    return 2.0 * PLAIN_LOOPS * PLAIN_VALUES;
}

static double int8_operations(void) {
#if defined(__x86_64__)
    if (td_cpu_features() & TD_CPU_AMXINT8) return int8_amx();
    if (td_cpu_features() & TD_CPU_AVX512VNNI) return int8_avx512vnni();
    if (td_cpu_features() & TD_CPU_AVXVNNI) return int8_avxvnni();
    if (td_cpu_features() & TD_CPU_AVX2) return int8_avx2();
#endif
    return int8_plain();
}

static double f32_operations(void) {
#if defined(__x86_64__)
    if (td_cpu_features() & TD_CPU_AVX512) return f32_avx512();
    if (td_cpu_features() & TD_CPU_AVX2) return f32_avx2();
#endif
    return f32_plain();
}

static void peak_item(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    td_roofline *r = ctx;
    r->done[item] = r->operations();
}

static double peak(td_roofline *r, double (*operations)(void)) {
    uint32_t n = PEAK_ITEMS * td_pool_workers(r->pool);
    r->operations = operations;
    double t0 = td_roofline_now_s(r->pool), sum = 0;
    td_pool_run(r->pool, peak_item, r, n);
    double t = td_roofline_now_s(r->pool) - t0;
    for (uint32_t i = 0; i < n; i++) sum += r->done[i];
    return sum / t;
}

double td_roofline_int8(td_roofline *r) { return peak(r, int8_operations); }
double td_roofline_f32(td_roofline *r) { return peak(r, f32_operations); }

double td_roofline_bf16(td_roofline *r) {
#if defined(__x86_64__)
    if (td_cpu_features() & TD_CPU_AVX512BF16) return peak(r, bf16_avx512);
#endif
    (void)r;
    return 0;
}

/* ---- the whole --------------------------------------------------------------------------------- */

static td_status open_unfilled(td_pool *pool, size_t bytes, td_roofline **out, td_error *err) {
    uint32_t     n = td_pool_subpools(pool);
    td_roofline *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return td_fail(err, TD_ENOMEM, "out of memory to measure the machine");
    r->pool = pool;
    r->bytes = td_round_up(bytes / n, TD_ROOFLINE_BLOCK);
    r->done = calloc((size_t)PEAK_ITEMS * td_pool_workers(pool), sizeof *r->done);
    td_status st = r->done ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory to measure the machine");
    for (uint32_t s = 0; s < n && st == TD_OK; s++) {
        void *p;
        st = td_mem_map(r->bytes, td_pool_node(pool, s), &p, err);
        if (st == TD_OK) r->buffer[s] = p;
    }
    if (st != TD_OK) {
        td_roofline_close(r);
        return st;
    }
    *out = r;
    return TD_OK;
}

/* Writes the buffers, piece by piece, up to their end, or, from min_bytes of each on, for so long. */
static void fill(td_roofline *r, size_t min_bytes, double seconds) {
    double end_s = wall_s() + seconds;
    while (r->filled < r->bytes && (r->filled < min_bytes || wall_s() < end_s)) {
        size_t   left = (r->bytes - r->filled) / TD_ROOFLINE_BLOCK;
        uint32_t n = left < FILL_BLOCKS ? (uint32_t)left : FILL_BLOCKS;
        td_pool_run_each(r->pool, fill_item, r, n);
        r->filled += n * TD_ROOFLINE_BLOCK;
    }
}

td_status td_roofline_open(td_pool *pool, size_t bytes, td_roofline **out, td_error *err) {
    TD_TRY(open_unfilled(pool, bytes, out, err));
    fill(*out, (*out)->bytes, 0);
    return TD_OK;
}

void td_roofline_close(td_roofline *r) {
    if (!r) return;
    for (uint32_t s = 0; s < TD_POOL_SUBPOOLS_MAX; s++) td_mem_unmap(r->buffer[s], r->bytes);
    free(r->done);
    free(r);
}

static size_t measure_bytes(const td_pool *pool, const td_machine *m) {
    uint64_t bytes = 2 * m->l3_bytes, most = MEASURE_BYTES_MAX * td_pool_subpools(pool);
    if (bytes < MEASURE_BYTES_MIN) bytes = MEASURE_BYTES_MIN;
    if (bytes > most) bytes = most;
    return (size_t)(bytes < m->available_bytes / 8 ? bytes : m->available_bytes / 8);
}

static double larger(double a, double b) { return a > b ? a : b; }

td_status td_roofline_measure(td_pool *pool, const td_machine *m, td_bounds *out, td_error *err) {
    td_roofline *r;
    cpu_set_t    before;
    bool         pinned = pthread_getaffinity_np(pthread_self(), sizeof before, &before) == 0;
    *out = (td_bounds){0};
    if (pinned) td_pool_pin_caller(pool);
    double    start_s = wall_s();
    td_status st = open_unfilled(pool, measure_bytes(pool, m), &r, err);
    if (st == TD_OK) fill(r, MEASURE_BYTES_MIN / td_pool_subpools(pool), MEASURE_FILL_S);
    for (int i = 0; i < MEASURE_ROUNDS && st == TD_OK && (i == 0 || wall_s() < start_s + MEASURE_S); i++) {
        out->read_bytes_per_s = larger(out->read_bytes_per_s, td_roofline_read(r));
        out->int8_ops_per_s = larger(out->int8_ops_per_s, td_roofline_int8(r));
        out->f32_ops_per_s = larger(out->f32_ops_per_s, td_roofline_f32(r));
    }
    if (st == TD_OK) td_roofline_close(r);
    if (pinned) pthread_setaffinity_np(pthread_self(), sizeof before, &before);
    return st;
}
