/* What the tests of the CUDA kernels share: memory with a page that faults behind it, and launches whose result must not
 * depend on the order of threads. */
#ifndef TD_TESTS_CUDA_RIG_H
#define TD_TESTS_CUDA_RIG_H

#include "npu_test_util.h"

#include "kernels/rows/row_quant.h"
#include "npu/cuda/kernels/cuda_shapes.h"
#include "tests/standins/cuda/cuda_launch.h"

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
#define CUDA_FREE(...) cuda_free((cuda_buf[]){__VA_ARGS__}, sizeof((cuda_buf[]){__VA_ARGS__}) / sizeof(cuda_buf))

static inline cuda_buf cuda_bf16(const float *x, size_t n) {
    cuda_buf b = cuda_alloc(n * sizeof(td_bf16));
    for (size_t i = 0; i < n; i++) ((td_bf16 *)b.p)[i] = td_f32_to_bf16(x[i]);
    return b;
}

/* Run a launch with the threads in ascending order, and again in another one from the same beginning: `out` has the same
 * bits. */
static inline void cuda_run(const td_cuda_kernel *kernel, td_cuda_launch l, const cuda_buf *out, size_t n_out,
                            const void **args, size_t n_args) {
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
        kernel->launch(&l, (void **)args);
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
#define CUDA_ARGS(...) (const void *[]){__VA_ARGS__}, sizeof((const void *[]){__VA_ARGS__}) / sizeof(void *)
#define CUDA_NULL (&(void *){NULL})

static inline td_cuda_launch cuda_grid(size_t x, size_t y, size_t z, unsigned threads, size_t shared) {
    return (td_cuda_launch){{(unsigned)x, (unsigned)y, (unsigned)z}, {threads, 1, 1}, shared, 0};
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
    int8_weight   w = {.n = n, .k = k, .ldk = cuda_up(k, TD_CUDA_QUANT_STRIDE) * TD_CUDA_QUANT_STRIDE};
    FREED int8_t *q = malloc(n * k);
    td_error      err = {0};
    w.codes = cuda_alloc(n * w.ldk);
    w.scale = cuda_alloc(n * sizeof(float));
    memset(w.codes.p, 0, w.codes.bytes);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < k; j++) q[i * k + j] = (int8_t)((int)rnd_range(r, 0, 254) - 127);
        memcpy((int8_t *)w.codes.p + i * w.ldk, q + i * k, k);
        ((float *)w.scale.p)[i] = (rnd_real(r) + 1.5f) / 127 / sqrtf((float)k);
    }
    td_tensor_view v = {.dtype = TD_DT_I8, .rank = 2, .shape = {n, k}, .data = q, .scale = w.scale.p};
    OK(g->npu->ops->weight_create(g->npu, TD_WEIGHT_W8A8, &v, &w.host, &err));
    return w;
}

static inline void int8_weight_free(rig *g, int8_weight *w) {
    g->npu->ops->weight_destroy(g->npu, w->host);
    CUDA_FREE(w->codes, w->scale);
}

/* ---- attention's steps ----------------------------------------------------------------------- */

#define CUDA_SEQS 3
#define CUDA_SEQ_PAGES 6
#define CUDA_PAGES (CUDA_SEQS * CUDA_SEQ_PAGES)

/* What there is of the sequences so far, with pages in any order. */
typedef struct {
    uint32_t block_table[CUDA_PAGES], have[CUDA_SEQS];
} cuda_sequences;

static inline cuda_sequences cuda_sequences_open(rnd *r) {
    cuda_sequences s = {0};
    for (uint32_t i = 0; i < CUDA_PAGES; i++) s.block_table[i] = i;
    for (uint32_t i = CUDA_PAGES; i > 1; i--) {
        uint32_t j = (uint32_t)rnd_range(r, 0, i - 1), swap = s.block_table[i - 1];
        s.block_table[i - 1] = s.block_table[j], s.block_table[j] = swap;
    }
    return s;
}

/* A step of rows[s] rows of each sequence; not to be moved. */
typedef struct {
    uint32_t       n, stride;
    uint32_t       seq_start[CUDA_SEQS + 1], kv_len[CUDA_SEQS];
    uint8_t        absorbed[CUDA_SEQS];
    td_step_counts counts;
    td_step        step;
    cuda_buf       n_rows, n_seq, starts, pos, slot, pages, forms, lens;
} cuda_step;

