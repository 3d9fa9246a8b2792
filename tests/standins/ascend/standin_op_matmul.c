/*
 * Products: int8 with scales, floats, floats a head. int8 sums are exact in int32; float sums are f32 in the order of k.
 */

#include <stdlib.h>

#include "standin_op.h"

#define NN "hicann/ops-nn "

static void need(const td_acl_executor *x, bool ok, const char *rule) {
    if (!ok) standin_bad(x, "%s", rule);
}

/* ---- W8A8 -------------------------------------------------------------------------------------- */

typedef struct {
    int64_t m, n, k;
    bool    transposed, nz;
} quant_args;

/**
 * Where W[n, k] is. ND: rows of k where transposed, else of n. NZ of an array [r, c] of int8 is [c / 32][r / 16][16][32],
 * rounded up, the rest zero (docs/zh/context/data_format.md; V4: "k0 = 32, n0 = 16" transposed, "k0 = 16, n0 = 32" else).
 */
static size_t weight_at(const quant_args *a, int64_t n, int64_t k) {
    int64_t r = a->transposed ? n : k, c = a->transposed ? k : n, rows = a->transposed ? a->n : a->k,
            columns = a->transposed ? a->k : a->n;
    if (!a->nz) return (size_t)(r * columns + c);
    return (size_t)(((c / 32 * ((rows + 15) / 16) + r / 16) * 16 + r % 16) * 32 + c % 32);
}

enum { X1, X2, SCALE, TOKEN_SCALE, BIAS, OUT };

static void run_quant(const standin_call *c) {
    const quant_args *a = c->args;
    const int8_t     *x = c->at[X1], *w = c->at[X2];
    const float      *token = c->at[TOKEN_SCALE];
    bool              one = standin_count(c->t[SCALE]) == 1;
    int32_t           tile[32];
    for (int64_t m = 0; m < a->m; m++)
        for (int64_t n = 0; n < a->n; n++) {
            int32_t sum = 0;
            if (a->nz && !a->transposed) {
                if (n % 32 == 0) standin_tile_sums(x + m * a->k, w, n / 32, a->k, tile);
                sum = tile[n % 32];
            } else {
                for (int64_t k = 0; k < a->k; k++) sum += x[m * a->k + k] * w[weight_at(a, n, k)];
            }
            if (c->t[BIAS] && c->t[BIAS]->dtype == TD_ACL_INT32) sum += ((const int32_t *)c->at[BIAS])[n];
            float v = (float)sum * standin_get(c->at[SCALE], c->t[SCALE]->dtype, one ? 0 : n);
            if (token) v *= token[m];
            if (c->t[BIAS] && c->t[BIAS]->dtype != TD_ACL_INT32) v += standin_get(c->at[BIAS], c->t[BIAS]->dtype, n);
            standin_set(c->at[OUT], c->t[OUT]->dtype, m * a->n + n, v);
        }
}

