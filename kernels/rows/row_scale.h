/* The scale of a row from the bits of its largest magnitude: shared by the tiers of row_quant. */
#ifndef TD_KERNELS_ROWS_ROW_SCALE_H
#define TD_KERNELS_ROWS_ROW_SCALE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/** Set *scale; return 1 / scale, or 0 for a row whose codes are all 0 (kernels/rows/row_quant.h). */
static inline float row_inverse_scale(uint32_t amax_bits, float qmax, float *scale) {
    float amax;
    memcpy(&amax, &amax_bits, sizeof amax);
    if (amax_bits >= 0x7f800000u) {
        *scale = NAN;
        return 0;
    }
    float s = amax / qmax, inv = 1.0f / s;
    if (amax == 0 || isinf(inv)) {
        *scale = 1;
        return 0;
    }
    *scale = s;
    return inv;
}

#endif
