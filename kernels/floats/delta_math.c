/* The table of gated DeltaNet and Kimi delta attention of each instruction set. */
#include "kernels/floats/delta_math.h"

#include <math.h>

#include "kernels/vec/fetch.h"
#include "kernels/vec/vec.h"
#include "kernels/vec/vec_exp.inc"

/*
 *   MR, NV    the tile of a product: rows, vectors of columns: enough sums in flight
 */
#define NV 2
#if TD_FOR_AVX512 || TD_FOR_NEON /* 32 registers */
#define MR 8
#else
#define MR 4
#endif

#define TILE static inline __attribute__((always_inline))

/* The first n lanes, n >= 1; all of them where n is larger. */
VEC vf load_upto(const float *p, size_t n) {
    return n >= LANES ? vf_load(p) : vf_load_n(p, n);
}
VEC void store_upto(float *p, vf v, size_t n) {
    if (n >= LANES)
        vf_store(p, v);
    else
        vf_store_n(p, v, n);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void conv(const float *const *x, const float *w, size_t ldw, size_t taps, size_t n, float *out) {
    for (size_t c = 0; c < n; c += LANES) {
        vf sum = vf_set1(0);
        for (size_t j = 0; j < taps; j++) sum = vf_mla(load_upto(w + j * ldw + c, n - c), load_upto(x[j] + c, n - c), sum);
        store_upto(out + c, vf_silu(sum), n - c);
    }
}

static float squares(const float *x, size_t n) {
    vf sum = vf_set1(0);
    for (size_t i = 0; i < n; i += LANES) {
        vf v = load_upto(x + i, n - i);
        sum = vf_mla(v, v, sum);
    }
    return vf_lanes_sum(sum);
}

static void unit(float *x, float eps, float scale, size_t n) {
    const vf factor = vf_set1(scale / sqrtf(squares(x, n) + eps));
    for (size_t i = 0; i < n; i += LANES) store_upto(x + i, load_upto(x + i, n - i) * factor, n - i);
}

static void mix(float *out, float a, const float *x, float b, const float *y, size_t n) {
    for (size_t i = 0; i < n; i += LANES) {
        vf v = load_upto(x + i, n - i) * vf_set1(a);
        if (y) v = vf_mla(load_upto(y + i, n - i), vf_set1(b), v);
        store_upto(out + i, v, n - i);
    }
}

VEC vf minus(vf v) {
    return (vf)((vi)v ^ vi_set1(INT32_MIN));
}

VEC vf sigmoid_of(vf x) {
    return vf_set1(1) / (vf_set1(1) + vf_exp(minus(x)));
}

static void sigmoid(const float *x, size_t n, float *out) {
    for (size_t i = 0; i < n; i += LANES) store_upto(out + i, sigmoid_of(load_upto(x + i, n - i)), n - i);
}

/* silu is a constant after inlining. */
TILE void norm(float *x, const float *gamma, const float *gate, float eps, size_t n, bool silu) {
    const vf factor = vf_set1(1.0f / sqrtf(squares(x, n) / (float)n + eps));
    for (size_t i = 0; i < n; i += LANES) {
        vf normed = load_upto(x + i, n - i) * factor * load_upto(gamma + i, n - i), g = load_upto(gate + i, n - i);
        store_upto(x + i, normed * (silu ? vf_silu(g) : sigmoid_of(g)), n - i);
    }
}
static void gated_norm(float *x, const float *gamma, const float *gate, float eps, size_t n) {
    norm(x, gamma, gate, eps, n, true);
}
static void sigmoid_norm(float *x, const float *gamma, const float *gate, float eps, size_t n) {
    norm(x, gamma, gate, eps, n, false);
}

/* log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|; log(1 + y) = 2 atanh(z), z = y / (2 + y) <= 1/3, by its series. */
VEC vf softplus(vf x) {
    const vf y = vf_exp((vf)((vi)x | vi_set1(INT32_MIN))), z = y / (vf_set1(2) + y), zz = z * z;
    vf       p = vf_set1(1.0f / 15);
    for (int odd = 13; odd > 0; odd -= 2) p = vf_mla(p, zz, vf_set1(1.0f / (float)odd));
    return vf_max(x, vf_set1(0)) + vf_set1(2) * z * p;
}

static void gates(const float *a, const float *b, const float *a_log, const float *dt_bias, size_t n, float *decay,
                  float *beta) {
    for (size_t i = 0; i < n; i += LANES) {
        vf step = softplus(load_upto(a + i, n - i) + load_upto(dt_bias + i, n - i));
        store_upto(decay + i, minus(vf_exp(load_upto(a_log + i, n - i)) * step), n - i);
        store_upto(beta + i, sigmoid_of(load_upto(b + i, n - i)), n - i);
    }
}

#define FADED (-40.0f)

/* exp(x) of x <= 0; 0 below e^-40, which no result can tell from 0. Without that, products with numbers as small as f32 has
 * would be subnormal, and processors take a hundred times longer for those. */
VEC vf faded(vf x) {
    return vf_unless_below(x, vf_set1(FADED), vf_exp(x));
}

static void decays(const float *sum, size_t n, float *out) {
    for (size_t t = 0; t < n; t += LANES) store_upto(out + t, faded(load_upto(sum + t, n - t)), n - t);
}

static void fade(float last, const float *sum, size_t n, float *x, float scale, float *y) {
    for (size_t s = 0; s < n; s += LANES) {
        vf f = faded(vf_set1(last) - load_upto(sum + s, n - s));
        store_upto(x + s, load_upto(x + s, n - s) * f * vf_set1(scale), n - s);
        if (y) store_upto(y + s, load_upto(y + s, n - s) * f, n - s);
    }
}

/* ---- decays of each channel --------------------------------------------------------------------- */

/* A row that forgets all forgets no more than that, so that differences of sums stay exact enough. */
VEC vf log_decay(vf step, vf rate, float floor) {
    if (floor < 0) return vf_set1(floor) * sigmoid_of(rate * step);
    return vf_max(minus(rate) * softplus(step), vf_set1(FADED));
}

static void channel_gates(const float *a, const float *dt_bias, float a_log, float floor, const float *before, size_t n,
                          float *out) {
    const vf rate = vf_exp(vf_set1(a_log));
    for (size_t c = 0; c < n; c += LANES) {
        vf sum = log_decay(load_upto(a + c, n - c) + load_upto(dt_bias + c, n - c), rate, floor);
        if (before) sum += load_upto(before + c, n - c);
        store_upto(out + c, sum, n - c);
    }
}

static void fade_channels(const float *last, const float *sum, const float *x, size_t rows, size_t n, float *out) {
    for (size_t c = 0; c < n; c += LANES) {
        vf at = load_upto(last + c, n - c);
        if (sum) at -= load_upto(sum + c, n - c);
        at = faded(at);
        if (!x) store_upto(out + c, at, n - c);
        for (size_t i = 0; x && i < rows; i++) store_upto(out + i * n + c, at * load_upto(x + i * n + c, n - c), n - c);
    }
}

static void meet_channels(const float *qk, const float *sum, const float *keys, const float *sums, size_t m, size_t n,
                          float *of_q, float *of_k) {
    for (size_t j = 0; j < m; j++, keys += n, sums += n) {
        vf q = vf_set1(0), k = vf_set1(0);
        for (size_t c = 0; c < n; c += LANES) {
            vf key = load_upto(keys + c, n - c) * faded(load_upto(sum + c, n - c) - load_upto(sums + c, n - c));
            q = vf_mla(load_upto(qk + c, n - c), key, q);
            k = vf_mla(load_upto(qk + n + c, n - c), key, k);
        }
        of_q[j] = vf_lanes_sum(q);
        of_k[j] = vf_lanes_sum(k);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Rows i0 .. i0 + rows - 1: over what all of them meet, then one by one. rows, nv and tail are constants after inlining,
 * here and below; of a TAIL, nv is 1 vector of `last` lanes. */
TILE void lower_tile(const td_lower_args *l, size_t i0, size_t j, int rows, int nv, bool tail, size_t last) {
    const size_t common = l->keys + i0;
    const float *a = l->a + i0 * l->lda, *u = l->u + j;
    float       *c = l->c + i0 * l->ldc + j;
    vf           acc[MR][NV], b[NV];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[i][v] = tail ? vf_load_n(c + (size_t)i * l->ldc, last) : vf_load(c + (size_t)i * l->ldc + v * LANES);
    for (size_t s = 0; s < common; s++, u += l->ldu) {
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) b[v] = tail ? vf_load_n(u, last) : vf_load(u + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++) acc[i][v] = vf_mla(vf_set1(a[(size_t)i * l->lda + s]), b[v], acc[i][v]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
        for (int s = 0; s < i; s++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++) {
                const float *from = u + (size_t)s * l->ldu + v * LANES;
                acc[i][v] = vf_mla(vf_set1(a[(size_t)i * l->lda + common + (size_t)s]),
                                   tail ? vf_load_n(from, last) : vf_load(from), acc[i][v]);
            }
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            if (tail)
                vf_store_n(c + (size_t)i * l->ldc, acc[i][v], last);
            else
                vf_store(c + (size_t)i * l->ldc + v * LANES, acc[i][v]);
        }
    }
}

TILE void lower_rows(const td_lower_args *l, size_t j, int nv, bool tail, size_t last) {
    size_t i = 0;
    for (; i + MR <= l->m; i += MR) lower_tile(l, i, j, MR, nv, tail, last);
    for (; i < l->m; i++) lower_tile(l, i, j, 1, nv, tail, last);
}

static void lower(const td_lower_args *l) {
    size_t j = 0;
    for (; j + NV * LANES <= l->n; j += NV * LANES) lower_rows(l, j, NV, false, 0);
    for (; j + LANES <= l->n; j += LANES) lower_rows(l, j, 1, false, 0);
    if (j < l->n) lower_rows(l, j, 1, true, l->n - j);
}

#define AHEAD 1024 /* floats: what the loop that measures reading fetches ahead (kernels/machine/machine.c) */
#define LINE 16    /* floats of a cache line */
#define FEW 4

TILE void few_tile(const td_fgemm_args *g, size_t i0, size_t j, int rows, int nv, bool tail, size_t last) {
    const float *a = g->a + i0 * g->lda, *row = g->b;
    const size_t fetched = i0 == 0 && j == 0 ? g->n : 0;
    vf           acc[FEW][NV], b[NV];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) acc[i][v] = vf_set1(0);
    for (size_t l = 0; l < g->k; l++, row += g->ldb) {
        for (size_t at = 0; at < fetched; at += LINE) fetch_l1(row + AHEAD + at);
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) b[v] = tail ? vf_load_n(row + j, last) : vf_load(row + j + v * LANES);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++) acc[i][v] = vf_mla(vf_set1(a[(size_t)i * g->lda + l]), b[v], acc[i][v]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            float *c = g->c + (i0 + (size_t)i) * g->ldc + j + v * LANES;
            if (tail)
                vf_store_n(c, acc[i][v], last);
            else
                vf_store(c, acc[i][v]);
        }
}

