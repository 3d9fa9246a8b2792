/* fp4 in groups, AVX2: a chunk's sums of int16 are at most 4 * 28*127*2 = 28448. */
#include "quant/kernels/vec_avx2.h"
#include "quant/kernels/ymm_rows.h"
#include "quant/kernels/group_layout.h"

#define HALF  LANES
#define TILES td_fp4g_16x4

#include "quant/kernels/fp4g_codes.inc"

#define PACKED TABLE

static __m256i table(void) { return (__m256i)vi_table(CODES); }

#include "quant/kernels/group_ymm_body.inc"

const td_gemm_kernel td_fp4g_avx2 = {
    .name = "fp4g_avx2_6x16",
    .tiles = &TILES,
    .needs = TD_CPU_AVX2,
    .run = run,
};
