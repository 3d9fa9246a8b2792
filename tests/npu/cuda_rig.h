/* What the tests of the CUDA kernels share: memory that ends where it ends, and launches whose result may not depend on the
 * order of threads. */
#ifndef TD_TESTS_CUDA_RIG_H
#define TD_TESTS_CUDA_RIG_H

#include "npu_test_util.h"

#include "kernels/rows/row_quant.h"
#include "npu/cuda/kernels/cuda_shapes.h"
#include "tests/npu/cuda_standin/cuda_launch.h"

#define CUDA_KERNEL(name) extern const td_cuda_kernel td_cuda_kernel_##name

/* Device memory: 16-byte aligned, and what lies behind its last 16 bytes cannot be touched. */
typedef struct {
    void  *p;
    size_t bytes;
    fenced f;
} cuda_buf;

static inline cuda_buf cuda_alloc(size_t bytes) {
    cuda_buf b = {.bytes = (bytes + 15) / 16 * 16};
    b.f = fence(b.bytes ? b.bytes : 16);
    b.p = b.f.p;
    return b;
}
static inline cuda_buf cuda_copy(const void *from, size_t bytes) {
    cuda_buf b = cuda_alloc(bytes);
    memcpy(b.p, from, bytes);
    return b;
}
static inline cuda_buf cuda_word(uint32_t v) {
    return cuda_copy(&v, sizeof v);
}
static inline void cuda_free(cuda_buf *b, size_t n) {
    for (size_t i = 0; i < n; i++) unfence(&b[i].f);
}
#define CUDA_FREE(...) \
    cuda_free((cuda_buf[]){__VA_ARGS__}, sizeof((cuda_buf[]){__VA_ARGS__}) / sizeof(cuda_buf))

static inline cuda_buf cuda_bf16(const float *x, size_t n) {
    cuda_buf b = cuda_alloc(n * sizeof(td_bf16));
    for (size_t i = 0; i < n; i++) ((td_bf16 *)b.p)[i] = td_f32_to_bf16(x[i]);
    return b;
}

/* Run a launch with the threads in ascending order, and again in another one from the same beginning: `out` has the same
 * bits. */
static inline void cuda_run(const td_cuda_kernel *kernel, td_cuda_launch l, const cuda_buf *out, size_t n_out, void **args,
                            size_t n_args) {
    static uint64_t seed;
    void           *before[8], *after[8];
    assert_int_equal(kernel->n_args, n_args);
    assert_true(n_out <= 8);
    for (size_t i = 0; i < n_out; i++) {
        assert_non_null(before[i] = malloc(out[i].bytes));
        assert_non_null(after[i] = malloc(out[i].bytes));
        memcpy(before[i], out[i].p, out[i].bytes);
    }
    for (int round = 0; round < 2; round++) {
        td_cuda_emulated_order(round ? ++seed : 0);
        kernel->launch(&l, args);
        if (td_cuda_emulated_mistake()) fail_msg("%s", td_cuda_emulated_mistake());
        for (size_t i = 0; i < n_out; i++) {
            if (round) {
                if (memcmp(after[i], out[i].p, out[i].bytes) != 0)
                    fail_msg("%s: output %zu depends on the order of threads", kernel->name, i);
                continue;
            }
            memcpy(after[i], out[i].p, out[i].bytes);
            memcpy(out[i].p, before[i], out[i].bytes);
        }
    }
    for (size_t i = 0; i < n_out; i++) free(before[i]), free(after[i]);
}

#define CUDA_OUT(...) (cuda_buf[]){__VA_ARGS__}, sizeof((cuda_buf[]){__VA_ARGS__}) / sizeof(cuda_buf)
#define CUDA_ARGS(...) (void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *)
#define CUDA_NULL (&(void *){NULL})

static inline td_cuda_launch cuda_grid(size_t x, size_t y, size_t z, unsigned threads, size_t shared) {
    return (td_cuda_launch){{(unsigned)x, (unsigned)y, (unsigned)z}, {threads, 1, 1}, shared};
}

static inline size_t cuda_up(size_t n, size_t by) {
    return (n + by - 1) / by;
}

/* The int8 weights that the host's block and the kernels both get: codes with a scale a row, and the same codes in padded
 * rows. */
typedef struct {
    size_t         n, k, ldk;
    td_npu_weight *host;
    cuda_buf       codes, scale;
} int8_weight;

static inline int8_weight int8_weight_make(rig *g, rnd *r, size_t n, size_t k) {
    int8_weight w = {.n = n, .k = k, .ldk = cuda_up(k, TD_CUDA_QUANT_STRIDE) * TD_CUDA_QUANT_STRIDE};
    int8_t     *q = malloc(n * k);
    td_error    err = {0};
    w.codes = cuda_alloc(n * w.ldk);
    w.scale = cuda_alloc(n * sizeof(float));
    memset(w.codes.p, 0, w.codes.bytes);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < k; j++) q[i * k + j] = (int8_t)((int)rnd_range(r, 0, 254) - 127);
        memcpy((int8_t *)w.codes.p + i * w.ldk, q + i * k, k);
        ((float *)w.scale.p)[i] = (rnd_real(r) + 1.5f) / 127 / sqrtf((float)k);
    }
    td_tensor_view v = {.dtype = TD_DT_I8, .rank = 2, .shape = {n, k}, .data = q, .scale = w.scale.p};
    assert_int_equal(g->npu->ops->weight_create(g->npu, TD_WEIGHT_W8A8, &v, &w.host, &err), TD_OK);
    free(q);
    return w;
}

static inline void int8_weight_free(rig *g, int8_weight *w) {
    g->npu->ops->weight_destroy(g->npu, w->host);
    CUDA_FREE(w->codes, w->scale);
}

static inline void assert_same_bits(const char *what, const void *got, const void *want, size_t bytes, size_t element) {
    for (size_t i = 0; i < bytes; i++)
        if (((const char *)got)[i] != ((const char *)want)[i])
            fail_msg("%s: element %zu of %zu differs in a byte", what, i / element, bytes / element);
}

#endif
