#include "quant/hadamard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/math/rng.h"

#define COLUMNS 8 /* of a block that the base is applied to at a time */

static bool is_prime(size_t q) {
    if (q < 3 || q % 2 == 0) return q == 2;
    for (size_t d = 3; d * d <= q; d += 2)
        if (q % d == 0) return false;
    return true;
}

/* The prime of a construction of order b, or 0. */
static size_t paley_prime(size_t b) {
    if (b % 4) return 0;
    if (is_prime(b - 1)) return b - 1; /* 3 mod 4 */
    return (b / 2 - 1) % 4 == 1 && is_prime(b / 2 - 1) ? b / 2 - 1 : 0;
}

/* The smallest b with k = 2^m * b; 0: none. */
static size_t base_of(size_t k) {
    size_t odd = k;
    while (odd && odd % 2 == 0) odd /= 2;
    if (odd == 1) return 1;
    for (size_t b = 4 * odd; odd && b <= TD_HADAMARD_BASE_MAX && k % b == 0; b *= 2)
        if (paley_prime(b)) return b;
    return 0;
}

/* Element (i, j) of Paley's matrix S of order q + 1: the characters of j - i mod q, with a border; 1: a square. */
static int paley_element(const int8_t *character, size_t q, size_t i, size_t j) {
    if (i == j) return 0;
    if (i == 0) return 1;
    if (j == 0) return q % 4 == 3 ? -1 : 1;
    return character[(j + q - i) % q];
}

/* q = 3 mod 4: I + S. q = 1 mod 4: every element of S becomes a block of two by two. */
static void fill_base(float *h, size_t b, size_t q) {
    static const float on[2][2] = {{1, 1}, {1, -1}}, zero[2][2] = {{1, -1}, {-1, -1}};
    int8_t             character[TD_HADAMARD_BASE_MAX];
    memset(character, -1, q);
    for (size_t i = 1; i < q; i++) character[i * i % q] = 1;
    character[0] = 0;
    size_t side = b / (q + 1);
    for (size_t i = 0; i < b; i++)
        for (size_t j = 0; j < b; j++) {
            int s = paley_element(character, q, i / side, j / side);
            if (side == 1)
                h[i * b + j] = i == j ? 1 : (float)s;
            else
                h[i * b + j] = s ? (float)s * on[i % 2][j % 2] : zero[i % 2][j % 2];
        }
}

td_status td_hadamard_open(td_hadamard *h, size_t k, uint64_t seed, td_error *err) {
    *h = (td_hadamard){.k = k, .b = base_of(k)};
    if (h->b == 0)
        return td_fail(err, TD_ENOTSUP, "no Hadamard matrix of order %zu is known here, so %zu columns cannot be rotated", k,
                       k);
    if (h->b > 1) h->base = malloc(h->b * h->b * sizeof *h->base);
    if (seed) h->signs = malloc(k * sizeof *h->signs);
    if ((h->b > 1 && !h->base) || (seed && !h->signs)) {
        td_hadamard_close(h);
        return td_fail(err, TD_ENOMEM, "out of memory for a Hadamard matrix of order %zu", k);
    }
    if (h->base) fill_base(h->base, h->b, paley_prime(h->b));
    for (size_t i = 0; seed && i < k; i++) h->signs[i] = td_rng_u64(seed, 0, i) & 1 ? -1.0f : 1.0f;
    return TD_OK;
}

void td_hadamard_close(td_hadamard *h) {
    free(h->base);
    free(h->signs);
    *h = (td_hadamard){0};
}

/* x = (H_2 (x) … (x) H_2)^T x over pieces of `piece` values. */
static void butterflies(float *x, size_t n, size_t piece) {
    for (size_t half = piece; half < n; half *= 2)
        for (size_t at = 0; at < n; at += 2 * half) {
            float *restrict a = x + at, *restrict c = x + at + half;
            for (size_t i = 0; i < half; i++) {
                float u = a[i], v = c[i];
                a[i] = u + v;
                c[i] = u - v;
            }
        }
}

/* x = base^T x, x [b, width] with rows `stride` apart. */
static void apply_base(const td_hadamard *h, float *x, size_t stride, size_t width) {
    float  sum[TD_HADAMARD_BASE_MAX][COLUMNS];
    size_t b = h->b;
    memset(sum, 0, b * sizeof sum[0]);
    for (size_t i = 0; i < b; i++)
        for (size_t j = 0; j < b; j++) {
            float s = h->base[i * b + j];
            for (size_t c = 0; c < width; c++) sum[j][c] += s * x[i * stride + c];
        }
    for (size_t j = 0; j < b; j++) memcpy(x + j * stride, sum[j], width * sizeof(float));
}

void td_hadamard_columns(const td_hadamard *h, float *w, size_t n) {
    float norm = 1.0f / sqrtf((float)h->k);
    for (size_t i = 0; i < h->k; i++) {
        float s = h->signs ? norm * h->signs[i] : norm;
        for (size_t c = 0; c < n; c++) w[i * n + c] *= s;
    }
    butterflies(w, h->k * n, h->b * n);
    for (size_t at = 0; h->base && at < h->k; at += h->b)
        for (size_t c = 0; c < n; c += COLUMNS) apply_base(h, w + at * n + c, n, n - c < COLUMNS ? n - c : COLUMNS);
}

void td_hadamard_rows(const td_hadamard *h, float *x, size_t n) {
    for (size_t r = 0; r < n; r++) td_hadamard_columns(h, x + r * h->k, 1); /* x R = (R^T x^T)^T */
}
