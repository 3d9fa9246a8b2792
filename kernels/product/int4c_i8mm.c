/* int4 per channel, NEON with `smmla`. */
#include "kernels/vec/vec_neon.h"

#include "kernels/vec/mmla_i8mm.h"

#include "kernels/product/int4c_mmla_body.inc"

const td_gemm_kernel td_int4c_i8mm = {
    .name = "int4c_i8mm_6x16",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
