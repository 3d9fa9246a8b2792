/*
 * cuBLASLt beside the driver, on the stand-ins. A library that cannot be used is reported in a sentence. If a call of it
 * fails or offers no algorithm, our own kernels compute the product, with the same bits and everything given back. A program
 * that breaks a rule of its manual is ended. test_cuda_blocks shows that its products have the host's bits. Each case is a
 * process, because a library stays loaded.
 */
#include <dlfcn.h>

#include "tests/standins/refusal.h"

#include "npu/cuda/cuda_device.h"
#include "npu_test_util.h"
#include "tests/standins/cuda/cuda_driver_rig.h"

/* ---- loading ----------------------------------------------------------------------------------- */

/** Load, and say on standard error what came of it. */
static void load_as(const char *folder, int driver_version) {
    td_cublaslt_library l;
    td_error            err = {0};
    setenv("TD_CUBLASLT", folder, 1);
    driver_is(TD_CUDA_STANDIN "/libcuda.so.1");
    td_status st = td_cublaslt_load(&l, driver_version, &err);
    if (st != TD_OK && l.found.library) _exit(7);
    if (st == TD_OK)
        fprintf(stderr, "cublaslt: %zu of %s\n", l.version, l.found.path);
    else
        fprintf(stderr, "cublaslt: %s\n", err.text);
    td_cublaslt_unload(&l);
}

typedef struct {
    const char *name, *folder;
    int         driver_version;
    const char *library_version; /* TD_STANDIN_CUBLASLT; NULL: the stand-in's own */
    const char *sentence;
} loading;

static const loading LOADS[] = {
    {"there", TD_CUDA_STANDIN, 12080, NULL, "120804 of " TD_CUDA_STANDIN "/libcublasLt.so.12"},
    {"older than the driver", TD_CUDA_STANDIN, 13000, NULL, "120804 of "},
    {"oldest", TD_CUDA_STANDIN, 12080, "120000", "120000 of "},
    {"not there", "/nowhere", 12080, NULL, "cuBLASLt was not found in /nowhere (pip install nvidia-cublas-cu12)"},
    {"13 is not there", "/nowhere", 13010, NULL, "cuBLASLt was not found in /nowhere (pip install nvidia-cublas)"},
    {"too old", TD_CUDA_STANDIN, 12080, "111103", "is cuBLASLt 11.11 and too old: 12.0 or later is needed"},
    {"no function", TD_CUDA_STANDIN "/no_matmul", 12080, NULL,
     "no_matmul/libcublasLt.so.12 has no cublasLtMatmul: it is no cuBLASLt"},
};

static void act_load(const void *what) {
    const loading *l = what;
    if (l->library_version) setenv("TD_STANDIN_CUBLASLT", l->library_version, 1);
    load_as(l->folder, l->driver_version);
}
static void check_load(void **state) {
    const loading *l = *state;
    refusal_check(act_load, l, 0, l->sentence, "cublaslt: ");
}
TEST_ROWS(check_load, LOADS)

static void act_broken(const void *what) {
    char folder[] = "/tmp/td_cublaslt_XXXXXX", path[64];
    (void)what;
    if (!mkdtemp(folder)) _exit(7);
    snprintf(path, sizeof path, "%s/libcublasLt.so.12", folder);
    FILE *f = fopen(path, "w");
    if (!f || fputs("no library", f) < 0 || fclose(f)) _exit(7);
    load_as(folder, 12080);
    unlink(path);
    rmdir(folder);
}
TEST(broken) {
    refusal_check(act_broken, NULL, 0, "cuBLASLt is there and does not open: ", "cublaslt: ");
}

/* ---- failures ---------------------------------------------------------------------------------- */

enum { ROWS = 66, N = 8, K = 16 };

/** What a life says to its parent. */
typedef struct {
    td_status opened, ran;
    uint64_t  products; /* of the library */
    td_bf16   out[ROWS * N];
} life;

