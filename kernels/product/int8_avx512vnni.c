/*
 * int8 products, AVX512-VNNI. vpdpbusd multiplies unsigned by signed bytes: the weights are stored as w + 128, so a sum is
 * too large by 128 * sum(x), which is known per row of x. Products of four are added without saturation.
 */
#include "kernels/vec/vec_avx512.h"

#include "kernels/vec/zmm_rows.h"

#define TILES td_int8c_32x4
#define MR 14
#define NR 32
#define OFFSET 128
#define AHEAD 8192 /* bytes ahead of a single pass that are brought to L2 */
#define NEAR 3072  /* and from there to L1 */

#define LOAD(i)                                                                                                       \
    "vmovdqu64 128*" i "(%[w]), %%zmm28\n\tvmovdqu64 128*" i                                                          \
    "+64(%[w]), %%zmm29\n\t"                                                                                          \
    "prefetcht1 (%[ahead])\n\tprefetcht1 (%[ahead],%[w1])\n\tadd %[step], %[ahead]\n\t" /* at full step: two lines */ \
    "prefetcht0 128*" i "+" TD_ZMM_NUMBER(NEAR) "(%[w])\n\tprefetcht0 128*" i "+64+" TD_ZMM_NUMBER(NEAR) "(%[w])\n\t"
#define CASE(rows) TD_ZMM_CASE(rows, "vpdpbusd", "", LOAD, "128", p, (__m512i *)(void *)out)

static void tile(int32_t *out, const uint8_t *w, size_t k4, const int8_t *x, size_t ldx, size_t rows, const uint8_t *ahead,
                 size_t step) {
    td_zmm_product p = {.x = (const char *)x,
                        .stride = ldx,
                        .w = (const char *)w,
                        .w1 = step / 2,
                        .ahead = (const char *)ahead,
                        .ahead_step = step,
                        .fours = k4 / 4,
                        .ones = k4 % 4};
    p.next = p.ahead + p.fours * 4 * step;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
    }
}

#define ROWS_TILE(rows) TILE(rows)
#include "kernels/product/int8_body.inc"

const td_gemm_kernel td_int8c_avx512vnni = {.name = "int8c_avx512vnni_14x32", .tiles = &TILES, .mr = MR, .run = run_tiles};
