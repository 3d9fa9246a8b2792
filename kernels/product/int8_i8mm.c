/* int8 products, NEON with `smmla`. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/mmla_i8mm.h"

#include "kernels/product/int8_mmla_rows.inc"

const td_w8a8_kernel td_w8a8_i8mm = {
    .name = "w8a8_i8mm_12x16", .mr = MR, .nr = NR, .signed_codes = true, .eights = true, .run = run_tiles};
const td_gemm_kernel td_int8c_i8mm = {.name = "int8c_i8mm_12x16", .tiles = &td_int8c_16x8s, .run = run_channel};