/** Both forms' rules on A2: int8 x int8, scales FLOAT or BFLOAT16 a column, FLOAT a row, BFLOAT16 out. */
static td_aclnn_status quant_end(td_acl_executor *x, const td_acl_tensor *x1, const td_acl_tensor *x2,
                                 const td_acl_tensor *scale, const td_acl_tensor *token, const td_acl_tensor *bias,
                                 const td_acl_tensor *out, bool transpose_x1, bool transpose_x2, bool nz_only, uint64_t *ws,
                                 td_acl_executor **executor) {
    const standin_tensor *a = standin_add(x, x1, "x1", STANDIN_IN), *w = standin_add(x, x2, "x2", STANDIN_IN),
                         *s = standin_add(x, scale, "the scale of x2", STANDIN_IN),
                         *t = standin_add(x, token, "the scale of x1", STANDIN_OPTIONAL),
                         *b = standin_add(x, bias, "bias", STANDIN_OPTIONAL), *o = standin_add(x, out, "out", STANDIN_OUT);
    quant_args q = {.nz = w->format == TD_ACL_FORMAT_FRACTAL_NZ, .transposed = transpose_x2};
    need(x, a->dtype == TD_ACL_INT8 && w->dtype == TD_ACL_INT8, "x1 or x2 is not INT8 (other types are not here)");
    need(x, a->format == TD_ACL_FORMAT_ND, "x1's format is not ND");
    need(x, !nz_only || q.nz, "x2's format is not NZ");
    need(x, s->dtype == TD_ACL_FLOAT || s->dtype == TD_ACL_BF16,
         "x2's scale is neither FLOAT nor BFLOAT16 (UINT64 is not here)");
    need(x, !t || t->dtype == TD_ACL_FLOAT, "x1's scale is not FLOAT");
    need(x, !b || b->dtype == TD_ACL_INT32 || b->dtype == TD_ACL_BF16 || b->dtype == TD_ACL_FLOAT,
         "bias is none of INT32, BFLOAT16, FLOAT");
    need(x, o->dtype == TD_ACL_BF16, "out is not BFLOAT16, the one that goes with these scales (FLOAT16 is not here)");
    need(x, !transpose_x1, "transposeX1 is not here");
    need(x, a->n_view == 2 && w->n_view == 2 && o->n_view == 2, "a tensor has not two dimensions (batches are not here)");
    q.m = a->view[0];
    q.k = a->view[1];
    q.n = o->view[1];
    need(x, o->view[0] == q.m, "out has another number of rows than x1");
    need(x, w->view[transpose_x2 ? 0 : 1] == q.n && w->view[transpose_x2 ? 1 : 0] == q.k,
         "x2's shape does not go with x1's and out's");
    need(x, q.m > 0 && q.n > 0 && q.k > 0, "a tensor is empty");
    need(x, !q.nz || (q.n > 1 && q.k > 1), "NZ with n or k of 1 is not supported");
    int64_t r = w->view[0], c = w->view[1];
    need(x,
         !q.nz || (w->n_storage == 4 && w->storage[0] == (c + 31) / 32 && w->storage[1] == (r + 15) / 16 &&
                   w->storage[2] == 16 && w->storage[3] == 32),
         "x2's storage is not [ceil(columns / 32), ceil(rows / 16), 16, 32]");
    need(x, s->n_view == 1 && (s->view[0] == q.n || s->view[0] == 1), "x2's scale has neither n values nor one");
    need(x, !t || (t->n_view == 1 && t->view[0] == q.m), "x1's scale has not m values");
    need(x, !b || (b->n_view == 1 && b->view[0] == q.n), "bias has not n values");
    need(x, standin_contiguous(a) && standin_contiguous(o) && (q.nz || standin_contiguous(w)), "a tensor is not contiguous");
    return standin_end(x, run_quant, &q, sizeof q, 1024, ws, executor);
}

static void absent(const td_acl_executor *x, const void *t, const char *rule) {
    need(x, !t, rule);
}

td_aclnn_status aclnnQuantMatmulV4GetWorkspaceSize(const td_acl_tensor *x1, const td_acl_tensor *x2,
                                                   const td_acl_tensor *scale, const td_acl_tensor *offset,
                                                   const td_acl_tensor *token_scale, const td_acl_tensor *bias,
                                                   bool transpose_x1, bool transpose_x2, const td_acl_tensor *out,
                                                   uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnQuantMatmulV4", NN "matmul/quant_batch_matmul_v3 aclnnQuantMatmulV4", x1, x2,
                                       scale, offset, token_scale, bias, transpose_x1, transpose_x2, out, STANDIN_END);
    absent(x, offset, "offset is given, and out is not INT8");
    return quant_end(x, x1, x2, scale, token_scale, bias, out, transpose_x1, transpose_x2, false, ws, executor);
}
STANDIN_SECOND(aclnnQuantMatmulV4)

