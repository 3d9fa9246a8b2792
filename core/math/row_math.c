#include "core/math/row_math.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define PIECE 1024 /* elements whose exponentials are summed at a time */
#define LANES 16   /* partial results: lane i takes the elements with index % LANES == i */

/* Vectors that every 64-bit machine has, because gcc 12 makes scalar code of loops over lanes of partial maxima. */
typedef float   f32x4 __attribute__((vector_size(16), aligned(4)));
typedef int32_t i32x4 __attribute__((vector_size(16), aligned(4)));

static bool any(i32x4 mask) {
    return mask[0] | mask[1] | mask[2] | mask[3];
}

float td_row_max(const float *x, size_t n) {
    enum { CHAINS = LANES / 4 };
    float  max = -INFINITY;
    f32x4  best[CHAINS];
    i32x4  fine = {-1, -1, -1, -1};
    size_t i = 0;
    for (int k = 0; k < CHAINS; k++) best[k] = (f32x4){max, max, max, max};
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < CHAINS; k++) {
            f32x4 v = *(const f32x4 *)(x + i + 4 * k);
            i32x4 greater = v > best[k];
            best[k] = (f32x4)(((i32x4)v & greater) | ((i32x4)best[k] & ~greater));
            fine &= v < INFINITY;
        }
    bool failed = any(~fine);
    for (; i < n; i++) {
        max = x[i] > max ? x[i] : max;
        failed |= !(x[i] < INFINITY);
    }
    for (int l = 0; l < LANES; l++) max = best[l / 4][l % 4] > max ? best[l / 4][l % 4] : max;
    return failed ? NAN : max;
}

uint32_t td_row_find(const float *x, size_t n, float v) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        i32x4 equal = {0};
        for (int k = 0; k < LANES; k += 4) equal |= *(const f32x4 *)(x + i + k) == v;
        if (any(equal)) break;
    }
    while (i + 1 < n && x[i] != v) i++;
    return (uint32_t)i;
}

/* exp(x) for x <= 0, within 2 ulp; 0 below -87. Cephes' polynomial, without branches so that loops over it vectorise. */
static inline float exp_of_negative(float x) {
    float    c = x < -87.0f ? -87.0f : x;
    float    shifted = c * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: the integer part is in the low mantissa bits */
    float    n = shifted - 12582912.0f;
    float    r = c - n * 0.693359375f + n * 2.12194440e-4f;
    float    p = 1.9875691500e-4f;
    uint32_t bits, exponent;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&exponent, &shifted, sizeof exponent);
    bits += exponent << 23; /* p * 2^n */
    memcpy(&p, &bits, sizeof p);
    return x < -87.0f ? 0.0f : p;
}

void td_row_exp(const float *x, float *e, size_t n) {
    for (size_t i = 0; i < n; i++) e[i] = exp_of_negative(x[i]);
}

double td_row_sum(const float *x, size_t n) {
    double acc[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) acc[l] += x[i + l];
    for (; i < n; i++) acc[i % LANES] += x[i];
    for (int l = 0; l < LANES; l++) sum += acc[l];
    return sum;
}

float td_row_exp_sum(const float *x, size_t n, float max) {
    float  z[PIECE], e[PIECE];
    double sum = 0;
    for (size_t begin = 0; begin < n; begin += PIECE) {
        size_t here = n - begin < PIECE ? n - begin : PIECE;
        for (size_t i = 0; i < here; i++) z[i] = x[begin + i] - max;
        td_row_exp(z, e, here);
        sum += td_row_sum(e, here);
    }
    return (float)sum;
}
