/*
 * The tables of gated DeltaNet and Kimi delta attention of every set that this machine has, against double precision, and against themselves: rows
 * alone, sums in parts, columns in parts. All buffers end at a page that faults.
 */
#include "tests/npu/npu_test_util.h"
#include "tests/td_test.h"

#include "tests/kernels/kernel_tables.h"

static fenced reals(rnd *r, size_t n, float scale) {
    fenced f = fence(n * sizeof(float));
    for (size_t i = 0; i < n; i++) ((float *)f.p)[i] = rnd_real(r) * scale;
    return f;
}

static fenced copy_of(const fenced *from, size_t n) {
    fenced f = fence(n * sizeof(float));
    memcpy(f.p, from->p, n * sizeof(float));
    return f;
}

static void unfence_all(fenced *const *list, size_t n) {
    for (size_t i = 0; i < n; i++) unfence(list[i]);
}
#define UNFENCE(...) unfence_all((fenced *const[]){__VA_ARGS__}, sizeof((fenced *const[]){__VA_ARGS__}) / sizeof(fenced *))

static double silu(double x) {
    return x / (1 + exp(-x));
}

static void check_rows(const td_delta_math *math, rnd *r, size_t n) {
    const size_t taps = rnd_range(r, 2, 8), ldw = n + rnd_range(r, 0, 3);
    fenced x = reals(r, n, 2), w = reals(r, (taps - 1) * ldw + n, 1), out = fence(n * sizeof(float)), gamma = reals(r, n, 2),
           unit = copy_of(&x, n), normed = copy_of(&x, n), other = copy_of(&x, n), in[8];
    const float *rows[8], *xs = x.p, *ws = w.p;
    double       sum = 0;
    for (size_t j = 0; j < taps; j++) in[j] = reals(r, n, 2), rows[j] = in[j].p;
    math->conv(rows, ws, ldw, taps, n, out.p);
    math->unit(unit.p, 1e-6f, 0.3f, n);
    math->gated_norm(normed.p, gamma.p, in[0].p, 1e-5f, n);
    math->sigmoid_norm(other.p, gamma.p, in[0].p, 1e-5f, n);
    for (size_t i = 0; i < n; i++) sum += (double)xs[i] * (double)xs[i];
    for (size_t i = 0; i < n; i++) {
        double want = 0, size = 0;
        for (size_t j = 0; j < taps; j++)
            want += (double)ws[j * ldw + i] * (double)rows[j][i], size += fabs((double)rows[j][i]);
        assert_true(fabs((double)((float *)out.p)[i] - silu(want)) <= 1e-6 * size);
        want = (double)xs[i] / sqrt(sum + 1e-6) * 0.3;
        assert_true(fabs((double)((float *)unit.p)[i] - want) <= 1e-6 * fabs(want));
        want = (double)xs[i] / sqrt(sum / (double)n + 1e-5) * (double)((float *)gamma.p)[i] * silu((double)rows[0][i]);
        assert_true(fabs((double)((float *)normed.p)[i] - want) <= 2e-6 * fabs(want));
        want = (double)xs[i] / sqrt(sum / (double)n + 1e-5) * (double)((float *)gamma.p)[i] / (1 + exp(-(double)rows[0][i]));
        assert_true(fabs((double)((float *)other.p)[i] - want) <= 2e-6 * fabs(want));
    }
    for (size_t j = 0; j < taps; j++) unfence(&in[j]);
    UNFENCE(&x, &w, &out, &gamma, &unit, &normed, &other);
}

static void check_gates(const td_delta_math *math, rnd *r, size_t n) {
    fenced a = reals(r, n, 30), b = reals(r, n, 20), a_log = reals(r, n, 3), bias = reals(r, n, 2),
           decay = fence(n * sizeof(float)), beta = fence(n * sizeof(float));
    const float *as = a.p, *bs = b.p;
    math->gates(as, bs, a_log.p, bias.p, n, decay.p, beta.p);
    for (size_t i = 0; i < n; i++) {
        const double x = (double)(as[i] + ((float *)bias.p)[i]), want = -exp((double)((float *)a_log.p)[i]) * log1p(exp(x)),
                     chance = 1 / (1 + exp(-(double)bs[i]));
        assert_true(fabs((double)((float *)decay.p)[i] - want) <= 1e-6 * fabs(want));
        assert_true(fabs((double)((float *)beta.p)[i] - chance) <= 1e-6 * chance);
    }
    UNFENCE(&a, &b, &a_log, &bias, &decay, &beta);
}

