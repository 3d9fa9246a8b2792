/* Row quantisation. */
#include "kernels/rows/row_quant.h"

#include <assert.h>

#include "kernels/kernels.h"

int32_t td_quantize_row(td_dtype dtype, const void *x, size_t k, float qmax, int8_t *q, float *scale) {
    assert(dtype == TD_DT_F32 || dtype == TD_DT_BF16 || dtype == TD_DT_F16);
    return td_kernels_here()->rows->quantize(dtype, x, k, qmax, q, scale);
}

void td_quantize_rows_i8(td_dtype dtype, const void *x, size_t n, size_t k, size_t x_stride, int8_t *q, size_t q_stride,
                         float *scale, int32_t *sum) {
    size_t row_bytes = x_stride * td_dtype_bytes(dtype);
    for (size_t r = 0; r < n; r++) {
        int8_t *codes = q + r * q_stride;
        int32_t s = td_quantize_row(dtype, (const char *)x + r * row_bytes, k, 127.0f, codes, &scale[r]);
        memset(codes + k, 0, q_stride - k);
        if (sum) sum[r] = s;
    }
}

void td_group_sums_i8(const int8_t *q, size_t k, size_t size, int32_t *sum) {
    const uint64_t even = 0x00ff00ff00ff00ffu;
    for (size_t g = 0; g < k; g += size) {
        uint64_t lanes = 0; /* four sums of code + 128; a lane grows by 510 at most, 16 times */
        for (size_t i = 0; i < size; i += 8) {
            uint64_t eight;
            memcpy(&eight, q + g + i, sizeof eight);
            eight ^= 0x8080808080808080u;
            lanes += (eight & even) + (eight >> 8 & even);
        }
        lanes = (lanes & 0x0000ffff0000ffffu) + (lanes >> 16 & 0x0000ffff0000ffffu);
        *sum++ = -8 * ((int32_t)(lanes & 0xffffffffu) + (int32_t)(lanes >> 32) - 128 * (int32_t)size);
    }
}

#define SUM_BLOCK 128 /* what one sum of td_group_sums_i8 holds */

int32_t td_sum_codes_i8(const int8_t *q, size_t k) {
    int32_t total = 0, block;
    size_t  i = 0;
    for (size_t n; i + 8 <= k; i += n) {
        n = k - i < SUM_BLOCK ? (k - i) / 8 * 8 : SUM_BLOCK;
        td_group_sums_i8(q + i, n, n, &block);
        total += block / -8;
    }
    for (; i < k; i++) total += q[i];
    return total;
}

void td_place_row_i8(const int8_t *codes, size_t k, int8_t *q, size_t q_stride, int32_t *sum) {
    memcpy(q, codes, k);
    memset(q + k, 0, q_stride - k);
    *sum = td_sum_codes_i8(codes, k);
}
