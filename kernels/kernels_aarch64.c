/* The tables of aarch64. */
#include "core/cpu.h"
#include "kernels/kernels.h"
#include "kernels/machine/machine_loops.h"
#include "kernels/product/tile_kernels.h"

static const td_kernels NEON = {
    .name = "neon",
    .needs = TD_CPU_NEON,
    .product = {[TD_PRODUCT_INT4C] = &td_int4c_neon,
                [TD_PRODUCT_BF16] = &td_bf16_neon,
                [TD_PRODUCT_INT8C] = &td_int8c_neon,
                [TD_PRODUCT_INT4G] = &td_int4g_neon,
                [TD_PRODUCT_FP4G] = &td_fp4g_neon},
    .attn16 = &td_attn16_neon,
    .math = &td_float_math_neon,
    .rows = &td_rows_neon,
    .rounding = &td_round_methods_scalar,
    .checksum = td_checksum_scalar,
    .read = td_read_neon,
    .int8_peak = td_int8_peak_neon,
    .f32_peak = td_f32_peak_neon,
    .bf16_peak = td_bf16_peak_none,
};

static const td_kernels DOTPROD = {
    .name = "dotprod",
    .needs = TD_CPU_NEON | TD_CPU_DOTPROD,
    .product = {[TD_PRODUCT_INT4C] = &td_int4c_dotprod,
                [TD_PRODUCT_BF16] = &td_bf16_neon,
                [TD_PRODUCT_INT8C] = &td_int8c_dotprod,
                [TD_PRODUCT_INT4G] = &td_int4g_dotprod,
                [TD_PRODUCT_FP4G] = &td_fp4g_dotprod},
    .attn16 = &td_attn16_neon,
    .math = &td_float_math_neon,
    .rows = &td_rows_neon,
    .rounding = &td_round_methods_scalar,
    .checksum = td_checksum_scalar,
    .read = td_read_neon,
    .int8_peak = td_int8_peak_dotprod,
    .f32_peak = td_f32_peak_neon,
    .bf16_peak = td_bf16_peak_none,
};

const td_kernels *const td_kernels_all[] = {&DOTPROD, &NEON, &td_kernels_scalar, NULL};