static double faded(float x) {
    return x < -40 ? 0 : exp((double)x);
}

static void check_fade(const td_delta_math *math, rnd *r, size_t n) {
    fenced x = reals(r, n, 1), y = reals(r, n, 1), sum = fence(n * sizeof(float)), a = copy_of(&x, n), b = copy_of(&y, n),
           decay = fence(n * sizeof(float)), mixed = fence(n * sizeof(float));
    float *const sums = sum.p, last = -(float)n - 1;
    for (size_t s = 0; s < n; s++) sums[s] = -(float)s + rnd_real(r) / 2;
    math->fade(last, sums, n, a.p, -0.7f, b.p);
    for (size_t s = 0; s < n; s++) {
        const double f = faded(last - sums[s]), wa = (double)((float *)x.p)[s] * f * -0.7,
                     wb = (double)((float *)y.p)[s] * f;
        assert_true(fabs((double)((float *)a.p)[s] - wa) <= 1e-6 * fabs(wa));
        assert_true(fabs((double)((float *)b.p)[s] - wb) <= 1e-6 * fabs(wb));
        math->fade(last, sums + s, 1, (float *)x.p + s, -0.7f, NULL); /* alone */
    }
    for (size_t s = 0; s < n; s++) assert_memory_equal((float *)x.p + s, (float *)a.p + s, sizeof(float));
    math->decays(sums, n, decay.p);
    math->mix(mixed.p, 0.3f, x.p, -0.9f, y.p, n);
    for (size_t s = 0; s < n; s++) {
        const double p = 0.3 * (double)((float *)x.p)[s], q = -0.9 * (double)((float *)y.p)[s];
        assert_true(fabs((double)((float *)decay.p)[s] - faded(sums[s])) <= 1e-6 * faded(sums[s]));
        assert_true(fabs((double)((float *)mixed.p)[s] - (p + q)) <= 2e-7 * (fabs(p) + fabs(q)));
    }
    math->mix(mixed.p, 0.5f, y.p, 0, NULL, n);
    for (size_t s = 0; s < n; s++) assert_true(((float *)mixed.p)[s] == 0.5f * ((float *)y.p)[s]);
    UNFENCE(&x, &y, &sum, &a, &b, &decay, &mixed);
}

static bool is_near(float got, double want, double size, size_t terms) {
    return fabs((double)got - want) <=
           (double)(terms + 2) * 6e-8 * size; /* a rounding each, of half an ulp of a partial sum */
}

