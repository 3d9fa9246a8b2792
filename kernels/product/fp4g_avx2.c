/* fp4 in groups, AVX2: a chunk's sums of int16 are at most 4 * 28*127*2 = 28448. */
#include "kernels/product/group_layout.h"
#include "kernels/product/ymm_rows.h"
#include "kernels/vec/vec_avx2.h"

#define HALF LANES
#define TILES td_fp4g_16x4

#include "kernels/product/fp4g_codes.inc"

#define PACKED TABLE

static __m256i table(void) {
    return (__m256i)vi_table(CODES);
}

#include "kernels/product/group_ymm_body.inc"

const td_gemm_kernel td_fp4g_avx2 = {
    .name = "fp4g_avx2_6x16",
    .tiles = &TILES,
    .mr = TD_YMM_ROWS_MAX,
    .run = run,
};
