/*
 * libcublasLt.so.12, as far as the backend calls it: int8 products with sums in int32, computed by a plain loop on the
 * stand-in's stream. Source: "cuBLAS" manual, "cuBLASLt Datatypes Reference" and "cuBLASLt API Reference"; requirements of
 * int8 are in the section of cublasLtMatmul, "To use IMMA kernels", 1. (regular data ordering).
 *
 * Rules are as in driver/cuda_standin.h: a program that breaks one is ended. It is stricter than the library:
 *   - a product has an algorithm that was asked for with these very shapes
 *   - pointers must keep what was promised when the algorithm was asked for
 *   - in a capture, a product wants the thread's mode to be relaxed
 *   - all descriptors are destroyed before the last handle
 *   - whatever the backend does not use is refused
 *
 * What the library says of shapes that it does not know is a status.
 *
 * An algorithm wants some of the workspace that it may have, at random, and spoils it. Sums wrap.
 *
 * Environment: TD_STANDIN_CUBLASLT (120804: the version), TD_STANDIN_CUBLASLT_ANSWERS (1: algorithms that there are),
 * TD_STANDIN_CUBLASLT_STATE (0: the state of an answer). TD_STANDIN_FAIL counts its calls with the driver's.
 */
#include <stdlib.h>
#include <string.h>

#include "npu/cuda/cuda_blas.h"
#include "tests/standins/cuda/driver/cuda_standin.h"

/* The vendor's symbols, as we declare them: a definition that differs does not compile. */
#define STANDIN_DECLARE(type, function, parameters) STANDIN_EXPORT type function parameters;
TD_CUBLASLT(STANDIN_DECLARE)
#undef STANDIN_DECLARE

/** Products that came up on streams. */
STANDIN_EXPORT uint64_t standin_cublaslt_products(void);
static _Atomic uint64_t products;

uint64_t standin_cublaslt_products(void) {
    return products;
}

#define IMMA "cublasLtMatmul, \"To use IMMA kernels\""
#define MULTIPLE 4

/* ---- things that handles point to ---------------------------------------------------------------- */

struct cublasLtContext {
    bool          alive;
    td_cu_context context;
};
struct td_cublaslt_st_p {
    bool    alive;
    int32_t a_is_transposed;
};
struct td_cublaslt_st_m {
    bool           alive;
    td_cublas_type type;
    uint64_t       rows, columns, stride;
};
struct td_cublaslt_st_w {
    bool     alive;
    uint64_t workspace_bytes;
    uint32_t alignment[4]; /* of A, B, C, D */
};

static _Atomic int n_handles, n_descriptors;

#define KEEP(thing)          \
    do {                     \
        standin_lock();      \
        standin_keep(thing); \
        standin_unlock();    \
    } while (0)

/** The calls that can fail. */
#define CAN_FAIL(status)                                                    \
    do {                                                                    \
        if (standin_fails(__func__) != TD_CUDA_SUCCESS) return TD_##status; \
    } while (0)

size_t cublasLtGetVersion(void) {
    return standin_setting("TD_STANDIN_CUBLASLT", 120804);
}

const char *cublasLtGetStatusString(td_cublas_status status) {
    switch (status) {
        case TD_CUBLAS_STATUS_SUCCESS: return "the operation completed successfully";
        case TD_CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
        case TD_CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
        case TD_CUBLAS_STATUS_INVALID_VALUE: return "an invalid value was used as an argument";
        case TD_CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
        case TD_CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality is not supported";
        default: return "unknown error";
    }
}

/* It takes memory of the device, which captures forbid ("allocates light hardware resources on the host and device"), and is
 * tied to the current device. */
td_cublas_status cublasLtCreate(td_cublaslt *out) {
    if (standin_enter(__func__, STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE) != TD_CUDA_SUCCESS)
        return TD_CUBLAS_STATUS_NOT_INITIALIZED;
    CAN_FAIL(CUBLAS_STATUS_NOT_INITIALIZED);
    td_cublaslt lt = calloc(1, sizeof *lt);
    *lt = (struct cublasLtContext){.alive = true, .context = standin_current()};
    STANDIN_LOCKED;
    standin_keep(lt);
    lt->context->n_things++;
    n_handles++;
    *out = lt;
    return TD_CUBLAS_STATUS_SUCCESS;
}

