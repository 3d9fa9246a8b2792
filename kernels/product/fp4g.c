/* fp4 in groups: the kernels of all instruction sets. */
#include "kernels/vec/vec.h"

#include "kernels/product/group_layout.h"
#include "kernels/product/tile_kernels.h"

#if TD_FOR_AVX2 || TD_FOR_AVXVNNI || TD_FOR_AVX512VNNI || TD_FOR_AMX
/*
 * Codes of e2m1 for the instructions of x86-64, which take u8 x s8: twice the value and 16 more, so in [4, 28], by a byte
 * shuffle. 16, and not 12, as that is a power of two times the 8 of the groups' sums; offsets on the activations' side would
 * need sums of the weights beside every scale. A sum over a group of 32 stays below 28 * 127 * 32 < 2^17.
 */
#define CHUNK 16
#define SUM_SHIFT 1
#define UNIT 0.5f

static const uint8_t CODES[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
#endif

#if TD_FOR_SCALAR

/* The reference: the tile layout of the 256-bit kernels, one multiply-add at a time. */
#include "kernels/product/gemm_end.inc"

#define HALF 8
#define TILES td_fp4g_16x4

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    const td_gemm_groups *groups = &a->groups;
    const size_t          size = groups->size, block = block_k(groups);
    for (size_t r = 0; r < a->m; r++) {
        const int8_t  *x = a->rows[r].x;
        const float   *factor = a->tile;
        const uint8_t *in = (const uint8_t *)a->tile + head_bytes(2 * HALF, a->k, groups);
        float          acc[2 * HALF] = {0};
        for (size_t k0 = 0; k0 < a->k;) {
            const uint8_t *scales = in;
            in += block / size * 2 * HALF;
            for (size_t block_end = k0 + block; k0 < block_end; scales += 2 * HALF) {
                int32_t sum[2 * HALF] = {0};
                for (size_t group_end = k0 + size; k0 < group_end; k0 += 4)
                    for (size_t i = 0; i < HALF; i++)
                        for (size_t b = 0; b < 4; b++, in++) {
                            sum[i] += td_e2m1_twice(*in & 15) * x[k0 + b];
                            sum[HALF + i] += td_e2m1_twice(*in >> 4) * x[k0 + b];
                        }
                for (size_t i = 0; i < 2 * HALF; i++)
                    acc[i] = fmaf((float)sum[i], scale_at(scales, i, groups->scale_dtype), acc[i]);
            }
        }
        for (size_t i = 0; i < 2 * HALF; i++) acc[i] = acc[i] * (factor[i] * 0.5f) * a->rows[r].scale;
        end_rows(a, r, 1, 2 * HALF, acc);
    }
}

TD_TILE_KERNEL(fp4g, "1x16", .mr = 1);

#elif TD_FOR_AVX2

/* A chunk's sums of int16 are at most 4 * 28*127*2 = 28448. */
#include "kernels/product/ymm_rows.h"

#define HALF LANES
#define TILES td_fp4g_16x4
#define PACKED TABLE

static __m256i table(void) {
    return (__m256i)vi_table(CODES);
}

#include "kernels/product/group_ymm_body.inc"

TD_TILE_KERNEL(fp4g, "6x16", .mr = TD_YMM_ROWS_MAX);

#elif TD_FOR_AVXVNNI || TD_FOR_AVX512VNNI

/* vpdpbusd: one load of codes feeds two of them per row. */
#define HALF LANES
#if TD_FOR_AVXVNNI
#define TILES td_fp4g_16x4
#define SHAPE "5x16"
#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#define MR 5                        /* 10 sums, two halves, mask, table, broadcast; the scales rest in memory */
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5)
#else
#define TILES td_fp4g_32x4
#define SHAPE "13x32"
#define VPDPBUSD "vpdpbusd"
#define MR 13 /* 26 sums, two halves, mask, table, broadcast; the scales rest in memory */
/* clang-format off */
#define ROW_CASES                                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13)
/* clang-format on */
#endif
#include "kernels/product/vnni_dot.inc"

#define HIGH_SHIFT 0

VEC void add_chunk(const uint8_t *w, const int8_t *const *x, size_t k0, size_t far, vi *low, vi *high, const int m) {
    const vi nibble = vi_set1(0x0f0f0f0f), table = vi_table(CODES);
#pragma GCC unroll 4
    for (size_t i = 0; i < CHUNK / 4; i++) {
        const uint8_t *at = w + i * 4 * HALF;
        if (i * 4 * HALF % 64 == 0) {
            fetch_l2(at + far);
            fetch_l1(at + PREFETCH_NEAR);
        }
        vi both = vi_load(at), lo = vi_lookup(table, both & nibble), hi = vi_lookup(table, both >> 4 & nibble);
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            vi v = vi_set1((int32_t)load32(x[r] + k0 + 4 * i));
            low[r] = dot(low[r], lo, v);
            high[r] = dot(high[r], hi, v);
        }
    }
}

#include "kernels/product/group_body.inc"

TD_TILE_KERNEL(fp4g, SHAPE, .mr = MR);

#elif TD_FOR_AMX

#define HALF LANES
#define TILES td_fp4g_32x4
#define FEWER td_fp4g_avx512vnni

VEC vi code_bytes(vi nibbles) {
    return vi_lookup(vi_table(CODES), nibbles);
}

#include "kernels/product/group_amx_body.inc"

TD_GEMM_KERNEL(fp4g, "32x32", .mr = PAIR, .run = run);

#else /* NEON, DOTPROD, I8MM */

/* Twice the values of e2m1, by a lookup. */
static const int8_t TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#define WHOLE_BYTES 0
#define UNIT 0.5f
#define UNPACK 1
#define LOW_MASK 15
#define low_of(index) vqtbl1q_s8(vld1q_s8(TWICE_E2M1), index)
#define low_codes(bytes) low_of(vandq_u8(bytes, vdupq_n_u8(LOW_MASK)))
#define high_codes(bytes) vqtbl1q_s8(vld1q_s8(TWICE_E2M1), vshrq_n_u8(bytes, 4))

#if TD_FOR_I8MM
#include "kernels/vec/mmla_i8mm.h"
#define TILES td_fp4g_16x8
#define GROUP_SUMS "kernels/product/group_mmla.inc"
#define SHAPE "6x16"
#else
#include "kernels/vec/dot_neon.h"
#define TILES td_fp4g_16x4
#define GROUP_SUMS "kernels/product/group_dot.inc"
#define SHAPE "5x16"
#endif
#include "kernels/product/group_neon_body.inc"

TD_TILE_KERNEL(fp4g, SHAPE, .mr = MR);

#endif