static td_aclnn_status quant_v5(td_acl_executor *x, bool nz_only, TD_ACLNN_QUANT_MATMUL_ARGS, uint64_t *ws,
                                td_acl_executor **executor) {
    absent(x, y_scale, "yScale is not supported on A2");
    absent(x, x1_offset, "x1Offset is not supported");
    absent(x, x2_offset, "x2Offset is given, and out is not INT8");
    absent(x, y_offset, "yOffset is not here");
    need(x, group_size == 0, "groupSize is not 0 (groups are not here)");
    return quant_end(x, x1, x2, x2_scale, x1_scale, bias, out, transpose_x1, transpose_x2, nz_only, ws, executor);
}

td_aclnn_status aclnnQuantMatmulV5GetWorkspaceSize(TD_ACLNN_QUANT_MATMUL_ARGS, uint64_t *ws, td_acl_executor **executor) {
    return quant_v5(
        standin_begin("aclnnQuantMatmulV5", NN "matmul/quant_batch_matmul_v4", x1, x2, x1_scale, x2_scale, y_scale,
                      x1_offset, x2_offset, y_offset, bias, transpose_x1, transpose_x2, group_size, out, STANDIN_END),
        false, x1, x2, x1_scale, x2_scale, y_scale, x1_offset, x2_offset, y_offset, bias, transpose_x1, transpose_x2,
        group_size, out, ws, executor);
}
STANDIN_SECOND(aclnnQuantMatmulV5)

td_aclnn_status aclnnQuantMatmulWeightNzGetWorkspaceSize(TD_ACLNN_QUANT_MATMUL_ARGS, uint64_t *ws,
                                                         td_acl_executor **executor) {
    return quant_v5(standin_begin("aclnnQuantMatmulWeightNz", NN "matmul/quant_batch_matmul_v3 aclnnQuantMatmulWeightNz", x1,
                                  x2, x1_scale, x2_scale, y_scale, x1_offset, x2_offset, y_offset, bias, transpose_x1,
                                  transpose_x2, group_size, out, STANDIN_END),
                    true, x1, x2, x1_scale, x2_scale, y_scale, x1_offset, x2_offset, y_offset, bias, transpose_x1,
                    transpose_x2, group_size, out, ws, executor);
}
STANDIN_SECOND(aclnnQuantMatmulWeightNz)

/* ---- W4A16 -------------------------------------------------------------------------------------- */

typedef struct {
    int64_t m, n, k, group;
} int4_args;

enum { INT4_X, INT4_W, INT4_SCALE, INT4_OFFSET, INT4_BIAS, INT4_OUT };

/* ANTIQUANT(weight) = (weight + offset) * scale, in x's type; sums are f32 in the order of k, then the bias. */
static void run_int4(const standin_call *c) {
    const int4_args *a = c->args;
    const uint16_t  *x = c->at[INT4_X];
    float           *sum = calloc((size_t)(a->m * a->n) + 1, sizeof *sum);
    for (int64_t k = 0; k < a->k; k++)
        for (int64_t n = 0; n < a->n; n++) {
            int64_t at = k / a->group * a->n + n;
            float   offset = c->t[INT4_OFFSET] ? standin_get(c->at[INT4_OFFSET], TD_ACL_BF16, at) : 0;
            float   w = ((float)standin_int4(c->at[INT4_W], k * a->n + n) + offset) *
                      standin_get(c->at[INT4_SCALE], TD_ACL_BF16, at);
            w = td_bf16_to_f32(td_f32_to_bf16(w));
            for (int64_t m = 0; m < a->m; m++) sum[m * a->n + n] += td_bf16_to_f32(x[m * a->k + k]) * w;
        }
    for (int64_t i = 0; i < a->m * a->n; i++) {
        float bias = c->t[INT4_BIAS] ? standin_get(c->at[INT4_BIAS], TD_ACL_FLOAT, i % a->n) : 0;
        standin_set(c->at[INT4_OUT], TD_ACL_BF16, i, sum[i] + bias);
    }
    free(sum);
}

