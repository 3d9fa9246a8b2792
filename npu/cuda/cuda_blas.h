/*
 * Large int8 products by cuBLASLt, NVIDIA's library, where it is installed.
 *
 * DESIGN. It is found and opened at run time (cuda_library.h), once in a process. Whoever lacks it has our own kernels for
 * everything, and the same bits. Sums of integers are exact in any order, so neither the library, nor its version, nor the
 * algorithm that it takes changes a number. A card has a handle, one description of the product, and asks for an algorithm
 * for each shape when a product is enqueued: a step is captured once, so nothing is gained by keeping answers.
 *
 * The library multiplies matrices by columns. Rows of codes [rows, ldk] are by columns a matrix of ldk x rows. So with A the
 * weights, transposed, and B the rows, D is n x rows by columns: sums [rows, n] as we read them. That is the one form of
 * int8 that all cards have ("TN"); it wants n and ldk to be multiples of 4 (cublasLtMatmul, "To use IMMA kernels").
 *
 * What fails is no failure of the step: our own kernels take the product, and the card's later ones.
 *
 * Declarations are written from the "cuBLAS" manual, chapter "Using the cuBLASLt API"; test_cuda_types holds them against
 * cublasLt.h where a toolkit has it.
 */
#ifndef TD_NPU_CUDA_CUDA_BLAS_H
#define TD_NPU_CUDA_CUDA_BLAS_H

#include "npu/cuda/cuda_library.h"
#include "npu/cuda/cuda_types.h"
#include "tandem.h"

/** The oldest that serves, as cublasLtGetVersion has it: 10000 * major + 100 * minor + patch. */
#define TD_CUBLASLT_OLDEST 120000

typedef uint32_t                 td_cublas_status;         /* cublasStatus_t */
typedef uint32_t                 td_cublas_type;           /* cudaDataType */
typedef uint32_t                 td_cublas_compute;        /* cublasComputeType_t */
typedef uint32_t                 td_cublaslt_product_fact; /* cublasLtMatmulDescAttributes_t */
typedef uint32_t                 td_cublaslt_wish_fact;    /* cublasLtMatmulPreferenceAttributes_t */
typedef struct cublasLtContext  *td_cublaslt;              /* cublasLtHandle_t */
typedef struct td_cublaslt_st_p *td_cublaslt_product;      /* cublasLtMatmulDesc_t */
typedef struct td_cublaslt_st_m *td_cublaslt_matrix;       /* cublasLtMatrixLayout_t */
typedef struct td_cublaslt_st_w *td_cublaslt_wish;         /* cublasLtMatmulPreference_t */

/** cublasLtMatmulAlgo_t: "semi-opaque" */
typedef struct {
    uint64_t data[8];
} td_cublaslt_algorithm;

/** cublasLtMatmulHeuristicResult_t */
typedef struct {
    td_cublaslt_algorithm algorithm;
    size_t                workspace_bytes;
    td_cublas_status      state;
    float                 waves;
    int                   reserved[4];
} td_cublaslt_answer;

/* X(name of the vendor's, value): each becomes the constant TD_name. */
/* clang-format off */
#define TD_CUBLASLT_CONSTANTS(X) \
    X(CUBLAS_STATUS_SUCCESS, 0) X(CUBLAS_STATUS_NOT_INITIALIZED, 1) X(CUBLAS_STATUS_ALLOC_FAILED, 3) \
    X(CUBLAS_STATUS_INVALID_VALUE, 7) X(CUBLAS_STATUS_EXECUTION_FAILED, 13) X(CUBLAS_STATUS_NOT_SUPPORTED, 15) \
    X(CUDA_R_8I, 3) X(CUDA_R_32I, 10) X(CUBLAS_COMPUTE_32I, 72) X(CUBLAS_OP_T, 1) X(CUBLASLT_MATMUL_DESC_TRANSA, 3) \
    X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1) X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6) X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)