TILE void few_rows(const td_fgemm_args *g, size_t j, int nv, bool tail, size_t last) {
    size_t i = 0;
    for (; i + FEW <= g->m; i += FEW) few_tile(g, i, j, FEW, nv, tail, last);
    for (; i + 2 <= g->m; i += 2) few_tile(g, i, j, 2, nv, tail, last);
    if (i < g->m) few_tile(g, i, j, 1, nv, tail, last);
}

static void few(const td_fgemm_args *g) {
    size_t j = 0;
    for (; j + NV * LANES <= g->n; j += NV * LANES) few_rows(g, j, NV, false, 0);
    for (; j + LANES <= g->n; j += LANES) few_rows(g, j, 1, false, 0);
    if (j < g->n) few_rows(g, j, 1, true, g->n - j);
}

TILE void fold_tile(const td_fold_args *f, size_t i0, size_t j, int rows, int nv, bool tail, size_t last) {
    const float *k = f->k + i0, *u = f->u + j;
    const vf     scale = vf_set1(f->scale);
    vf           acc[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const float *in = f->in ? f->in + (i0 + (size_t)i) * f->ld + j + (size_t)v * LANES : NULL;
            acc[i][v] = vf_set1(0);
            if (in) acc[i][v] = scale * (tail ? vf_load_n(in, last) : vf_load(in));
        }
    for (size_t s = 0; s < f->keys; s++, k += f->ldk, u += f->ldu) {
        vf b[NV];
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) b[v] = tail ? vf_load_n(u, last) : vf_load(u + (size_t)v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++) acc[i][v] = vf_mla(vf_set1(k[i]), b[v], acc[i][v]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            float *out = f->out + (i0 + (size_t)i) * f->ld + j + (size_t)v * LANES;
            if (tail)
                vf_store_n(out, acc[i][v], last);
            else
                vf_store(out, acc[i][v]);
        }
}

