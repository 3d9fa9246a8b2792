/* What the W8A8 kernel files share: the packer and the end of a tile. Compiled into each with its own instruction set. */
#ifndef TD_KERNELS_PRODUCT_W8A8_COMMON_H
#define TD_KERNELS_PRODUCT_W8A8_COMMON_H

#include "kernels/product/w8a8.h"
#if defined(__AVX512F__)
#include "kernels/vec/vec_avx512.h"
#elif defined(__AVX2__)
#include "kernels/vec/vec_avx2.h"
#endif

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

/* out[j] = (float)(s[j] - excess) * sx * sw[j] (+ bias[j]) for a row of a whole panel. */
#ifdef LANES
TD_INLINE void w8a8_scale(const int32_t *s, int32_t excess, float sx, const float *sw, const float *bias, size_t nr, td_dtype dtype, void *out) {
    typedef uint32_t wrapping __attribute__((vector_size(4 * LANES)));
#pragma GCC unroll 2
    for (size_t j = 0; j < nr; j += LANES) {
        vf y = vf_of_vi((vi)((wrapping)vi_load(s + j) - (wrapping)vi_set1(excess))) * vf_set1(sx) * vf_load(sw + j);
        if (bias) y += vf_load(bias + j);
        if (dtype == TD_DT_F32)
            vf_store((float *)out + j, y);
        else
            vf_store_bf16((td_bf16 *)out + j, y);
    }
}
#else
TD_INLINE void w8a8_scale(const int32_t *s, int32_t excess, float sx, const float *sw, const float *bias, size_t nr, td_dtype dtype, void *out) {
    for (size_t j = 0; j < nr; j++) {
        float y = (float)(int32_t)((uint32_t)s[j] - (uint32_t)excess) * sx * sw[j];
        if (bias) y += bias[j];
        if (dtype == TD_DT_F32)
            ((float *)out)[j] = y;
        else
            ((td_bf16 *)out)[j] = td_f32_to_bf16(y);
    }
}
#endif

/*
 * Scale and store `rows` rows of a tile: acc [rows][nr], aligned, holds sums that are too large by offset * x_sum[row].
 * The panel starts at output column `col`, row `row` of the arguments. Sums wrap, and so does what is taken off them.
 */
TD_INLINE void w8a8_store(const td_w8a8_args *a, const int32_t *acc, size_t row, size_t rows, size_t col, size_t nr, int32_t offset) {
    size_t       valid = a->n - col < nr ? a->n - col : nr, element = a->out_dtype == TD_DT_F32 ? sizeof(float) : sizeof(td_bf16);
    const float *sw = a->sw + col, *bias = a->bias ? a->bias + col : NULL;
    char        *out = (char *)a->out + (row * a->ldo + col) * element;
    float        last_bias[TD_W8A8_NR_MAX], last_out[TD_W8A8_NR_MAX]; /* of a panel that is not whole */
    if (bias && valid < nr) {
        memset(last_bias, 0, sizeof last_bias);
        bias = memcpy(last_bias, bias, valid * sizeof *bias);
    }
    for (size_t i = 0; i < rows; i++, acc += nr, out += a->ldo * element) {
        w8a8_scale(acc, offset * a->x_sum[row + i], a->sx[row + i], sw, bias, nr, a->out_dtype, valid < nr ? (void *)last_out : out);
        if (valid < nr) memcpy(out, last_out, valid * element);
    }
}

#endif
