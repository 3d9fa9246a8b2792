/* The loops about the machine, of each instruction set: checksums, reading memory, and multiply-adds from registers. */
#include "kernels/machine/machine_loops.h"

#include <string.h>

#include "core/machine/cpu.h"
#include "kernels/this_set.h"
#include "kernels/vec/fetch.h"

#if TD_FOR_SCALAR || TD_FOR_AVX2 || TD_FOR_AVX512

/* ---- checksums ------------------------------------------------------------------------------- */

#define XXH_INLINE_ALL
#include <xxhash.h>

/*
 * The library's own copy of XXH3 is compiled for SSE2 and prefetches 384 bytes ahead. Compiled here for wider vectors, and
 * with blocks fetched further ahead, it comes near the memory's speed.
 */
#define BLOCK_BYTES ((size_t)1024)
#define AHEAD_BYTES ((size_t)8192)

uint64_t TD_OF_SET(checksum)(const void *data, size_t bytes) {
    const char  *p = data;
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (size_t at = 0, block; at < bytes; at += block) {
        block = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        for (size_t line = 0; line < BLOCK_BYTES && at + AHEAD_BYTES + line < bytes; line += 64)
            __builtin_prefetch(p + at + AHEAD_BYTES + line);
        XXH3_64bits_update(&state, p + at, block);
    }
    return XXH3_64bits_digest(&state);
}

#endif

/* ---- multiply-adds from registers: what a set can do at most --------------------------------- */

#define PEAK_LOOPS 100000

/*
 * Independent chains in named registers: a compiler is free to spill what intrinsics leave to it. 12 or 24 chains cover four
 * or five cycles of latency on two ports. The registers hold zeros, or small numbers that stay small.
 */
#define TWELVE(op, v, x)                                                                                               \
    op v "0" x op v "1" x op v "2" x op v "3" x op v "4" x op v "5" x op v "6" x op v "7" x op v "8" x op v "9" x op v \
         "10" x op                                                                                                   v "11" x
#define MORE(op, v, x)                                                                                               \
    op v "12" x op v "13" x op v "16" x op v "17" x op v "18" x op v "19" x op v "20" x op v "21" x op v "22" x op v \
         "23" x op v "24" x op v "25" x

