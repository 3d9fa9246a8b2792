/*
 * What the operations are written with: the first function of each declares its tensors, checks its rules and leaves a
 * kernel behind; the second is the same for all. A kernel sees real addresses and runs on the stream's thread.
 */
#ifndef TD_TESTS_ASCEND_STANDIN_OP_H
#define TD_TESTS_ASCEND_STANDIN_OP_H

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "standin.h"

#define STANDIN_DIMS 8 /* opbase: tensors of up to 8 dimensions */
#define STANDIN_TENSORS 36

typedef struct {
    td_acl_dtype  dtype;
    td_acl_format format;
    uint32_t      n_view, n_storage;
    int64_t       view[STANDIN_DIMS], strides[STANDIN_DIMS], storage[STANDIN_DIMS], offset;
    char         *data; /* device address of the storage */
} standin_tensor;

typedef enum {
    STANDIN_IN = 0,
    STANDIN_OUT = 1,
    STANDIN_OPTIONAL = 2,
    STANDIN_INDEXED = 4 /* slots of it, not the whole */
} standin_role;

/** One run of an operation. */
typedef struct {
    const char           *op;
    const standin_tensor *t[STANDIN_TENSORS];  /* NULL: absent */
    void                 *at[STANDIN_TENSORS]; /* where the first element of its view really is */
    const void           *args;
} standin_call;
typedef void (*standin_kernel)(const standin_call *c);

struct aclTensorList {
    bool                  alive;
    uint64_t              n;
    const td_acl_tensor **tensors;
};
struct aclScalar {
    bool         alive;
    td_acl_dtype dtype;
    double       value;
};
struct aclIntArray {
    bool     alive;
    uint64_t n;
    int64_t *values;
};

/** Begin an operation's first function: all its arguments in their order, then STANDIN_END. Each is held to the table of
 * facts (standin_facts.c). */
STANDIN_EXPORT td_acl_executor  *standin_begin(const char *op, const char *document, ...);
STANDIN_EXPORT extern const char standin_end_of_arguments;
#define STANDIN_END (&standin_end_of_arguments)
/** Its next tensor. @return NULL: absent, which only STANDIN_OPTIONAL may be. */
STANDIN_EXPORT const standin_tensor *standin_add(td_acl_executor *x, const td_acl_tensor *t, const char *name, int role);
/** A rule of its document is broken. */
STANDIN_EXPORT _Noreturn void standin_bad(const td_acl_executor *x, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** End it. @param args copied, freed by the executor; @param workspace bytes that it will ask for. */
STANDIN_EXPORT td_aclnn_status standin_end(td_acl_executor *x, standin_kernel kernel, const void *args, size_t args_bytes,
                                           uint64_t workspace, uint64_t *workspace_bytes, td_acl_executor **executor);
/** The second function of every operation. */
STANDIN_EXPORT td_aclnn_status standin_execute(const char *op, void *workspace, uint64_t workspace_bytes, td_acl_executor *x,
                                               td_acl_stream stream);

STANDIN_EXPORT size_t standin_dtype_bytes(td_acl_dtype t);

#define STANDIN_SECOND(op)                                                                                           \
    td_aclnn_status op(void *workspace, uint64_t workspace_bytes, td_acl_executor *executor, td_acl_stream stream) { \
        return standin_execute(#op, workspace, workspace_bytes, executor, stream);                                   \
    }

/* ---- for kernels --------------------------------------------------------------------------------- */

static inline int64_t standin_count(const standin_tensor *t) {
    int64_t n = 1;
    for (uint32_t i = 0; i < t->n_view; i++) n *= t->view[i];
    return n;
}

/** Elements of the last dimension, and rows before it. */
static inline int64_t standin_last(const standin_tensor *t) {
    return t->n_view ? t->view[t->n_view - 1] : 1;
}
static inline int64_t standin_rows(const standin_tensor *t) {
    int64_t n = standin_last(t);
    return n ? standin_count(t) / n : 0;
}

/** Element offset of row r of a view. */
static inline int64_t standin_row(const standin_tensor *t, int64_t r) {
    int64_t at = 0;
    for (uint32_t i = t->n_view > 0 ? t->n_view - 1 : 0; i-- > 0; r /= t->view[i]) at += r % t->view[i] * t->strides[i];
    return at;
}

float standin_get(const void *at, td_acl_dtype t, int64_t i);
void  standin_set(void *at, td_acl_dtype t, int64_t i, float v);

/** out[i] = x[i] / sqrt(mean(x^2) + epsilon) * gamma[i] in f32; out may be x. @return 1 / the root. */
float standin_norm_row(const float *x, int64_t n, double epsilon, const void *gamma, td_acl_dtype gamma_type, float *out);
/** codes[i] = round(x[i] / scale), zeros for a row of zeros. @return scale = max |x| / 127. */
float standin_quant_row(const float *x, int64_t n, int8_t *codes);

/** sum[j] = sum over k of x[k] w[k, 32 tile + j] of a weight [k, n] in NZ: tiles of [n / 32][k / 16][16][32], rounded up. */
static inline void standin_tile_sums(const int8_t *x, const int8_t *w, int64_t tile, int64_t k, int32_t sum[32]) {
    w += tile * ((k + 15) / 16) * 16 * 32;
    memset(sum, 0, 32 * sizeof *sum);
    for (int64_t i = 0; i < k; i++, w += 32)
        for (int j = 0; j < 32; j++) sum[j] += x[i] * w[j];
}

/** A slot of a cache is written, which attentions that were prepared with shorter lengths must not read. */
void standin_note_written(const void *cache, int64_t slot);

static inline int64_t standin_get_int(const void *at, td_acl_dtype t, int64_t i) {
    return t == TD_ACL_INT64 ? ((const int64_t *)at)[i] : ((const int32_t *)at)[i];
}

static inline void standin_set_int(void *at, td_acl_dtype t, int64_t i, int64_t value) {
    if (t == TD_ACL_INT64)
        ((int64_t *)at)[i] = value;
    else
        ((int32_t *)at)[i] = (int32_t)value;
}

static inline bool standin_same_shape(const standin_tensor *a, const standin_tensor *b) {
    if (a->n_view != b->n_view) return false;
    for (uint32_t i = 0; i < a->n_view; i++)
        if (a->view[i] != b->view[i]) return false;
    return true;
}

static inline bool standin_contiguous(const standin_tensor *t) {
    int64_t step = 1;
    for (uint32_t i = t->n_view; i-- > 0; step *= t->view[i])
        if (t->view[i] > 1 && t->strides[i] != step) return false;
    return true;
}

static inline bool standin_is_float(td_acl_dtype t) {
    return t == TD_ACL_FLOAT || t == TD_ACL_FLOAT16 || t == TD_ACL_BF16;
}

/** Value i of an array of int4: two a byte, the even one in the low nibble, two's complement. */
static inline int standin_int4(const void *codes, int64_t i) {
    return (int)((((const uint8_t *)codes)[i / 2] >> (i % 2 ? 4 : 0) & 15u) ^ 8u) - 8;
}

#endif
