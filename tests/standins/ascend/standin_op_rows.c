/*
 * Operations that work on rows: embedding, norms, quantisation, SwiGLU, rope, sums, casts, gather, top-k. Sums and products
 * are f32, results are rounded once, to the output's dtype.
 */
#include <stdlib.h>

#include "standin_op.h"

#define NN "hicann/ops-nn "
#define MATH "hicann/ops-math "
#define TF "hicann/ops-transformer "

static void need(const td_acl_executor *x, bool ok, const char *rule) {
    if (!ok) standin_bad(x, "%s", rule);
}

static void need_floats(const td_acl_executor *x, const standin_tensor *t) {
    need(x, standin_is_float(t->dtype), "a tensor's dtype is none of FLOAT, FLOAT16, BFLOAT16");
    need(x, t->format == TD_ACL_FORMAT_ND, "a tensor's format is not ND");
}

/** The last dimension of a view in steps of one: what this stand-in reads; the documents allow more. */
static void need_rows(const td_acl_executor *x, const standin_tensor *t) {
    need(x, !t->n_view || standin_last(t) <= 1 || t->strides[t->n_view - 1] == 1,
         "the last dimension of a view is not contiguous");
}

static bool is_index(const standin_tensor *t) {
    return t->dtype == TD_ACL_INT32 || t->dtype == TD_ACL_INT64;
}

/* ---- embedding, gather -------------------------------------------------------------------------- */

static void run_embedding(const standin_call *c) {
    const standin_tensor *w = c->t[0], *ids = c->t[1], *out = c->t[2];
    size_t                row = (size_t)w->view[1] * standin_dtype_bytes(w->dtype);
    for (int64_t i = 0, n = standin_count(ids); i < n; i++) {
        int64_t id = standin_get_int(c->at[1], ids->dtype, i);
        if (id < 0 || id >= w->view[0])
            standin_refuse(NN "index/embedding", "%s: index %lld of %lld rows", c->op, (long long)id, (long long)w->view[0]);
        memcpy((char *)c->at[2] + (size_t)i * row,
               (const char *)c->at[0] + (size_t)(id * w->strides[0]) * standin_dtype_bytes(w->dtype), row);
    }
    (void)out;
}

td_aclnn_status aclnnEmbeddingGetWorkspaceSize(const td_acl_tensor *weight, const td_acl_tensor *indices,
                                               const td_acl_tensor *out, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnEmbedding", NN "index/embedding", weight, indices, out, STANDIN_END);
    const standin_tensor *w = standin_add(x, weight, "weight", STANDIN_IN),
                         *i = standin_add(x, indices, "indices", STANDIN_IN), *o = standin_add(x, out, "out", STANDIN_OUT);
    need(x, w->n_view == 2, "weight has not two dimensions");
    need(x, is_index(i), "indices are neither INT32 nor INT64");
    need(x, o->dtype == w->dtype, "out has another dtype than weight");
    need(x, o->n_view == i->n_view + 1 && standin_last(o) == w->view[1] && standin_rows(o) == standin_count(i),
         "out's shape is not that of indices and a row");
    need(x, standin_contiguous(i) && standin_contiguous(o), "indices or out are not contiguous");
    need_rows(x, w);
    return standin_end(x, run_embedding, NULL, 0, 0, ws, executor);
}
STANDIN_SECOND(aclnnEmbedding)

static void run_gather(const standin_call *c) {
    const standin_tensor *t = c->t[0], *index = c->t[1];
    size_t                row = (size_t)(standin_count(t) / t->view[0]) * standin_dtype_bytes(t->dtype);
    for (int64_t i = 0, n = standin_count(index); i < n; i++) {
        int64_t id = standin_get_int(c->at[1], index->dtype, i);
        if (id < 0 || id >= t->view[0])
            standin_refuse(NN "index/gather_v2", "%s: index %lld of %lld", c->op, (long long)id, (long long)t->view[0]);
        memcpy((char *)c->at[2] + (size_t)i * row, (const char *)c->at[0] + (size_t)id * row, row);
    }
}

td_aclnn_status aclnnGatherV2GetWorkspaceSize(const td_acl_tensor *self, int64_t dim, const td_acl_tensor *index,
                                              td_acl_tensor *out, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnGatherV2", NN "index/gather_v2", self, dim, index, out, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "self", STANDIN_IN), *i = standin_add(x, index, "index", STANDIN_IN),
                         *o = standin_add(x, out, "out", STANDIN_OUT);
    need(x, dim == 0 || dim == -(int64_t)t->n_view, "dim is not the first one, the only one here");
    need(x, is_index(i), "index is neither INT32 nor INT64");
    need(x, o->dtype == t->dtype, "out has another dtype than self");
    need(x, o->n_view == t->n_view + i->n_view - 1 && standin_count(o) * t->view[0] == standin_count(t) * standin_count(i),
         "out's shape is not index's and the rest of self's");
    need(x, standin_contiguous(t) && standin_contiguous(i) && standin_contiguous(o), "a tensor is not contiguous");
    return standin_end(x, run_gather, NULL, 0, 0, ws, executor);
}
STANDIN_SECOND(aclnnGatherV2)

