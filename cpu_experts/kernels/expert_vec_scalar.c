/* silu and axpy, reference. */
#include <math.h>
#include <string.h>

#include "cpu_experts/kernels/expert_kernels.h"

static float exp_reference(float x) {
    x = x > EXP_LOW ? x : EXP_LOW; /* the operand order of maxps and minps: a NaN becomes the bound */
    x = x < EXP_HIGH ? x : EXP_HIGH;
    float n = rintf(x * EXP_LOG2E);
    float r = fmaf(n, -EXP_LN2_LOW, fmaf(n, -EXP_LN2_HIGH, x));
    float p = fmaf(EXP_P0, r, EXP_P1);
    p = fmaf(p, r, EXP_P2);
    p = fmaf(p, r, EXP_P3);
    p = fmaf(p, r, EXP_P4);
    p = fmaf(p, r, EXP_P5);
    float    e = fmaf(p, r * r, r) + 1.0f, scale;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    memcpy(&scale, &bits, sizeof scale);
    return e * scale;
}

void td_silu_mul_scalar(const float *gate, const float *up, size_t rows, size_t cols, float *out, size_t ldo) {
    for (size_t r = 0; r < rows; r++, gate += cols, up += cols, out += ldo)
        for (size_t i = 0; i < cols; i++) out[i] = gate[i] / (1.0f + exp_reference(-gate[i])) * up[i];
}

void td_axpy_scalar(float w, const float *v, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = fmaf(w, v[i], y[i]);
}
