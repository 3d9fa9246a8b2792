/* The tables of x86-64. */
#include "core/cpu.h"
#include "kernels/kernels.h"
#include "kernels/machine/machine_loops.h"
#include "kernels/product/tile_kernels.h"
#include "kernels/vec/amx.h"

static const td_kernels AVX2 = {
    .name = "avx2",
    .needs = TD_CPU_AVX2,
    .product = {[TD_PRODUCT_INT4C] = &td_int4c_avx2,
                [TD_PRODUCT_BF16] = &td_bf16_avx2,
                [TD_PRODUCT_INT8C] = &td_int8c_avx2,
                [TD_PRODUCT_INT4G] = &td_int4g_avx2,
                [TD_PRODUCT_FP4G] = &td_fp4g_avx2},
    .attn16 = &td_attn16_avx2,
    .math = &td_float_math_avx2,
    .rows = &td_rows_avx2,
    .rounding = &td_round_methods_avx2,
    .checksum = td_checksum_avx2,
    .read = td_read_avx2,
    .int8_peak = td_int8_peak_avx2,
    .f32_peak = td_f32_peak_avx2,
    .bf16_peak = td_bf16_peak_none,
};

static const td_kernels AVXVNNI = {
    .name = "avxvnni",
    .needs = TD_CPU_AVX2 | TD_CPU_AVXVNNI,
    .product = {[TD_PRODUCT_INT4C] = &td_int4c_avxvnni,
                [TD_PRODUCT_BF16] = &td_bf16_avx2,
                [TD_PRODUCT_INT8C] = &td_int8c_avxvnni,
                [TD_PRODUCT_INT4G] = &td_int4g_avxvnni,
                [TD_PRODUCT_FP4G] = &td_fp4g_avxvnni},
    .attn16 = &td_attn16_avxvnni,
    .math = &td_float_math_avx2,
    .rows = &td_rows_avx2,
    .rounding = &td_round_methods_avx2,
    .checksum = td_checksum_avx2,
    .read = td_read_avx2,
    .int8_peak = td_int8_peak_avxvnni,
    .f32_peak = td_f32_peak_avx2,
    .bf16_peak = td_bf16_peak_none,
};

/* AVX-512 without VNNI has nothing better for integers than AVX2. */
static const td_kernels AVX512 = {
    .name = "avx512",
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512,
    .product = {[TD_PRODUCT_INT4C] = &td_int4c_avx2,
                [TD_PRODUCT_BF16] = &td_bf16_avx512,
                [TD_PRODUCT_INT8C] = &td_int8c_avx2,
                [TD_PRODUCT_INT4G] = &td_int4g_avx2,
                [TD_PRODUCT_FP4G] = &td_fp4g_avx2},
    .attn16 = &td_attn16_avx2,
    .math = &td_float_math_avx512,
    .rows = &td_rows_avx512,
    .rounding = &td_round_methods_avx512,
    .checksum = td_checksum_avx512,
    .read = td_read_avx512,
    .int8_peak = td_int8_peak_avx2,
    .f32_peak = td_f32_peak_avx512,
    .bf16_peak = td_bf16_peak_avx512,
};

static const td_kernels AVX512VNNI = {
    .name = "avx512vnni",
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI,
    .product = {[TD_PRODUCT_INT4C] = &td_int4c_avx512vnni,
                [TD_PRODUCT_BF16] = &td_bf16_avx512,
                [TD_PRODUCT_INT8C] = &td_int8c_avx512vnni,
                [TD_PRODUCT_INT4G] = &td_int4g_avx512vnni,
                [TD_PRODUCT_FP4G] = &td_fp4g_avx512vnni},
    .attn16 = &td_attn16_avx512vnni,
    .math = &td_float_math_avx512,
    .rows = &td_rows_avx512,
    .rounding = &td_round_methods_avx512,
    .checksum = td_checksum_avx512,
    .read = td_read_avx512,
    .int8_peak = td_int8_peak_avx512vnni,
    .f32_peak = td_f32_peak_avx512,
    .bf16_peak = td_bf16_peak_avx512,
};

static const td_kernels AMX = {
    .name = "amx",
    .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI | TD_CPU_AMX_NEEDED,
    .product = {[TD_PRODUCT_INT4C] = &td_int4c_amx,
                [TD_PRODUCT_BF16] = &td_bf16_avx512,
                [TD_PRODUCT_INT8C] = &td_int8c_amx,
                [TD_PRODUCT_INT4G] = &td_int4g_amx,
                [TD_PRODUCT_FP4G] = &td_fp4g_amx},
    .attn16 = &td_attn16_amx,
    .math = &td_float_math_avx512,
    .rows = &td_rows_avx512,
    .rounding = &td_round_methods_avx512,
    .checksum = td_checksum_avx512,
    .read = td_read_avx512,
    .int8_peak = td_int8_peak_amx,
    .f32_peak = td_f32_peak_avx512,
    .bf16_peak = td_bf16_peak_avx512,
};

const td_kernels *const td_kernels_all[] = {&AMX, &AVX512VNNI, &AVX512, &AVXVNNI, &AVX2, &td_kernels_scalar, NULL};