/* X(what it returns, function, (parameters)) */
#define TD_CUBLASLT(X) \
    X(size_t, cublasLtGetVersion, (void)) \
    X(const char *, cublasLtGetStatusString, (td_cublas_status status)) \
    X(td_cublas_status, cublasLtCreate, (td_cublaslt *out)) \
    X(td_cublas_status, cublasLtDestroy, (td_cublaslt lt)) \
    X(td_cublas_status, cublasLtMatmulDescCreate, (td_cublaslt_product *out, td_cublas_compute compute, td_cublas_type scale)) \
    X(td_cublas_status, cublasLtMatmulDescDestroy, (td_cublaslt_product product)) \
    X(td_cublas_status, cublasLtMatmulDescSetAttribute, \
      (td_cublaslt_product product, td_cublaslt_product_fact fact, const void *value, size_t bytes)) \
    X(td_cublas_status, cublasLtMatrixLayoutCreate, \
      (td_cublaslt_matrix *out, td_cublas_type type, uint64_t rows, uint64_t columns, int64_t stride)) \
    X(td_cublas_status, cublasLtMatrixLayoutDestroy, (td_cublaslt_matrix matrix)) \
    X(td_cublas_status, cublasLtMatmulPreferenceCreate, (td_cublaslt_wish *out)) \
    X(td_cublas_status, cublasLtMatmulPreferenceDestroy, (td_cublaslt_wish wish)) \
    X(td_cublas_status, cublasLtMatmulPreferenceSetAttribute, \
      (td_cublaslt_wish wish, td_cublaslt_wish_fact fact, const void *value, size_t bytes)) \
    X(td_cublas_status, cublasLtMatmulAlgoGetHeuristic, \
      (td_cublaslt lt, td_cublaslt_product product, td_cublaslt_matrix a, td_cublaslt_matrix b, td_cublaslt_matrix c, \
       td_cublaslt_matrix d, td_cublaslt_wish wish, int n_wanted, td_cublaslt_answer *answers, int *n_answers)) \
    X(td_cublas_status, cublasLtMatmul, \
      (td_cublaslt lt, td_cublaslt_product product, const void *alpha, const void *a, td_cublaslt_matrix a_is, const void *b, \
       td_cublaslt_matrix b_is, const void *beta, const void *c, td_cublaslt_matrix c_is, void *d, td_cublaslt_matrix d_is, \
       const td_cublaslt_algorithm *algorithm, void *workspace, size_t workspace_bytes, td_cu_stream stream))
/* clang-format on */

enum {
#define TD_CUBLASLT_CONSTANT(name, value) TD_##name = (value),
    TD_CUBLASLT_CONSTANTS(TD_CUBLASLT_CONSTANT)
#undef TD_CUBLASLT_CONSTANT
};

/** The functions that were found. */
typedef struct {
#define TD_CUBLASLT_MEMBER(type, function, parameters) type(*function) parameters;
    TD_CUBLASLT(TD_CUBLASLT_MEMBER)
#undef TD_CUBLASLT_MEMBER
} td_cublaslt_api;

typedef struct {
    td_cublaslt_api api;
    size_t          version; /* as cublasLtGetVersion has it */
    td_cuda_library found;
} td_cublaslt_library;

/**
 * Search and open. The environment's TD_CUBLASLT, the folder that has it, is the only place searched where it is set. Any
 * thread.
 * @param driver_version the newest CUDA that the driver serves (td_cuda_driver)
 * @param out zeroed by the call; to be given to td_cublaslt_unload
 * @return TD_OK; TD_ENOTFOUND with what to install, TD_ENOTSUP for a library that is too old or is none; out is empty then
 */
TD_NODISCARD td_status td_cublaslt_load(td_cublaslt_library *out, int driver_version, td_error *err);
void                   td_cublaslt_unload(td_cublaslt_library *l);

/** What a card has of it; all zeros: no library. Of the thread that enqueues. */
typedef struct {
    const td_cublaslt_api *api; /* NULL: there is no library */
    td_cublaslt            lt;
    td_cublaslt_product    product;
    td_cublaslt_wish       wish;
    size_t                 workspace_bytes; /* that a product may have */
    size_t                 sums_bytes;      /* of sums at a time (cuda_product.c) */
    bool                   has_failed;      /* nothing more is asked of it */
} td_cuda_blas;

/**
 * Begin with the library on a card. Its context is the calling thread's; not in captures.
 * @param l          outlives out; NULL or empty: there is none
 * @param capability 10 * major + minor
 * @return TD_OK, also without a library; TD_EDEVICE with a sentence, out is empty then
 */
TD_NODISCARD td_status td_cuda_blas_open(const td_cublaslt_library *l, int capability, td_cuda_blas *out, td_error *err);
/** The same context is current. @return TD_OK, or TD_EDEVICE with a sentence when something was not given back */
td_status td_cuda_blas_close(td_cuda_blas *b, td_error *err);

/** sums [rows, n] int32 = x [rows, ldk] int8 * w [n, ldk]^T. What is in the memory behind true rows changes no other. */
typedef struct {
    const void *x, *w;
    size_t      rows, n, ldk;
    void       *sums, *workspace; /* workspace_bytes of it */
} td_cuda_blas_product;

/** Whether the library takes products of such a shape at such addresses. */
bool td_cuda_blas_takes(const td_cuda_blas *b, const td_cuda_blas_product *p);
/**
 * Enqueue, also in captures.
 * @return TD_OK; TD_ENOTSUP when the library knows no algorithm, TD_EDEVICE when it fails, each with a sentence: the sums
 * are then nobody's
 */
TD_NODISCARD td_status td_cuda_blas_multiply(const td_cuda_blas *b, td_cu_stream stream, const td_cuda_blas_product *p,
                                             td_error *err);

#endif