/** The rules of A2 for x of BFLOAT16 and a weight of INT4 in ND that is not transposed. */
td_aclnn_status aclnnWeightQuantBatchMatmulV2GetWorkspaceSize(
    const td_acl_tensor *x1, const td_acl_tensor *weight, const td_acl_tensor *antiquant_scale,
    const td_acl_tensor *antiquant_offset, const td_acl_tensor *quant_scale, const td_acl_tensor *quant_offset,
    const td_acl_tensor *bias, int group_size, const td_acl_tensor *out, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x = standin_begin(
        "aclnnWeightQuantBatchMatmulV2", NN "matmul/weight_quant_batch_matmul_v2 aclnnWeightQuantBatchMatmulV2", x1, weight,
        antiquant_scale, antiquant_offset, quant_scale, quant_offset, bias, group_size, out, STANDIN_END);
    const standin_tensor *a = standin_add(x, x1, "x", STANDIN_IN), *w = standin_add(x, weight, "weight", STANDIN_IN),
                         *s = standin_add(x, antiquant_scale, "antiquantScale", STANDIN_IN),
                         *o = standin_add(x, antiquant_offset, "antiquantOffsetOptional", STANDIN_OPTIONAL),
                         *b = standin_add(x, bias, "biasOptional", STANDIN_OPTIONAL),
                         *y = standin_add(x, out, "y", STANDIN_OUT);
    absent(x, quant_scale, "quantScale is given, and y is not INT8");
    absent(x, quant_offset, "quantOffset is given without quantScale");
    need(x, a->dtype == TD_ACL_BF16 && w->dtype == TD_ACL_INT4,
         "x is not BFLOAT16, or weight not INT4 (others are not here)");
    need(x, a->format == TD_ACL_FORMAT_ND && w->format == TD_ACL_FORMAT_ND,
         "x's or weight's format is not ND (NZ is not here)");
    need(x, a->n_view == 2 && w->n_view == 2 && y->n_view == 2, "x, weight or y has not two dimensions");
    int4_args r = {.m = a->view[0], .k = a->view[1], .n = w->view[1], .group = group_size ? group_size : a->view[1]};
    need(x, w->view[0] == r.k && y->view[0] == r.m && y->view[1] == r.n, "the shapes do not go together");
    need(x, r.m > 0 && r.k > 0 && r.n > 0, "a tensor is empty");
    need(x, r.k <= 65535 && r.n <= 65535, "k or n is not in [1, 65535]");
    need(x, r.n % 2 == 0, "the inner axis of weight is not even");
    need(x, group_size == 0 || (group_size >= 32 && group_size <= r.k - 1 && group_size % 32 == 0),
         "antiquantGroupSize is neither 0 nor a multiple of 32 in [32, k - 1]");
    need(x, s->dtype == a->dtype && (!o || o->dtype == a->dtype), "antiquantScale or antiquantOffset has not x's dtype");
    need(x, s->n_view == 2 && s->view[0] == (r.k + r.group - 1) / r.group && s->view[1] == r.n,
         "antiquantScale is not [ceil(k / group), n] (a scale for all is not here)");
    need(x, !o || (o->n_view == 2 && o->view[0] == s->view[0] && o->view[1] == s->view[1]),
         "antiquantOffset has another shape than antiquantScale");
    need(x, !b || (b->dtype == TD_ACL_FLOAT && standin_count(b) == r.n && b->view[b->n_view - 1] == r.n),
         "bias is not n values of FLOAT, which goes with x of BFLOAT16");
    need(x, y->dtype == a->dtype, "y has not x's dtype");
    need(x,
         standin_contiguous(a) && standin_contiguous(w) && standin_contiguous(s) && (!o || standin_contiguous(o)) &&
             standin_contiguous(y),
         "a tensor is not contiguous (transposed ones are not here)");
    return standin_end(x, run_int4, &r, sizeof r, 1024, ws, executor);
}
STANDIN_SECOND(aclnnWeightQuantBatchMatmulV2)

/* ---- floats ------------------------------------------------------------------------------------ */

