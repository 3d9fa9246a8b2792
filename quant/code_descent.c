/*
 * Coordinate descent on the codes of a matrix: with G = (W - Q) H kept up to date, the error as a function of one weight's
 * value is a parabola with its minimum G_j / H_jj away, and the best code is the one nearest to that. A scale is a
 * coordinate like another: with the codes q of its weights it has its minimum (G q) / (q H q) away.
 */
#include <string.h>

#include "quant/round_panel.h"
#include "quant/weight_quant.h"

#define HAIR 1e-5f

typedef struct {
    float *g;       /* [k, nr] G */
    float *hw;      /* [k, nr] W H; one scale a row only */
    float *gb, *db; /* [ROUND_BLOCK, nr] G of the block's columns while they change; how much their weights have changed */
    float *qb, *hq; /* [ROUND_BLOCK, nr] a group's codes, times H */
    float *num, *den, *ds; /* [nr] */
} descent;

/* out [k, nr] = H x */
static void times_hessian(const round_panel *p, const float *x, float *out) {
    size_t n = p->k * p->nr;
    for (size_t i = 0; i < n; i++) out[i] = p->damp * x[i];
    round_gemm(p, 1, p->h, x, p->k, p->k, out);
}

static void start(const round_panel *p, const descent *t, float *x) {
    size_t nr = p->nr;
    for (size_t j = 0; j < p->k; j++)
        for (size_t r = 0; r < nr; r++) {
            size_t at = j * nr + r;
            float  v = p->s[j / p->group * nr + r] * (float)p->q[at];
            x[at] = t->hw ? v : p->w[at] - v;
        }
    times_hessian(p, x, t->g);
    if (!t->hw) return;
    times_hessian(p, p->w, t->hw);
    for (size_t i = 0; i < p->k * nr; i++) t->g[i] = t->hw[i] - t->g[i];
}

/* err[r] = sum over columns of (w - s q) G */
static void errors(const round_panel *p, const float *g, float *restrict err) {
    size_t nr = p->nr;
    memset(err, 0, nr * sizeof *err);
    for (size_t j = 0; j < p->k; j++) {
        const float *restrict w = p->w + j * nr, *restrict s = p->s + j / p->group * nr, *restrict gj = g + j * nr;
        const int8_t *restrict q = p->q + j * nr;
        for (size_t r = 0; r < nr; r++) err[r] += (w[r] - s[r] * (float)q[r]) * gj[r];
    }
}

/* Columns [j0, j1), a chunk; g [j1 - j0, nr] is theirs but for what changes within the chunk; changes of the weights go to
 * d. Returns whether there was one. */
static bool descend_chunk(const round_panel *p, size_t j0, size_t j1, float *g, float *d) {
    size_t nr = p->nr;
    int    changed = 0;
    for (size_t j = j0; j < j1; j++) {
        float *restrict gj = g + (j - j0) * nr, *restrict dj = d + (j - j0) * nr;
        for (size_t i = j0; i < j; i++) {
            const float *restrict di = d + (i - j0) * nr;
            float h = p->h[i * p->k + j];
            for (size_t r = 0; r < nr; r++) gj[r] -= h * di[r];
        }
        const float *restrict s = p->s + j / p->group * nr;
        int8_t *restrict q = p->q + j * nr;
        float lo = p->q_lo, hi = p->q_hi, inv_h = 1 / p->weight[j];
        for (size_t r = 0; r < nr; r++) {
            float old = (float)q[r], code = round_code(old + gj[r] * inv_h * round_inverse(s[r]), lo, hi);
            dj[r] = s[r] * (code - old);
            changed |= code != old;
            q[r] = (int8_t)code;
        }
    }
    return changed;
}

/* Scales to their minima where that is better, after rounding to their type too. t->ds: by how much, 0 where one stays.
 * Returns whether one moved by more than a hair. */
static bool refit(const round_panel *p, const descent *t, float *s) {
    bool moved = false;
    for (size_t r = 0; r < p->nr; r++) {
        float num = t->num[r], den = t->den[r];
        float fit = den > 0 ? td_fit_scale(p->scale_dtype, s[r] + num / den) : 0, step = fit - s[r];
        bool  better = fit > 0 && s[r] > 0 && step * (2 * num - step * den) > 0;
        t->ds[r] = better ? step : 0;
        moved |= fabsf(t->ds[r]) > HAIR * s[r];
        s[r] = better ? fit : s[r];
    }
    return moved;
}

