#include "vision_reference.h"

#include <math.h>

#include "kernels/rows/convert.h"
#include "tests/td_test.h"

#define EPS 1e-6
#define MERGED 4 /* patches of a token, a square of 2 x 2 */
#define THETA 10000.0

typedef struct {
    const td_checkpoint_files *files;
    const vision_sizes        *s;
    uint32_t                   rows, columns;
    size_t                     n; /* patches */
} encoder;

/* A weight of n values: malloc'd. */
static float *weight(const encoder *e, const char *of, const char *name, size_t n) {
    char full[256];
    snprintf(full, sizeof full, "model.visual.%s%s", of, name);
    const td_safetensors_entry *t = td_checkpoint_files_find(e->files, full);
    if (!t || t->bytes != n * td_dtype_bytes(t->dtype)) fail_msg("%s is not there with %zu values", full, n);
    float *w = malloc(n * sizeof *w);
    assert_non_null(w);
    td_to_f32(t->dtype, t->data, n, w);
    return w;
}

/* Row and column of a patch. */
static uint32_t row_of(const encoder *e, size_t patch) {
    return (uint32_t)(patch / MERGED / (e->columns / 2) * 2 + patch % MERGED / 2);
}
static uint32_t column_of(const encoder *e, size_t patch) {
    return (uint32_t)(patch / MERGED % (e->columns / 2) * 2 + patch % 2);
}

/* out [m, n] = x [m, k] W^T + b; malloc'd. */
static float *linear(const encoder *e, const char *of, const char *name, const float *x, size_t m, size_t n, size_t k) {
    char weights[64], biases[64];
    snprintf(weights, sizeof weights, "%s.weight", name);
    snprintf(biases, sizeof biases, "%s.bias", name);
    FREED float *w = weight(e, of, weights, n * k), *b = weight(e, of, biases, n);
    float       *out = malloc(m * n * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = (double)b[j];
            for (size_t l = 0; l < k; l++) sum += (double)x[i * k + l] * (double)w[j * k + l];
            out[i * n + j] = (float)sum;
        }
    return out;
}

/* out [m, n] = (x - mean) / sqrt(variance + eps) * w + b of each row; malloc'd. */
static float *layer_norm(const encoder *e, const char *of, const char *name, const float *x, size_t m, size_t n) {
    char weights[64], biases[64];
    snprintf(weights, sizeof weights, "%s.weight", name);
    snprintf(biases, sizeof biases, "%s.bias", name);
    FREED float *w = weight(e, of, weights, n), *b = weight(e, of, biases, n);
    float       *out = malloc(m * n * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < m; i++, x += n) {
        double mean = 0, squares = 0;
        for (size_t j = 0; j < n; j++) mean += (double)x[j] / (double)n;
        for (size_t j = 0; j < n; j++) squares += ((double)x[j] - mean) * ((double)x[j] - mean) / (double)n;
        for (size_t j = 0; j < n; j++)
            out[i * n + j] = (float)(((double)x[j] - mean) / sqrt(squares + EPS) * (double)w[j] + (double)b[j]);
    }
    return out;
}

static void gelu_tanh(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const double v = (double)x[i];
        x[i] = (float)(0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))));
    }
}

static void gelu_erf(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(0.5 * (double)x[i] * (1 + erf((double)x[i] / sqrt(2))));
}

static void add(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] += y[i];
}

/* x += the table of positions, its corners at those of the picture, between its points by distance. */
static void add_positions(const encoder *e, float *x) {
    const vision_sizes *s = e->s;
    FREED float        *table = weight(e, "pos_embed", ".weight", (size_t)s->side * s->side * s->hidden);
    for (size_t p = 0; p < e->n; p++) {
        const double at[2] = {(double)row_of(e, p) * (s->side - 1) / (e->rows > 1 ? e->rows - 1 : 1),
                              (double)column_of(e, p) * (s->side - 1) / (e->columns > 1 ? e->columns - 1 : 1)};
        for (int corner = 0; corner < 4; corner++) {
            const int    low = corner / 2, left = corner % 2;
            const double y = floor(at[0]), x0 = floor(at[1]), dy = at[0] - y, dx = at[1] - x0;
            const double share = (low ? dy : 1 - dy) * (left ? dx : 1 - dx);
            const size_t row = (size_t)fmin(y + low, s->side - 1), column = (size_t)fmin(x0 + left, s->side - 1);
            for (size_t i = 0; i < s->hidden; i++)
                x[p * s->hidden + i] += (float)(share * (double)table[(row * s->side + column) * s->hidden + i]);
        }
    }
}

