/* int8 products, AVX-VNNI: as AVX512-VNNI's, with 256-bit vectors. */
#include "kernels/vec/vec_avx2.h"

#include "kernels/product/tile_kernels.h"

#define TILES td_int8c_16x4
#define MR 6 /* 12 sums, two vectors of weights, broadcast */
#define NR 16
#define OFFSET 128
#define AHEAD 4096 /* bytes ahead that are brought to L2 */
#define NEAR 1024  /* and from there to L1 */

#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#include "kernels/product/vnni_dot.inc"

#include "kernels/product/int8_rows.inc"

#define ROWS_TILE(rows) \
    switch (rows) { TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6) }
#include "kernels/product/int8_body.inc"

const td_gemm_kernel td_int8c_avxvnni = {.name = "int8c_avxvnni_6x16", .tiles = &TILES, .mr = MR, .run = run_tiles};
