/* The rounding methods over a panel, compiled for each instruction set. */
#include <string.h>

#include "kernels/rounding/round_panel.h"
#include "kernels/this_set.h"

/* ---- scales ---------------------------------------------------------------------------------- */

/* clip: scales that are better than max |w| / qmax, and rounding to nearest. */

/* Factors of nearest's scale: 1 - i STEP; then those around the best one, STEP / FINE apart; then refits. The error is
 * jagged in the scale where few inputs are loud. */
#define GRID 14
#define STEP 0.05f
#define FINE 6
#define REFITS 3

/* Codes by rounding to nearest with the scales as they are. */
static void panel_nearest(round_panel *p) {
    for (size_t j = 0; j < p->k; j++) {
        const float *restrict w = p->w + j * p->nr, *restrict s = p->s + j / p->group * p->nr,
                              *restrict lo = p->lo + j / p->group * p->nr;
        int8_t *restrict q = p->q + j * p->nr;
        for (size_t r = 0; r < p->nr; r++) q[r] = (int8_t)round_code(w[r] * round_inverse(s[r]), lo[r], lo[r] + p->span);
    }
}

/* A scale for each row, [nr] each, and what it gives. */
typedef struct {
    float *s, *inv;
    float *err;
    float *num, *den; /* with the codes as they are, the best scale is num / den */
    float *fit;
} scale_trial;

/* One column of weight h. A function of its own, because gcc finds its vectors only by the restrict of parameters. */
static __attribute__((noinline)) void try_column(size_t nr, const float *restrict w, const float *restrict inv,
                                                 const float *restrict s, const float *restrict lo, float span, float h,
                                                 float *restrict err, float *restrict num, float *restrict den) {
    for (size_t r = 0; r < nr; r++) {
        float q = round_code(w[r] * inv[r], lo[r], lo[r] + span), d = w[r] - s[r] * q, hq = h * q;
        err[r] += h * d * d;
        num[r] += hq * w[r];
        den[r] += hq * q;
    }
}

/* Round columns [j0, j1) with scales t->s. */
static void try_scales(const round_panel *p, size_t j0, size_t j1, const scale_trial *t) {
    size_t nr = p->nr;
    float *restrict err = t->err, *restrict num = t->num, *restrict den = t->den, *restrict inv = t->inv;
    const float *restrict s = t->s, *restrict lo = p->lo + j0 / p->group * nr;
    for (size_t r = 0; r < nr; r++) {
        inv[r] = round_inverse(s[r]);
        err[r] = num[r] = den[r] = 0;
    }
    for (size_t j = j0; j < j1; j++) try_column(nr, p->w + j * nr, inv, s, lo, p->span, p->weight[j], err, num, den);
    for (size_t r = 0; r < nr; r++) t->fit[r] = den[r] > 0 ? num[r] / den[r] : 0;
}

/* Take a trial's scales in the rows where they are better. One that the type cannot hold was tried as 0, all codes 0: no row
 * gains by that unless all of it is too small. */
static void keep_better_scales(size_t nr, const scale_trial *t, float *s, float *err, float *fit) {
    for (size_t r = 0; r < nr; r++)
        if (t->err[r] < err[r]) {
            err[r] = t->err[r];
            s[r] = t->s[r];
            fit[r] = t->fit[r];
        }
}

/* Better scales for the diagonal of H, and their codes. Uses rows. */
static void panel_clip(round_panel *p, const round_scratch *w) {
    size_t      nr = p->nr;
    float      *base = w->rows, *fit = base + nr, *err = base + 2 * nr, *of = base + 3 * nr;
    scale_trial t = {of, of + nr, of + 2 * nr, of + 3 * nr, of + 4 * nr, of + 5 * nr};
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
            keep_better_scales(nr, &t, s, err, fit);
        }
        memcpy(centre, s, nr * sizeof *centre);
        for (int i = 1 - FINE; i < FINE; i++) {
            if (i == 0) continue;
            for (size_t r = 0; r < nr; r++)
                t.s[r] = td_fit_scale(p->scale_dtype, centre[r] + base[r] * (STEP / FINE) * (float)i);
            try_scales(p, j0, j1, &t);
            keep_better_scales(nr, &t, s, err, fit);
        }
        for (int i = 0; i < REFITS; i++) {
            for (size_t r = 0; r < nr; r++) t.s[r] = td_fit_scale(p->scale_dtype, fit[r]);
            try_scales(p, j0, j1, &t);
            keep_better_scales(nr, &t, s, err, fit);
        }
        for (size_t r = 0; r < nr; r++) p->err[r] += err[r];
    }
    panel_nearest(p);
}

