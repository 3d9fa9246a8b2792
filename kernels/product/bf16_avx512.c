/* bf16 weights times f32 activations, AVX-512. */
#include "kernels/vec/vec_avx512.h"

#define TILES td_bf16_32
#define MR 12
/* clang-format off */
#define ROW_CASES                                                                               \
    ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) \
    ROW_CASE(9) ROW_CASE(10) ROW_CASE(11) ROW_CASE(12)
/* clang-format on */
#include "kernels/product/bf16_body.inc"

const td_gemm_kernel td_bf16_avx512 = {
    .name = "bf16_avx512_12x32",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
