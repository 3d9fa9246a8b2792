/* The scalar table, and the choice of a table. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <string.h>

#include "core/cpu.h"
#include "kernels/machine/machine_loops.h"
#include "kernels/product/tile_kernels.h"

const td_kernels td_kernels_scalar = {
    .name = "scalar",
    .product = {[TD_PRODUCT_INT4C] = &td_int4c_scalar,
                [TD_PRODUCT_BF16] = &td_bf16_scalar,
                [TD_PRODUCT_INT8C] = &td_int8c_scalar,
                [TD_PRODUCT_INT4G] = &td_int4g_scalar,
                [TD_PRODUCT_FP4G] = &td_fp4g_scalar},
    .attn16 = &td_attn16_scalar,
    .math = &td_float_math_scalar,
    .rows = &td_rows_scalar,
    .rounding = &td_round_methods_scalar,
    .checksum = td_checksum_scalar,
    .read = td_read_scalar,
    .int8_peak = td_int8_peak_scalar,
    .f32_peak = td_f32_peak_scalar,
    .bf16_peak = td_bf16_peak_none,
};

const td_kernels *td_kernels_for(uint32_t features) {
    const td_kernels *const *t = td_kernels_all;
    while ((*t)->needs & ~features) t++;
    return *t;
}

static const td_kernels *g_here;
static pthread_once_t    g_once = PTHREAD_ONCE_INIT;

static void choose(void) {
    g_here = td_kernels_for(td_cpu_features());
}

const td_kernels *td_kernels_here(void) {
    pthread_once(&g_once, choose);
    return g_here;
}

bool td_kernels_own(const td_kernels *t, const void *member) {
    const td_kernels *const *lesser = td_kernels_all;
    size_t                   at = (size_t)((const char *)member - (const char *)t);
    while (*lesser != t) lesser++;
    for (lesser++; *lesser; lesser++)
        if (!memcmp((const char *)*lesser + at, member, sizeof(void *))) return false;
    return true;
}
