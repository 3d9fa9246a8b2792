#include "quant/matrix_round.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "kernels/kernels.h"
#include "quant/hessian.h"
#include "quant/weight_quant.h"

#define ALIGN 64

/* What clip and gptq need to round a panel, in one allocation. */
typedef struct {
    void         *base;
    round_panel   panel;
    round_scratch scratch;
} workplace;

static void *place(char *base, size_t *at, size_t bytes) {
    void *here = base ? base + *at : NULL;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

/* Lay w out from base on; returns the bytes that takes. base NULL: only that. */
static size_t lay_out(workplace *w, char *base, size_t n, size_t k, const td_round_options *o) {
    size_t rows = n < TD_ROUND_ROWS ? n : TD_ROUND_ROWS, nr = (rows + ROUND_CHUNK - 1) / ROUND_CHUNK * ROUND_CHUNK;
    size_t f = sizeof(float), full = k * nr, scales = td_round_scales(o, k) * nr, at = 0;
    w->panel.nr = nr;
    w->panel.w = place(base, &at, full * f);
    w->panel.q = place(base, &at, full);
    w->panel.s = place(base, &at, scales * f);
    w->panel.lo = place(base, &at, scales * f);
    w->panel.err = place(base, &at, nr * f);
    w->scratch.rows = place(base, &at, ROUND_SCRATCH_ROWS * nr * f);
    if (o->method != TD_ROUND_GPTQ) return at;
    for (int i = 0; i < 3; i++) w->scratch.full[i] = place(base, &at, full * f);
    w->scratch.block = place(base, &at, 4 * ROUND_BLOCK * nr * f);
    w->scratch.scales = place(base, &at, 4 * scales * f);
    w->scratch.codes = place(base, &at, full);
    return at;
}

/* The same for a rounding. */
static size_t lay_out_rounding(td_rounding *p, char *base) {
    size_t at = 0;
    p->weight = place(base, &at, p->k * sizeof *p->weight);
    if (p->o.method != TD_ROUND_GPTQ) return at;
    p->l = place(base, &at, p->k * p->k * sizeof *p->l);
    p->d = place(base, &at, p->k * sizeof *p->d);
    p->column = place(base, &at, p->k * sizeof *p->column);
    return at;
}

size_t td_rounding_bytes(size_t k, const td_round_options *o) {
    return o->method == TD_ROUND_NEAREST ? 0 : lay_out_rounding(&(td_rounding){.k = k, .o = *o}, NULL);
}

size_t td_round_rows_bytes(size_t n, size_t k, const td_round_options *o) {
    workplace w;
    return o->method == TD_ROUND_NEAREST ? k * (sizeof(float) + 1) + o->group : lay_out(&w, NULL, n, k, o);
}

static td_status not_finite(size_t row, td_error *err) {
    return td_fail(err, TD_EFORMAT, "row %zu of a weight holds a NaN, an infinity, or numbers that are too large", row);
}

static td_status round_nearest(const float *w, size_t n, size_t k, const td_round_options *o, int8_t *q, float *scale,
                               td_error *err) {
    size_t n_scales = td_round_scales(o, k), width = n_scales * o->group;
    float *tmp = malloc(td_round_rows_bytes(n, k, o));
    if (!tmp) return td_fail(err, TD_ENOMEM, "out of memory for a row of %zu weights", k);
    uint8_t *codes = (uint8_t *)(tmp + k);
    bool     finite = true;
    size_t   r = 0;
    for (; r < n && finite; r++) {
        const float *row = w + r * k;
        int8_t      *to = q + r * k;
        float       *s = scale + r * n_scales;
        if (o->bits == 8)
            finite = td_quantize_weight_i8(TD_DT_F32, row, 1, k, to, k, s);
        else if (!o->group)
            finite = td_quantize_weight_i4(TD_DT_F32, row, 1, k, to, k, s);
        else {
            finite = td_quantize_weight_i4_groups(TD_DT_F32, row, 1, k, o->group, o->scale_dtype, codes, width, s, tmp);
            for (size_t j = 0; j < k; j++) to[j] = (int8_t)(codes[j] - 8);
        }
    }
    free(tmp);
    return finite ? TD_OK : not_finite(r - 1, err);
}

/* Rows of w into the panel, transposed, with nearest's scales. The padding is rows of zeros. */
static td_status load_panel(round_panel *p, const float *w, size_t row0, size_t rows, td_error *err) {
    size_t k = p->k, nr = p->nr;
    for (size_t j0 = 0; j0 < k; j0 += ROUND_CHUNK)
        for (size_t r = 0; r < nr; r++)
            for (size_t j = j0; j < k && j < j0 + ROUND_CHUNK; j++) p->w[j * nr + r] = r < rows ? w[(row0 + r) * k + j] : 0;
    float *most = p->s, *least = p->lo,
          *good = p->err; /* of a group's weights and 0; 0 * w, which is NaN for what is not finite */
    memset(most, 0, p->n_groups * nr * sizeof *most);
    memset(least, 0, p->n_groups * nr * sizeof *least);
    memset(good, 0, nr * sizeof *good);
    for (size_t j = 0; j < k; j++) {
        float *restrict hi = most + j / p->group * nr, *restrict lo = least + j / p->group * nr, *restrict gr = good;
        const float *restrict wj = p->w + j * nr;
        for (size_t r = 0; r < nr; r++) {
            hi[r] = wj[r] > hi[r] ? wj[r] : hi[r];
            lo[r] = wj[r] < lo[r] ? wj[r] : lo[r];
            gr[r] += 0 * wj[r];
        }
    }
    for (size_t r = 0; r < nr; r++) {
        bool finite = good[r] == 0;
        for (size_t g = 0; g < p->n_groups; g++) {
            float *s = &p->s[g * nr + r], *lo = &p->lo[g * nr + r], nearest;
            if (p->symmetric) {
                nearest = fmaxf(*s, -*lo) / (p->span / 2);
                *lo = -p->span / 2;
            } else {
                nearest = td_int4_scale(*lo, *s);
                *lo = nearest < 0 ? -7 : -8;
                nearest = fabsf(nearest);
            }
            *s = td_fit_scale(p->scale_dtype, nearest);
            finite = finite && (*s > 0 || nearest < 1);
        }
        if (!finite) return not_finite(row0 + r, err);
    }
    return TD_OK;
}

/* Codes in [-7, 8] become those in [-8, 7] of a negative scale. */
static void store_panel(const round_panel *p, size_t rows, bool per_row, int8_t *q, float *scale) {
    size_t k = p->k, nr = p->nr;
    for (size_t j0 = 0; j0 < k; j0 += ALIGN)
        for (size_t r = 0; r < rows; r++)
            for (size_t j = j0; j < k && j < j0 + ALIGN; j++) {
                bool negated = !p->symmetric && p->lo[j / p->group * nr + r] > -8;
                q[r * k + j] = negated ? (int8_t)-p->q[j * nr + r] : p->q[j * nr + r];
            }
    for (size_t r = 0; r < rows; r++)
        for (size_t g = 0; g < p->n_groups; g++) {
            float s = p->s[g * nr + r];
            bool  negated = !p->symmetric && p->lo[g * nr + r] > -8 && s > 0;
            scale[r * p->n_groups + g] = per_row && s == 0 ? 1 : negated ? -s : s;
        }
}

/* Bring a lower Cholesky factor into the form of a round_factor. */
static void factor_unit(float *l, size_t k, float *d) {
    for (size_t i = 0; i < k; i++) d[i] = l[i * k + i];
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < i; j++) l[i * k + j] /= d[j];
    for (size_t i = 0; i < k; i++) d[i] *= d[i];
}

