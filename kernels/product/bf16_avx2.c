/* bf16 weights times f32 activations, AVX2 + FMA. */
#include "kernels/vec/vec_avx2.h"

#define TILES td_bf16_16
#define MR 5
#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5)
#include "kernels/product/bf16_body.inc"

const td_gemm_kernel td_bf16_avx2 = {
    .name = "bf16_avx2_5x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