static void live_on(td_npu *card, life *l) {
    const td_npu_ops *o = card->ops;
    td_npu_stream    *s = NULL;
    td_npu_weight    *w = NULL;
    td_npu_block     *b = NULL;
    void             *in = NULL, *out = NULL, *counts = NULL, *pinned = NULL;
    td_bf16          *x;
    td_step_counts    n = {.n_tok = ROWS};
    td_step           step = td_step_unified(&(td_step_arrays){.counts = &n}, 0);
    float             of_w[N * K];
    td_tensor_view    v = {.dtype = TD_DT_F32, .rank = 2, .shape = {N, K}, .data = of_w};
    for (int i = 0; i < N * K; i++) of_w[i] = (float)(i * 37 % 101 - 50);
    l->ran = o->stream_create(card, &s, NULL);
    if (l->ran == TD_OK) l->ran = o->host_alloc(card, ROWS * K * sizeof(td_bf16), &pinned, NULL);
    if (l->ran == TD_OK) l->ran = o->alloc(card, ROWS * K * sizeof(td_bf16), &in, NULL);
    if (l->ran == TD_OK) l->ran = o->alloc(card, ROWS * N * sizeof(td_bf16), &out, NULL);
    if (l->ran == TD_OK) l->ran = o->alloc(card, sizeof n, &counts, NULL);
    if (l->ran == TD_OK) l->ran = o->weight_create(card, TD_WEIGHT_W8A8, &v, &w, NULL);
    if (l->ran == TD_OK)
        l->ran = o->block_create(
            card,
            &(td_block_desc){
                .kind = TD_BLOCK_LINEAR, .max_tok = ROWS, .linear = {.n = N, .k = K, .w = w, .in = in, .out = out}},
            &b, NULL);
    if (l->ran == TD_OK) {
        x = pinned;
        memcpy(pinned, &n, sizeof n);
        l->ran = o->copy(card, s, counts, pinned, sizeof n, TD_COPY_H2D);
        if (l->ran == TD_OK) l->ran = o->stream_sync(card, s);
        for (int i = 0; i < ROWS * K; i++) x[i] = td_f32_to_bf16((float)(i * 29 % 83 - 41));
    }
    if (l->ran == TD_OK) l->ran = o->copy(card, s, in, pinned, ROWS * K * sizeof(td_bf16), TD_COPY_H2D);
    if (l->ran == TD_OK) l->ran = o->stream_sync(card, s);
    step.max_tok = ROWS;
    step.dev.counts = counts;
    if (l->ran == TD_OK) l->ran = o->enqueue(card, s, b, &step);
    if (l->ran == TD_OK) l->ran = o->copy(card, s, pinned, out, ROWS * N * sizeof(td_bf16), TD_COPY_D2H);
    if (l->ran == TD_OK) l->ran = o->stream_sync(card, s);
    if (l->ran == TD_OK) memcpy(l->out, pinned, sizeof l->out);
    if (s) o->stream_destroy(card, s); /* waits for what was enqueued before a failure */
    if (b) o->block_destroy(card, b);
    if (w) o->weight_destroy(card, w);
    o->free(card, in, ROWS * K * sizeof(td_bf16));
    o->free(card, out, ROWS * N * sizeof(td_bf16));
    o->free(card, counts, sizeof n);
    o->host_free(card, pinned, ROWS * K * sizeof(td_bf16));
}

