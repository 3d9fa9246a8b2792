#include "kernels/product/gemm_row.h"

#include "kernels/rows/convert.h"
#include "kernels/rows/row_quant.h"

static bool has_groups(td_product p) {
    return p == TD_PRODUCT_INT4G || p == TD_PRODUCT_FP4G;
}

size_t td_gemm_row_bytes(td_product p, const td_gemm_groups *groups, size_t k) {
    if (p == TD_PRODUCT_BF16) return k * sizeof(float);
    return has_groups(p) ? k + k / groups->size * sizeof(int32_t) : k;
}

/* Behind k codes. */
static void add_group_sums(td_product p, const td_gemm_groups *groups, size_t k, int8_t *codes, td_gemm_row *row) {
    if (!has_groups(p)) return;
    int32_t *sums = (int32_t *)(void *)(codes + k);
    td_group_sums_i8(codes, k, groups->size, sums);
    row->group_sum = sums;
}

void td_gemm_row_make(td_product p, const td_gemm_groups *groups, td_dtype dtype, const void *src, size_t cols, size_t k,
                      void *dst, td_gemm_row *row) {
    *row = (td_gemm_row){.x = dst};
    if (p == TD_PRODUCT_BF16) {
        if (src != dst) td_to_f32(dtype, src, cols, dst);
        return;
    }
    td_quantize_rows_i8(dtype, src, 1, cols, cols, dst, k, &row->scale, &row->sum);
    add_group_sums(p, groups, k, dst, row);
}

void td_gemm_row_take(td_product p, const td_gemm_groups *groups, const int8_t *codes, float scale, size_t cols, size_t k,
                      void *dst, td_gemm_row *row) {
    *row = (td_gemm_row){.x = dst, .scale = scale};
    td_place_row_i8(codes, cols, dst, k, &row->sum);
    add_group_sums(p, groups, k, dst, row);
}
