/* fp4 in groups, AVX2: a chunk's sums of int16 are at most 4 * 28*127*2 = 28448. */
#include "quant/kernels/vec_avx2.h"
#include "quant/kernels/ymm_rows.h"

#define HALF LANES
#include "quant/kernels/group_layout.inc"
#include "quant/kernels/fp4g_codes.inc"

#define PACKED TABLE

static __m256i table(void) { return (__m256i)vi_table(CODES); }

#include "quant/kernels/group_ymm_body.inc"

const td_gemm_kernel td_fp4g_avx2 = {
    GROUP_LAYOUT,
    .name = "fp4g_avx2_6x16",
    .layout = "fp4g_16x4",
    .needs = TD_CPU_AVX2,
    .run = run,
};