static td_cublaslt handle_of(td_cublaslt lt, const char *call) {
    if (!lt || !lt->alive) standin_refuse("cublasLtDestroy", "%s of a handle that is none, or is destroyed", call);
    if (lt->context != standin_current())
        standin_refuse("cublasLtCreate", "%s of a handle of another device than the thread's: a device has one of its own",
                       call);
    return lt;
}

/* "implicitly calls cudaDeviceSynchronize" */
td_cublas_status cublasLtDestroy(td_cublaslt handle) {
    (void)standin_enter(__func__, STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE | STANDIN_RELEASES);
    td_cublaslt lt = handle_of(handle, __func__);
    if (--n_handles == 0 && n_descriptors)
        standin_refuse("stand-in", "the last handle is destroyed with %d descriptors that were not destroyed",
                       n_descriptors);
    STANDIN_LOCKED;
    lt->alive = false;
    lt->context->n_things--;
    return standin_left() == TD_CUDA_SUCCESS ? TD_CUBLAS_STATUS_SUCCESS : TD_CUBLAS_STATUS_EXECUTION_FAILED;
}

/* ---- descriptors ------------------------------------------------------------------------------- */

static void check_value(const char *call, const void *value, size_t bytes, size_t wanted) {
    if (!value || bytes != wanted)
        standin_refuse(call,
                       "an attribute of %zu bytes is set with %zu: \"sizeInBytes doesn't match size of internal storage\"",
                       wanted, value ? bytes : 0);
}

td_cublas_status cublasLtMatmulDescCreate(td_cublaslt_product *out, td_cublas_compute compute, td_cublas_type scale) {
    if (compute != TD_CUBLAS_COMPUTE_32I || scale != TD_CUDA_R_32I)
        standin_refuse("stand-in", "a product with compute type %u and scale type %u: int32 alone is here", compute, scale);
    CAN_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    td_cublaslt_product p = calloc(1, sizeof *p);
    p->alive = true;
    KEEP(p);
    n_descriptors++;
    *out = p;
    return TD_CUBLAS_STATUS_SUCCESS;
}

static td_cublaslt_product product_of(td_cublaslt_product p, const char *call) {
    if (!p || !p->alive) standin_refuse("cublasLtMatmulDescDestroy", "%s of a product that is none, or is destroyed", call);
    return p;
}

td_cublas_status cublasLtMatmulDescDestroy(td_cublaslt_product product) {
    product_of(product, __func__)->alive = false;
    n_descriptors--;
    return TD_CUBLAS_STATUS_SUCCESS;
}

td_cublas_status cublasLtMatmulDescSetAttribute(td_cublaslt_product product, td_cublaslt_product_fact fact,
                                                const void *value, size_t bytes) {
    td_cublaslt_product p = product_of(product, __func__);
    if (fact != TD_CUBLASLT_MATMUL_DESC_TRANSA)
        standin_refuse("stand-in", "cublasLtMatmulDescSetAttribute of %u, which is not here", fact);
    check_value(__func__, value, bytes, sizeof p->a_is_transposed);
    CAN_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    memcpy(&p->a_is_transposed, value, bytes);
    return TD_CUBLAS_STATUS_SUCCESS;
}

