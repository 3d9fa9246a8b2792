/* Four products of bytes to a lane, on aarch64: `sdot` by an element where the file's instruction set has it, else what it
 * is made of. */
#ifndef TD_KERNELS_VEC_DOT_NEON_H
#define TD_KERNELS_VEC_DOT_NEON_H

#include <arm_neon.h>

/** dot(acc, w, x, lane): acc[i] += w[4 i .. 4 i + 3] times x[4 lane .. 4 lane + 3], for i < 4. lane is a constant. */
#if defined(__ARM_FEATURE_DOTPROD)
/* By hand: gcc 12 moves accumulators of the intrinsic to and fro, at a sixth of the speed. */
#define dot(acc, w, x, lane)                                                                                            \
    ({                                                                                                                  \
        int32x4_t dot_acc = (acc);                                                                                      \
        __asm__("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(dot_acc) : "w"((int8x16_t)(w)), "w"((int8x16_t)(x)), "i"(lane)); \
        dot_acc;                                                                                                        \
    })
#else
static inline __attribute__((always_inline)) int32x4_t dot_of_parts(int32x4_t acc, int8x16_t w, int8x16_t four) {
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(four)), high = vmull_high_s8(w, four);
    return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}
#define dot(acc, w, x, lane) dot_of_parts(acc, w, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), lane)))
#endif

#endif