typedef struct {
    float  energy;
    size_t column;
} ranked;

static int by_energy(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->energy != y->energy) return x->energy < y->energy ? -1 : 1;
    return x->column > y->column ? -1 : 1; /* the factor's last is rounded first */
}

static td_status factor(td_rounding *p, td_error *err) {
    size_t  k = p->k;
    ranked *rank = (ranked *)p->l; /* before that is needed; with its padding it is large enough */
    for (size_t j = 0; j < k; j++) rank[j] = (ranked){p->o.act_order ? p->h[j * k + j] : 0, j};
    qsort(rank, k, sizeof *rank, by_energy);
    for (size_t j = 0; j < k; j++) p->column[j] = rank[j].column;
    TD_TRY(td_hessian_factor(p->blas, p->h, k, p->column, p->damp, p->l, err));
    factor_unit(p->l, k, p->d);
    return TD_OK;
}

static td_status check_options(const td_round_options *o, size_t k, const float *h, td_error *err) {
    if (k == 0 || k > INT32_MAX) return td_fail(err, TD_EINVAL, "no matrix of %zu columns can be rounded", k);
    if (o->bits != 8 && o->bits != 4) return td_fail(err, TD_EINVAL, "weights are rounded to 4 or 8 bits, not %u", o->bits);
    if (o->group && (o->bits != 4 || o->group > ROUND_BLOCK))
        return td_fail(err, TD_EINVAL, "groups of %zu weights of %u bits: only 4 bits, in groups of up to %d", o->group,
                       o->bits, ROUND_BLOCK);
    if (o->scale_dtype != TD_DT_F32 && (!o->group || (o->scale_dtype != TD_DT_BF16 && o->scale_dtype != TD_DT_F16)))
        return td_fail(err, TD_EINVAL, "scales are f32, those of groups also bf16 or f16");
    if (o->method == TD_ROUND_GPTQ && (o->scale_trials < 1 || o->scale_trials > TD_ROUND_TRIALS_MAX))
        return td_fail(err, TD_EINVAL, "gptq tries 1 to %d scales a row, not %u", TD_ROUND_TRIALS_MAX, o->scale_trials);
    if (o->method == TD_ROUND_GPTQ && !h) return td_fail(err, TD_EINVAL, "gptq needs a Hessian");
    if (h && o->method != TD_ROUND_NEAREST && !(o->damping > 0 && isfinite(o->damping)))
        return td_fail(err, TD_EINVAL, "the damping of a Hessian must be above zero");
    return TD_OK;
}

