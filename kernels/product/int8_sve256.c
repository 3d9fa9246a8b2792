/* int8 products, SVE's `smmla` in vectors of 256 bits. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/mmla_sve256.h"

#include "kernels/product/int8_mmla_rows.inc"

const td_w8a8_kernel td_w8a8_sve256 = {
    .name = "w8a8_sve256_12x16", .mr = MR, .nr = NR, .signed_codes = true, .eights = true, .run = run_tiles};
const td_gemm_kernel td_int8c_sve256 = {.name = "int8c_sve256_12x16", .tiles = &td_int8c_16x8s, .run = run_channel};