td_cublas_status cublasLtMatrixLayoutCreate(td_cublaslt_matrix *out, td_cublas_type type, uint64_t rows, uint64_t columns,
                                            int64_t stride) {
    if (type != TD_CUDA_R_8I && type != TD_CUDA_R_32I)
        standin_refuse("stand-in", "a matrix of type %u, which is not here", type);
    if (!rows || !columns)
        standin_refuse("cublasLtMatrixLayoutCreate", "a matrix of %zu x %zu", (size_t)rows, (size_t)columns);
    if (stride < (int64_t)rows)
        standin_refuse("cublasLtMatrixLayoutAttribute_t (CUBLASLT_MATRIX_LAYOUT_LD)",
                       "a leading dimension of %lld, and columns of %zu: they overlap", (long long)stride, (size_t)rows);
    CAN_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    td_cublaslt_matrix m = calloc(1, sizeof *m);
    *m = (struct td_cublaslt_st_m){true, type, rows, columns, (uint64_t)stride};
    KEEP(m);
    n_descriptors++;
    *out = m;
    return TD_CUBLAS_STATUS_SUCCESS;
}

static const struct td_cublaslt_st_m *matrix_of(const struct td_cublaslt_st_m *m, const char *call) {
    if (!m || !m->alive) standin_refuse("cublasLtMatrixLayoutDestroy", "%s of a matrix that is none, or is destroyed", call);
    return m;
}

td_cublas_status cublasLtMatrixLayoutDestroy(td_cublaslt_matrix matrix) {
    (void)matrix_of(matrix, __func__);
    matrix->alive = false;
    n_descriptors--;
    return TD_CUBLAS_STATUS_SUCCESS;
}

td_cublas_status cublasLtMatmulPreferenceCreate(td_cublaslt_wish *out) {
    CAN_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    td_cublaslt_wish w = calloc(1, sizeof *w);
    *w = (struct td_cublaslt_st_w){.alive = true, .alignment = {256, 256, 256, 256}};
    KEEP(w);
    n_descriptors++;
    *out = w;
    return TD_CUBLAS_STATUS_SUCCESS;
}

static td_cublaslt_wish wish_of(td_cublaslt_wish w, const char *call) {
    if (!w || !w->alive)
        standin_refuse("cublasLtMatmulPreferenceDestroy", "%s of a preference that is none, or is destroyed", call);
    return w;
}

td_cublas_status cublasLtMatmulPreferenceDestroy(td_cublaslt_wish wish) {
    wish_of(wish, __func__)->alive = false;
    n_descriptors--;
    return TD_CUBLAS_STATUS_SUCCESS;
}