static inline void cuda_step_open(cuda_step *s, cuda_sequences *q, const uint32_t rows[CUDA_SEQS],
                                  const uint8_t absorbed[CUDA_SEQS]) {
    *s = (cuda_step){.stride = CUDA_SEQ_PAGES};
    for (uint32_t i = 0; i < CUDA_SEQS; i++) {
        s->seq_start[i + 1] = s->seq_start[i] + rows[i];
        s->kv_len[i] = q->have[i] + rows[i];
        s->absorbed[i] = absorbed[i];
    }
    s->n = s->seq_start[CUDA_SEQS];
    s->pos = cuda_alloc(s->n * sizeof(uint32_t)), s->slot = cuda_alloc(s->n * sizeof(uint32_t));
    for (uint32_t i = 0; i < CUDA_SEQS; i++)
        for (uint32_t j = 0; j < rows[i]; j++) {
            uint32_t p = q->have[i] + j;
            ((uint32_t *)s->pos.p)[s->seq_start[i] + j] = p;
            ((uint32_t *)s->slot.p)[s->seq_start[i] + j] =
                q->block_table[i * CUDA_SEQ_PAGES + p / TD_KV_PAGE] * TD_KV_PAGE + p % TD_KV_PAGE;
        }
    for (uint32_t i = 0; i < CUDA_SEQS; i++) q->have[i] = s->kv_len[i];
    s->n_rows = cuda_word(s->n), s->n_seq = cuda_word(CUDA_SEQS), s->starts = cuda_copy(s->seq_start, sizeof s->seq_start);
    s->pages = cuda_copy(q->block_table, sizeof q->block_table), s->forms = cuda_copy(absorbed, CUDA_SEQS);
    s->lens = cuda_copy(s->kv_len, sizeof s->kv_len);
    s->counts = (td_step_counts){.n_tok = s->n, .n_seq = CUDA_SEQS};
    s->step = td_step_unified(
        &WITH(td_step_arrays, .counts = &s->counts, .pos = s->pos.p, .slot = s->slot.p, .seq_start = s->seq_start,
              .kv_len = s->kv_len, .absorbed = s->absorbed, .block_table = q->block_table),
        CUDA_SEQ_PAGES);
}

static inline void cuda_step_close(cuda_step *s) {
    CUDA_FREE(s->n_rows, s->n_seq, s->starts, s->pos, s->slot, s->pages, s->forms, s->lens);
}

/* cos half | sin half */
static inline float *cuda_rope_table(size_t positions, size_t dim) {
    float *table = malloc(positions * dim * sizeof(float));
    for (size_t p = 0; p < positions; p++)
        for (size_t i = 0; i < dim / 2; i++) {
            double angle = (double)p * pow(10000, -2.0 * (double)i / (double)dim);
            table[p * dim + i] = (float)cos(angle), table[p * dim + dim / 2 + i] = (float)sin(angle);
        }
    return table;
}

static inline float *cuda_identity(size_t n) {
    float *w = calloc(n * n, sizeof(float));
    for (size_t i = 0; i < n; i++) w[i * n + i] = 1;
    return w;
}

/* y [rows, n] = x [rows, k] w^T, rounded once */
static inline cuda_buf cuda_product(const float *w, const float *x, size_t rows, size_t n, size_t k) {
    cuda_buf y = cuda_alloc(rows * n * sizeof(float));
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t l = 0; l < k; l++) sum += (double)w[j * k + l] * (double)x[i * k + l];
            ((float *)y.p)[i * n + j] = (float)sum;
        }
    return y;
}

static inline void assert_close(const char *what, const void *got, const float *want, size_t n, double limit) {
    FREED double *w = malloc((n + 1) * sizeof *w);
    for (size_t i = 0; i < n; i++) w[i] = (double)want[i];
    double error = error_of(TD_DT_F32, got, w, n);
    if (!(error < limit)) fail_msg("%s: relative error %g, limit %g", what, error, limit);
}

static inline void assert_same_bits(const char *what, const void *got, const void *want, size_t bytes, size_t element) {
    for (size_t i = 0; i < bytes; i++)
        if (((const char *)got)[i] != ((const char *)want)[i])
            fail_msg("%s: element %zu of %zu differs in a byte", what, i / element, bytes / element);
}

#endif