/* name(): run `op` on every register, and tell the operations: `ops` for an instruction. */
#define ZMM_PEAK(name, op, ops)                                                                                         \
    double name(void) {                                                                                                 \
        for (int loop = 0; loop < PEAK_LOOPS; loop++)                                                                   \
            __asm__ volatile("vpxord %%zmm14, %%zmm14, %%zmm14\n" TWELVE(op " %%zmm14, %%zmm14, ", "%%zmm", "\n")       \
                                 MORE(op " %%zmm14, %%zmm14, ", "%%zmm", "\n")::                                        \
                                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",  \
                                       "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm16", "xmm17", "xmm18", "xmm19", \
                                       "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25");                           \
        return 24.0 * PEAK_LOOPS * (ops);                                                                               \
    }
#define YMM_PEAK(name, op, ops)                                                                                             \
    double name(void) {                                                                                                     \
        for (int loop = 0; loop < PEAK_LOOPS; loop++)                                                                       \
            __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n" TWELVE(op, "%%ymm", "\n")::                                \
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                                   "xmm11", "xmm14", "xmm15");                                                              \
        return 12.0 * PEAK_LOOPS * (ops);                                                                                   \
    }

/* NEON_PEAK(name, operation, arrangement, operands, ops): the same of aarch64, in 24 chains. v30 and v31 are multiplied. */
#define EIGHT(op, to, from, a, b, c, d, e, f, g, h)                                                                      \
    op " v" #a to from op " v" #b to from op " v" #c to from op " v" #d to from op " v" #e to from op " v" #f to from op \
       " v" #g to from op " v" #h to from
#define NEON_PEAK(name, op, to, from, ops)                                                                                  \
    double name(void) {                                                                                                     \
        for (int loop = 0; loop < PEAK_LOOPS; loop++)                                                                       \
            __asm__ volatile(                                                                                               \
                "movi v30.16b, #0\n\tmovi v31.16b, #0\n\t" EIGHT(op, to, from, 0, 1, 2, 3, 4, 5, 6, 7)                      \
                    EIGHT(op, to, from, 8, 9, 10, 11, 12, 13, 14, 15) EIGHT(op, to, from, 16, 17, 18, 19, 20, 21, 22, 23):: \
                        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",    \
                          "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v30", "v31");                     \
        return 24.0 * PEAK_LOOPS * (ops);                                                                                   \
    }

#if TD_FOR_AVXVNNI
YMM_PEAK(td_int8_peak_avxvnni, "%{vex%} vpdpbusd %%ymm14, %%ymm14, ", 32 * 2)
#elif TD_FOR_AVX512VNNI
ZMM_PEAK(td_int8_peak_avx512vnni, "vpdpbusd", 64 * 2)
#elif TD_FOR_AMX
#include "kernels/vec/amx.h"

/* Four tiles of sums, which cover a product's 52 cycles with its 16 (Intel's optimization manual). */
double td_int8_peak_amx(void) {
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
        td_amx_dot_su(0, 4, 6);
        td_amx_dot_su(1, 4, 7);
        td_amx_dot_su(2, 5, 6);
        td_amx_dot_su(3, 5, 7);
    }
    td_amx_release();
    return (PEAK_LOOPS / 4) * 4.0 * 2 * TD_AMX_ROWS * 16 * TD_AMX_BYTES;
}
#elif TD_FOR_DOTPROD
NEON_PEAK(td_int8_peak_dotprod, "sdot", ".4s", ", v30.16b, v31.16b\n\t", 16 * 2)
#elif TD_FOR_I8MM
NEON_PEAK(td_int8_peak_i8mm, "smmla", ".4s", ", v30.16b, v31.16b\n\t", 32 * 2)
#else

/* ---- the sets that have reading and floats of their own, too --------------------------------- */

/** Where results go that nobody wants, so that what made them stays. */
static _Thread_local volatile int sink;

#if TD_FOR_SCALAR

/* Plain loops, and what the compiler makes of them. */
#define PLAIN_VALUES 4096 /* in the first level of the cache */
#define PLAIN_LOOPS 500

void td_read_scalar(const char *p, size_t bytes) {
    uint64_t s = 0, v;
    for (size_t i = 0; i < bytes; i += 8) {
        memcpy(&v, p + i, 8);
        s ^= v;
    }
    sink = (int)s;
}

double td_int8_peak_scalar(void) {
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

double td_f32_peak_scalar(void) {
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

double td_bf16_peak_none(void) {
    return 0;
}

#elif TD_FOR_AVX2
#include <immintrin.h>

void td_read_avx2(const char *p, size_t bytes) {
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t i = 0; i < bytes; i += 128) {
        fetch_l1(p + i + 4096);
        fetch_l1(p + i + 4096 + 64);
        for (size_t j = 0; j < 4; j++) s[j] = _mm256_xor_si256(s[j], _mm256_load_si256((const __m256i *)(p + i + 32 * j)));
    }
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    sink = _mm256_extract_epi32(s[0], 0) ^ _mm256_extract_epi32(s[0], 5);
}

/* AVX2's way: a product of pairs and a sum in int16. What widens the sums comes on top, as seldom as a kernel can arrange.
 */
YMM_PEAK(td_int8_peak_avx2, "vpmaddubsw %%ymm14, %%ymm14, %%ymm15\nvpaddw %%ymm14, %%ymm15, ", 32 * 2)
YMM_PEAK(td_f32_peak_avx2, "vfmadd231ps %%ymm14, %%ymm14, ", 8 * 2)

#elif TD_FOR_AVX512
#include <immintrin.h>

void td_read_avx512(const char *p, size_t bytes) {
    __m512i s[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i < bytes; i += 256)
        for (size_t j = 0; j < 4; j++) {
            fetch_l1(p + i + 64 * j + 4096);
            s[j] = _mm512_xor_si512(s[j], _mm512_load_si512(p + i + 64 * j));
        }
    sink = _mm512_reduce_add_epi32(_mm512_xor_si512(_mm512_xor_si512(s[0], s[1]), _mm512_xor_si512(s[2], s[3])));
}

ZMM_PEAK(td_f32_peak_avx512, "vfmadd231ps", 16 * 2)
static ZMM_PEAK(bf16_peak, "vdpbf16ps", 32 * 2)

    double td_bf16_peak_avx512(void) {
    return td_cpu_features() & TD_CPU_AVX512BF16 ? bf16_peak() : 0;
}

#else /* NEON */
#include <arm_neon.h>

#define AHEAD_BYTES 4096

void td_read_neon(const char *p, size_t bytes) {
    const uint8_t *from = (const uint8_t *)p;
    uint8x16_t     s[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
    for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(from + i + AHEAD_BYTES);
        for (size_t j = 0; j < 4; j++) s[j] = veorq_u8(s[j], vld1q_u8(from + i + 16 * j));
    }
    sink = vgetq_lane_s32(vreinterpretq_s32_u8(veorq_u8(veorq_u8(s[0], s[1]), veorq_u8(s[2], s[3]))), 0);
}

/* NEON's way: products in int16. What widens the sums comes on top, as seldom as a kernel can arrange. */
NEON_PEAK(td_int8_peak_neon, "smlal", ".8h", ", v30.8b, v31.8b\n\t", 8 * 2)
NEON_PEAK(td_f32_peak_neon, "fmla", ".4s", ", v30.4s, v31.4s\n\t", 4 * 2)

#endif

#endif