/* ---- norms ------------------------------------------------------------------------------------- */

static char *row_at(const standin_call *c, int i, int64_t r) {
    return (char *)c->at[i] + (size_t)standin_row(c->t[i], r) * standin_dtype_bytes(c->t[i]->dtype);
}

static void get_row(const standin_call *c, int i, int64_t r, float *to) {
    for (int64_t j = 0, n = standin_last(c->t[i]); j < n; j++) to[j] = standin_get(row_at(c, i, r), c->t[i]->dtype, j);
}

static void set_row(const standin_call *c, int i, int64_t r, const float *from) {
    for (int64_t j = 0, n = standin_last(c->t[i]); j < n; j++) standin_set(row_at(c, i, r), c->t[i]->dtype, j, from[j]);
}

static void run_rms_norm(const standin_call *c) {
    int64_t n = standin_last(c->t[0]);
    float  *x = malloc((size_t)n * sizeof *x);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++) {
        get_row(c, 0, r, x);
        ((float *)c->at[3])[r] = standin_norm_row(x, n, *(const double *)c->args, c->at[1], c->t[1]->dtype, x);
        set_row(c, 2, r, x);
    }
    free(x);
}

td_aclnn_status aclnnRmsNormGetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *gamma, double epsilon,
                                             const td_acl_tensor *out, const td_acl_tensor *rstd, uint64_t *ws,
                                             td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnRmsNorm", NN "norm/rms_norm", self, gamma, epsilon, out, rstd, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN), *g = standin_add(x, gamma, "gamma", STANDIN_IN),
                         *o = standin_add(x, out, "yOut", STANDIN_OUT), *s = standin_add(x, rstd, "rstdOut", STANDIN_OUT);
    need_floats(x, t);
    need(x, g->dtype == TD_ACL_FLOAT || g->dtype == t->dtype, "gamma is neither FLOAT nor of x's dtype");
    need(x, o->dtype == t->dtype && s->dtype == TD_ACL_FLOAT, "yOut is not of x's dtype, or rstdOut not FLOAT");
    need(x, g->n_view == 1 && g->view[0] == standin_last(t), "gamma's shape is not the last dimension of x");
    need(x, standin_same_shape(o, t), "yOut's shape is not x's");
    need(x, s->n_view == t->n_view && standin_last(s) == 1 && standin_count(s) == standin_rows(t),
         "rstdOut's shape is not x's with 1 for the last dimension");
    need(x, standin_contiguous(g) && standin_contiguous(s), "gamma or rstdOut is not contiguous");
    need_rows(x, t);
    need_rows(x, o);
    return standin_end(x, run_rms_norm, &epsilon, sizeof epsilon, 512, ws, executor);
}
STANDIN_SECOND(aclnnRmsNorm)

static void sum_row(const standin_call *c, int a, int b, int64_t r, float *to) {
    for (int64_t i = 0, n = standin_last(c->t[a]); i < n; i++)
        to[i] = standin_get(row_at(c, a, r), c->t[a]->dtype, i) + standin_get(row_at(c, b, r), c->t[b]->dtype, i);
}

static void run_add_rms_norm(const standin_call *c) {
    int64_t n = standin_last(c->t[0]);
    float  *x = malloc((size_t)n * sizeof *x);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++) {
        sum_row(c, 0, 1, r, x);
        if (c->t[5]) set_row(c, 5, r, x);
        float rstd = standin_norm_row(x, n, *(const double *)c->args, c->at[2], c->t[2]->dtype, x);
        if (c->t[4]) ((float *)c->at[4])[r] = rstd;
        set_row(c, 3, r, x);
    }
    free(x);
}

