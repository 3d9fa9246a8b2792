/*
 * gptq: columns one after the other, each aiming at its weight plus what makes up for the errors before it. With H = L D L^T
 * and the columns from the last to the first, column i aims at t_i = w_i + sum over j > i of (w_j - s q_j) L_ji, and error =
 * sum over i of d_i (t_i - s q_i)^2, so the error of a row comes with its codes.
 */
#include <string.h>

#include "quant/round_panel.h"
#include "quant/weight_quant.h"

/* Scales to try: nearest's at 0, clip's at 1. Targets spread wider than the weights, so the best ones tend to lie between.
 */
static const float TRIALS[TD_ROUND_TRIALS_MAX] = {0, 1, 0.5f, 0.75f, 0.25f, 1.2f, 0.9f};

void td_factor_unit(float *l, size_t k, float *d) {
    for (size_t i = 0; i < k; i++) d[i] = l[i * k + i];
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < i; j++) l[i * k + j] /= d[j];
    for (size_t i = 0; i < k; i++) d[i] *= d[i];
}

/* Columns [i0, i1) of a chunk, i1 - i0 <= ROUND_CHUNK; t [i1 - i0, nr] are their targets, but for the errors within the
 * chunk. */
static void feed_chunk(const round_panel *p, const round_factor *f, size_t i0, size_t i1, const float *s, const float *inv,
                       float *e, float *t, int8_t *q, float *err) {
    size_t nr = p->nr;
    for (size_t i = i1; i-- > i0;) {
        float *restrict target = t + (i - i0) * nr;
        for (size_t j = i + 1; j < i1; j++) {
            const float *restrict ej = e + j * nr;
            float l = f->l[j * p->k + i];
            for (size_t r = 0; r < nr; r++) target[r] += ej[r] * l;
        }
        size_t c = f->column[i], g = c / p->group;
        float *restrict ei = e + i * nr, *restrict er = err;
        const float *restrict w = p->w + c * nr, *restrict sg = s + g * nr, *restrict ig = inv + g * nr;
        int8_t *restrict qi = q + i * nr;
        float d = f->d[i], lo = p->q_lo, hi = p->q_hi;
        for (size_t r = 0; r < nr; r++) {
            float code = round_code(target[r] * ig[r], lo, hi), v = sg[r] * code, miss = target[r] - v;
            ei[r] = w[r] - v;
            er[r] += d * miss * miss;
            qi[r] = (int8_t)code;
        }
    }
}

static void feed(const round_panel *p, const round_factor *f, const float *s, const float *inv, float *e, float *t,
                 int8_t *q, float *err) {
    size_t k = p->k, nr = p->nr;
    memset(err, 0, nr * sizeof *err);
    for (size_t b1 = k, b0; b1 > 0; b1 = b0) {
        b0 = (b1 - 1) / ROUND_BLOCK * ROUND_BLOCK;
        for (size_t i = b0; i < b1; i++) memcpy(t + (i - b0) * nr, p->w + f->column[i] * nr, nr * sizeof *t);
        round_gemm(p, 1, f->l + b1 * k + b0, e + b1 * nr, b1 - b0, k - b1, t);
        for (size_t c1 = b1, c0; c1 > b0; c1 = c0) {
            c0 = (c1 - 1) / ROUND_CHUNK * ROUND_CHUNK;
            round_gemm(p, 1, f->l + c1 * k + c0, e + c1 * nr, c1 - c0, b1 - c1, t + (c0 - b0) * nr);
            feed_chunk(p, f, c0, c1, s, inv, e, t + (c0 - b0) * nr, q, err);
        }
    }
}

/* better[r] = all bits where err < p->err, which becomes the lesser. */
static void compare(round_panel *p, const float *err, int8_t *better) {
    for (size_t r = 0; r < p->nr; r++) {
        better[r] = (int8_t) - (err[r] < p->err[r]);
        p->err[r] = err[r] < p->err[r] ? err[r] : p->err[r];
    }
}

static void take_codes(round_panel *p, const round_factor *f, const int8_t *q, const int8_t *better) {
    for (size_t i = 0; i < p->k; i++) {
        int8_t *restrict to = p->q + f->column[i] * p->nr;
        const int8_t *restrict from = q + i * p->nr;
        for (size_t r = 0; r < p->nr; r++) to[r] = (int8_t)((from[r] & better[r]) | (to[r] & ~better[r]));
    }
}

void td_panel_feedback(round_panel *p, const round_factor *f, uint32_t n_trials, const round_scratch *w) {
    size_t  nr = p->nr, n_scales = p->n_groups * nr;
    float  *s = w->scales, *inv = s + n_scales, *nearest = s + 2 * n_scales, *clip = s + 3 * n_scales, *err = w->rows;
    int8_t *better = (int8_t *)(w->rows + nr);
    memcpy(nearest, p->s, n_scales * sizeof *s);
    if (n_trials > 1) td_panel_clip(p, w);
    memcpy(clip, p->s, n_scales * sizeof *s);
    for (size_t r = 0; r < nr; r++) p->err[r] = INFINITY;
    for (uint32_t i = 0; i < n_trials; i++) {
        for (size_t j = 0; j < n_scales; j++) {
            s[j] = td_fit_scale(p->scale_dtype, nearest[j] + TRIALS[i] * (clip[j] - nearest[j]));
            inv[j] = round_inverse(s[j]);
        }
        feed(p, f, s, inv, w->full[0], w->block, w->codes, err);
        compare(p, err, better);
        take_codes(p, f, w->codes, better);
        for (size_t j = 0; j < n_scales; j++)
            if (better[j % nr]) p->s[j] = s[j];
    }
}
