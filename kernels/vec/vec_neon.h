/* The vectors of the kernels' bodies, NEON (docs/kernels.md has the vocabulary). What C's operators do lane by lane (+ - * /
 * & ^ << >>) has no name here. */
#ifndef TD_KERNELS_VEC_VEC_NEON_H
#define TD_KERNELS_VEC_VEC_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 4
typedef float32x4_t vf; /* [LANES] f32 */
typedef int32x4_t   vi;

#define VEC static inline __attribute__((always_inline))

VEC vf vf_set1(float f) {
    return vdupq_n_f32(f);
}
VEC vf vf_load(const float *p) {
    return vld1q_f32(p);
}
VEC void vf_store(float *p, vf v) {
    vst1q_f32(p, v);
}
VEC vf vf_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
VEC vf vf_mla(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
} /* fused where that is fast */
VEC vf vf_max(vf a, vf b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
} /* b where one is a NaN; so vf_min */
VEC vf vf_min(vf a, vf b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
VEC vf vf_rint(vf v) {
    return vrndnq_f32(v);
}
VEC vf vf_of_vi(vi v) {
    return vcvtq_f32_s32(v);
}
VEC vi vi_of_vf(vf v) {
    return vcvtnq_s32_f32(v);
}
VEC vf vf_unless_below(vf x, vf least, vf v) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcltq_f32(x, least)));
} /* 0 where x < least */
VEC vi vi_set1(int32_t i) {
    return vdupq_n_s32(i);
}
VEC vi vi_load(const void *p) {
    return vreinterpretq_s32_u8(vld1q_u8(p));
}
VEC vi vi_load_u8(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))))));
}
VEC vf vf_load_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
VEC vf vf_load_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

/* The first n < LANES lanes touch memory, the others are 0. */
VEC vf vf_load_n(const float *p, size_t n) {
    float lanes[LANES] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return vf_load(lanes);
}
VEC void vf_store_n(float *p, vf v, size_t n) {
    float lanes[LANES];
    vf_store(lanes, v);
    memcpy(p, lanes, n * sizeof *p);
}
VEC vf vf_load_bf16_n(const uint16_t *p, size_t n) {
    uint16_t lanes[LANES] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return vf_load_bf16(lanes);
}

VEC vf vf_absmax(vf a, vf b) {
    return vf_max(vabsq_f32(b), a);
} /* a >= 0 or |b| */
VEC vi vi_loadu(const void *p) {
    return vi_load(p);
}
VEC void vi_storeu(void *p, vi v) {
    vst1q_u8(p, vreinterpretq_u8_s32(v));
}
VEC vf vf_seen(vf v, const int32_t *seen, int32_t j, vf other) {
    return vbslq_f32(vcgtq_s32(vld1q_s32(seen), vdupq_n_s32(j)), v, other);
} /* v in lanes with seen[lane] > j */
/* Over the lanes: i and i + 2 first, then i + 1. */
VEC float vf_lanes_sum(vf v) {
    float32x2_t h = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
VEC float vf_lanes_max(vf v) {
    return vmaxnmvq_f32(v);
}
VEC vf vf_load_i16(const int16_t *p) {
    return vcvtq_f32_s32(vmovl_s16(vld1_s16(p)));
}
VEC vi vi_pairs(vi low, vi high) {
    return vsliq_n_s32(low, high, 16);
} /* of the low halves */
VEC void vi_store_i16_two(int16_t *p, vi a, vi b) {
    vst1q_s16(p, vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
} /* the low halves */

VEC vi vi_max(vi a, vi b) {
    return vmaxq_s32(a, b);
}
VEC int32_t vi_lanes_max(vi v) {
    return vmaxvq_s32(v);
}
VEC int32_t vi_lanes_sum(vi v) {
    return vaddvq_s32(v);
}
VEC void vi_store_i8(int8_t *p, vi v) { /* of [-128, 127] */
    int16x4_t half = vmovn_s32(v);
    int32_t   four = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(half, half))), 0);
    memcpy(p, &four, sizeof four);
}

/* As td_f32_to_bf16 rounds. */
VEC void vf_store_bf16(uint16_t *p, vf v) {
    uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd),
               quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16));
}

/* Exact (core/math/small_float.h); code 0 of e8m0 is a subnormal. NaN codes become infinity, and 480. */
VEC vf vf_load_e8m0(const uint8_t *p) {
    return vreinterpretq_f32_s32(vmaxq_s32(vi_load_u8(p) << 23, vi_set1(1 << 22)));
}

/* As f16, whose exponents are 8 above those of e4m3. */
VEC vf vf_load_e4m3(const uint8_t *p) {
    uint16x4_t code = vmovn_u32(vreinterpretq_u32_s32(vi_load_u8(p)));
    uint16x4_t magnitude = vshl_n_u16(vand_u16(code, vdup_n_u16(0x7f)), 7),
               sign = vshl_n_u16(vand_u16(code, vdup_n_u16(0x80)), 8);
    return vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(magnitude, sign))) * vf_set1(256);
}

#endif