td_aclnn_status aclnnAddRmsNormGetWorkspaceSize(const td_acl_tensor *x1, const td_acl_tensor *x2, const td_acl_tensor *gamma,
                                                double epsilon, td_acl_tensor *out, td_acl_tensor *rstd, td_acl_tensor *sum,
                                                uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnAddRmsNorm", NN "norm/add_rms_norm", x1, x2, gamma, epsilon, out, rstd, sum, STANDIN_END);
    const standin_tensor *a = standin_add(x, x1, "x1", STANDIN_IN), *b = standin_add(x, x2, "x2", STANDIN_IN),
                         *g = standin_add(x, gamma, "gamma", STANDIN_IN), *o = standin_add(x, out, "yOut", STANDIN_OUT),
                         *s = standin_add(x, rstd, "rstdOut", STANDIN_OUT | STANDIN_OPTIONAL),
                         *xo = standin_add(x, sum, "xOut", STANDIN_OUT | STANDIN_OPTIONAL);
    need_floats(x, a);
    need(x, b->dtype == a->dtype && g->dtype == a->dtype && o->dtype == a->dtype,
         "x2, gamma and yOut are not of x1's dtype");
    need(x, standin_same_shape(a, b) && standin_same_shape(a, o), "x2 or yOut has another shape than x1");
    need(x, !s || xo, "rstdOut is given and xOut is not");
    need(x, !s || (s->dtype == TD_ACL_FLOAT && standin_count(s) == standin_rows(a)),
         "rstdOut is not FLOAT of one value a row");
    need(x, !xo || (xo->dtype == a->dtype && standin_same_shape(a, xo)), "xOut is not of x1's shape and dtype");
    /* Without rstdOut gamma is [1, n] and not FLOAT; with it gamma is [n] (the table of A2). */
    need(x, standin_last(g) == standin_last(a) && standin_count(g) == standin_last(a),
         "gamma's shape is not the last dimension of x1");
    need(x, s || (g->n_view == 2 && g->dtype != TD_ACL_FLOAT),
         "without rstdOut gamma has to be [1, n] of FLOAT16 or BFLOAT16");
    need_rows(x, a);
    need_rows(x, b);
    need_rows(x, o);
    return standin_end(x, run_add_rms_norm, &epsilon, sizeof epsilon, 512, ws, executor);
}
STANDIN_SECOND(aclnnAddRmsNorm)

/* The norm is f32 in the first output, and rounded from there in the second. */
static void run_add_rms_norm_cast(const standin_call *c) {
    int64_t n = standin_last(c->t[0]);
    float  *x = malloc((size_t)n * sizeof *x);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++) {
        sum_row(c, 0, 1, r, x);
        set_row(c, 6, r, x);
        ((float *)c->at[5])[r] = standin_norm_row(x, n, *(const double *)c->args, c->at[2], c->t[2]->dtype, x);
        set_row(c, 3, r, x);
        set_row(c, 4, r, x);
    }
    free(x);
}

td_aclnn_status aclnnAddRmsNormCastGetWorkspaceSize(const td_acl_tensor *x1, const td_acl_tensor *x2,
                                                    const td_acl_tensor *gamma, double epsilon, const td_acl_tensor *out1,
                                                    const td_acl_tensor *out2, const td_acl_tensor *rstd,
                                                    const td_acl_tensor *sum, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnAddRmsNormCast", NN "norm/add_rms_norm_cast", x1, x2, gamma, epsilon, out1,
                                            out2, rstd, sum, STANDIN_END);
    const standin_tensor *a = standin_add(x, x1, "x1", STANDIN_IN), *b = standin_add(x, x2, "x2", STANDIN_IN),
                         *g = standin_add(x, gamma, "gamma", STANDIN_IN), *o = standin_add(x, out1, "y1Out", STANDIN_OUT),
                         *o2 = standin_add(x, out2, "y2Out", STANDIN_OUT), *s = standin_add(x, rstd, "rstdOut", STANDIN_OUT),
                         *t = standin_add(x, sum, "xOut", STANDIN_OUT);
    need(x, a->dtype == TD_ACL_BF16 || a->dtype == TD_ACL_FLOAT16, "x1 is neither FLOAT16 nor BFLOAT16");
    need(x, b->dtype == a->dtype && g->dtype == a->dtype && o2->dtype == a->dtype && t->dtype == a->dtype,
         "x2, gamma, y2Out or xOut is not of x1's dtype");
    need(x, o->dtype == TD_ACL_FLOAT && s->dtype == TD_ACL_FLOAT, "y1Out or rstdOut is not FLOAT");
    need(x, standin_same_shape(a, b) && standin_same_shape(a, t) && standin_same_shape(a, o) && standin_same_shape(a, o2),
         "x2, xOut, y1Out or y2Out has another shape than x1");
    need(x, g->n_view == 1 && g->view[0] == standin_last(a), "gamma's shape is not the last dimension of x1");
    need(x, s->n_view == a->n_view && standin_last(s) == 1 && standin_count(s) == standin_rows(a),
         "rstdOut's shape is not x1's with 1 for the last dimension");
    need(x, standin_contiguous(o) && standin_contiguous(o2) && standin_contiguous(t) && standin_contiguous(s),
         "y1Out, y2Out, rstdOut or xOut is not contiguous");
    need(x, standin_contiguous(g), "gamma is not contiguous");
    need_rows(x, a);
    need_rows(x, b);
    return standin_end(x, run_add_rms_norm_cast, &epsilon, sizeof epsilon, 512, ws, executor);
}
STANDIN_SECOND(aclnnAddRmsNormCast)

/* ---- quantisation ------------------------------------------------------------------------------ */

static void run_dynamic_quant(const standin_call *c) {
    float *x = malloc((size_t)standin_last(c->t[0]) * sizeof *x);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++) {
        get_row(c, 0, r, x);
        ((float *)c->at[3])[r] = standin_quant_row(x, standin_last(c->t[0]), (int8_t *)row_at(c, 2, r));
    }
    free(x);
}

td_aclnn_status aclnnDynamicQuantGetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *smooth,
                                                  const td_acl_tensor *out, const td_acl_tensor *scale, uint64_t *ws,
                                                  td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnDynamicQuant", NN "quant/dynamic_quant", self, smooth, out, scale, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN),
                         *m = standin_add(x, smooth, "smoothScalesOptional", STANDIN_OPTIONAL),
                         *o = standin_add(x, out, "yOut", STANDIN_OUT), *s = standin_add(x, scale, "scaleOut", STANDIN_OUT);
    need(x, t->dtype == TD_ACL_BF16 || t->dtype == TD_ACL_FLOAT16, "x is neither FLOAT16 nor BFLOAT16");
    need(x, !m, "smooth scales are not computed with by this stand-in");
    need(x, o->dtype == TD_ACL_INT8 && s->dtype == TD_ACL_FLOAT,
         "yOut is not INT8 (INT4 is not here), or scaleOut not FLOAT");
    need(x, t->n_view >= 2, "x has less than two dimensions");
    need(x, standin_same_shape(o, t), "yOut's shape is not x's");
    need(x, s->n_view + 1 == t->n_view && standin_count(s) == standin_rows(t),
         "scaleOut's shape is not x's without the last dimension");
    need(x, standin_contiguous(s), "scaleOut is not contiguous");
    need_rows(x, t);
    need_rows(x, o);
    return standin_end(x, run_dynamic_quant, NULL, 0, 0, ws, executor);
}
STANDIN_SECOND(aclnnDynamicQuant)

/* The norm is f32 up to its codes. */
static void run_add_rms_norm_quant(const standin_call *c) {
    int64_t n = standin_last(c->t[0]);
    float  *x = malloc((size_t)n * sizeof *x);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++) {
        sum_row(c, 0, 1, r, x);
        set_row(c, 5, r, x);
        (void)standin_norm_row(x, n, *(const double *)c->args, c->at[2], c->t[2]->dtype, x);
        ((float *)c->at[6])[r] = standin_quant_row(x, n, (int8_t *)row_at(c, 3, r));
    }
    free(x);
}

td_aclnn_status aclnnAddRmsNormDynamicQuantGetWorkspaceSize(const td_acl_tensor *x1, const td_acl_tensor *x2,
                                                            const td_acl_tensor *gamma, const td_acl_tensor *smooth1,
                                                            const td_acl_tensor *smooth2, double epsilon,
                                                            td_acl_tensor *out1, td_acl_tensor *out2, td_acl_tensor *sum,
                                                            td_acl_tensor *scale1, td_acl_tensor *scale2, uint64_t *ws,
                                                            td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnAddRmsNormDynamicQuant", NN "norm/add_rms_norm_dynamic_quant", x1, x2, gamma,
                                       smooth1, smooth2, epsilon, out1, out2, sum, scale1, scale2, STANDIN_END);
    need(x, !smooth1 && !smooth2, "smooth scales are not computed with by this stand-in");
    const standin_tensor *a = standin_add(x, x1, "x1", STANDIN_IN), *b = standin_add(x, x2, "x2", STANDIN_IN),
                         *g = standin_add(x, gamma, "gamma", STANDIN_IN), *o = standin_add(x, out1, "y1Out", STANDIN_OUT),
                         *o2 = standin_add(x, out2, "y2Out", STANDIN_OUT), *t = standin_add(x, sum, "xOut", STANDIN_OUT),
                         *s = standin_add(x, scale1, "scale1Out", STANDIN_OUT),
                         *s2 = standin_add(x, scale2, "scale2Out", STANDIN_OUT);
    need(x, a->dtype == TD_ACL_BF16 || a->dtype == TD_ACL_FLOAT16, "x1 is neither FLOAT16 nor BFLOAT16");
    need(x, b->dtype == a->dtype && g->dtype == a->dtype && t->dtype == a->dtype, "x2, gamma or xOut is not of x1's dtype");
    need(x, o->dtype == TD_ACL_INT8 && o2->dtype == TD_ACL_INT8, "y1Out or y2Out is not INT8, the only one of A2 and A3");
    need(x, s->dtype == TD_ACL_FLOAT && s2->dtype == TD_ACL_FLOAT, "scale1Out or scale2Out is not FLOAT");
    need(x, a->n_view >= 2, "x1 has less than two dimensions");
    need(x, standin_same_shape(a, b) && standin_same_shape(a, t) && standin_same_shape(a, o),
         "x2, xOut or y1Out has another shape than x1");
    need(x, g->n_view == 1 && g->view[0] == standin_last(a), "gamma's shape is not the last dimension of x1");
    need(x, o2->n_view == 1 && o2->view[0] == 1, "y2Out has another shape than [1], and there is no second smooth scale");
    need(x, s->n_view + 1 == a->n_view && standin_count(s) == standin_rows(a),
         "scale1Out's shape is not x1's without the last dimension");
    /* op_api/add_rms_norm_dynamic_quant.cpp of 2026-08: a tensor of one element is copied there. The document says otherwise. */
    need(x, s2->n_view == 1 && s2->view[0] == 1,
         "scale2Out has another shape than [1], and there is no second smooth scale");
    need(x, standin_contiguous(s) && standin_contiguous(s2) && standin_contiguous(g),
         "scale1Out, scale2Out or gamma is not contiguous");
    need_rows(x, a);
    need_rows(x, b);
    need_rows(x, t);
    need_rows(x, o);
    return standin_end(x, run_add_rms_norm_quant, &epsilon, sizeof epsilon, 512, ws, executor);
}
STANDIN_SECOND(aclnnAddRmsNormDynamicQuant)

