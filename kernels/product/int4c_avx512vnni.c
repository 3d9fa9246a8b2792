/* int4 per channel, AVX512-VNNI. */
#include "kernels/vec/vec_avx512.h"

#define TILES td_int4c_32x4
#define VPDPBUSD "vpdpbusd"
#define ZMM_ROWS
#define MR 14 /* 28 accumulators, the codes, their low nibbles, mask, broadcast */
/* clang-format off */
#define ROW_CASES                                                                                  \
    ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13) ROW_CASE(14)
/* clang-format on */
#define FAR_BYTES 8192
#define NEAR_BYTES 2048
#include "kernels/product/int4c_vnni_body.inc"

const td_gemm_kernel td_int4c_avx512vnni = {
    .name = "int4c_avx512vnni_14x32",
    .tiles = &TILES,
    .mr = MR,
    .run = run,
};