/* Sums of decays of rows one after the other; keys of all fade up to the last one. */
static void check_channels(const td_delta_math *math, rnd *r, size_t n, float floor) {
    enum { ROWS = 5 };
    const float a_log = rnd_real(r) * 3;
    fenced      a = reals(r, ROWS * n, 30), bias = reals(r, n, 2), sums = fence(ROWS * n * sizeof(float)),
           qk = reals(r, 2 * n, 1), keys = reals(r, ROWS * n, 1), of_q = fence(ROWS * sizeof(float)),
           of_k = fence(ROWS * sizeof(float)), out = fence(2 * n * sizeof(float)), chance = fence(n * sizeof(float));
    float *const as = a.p, *const s = sums.p, *const last = s + (ROWS - 1) * n;
    for (size_t t = 0; t < ROWS; t++)
        math->channel_gates(as + t * n, bias.p, a_log, floor, t ? s + (t - 1) * n : NULL, n, s + t * n);
    for (size_t c = 0; c < n; c++) {
        double sum = 0;
        for (size_t t = 0; t < ROWS; t++) {
            const double step = (double)(as[t * n + c] + ((float *)bias.p)[c]), rate = exp((double)a_log);
            sum += floor < 0 ? (double)floor / (1 + exp(-rate * step)) : fmax(-rate * log1p(exp(step)), -40);
            assert_true(fabs((double)s[t * n + c] - sum) <= 1e-6 * (floor < 0 ? ROWS * -(double)floor : fabs(sum)));
        }
    }
    math->meet_channels(qk.p, last, keys.p, s, ROWS, n, of_q.p, of_k.p);
    for (size_t t = 0; t < ROWS; t++) {
        double       q = 0, k = 0, size = 0;
        float        one[2];
        const float *key = (float *)keys.p + t * n;
        for (size_t c = 0; c < n; c++) {
            const double f = faded(last[c] - s[t * n + c]) * (double)key[c];
            q += f * (double)((float *)qk.p)[c], k += f * (double)((float *)qk.p)[n + c], size += fabs(f);
        }
        assert_true(is_near(((float *)of_q.p)[t], q, size, n + 4) && is_near(((float *)of_k.p)[t], k, size, n + 4));
        math->meet_channels(qk.p, last, key, s + t * n, 1, n, one, one + 1); /* alone */
        assert_true(one[0] == ((float *)of_q.p)[t] && one[1] == ((float *)of_k.p)[t]);
    }
    math->fade_channels(last, s, qk.p, 2, n, out.p);
    for (size_t i = 0; i < 2 * n; i++) {
        const double want = faded(last[i % n] - s[i % n]) * (double)((float *)qk.p)[i];
        assert_true(fabs((double)((float *)out.p)[i] - want) <= 1e-6 * fabs(want));
    }
    math->fade_channels(last, s, (float *)qk.p + n, 1, n, out.p); /* alone */
    assert_memory_equal(out.p, (float *)out.p + n, n * sizeof(float));
    math->fade_channels(last, NULL, NULL, 1, n, out.p);
    math->sigmoid(qk.p, n, chance.p);
    for (size_t c = 0; c < n; c++) {
        const double want = 1 / (1 + exp(-(double)((float *)qk.p)[c]));
        assert_true(fabs((double)((float *)out.p)[c] - faded(last[c])) <= 1e-6 * faded(last[c]));
        assert_true(fabs((double)((float *)chance.p)[c] - want) <= 1e-6 * want);
    }
    UNFENCE(&a, &bias, &sums, &qk, &keys, &of_q, &of_k, &out, &chance);
}

/* v' in its own array and o beside it: all rows at once, then a row at a time in two parts of columns. */
static void check_lower(const td_delta_math *math, rnd *r) {
    const size_t keys = rnd_range(r, 0, 20), m = rnd_range(r, 1, 20), n = rnd_range(r, 1, 150), lda = keys + m + 1;
    fenced       a = reals(r, m * lda, 0.3f), u = reals(r, (keys + m) * n, 1), c = reals(r, m * n, 1),
           u1 = copy_of(&u, (keys + m) * n), c1 = copy_of(&c, m * n);
    float *const  us = u.p;
    FREED double *want = malloc((keys + m) * n * sizeof *want), *size = malloc((keys + m) * n * sizeof *size);
    for (size_t t = 0; t < keys + m; t++)
        for (size_t j = 0; j < n; j++) {
            double sum = (double)us[t * n + j], all = fabs(sum);
            for (size_t s = 0; t >= keys && s < t; s++) {
                sum += (double)((float *)a.p)[(t - keys) * lda + s] * want[s * n + j];
                all += fabs((double)((float *)a.p)[(t - keys) * lda + s]) * size[s * n + j];
            }
            want[t * n + j] = sum, size[t * n + j] = all;
        }
    td_lower_args v = {.m = m, .n = n, .keys = keys, .a = a.p, .lda = lda, .u = us, .ldu = n, .c = us + keys * n, .ldc = n},
                  o = v;
    math->lower(&v);
    o.keys = keys + 1;
    o.c = c.p;
    math->lower(&o);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            assert_true(is_near(us[(keys + i) * n + j], want[(keys + i) * n + j], size[(keys + i) * n + j], keys + m));
            double sum = (double)((float *)c1.p)[i * n + j], all = fabs(sum);
            for (size_t s = 0; s <= keys + i; s++) {
                double p = (double)((float *)a.p)[i * lda + s] * (double)us[s * n + j];
                sum += p, all += fabs(p);
            }
            assert_true(is_near(((float *)c.p)[i * n + j], sum, all, keys + m));
        }
    for (size_t i = 0; i < m; i++)
        for (size_t part = 0, cut = rnd_range(r, 0, n); part < 2; part++) {
            const size_t  from = part ? cut : 0;
            td_lower_args one = WITH(td_lower_args, .m = 1, .n = part ? n - cut : cut, .keys = keys + i,
                                     .a = (float *)a.p + i * lda, .u = (float *)u1.p + from, .ldu = n);
            one.c = (float *)u1.p + (keys + i) * n + from;
            math->lower(&one);
            one.keys++;
            one.c = (float *)c1.p + i * n + from;
            math->lower(&one);
        }
    assert_memory_equal(u1.p, u.p, (keys + m) * n * sizeof(float));
    assert_memory_equal(c1.p, c.p, m * n * sizeof(float));
    UNFENCE(&a, &u, &c, &u1, &c1);
}