/* ---- SwiGLU ------------------------------------------------------------------------------------ */

/* Of row r of the first tensor, n values into `to`. */
static void swiglu_row(const standin_call *c, int64_t r, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i++) {
        float a = standin_get(row_at(c, 0, r), c->t[0]->dtype, i), b = standin_get(row_at(c, 0, r), c->t[0]->dtype, n + i);
        to[i] = a / (1 + expf(-a)) * b;
    }
}

static void run_swiglu(const standin_call *c) {
    int64_t n = standin_last(c->t[1]);
    float  *y = malloc((size_t)n * sizeof *y);
    for (int64_t r = 0, rows = standin_rows(c->t[1]); r < rows; r++) {
        swiglu_row(c, r, n, y);
        set_row(c, 1, r, y);
    }
    free(y);
}

td_aclnn_status aclnnSwiGluGetWorkspaceSize(const td_acl_tensor *self, int64_t dim, const td_acl_tensor *out, uint64_t *ws,
                                            td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnSwiGlu", NN "activation/swi_glu", self, dim, out, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN), *o = standin_add(x, out, "out", STANDIN_OUT);
    need_floats(x, t);
    need(x, o->dtype == t->dtype, "out has another dtype than x");
    need(x, dim == -1 || dim == (int64_t)t->n_view - 1, "dim is not the last one, the only one here");
    need(x, t->n_view > 0 && standin_last(t) % 2 == 0, "the dimension that is halved is odd");
    need(x, standin_last(o) * 2 == standin_last(t) && standin_rows(o) == standin_rows(t),
         "out's shape is not x's with half the last dimension");
    need(x, standin_contiguous(t) && standin_contiguous(o), "x or out is not contiguous");
    return standin_end(x, run_swiglu, NULL, 0, 0, ws, executor);
}
STANDIN_SECOND(aclnnSwiGlu)

static void run_swiglu_quant(const standin_call *c) {
    int64_t n = standin_last(c->t[1]);
    float  *y = malloc((size_t)n * sizeof *y);
    for (int64_t r = 0, rows = standin_rows(c->t[1]); r < rows; r++) {
        swiglu_row(c, r, n, y);
        ((float *)c->at[2])[r] = standin_quant_row(y, n, (int8_t *)row_at(c, 1, r));
    }
    free(y);
}

#define SWIGLU_QUANT_BYTES (192 << 10)

td_aclnn_status aclnnDequantSwigluQuantGetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *weight_scale,
                                                        const td_acl_tensor *token_scale, const td_acl_tensor *bias,
                                                        const td_acl_tensor *quant_scale, const td_acl_tensor *quant_offset,
                                                        const td_acl_tensor *group_index, bool activate_left,
                                                        char *quant_mode, const td_acl_tensor *out,
                                                        const td_acl_tensor *scale, uint64_t *ws,
                                                        td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnDequantSwigluQuant", NN "quant/dequant_swiglu_quant", self, weight_scale, token_scale, bias,
                      quant_scale, quant_offset, group_index, activate_left, quant_mode, out, scale, STANDIN_END);
    need(x, !strncmp(aclrtGetSocName(), "Ascend910B", 10), "this operation is not supported on A3, only on A2 and 950");
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN), *o = standin_add(x, out, "yOut", STANDIN_OUT),
                         *s = standin_add(x, scale, "scaleOut", STANDIN_OUT);
    need(x, t->dtype == TD_ACL_BF16 || t->dtype == TD_ACL_FLOAT16, "x is neither FLOAT16 nor BFLOAT16 (INT32 is not here)");
    need(x, !weight_scale && !token_scale && !bias, "a scale or bias of INT32 is given, and x is none");
    need(x, !quant_scale && !quant_offset && !group_index, "smooth scales, offsets and groups are not here");
    need(x, activate_left, "activateLeft is false, which is not here");
    need(x, quant_mode && !strcmp(quant_mode, "dynamic"), "quantMode is not \"dynamic\", the only one here");
    need(x, o->dtype == TD_ACL_INT8 && s->dtype == TD_ACL_FLOAT, "yOut is not INT8, or scaleOut not FLOAT");
    need(x, t->n_view > 1 && standin_last(t) % 2 == 0, "x has one dimension only, or its last one is odd");
    need(x, standin_last(o) * 2 == standin_last(t) && standin_rows(o) == standin_rows(t),
         "yOut's shape is not x's with half the last dimension");
    need(x, s->n_view + 1 == t->n_view && standin_count(s) == standin_rows(t),
         "scaleOut's shape is not x's without the last dimension");
    need(x,
         (size_t)standin_count(s) * sizeof(float) / 40 + (size_t)standin_last(t) * standin_dtype_bytes(t->dtype) * 10 <
             SWIGLU_QUANT_BYTES,
         "a fortieth of scaleOut and ten of x's rows are 192 KiB or more");
    need(x, standin_contiguous(t) && standin_contiguous(o) && standin_contiguous(s),
         "x, yOut or scaleOut is not contiguous");
    return standin_end(x, run_swiglu_quant, NULL, 0, 512, ws, executor);
}
STANDIN_SECOND(aclnnDequantSwigluQuant)

