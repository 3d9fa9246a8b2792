/* The tables of aarch64. */
#include "core/machine/cpu.h"
#include "kernels/kernel_sets.h"

#define NEON_SET                                                                                                    \
    TD_SCALAR_SET, TD_INTEGER_PRODUCTS(neon), .product[TD_PRODUCT_BF16] = &td_bf16_neon, .attn16 = &td_attn16_neon, \
                                              .math = &td_float_math_neon, .delta = &td_delta_math_neon,            \
                                              .rows = &td_rows_neon, .read = td_read_neon, .f32_peak = td_f32_peak_neon

#define DOTPROD_SET NEON_SET, TD_INTEGER_PRODUCTS(dotprod)

#define I8MM_SET DOTPROD_SET, TD_INTEGER_PRODUCTS(i8mm)

/* What is bound by the vector units gains nothing from wider vectors where the core has half as many units for them. */
#define SVE256_SET I8MM_SET, .product[TD_PRODUCT_INT4C] = &td_int4c_sve256, .product[TD_PRODUCT_INT8C] = &td_int8c_sve256

static const td_kernels NEON = {NEON_SET, .name = "neon", .needs = TD_CPU_NEON},
                        DOTPROD = {DOTPROD_SET, .name = "dotprod", .needs = TD_CPU_NEON | TD_CPU_DOTPROD},
                        I8MM = {I8MM_SET, .name = "i8mm", .needs = TD_CPU_NEON | TD_CPU_DOTPROD | TD_CPU_I8MM},
                        SVE256 = {SVE256_SET, .name = "sve256",
                                  .needs = TD_CPU_NEON | TD_CPU_DOTPROD | TD_CPU_I8MM | TD_CPU_SVE256};

const td_kernels *const td_kernels_all[] = {&SVE256, &I8MM, &DOTPROD, &NEON, &td_kernels_scalar, NULL};
