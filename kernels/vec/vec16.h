/*
 * Vectors of 16 lanes, on those of the vec_SET.h that the includer brought: as many of them as it takes. For work whose
 * result must not depend on how wide a set's vectors are. And names for what C's operators do, for text that is compiled for
 * both widths.
 */
#ifndef TD_KERNELS_VEC_VEC16_H
#define TD_KERNELS_VEC_VEC16_H

#ifndef LANES
#include "kernels/vec/vec_scalar.h"
#endif

#define PARTS (16 / LANES)

typedef struct {
    vf part[PARTS]; /* lanes i * LANES .. of part i */
} vf16;
typedef struct {
    vi part[PARTS];
} vi16;

#define EACH_PART _Pragma("GCC unroll 4") for (int p = 0; p < PARTS; p++)

VEC vf vf_add(vf a, vf b) {
    return a + b;
}
VEC vf vf_sub(vf a, vf b) {
    return a - b;
}
VEC vf vf_mul(vf a, vf b) {
    return a * b;
}
VEC vf vf_div(vf a, vf b) {
    return a / b;
}
VEC vf vf_ldexp(vf v, vf t) {
    return (vf)((vi)v + ((vi)t << 23));
} /* v * 2^n for t = n + 1.5 * 2^23 */
VEC vi vi_round(vf x, vf factor) {
    return (vi)vf_fma(x, factor, vf_set1(12582912.0f));
} /* x * factor to nearest, half to even, in the low half */
VEC void vi_store_pairs(int32_t *to, vi low, vi high) {
    vi_storeu(to, vi_pairs(low, high));
}

#define BINARY16(name)                                         \
    VEC vf16 vf16_##name(vf16 a, vf16 b) {                     \
        EACH_PART a.part[p] = vf_##name(a.part[p], b.part[p]); \
        return a;                                              \
    }
BINARY16(add)
BINARY16(sub)
BINARY16(mul)
BINARY16(div)
BINARY16(max)
BINARY16(min)
BINARY16(absmax)
BINARY16(ldexp)

VEC vf16 vf16_set1(float f) {
    vf16      v;
    EACH_PART v.part[p] = vf_set1(f);
    return v;
}
VEC vf16 vf16_load(const float *from) {
    vf16      v;
    EACH_PART v.part[p] = vf_load(from + p * LANES);
    return v;
}
VEC void vf16_store(float *to, vf16 v) {
    EACH_PART vf_store(to + p * LANES, v.part[p]);
}
VEC vf16 vf16_load_i16(const int16_t *from) {
    vf16      v;
    EACH_PART v.part[p] = vf_load_i16(from + p * LANES);
    return v;
}
VEC vf16 vf16_mla(vf16 a, vf16 b, vf16 c) {
    EACH_PART a.part[p] = vf_mla(a.part[p], b.part[p], c.part[p]);
    return a;
}
VEC vf16 vf16_seen(vf16 v, const int32_t *seen, int32_t j, vf16 other) {
    EACH_PART v.part[p] = vf_seen(v.part[p], seen + p * LANES, j, other.part[p]);
    return v;
}

/* Over the lanes: i and i + 8 first, then i + 4, 2, 1. */
VEC float vf16_lanes_sum(vf16 v) {
    for (int half = PARTS / 2; half; half /= 2)
        for (int p = 0; p < half; p++) v.part[p] += v.part[p + half];
    return vf_lanes_sum(v.part[0]);
}
VEC float vf16_lanes_max(vf16 v) {
    for (int half = PARTS / 2; half; half /= 2)
        for (int p = 0; p < half; p++) v.part[p] = vf_max(v.part[p], v.part[p + half]);
    return vf_lanes_max(v.part[0]);
}

VEC vi16 vi16_round(vf16 x, vf16 factor) {
    vi16      v;
    EACH_PART v.part[p] = vi_round(x.part[p], factor.part[p]);
    return v;
}
VEC void vi16_store_pairs(int32_t *to, vi16 low, vi16 high) {
    EACH_PART vi_store_pairs(to + p * LANES, low.part[p], high.part[p]);
}
VEC void vi16_store_i16_two(int16_t *to, vi16 a, vi16 b) { /* the low halves */
#if LANES == 16
    vi_store_i16_two(to, a.part[0], b.part[0]);
#else
    for (int p = 0; p < PARTS; p += 2) vi_store_i16_two(to + p * LANES, a.part[p], a.part[p + 1]);
    for (int p = 0; p < PARTS; p += 2) vi_store_i16_two(to + 16 + p * LANES, b.part[p], b.part[p + 1]);
#endif
}

/* 32 bf16 side by side, and the even and the odd ones of them as floats. */
VEC vi16 vi16_load(const void *from) {
    vi16      v;
    EACH_PART v.part[p] = vi_loadu((const char *)from + p * sizeof v.part[0]);
    return v;
}
VEC vf16 vf16_even_bf16(vi16 pairs) {
    vf16      v;
    EACH_PART v.part[p] = (vf)(pairs.part[p] << 16);
    return v;
}
VEC vf16 vf16_odd_bf16(vi16 pairs) {
    vf16      v;
    EACH_PART v.part[p] = (vf)(pairs.part[p] & vi_set1((int32_t)0xffff0000));
    return v;
}

#endif