/* ---- rope -------------------------------------------------------------------------------------- */

/** Row r of a tensor that x's rows are broadcast to: a dimension of 1 stands for all. */
static int64_t broadcast_row(const standin_tensor *x, const standin_tensor *t, int64_t r) {
    int64_t at = 0;
    for (uint32_t i = x->n_view - 1; i-- > 0; r /= x->view[i]) at += (t->view[i] == 1 ? 0 : r % x->view[i]) * t->strides[i];
    return at;
}

static void run_rope(const standin_call *c) {
    const standin_tensor *x = c->t[0];
    int64_t               d = standin_last(x), half = d / 2, mode = *(const int64_t *)c->args;
    float                *row = malloc((size_t)d * sizeof *row);
    for (int64_t r = 0, rows = standin_rows(x); r < rows; r++) {
        const char *cos =
            (const char *)c->at[1] + (size_t)broadcast_row(x, c->t[1], r) * standin_dtype_bytes(c->t[1]->dtype);
        const char *sin =
            (const char *)c->at[2] + (size_t)broadcast_row(x, c->t[2], r) * standin_dtype_bytes(c->t[2]->dtype);
        for (int64_t i = 0; i < d; i++) row[i] = standin_get(row_at(c, 0, r), x->dtype, i);
        for (int64_t i = 0; i < d; i++) {
            float other = mode == 0 ? (i < half ? -row[i + half] : row[i - half]) : (i % 2 ? row[i - 1] : -row[i + 1]);
            standin_set(row_at(c, 3, r), c->t[3]->dtype, i,
                        row[i] * standin_get(cos, c->t[1]->dtype, i) + other * standin_get(sin, c->t[2]->dtype, i));
        }
    }
    free(row);
}

td_aclnn_status aclnnRotaryPositionEmbeddingGetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *cos,
                                                             const td_acl_tensor *sin, int64_t mode, td_acl_tensor *out,
                                                             uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnRotaryPositionEmbedding", TF "posembedding/rotary_position_embedding", self,
                                       cos, sin, mode, out, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN), *cs = standin_add(x, cos, "cos", STANDIN_IN),
                         *sn = standin_add(x, sin, "sin", STANDIN_IN), *o = standin_add(x, out, "out", STANDIN_OUT);
    need_floats(x, t);
    need(x, cs->dtype == t->dtype && sn->dtype == t->dtype && o->dtype == t->dtype, "cos, sin and out are not of x's dtype");
    need(x, t->n_view == 3 || t->n_view == 4, "x has neither three nor four dimensions");
    need(x, standin_same_shape(o, t) && standin_same_shape(cs, sn), "out's shape is not x's, or cos and sin differ");
    need(x, cs->n_view == t->n_view && standin_last(cs) == standin_last(t),
         "cos has another number of dimensions, or another last one, than x");
    need(x, standin_last(t) < 896 && standin_last(t) % 2 == 0, "the last dimension is odd, or 896 or more");
    for (uint32_t i = 0; i + 1 < t->n_view; i++)
        need(x, cs->view[i] == 1 || cs->view[i] == t->view[i], "cos is not broadcast to x");
    int64_t before = t->n_view == 3 ? t->view[1] : 0, b = t->view[0], n = t->n_view == 3 ? t->view[1] : t->view[2];
    if (t->n_view == 3) need(x, cs->view[0] == t->view[0], "x is [T, N, D] and cos is neither [T, 1, D] nor [T, N, D]");
    /* Four dimensions are read as BSND, the one that the backend has. */
    need(x,
         mode == 1 ? (t->n_view == 3 ? before < 1000 : b * n < 1000)
                   : (t->n_view == 3 ? before < 1000 : b < 1000 && n < 1000),
         "1000 or more of batch or heads");
    if (mode == 1)
        need(x, t->n_view == 3 ? cs->view[1] == 1 : cs->view[0] == 1 && cs->view[2] == 1,
             "pairs want cos of one head, and of one batch");
    need(x, standin_contiguous(o), "out is not contiguous");
    need_rows(x, t);
    need_rows(x, cs);
    need_rows(x, sn);
    return standin_end(x, run_rope, &mode, sizeof mode, 256, ws, executor);
}
STANDIN_SECOND(aclnnRotaryPositionEmbedding)

