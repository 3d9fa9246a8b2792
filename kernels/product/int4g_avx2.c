/* int4 group-wise, AVX2. */
#include "kernels/product/group_layout.h"
#include "kernels/product/ymm_rows.h"
#include "kernels/vec/vec_avx2.h"

#define HALF LANES
#define TILES td_int4g_16x4
#define CHUNK 32
#define PACKED NIBBLES
#define SUM_SHIFT 0
#define UNIT 1

static __m256i table(void) {
    return _mm256_setzero_si256();
}

#include "kernels/product/group_ymm_body.inc"

const td_gemm_kernel td_int4g_avx2 = {
    .name = "int4g_avx2_6x16",
    .tiles = &TILES,
    .mr = TD_YMM_ROWS_MAX,
    .run = run,
};
