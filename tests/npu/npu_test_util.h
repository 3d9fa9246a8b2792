/* What the tests of the device tier share: a device over n threads, seeded numbers, weights, and a plain double-precision
 * model. */
#ifndef TD_TESTS_NPU_TEST_UTIL_H
#define TD_TESTS_NPU_TEST_UTIL_H

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/math/rng.h"
#include "core/threads/pool.h"
#include "npu/host/host_npu.h"
#include "npu/npu.h"
#include "tests/npu/unified_step.h"
#include "tests/td_test.h"

#define CARD_SCORES (TD_SCORE_SOFTMAX_CHOSEN + 1) /* that routers of cards have: the first of td_router_score */

/* ---- numbers --------------------------------------------------------------------------------- */

typedef struct {
    uint64_t seed, n;
} rnd;

/* TD_TEST_SEED repeats a run. */
static inline rnd rnd_open(const char *what) {
    const char *s = getenv("TD_TEST_SEED");
    rnd         r = {.seed = s ? strtoull(s, NULL, 10) : 20260101};
    print_message("%s: seed %llu\n", what, (unsigned long long)r.seed);
    return r;
}
static inline uint64_t rnd_u64(rnd *r) {
    return td_rng_u64(r->seed, 1, r->n++);
}
static inline size_t rnd_range(rnd *r, size_t lo, size_t hi) {
    return lo + rnd_u64(r) % (hi - lo + 1);
} /* inclusive */
static inline float rnd_real(rnd *r) {
    return (float)(td_rng_uniform(r->seed, 2, r->n++) * 2 - 1);
} /* (-1, 1) */

static inline float *rnd_array(rnd *r, size_t n, float scale) {
    float *f = malloc((n + 1) * sizeof *f);
    assert_non_null(f);
    for (size_t i = 0; i < n; i++) f[i] = rnd_real(r) * scale;
    return f;
}

/* ---- memory that ends where it ends ---------------------------------------------------------- */

typedef struct {
    char  *map;
    size_t map_bytes;
    void  *p;
} fenced;

