/* int4 in groups: the kernels of all instruction sets. */
#include "kernels/vec/vec.h"

#include "kernels/product/group_layout.h"
#include "kernels/product/tile_kernels.h"

#if TD_FOR_AVX2 || TD_FOR_AVXVNNI || TD_FOR_AVX512VNNI || TD_FOR_AMX
/* Codes are multiplied as they are, 32 k at a time. */
#define CHUNK 32
#define SUM_SHIFT 0
#define UNIT 1
#endif

#if TD_FOR_SCALAR

/* The reference: the tile layout of the 256-bit kernels, one multiply-add at a time. */
#include "kernels/product/gemm_end.inc"

#define HALF 8
#define TILES td_int4g_16x4

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    const td_gemm_groups *groups = &a->groups;
    for (size_t r = 0; r < a->m; r++) {
        const int8_t  *x = a->rows[r].x;
        const uint8_t *zero = a->tile, *in = zero + head_bytes(2 * HALF, a->k, groups);
        float          acc[2 * HALF] = {0};
        for (size_t g = 0; g < a->k / groups->size; g++, zero += HALF) {
            const uint8_t *scales = in;
            int32_t        sum[2 * HALF];
            for (size_t i = 0; i < HALF; i++) { /* group_sum is -8 times the sum of the codes of x */
                sum[i] = (groups->zero_points ? zero[i] & 15 : 8) * (a->rows[r].group_sum[g] / 8);
                sum[HALF + i] = (groups->zero_points ? zero[i] >> 4 : 8) * (a->rows[r].group_sum[g] / 8);
            }
            in += 2 * HALF * td_dtype_bytes(groups->scale_dtype);
            for (size_t j = g * groups->size; j < (g + 1) * groups->size; j += 4)
                for (size_t i = 0; i < HALF; i++)
                    for (size_t b = 0; b < 4; b++, in++) {
                        sum[i] += (*in & 15) * x[j + b];
                        sum[HALF + i] += (*in >> 4) * x[j + b];
                    }
            for (size_t i = 0; i < 2 * HALF; i++)
                acc[i] = fmaf((float)sum[i], scale_at(scales, i, groups->scale_dtype), acc[i]);
        }
        for (size_t i = 0; i < 2 * HALF; i++) acc[i] = acc[i] * a->rows[r].scale;
        end_rows(a, r, 1, 2 * HALF, acc);
    }
}

TD_TILE_KERNEL(int4g, "1x16", .mr = 1);

#elif TD_FOR_AVX2

#include "kernels/product/ymm_rows.h"

#define HALF LANES
#define TILES td_int4g_16x4
#define PACKED NIBBLES

static __m256i table(void) {
    return _mm256_setzero_si256();
}

#include "kernels/product/group_ymm_body.inc"

TD_TILE_KERNEL(int4g, "6x16", .mr = TD_YMM_ROWS_MAX);

#elif TD_FOR_AVXVNNI || TD_FOR_AVX512VNNI

/* vpdpbusd: one load of codes feeds two of them per row. High nibbles stay where they are: their sums are 16 times too
 * large, exactly. */
#define HALF LANES
#if TD_FOR_AVXVNNI
#define TILES td_int4g_16x4
#define SHAPE "5x16"
#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#define MR 5                        /* 10 sums, two halves, mask, broadcast; the scales rest in memory */
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5)
#else
#define TILES td_int4g_32x4
#define SHAPE "13x32"
#define VPDPBUSD "vpdpbusd"
#define MR 13 /* 26 sums, two halves, mask, broadcast, two scales */
/* clang-format off */
#define ROW_CASES                                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13)
/* clang-format on */
#endif
#include "kernels/product/vnni_dot.inc"

#define HIGH_SHIFT 4

VEC void add_chunk(const uint8_t *w, const int8_t *const *x, size_t k0, size_t far, vi *low, vi *high, const int m) {
    const vi nibble = vi_set1(0x0f0f0f0f);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        const uint8_t *at = w + i * 4 * HALF;
        if (i * 4 * HALF % 64 == 0) {
            fetch_l2(at + far);
            fetch_l1(at + PREFETCH_NEAR);
        }
        vi both = vi_load(at), lo = both & nibble, hi = both ^ lo;
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            vi v = vi_set1((int32_t)load32(x[r] + k0 + 4 * i));
            low[r] = dot(low[r], lo, v);
            high[r] = dot(high[r], hi, v);
        }
    }
}

#include "kernels/product/group_body.inc"

TD_TILE_KERNEL(int4g, SHAPE, .mr = MR);

#elif TD_FOR_AMX

#define HALF LANES
#define TILES td_int4g_32x4
#define FEWER td_int4g_avx512vnni

VEC vi code_bytes(vi nibbles) {
    return nibbles;
}

#include "kernels/product/group_amx_body.inc"

TD_GEMM_KERNEL(int4g, "32x32", .mr = PAIR, .run = run);

#else /* NEON, DOTPROD, I8MM */

/* Bytes of two codes are multiplied whole. */
#define WHOLE_BYTES 1
#define UNIT 1
#define UNPACK 0
#define LOW_MASK 255
#define low_of(bytes) vreinterpretq_s8_u8(bytes)
#define low_codes(bytes) low_of(bytes)
#define high_codes(bytes) vshrq_n_s8(vreinterpretq_s8_u8(bytes), 4)

#if TD_FOR_I8MM
#include "kernels/vec/mmla_i8mm.h"
#define TILES td_int4g_16x8s
#define GROUP_SUMS "kernels/product/group_mmla.inc"
#define SHAPE "6x16"
#else
#include "kernels/vec/dot_neon.h"
#define TILES td_int4g_16x4s
#define GROUP_SUMS "kernels/product/group_dot.inc"
#define SHAPE "5x16"
#endif
#include "kernels/product/group_neon_body.inc"

TD_TILE_KERNEL(int4g, SHAPE, .mr = MR);

#endif
