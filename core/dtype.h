/* Element types and views of tensors: the vocabulary that checkpoints, conversions and both tiers share. */
#ifndef TD_CORE_DTYPE_H
#define TD_CORE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t td_bf16; /* upper half of an f32 */
typedef uint16_t td_f16;  /* IEEE binary16 */

typedef enum {
    TD_DT_F32,
    TD_DT_BF16,
    TD_DT_F16,
    TD_DT_I8,
    TD_DT_U8,
    TD_DT_I32,
    TD_DT_I64,
    TD_DT_F8_E4M3,
    TD_DT_F8_E8M0,
    TD_DT_COUNT
} td_dtype;

static inline size_t td_dtype_bytes(td_dtype t) {
    static const uint8_t bytes[TD_DT_COUNT] = {4, 2, 2, 1, 1, 4, 8, 1, 1};
    return bytes[t];
}

#define TD_RANK_MAX 5

struct td_coded_matrix;

/** A dense row-major tensor that somebody else owns. */
typedef struct {
    td_dtype     dtype;
    uint32_t     rank;
    size_t       shape[TD_RANK_MAX]; /* outermost first */
    const void  *data;
    const float *scale; /* I8 weights [n, k]: one f32 per output row [n]; else NULL */
    /** NULL; or a matrix [n, k] in a quantised checkpoint's codes (quant/coded_matrix.h): data, dtype and scale are then
     * unused. Only functions that say so take such a view. */
    const struct td_coded_matrix *coded;
} td_tensor_view;

static inline float td_bf16_to_f32(td_bf16 v) {
    uint32_t bits = (uint32_t)v << 16;
    float    f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/** Round to nearest even; NaN stays NaN. */
static inline td_bf16 td_f32_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (td_bf16)(bits >> 16 | 0x40u);
    return (td_bf16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
