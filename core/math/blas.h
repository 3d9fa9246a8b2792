/*
 * The few routines of OpenBLAS that calibration uses. The shared library is loaded when calibration starts, because nothing
 * else needs it. If it were linked, it would start a thread per core in every server, and end a process that cannot start
 * one.
 */
#ifndef TD_CORE_MATH_BLAS_H
#define TD_CORE_MATH_BLAS_H

#include "tandem.h"

/* Values of the CBLAS interface. */
enum { TD_BLAS_ROWS = 101, TD_BLAS_PLAIN = 111, TD_BLAS_TRANS = 112, TD_BLAS_LOWER = 122 };

/** Entry points; every call runs on the thread that makes it, and any number of threads may call at the same time. */
typedef struct {
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                  const float *b, int ldb, float beta, float *c, int ldc);
    void (*ssyrk)(int order, int uplo, int trans, int n, int k, float alpha, const float *a, int lda, float beta, float *c,
                  int ldc);
    void (*spotrf)(const char *uplo, const int *n, float *a, const int *lda, int *info); /* LAPACK: by columns */
} td_blas;

/**
 * Load libopenblas.so.0, bind it to one thread a call, and have it use kernels of AVX-512 or AVX2 as core/machine/cpu.h
 * finds them. Sets OPENBLAS_NUM_THREADS and, unless it is set, OPENBLAS_CORETYPE in the environment, so call it while no
 * other thread reads that. The library stays loaded as long as the process lives; a second call is fine.
 * @return TD_ENOTFOUND with a sentence that names the package.
 */
TD_NODISCARD td_status td_blas_open(td_blas *b, td_error *err);

#endif
