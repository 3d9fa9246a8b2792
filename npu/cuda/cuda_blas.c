#include "npu/cuda/cuda_blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

/* ---- opening ----------------------------------------------------------------------------------- */

static const td_cuda_library_name NAME = {"libcublasLt.so", "cublas", "TD_CUBLASLT"};

static const struct {
    const char *symbol;
    size_t      at; /* in td_cublaslt_api */
} WANTED[] = {
#define WANT(type, function, parameters) {#function, offsetof(td_cublaslt_api, function)},
    TD_CUBLASLT(WANT)
#undef WANT
};
#define N_WANTED (sizeof WANTED / sizeof *WANTED)

static td_status find_all(td_cublaslt_library *l, td_error *err) {
    const char *missing = NULL;
    for (size_t i = 0; i < N_WANTED; i++) {
        void *at = dlsym(l->found.library, WANTED[i].symbol);
        memcpy((char *)&l->api + WANTED[i].at, &at, sizeof at); /* what POSIX leaves for functions */
        if (!at && !missing) missing = WANTED[i].symbol;
    }
    l->version = l->api.cublasLtGetVersion ? l->api.cublasLtGetVersion() : 0;
    if (l->version && l->version < TD_CUBLASLT_OLDEST)
        return td_fail(err, TD_ENOTSUP, "%s is cuBLASLt %zu.%zu and too old: %d.%d or later is needed", l->found.path,
                       l->version / 10000, l->version % 10000 / 100, TD_CUBLASLT_OLDEST / 10000,
                       TD_CUBLASLT_OLDEST % 10000 / 100);
    if (missing) return td_fail(err, TD_ENOTSUP, "%s has no %s: it is no cuBLASLt", l->found.path, missing);
    return TD_OK;
}

td_status td_cublaslt_load(td_cublaslt_library *out, int driver_version, td_error *err) {
    int         newest = td_cuda_library_newest(driver_version);
    const char *given = td_cuda_library_given(&NAME);
    *out = (td_cublaslt_library){0};
    if (!td_cuda_library_open(&NAME, TD_CUDA_MAJOR_OLDEST, newest, &out->found)) {
        char broken[sizeof out->found.broken];
        memcpy(broken, out->found.broken, sizeof broken);
        *out = (td_cublaslt_library){0};
        if (*broken) return td_fail(err, TD_ENOTFOUND, "cuBLASLt is there and does not open: %s", broken);
        return td_fail(err, TD_ENOTFOUND, "cuBLASLt was not found in %s (pip install %s)",
                       given ? given : "the system's folders, a toolkit or a Python environment",
                       newest < 13 ? "nvidia-cublas-cu12" : "nvidia-cublas");
    }
    td_status st = find_all(out, err);
    if (st != TD_OK) td_cublaslt_unload(out);
    return st;
}

void td_cublaslt_unload(td_cublaslt_library *l) {
    if (l->found.library) dlclose(l->found.library);
    *l = (td_cublaslt_library){0};
}

/* ---- a card ------------------------------------------------------------------------------------ */

#define ALIGNMENT 16 /* bytes, of all matrices: "for even better performance", and rows of codes have it */
#define MULTIPLE 4   /* of n and ldk */
/* "cublasSetWorkspace": what NVIDIA recommends for Hopper and later, and before */
#define WORKSPACE_HOPPER ((size_t)32 << 20)
#define WORKSPACE_BEFORE ((size_t)4 << 20)
/* Weights are read again for each stretch of rows whose sums have room. With DeepSeek-V3's widest (gate and up, 18432 each)
 * these are 384 rows, which take a card longer to multiply than to read the weights. */
#define SUMS_BYTES ((size_t)64 << 20)

static td_status fail(const td_cublaslt_api *api, const char *what, td_cublas_status said, td_error *err) {
    const char *text = api->cublasLtGetStatusString(said);
    return td_fail(err, TD_EDEVICE, "cuBLASLt: %s: %s (%u)", what, text ? text : "unknown status", said);
}

