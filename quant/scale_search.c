/* clip: scales that are better than max |w| / qmax, and rounding to nearest. */
#include <string.h>

#include "quant/round_panel.h"
#include "quant/weight_quant.h"

/* Factors of nearest's scale: 1 - i STEP; then those around the best one, STEP / FINE apart; then refits. The error is
 * jagged in the scale where few inputs are loud. */
#define GRID 14
#define STEP 0.05f
#define FINE 6
#define REFITS 3

void td_panel_nearest(round_panel *p) {
    for (size_t j = 0; j < p->k; j++) {
        const float *restrict w = p->w + j * p->nr, *restrict s = p->s + j / p->group * p->nr;
        int8_t *restrict q = p->q + j * p->nr;
        for (size_t r = 0; r < p->nr; r++) q[r] = (int8_t)round_code(w[r] * round_inverse(s[r]), p->q_lo, p->q_hi);
    }
}

/* A scale for each row, [nr] each, and what it gives. */
typedef struct {
    float *s, *inv;
    float *err;
    float *num, *den; /* with the codes as they are, the best scale is num / den */
    float *fit;
} trial;

/* Round columns [j0, j1) with scales t->s. */
static void try_scales(const round_panel *p, size_t j0, size_t j1, const trial *t) {
    size_t nr = p->nr;
    float *restrict err = t->err, *restrict num = t->num, *restrict den = t->den, *restrict inv = t->inv;
    const float *restrict s = t->s;
    for (size_t r = 0; r < nr; r++) {
        inv[r] = round_inverse(s[r]);
        err[r] = num[r] = den[r] = 0;
    }
    for (size_t j = j0; j < j1; j++) {
        const float *restrict w = p->w + j * nr;
        float h = p->weight[j], lo = p->q_lo, hi = p->q_hi;
        for (size_t r = 0; r < nr; r++) {
            float q = round_code(w[r] * inv[r], lo, hi), d = w[r] - s[r] * q, hq = h * q;
            err[r] += h * d * d;
            num[r] += hq * w[r];
            den[r] += hq * q;
        }
    }
    for (size_t r = 0; r < nr; r++) t->fit[r] = den[r] > 0 ? num[r] / den[r] : 0;
}

/* Take a trial's scales in the rows where they are better. One that the type cannot hold was tried as 0, all codes 0: no row
 * gains by that unless all of it is too small. */
static void keep_better(size_t nr, const trial *t, float *s, float *err, float *fit) {
    for (size_t r = 0; r < nr; r++)
        if (t->err[r] < err[r]) {
            err[r] = t->err[r];
            s[r] = t->s[r];
            fit[r] = t->fit[r];
        }
}

void td_panel_clip(round_panel *p, const round_scratch *w) {
    size_t nr = p->nr;
    float *base = w->rows, *fit = base + nr, *err = base + 2 * nr, *of = base + 3 * nr;
    trial  t = {of, of + nr, of + 2 * nr, of + 3 * nr, of + 4 * nr, of + 5 * nr};
    memset(p->err, 0, nr * sizeof *p->err);
    for (size_t g = 0; g < p->n_groups; g++) {
        size_t j0 = g * p->group, j1 = j0 + p->group < p->k ? j0 + p->group : p->k;
        float *s = p->s + g * nr, *centre = w->rows + 9 * nr;
        memcpy(base, s, nr * sizeof *base);
        for (size_t r = 0; r < nr; r++) {
            err[r] = INFINITY;
            fit[r] = s[r];
        }
        for (int i = 0; i < GRID; i++) {
            for (size_t r = 0; r < nr; r++) t.s[r] = td_fit_scale(p->scale_dtype, base[r] * (1 - STEP * (float)i));
            try_scales(p, j0, j1, &t);
            keep_better(nr, &t, s, err, fit);
        }
        memcpy(centre, s, nr * sizeof *centre);
        for (int i = 1 - FINE; i < FINE; i++) {
            if (i == 0) continue;
            for (size_t r = 0; r < nr; r++)
                t.s[r] = td_fit_scale(p->scale_dtype, centre[r] + base[r] * (STEP / FINE) * (float)i);
            try_scales(p, j0, j1, &t);
            keep_better(nr, &t, s, err, fit);
        }
        for (int i = 0; i < REFITS; i++) {
            for (size_t r = 0; r < nr; r++) t.s[r] = td_fit_scale(p->scale_dtype, fit[r]);
            try_scales(p, j0, j1, &t);
            keep_better(nr, &t, s, err, fit);
        }
        for (size_t r = 0; r < nr; r++) p->err[r] += err[r];
    }
    td_panel_nearest(p);
}
