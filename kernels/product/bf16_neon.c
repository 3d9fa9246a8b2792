/*
 * bf16 weights times f32 activations, NEON: acc = fma(w, x, acc) in the order of k, one chain per output. A vector holds a k
 * of four rows of the upper half of the tile and of four of the lower; `fmla` by an element multiplies them with any of the
 * four k that one load of a row of activations brings. Four rows take 16 sums, 4 vectors of activations and 5 others.
 */
#include "kernels/vec/vec_neon.h"

#include "kernels/product/gemm_end.inc"

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

const td_gemm_kernel td_bf16_neon = {
    .name = "bf16_neon_4x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