td_status td_rounding_open(const td_blas *b, size_t k, const float *h, const td_round_options *o, td_rounding *p,
                           td_error *err) {
    *p = (td_rounding){.blas = b, .h = h, .k = k, .o = *o};
    TD_TRY(check_options(o, k, h, err));
    if (o->method == TD_ROUND_NEAREST) return TD_OK;
    p->base = aligned_alloc(ALIGN, lay_out_rounding(p, NULL));
    if (!p->base) return td_fail(err, TD_ENOMEM, "out of memory for rounding rows of %zu weights", k);
    lay_out_rounding(p, p->base);
    p->damp = h ? td_hessian_damp(h, k, o->damping) : 1;
    td_status st = TD_OK;
    for (size_t j = 0; st == TD_OK && j < k; j++) {
        p->weight[j] = h ? h[j * k + j] + p->damp : 1;
        if (!(p->weight[j] > 0) || !isfinite(p->weight[j]))
            st = td_fail(err, TD_EINVAL, "element %zu of a Hessian's diagonal is negative, NaN or infinite", j);
    }
    if (st == TD_OK && o->method == TD_ROUND_GPTQ) st = factor(p, err);
    if (st != TD_OK) td_rounding_close(p);
    return st;
}

void td_rounding_close(td_rounding *p) {
    free(p->base);
    *p = (td_rounding){0};
}

static td_status open_workplace(workplace *w, const td_rounding *rounding, size_t n, td_error *err) {
    const td_round_options *o = &rounding->o;
    size_t                  k = rounding->k;
    w->base = aligned_alloc(ALIGN, lay_out(w, NULL, n, k, o));
    if (!w->base) return td_fail(err, TD_ENOMEM, "out of memory for rounding %zu x %zu weights", n, k);
    lay_out(w, w->base, n, k, o);
    round_panel *p = &w->panel;
    p->blas = rounding->blas;
    p->k = k;
    p->group = o->group ? o->group : k;
    p->n_groups = td_round_scales(o, k);
    p->symmetric = o->bits == 8;
    p->span = p->symmetric ? 254 : 15;
    p->scale_dtype = o->scale_dtype;
    p->h = rounding->h;
    p->damp = rounding->damp;
    p->weight = rounding->weight;
    return TD_OK;
}