/* ---- sums and casts ---------------------------------------------------------------------------- */

static void run_add(const standin_call *c) {
    int64_t n = standin_last(c->t[2]);
    for (int64_t r = 0, rows = standin_rows(c->t[2]); r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            standin_set(row_at(c, 2, r), c->t[2]->dtype, i,
                        standin_get(row_at(c, 0, r), c->t[0]->dtype, i) +
                            (float)*(const double *)c->args * standin_get(row_at(c, 1, r), c->t[1]->dtype, i));
}

td_aclnn_status aclnnAddGetWorkspaceSize(const td_acl_tensor *a, const td_acl_tensor *b, const td_acl_scalar *alpha,
                                         td_acl_tensor *out, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnAdd", MATH "math/add", a, b, alpha, out, STANDIN_END);
    const standin_tensor *p = standin_add(x, a, "self", STANDIN_IN), *q = standin_add(x, b, "other", STANDIN_IN),
                         *o = standin_add(x, out, "out", STANDIN_OUT);
    need(x, alpha && alpha->alive, "alpha is a null pointer, or was destroyed");
    need_floats(x, p);
    need_floats(x, q);
    need_floats(x, o);
    need(x, standin_same_shape(p, q) && standin_same_shape(p, o), "the shapes differ: broadcasting is not here");
    need_rows(x, p);
    need_rows(x, q);
    need_rows(x, o);
    return standin_end(x, run_add, &alpha->value, sizeof alpha->value, 0, ws, executor);
}
STANDIN_SECOND(aclnnAdd)

/** The value of `other` that goes with row r and column i of `self`: a dimension of 1, or one that is not there, stands for
 * all. */
static float broadcast_value(const standin_call *c, int self, int other, int64_t r, int64_t i) {
    const standin_tensor *t = c->t[self], *o = c->t[other];
    int64_t               at = 0, index[STANDIN_DIMS];
    index[t->n_view - 1] = i;
    for (uint32_t d = t->n_view - 1; d-- > 0; r /= t->view[d]) index[d] = r % t->view[d];
    for (uint32_t d = 0; d < o->n_view; d++) at += (o->view[d] == 1 ? 0 : index[t->n_view - o->n_view + d]) * o->strides[d];
    return standin_get(c->at[other], o->dtype, at);
}

static bool is_broadcast(const standin_tensor *self, const standin_tensor *other) {
    if (other->n_view > self->n_view) return false;
    for (uint32_t d = 0; d < other->n_view; d++)
        if (other->view[d] != 1 && other->view[d] != self->view[self->n_view - other->n_view + d]) return false;
    return true;
}

static void run_add_in_place(const standin_call *c) {
    int64_t n = standin_last(c->t[0]);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            standin_set(row_at(c, 0, r), c->t[0]->dtype, i,
                        standin_get(row_at(c, 0, r), c->t[0]->dtype, i) +
                            (float)*(const double *)c->args * broadcast_value(c, 0, 1, r, i));
}

static void check_in_place(const td_acl_executor *x, const standin_tensor *p, const standin_tensor *q) {
    need_floats(x, p);
    need_floats(x, q);
    need(x, q->dtype == p->dtype, "other has another dtype than selfRef: promotion is not here");
    need(x, is_broadcast(p, q), "other is not broadcast to selfRef's shape");
    need_rows(x, p);
}

td_aclnn_status aclnnInplaceAddGetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *other,
                                                const td_acl_scalar *alpha, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnInplaceAdd", MATH "math/add", self, other, alpha, STANDIN_END);
    const standin_tensor *p = standin_add(x, self, "selfRef", STANDIN_OUT), *q = standin_add(x, other, "other", STANDIN_IN);
    need(x, alpha && alpha->alive, "alpha is a null pointer, or was destroyed");
    check_in_place(x, p, q);
    return standin_end(x, run_add_in_place, &alpha->value, sizeof alpha->value, 0, ws, executor);
}
STANDIN_SECOND(aclnnInplaceAdd)

static void run_multiply_in_place(const standin_call *c) {
    int64_t n = standin_last(c->t[0]);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            standin_set(row_at(c, 0, r), c->t[0]->dtype, i,
                        standin_get(row_at(c, 0, r), c->t[0]->dtype, i) * broadcast_value(c, 0, 1, r, i));
}

td_aclnn_status aclnnInplaceMulGetWorkspaceSize(td_acl_tensor *self, const td_acl_tensor *other, uint64_t *ws,
                                                td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnInplaceMul", MATH "math/mul", self, other, STANDIN_END);
    const standin_tensor *p = standin_add(x, self, "selfRef", STANDIN_OUT), *q = standin_add(x, other, "other", STANDIN_IN);
    check_in_place(x, p, q);
    return standin_end(x, run_multiply_in_place, NULL, 0, 0, ws, executor);
}
STANDIN_SECOND(aclnnInplaceMul)

