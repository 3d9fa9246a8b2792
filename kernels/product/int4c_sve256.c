/* int4 per channel, SVE's `smmla` in vectors of 256 bits. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/mmla_sve256.h"

#include "kernels/product/int4c_mmla_body.inc"

const td_gemm_kernel td_int4c_sve256 = {
    .name = "int4c_sve256_12x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
