/* bf16 weights times f32 activations: acc = fma(w, x, acc) in the order of k, one chain per output. The kernels of all
 * instruction sets. */
#include "kernels/vec/vec.h"

#include "kernels/product/gemm_end.inc"

#if TD_FOR_SCALAR

/* The reference. */
#define TILES td_bf16_16
#define HALF 8

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    for (size_t r = 0; r < a->m; r++) {
        const uint32_t *w = a->tile;
        const float    *x = a->rows[r].x;
        float           acc[2 * HALF] = {0};
        for (size_t j = 0; j < a->k; j++)
            for (size_t i = 0; i < HALF; i++, w++) {
                acc[i] = fmaf(td_bf16_to_f32((td_bf16)(*w >> 16)), x[j], acc[i]);
                acc[HALF + i] = fmaf(td_bf16_to_f32((td_bf16)*w), x[j], acc[HALF + i]);
            }
        end_rows(a, r, 1, 2 * HALF, acc);
    }
}

TD_TILE_KERNEL(bf16, "1x16", .mr = 1);

#elif TD_FOR_NEON

/*
 * A vector holds one k of four rows in the tile's upper half and of four in its lower half. `fmla` by an element multiplies
 * them with any of the four k that one load of a row of activations brings. Four rows take 16 sums, 4 vectors of activations
 * and 5 others.
 */
#define TILES td_bf16_16
#define NR 16
#define MR 4

/* The vectors of weights of a k: in the order of the outputs. */
typedef struct {
    vf rows[4];
} widened;

VEC widened load_k(const uint32_t *w) {
    const vi upper = vi_set1((int32_t)0xffff0000u), a = vi_load(w), b = vi_load(w + LANES);
    return (widened){{(vf)(a & upper), (vf)(b & upper), (vf)(a << 16), (vf)(b << 16)}};
}

#define ONE_K(lane)                                                                                 \
    {                                                                                               \
        const widened w_k = load_k(w + NR / 2 * (lane));                                            \
        _Pragma("GCC unroll 4") for (int r = 0; r < m; r++) for (int v = 0; v < 4; v++) sum[r][v] = \
            vfmaq_laneq_f32(sum[r][v], w_k.rows[v], x[r], lane);                                    \
    }

/* m is a constant after inlining. far: how far ahead of a pass memory is brought to L2. */
VEC void rows_times_tile(const td_gemm_args *a, size_t r0, size_t far, const int m) {
    const uint32_t *w = a->tile;
    const size_t    near = PREFETCH_NEAR;
    const float    *from[MR];
    vf              sum[MR][4], x[MR];
    float           values[MR][NR];
    size_t          j = 0;
#pragma GCC unroll 4
    for (int r = 0; r < m; r++) {
        from[r] = a->rows[r0 + r].x;
        for (int v = 0; v < 4; v++) sum[r][v] = vf_set1(0);
    }
    for (; j + 4 <= a->k; j += 4, w += 4 * NR / 2) {
        for (size_t line = 0; line < 4 * NR * sizeof(td_bf16); line += 64) {
            fetch_l2((const char *)w + line + far);
            fetch_l1((const char *)w + line + near);
        }
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) x[r] = vf_load(from[r] + j);
        ONE_K(0)
        ONE_K(1)
        ONE_K(2)
        ONE_K(3)
    }
    for (; j < a->k; j++, w += NR / 2) {
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) x[r] = vf_set1(from[r][j]);
        ONE_K(0)
    }
#pragma GCC unroll 4
    for (int r = 0; r < m; r++)
        for (int v = 0; v < 4; v++) vf_store(values[r] + v * LANES, sum[r][v]);
    end_rows(a, r0, (size_t)m, NR, values[0]);
}

#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4)
#define TILE_BYTES(a) td_tile_bytes(&TILES, (a)->k, NULL)
#include "kernels/product/row_tiles.inc"

TD_TILE_KERNEL(bf16, "4x16", .mr = MR);

#else /* AVX2, AVX512 */

#if TD_FOR_AVX2
#define TILES td_bf16_16
#define SHAPE "5x16"
#define MR 5
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5)
#else
#define TILES td_bf16_32
#define SHAPE "12x32"
#define MR 12
/* clang-format off */
#define ROW_CASES                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) \
    ROW_CASE(9) ROW_CASE(10) ROW_CASE(11) ROW_CASE(12)
/* clang-format on */
#endif
#define HALF LANES

#define PREFETCH_SPAN 2048 /* bytes ahead; a tile is followed by the tile that is read next */

/* m is a constant after inlining, so that the sums stay in registers. */
VEC void rows_times_tile(const td_gemm_args *a, size_t r0, const int m) {
    const uint32_t *w = a->tile;
    const vi        upper = vi_set1((int32_t)0xffff0000u);
    const float    *x[MR];
    vf              low[MR], high[MR];
    float           values[MR][2 * HALF];
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        x[r] = a->rows[r0 + r].x;
        low[r] = high[r] = vf_set1(0.0f);
    }
    for (size_t j = 0; j < a->k; j++, w += HALF) {
        if (m <= 2) fetch_l1(w + PREFETCH_SPAN);
        vi both = vi_load(w);
        vf w0 = (vf)(both & upper), w1 = (vf)(both << 16);
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            vf v = vf_set1(x[r][j]);
            low[r] = vf_fma(w0, v, low[r]);
            high[r] = vf_fma(w1, v, high[r]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        vf_store(values[r], low[r]);
        vf_store(values[r] + HALF, high[r]);
    }
    end_rows(a, r0, (size_t)m, 2 * HALF, values[0]);
}

#define ROW_CASE(n)               \
    case n:                       \
        rows_times_tile(a, r, n); \
        break;

/* Equal register tiles: 16 rows are 8 + 8, not 12 + 4. */
static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    for (size_t r = 0, left = (a->m + MR - 1) / MR; left > 0; left--) {
        size_t m = (a->m - r + left - 1) / left;
        switch (m) {
            ROW_CASES
            default: break;
        }
        r += m;
    }
}

TD_TILE_KERNEL(bf16, SHAPE, .mr = MR);

#endif
