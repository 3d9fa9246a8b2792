/* The layouts by name, and what weights in groups may be like. */
#include "kernels/product/tile_gemm.h"

static const td_tile_layout *const LAYOUTS[TD_PRODUCTS][5] = {
    [TD_PRODUCT_INT4C] = {&td_int4c_16x4, &td_int4c_32x4, &td_int4c_16x4s, &td_int4c_16x8s},
    [TD_PRODUCT_BF16] = {&td_bf16_16, &td_bf16_32},
    [TD_PRODUCT_INT8C] = {&td_int8c_16x4, &td_int8c_32x4, &td_int8c_16x4s, &td_int8c_16x8s},
    [TD_PRODUCT_INT4G] = {&td_int4g_16x4, &td_int4g_32x4, &td_int4g_16x4s, &td_int4g_16x8s},
    [TD_PRODUCT_FP4G] = {&td_fp4g_16x4, &td_fp4g_32x4, &td_fp4g_16x8}};

const td_tile_layout *td_tile_layout_named(td_product product, const char *name) {
    const td_tile_layout *const *l = LAYOUTS[product];
    while (*l && strcmp((*l)->name, name)) l++;
    return *l;
}

bool td_int4g_takes(const td_gemm_groups *g) {
    return (g->size == 32 || g->size == 64 || g->size == 128) &&
           (g->scale_dtype == TD_DT_F32 || g->scale_dtype == TD_DT_BF16 || g->scale_dtype == TD_DT_F16);
}

bool td_fp4g_takes(const td_gemm_groups *g) {
    bool mx = g->size == 32 && g->scale_dtype == TD_DT_F8_E8M0, nv = g->size == 16 && g->scale_dtype == TD_DT_F8_E4M3;
    return (mx || nv) && !g->zero_points;
}