static uint64_t library_products(void) {
    uint64_t (*count)(void) = NULL;
    void *library = dlopen(TD_CUDA_STANDIN "/libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD),
         *at = library ? dlsym(library, "standin_cublaslt_products") : NULL;
    memcpy(&count, &at, sizeof at);
    return at ? count() : 0;
}

/**
 * A card's life with one product of many rows in it, with a variable set.
 * @param said bytes of what it says on standard error, the driver's count of calls among it
 */
static life live(const char *variable, const char *value, char *said, size_t bytes) {
    life l = {0};
    int  status, result[2], words[2];
    assert_int_equal(pipe(result), 0);
    assert_int_equal(pipe(words), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        td_npu  *card;
        td_error err = {0};
        dup2(words[1], STDERR_FILENO);
        setenv("TD_CUBLASLT", TD_CUDA_STANDIN, 1);
        setenv("TD_CUDA_KERNELS", TD_CUDA_STANDIN "/kernels.image", 1);
        setenv("TD_STANDIN_DELAY_US", "5", 1);
        setenv("TD_CUDA_BELLS", "calls", 1); /* no bell is rung, and none of the ways is to be measured */
        setenv(variable, value, 1);
        driver_is(TD_CUDA_STANDIN "/libcuda.so.1");
        l.opened = td_npu_open("cuda", &(td_npu_config){.act_dtype = TD_DT_BF16}, &card, &err);
        if (l.opened == TD_OK) {
            live_on(card, &l);
            card->ops->close(card);
            l.products = library_products();
        } else {
            fprintf(stderr, "%s\n", err.text);
        }
        ssize_t n = write(result[1], &l, sizeof l);
        _exit(n == sizeof l ? 0 : 9);
    }
    close(result[1]);
    close(words[1]);
    size_t  n = 0;
    ssize_t got;
    while (n + 1 < bytes && (got = read(words[0], said + n, bytes - 1 - n)) > 0) n += (size_t)got;
    said[n] = 0;
    bool told = read(result[0], &l, sizeof l) == sizeof l;
    close(result[0]);
    close(words[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!told || status) fail_msg("%s=%s: status %d: %s", variable, value, status, said);
    return l;
}

/* Our own kernels take the product where the library cannot. */
static void falls_back(const char *variable, const char *value, const life *want, const char *words) {
    char said[4096];
    life l = live(variable, value, said, sizeof said);
    OK(l.opened);
    OK(l.ran);
    assert_int_equal(l.products, 0);
    assert_memory_equal(l.out, want->out, sizeof l.out);
    if (!strstr(said, words)) fail_msg("%s=%s: \"%s\" has no \"%s\"", variable, value, said, words);
}

TEST(without_an_answer) {
    char said[4096];
    life want = live("TD_STANDIN_SEED", "1", said, sizeof said);
    OK(want.opened);
    OK(want.ran);
    assert_int_equal(want.products, 1);
    assert_non_null(strstr(said, "int8 products of many rows are cuBLASLt's, 12.8.4 of " TD_CUDA_STANDIN));
    falls_back("TD_CUBLASLT", "/nowhere", &want, "our own kernels', which are slower: cuBLASLt was not found in /nowhere");
    falls_back("TD_STANDIN_CUBLASLT", "110000", &want, "our own kernels', which are slower: ");
    falls_back("TD_STANDIN_CUBLASLT_ANSWERS", "0", &want, "");
    falls_back("TD_STANDIN_CUBLASLT_STATE", "15", &want, "");
}

/* Each call that can fail, the library's among them: told in words or done by our own kernels, and all is given back. */
TEST(every_call_fails_once) {
    char        said[4096], number[16];
    int         n = 0, of_library = 0, told = 0;
    life        want = live("TD_STANDIN_FAIL", "0", said, sizeof said);
    const char *count = strstr(said, "cuda stand-in: ");
    assert_true(count && sscanf(count, "cuda stand-in: %d calls can fail", &n) == 1);
    assert_true(n > TD_CUDA_KERNEL_COUNT);
    for (int i = 1; i <= n; i++) {
        /* All kernels are found by the same call. */
        if (i > 8 && i < TD_CUDA_KERNEL_COUNT) continue;
        snprintf(number, sizeof number, "%d", i);
        life l = live("TD_STANDIN_FAIL", number, said, sizeof said);
        bool is_whole = l.opened == TD_OK && l.ran == TD_OK, is_library = strstr(said, "cuBLASLt: ") != NULL;
        if (is_whole) assert_memory_equal(l.out, want.out, sizeof l.out);
        if (!is_whole && !strstr(said, "CUDA")) fail_msg("call %d: %s", i, said);
        if (is_library) {
            assert_true(is_whole);
            assert_int_equal(l.products, 0);
            assert_non_null(strstr(said, "its int8 products of many rows are our own kernels'"));
        }
        of_library += is_library;
        told += !is_whole;
    }
    /* its start, a product and its attribute, a preference and its five; three matrices, an algorithm, the product itself */
    assert_int_equal(of_library, 9 + 5);
    assert_true(told > 10);
}

/* ---- mistakes ---------------------------------------------------------------------------------- */

/** A product of 4 rows of 8 codes with 12 outputs, ready. */
typedef struct {
    driver_rig             driver;
    td_cublaslt_library    library;
    const td_cublaslt_api *api;
    td_cublaslt            lt;
    td_cublaslt_product    product;
    td_cublaslt_wish       wish;
    td_cublaslt_matrix     a_is, b_is, d_is;
    td_cublaslt_algorithm  algorithm;
    size_t                 workspace_bytes;
    char                  *a, *b, *d, *workspace;
    int32_t                alpha, beta;
    td_cu_stream           stream;
} blas_rig;

typedef blas_rig rule_rig;
#include "tests/standins/rules.h"

enum { OUTPUTS = 12, DEPTH = 8, FEW = 4, WORKSPACE = 4096 };

#define LT(call)                                                                 \
    do {                                                                         \
        td_cublas_status lt_status_ = (call);                                    \
        if (lt_status_ != TD_CUBLAS_STATUS_SUCCESS) {                            \
            fprintf(stderr, "%s: %u at line %d\n", #call, lt_status_, __LINE__); \
            _exit(9);                                                            \
        }                                                                        \
    } while (0)

/* The calls' statuses do not matter: whoever comes back has not been stopped. */
static void ignore(td_cublas_status st) {
    (void)st;
}

static td_cublaslt_matrix matrix(blas_rig *r, td_cublas_type type, uint64_t rows, uint64_t columns, int64_t stride) {
    td_cublaslt_matrix m;
    LT(r->api->cublasLtMatrixLayoutCreate(&m, type, rows, columns, stride));
    return m;
}
static void transpose_a(blas_rig *r, int32_t how) {
    LT(r->api->cublasLtMatmulDescSetAttribute(r->product, TD_CUBLASLT_MATMUL_DESC_TRANSA, &how, sizeof how));
}
static td_cublas_status ask(blas_rig *r, int n_wanted, td_cublaslt_answer *answer, int *n) {
    return r->api->cublasLtMatmulAlgoGetHeuristic(r->lt, r->product, r->a_is, r->b_is, r->d_is, r->d_is, r->wish, n_wanted,
                                                  answer, n);
}
static void choose(blas_rig *r) {
    td_cublaslt_answer answer;
    int                n = 0;
    LT(ask(r, 1, &answer, &n));
    if (n != 1) _exit(9);
    r->algorithm = answer.algorithm;
}
static td_cublas_status multiply(blas_rig *r) {
    return r->api->cublasLtMatmul(r->lt, r->product, &r->alpha, r->a, r->a_is, r->b, r->b_is, &r->beta, r->d, r->d_is, r->d,
                                  r->d_is, &r->algorithm, r->workspace, r->workspace_bytes, r->stream);
}

static void blas_open(blas_rig *r) {
    static const uint32_t alignment = 16;
    td_error              err = {0};
    setenv("TD_CUBLASLT", TD_CUDA_STANDIN, 1);
    setenv("TD_STANDIN_SEED", "2", 1); /* its first algorithm wants a workspace */
    driver_open(&r->driver);
    if (td_cublaslt_load(&r->library, r->driver.driver.version, &err) != TD_OK) _exit(8);
    r->api = &r->library.api;
    r->alpha = 1, r->beta = 0, r->stream = r->driver.stream;
    LT(r->api->cublasLtCreate(&r->lt));
    LT(r->api->cublasLtMatmulDescCreate(&r->product, TD_CUBLAS_COMPUTE_32I, TD_CUDA_R_32I));
    transpose_a(r, TD_CUBLAS_OP_T);
    LT(r->api->cublasLtMatmulPreferenceCreate(&r->wish));
    for (uint32_t fact = TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         fact <= TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; fact++)
        LT(r->api->cublasLtMatmulPreferenceSetAttribute(r->wish, fact, &alignment, sizeof alignment));
    LT(r->api->cublasLtMatmulPreferenceSetAttribute(r->wish, TD_CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &(uint64_t){WORKSPACE}, sizeof(uint64_t)));
    r->a_is = matrix(r, TD_CUDA_R_8I, DEPTH, OUTPUTS, DEPTH);
    r->b_is = matrix(r, TD_CUDA_R_8I, DEPTH, FEW, DEPTH);
    r->d_is = matrix(r, TD_CUDA_R_32I, OUTPUTS, FEW, OUTPUTS);
    r->a = (char *)(uintptr_t)driver_alloc(&r->driver, DEPTH * OUTPUTS);
    r->b = (char *)(uintptr_t)driver_alloc(&r->driver, DEPTH * FEW);
    r->d = (char *)(uintptr_t)driver_alloc(&r->driver, OUTPUTS * FEW * sizeof(int32_t));
    r->workspace = (char *)(uintptr_t)driver_alloc(&r->driver, WORKSPACE);
    r->workspace_bytes = WORKSPACE;
    choose(r);
}

static td_cu_address address(const char *p) {
    return (td_cu_address)(uintptr_t)p;
}

static void blas_close(blas_rig *r) {
    td_cublaslt_matrix list[] = {r->a_is, r->b_is, r->d_is};
    for (int i = 0; i < 3; i++) LT(r->api->cublasLtMatrixLayoutDestroy(list[i]));
    LT(r->api->cublasLtMatmulPreferenceDestroy(r->wish));
    LT(r->api->cublasLtMatmulDescDestroy(r->product));
    LT(r->api->cublasLtDestroy(r->lt));
    char *memory[] = {r->a, r->b, r->d, r->workspace};
    for (int i = 0; i < 4; i++) TRY(r->driver.cu->cuMemFree(address(memory[i])));
    driver_close(&r->driver);
}

LIVES(computes) {
    const td_cuda *cu = r->driver.cu;
    int8_t        *codes = driver_pinned(&r->driver, DEPTH * (OUTPUTS + FEW));
    int32_t       *sums = driver_pinned(&r->driver, OUTPUTS * FEW * sizeof(int32_t));
    for (int i = 0; i < DEPTH * (OUTPUTS + FEW); i++) codes[i] = (int8_t)(i * 71 % 255 - 128);
    TRY(cu->cuMemcpyHtoDAsync(address(r->a), codes, DEPTH * OUTPUTS, r->stream));
    TRY(cu->cuMemcpyHtoDAsync(address(r->b), codes + DEPTH * OUTPUTS, DEPTH * FEW, r->stream));
    LT(multiply(r));
    TRY(cu->cuMemcpyDtoHAsync(sums, address(r->d), OUTPUTS * FEW * sizeof(int32_t), r->stream));
    TRY(cu->cuStreamSynchronize(r->stream));
    for (int row = 0; row < FEW; row++)
        for (int i = 0; i < OUTPUTS; i++) {
            int sum = 0;
            for (int k = 0; k < DEPTH; k++) sum += codes[i * DEPTH + k] * codes[(OUTPUTS + row) * DEPTH + k];
            if (sums[row * OUTPUTS + i] != sum) _exit(6);
        }
    TRY(cu->cuMemFreeHost(codes));
    TRY(cu->cuMemFreeHost(sums));
    blas_close(r);
}
LIVES(ragged_has_no_algorithm) {
    td_cublaslt_answer answer;
    int                n = 7;
    r->a_is = matrix(r, TD_CUDA_R_8I, DEPTH, OUTPUTS - 1, DEPTH);
    r->d_is = matrix(r, TD_CUDA_R_32I, OUTPUTS - 1, FEW, OUTPUTS);
    if (ask(r, 1, &answer, &n) != TD_CUBLAS_STATUS_NOT_SUPPORTED || n) _exit(6);
}
BREAKS(dead_handle, "of a handle that is none, or is destroyed") {
    for (td_cublaslt_matrix *m = &r->a_is; m <= &r->d_is; m++) LT(r->api->cublasLtMatrixLayoutDestroy(*m));
    LT(r->api->cublasLtMatmulPreferenceDestroy(r->wish));
    LT(r->api->cublasLtMatmulDescDestroy(r->product));
    LT(r->api->cublasLtDestroy(r->lt));
    ignore(r->api->cublasLtDestroy(r->lt));
}
BREAKS(handle_kept, "with 1 streams, events, modules or graphs") {
    char *memory[] = {r->a, r->b, r->d, r->workspace};
    for (int i = 0; i < 4; i++) TRY(r->driver.cu->cuMemFree(address(memory[i])));
    driver_close(&r->driver);
}
BREAKS(descriptor_kept, "with 5 descriptors that were not destroyed") {
    ignore(r->api->cublasLtDestroy(r->lt));
}
BREAKS(handle_of_other_card, "of a handle of another device than the thread's") {
    td_cu_context c;
    TRY(r->driver.cu->cuDevicePrimaryCtxRetain(&c, 1));
    TRY(r->driver.cu->cuCtxSetCurrent(c));
    ignore(multiply(r));
}
BREAKS(created_in_a_capture, "while a stream is captured and the capture's mode forbids it") {
    td_cublaslt another;
    TRY(r->driver.cu->cuStreamBeginCapture(r->stream, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ignore(r->api->cublasLtCreate(&another));
}
BREAKS(destroyed_in_a_capture, "while a stream is captured and the capture's mode forbids it") {
    TRY(r->driver.cu->cuStreamBeginCapture(r->stream, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ignore(r->api->cublasLtDestroy(r->lt));
}
BREAKS(without_a_context, "on a thread without a context") {
    TRY(r->driver.cu->cuCtxSetCurrent(NULL));
    ignore(multiply(r));
}
BREAKS(default_stream, "on the default stream") {
    r->stream = NULL;
    ignore(multiply(r));
}
BREAKS(floats, "int32 alone is here") {
    td_cublaslt_product p;
    ignore(r->api->cublasLtMatmulDescCreate(&p, 68, 0));
}
BREAKS(attribute_of_wrong_size, "an attribute of 8 bytes is set with 4") {
    ignore(r->api->cublasLtMatmulPreferenceSetAttribute(r->wish, TD_CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(uint32_t){1},
                                                        sizeof(uint32_t)));
}
BREAKS(alignment_of_three, "a smallest alignment of 3 bytes") {
    ignore(r->api->cublasLtMatmulPreferenceSetAttribute(r->wish, TD_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                        &(uint32_t){3}, sizeof(uint32_t)));
}
BREAKS(dead_matrix, "of a matrix that is none, or is destroyed") {
    LT(r->api->cublasLtMatrixLayoutDestroy(r->b_is));
    ignore(multiply(r));
}
/** A product with other arguments than the algorithm was asked for with; its matrices are described anew. */
ARGS(product, int64_t outputs, depth_of_a, depth_of_b, rows, d_type, d_stride, is_transposed;
     int64_t alpha, a_moved, b_moved, d_moved, workspace_bytes) = {
    OUTPUTS, DEPTH, DEPTH, FEW, TD_CUDA_R_32I, OUTPUTS, .is_transposed = true, .alpha = 1, .workspace_bytes = WORKSPACE};

CALL(product) {
    td_cublaslt_matrix list[] = {r->a_is, r->b_is, r->d_is};
    for (int i = 0; i < 3; i++) LT(r->api->cublasLtMatrixLayoutDestroy(list[i]));
    r->a_is = matrix(r, TD_CUDA_R_8I, (uint64_t)a->depth_of_a, (uint64_t)a->outputs, DEPTH);
    r->b_is = matrix(r, TD_CUDA_R_8I, (uint64_t)a->depth_of_b, (uint64_t)a->rows, DEPTH);
    r->d_is = matrix(r, (td_cublas_type)a->d_type, (uint64_t)a->outputs, (uint64_t)a->rows, a->d_stride);
    transpose_a(r, a->is_transposed ? TD_CUBLAS_OP_T : 0);
    r->alpha = (int32_t)a->alpha;
    r->a += a->a_moved, r->b += a->b_moved, r->d += a->d_moved;
    r->workspace_bytes = (size_t)a->workspace_bytes;
    LT(multiply(r));
    TRY(r->driver.cu->cuStreamSynchronize(r->stream));
    blas_close(r);
}
static const rule PRODUCTS[] = {
    WRONG(product, depth_of_a, 0, "a matrix of 0 x 12"),
    WRONG(product, depth_of_a, 12, "a leading dimension of 8, and columns of 12: they overlap"),
    WRONG(product, is_transposed, false, "only the TN format is supported"),
    WRONG(product, d_type, TD_CUDA_R_8I, "A and B are int8, C and D int32"),
    WRONG(product, depth_of_b, DEPTH - 4, "8 x 12, transposed, times 4 x 4 is not 12 x 4"),
    WRONG(product, outputs, 3, "dimensions m and k must be multiples of 4"),
    WRONG(product, d_stride, OUTPUTS + 1, "leading dimensions of A, B and C must be multiples of 4"),
    WRONG(product, rows, FEW - 1, "an algorithm of another product: 12 x 4 x 8"),
    WRONG(product, alpha, 2, "alpha 2 and beta 0: 1 and 0 are here"),
    WRONG(product, b_moved, 2, "pointers must be 4-byte aligned"),
    WRONG(product, a_moved, 4, "and the algorithm was asked for with 16 bytes"),
    WRONG(product, d_moved, 16, "D goes beyond the end of the memory"),
    WRONG(product, workspace_bytes, 1, "a workspace of 1 bytes, and the algorithm needs"),
    RIGHT(product),
};
RULES(PRODUCTS)
BREAKS(algorithm_of_nobody, "an algorithm that no heuristic has given") {
    r->algorithm = (td_cublaslt_algorithm){{0}};
    ignore(multiply(r));
}
BREAKS(no_algorithm, "the library would look for one with default preferences") {
    ignore(r->api->cublasLtMatmul(r->lt, r->product, &r->alpha, r->a, r->a_is, r->b, r->b_is, &r->beta, r->d, r->d_is, r->d,
                                  r->d_is, NULL, r->workspace, r->workspace_bytes, r->stream));
}
BREAKS(none_asked_for, "0 algorithms are asked for") {
    td_cublaslt_answer answer;
    int                n;
    ignore(ask(r, 0, &answer, &n));
}
BREAKS(host_memory, "is in no live memory of a device") {
    static _Alignas(16) char rows[DEPTH * FEW];
    r->b = rows;
    ignore(multiply(r));
}
BREAKS(into_itself, "D overlaps what it is computed from") {
    r->a = (char *)(uintptr_t)driver_alloc(&r->driver, 4096);
    r->d = r->a;
    ignore(multiply(r));
}
BREAKS(workspace_not_aligned, "and the algorithm was asked for with 256 bytes") {
    r->workspace = (char *)(uintptr_t)driver_alloc(&r->driver, 2 * WORKSPACE) + 128;
    ignore(multiply(r));
}
BREAKS(workspace_is_the_sums, "the workspace overlaps a matrix") {
    r->workspace = r->d = (char *)(uintptr_t)driver_alloc(&r->driver, WORKSPACE);
    ignore(multiply(r));
}
BREAKS(freed_under_way, "is freed while operations that use it are enqueued") {
    TRY(driver_add(&r->driver, r->driver.add_slowly, address(r->workspace), 1, 1, r->stream));
    LT(multiply(r));
    TRY(r->driver.cu->cuMemFree(address(r->a)));
}
BREAKS(against_a_copy, "no event or synchronisation orders the two") {
    LT(multiply(r));
    TRY(r->driver.cu->cuMemsetD8Async(address(r->d), 0, 16, r->driver.other));
}
BREAKS(shared_workspace, "no event or synchronisation orders the two") {
    LT(multiply(r));
    r->stream = r->driver.other;
    r->d = (char *)(uintptr_t)driver_alloc(&r->driver, OUTPUTS * FEW * sizeof(int32_t));
    LT(multiply(r));
}
static td_cu_capture_mode exchange(blas_rig *r, td_cu_capture_mode mode) {
    TRY(r->driver.cu->cuThreadExchangeStreamCaptureMode(&mode));
    return mode;
}
BREAKS(no_capture_mode, "the capture mode 3 is none") {
    (void)exchange(r, 3);
}
BREAKS(captured_as_others, "while a stream is captured and the capture's mode forbids it") {
    TRY(r->driver.cu->cuStreamBeginCapture(r->stream, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ignore(multiply(r));
}
BREAKS(captured_as_others_again, "while a stream is captured and the capture's mode forbids it") {
    TRY(r->driver.cu->cuStreamBeginCapture(r->stream, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    td_cu_capture_mode was = exchange(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    LT(multiply(r));
    if (exchange(r, was) != TD_CU_STREAM_CAPTURE_MODE_RELAXED) _exit(6);
    ignore(multiply(r));
}
LIVES(captured) {
    const td_cuda   *cu = r->driver.cu;
    td_cu_graph      g;
    td_cu_graph_exec x;
    TRY(cu->cuStreamBeginCapture(r->stream, TD_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    choose(r);
    td_cu_capture_mode was = exchange(r, TD_CU_STREAM_CAPTURE_MODE_RELAXED);
    LT(multiply(r));
    (void)exchange(r, was);
    TRY(cu->cuStreamEndCapture(r->stream, &g));
    TRY(cu->cuGraphInstantiate(&x, g, 0));
    TRY(cu->cuGraphDestroy(g));
    for (int i = 0; i < 2; i++) TRY(cu->cuGraphLaunch(x, r->stream));
    TRY(cu->cuStreamSynchronize(r->stream));
    if (library_products() != 2) _exit(6);
    TRY(cu->cuGraphExecDestroy(x));
    blas_close(r);
}

static void act(const void *broken) {
    static blas_rig ready;
    blas_open(&ready);
    rule_break(broken, &ready);
}

int main(void) {
    return rules_run("cuda stand-in: ", act);
}