/* The scale of columns [j0, j0 + m), a block that is a group; t->db has their changes since t->g and gets the scale's. */
static bool refit_group(round_panel *p, const descent *t, size_t j0, size_t m) {
    size_t        nr = p->nr;
    const int8_t *q = p->q + j0 * nr;
    float *restrict num = t->num, *restrict den = t->den;
    memcpy(t->gb, t->g + j0 * nr, m * nr * sizeof *t->gb);
    round_gemm(p, -1, p->h + j0 * p->k + j0, t->db, m, m, t->gb);
    for (size_t i = 0; i < m * nr; i++) {
        t->gb[i] -= p->damp * t->db[i];
        t->qb[i] = (float)q[i];
        t->hq[i] = p->damp * t->qb[i];
    }
    round_gemm(p, 1, p->h + j0 * p->k + j0, t->qb, m, m, t->hq);
    memset(num, 0, nr * sizeof *num);
    memset(den, 0, nr * sizeof *den);
    for (size_t j = 0; j < m; j++)
        for (size_t r = 0; r < nr; r++) {
            num[r] += t->qb[j * nr + r] * t->gb[j * nr + r];
            den[r] += t->qb[j * nr + r] * t->hq[j * nr + r];
        }
    bool moved = refit(p, t, p->s + j0 / p->group * nr);
    for (size_t j = 0; j < m; j++)
        for (size_t r = 0; r < nr; r++) t->db[j * nr + r] += t->ds[r] * t->qb[j * nr + r];
    return moved;
}

/* The scale of whole rows. */
static bool refit_rows(round_panel *p, const descent *t) {
    size_t nr = p->nr;
    float *restrict num = t->num, *restrict den = t->den, *restrict s = p->s;
    memset(num, 0, nr * sizeof *num);
    memset(den, 0, nr * sizeof *den);
    for (size_t j = 0; j < p->k; j++) {
        const float *restrict g = t->g + j * nr, *restrict hw = t->hw + j * nr;
        const int8_t *restrict q = p->q + j * nr;
        for (size_t r = 0; r < nr; r++) {
            num[r] += (float)q[r] * g[r];
            den[r] += (float)q[r] * (hw[r] - g[r]); /* times the scale */
        }
    }
    for (size_t r = 0; r < nr; r++) {
        den[r] *= round_inverse(s[r]);
        t->db[r] = round_inverse(s[r]);
    }
    bool moved = refit(p, t, s);
    for (size_t r = 0; r < nr; r++) t->db[r] *= t->ds[r];
    for (size_t j = 0; j < p->k; j++) {
        float *restrict g = t->g + j * nr;
        const float *restrict hw = t->hw + j * nr, *restrict more = t->db;
        for (size_t r = 0; r < nr; r++) g[r] -= more[r] * (hw[r] - g[r]);
    }
    return moved;
}

/* All codes once, and scales. Returns whether one changed. */
static bool sweep(round_panel *p, const descent *t) {
    size_t k = p->k, nr = p->nr, width = t->hw ? ROUND_BLOCK : p->group;
    bool   changed = false;
    for (size_t j0 = 0; j0 < k; j0 += width) {
        size_t m = k - j0 < width ? k - j0 : width;
        memcpy(t->gb, t->g + j0 * nr, m * nr * sizeof *t->gb);
        for (size_t c0 = 0; c0 < m; c0 += ROUND_CHUNK) {
            size_t c1 = c0 + ROUND_CHUNK < m ? c0 + ROUND_CHUNK : m;
            round_gemm(p, -1, p->h + j0 * k + j0 + c0, t->db, c1 - c0, c0, t->gb + c0 * nr);
            changed |= descend_chunk(p, j0 + c0, j0 + c1, t->gb + c0 * nr, t->db + c0 * nr);
        }
        if (!t->hw) changed |= refit_group(p, t, j0, m);
        round_gemm(p, -1, p->h + j0 * k, t->db, k, m, t->g);
        for (size_t i = 0; i < m * nr; i++) t->g[j0 * nr + i] -= p->damp * t->db[i];
    }
    if (t->hw) changed |= refit_rows(p, t);
    return changed;
}

/* Undo what made a row worse, which only rounding errors can do. */
static void keep_better(round_panel *p, const float *before, const float *after, const int8_t *q, const float *s) {
    size_t nr = p->nr;
    for (size_t r = 0; r < nr; r++) {
        p->err[r] = after[r];
        if (after[r] <= before[r]) continue;
        p->err[r] = before[r];
        for (size_t j = 0; j < p->k; j++) p->q[j * nr + r] = q[j * nr + r];
        for (size_t g = 0; g < p->n_groups; g++) p->s[g * nr + r] = s[g * nr + r];
    }
}

void td_panel_descend(round_panel *p, uint32_t sweeps, const round_scratch *w) {
    size_t  nr = p->nr, block = ROUND_BLOCK * nr;
    float  *before = w->rows + 3 * nr, *after = w->rows + 4 * nr;
    descent t = {.g = w->full[0],
                 .hw = p->n_groups == 1 ? w->full[1] : NULL,
                 .gb = w->block,
                 .db = w->block + block,
                 .qb = w->block + 2 * block,
                 .hq = w->block + 3 * block,
                 .num = w->rows,
                 .den = w->rows + nr,
                 .ds = w->rows + 2 * nr};
    memcpy(w->codes, p->q, p->k * nr);
    memcpy(w->scales, p->s, p->n_groups * nr * sizeof *p->s);
    start(p, &t, w->full[2]);
    errors(p, t.g, before);
    for (uint32_t i = 0; i < sweeps && sweep(p, &t); i++) {
    }
    start(p, &t, w->full[2]); /* anew, without the rounding errors that G has gathered */
    errors(p, t.g, after);
    keep_better(p, before, after, w->codes, w->scales);
}