td_status td_round_rows(const td_rounding *rounding, const float *w, size_t n, int8_t *q, float *scale, td_error *err) {
    const td_round_options *o = &rounding->o;
    size_t                  k = rounding->k;
    if (n == 0 || n > INT32_MAX) return td_fail(err, TD_EINVAL, "no matrix of %zu rows can be rounded", n);
    if (o->method == TD_ROUND_NEAREST) return round_nearest(w, n, k, o, q, scale, err);
    const td_round_methods *methods = td_kernels_here()->rounding;
    workplace               at = {0};
    round_panel            *p = &at.panel;
    td_status               st = open_workplace(&at, rounding, n, err);
    for (size_t r = 0; st == TD_OK && r < n; r += p->nr) {
        size_t rows = n - r < p->nr ? n - r : p->nr;
        st = load_panel(p, w, r, rows, err);
        if (st != TD_OK) break;
        if (o->method == TD_ROUND_CLIP) {
            methods->clip(p, &at.scratch);
        } else {
            methods->feedback(p, &(round_factor){rounding->column, rounding->l, rounding->d}, o->scale_trials, &at.scratch);
            if (o->sweeps) methods->descend(p, o->sweeps, &at.scratch);
        }
        store_panel(p, rows, !o->group, q + r * k, scale + r * p->n_groups);
    }
    free(at.base);
    return st;
}

td_status td_round_matrix(const td_blas *b, const float *w, size_t n, size_t k, const float *h, const td_round_options *o,
                          int8_t *q, float *scale, td_error *err) {
    td_rounding rounding;
    TD_TRY(td_rounding_open(b, k, h, o, &rounding, err));
    td_status st = td_round_rows(&rounding, w, n, q, scale, err);
    td_rounding_close(&rounding);
    return st;
}

/* Row r of W - Q. */
static void row_error(const float *w, size_t r, size_t k, size_t group, const int8_t *q, const float *scale, float *e) {
    size_t n_scales = (k + group - 1) / group;
    memcpy(e, w + r * k, k * sizeof *e);
    for (size_t g = 0; q && g < n_scales; g++) {
        float s = scale[r * n_scales + g];
        for (size_t j = g * group; j < k && j < (g + 1) * group; j++) e[j] -= (float)q[r * k + j] * s;
    }
}

td_status td_round_loss(const td_blas *b, const float *w, size_t n, size_t k, const float *h, const td_round_options *o,
                        const int8_t *q, const float *scale, double *error, td_error *err) {
    size_t rows = n < TD_ROUND_ERROR_ROWS ? n : TD_ROUND_ERROR_ROWS;
    float *e = malloc(2 * rows * k * sizeof *e), *eh = e + rows * k;
    if (!e) return td_fail(err, TD_ENOMEM, "out of memory for the error of %zu x %zu weights", n, k);
    for (size_t r = 0; r < rows; r++) row_error(w, r * n / rows, k, o->group ? o->group : k, q, scale, e + r * k);
    b->sgemm(TD_BLAS_ROWS, TD_BLAS_PLAIN, TD_BLAS_PLAIN, (int)rows, (int)k, (int)k, 1, e, (int)k, h, (int)k, 0, eh, (int)k);
    *error = 0;
    for (size_t i = 0; i < rows * k; i++) *error += (double)e[i] * eh[i];
    free(e);
    return TD_OK;
}

td_status td_round_error(const td_blas *b, const float *w, size_t n, size_t k, const float *h, const td_round_options *o,
                         const int8_t *q, const float *scale, double *relative, td_error *err) {
    double error = 0, whole = 0;
    TD_TRY(td_round_loss(b, w, n, k, h, o, q, scale, &error, err));
    TD_TRY(td_round_loss(b, w, n, k, h, o, NULL, NULL, &whole, err));
    *relative = whole > 0 ? error / whole : 0;
    return TD_OK;
}