/** out[b, m, n] = sum over k of x1[b, m, k] * x2[b, k, n]; strides of each in elements, b m n / b m k / b k n. */
typedef struct {
    int64_t b, m, n, k, x1[3], x2[3], out[3];
} product;

static void run_product(const standin_call *c) {
    const product *p = c->args;
    for (int64_t b = 0; b < p->b; b++)
        for (int64_t m = 0; m < p->m; m++)
            for (int64_t n = 0; n < p->n; n++) {
                float sum = 0;
                for (int64_t k = 0; k < p->k; k++)
                    sum += standin_get(c->at[0], c->t[0]->dtype, b * p->x1[0] + m * p->x1[1] + k * p->x1[2]) *
                           standin_get(c->at[1], c->t[1]->dtype, b * p->x2[0] + k * p->x2[1] + n * p->x2[2]);
                standin_set(c->at[2], c->t[2]->dtype, b * p->out[0] + m * p->out[1] + n * p->out[2], sum);
            }
}

static void check_floats(const td_acl_executor *x, const standin_tensor *a, const standin_tensor *b, const standin_tensor *o,
                         int8_t cube_math) {
    need(x, standin_is_float(a->dtype) && a->dtype == b->dtype && a->dtype == o->dtype,
         "the dtypes are not one of BFLOAT16, FLOAT16, FLOAT for all");
    need(x, a->format == TD_ACL_FORMAT_ND && b->format == TD_ACL_FORMAT_ND, "a format is not ND");
    need(x, cube_math >= 0 && cube_math <= 4, "cubeMathType is not in 0 to 4");
    need(x, cube_math != 2 || a->dtype != TD_ACL_BF16, "cubeMathType 2 is not supported with BFLOAT16");
    need(x, cube_math != 3 || a->dtype == TD_ACL_FLOAT, "cubeMathType 3 is supported with FLOAT only");
    need(x, a->dtype != TD_ACL_FLOAT || cube_math == 0 || cube_math == 4,
         "FLOAT with a lower precision is not computed by this stand-in");
    need(x, standin_contiguous(o), "out is not contiguous");
}

td_aclnn_status aclnnMmGetWorkspaceSize(const td_acl_tensor *a, const td_acl_tensor *b, td_acl_tensor *out, int8_t cube_math,
                                        uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnMm", NN "matmul/mat_mul_v3", a, b, out, cube_math, STANDIN_END);
    const standin_tensor *p = standin_add(x, a, "self", STANDIN_IN), *q = standin_add(x, b, "mat2", STANDIN_IN),
                         *o = standin_add(x, out, "out", STANDIN_OUT);
    check_floats(x, p, q, o, cube_math);
    need(x, p->n_view == 2 && q->n_view == 2 && o->n_view == 2, "a tensor has not two dimensions");
    need(x, p->view[1] == q->view[0] && o->view[0] == p->view[0] && o->view[1] == q->view[1],
         "the shapes do not go together");
    product r = {1,
                 p->view[0],
                 q->view[1],
                 p->view[1],
                 {0, p->strides[0], p->strides[1]},
                 {0, q->strides[0], q->strides[1]},
                 {0, o->strides[0], o->strides[1]}};
    return standin_end(x, run_product, &r, sizeof r, 1024, ws, executor);
}
STANDIN_SECOND(aclnnMm)