static inline fenced fence(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    fenced f = {.map_bytes = body + page};
    f.map = mmap(NULL, f.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    assert_int_equal(mprotect(f.map + body, page, PROT_NONE), 0);
    f.p = f.map + body - bytes;
    memset(f.map, 0x5a, body); /* what is not written shows */
    return f;
}

static inline void unfence(fenced *f) {
    munmap(f->map, f->map_bytes);
}

/* ---- device ---------------------------------------------------------------------------------- */

/** A device with what was made on it: blocks and weights go when it is closed. */
typedef struct {
    td_pool        *pool;
    td_npu         *npu;
    td_npu_stream  *stream;
    td_dtype        act;
    td_npu_block  **blocks;
    td_npu_weight **weights;
    size_t          n_blocks, n_weights;
} rig;

#ifndef RIG_DEVICE
#define RIG_DEVICE "host"
#endif

static inline rig rig_open(uint32_t threads, td_dtype act, bool own_threads) {
    td_worker_place places[8];
    rig             g = {.act = act};
    td_error        err = {0};
    for (uint32_t i = 0; i < threads; i++) places[i] = (td_worker_place){.cpu = TD_CPU_ANY};
    OK(td_pool_create(places, threads, &g.pool, &err));
    td_npu_config c = {.act_dtype = act, .host = &(td_host_npu_config){.pool = g.pool, .own_threads = own_threads}};
    OK(td_npu_open(RIG_DEVICE, &c, &g.npu, &err));
    OK(g.npu->ops->stream_create(g.npu, &g.stream, &err));
    return g;
}

static inline void rig_close(rig *g) {
    for (size_t i = 0; i < g->n_blocks; i++) g->npu->ops->block_destroy(g->npu, g->blocks[i]);
    for (size_t i = 0; i < g->n_weights; i++) g->npu->ops->weight_destroy(g->npu, g->weights[i]);
    free(g->blocks), free(g->weights);
    g->npu->ops->stream_destroy(g->npu, g->stream);
    g->npu->ops->close(g->npu);
    td_pool_destroy(g->pool);
}

static inline td_npu_weight *weight_of(rig *g, td_weight_format format, const td_tensor_view *v) {
    td_error err = {0};
    g->weights = realloc(g->weights, (g->n_weights + 1) * sizeof *g->weights);
    td_npu_weight **out = &g->weights[g->n_weights++];
    if (g->npu->ops->weight_create(g->npu, format, v, out, &err) != TD_OK) fail_msg("%s", err.text);
    return *out;
}

static inline td_npu_weight *make_weight(rig *g, td_weight_format format, const float *w, size_t n,
                                         size_t k) { /* n 0: a vector */
    return weight_of(g, format,
                     &(td_tensor_view){.dtype = TD_DT_F32, .rank = n ? 2 : 1, .shape = {n ? n : k, k}, .data = w});
}

static inline td_npu_block *make_block(rig *g, const td_block_desc *desc) {
    td_error err = {0};
    g->blocks = realloc(g->blocks, (g->n_blocks + 1) * sizeof *g->blocks);
    td_npu_block **out = &g->blocks[g->n_blocks++];
    if (g->npu->ops->block_create(g->npu, desc, out, &err) != TD_OK) fail_msg("%s", err.text);
    return *out;
}

static inline void run_block(rig *g, td_npu_block *b, const td_step *step) {
    OK(g->npu->ops->enqueue(g->npu, g->stream, b, step));
    OK(g->npu->ops->stream_sync(g->npu, g->stream));
}

/* Over n rows of no sequence: for blocks that are about rows alone. */
static inline void run_rows(rig *g, td_npu_block *b, size_t n) {
    td_step_counts counts = {.n_tok = (uint32_t)n};
    td_step        step = td_step_unified(&(td_step_arrays){.counts = &counts}, 0);
    run_block(g, b, &step);
}

static inline void *act_array(td_dtype act, const float *x, size_t n) { /* x NULL: zeros */
    void *p = calloc(n + 1, td_dtype_bytes(act));
    assert_non_null(p);
    for (size_t i = 0; x && i < n; i++) {
        if (act == TD_DT_BF16)
            ((td_bf16 *)p)[i] = td_f32_to_bf16(x[i]);
        else
            ((float *)p)[i] = x[i];
    }
    return p;
}
static inline double act_get(td_dtype act, const void *p, size_t i) {
    return act == TD_DT_BF16 ? (double)td_bf16_to_f32(((const td_bf16 *)p)[i]) : (double)((const float *)p)[i];
}

/* ---- the plain model ------------------------------------------------------------------------- */

/* y = W x + b */
static inline void ref_linear(const float *w, const float *bias, const double *x, size_t n, size_t k, double *y) {
    for (size_t j = 0; j < n; j++) {
        double sum = 0;
        for (size_t i = 0; i < k; i++) sum += (double)w[j * k + i] * x[i];
        y[j] = sum + (bias ? (double)bias[j] : 0);
    }
}
static inline void ref_norm(const float *gamma, double eps, const double *x, size_t n, double *y) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++) y[i] = x[i] / sqrt(sum / (double)n + eps) * (double)gamma[i];
}
static inline void ref_rope(const float *table, size_t dim, double *x) {
    for (size_t i = 0; i < dim / 2; i++) {
        double a = x[i], b = x[i + dim / 2], c = (double)table[i], s = (double)table[i + dim / 2];
        x[i] = a * c - b * s;
        x[i + dim / 2] = b * c + a * s;
    }
}
static inline void ref_softmax(double *x, size_t n) {
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) max = fmax(max, x[i]);
    for (size_t i = 0; i < n; i++) sum += x[i] = exp(x[i] - max);
    for (size_t i = 0; i < n; i++) x[i] /= sum;
}

static inline double rms(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum / (double)n);
}

/* The root mean square error relative to the root mean square of what is expected. */
static inline double error_of(td_dtype act, const void *got, const double *want, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += pow(act_get(act, got, i) - want[i], 2);
    return sqrt(sum / (double)n) / (rms(want, n) + 1e-30);
}

#endif