static void run_sigmoid(const standin_call *c) {
    int64_t n = standin_last(c->t[0]);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            standin_set(row_at(c, 1, r), c->t[1]->dtype, i,
                        1 / (1 + expf(-standin_get(row_at(c, 0, r), c->t[0]->dtype, i))));
}

td_aclnn_status aclnnSigmoidGetWorkspaceSize(const td_acl_tensor *self, td_acl_tensor *out, uint64_t *ws,
                                             td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnSigmoid", NN "activation/sigmoid", self, out, STANDIN_END);
    const standin_tensor *p = standin_add(x, self, "self", STANDIN_IN), *o = standin_add(x, out, "out", STANDIN_OUT);
    need_floats(x, p);
    need(x, o->dtype == p->dtype && standin_same_shape(o, p), "out is not of self's shape and dtype");
    need_rows(x, p);
    need_rows(x, o);
    return standin_end(x, run_sigmoid, NULL, 0, 0, ws, executor);
}
STANDIN_SECOND(aclnnSigmoid)

static void run_cast(const standin_call *c) {
    int64_t n = standin_last(c->t[0]), step = c->t[1]->n_view ? c->t[1]->strides[c->t[1]->n_view - 1] : 1;
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            float v = standin_get(row_at(c, 0, r), c->t[0]->dtype, i);
            standin_set(row_at(c, 1, r), c->t[1]->dtype, i * step, v != v && !standin_is_float(c->t[1]->dtype) ? 0 : v);
        }
}

td_aclnn_status aclnnCastGetWorkspaceSize(const td_acl_tensor *self, const td_acl_dtype dtype, td_acl_tensor *out,
                                          uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnCast", MATH "math/cast", self, dtype, out, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "self", STANDIN_IN), *o = standin_add(x, out, "out", STANDIN_OUT);
    need(x, o->dtype == dtype, "out is not of the dtype that is asked for");
    need(x, standin_same_shape(t, o), "out's shape is not self's");
    need(x, t->format == o->format, "out's format is not self's");
    need(x, dtype != TD_ACL_INT4, "INT4 is not cast to on A2");
    need_rows(x, t);
    return standin_end(x, run_cast, NULL, 0, 0, ws, executor);
}
STANDIN_SECOND(aclnnCast)

/* ---- top-k ------------------------------------------------------------------------------------- */

static void run_topk(const standin_call *c) {
    int64_t k = *(const int64_t *)c->args, n = standin_last(c->t[0]);
    bool   *taken = calloc((size_t)n, sizeof *taken);
    for (int64_t r = 0, rows = standin_rows(c->t[0]); r < rows; r++) {
        memset(taken, 0, (size_t)n);
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t i = 0; i < n; i++)
                if (!taken[i] && (best < 0 || standin_get(row_at(c, 0, r), c->t[0]->dtype, i) >
                                                  standin_get(row_at(c, 0, r), c->t[0]->dtype, best)))
                    best = i;
            taken[best] = true;
            standin_set(row_at(c, 1, r), c->t[1]->dtype, j * c->t[1]->strides[c->t[1]->n_view - 1],
                        standin_get(row_at(c, 0, r), c->t[0]->dtype, best));
            ((int64_t *)row_at(c, 2, r))[j] = best;
        }
    }
    free(taken);
}

td_aclnn_status aclnnTopkGetWorkspaceSize(const td_acl_tensor *self, int64_t k, int64_t dim, bool largest, bool sorted,
                                          td_acl_tensor *values, td_acl_tensor *indices, uint64_t *ws,
                                          td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnTopk", MATH "math/topk", self, k, dim, largest, sorted, values, indices, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "self", STANDIN_IN),
                         *v = standin_add(x, values, "valuesOut", STANDIN_OUT),
                         *i = standin_add(x, indices, "indicesOut", STANDIN_OUT);
    need_floats(x, t);
    need(x, v->dtype == t->dtype && i->dtype == TD_ACL_INT64, "valuesOut is not of self's dtype, or indicesOut not INT64");
    need(x, dim == -1 || dim == (int64_t)t->n_view - 1, "dim is not the last one, the only one here");
    need(x, k >= 0 && k <= standin_last(t), "k is not in 0 to the size of the dimension");
    need(x, sorted, "sorted is false: only true is supported");
    need(x, largest, "largest is false: only true is here");
    need(x, standin_last(v) == k && standin_rows(v) == standin_rows(t) && standin_same_shape(v, i),
         "valuesOut or indicesOut is not of k a row");
    need_rows(x, t);
    need_rows(x, i);
    return standin_end(x, run_topk, &k, sizeof k, 4096, ws, executor);
}
STANDIN_SECOND(aclnnTopk)
