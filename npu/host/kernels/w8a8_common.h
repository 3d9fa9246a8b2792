/* What the W8A8 kernel files share: the packer and the end of a tile. Compiled into each with its own instruction set. */
#ifndef TD_NPU_HOST_W8A8_COMMON_H
#define TD_NPU_HOST_W8A8_COMMON_H

#include "npu/host/kernels/w8a8.h"

#define TD_INLINE static inline __attribute__((always_inline))

/* Panel [ceil(k/4)][nr][4]; flip 0x80 stores w + 128 as unsigned bytes, 0 stores w. */
TD_INLINE void w8a8_pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k, size_t nr, uint8_t flip) {
    uint8_t *dst = panel;
    for (size_t k0 = 0; k0 < k; k0 += 4)
        for (size_t j = 0; j < nr; j++)
            for (size_t t = 0; t < 4; t++) {
                int8_t v = j < nr_valid && k0 + t < k ? q[j * ldq + k0 + t] : 0;
                *dst++ = (uint8_t)v ^ flip;
            }
}

/* bf16 without branches, so that it vectorises; the same rounding as td_f32_to_bf16. */
TD_INLINE td_bf16 w8a8_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (td_bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/*
 * Scale and store `rows` rows of a tile: acc [rows][nr] holds sums that are too large by offset * x_sum[row].
 * The panel starts at output column `col`, row `row` of the arguments.
 */
TD_INLINE void w8a8_store(const td_w8a8_args *a, const int32_t *acc, size_t row, size_t rows, size_t col, size_t nr, int32_t offset) {
    size_t valid = a->n - col < nr ? a->n - col : nr;
    float  sw[TD_W8A8_NR_MAX], bias[TD_W8A8_NR_MAX] = {0};
    memcpy(sw, a->sw + col, nr * sizeof *sw);
    if (a->bias) memcpy(bias, a->bias + col, valid * sizeof *bias);
    for (size_t i = 0; i < rows; i++) {
        float          y[TD_W8A8_NR_MAX];
        float          sx = a->sx[row + i];
        uint32_t       excess = (uint32_t)offset * (uint32_t)a->x_sum[row + i]; /* sums wrap alike on both sides */
        const int32_t *s = acc + i * nr;
        for (size_t j = 0; j < nr; j++) y[j] = (float)(int32_t)((uint32_t)s[j] - excess) * sx * sw[j];
        if (a->bias)
            for (size_t j = 0; j < nr; j++) y[j] += bias[j];
        if (a->out_dtype == TD_DT_F32) {
            float *out = (float *)a->out + (row + i) * a->ldo + col;
            if (valid == nr)
                memcpy(out, y, nr * sizeof *out); /* a constant: two stores */
            else
                memcpy(out, y, valid * sizeof *out);
        } else {
            td_bf16 b[TD_W8A8_NR_MAX], *out = (td_bf16 *)a->out + (row + i) * a->ldo + col;
            for (size_t j = 0; j < nr; j++) b[j] = w8a8_bf16(y[j]);
            if (valid == nr)
                memcpy(out, b, nr * sizeof *out);
            else
                memcpy(out, b, valid * sizeof *out);
        }
    }
}

#endif