/* ---- error feedback -------------------------------------------------------------------------- */

/*
 * gptq: columns one after the other, from the last to the first, each aiming at its weight plus what makes up for the errors
 * before it. With H = L D L^T, column i aims at t_i = w_i + sum over j > i of (w_j - s q_j) L_ji. The error of a row is the
 * sum over i of d_i (t_i - s q_i)^2, so it comes with the row's codes.
 */

/* Scales to try: nearest's at 0, clip's at 1. Targets spread wider than the weights, so the best ones tend to lie between.
 */
static const float TRIALS[TD_ROUND_TRIALS_MAX] = {0, 1, 0.5f, 0.75f, 0.25f, 1.2f, 0.9f};

/* Codes of one column, its errors, and what they add to each row's. See try_column. */
static __attribute__((noinline)) void feed_column(size_t nr, const float *restrict target, const float *restrict w,
                                                  const float *restrict s, const float *restrict inv,
                                                  const float *restrict lo, float span, float d, int8_t *restrict q,
                                                  float *restrict e, float *restrict err) {
    for (size_t r = 0; r < nr; r++) {
        float code = round_code(target[r] * inv[r], lo[r], lo[r] + span), v = s[r] * code, miss = target[r] - v;
        e[r] = w[r] - v;
        err[r] += d * miss * miss;
        q[r] = (int8_t)code;
    }
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
        feed_column(nr, target, p->w + c * nr, s + g * nr, inv + g * nr, p->lo + g * nr, p->span, f->d[i], q + i * nr,
                    e + i * nr, err);
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

/* Codes by error feedback with nearest's scales, which p has, and n_trials - 1 others; each row takes its best trial's codes
 * and scales. */
static void panel_feedback(round_panel *p, const round_factor *f, uint32_t n_trials, const round_scratch *w) {
    size_t  nr = p->nr, n_scales = p->n_groups * nr;
    float  *s = w->scales, *inv = s + n_scales, *nearest = s + 2 * n_scales, *clip = s + 3 * n_scales, *err = w->rows;
    int8_t *better = (int8_t *)(w->rows + nr);
    memcpy(nearest, p->s, n_scales * sizeof *s);
    if (n_trials > 1) panel_clip(p, w);
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

/* ---- descent --------------------------------------------------------------------------------- */

/*
 * Coordinate descent on the codes of a matrix. G = (W - Q) H is kept up to date. As a function of one weight's value the
 * error is a parabola: its minimum is G_j / H_jj away, and the best code is the one nearest to that. A scale is a coordinate
 * like another: with the codes q of its weights it has its minimum (G q) / (q H q) away.
 */

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

/* G from codes and scales; x [k, nr] is scratch. */
static void find_gradient(const round_panel *p, const descent *t, float *x) {
    size_t nr = p->nr;
    for (size_t j = 0; j < p->k; j++)
        for (size_t r = 0; r < nr; r++) {
            size_t at = j * nr + r;
            float  v = p->s[j / p->group * nr + r] * (float)p->q[at];
            x[at] = t->hw ? v : p->w[at] - v;
        }
    times_hessian(p, x, t->g);
    for (size_t i = 0; t->hw && i < p->k * nr; i++) t->g[i] = t->hw[i] - t->g[i];
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
        const float *restrict s = p->s + j / p->group * nr, *restrict lo = p->lo + j / p->group * nr;
        int8_t *restrict q = p->q + j * nr;
        float inv_h = 1 / p->weight[j], span = p->span;
        for (size_t r = 0; r < nr; r++) {
            float old = (float)q[r], code = round_code(old + gj[r] * inv_h * round_inverse(s[r]), lo[r], lo[r] + span);
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

/* Sweeps over single codes, each set to the best value while all others stay, and refits of the scales in between. */
static void panel_descend(round_panel *p, uint32_t sweeps, const round_scratch *w) {
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
    if (t.hw) times_hessian(p, p->w, t.hw);
    find_gradient(p, &t, w->full[2]);
    errors(p, t.g, before);
    for (uint32_t i = 0; i < sweeps && sweep(p, &t); i++) {
    }
    find_gradient(p, &t, w->full[2]); /* anew, without the rounding errors that G has gathered */
    errors(p, t.g, after);
    keep_better(p, before, after, w->codes, w->scales);
}

const td_round_methods TD_OF_SET(round_methods) = {panel_clip, panel_feedback, panel_descend};
