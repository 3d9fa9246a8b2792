/* What the benchmarks share: the median of their rounds. */
#ifndef TD_BENCH_TIME_H
#define TD_BENCH_TIME_H

#include <stdlib.h>

static int bench_rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** Sorts x. */
static inline double bench_median(double *x, size_t n) {
    qsort(x, n, sizeof *x, bench_rising);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

#endif
