/*
 * The members of the tables (kernels/kernels.h), for the files that list an architecture's: a set begins with all members of
 * a lesser one, whose macro it names first, and tells what it has instead. Later initialisers take the place of earlier
 * ones.
 */
#ifndef TD_KERNELS_KERNEL_SETS_H
#define TD_KERNELS_KERNEL_SETS_H

#include "kernels/kernels.h"
#include "kernels/machine/machine_loops.h"
#include "kernels/product/tile_kernels.h"

#pragma GCC diagnostic ignored "-Woverride-init"

/* All products of integers of a set whose kernels' names end so. */
#define TD_INTEGER_PRODUCTS(set)                                                                \
    .product[TD_PRODUCT_INT4C] = &td_int4c_##set, .product[TD_PRODUCT_INT8C] = &td_int8c_##set, \
    .product[TD_PRODUCT_INT4G] = &td_int4g_##set, .product[TD_PRODUCT_FP4G] = &td_fp4g_##set,   \
    .int8_peak = td_int8_peak_##set

#define TD_SCALAR_SET                                                                                                    \
    TD_INTEGER_PRODUCTS(scalar), .product[TD_PRODUCT_BF16] = &td_bf16_scalar, .attn16 = &td_attn16_scalar,               \
                                 .math = &td_float_math_scalar, .delta = &td_delta_math_scalar, .rows = &td_rows_scalar, \
                                 .rounding = &td_round_methods_scalar, .checksum = td_checksum_scalar,                   \
                                 .read = td_read_scalar, .f32_peak = td_f32_peak_scalar, .bf16_peak = td_bf16_peak_none

#endif