TILE void fold_rows(const td_fold_args *f, size_t j, int nv, bool tail, size_t last) {
    size_t i = 0;
    for (; i + MR <= f->m; i += MR) fold_tile(f, i, j, MR, nv, tail, last);
    for (; i < f->m; i++) fold_tile(f, i, j, 1, nv, tail, last);
}

static void fold(const td_fold_args *f) {
    size_t j = 0;
    for (; j + NV * LANES <= f->n; j += NV * LANES) fold_rows(f, j, NV, false, 0);
    for (; j + LANES <= f->n; j += LANES) fold_rows(f, j, 1, false, 0);
    if (j < f->n) fold_rows(f, j, 1, true, f->n - j);
}

const td_delta_math TD_OF_SET(delta_math) = {.name = TD_SET_NAME,
                                             .conv = conv,
                                             .unit = unit,
                                             .gates = gates,
                                             .decays = decays,
                                             .fade = fade,
                                             .channel_gates = channel_gates,
                                             .sigmoid = sigmoid,
                                             .fade_channels = fade_channels,
                                             .meet_channels = meet_channels,
                                             .mix = mix,
                                             .few = few,
                                             .lower = lower,
                                             .fold = fold,
                                             .gated_norm = gated_norm,
                                             .sigmoid_norm = sigmoid_norm};
