#include "quant/column_scale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static const struct {
    float a, b;
} FAMILY[] = {{0, 0},       {0.15f, 0},    {0.3f, 0},    {0.5f, 0},    {0, 0.5f},    {0, 0.9f},   {0.1f, 0.6f},
              {0.1f, 0.9f}, {0.15f, 0.3f}, {0.2f, 0.5f}, {0.2f, 0.9f}, {0.3f, 0.7f}, {0.5f, 0.5f}};
#define N_FAMILY (sizeof FAMILY / sizeof FAMILY[0])

void td_scale_columns(const float *from, size_t n, size_t k, const float *s, float *to) {
    for (size_t r = 0; r < n; r++)
        for (size_t j = 0; j < k; j++) to[r * k + j] = from[r * k + j] * s[j];
}

void td_scale_hessian(const float *h, size_t k, const float *s, float *to) {
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < k; j++) to[i * k + j] = h[i * k + j] / (s[i] * s[j]);
}

/* Logarithms of the size of each column's inputs and weights, less their mean; a column of zeros counts as the mean. */
static void measure(const float *w, size_t n, size_t k, const float *h, float *log_x, float *log_w) {
    for (size_t j = 0; j < k; j++) {
        log_x[j] = 0.5f * logf(h[j * k + j]); /* of the sum, not the mean: the difference is the same for all */
        log_w[j] = 0;
    }
    for (size_t r = 0; r < n; r++)
        for (size_t j = 0; j < k; j++) log_w[j] += w[r * k + j] * w[r * k + j];
    for (size_t j = 0; j < k; j++) log_w[j] = 0.5f * logf(log_w[j]);
    float *both[2] = {log_x, log_w};
    for (int i = 0; i < 2; i++) {
        double sum = 0;
        size_t some = 0;
        for (size_t j = 0; j < k; j++)
            if (isfinite(both[i][j])) {
                sum += both[i][j];
                some++;
            }
        for (size_t j = 0; j < k; j++)
            both[i][j] = isfinite(both[i][j]) && some ? both[i][j] - (float)(sum / (double)some) : 0;
    }
}

/* What rounding inputs x / s to int8 adds to the outputs' squared error, on average. */
static double input_error(const float *ws, size_t n, size_t k, const float *x, size_t n_tok, const float *s) {
    double tokens = 0, weights = 0;
    for (size_t t = 0; t < n_tok; t++) {
        float amax = 0;
        for (size_t j = 0; j < k; j++) amax = fmaxf(amax, fabsf(x[t * k + j] / s[j]));
        tokens += (double)amax * amax;
    }
    for (size_t i = 0; i < n * k; i++) weights += (double)ws[i] * ws[i];
    return tokens / (127.0 * 127.0 * 12.0) * weights;
}

typedef struct {
    float  *hs, *ws, *scale; /* [k, k], [n, k], scales of the rounded weights */
    float  *log_x, *log_w;   /* [k] */
    float  *s;               /* [k] */
    int8_t *q;               /* [n, k] */
} trial;

td_status td_column_scales(const td_blas *b, const float *w, size_t n, size_t k, const float *h, const float *x,
                           size_t n_tok, const td_round_options *o, float *s, double *gain, td_error *err) {
    td_round_options judge = *o;
    if (judge.method == TD_ROUND_GPTQ) judge.method = TD_ROUND_CLIP;
    size_t scales = n * td_round_scales(o, k);
    float *base = malloc((k * k + n * k + scales + 3 * k) * sizeof *base + n * k);
    if (!base) return td_fail(err, TD_ENOMEM, "out of memory for the column scales of %zu x %zu weights", n, k);
    trial t = {.hs = base, .ws = base + k * k, .scale = base + k * k + n * k};
    t.log_x = t.scale + scales;
    t.log_w = t.log_x + k;
    t.s = t.log_w + k;
    t.q = (int8_t *)(t.s + k);

    measure(w, n, k, h, t.log_x, t.log_w);
    double    ones = 0, best = INFINITY;
    td_status st = TD_OK;
    for (size_t i = 0; st == TD_OK && i < N_FAMILY; i++) {
        for (size_t j = 0; j < k; j++)
            t.s[j] = expf(fmaxf(-16, fminf(16, FAMILY[i].a * t.log_x[j] - FAMILY[i].b * t.log_w[j])));
        td_scale_columns(w, n, k, t.s, t.ws);
        td_scale_hessian(h, k, t.s, t.hs);
        double error = 0;
        st = td_round_matrix(b, t.ws, n, k, t.hs, &judge, t.q, t.scale, err);
        if (st == TD_OK) st = td_round_loss(b, t.ws, n, k, t.hs, &judge, t.q, t.scale, &error, err);
        error += input_error(t.ws, n, k, x, x ? n_tok : 0, t.s);
        if (i == 0) ones = error;
        if (st == TD_OK && error < best) {
            best = error;
            memcpy(s, t.s, k * sizeof *s);
        }
    }
    free(base);
    *gain = ones > 0 && best < ones ? best / ones : 1;
    if (st == TD_OK && isinf(best)) st = td_fail(err, TD_EINVAL, "the Hessian of %zu inputs is not finite", k);
    return st;
}