td_aclnn_status aclnnBatchMatMulGetWorkspaceSize(const td_acl_tensor *a, const td_acl_tensor *b, td_acl_tensor *out,
                                                 int8_t cube_math, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnBatchMatMul", NN "matmul/batch_mat_mul_v3", a, b, out, cube_math, STANDIN_END);
    const standin_tensor *p = standin_add(x, a, "self", STANDIN_IN), *q = standin_add(x, b, "mat2", STANDIN_IN),
                         *o = standin_add(x, out, "out", STANDIN_OUT);
    check_floats(x, p, q, o, cube_math);
    need(x, p->n_view == 3 && q->n_view == 3 && o->n_view == 3, "a tensor has not three dimensions");
    need(x,
         p->view[0] == q->view[0] && o->view[0] == p->view[0] && p->view[2] == q->view[1] && o->view[1] == p->view[1] &&
             o->view[2] == q->view[2],
         "the shapes do not go together");
    product r = {p->view[0],
                 p->view[1],
                 q->view[2],
                 p->view[2],
                 {p->strides[0], p->strides[1], p->strides[2]},
                 {q->strides[0], q->strides[1], q->strides[2]},
                 {o->strides[0], o->strides[1], o->strides[2]}};
    return standin_end(x, run_product, &r, sizeof r, 1024, ws, executor);
}
STANDIN_SECOND(aclnnBatchMatMul)

static bool is_perm(const td_acl_int_array *p, int64_t a, int64_t b, int64_t c) {
    return p && p->alive && p->n == 3 && p->values[0] == a && p->values[1] == b && p->values[2] == c;
}

td_aclnn_status aclnnTransposeBatchMatMulGetWorkspaceSize(const td_acl_tensor *x1, const td_acl_tensor *x2,
                                                          const td_acl_tensor *bias, const td_acl_tensor *scale,
                                                          const td_acl_int_array *perm_x1, const td_acl_int_array *perm_x2,
                                                          const td_acl_int_array *perm_y, int8_t cube_math,
                                                          const int32_t batch_split, td_acl_tensor *out, uint64_t *ws,
                                                          td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnTransposeBatchMatMul", NN "matmul/transpose_batch_mat_mul", x1, x2, bias, scale,
                                       perm_x1, perm_x2, perm_y, cube_math, batch_split, out, STANDIN_END);
    const standin_tensor *p = standin_add(x, x1, "x1", STANDIN_IN), *q = standin_add(x, x2, "x2", STANDIN_IN),
                         *o = standin_add(x, out, "out", STANDIN_OUT);
    check_floats(x, p, q, o, cube_math);
    absent(x, bias, "bias is not supported");
    absent(x, scale, "scale goes with FLOAT16 in and INT8 out, which are not here");
    bool heads_inside = is_perm(perm_x1, 1, 0, 2), turned = is_perm(perm_x2, 0, 2, 1);
    need(x, heads_inside || is_perm(perm_x1, 0, 1, 2), "permX1 is neither [0, 1, 2] nor [1, 0, 2]");
    need(x, turned || is_perm(perm_x2, 0, 1, 2), "permX2 is neither [0, 1, 2] nor [0, 2, 1]");
    need(x, is_perm(perm_y, 1, 0, 2), "permY is not [1, 0, 2]");
    need(x, !turned || heads_inside, "permX2 [0, 2, 1] wants permX1 [1, 0, 2]");
    need(x, batch_split == 1, "batchSplitFactor is not 1, the only one here");
    need(x, p->n_view == 3 && q->n_view == 3 && o->n_view == 3, "a tensor has not three dimensions");
    int64_t b = p->view[heads_inside ? 1 : 0], m = p->view[heads_inside ? 0 : 1], k = p->view[2],
            n = q->view[turned ? 1 : 2];
    need(x, q->view[0] == b && q->view[turned ? 2 : 1] == k && o->view[0] == m && o->view[1] == b && o->view[2] == n,
         "the shapes do not go together");
    need(x, b < 65536 && n < 65536, "B or N is 65536 or more");
    need(x, heads_inside || k <= 65535, "K is more than 65535");
    product r = {b,
                 m,
                 n,
                 k,
                 {p->strides[heads_inside ? 1 : 0], p->strides[heads_inside ? 0 : 1], p->strides[2]},
                 {q->strides[0], q->strides[turned ? 2 : 1], q->strides[turned ? 1 : 2]},
                 {o->strides[1], o->strides[0], o->strides[2]}};
    return standin_end(x, run_product, &r, sizeof r, 1024, ws, executor);
}
STANDIN_SECOND(aclnnTransposeBatchMatMul)