static td_cublas_status describe(td_cuda_blas *b) {
    static const td_cublaslt_wish_fact OF_POINTERS[] = {
        TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const int32_t          transposed = TD_CUBLAS_OP_T;
    const uint32_t         alignment = ALIGNMENT;
    const uint64_t         workspace_bytes = b->workspace_bytes;
    const td_cublaslt_api *api = b->api;
    td_cublas_status       said = api->cublasLtMatmulDescCreate(&b->product, TD_CUBLAS_COMPUTE_32I, TD_CUDA_R_32I);
    if (said != TD_CUBLAS_STATUS_SUCCESS) {
        b->product = NULL;
        return said;
    }
    said = api->cublasLtMatmulDescSetAttribute(b->product, TD_CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (said != TD_CUBLAS_STATUS_SUCCESS) return said;
    said = api->cublasLtMatmulPreferenceCreate(&b->wish);
    if (said != TD_CUBLAS_STATUS_SUCCESS) {
        b->wish = NULL;
        return said;
    }
    said = api->cublasLtMatmulPreferenceSetAttribute(b->wish, TD_CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                                     sizeof workspace_bytes);
    for (size_t i = 0; i < sizeof OF_POINTERS / sizeof *OF_POINTERS && said == TD_CUBLAS_STATUS_SUCCESS; i++)
        said = api->cublasLtMatmulPreferenceSetAttribute(b->wish, OF_POINTERS[i], &alignment, sizeof alignment);
    return said;
}

td_status td_cuda_blas_open(const td_cublaslt_library *l, int capability, td_cuda_blas *out, td_error *err) {
    *out = (td_cuda_blas){0};
    if (!l || !l->found.library) return TD_OK;
    out->api = &l->api;
    out->sums_bytes = SUMS_BYTES;
    out->workspace_bytes = capability >= 90 ? WORKSPACE_HOPPER : WORKSPACE_BEFORE;
    td_cublas_status said = out->api->cublasLtCreate(&out->lt);
    if (said != TD_CUBLAS_STATUS_SUCCESS) {
        *out = (td_cuda_blas){0};
        return fail(&l->api, "it does not start (cublasLtCreate)", said, err);
    }
    said = describe(out);
    if (said == TD_CUBLAS_STATUS_SUCCESS) return TD_OK;
    (void)td_cuda_blas_close(out, NULL);
    return fail(&l->api, "a product is not described", said, err);
}

td_status td_cuda_blas_close(td_cuda_blas *b, td_error *err) {
    const td_cublaslt_api *api = b->api;
    td_cublas_status       said[3] = {0};
    if (!api) return TD_OK;
    if (b->wish) said[0] = api->cublasLtMatmulPreferenceDestroy(b->wish);
    if (b->product) said[1] = api->cublasLtMatmulDescDestroy(b->product);
    said[2] = api->cublasLtDestroy(b->lt);
    *b = (td_cuda_blas){0};
    for (size_t i = 0; i < 3; i++)
        if (said[i] != TD_CUBLAS_STATUS_SUCCESS) return fail(api, "it is not given back", said[i], err);
    return TD_OK;
}

/* ---- products ---------------------------------------------------------------------------------- */

static bool is_aligned(const void *p) {
    return (uintptr_t)p % ALIGNMENT == 0;
}

bool td_cuda_blas_takes(const td_cuda_blas *b, const td_cuda_blas_product *p) {
    return b->api && !b->has_failed && p->n % MULTIPLE == 0 && p->ldk % MULTIPLE == 0 && is_aligned(p->x) &&
           is_aligned(p->w) && is_aligned(p->sums);
}

typedef struct {
    td_cublaslt_matrix weights, rows, sums;
} matrices;

static td_cublas_status describe_matrices(const td_cublaslt_api *api, const td_cuda_blas_product *p, matrices *out) {
    const struct {
        td_cublaslt_matrix *at;
        td_cublas_type      type;
        size_t              rows, columns;
    } of[] = {{&out->weights, TD_CUDA_R_8I, p->ldk, p->n},
              {&out->rows, TD_CUDA_R_8I, p->ldk, p->rows},
              {&out->sums, TD_CUDA_R_32I, p->n, p->rows}};
    *out = (matrices){0};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        td_cublas_status said =
            api->cublasLtMatrixLayoutCreate(of[i].at, of[i].type, of[i].rows, of[i].columns, (int64_t)of[i].rows);
        if (said != TD_CUBLAS_STATUS_SUCCESS) {
            *of[i].at = NULL;
            return said;
        }
    }
    return TD_CUBLAS_STATUS_SUCCESS;
}

static void forget_matrices(const td_cublaslt_api *api, const matrices *m) {
    if (m->weights) (void)api->cublasLtMatrixLayoutDestroy(m->weights);
    if (m->rows) (void)api->cublasLtMatrixLayoutDestroy(m->rows);
    if (m->sums) (void)api->cublasLtMatrixLayoutDestroy(m->sums);
}

static td_status multiply(const td_cuda_blas *b, td_cu_stream stream, const td_cuda_blas_product *p, const matrices *m,
                          td_error *err) {
    const int32_t          one = 1, none = 0; /* of the scale's type; read when the product is enqueued */
    int                    n_answers = 0;
    td_cublaslt_answer     answer;
    const td_cublaslt_api *api = b->api;
    td_cublas_status       said;
    said = api->cublasLtMatmulAlgoGetHeuristic(b->lt, b->product, m->weights, m->rows, m->sums, m->sums, b->wish, 1, &answer,
                                               &n_answers);
    bool knows = said != TD_CUBLAS_STATUS_NOT_SUPPORTED && n_answers > 0;
    if (said != TD_CUBLAS_STATUS_SUCCESS && said != TD_CUBLAS_STATUS_NOT_SUPPORTED)
        return fail(api, "cublasLtMatmulAlgoGetHeuristic", said, err);
    if (!knows || answer.state != TD_CUBLAS_STATUS_SUCCESS || answer.workspace_bytes > b->workspace_bytes)
        return td_fail(err, TD_ENOTSUP, "cuBLASLt: no algorithm for %zu rows of %zu, %zu outputs", p->rows, p->ldk, p->n);
    said = api->cublasLtMatmul(b->lt, b->product, &one, p->w, m->weights, p->x, m->rows, &none, p->sums, m->sums, p->sums,
                               m->sums, &answer.algorithm, p->workspace, b->workspace_bytes, stream);
    return said == TD_CUBLAS_STATUS_SUCCESS ? TD_OK : fail(api, "cublasLtMatmul", said, err);
}

td_status td_cuda_blas_multiply(const td_cuda_blas *b, td_cu_stream stream, const td_cuda_blas_product *p, td_error *err) {
    matrices         m;
    td_cublas_status said = describe_matrices(b->api, p, &m);
    const bool       described = said == TD_CUBLAS_STATUS_SUCCESS;
    td_status st = described ? multiply(b, stream, p, &m, err) : fail(b->api, "cublasLtMatrixLayoutCreate", said, err);
    forget_matrices(b->api, &m);
    return st;
}
