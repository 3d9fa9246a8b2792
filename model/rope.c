/* Rotary position embedding: frequencies of plain and YaRN rope, and the table of cosines and sines. */
#include <math.h>

#include "model/arch/model_config.h"

/* M(u) of the YaRN attention temperature: 1 for no extension, else 0.1 u ln(s) + 1. */
static double yarn_mscale(double factor, double u) {
    return factor <= 1 ? 1.0 : 0.1 * u * log(factor) + 1.0;
}

/* The dim (a real number) whose wavelength makes `rotations` turns within `length` positions. */
static double correction_dim(double rotations, uint32_t dim, double theta, double length) {
    return dim * log(length / (rotations * 2 * M_PI)) / (2 * log(theta));
}

void td_rope_frequencies(const td_rope_config *c, uint32_t max_position, double *inv_freq, double *cos_sin_scale) {
    uint32_t half = c->dim / 2;
    *cos_sin_scale = 1.0;
    if (c->kind == TD_ROPE_PLAIN) {
        for (uint32_t i = 0; i < half; i++) inv_freq[i] = pow(c->theta, -2.0 * i / c->dim) / c->factor;
        return;
    }
    double length = c->original_max_position ? c->original_max_position : max_position;
    double low = correction_dim(c->beta_fast, c->dim, c->theta, length);
    double high = correction_dim(c->beta_slow, c->dim, c->theta, length);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->dim - 1);
    double width = high > low ? high - low : 0.001;
    for (uint32_t i = 0; i < half; i++) {
        double plain = pow(c->theta, -2.0 * i / c->dim);
        double ramp = fmin(fmax((i - low) / width, 0), 1); /* 0: fast dim, kept; 1: slow dim, interpolated */
        inv_freq[i] = ramp * plain / c->factor + (1 - ramp) * plain;
    }
    if (c->attention_factor > 0)
        *cos_sin_scale = c->attention_factor;
    else if (c->mscale != 0 && c->mscale_all_dim != 0)
        *cos_sin_scale = yarn_mscale(c->factor, c->mscale) / yarn_mscale(c->factor, c->mscale_all_dim);
    else
        *cos_sin_scale = yarn_mscale(c->factor, 1.0);
}

double td_rope_softmax_factor(const td_rope_config *c) {
    if (c->kind != TD_ROPE_YARN || c->mscale_all_dim == 0) return 1.0;
    double m = yarn_mscale(c->factor, c->mscale_all_dim);
    return m * m;
}

void td_rope_table(const td_rope_config *c, uint32_t max_position, uint32_t max_pos, float *table) {
    uint32_t half = c->dim / 2;
    double   inv_freq[TD_ROPE_DIM_MAX / 2], scale;
    td_rope_frequencies(c, max_position, inv_freq, &scale);
    for (size_t p = 0; p < max_pos; p++)
        for (uint32_t i = 0; i < half; i++) {
            double angle = (double)p * inv_freq[i];
            table[p * c->dim + i] = (float)(cos(angle) * scale);
            table[p * c->dim + half + i] = (float)(sin(angle) * scale);
        }
}
