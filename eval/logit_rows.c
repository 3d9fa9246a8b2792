#include "eval/logit_rows.h"

#include <math.h>

#define CODE_TOP 65535.0f

double td_log_sum_exp(const float *x, size_t n) {
    float  max = x[td_row_best(x, n)];
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += expf(x[i] - max);
    return isfinite(max) && isfinite(sum) ? (double)max + log(sum) : NAN;
}

double td_kl_divergence(const float *p, double p_lse, const float *q, double q_lse, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double log_p = p[i] - p_lse, prob = expf((float)log_p);
        if (prob > 0) sum += prob * (log_p - (q[i] - q_lse));
    }
    return sum;
}

uint32_t td_row_best(const float *x, size_t n) {
    uint32_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = (uint32_t)i;
    return best;
}

void td_logprobs_encode(const float *x, double lse, size_t n, float *range, uint16_t *code) {
    float least = 0;
    for (size_t i = 0; i < n; i++) least = fminf(least, x[i] - (float)lse);
    *range = fminf(-least, TD_CODE_RANGE_MAX);
    float scale = *range > 0 ? 1 / *range : 0;
    for (size_t i = 0; i < n; i++) {
        float part = fminf(fmaxf((float)(lse - x[i]), 0) * scale, 1);
        code[i] = (uint16_t)lrintf(sqrtf(part) * CODE_TOP);
    }
}

void td_logprobs_decode(float range, const uint16_t *code, size_t n, float *x) {
    for (size_t i = 0; i < n; i++) {
        float part = (float)code[i] * (1 / CODE_TOP);
        x[i] = -range * part * part;
    }
}