td_cublas_status cublasLtMatmulPreferenceSetAttribute(td_cublaslt_wish wish, td_cublaslt_wish_fact fact, const void *value,
                                                      size_t bytes) {
    td_cublaslt_wish w = wish_of(wish, __func__);
    if (fact == TD_CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        check_value(__func__, value, bytes, sizeof w->workspace_bytes);
        CAN_FAIL(CUBLAS_STATUS_INVALID_VALUE);
        memcpy(&w->workspace_bytes, value, bytes);
        return TD_CUBLAS_STATUS_SUCCESS;
    }
    if (fact < TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES || fact > TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        standin_refuse("stand-in", "cublasLtMatmulPreferenceSetAttribute of %u, which is not here", fact);
    check_value(__func__, value, bytes, sizeof *w->alignment);
    CAN_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    uint32_t *alignment = &w->alignment[fact - TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
    memcpy(alignment, value, bytes);
    if (!*alignment || *alignment & (*alignment - 1))
        standin_refuse("cublasLtMatmulPreferenceAttributes_t", "a smallest alignment of %u bytes", *alignment);
    return TD_CUBLAS_STATUS_SUCCESS;
}

/* ---- algorithms -------------------------------------------------------------------------------- */

/** What an algorithm's data say: which product it is of. */
typedef struct {
    uint64_t mark, m, n, k, strides, workspace_bytes;
    uint32_t alignment[4];
} algorithm;
_Static_assert(sizeof(algorithm) <= sizeof(td_cublaslt_algorithm), "an algorithm's data");
#define MARK 0x7d1e5a7e0a1607ull

typedef const struct td_cublaslt_st_m matrix;

/** A product's shapes: D [m, n] = A [k, m], transposed, times B [k, n]. */
static algorithm describe(const struct td_cublaslt_st_p *p, matrix *a, matrix *b, matrix *c, matrix *d, const char *call) {
    if (p->a_is_transposed != TD_CUBLAS_OP_T)
        standin_refuse(IMMA, "%s: A is not transposed: \"only the TN format is supported\"", call);
    if (a->type != TD_CUDA_R_8I || b->type != TD_CUDA_R_8I || c->type != TD_CUDA_R_32I || d->type != TD_CUDA_R_32I)
        standin_refuse("cublasLtMatmul, \"Datatypes Supported\"",
                       "%s: types %u, %u, %u, %u: A and B are int8, C and D int32", call, a->type, b->type, c->type,
                       d->type);
    if (a->rows != b->rows || d->rows != a->columns || d->columns != b->columns)
        standin_refuse("cublasLtMatmul", "%s: %zu x %zu, transposed, times %zu x %zu is not %zu x %zu", call,
                       (size_t)a->rows, (size_t)a->columns, (size_t)b->rows, (size_t)b->columns, (size_t)d->rows,
                       (size_t)d->columns);
    if (c->rows != d->rows || c->columns != d->columns || c->stride != d->stride)
        standin_refuse("cublasLtMatmul", "%s: C and D differ, and in place they must not", call);
    return (algorithm){.mark = MARK,
                       .m = d->rows,
                       .n = d->columns,
                       .k = a->rows,
                       .strides = a->stride * 1000003 + b->stride * 1009 + d->stride};
}

/** What keeps the product from int8's kernels, or NULL. */
static const char *not_imma(const algorithm *x, matrix *a, matrix *b, matrix *d) {
    if (x->m % MULTIPLE || x->k % MULTIPLE) return "dimensions m and k must be multiples of 4";
    if (a->stride % MULTIPLE || b->stride % MULTIPLE || d->stride % MULTIPLE)
        return "leading dimensions of A, B and C must be multiples of 4";
    return NULL;
}

td_cublas_status cublasLtMatmulAlgoGetHeuristic(td_cublaslt lt, td_cublaslt_product product, td_cublaslt_matrix a_is,
                                                td_cublaslt_matrix b_is, td_cublaslt_matrix c_is, td_cublaslt_matrix d_is,
                                                td_cublaslt_wish wish, int n_wanted, td_cublaslt_answer *answers,
                                                int *n_answers) {
    static _Atomic uint64_t asked;
    if (standin_enter(__func__, STANDIN_NEEDS_CONTEXT) != TD_CUDA_SUCCESS) return TD_CUBLAS_STATUS_NOT_INITIALIZED;
    (void)handle_of(lt, __func__);
    const struct td_cublaslt_st_w *w = wish_of(wish, __func__);
    matrix   *a = matrix_of(a_is, __func__), *b = matrix_of(b_is, __func__), *d = matrix_of(d_is, __func__);
    algorithm x = describe(product_of(product, __func__), a, b, matrix_of(c_is, __func__), d, __func__);
    if (n_wanted < 1 || !answers || !n_answers)
        standin_refuse("cublasLtMatmulAlgoGetHeuristic", "%d algorithms are asked for", n_wanted);
    CAN_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    *n_answers = 0;
    if (not_imma(&x, a, b, d)) return TD_CUBLAS_STATUS_NOT_SUPPORTED;
    if (!standin_setting("TD_STANDIN_CUBLASLT_ANSWERS", 1)) return TD_CUBLAS_STATUS_SUCCESS;
    uint64_t random = standin_setting("TD_STANDIN_SEED", 1) * 0x9e3779b97f4a7c15ull + ++asked;
    random = (random ^ random >> 31) * 0xbf58476d1ce4e5b9ull;
    x.workspace_bytes = random >> 33 & 1 ? (random >> 34) % (w->workspace_bytes + 1) : 0;
    memcpy(x.alignment, w->alignment, sizeof x.alignment);
    *n_answers = 1;
    answers[0] = (td_cublaslt_answer){.workspace_bytes = x.workspace_bytes,
                                      .state = (td_cublas_status)standin_setting("TD_STANDIN_CUBLASLT_STATE", 0)};
    memcpy(&answers[0].algorithm, &x, sizeof x);
    return TD_CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---------------------------------------------------------------------------------- */

typedef struct {
    algorithm     algorithm;
    const int8_t *a, *b;
    int32_t      *d;
    uint64_t      lda, ldb, ldd;
    void         *workspace;
} args;

static size_t bytes_of(matrix *m) {
    return (size_t)((m->columns - 1) * m->stride + m->rows) * (m->type == TD_CUDA_R_8I ? 1 : sizeof(int32_t));
}

static void run_product(standin_op *op, td_cu_stream s) {
    const args      *p = op->payload;
    const algorithm *x = &p->algorithm;
    const int8_t    *a = standin_real(p->a, 1, op->name), *b = standin_real(p->b, 1, op->name);
    int32_t         *d = standin_real(p->d, 1, op->name);
    (void)s;
    if (standin_setting("TD_STANDIN_DRY", 0)) return;
    for (uint64_t j = 0; j < x->n; j++)
        for (uint64_t i = 0; i < x->m; i++) {
            uint32_t sum = 0;
            for (uint64_t l = 0; l < x->k; l++) sum += (uint32_t)(a[i * p->lda + l] * b[j * p->ldb + l]);
            memcpy(&d[j * p->ldd + i], &sum, sizeof sum);
        }
    size_t spoiled = x->workspace_bytes < 4096 ? x->workspace_bytes : 4096;
    if (spoiled) memset(standin_real(p->workspace, spoiled, op->name), 0x5a, spoiled);
    products++;
}

static void drop_product(standin_op *op) {
    free(op->payload);
}

static void write_product(const standin_op *op, FILE *to) {
    const algorithm *x = &((const args *)op->payload)->algorithm;
    fprintf(to, "%s\t%llu\t%llu\t%llu\n", op->name, (unsigned long long)x->m, (unsigned long long)x->n,
            (unsigned long long)x->k);
}

/** What lies there must be all of one piece, of the thread's card, and aligned as was promised. */
static void check_memory(const char *what, const void *at, size_t bytes, size_t alignment) {
    if ((uintptr_t)at % MULTIPLE) standin_refuse(IMMA, "%s at %p: pointers must be 4-byte aligned", what, at);
    if ((uintptr_t)at % alignment)
        standin_refuse("cublasLtMatmulPreferenceAttributes_t", "%s at %p, and the algorithm was asked for with %zu bytes",
                       what, at, alignment);
    STANDIN_LOCKED;
    standin_memory *m = standin_memory_of(at, bytes), *some = standin_memory_of(at, 1);
    if (some && !m) standin_refuse("cublasLtMatmul", "%s goes beyond the end of the memory at %p", what, at);
    if (!m) standin_refuse("cublasLtMatmul", "%s at %p is in no live memory of a device", what, at);
    if (m->device != standin_current()->device)
        standin_refuse("cublasLtMatmul", "%s at %p is not memory of the thread's device", what, at);
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (const char *)a < (const char *)b + b_bytes && (const char *)b < (const char *)a + a_bytes;
}

/** The algorithm is one for this product. */
static void check_algorithm(const td_cublaslt_algorithm *given, algorithm *x, uint64_t workspace_bytes) {
    algorithm was;
    if (!given)
        standin_refuse("cublasLtMatmul (algo)",
                       "no algorithm: the library would look for one with default preferences, which "
                       "are no workspace and pointers aligned to 256 bytes");
    memcpy(&was, given, sizeof was);
    if (was.mark != MARK) standin_refuse("cublasLtMatmul (algo)", "an algorithm that no heuristic has given");
    if (was.m != x->m || was.n != x->n || was.k != x->k || was.strides != x->strides)
        standin_refuse("cublasLtMatmul (algo)", "an algorithm of another product: %zu x %zu x %zu", (size_t)was.m,
                       (size_t)was.n, (size_t)was.k);
    if (workspace_bytes < was.workspace_bytes)
        standin_refuse("cublasLtMatmul (workspaceSizeInBytes)", "a workspace of %zu bytes, and the algorithm needs %zu",
                       (size_t)workspace_bytes, (size_t)was.workspace_bytes);
    *x = was;
}

td_cublas_status cublasLtMatmul(td_cublaslt lt, td_cublaslt_product product, const void *alpha, const void *a,
                                td_cublaslt_matrix a_is, const void *b, td_cublaslt_matrix b_is, const void *beta,
                                const void *c, td_cublaslt_matrix c_is, void *d, td_cublaslt_matrix d_is,
                                const td_cublaslt_algorithm *given, void *workspace, size_t workspace_bytes,
                                td_cu_stream stream) {
    int32_t scale[2];
    /* guide, Lazy Loading: the library's kernels may be loaded by their first use, which captures forbid. */
    if (standin_enter(__func__, STANDIN_NEEDS_CONTEXT | STANDIN_UNSAFE) != TD_CUDA_SUCCESS)
        return TD_CUBLAS_STATUS_EXECUTION_FAILED;
    (void)handle_of(lt, __func__);
    td_cu_stream s = standin_stream_of(stream, __func__);
    matrix      *am = matrix_of(a_is, __func__), *bm = matrix_of(b_is, __func__), *dm = matrix_of(d_is, __func__);
    algorithm    x = describe(product_of(product, __func__), am, bm, matrix_of(c_is, __func__), dm, __func__);
    const char  *why = not_imma(&x, am, bm, dm);
    if (why) standin_refuse(IMMA, "%zu x %zu x %zu: %s", (size_t)x.m, (size_t)x.n, (size_t)x.k, why);
    if (!alpha || !beta) standin_refuse("cublasLtMatmul (alpha, beta)", "no alpha or no beta");
    memcpy(&scale[0], alpha, sizeof scale[0]);
    memcpy(&scale[1], beta, sizeof scale[1]);
    if (scale[0] != 1 || scale[1] != 0)
        standin_refuse("stand-in", "alpha %d and beta %d: 1 and 0 are here, in the scale's type int32", scale[0], scale[1]);
    if (c != d) standin_refuse("stand-in", "C is not D: a product in another place than its sums is not here");
    check_algorithm(given, &x, workspace_bytes);
    check_memory("A", a, bytes_of(am), x.alignment[0]);
    check_memory("B", b, bytes_of(bm), x.alignment[1]);
    check_memory("D", d, bytes_of(dm), x.alignment[3]);
    if (overlap(d, bytes_of(dm), a, bytes_of(am)) || overlap(d, bytes_of(dm), b, bytes_of(bm)))
        standin_refuse("cublasLtMatmul", "D overlaps what it is computed from");
    if (x.workspace_bytes) {
        check_memory("the workspace", workspace, workspace_bytes, 256);
        if (overlap(workspace, workspace_bytes, d, bytes_of(dm)) || overlap(workspace, workspace_bytes, a, bytes_of(am)) ||
            overlap(workspace, workspace_bytes, b, bytes_of(bm)))
            standin_refuse("cublasLtMatmul (workspace)", "the workspace overlaps a matrix");
    }
    CAN_FAIL(CUBLAS_STATUS_EXECUTION_FAILED);
    standin_op *op = standin_op_new(__func__, STANDIN_KERNEL, run_product);
    args       *p = calloc(1, sizeof *p);
    *p = (args){x, a, b, d, am->stride, bm->stride, dm->stride, workspace};
    op->payload = p;
    op->drop = drop_product;
    op->write = write_product;
    standin_op_use(op, a, bytes_of(am), false, false);
    standin_op_use(op, b, bytes_of(bm), false, false);
    standin_op_use(op, d, bytes_of(dm), true, false);
    if (x.workspace_bytes) standin_op_use(op, workspace, x.workspace_bytes, true, false);
    standin_submit(s, op);
    return TD_CUBLAS_STATUS_SUCCESS;
}
