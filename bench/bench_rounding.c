/*
 * Rounding one weight matrix by every method: CPU seconds of one thread and the relative error of the layer's output.
 *
 * usage: bench_rounding N K [WEIGHTS INPUTS]
 *   WEIGHTS, INPUTS  raw files of f32: weights [N, K], inputs [any, K]. Without them both are made up: weights are normal,
 *                    inputs have a spectrum that falls as 1 / i and a few loud columns.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "core/math/rng.h"
#include "quant/hessian.h"
#include "quant/matrix_round.h"

#define MADE_UP_TOKENS 4096
#define LATENTS 128

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double normal(uint64_t stream, uint64_t i) {
    return sqrt(-2 * log(1 - td_rng_uniform(1, stream, 2 * i))) *
           cos(6.283185307179586 * td_rng_uniform(1, stream, 2 * i + 1));
}

static float *made_up(uint64_t stream, size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++) x[i] = (float)normal(stream, i);
    return x;
}

static float *made_up_inputs(const td_blas *b, size_t tokens, size_t k) {
    float *z = made_up(2, tokens * LATENTS), *a = made_up(3, LATENTS * k), *x = made_up(4, tokens * k);
    if (!z || !a || !x) return NULL;
    for (size_t i = 0; i < tokens * LATENTS; i++) z[i] /= (float)(1 + i % LATENTS);
    b->sgemm(TD_BLAS_ROWS, TD_BLAS_PLAIN, TD_BLAS_PLAIN, (int)tokens, (int)k, LATENTS, 1, z, LATENTS, a, (int)k, 0.1f, x,
             (int)k);
    for (size_t i = 0; i < tokens * k; i++)
        if (i % k % 97 == 0) x[i] *= 10;
    free(z);
    free(a);
    return x;
}

static float *from_file(const char *path, size_t k, size_t *rows) {
    struct stat s;
    FILE       *f = fopen(path, "rb");
    float      *x = f && fstat(fileno(f), &s) == 0 ? malloc((size_t)s.st_size + 1) : NULL;
    if (x && fread(x, 1, (size_t)s.st_size, f) == (size_t)s.st_size)
        *rows = (size_t)s.st_size / sizeof *x / k;
    else
        fprintf(stderr, "bench_rounding: %s cannot be read\n", path);
    if (f) fclose(f);
    return x;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: bench_rounding N K [WEIGHTS INPUTS]\n");
        return 2;
    }
    size_t   n = strtoul(argv[1], NULL, 10), k = strtoul(argv[2], NULL, 10), tokens = MADE_UP_TOKENS, rows = n;
    td_blas  b;
    td_error err = {0};
    if (td_blas_open(&b, &err) != TD_OK) {
        fprintf(stderr, "bench_rounding: %s\n", err.text);
        return 1;
    }
    float  *w = argc == 5 ? from_file(argv[3], k, &rows) : made_up(1, n * k);
    float  *x = argc == 5 ? from_file(argv[4], k, &tokens) : made_up_inputs(&b, tokens, k);
    float  *h = calloc(k * k, sizeof *h), *scale = malloc(n * k * sizeof *scale);
    int8_t *q = malloc(n * k);
    if (!w || !x || !h || !scale || !q || rows != n) return 1;
    double at = cpu_s();
    td_hessian_add(&b, x, tokens, k, k, h);
    if (!td_hessian_mirror(h, k)) return 1;
    printf("# tandem " TD_VERSION ", 1 thread, %zu x %zu weights, Hessian of %zu inputs in %.3f s\n", n, k, tokens,
           cpu_s() - at);
    printf("format,method,cpu_seconds,error_percent\n");

    static const struct {
        const char *name;
        uint32_t    bits;
        size_t      group;
    } formats[] = {{"int4", 4, 0}, {"int4-g128", 4, 128}, {"int4-g32", 4, 32}, {"int8", 8, 0}};
    static const struct {
        const char     *name;
        td_round_method method;
        bool            act_order;
        uint32_t        trials, sweeps;
    } methods[] = {{"nearest", TD_ROUND_NEAREST, false, 0, 0},     {"clip", TD_ROUND_CLIP, false, 0, 0},
                   {"gptq", TD_ROUND_GPTQ, false, 1, 0},           {"+ act-order", TD_ROUND_GPTQ, true, 1, 0},
                   {"+ clip's scales", TD_ROUND_GPTQ, true, 2, 0}, {"+ 3 scales", TD_ROUND_GPTQ, true, 3, 0},
                   {"+ 5 scales", TD_ROUND_GPTQ, true, 5, 0},      {"+ 7 scales", TD_ROUND_GPTQ, true, 7, 0},
                   {"+ 1 sweep", TD_ROUND_GPTQ, true, 5, 1},       {"+ 4 sweeps", TD_ROUND_GPTQ, true, 5, 4},
                   {"+ 16 sweeps", TD_ROUND_GPTQ, true, 5, 16}};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
        for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
            td_round_options o = td_round_options_of(methods[m].method, formats[f].bits, formats[f].group);
            o.damping = td_round_damping(k, tokens);
            o.act_order = methods[m].act_order;
            o.scale_trials = methods[m].trials;
            o.sweeps = methods[m].sweeps;
            double    error = 0, from = cpu_s();
            td_status st = td_round_matrix(&b, w, n, k, h, &o, q, scale, &err);
            double    took = cpu_s() - from;
            if (st == TD_OK) st = td_round_error(&b, w, n, k, h, &o, q, scale, &error, &err);
            if (st != TD_OK) {
                fprintf(stderr, "bench_rounding: %s\n", err.text);
                return 1;
            }
            printf("%s,%s,%.3f,%.4f\n", formats[f].name, methods[m].name, took, 100 * error);
        }
    free(w);
    free(x);
    free(h);
    free(scale);
    free(q);
    return 0;
}
