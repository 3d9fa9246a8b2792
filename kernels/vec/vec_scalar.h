/*
 * The vectors of the kernels' bodies in plain C (docs/kernels.md has the vocabulary), for any processor: four lanes, which
 * compilers make of what there is. What C's operators do lane by lane (+ - * / & ^ << >>) has no name here.
 */
#ifndef TD_KERNELS_VEC_VEC_SCALAR_H
#define TD_KERNELS_VEC_VEC_SCALAR_H

#include <math.h>
#include <string.h>

#include "core/dtype.h"

#define LANES 4
typedef float   vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16), may_alias));

#define VEC static inline __attribute__((always_inline))

/* Where the mask has ones. */
VEC vf vf_select(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

VEC vf vf_set1(float f) {
    return (vf){f, f, f, f};
}
VEC vi vi_set1(int32_t i) {
    return (vi){i, i, i, i};
}
VEC vf vf_of_vi(vi v) {
    return __builtin_convertvector(v, vf);
}
VEC vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
VEC void vf_store(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}
VEC vf vf_fma(vf a, vf b, vf c) {
    return (vf){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]), fmaf(a[2], b[2], c[2]), fmaf(a[3], b[3], c[3])};
}
VEC vf vf_mla(vf a, vf b, vf c) {
    return a * b + c;
} /* fused where that is fast */
VEC vf vf_max(vf a, vf b) {
    return vf_select(a > b, a, b);
} /* b where one is a NaN; so vf_min */
VEC vf vf_min(vf a, vf b) {
    return vf_select(a < b, a, b);
}
VEC vf vf_unless_below(vf x, vf least, vf v) {
    return (vf)(~(x < least) & (vi)v);
} /* 0 where x < least */
VEC vf vf_load_bf16(const td_bf16 *p) {
    return (vf){td_bf16_to_f32(p[0]), td_bf16_to_f32(p[1]), td_bf16_to_f32(p[2]), td_bf16_to_f32(p[3])};
}

/* The first n < LANES lanes touch memory, the others are 0. */
VEC vf vf_load_n(const float *p, size_t n) {
    vf v = {0};
    memcpy(&v, p, n * sizeof *p);
    return v;
}
VEC void vf_store_n(float *p, vf v, size_t n) {
    memcpy(p, &v, n * sizeof *p);
}
VEC vf vf_load_bf16_n(const td_bf16 *p, size_t n) {
    td_bf16 lanes[LANES] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return vf_load_bf16(lanes);
}

VEC void vf_store_bf16(td_bf16 *p, vf v) {
    for (int i = 0; i < LANES; i++) p[i] = td_f32_to_bf16(v[i]);
}

VEC vf vf_absmax(vf a, vf b) {
    return vf_max((vf)((vi)b & vi_set1(INT32_MAX)), a);
} /* a >= 0 or |b| */
VEC vi vi_loadu(const void *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
VEC void vi_storeu(void *p, vi v) {
    memcpy(p, &v, sizeof v);
}
VEC vf vf_seen(vf v, const int32_t *seen, int32_t j, vf other) {
    return vf_select(vi_loadu(seen) > vi_set1(j), v, other);
} /* v in lanes with seen[lane] > j */
/* Over the lanes: i and i + 2 first, then i + 1. */
VEC float vf_lanes_sum(vf v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}
VEC float vf_lanes_max(vf v) {
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
VEC vf vf_load_i16(const int16_t *p) {
    return (vf){p[0], p[1], p[2], p[3]};
}
VEC vi vi_pairs(vi low, vi high) {
    return (low & vi_set1(0xffff)) | high << 16;
} /* of the low halves */
VEC void vi_store_i16_two(int16_t *p, vi a, vi b) { /* the low halves */
    for (int i = 0; i < LANES; i++) p[i] = (int16_t)a[i], p[LANES + i] = (int16_t)b[i];
}

#endif