/* At once, and in two parts of the sum, which end where the result lies. */
static void check_fold(const td_delta_math *math, rnd *r, bool zeros) {
    const size_t m = rnd_range(r, 1, 40), n = rnd_range(r, 1, 100), keys = rnd_range(r, 1, 40), cut = rnd_range(r, 0, keys);
    fenced k = reals(r, keys * m, 1), u = reals(r, keys * n, 1), in = reals(r, m * n, 1), out = fence(m * n * sizeof(float)),
           parts = copy_of(&in, m * n);
    td_fold_args f = WITH(td_fold_args, .m = m, .n = n, .keys = keys, .k = k.p, .ldk = m, .u = u.p, .ldu = n,
                          .in = zeros ? NULL : in.p, .scale = 0.37f, .out = out.p, .ld = n);
    math->fold(&f);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = zeros ? 0 : (double)((float *)in.p)[i * n + j] * (double)0.37f, all = fabs(sum);
            for (size_t s = 0; s < keys; s++) {
                double p = (double)((float *)k.p)[s * m + i] * (double)((float *)u.p)[s * n + j];
                sum += p, all += fabs(p);
            }
            assert_true(is_near(((float *)out.p)[i * n + j], sum, all, keys));
        }
    f.out = parts.p;
    if (!zeros) f.in = parts.p;
    f.keys = cut;
    math->fold(&f);
    f.in = parts.p;
    f.scale = 1;
    f.keys = keys - cut;
    f.k += cut * m;
    f.u += cut * n;
    math->fold(&f);
    assert_memory_equal(parts.p, out.p, m * n * sizeof(float));
    UNFENCE(&k, &u, &in, &out, &parts);
}

/* The bits of the set's gemm. */
static void check_few(const td_kernels *t, rnd *r) {
    const size_t m = rnd_range(r, 1, 9), n = rnd_range(r, 1, 100), k = rnd_range(r, 1, 100);
    fenced       a = reals(r, m * k, 1), b = reals(r, k * n, 1), c = fence(m * n * sizeof(float)),
           want = fence(m * n * sizeof(float));
    td_fgemm_args g = {
        .m = m, .n = n, .k = k, .a = a.p, .lda = k, .b = b.p, .ldb = n, .b_dtype = TD_DT_F32, .c = c.p, .ldc = n};
    t->delta->few(&g);
    g.c = want.p;
    t->math->gemm(&g);
    assert_memory_equal(c.p, want.p, m * n * sizeof(float));
    UNFENCE(&a, &b, &c, &want);
}

TEST(rows_and_gates) {
    rnd r = rnd_open("delta rows");
    EACH_TABLE(t, delta) {
        print_message("  %s\n", t->delta->name);
        for (size_t n = 1; n < 70; n++) {
            check_rows(t->delta, &r, n);
            check_gates(t->delta, &r, n);
            check_fade(t->delta, &r, n);
            check_channels(t->delta, &r, n, 0);
            check_channels(t->delta, &r, n, -5);
        }
    }
}

TEST(sums_are_the_same_in_any_parts) {
    rnd r = rnd_open("delta sums");
    EACH_TABLE(t, delta) {
        for (int i = 0; i < 60; i++) {
            check_lower(t->delta, &r);
            check_fold(t->delta, &r, i & 1);
            check_few(t, &r);
        }
    }
}
