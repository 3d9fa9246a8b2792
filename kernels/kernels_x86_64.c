/* The tables of x86-64. */
#include "core/machine/cpu.h"
#include "kernels/kernel_sets.h"
#include "kernels/vec/amx.h"

#define AVX2_SET                                                                                           \
    TD_SCALAR_SET, TD_INTEGER_PRODUCTS(avx2),                                                              \
        .product[TD_PRODUCT_BF16] = &td_bf16_avx2, .attn16 = &td_attn16_avx2, .math = &td_float_math_avx2, \
        .delta = &td_delta_math_avx2, .rows = &td_rows_avx2, .rounding = &td_round_methods_avx2,           \
        .checksum = td_checksum_avx2, .read = td_read_avx2, .f32_peak = td_f32_peak_avx2

#define AVXVNNI_SET AVX2_SET, TD_INTEGER_PRODUCTS(avxvnni), .attn16 = &td_attn16_avxvnni

/* AVX-512 without VNNI has nothing better for integers than AVX2. */
#define AVX512_SET                                                                                                        \
    AVX2_SET, .product[TD_PRODUCT_BF16] = &td_bf16_avx512, .math = &td_float_math_avx512, .delta = &td_delta_math_avx512, \
              .rows = &td_rows_avx512, .rounding = &td_round_methods_avx512, .checksum = td_checksum_avx512,              \
              .read = td_read_avx512, .f32_peak = td_f32_peak_avx512, .bf16_peak = td_bf16_peak_avx512

#define AVX512VNNI_SET AVX512_SET, TD_INTEGER_PRODUCTS(avx512vnni), .attn16 = &td_attn16_avx512vnni

#define AMX_SET AVX512VNNI_SET, TD_INTEGER_PRODUCTS(amx), .attn16 = &td_attn16_amx

static const td_kernels AVX2 = {AVX2_SET, .name = "avx2", .needs = TD_CPU_AVX2},
                        AVXVNNI = {AVXVNNI_SET, .name = "avxvnni", .needs = TD_CPU_AVX2 | TD_CPU_AVXVNNI},
                        AVX512 = {AVX512_SET, .name = "avx512", .needs = TD_CPU_AVX2 | TD_CPU_AVX512},
                        AVX512VNNI = {AVX512VNNI_SET, .name = "avx512vnni",
                                      .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI},
                        AMX = {AMX_SET, .name = "amx",
                               .needs = TD_CPU_AVX2 | TD_CPU_AVX512 | TD_CPU_AVX512VNNI | TD_CPU_AMX_NEEDED};

const td_kernels *const td_kernels_all[] = {&AMX, &AVX512VNNI, &AVX512, &AVXVNNI, &AVX2, &td_kernels_scalar, NULL};