/* Pairs (i, i + dim / 2) of a head: the first half of them turns by the patch's row, the second by its column. */
static void rotate(const encoder *e, size_t patch, float *x, size_t dim) {
    const size_t half = dim / 2, quarter = dim / 4;
    for (size_t i = 0; i < half; i++) {
        const double pos = i < quarter ? row_of(e, patch) : column_of(e, patch),
                     angle = pos * pow(THETA, -2.0 * (double)(i % quarter) / (double)half), a = (double)x[i],
                     b = (double)x[i + half];
        x[i] = (float)(a * cos(angle) - b * sin(angle));
        x[i + half] = (float)(b * cos(angle) + a * sin(angle));
    }
}

/* Every patch attends to all. qkv [n, 3 * hidden]; out [n, hidden]. */
static void attend(const encoder *e, float *qkv, float *out) {
    const size_t  n = e->n, width = e->s->hidden, dim = width / e->s->heads, ld = 3 * width;
    FREED double *score = malloc(n * sizeof *score);
    assert_non_null(score);
    for (size_t p = 0; p < n; p++)
        for (size_t h = 0; h < 2 * e->s->heads; h++) rotate(e, p, qkv + p * ld + h * dim, dim);
    for (size_t h = 0; h < e->s->heads; h++)
        for (size_t p = 0; p < n; p++) {
            const float *q = qkv + p * ld + h * dim;
            double       most = -INFINITY, sum = 0;
            for (size_t o = 0; o < n; o++) {
                score[o] = 0;
                for (size_t i = 0; i < dim; i++) score[o] += (double)q[i] * (double)qkv[o * ld + width + h * dim + i];
                score[o] /= sqrt((double)dim);
                most = fmax(most, score[o]);
            }
            for (size_t o = 0; o < n; o++) sum += score[o] = exp(score[o] - most);
            for (size_t i = 0; i < dim; i++) {
                double mean = 0;
                for (size_t o = 0; o < n; o++) mean += score[o] / sum * (double)qkv[o * ld + 2 * width + h * dim + i];
                out[p * width + h * dim + i] = (float)mean;
            }
        }
}

/* x += attention(norm(x)); x += mlp(norm(x)) */
static void layer(const encoder *e, uint32_t number, float *x) {
    const size_t n = e->n, width = e->s->hidden, inter = e->s->inter;
    char         of[64];
    snprintf(of, sizeof of, "blocks.%u.", number);
    FREED float *h = layer_norm(e, of, "norm1", x, n, width), *qkv = linear(e, of, "attn.qkv", h, n, 3 * width, width);
    attend(e, qkv, h);
    FREED float *a = linear(e, of, "attn.proj", h, n, width, width);
    add(x, a, n * width);
    FREED float *g = layer_norm(e, of, "norm2", x, n, width), *u = linear(e, of, "mlp.linear_fc1", g, n, inter, width);
    gelu_tanh(u, n * inter);
    FREED float *m = linear(e, of, "mlp.linear_fc2", u, n, width, inter);
    add(x, m, n * width);
}

/* Four patches become a token. @param norms_four the norm is of the four side by side, else of each. */
static void merge(const encoder *e, const char *of, const float *x, bool norms_four, float *out) {
    const size_t n = e->n / MERGED, wide = MERGED * (size_t)e->s->hidden, four = norms_four ? MERGED : 1;
    FREED float *h = layer_norm(e, of, "norm", x, e->n / four, four * e->s->hidden),
                *u = linear(e, of, "linear_fc1", h, n, wide, wide);
    gelu_erf(u, n * wide);
    FREED float *y = linear(e, of, "linear_fc2", u, n, e->s->out, wide);
    memcpy(out, y, n * e->s->out * sizeof *out);
}

void vision_reference(const td_checkpoint_files *files, const vision_sizes *s, const float *pixels, uint32_t rows,
                      uint32_t columns, float *merged, float *deepstack) {
    const encoder e = {.files = files, .s = s, .rows = rows, .columns = columns, .n = (size_t)rows * columns};
    FREED float  *x = linear(&e, "patch_embed.", "proj", pixels, e.n, s->hidden, s->values);
    add_positions(&e, x);
    for (uint32_t l = 0; l < s->depth; l++) {
        layer(&e, l, x);
        for (uint32_t t = 0; t < s->n_taps; t++) {
            char of[64];
            snprintf(of, sizeof of, "deepstack_merger_list.%u.", t);
            if (s->taps[t] == l) merge(&e, of, x, true, deepstack + t * e.n / MERGED * s->out);
        }
    }
    merge(&e, "merger.", x, false, merged);
}
