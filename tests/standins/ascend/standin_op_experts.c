/*
 * Routed experts: rows in the order of their experts, products of each expert's rows, the middle of their MLP, and the rows
 * back to their tokens. Sums of int8 are exact in int32; sums of a token's experts are f32 in the order of its ids, rounded
 * once. Places are row major: place i k + j is where the row of token i for its j-th expert went.
 *
 * Sources: ops-transformer moe/moe_init_routing_v2, moe_init_routing_v3, moe_finalize_routing_v2, gmm/grouped_matmul
 * (aclnnGroupedMatmulV5, the scenarios A8W8 and A16W4), gmm/grouped_matmul_swiglu_quant
 * (aclnnGroupedMatmulSwigluQuantWeightNZ, A8W8); ops-nn quant/dequant_swiglu_quant (aclnnDequantSwigluQuantV2), as they are
 * for A2. What is stricter here: ids, places, counts and scales are looked at when an operation runs, and an array
 * that the document says is not read must not be given.
 */
#include <stdlib.h>

#include "standin_op.h"

#define TF "hicann/ops-transformer "
#define NN "hicann/ops-nn "
#define EXPERTS_MAX 1024  /* of grouped_matmul: groups of a single tensor of weights */
#define LAST_MAX 65536    /* of grouped_matmul: the last dimension of x and weight is less */
#define SWIGLU_MAX 7232   /* of dequant_swiglu_quant V2: x's last dimension */
#define GATE_UP_MAX 10240 /* of grouped_matmul_swiglu_quant: N */

static void need(const td_acl_executor *x, bool ok, const char *rule) {
    if (!ok) standin_bad(x, "%s", rule);
}

static bool is_vector(const standin_tensor *t, td_acl_dtype dtype, int64_t n) {
    return t->dtype == dtype && t->n_view == 1 && t->view[0] == n && standin_contiguous(t);
}

/* ---- to the experts ---------------------------------------------------------------------------- */

typedef struct {
    int64_t n_experts;
    bool    sums; /* counts are cumulated */
} route_args;

enum { ROUTE_X, ROUTE_IDS, ROUTE_SCALE, ROUTE_OUT, ROUTE_PLACES, ROUTE_COUNTS, ROUTE_OUT_SCALE };

static int64_t id_of(const standin_call *c, int64_t i, int64_t n_experts) {
    const standin_tensor *t = c->t[ROUTE_IDS];
    int64_t id = ((const int32_t *)c->at[ROUTE_IDS])[i / t->view[1] * t->strides[0] + i % t->view[1] * t->strides[1]];
    if (id < 0 || id >= n_experts)
        standin_refuse(TF "moe/moe_init_routing", "%s: expertIdx has expert %lld of %lld", c->op, (long long)id,
                       (long long)n_experts);
    return id;
}

/* A stable sort: rows of an expert stay in the order of their tokens. */
static void run_route(const standin_call *c) {
    const route_args     *a = c->args;
    const standin_tensor *x = c->t[ROUTE_X];
    int64_t               pairs = standin_count(c->t[ROUTE_IDS]), k = c->t[ROUTE_IDS]->view[1], h = x->view[1];
    size_t                bytes = standin_dtype_bytes(x->dtype);
    int64_t              *at = calloc((size_t)a->n_experts + 1, sizeof *at);
    const float          *scale = c->at[ROUTE_SCALE];
    for (int64_t i = 0; i < pairs; i++) at[id_of(c, i, a->n_experts) + 1]++;
    for (int64_t e = 0, sum = 0; e < a->n_experts; e++) {
        int64_t value = a->sums ? (sum += at[e + 1]) : at[e + 1];
        if (c->t[ROUTE_COUNTS]) standin_set_int(c->at[ROUTE_COUNTS], c->t[ROUTE_COUNTS]->dtype, e, value);
    }
    for (int64_t e = 0; e < a->n_experts; e++) at[e + 1] += at[e];
    for (int64_t i = 0; i < pairs; i++) {
        int64_t     place = at[id_of(c, i, a->n_experts)]++;
        const char *from = (const char *)c->at[ROUTE_X] + (size_t)(i / k * x->strides[0]) * bytes;
        char       *to = (char *)c->at[ROUTE_OUT] + (size_t)(place * h) * bytes;
        for (int64_t j = 0; j < h; j++) memcpy(to + (size_t)j * bytes, from + (size_t)(j * x->strides[1]) * bytes, bytes);
        if (scale && !isfinite(scale[i / k]))
            standin_refuse(TF "moe/moe_init_routing_v3", "%s: scale %lld is not finite, which it does not take", c->op,
                           (long long)(i / k));
        if (scale) ((float *)c->at[ROUTE_OUT_SCALE])[place] = scale[i / k];
        ((int32_t *)c->at[ROUTE_PLACES])[i] = (int32_t)place;
    }
    free(at);
}

/* What both versions want of x, ids and the outputs. */
static void check_route(const td_acl_executor *x, const standin_tensor *t, const standin_tensor *ids,
                        const standin_tensor *out, const standin_tensor *places, int64_t n_experts, int64_t drop_pad_mode) {
    need(x, ids->dtype == TD_ACL_INT32 && ids->n_view == 2, "expertIdx is not INT32 of two dimensions");
    need(x, t->n_view == 2 && t->view[0] == ids->view[0] && standin_count(ids) > 0 && t->view[1] > 0,
         "x is not [rows, h] with the rows of expertIdx, or empty");
    need(x, n_experts > 0, "expertNum is not positive, and counts are wanted");
    need(x, drop_pad_mode == 0, "dropPadMode is not 0, the only one here");
    need(x, out->dtype == t->dtype, "expandedXOut is not of x's dtype");
    need(x, out->n_view == 2 && out->view[0] == standin_count(ids) && out->view[1] == t->view[1] && standin_contiguous(out),
         "expandedXOut is not [rows * k, h], or not contiguous");
    need(x, is_vector(places, TD_ACL_INT32, standin_count(ids)), "expandedRowIdxOut is not INT32 [rows * k]");
}

td_aclnn_status aclnnMoeInitRoutingV2GetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *ids, int64_t active,
                                                      int64_t capacity, int64_t n_experts, int64_t drop_pad_mode,
                                                      int64_t counts_type, bool with_counts_before, const td_acl_tensor *out,
                                                      const td_acl_tensor *places, const td_acl_tensor *counts,
                                                      const td_acl_tensor *counts_before, uint64_t *ws,
                                                      td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnMoeInitRoutingV2", TF "moe/moe_init_routing_v2", self, ids, active, capacity, n_experts,
                      drop_pad_mode, counts_type, with_counts_before, out, places, counts, counts_before, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN), *i = standin_add(x, ids, "expertIdx", STANDIN_IN);
    standin_add(x, NULL, "scale", STANDIN_OPTIONAL);
    const standin_tensor *o = standin_add(x, out, "expandedXOut", STANDIN_OUT),
                         *p = standin_add(x, places, "expandedRowIdxOut", STANDIN_OUT),
                         *n = standin_add(x, counts, "expertTokensCountOrCumsumOut", STANDIN_OUT);
    need(x, standin_is_float(t->dtype), "x is none of FLOAT16, BFLOAT16, FLOAT");
    check_route(x, t, i, o, p, n_experts, drop_pad_mode);
    need(x, active == 0 && capacity >= 0, "activeNum is not 0 (the active form is not here), or expertCapacity negative");
    need(x, counts_type == 1 || counts_type == 2, "expertTokensCountOrCumsumFlag is neither 1 nor 2, and counts are given");
    need(x, !with_counts_before && !counts_before, "expertTokensBeforeCapacityOut goes with dropPadMode 1");
    need(x, is_vector(n, TD_ACL_INT32, n_experts), "expertTokensCountOrCumsumOut is not INT32 [expertNum]");
    route_args a = {n_experts, counts_type == 1};
    return standin_end(x, run_route, &a, sizeof a, 4096, ws, executor);
}
STANDIN_SECOND(aclnnMoeInitRoutingV2)

td_aclnn_status aclnnMoeInitRoutingV3GetWorkspaceSize(
    const td_acl_tensor *self, const td_acl_tensor *ids, const td_acl_tensor *scale, const td_acl_tensor *offset,
    int64_t active, int64_t capacity, int64_t n_experts, int64_t drop_pad_mode, int64_t counts_type, bool with_counts,
    int64_t quant_mode, const td_acl_int_array *expert_range, int64_t places_type, const td_acl_tensor *out,
    const td_acl_tensor *places, const td_acl_tensor *counts, const td_acl_tensor *out_scale, uint64_t *ws,
    td_acl_executor **executor) {
    td_acl_executor      *x = standin_begin("aclnnMoeInitRoutingV3", TF "moe/moe_init_routing_v3", self, ids, scale, offset,
                                            active, capacity, n_experts, drop_pad_mode, counts_type, with_counts, quant_mode,
                                            expert_range, places_type, out, places, counts, out_scale, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN), *i = standin_add(x, ids, "expertIdx", STANDIN_IN),
                         *s = standin_add(x, scale, "scaleOptional", STANDIN_OPTIONAL),
                         *o = standin_add(x, out, "expandedXOut", STANDIN_OUT),
                         *p = standin_add(x, places, "expandedRowIdxOut", STANDIN_OUT),
                         *n = standin_add(x, counts, "expertTokensCountOrCumsumOut", STANDIN_OUT),
                         *os = standin_add(x, out_scale, "expandedScaleOut", s ? STANDIN_OUT : STANDIN_OPTIONAL);
    need(x, standin_is_float(t->dtype) || t->dtype == TD_ACL_INT8, "x is none of FLOAT16, BFLOAT16, FLOAT, INT8");
    check_route(x, t, i, o, p, n_experts, drop_pad_mode);
    need(x, n_experts <= 10240, "expertNum is more than 10240");
    need(x, quant_mode == -1, "quantMode is not -1, the only one here (A2 has 0 and 1, too)");
    need(x, !offset, "offset is given, and nothing is quantised");
    need(x, active == standin_count(i), "activeNum is not rows * k, which all products take");
    need(x, capacity >= 0, "expertCapacity is negative");
    need(x, counts_type == 1 && with_counts, /* moe_init_routing_v3_tiling.cpp refuses 0, and no counts */
         "expertTokensNumType is not 1 (2 is not here), or without expertTokensNumFlag");
    need(x,
         expert_range && expert_range->alive && expert_range->n == 2 && expert_range->values[0] == 0 &&
             expert_range->values[1] == n_experts,
         "activeExpertRange is not [0, expertNum], the only one here");
    need(x, places_type == 0, "rowIdxType is not 0, the form that aclnnMoeFinalizeRoutingV2 takes");
    need(x, is_vector(n, TD_ACL_INT64, n_experts), "expertTokensCountOrCumsumOut is not INT64 [expertNum]");
    need(x, !s || is_vector(s, TD_ACL_FLOAT, t->view[0]), "scale is not FLOAT [rows]");
    need(x, !s || is_vector(os, TD_ACL_FLOAT, standin_count(i)), "expandedScaleOut is not FLOAT [rows * k]");
    route_args a = {n_experts, false};
    return standin_end(x, run_route, &a, sizeof a, 4096, ws, executor);
}
STANDIN_SECOND(aclnnMoeInitRoutingV3)

static void run_cumsum(const standin_call *c) {
    int64_t sum = 0;
    for (int64_t i = 0; i < standin_count(c->t[0]); i++) ((int64_t *)c->at[1])[i] = sum += ((const int64_t *)c->at[0])[i];
}

td_aclnn_status aclnnCumsumGetWorkspaceSize(const td_acl_tensor *self, int64_t dim, td_acl_dtype dtype, td_acl_tensor *out,
                                            uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnCumsum", "hicann/ops-math math/cumsum", self, dim, dtype, out, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "self", STANDIN_IN), *o = standin_add(x, out, "out", STANDIN_OUT);
    need(x, t->n_view == 1 && dim == 0 && is_vector(t, TD_ACL_INT64, standin_count(t)),
         "self is no vector of INT64, or dim not 0, which alone are here");
    need(x, dtype == TD_ACL_INT64 && is_vector(o, dtype, standin_count(t)), "out is not of dtype and self's shape");
    return standin_end(x, run_cumsum, NULL, 0, 1024, ws, executor);
}
STANDIN_SECOND(aclnnCumsum)

/* ---- products ---------------------------------------------------------------------------------- */

typedef struct {
    int64_t m, n, k, groups;
    bool    sums, nz;  /* the list holds sums; weights in NZ */
    int64_t per_group; /* of A16W4: inputs that share a scale */
} grouped_args;

enum {
    GROUPED_X,
    GROUPED_W,
    GROUPED_SCALE,
    GROUPED_ANTI_SCALE,
    GROUPED_ANTI_OFFSET,
    GROUPED_TOKEN_SCALE,
    GROUPED_LIST,
    GROUPED_OUT
};

/** Row where group g ends; rules of its list. */
static int64_t group_end(const standin_call *c, int list, int64_t g, int64_t begin, int64_t rows, bool sums,
                         const char *document) {
    int64_t value = ((const int64_t *)c->at[list])[g], end = sums ? value : begin + value;
    if (end < begin || end > rows)
        standin_refuse(document, "%s: group %lld has rows %lld to %lld of %lld", c->op, (long long)g, (long long)begin,
                       (long long)end, (long long)rows);
    return end;
}

static void store_int8_sum(const standin_call *c, const grouped_args *a, int64_t g, int64_t row, int64_t n, int32_t sum) {
    int64_t at = row * a->n + n;
    if (!c->t[GROUPED_SCALE]) {
        ((int32_t *)c->at[GROUPED_OUT])[at] = sum;
        return;
    }
    float v = (float)sum * standin_get(c->at[GROUPED_SCALE], TD_ACL_BF16, g * a->n + n);
    if (c->t[GROUPED_TOKEN_SCALE]) v *= ((const float *)c->at[GROUPED_TOKEN_SCALE])[row];
    standin_set(c->at[GROUPED_OUT], TD_ACL_BF16, at, v);
}

static void int8_row(const standin_call *c, const grouped_args *a, int64_t g, int64_t row) {
    const int8_t *x = (const int8_t *)c->at[GROUPED_X] + row * a->k, *w = c->at[GROUPED_W];
    int64_t       n_tiles = (a->n + 31) / 32, k_tiles = (a->k + 15) / 16;
    for (int64_t tile = 0; a->nz && tile < n_tiles; tile++) {
        int32_t sum[32];
        standin_tile_sums(x, w + g * n_tiles * k_tiles * 16 * 32, tile, a->k, sum);
        for (int64_t j = 0; j < 32 && tile * 32 + j < a->n; j++) store_int8_sum(c, a, g, row, tile * 32 + j, sum[j]);
    }
    for (int64_t n = 0; !a->nz && n < a->n; n++) {
        int32_t sum = 0;
        for (int64_t k = 0; k < a->k; k++) sum += x[k] * w[(g * a->k + k) * a->n + n];
        store_int8_sum(c, a, g, row, n, sum);
    }
}

/* A16W4: a weight is (code + offset) * scale, rounded to bf16, in which it is multiplied; sums are f32
 * (op_kernel/grouped_matmul_antiquant.h). */
static float int4_weight(const standin_call *c, const grouped_args *a, int64_t g, int64_t k, int64_t n) {
    int64_t i = (g * a->k + k) * a->n + n, at = (g * (a->k / a->per_group) + k / a->per_group) * a->n + n;
    float   w = ((float)standin_int4(c->at[GROUPED_W], i) + standin_get(c->at[GROUPED_ANTI_OFFSET], TD_ACL_BF16, at)) *
              standin_get(c->at[GROUPED_ANTI_SCALE], TD_ACL_BF16, at);
    return td_bf16_to_f32(td_f32_to_bf16(w));
}

/* The rows of one expert: each weight is made once. */
static void int4_rows(const standin_call *c, const grouped_args *a, int64_t g, int64_t first, int64_t end) {
    float *sum = calloc((size_t)((end - first) * a->n) + 1, sizeof *sum);
    for (int64_t k = 0; k < a->k && first < end; k++)
        for (int64_t n = 0; n < a->n; n++) {
            float w = int4_weight(c, a, g, k, n);
            for (int64_t r = first; r < end; r++)
                sum[(r - first) * a->n + n] += standin_get(c->at[GROUPED_X], TD_ACL_BF16, r * a->k + k) * w;
        }
    for (int64_t i = 0; i < (end - first) * a->n; i++)
        standin_set(c->at[GROUPED_OUT], TD_ACL_BF16, first * a->n + i, sum[i]);
    free(sum);
}

/* Rows behind the last group stay as they are. */
static void run_grouped(const standin_call *c) {
    const grouped_args *a = c->args;
    for (int64_t g = 0, row = 0; g < a->groups; g++) {
        int64_t end = group_end(c, GROUPED_LIST, g, row, a->m, a->sums, TF "gmm/grouped_matmul");
        if (a->per_group) int4_rows(c, a, g, row, end);
        for (; row < end && !a->per_group; row++) int8_row(c, a, g, row);
        row = end;
    }
}

/** The one tensor of a list; NULL: no list. */
static const td_acl_tensor *only(const td_acl_executor *x, const td_acl_tensor_list *list) {
    need(x, !list || list->alive, "a list of tensors is destroyed");
    need(x, !list || list->n == 1, "a list has not one tensor, as A8W8 wants it");
    return list ? list->tensors[0] : NULL;
}

static void check_weights(const td_acl_executor *x, const standin_tensor *w, const grouped_args *a) {
    need(x, w->n_view == 3 && w->view[1] == a->k && w->view[2] == a->n,
         "weight is not [E, K, N] with x's K and out's N (transposed ones are not here)");
    need(x, a->k < LAST_MAX && a->n < LAST_MAX, "K or N is 65536 or more");
    need(x, !a->nz || (a->n > 1 && a->k > 1), "NZ with n or k of 1 is not supported");
    need(x,
         !a->nz || (w->n_storage == 5 && w->storage[0] == w->view[0] && w->storage[1] == (a->n + 31) / 32 &&
                    w->storage[2] == (a->k + 15) / 16 && w->storage[3] == 16 && w->storage[4] == 32),
         "weight's storage is not [E, ceil(N / 32), ceil(K / 16), 16, 32]");
    need(x, a->nz || (w->format == TD_ACL_FORMAT_ND && standin_contiguous(w)), "weight is neither NZ nor contiguous ND");
}

/* Scenario A16W4, as op_host/op_api/aclnn_grouped_matmul.cpp checks it: groups of equal size, scale and offset of x's type. */
static void check_antiquant(const td_acl_executor *x, const standin_tensor *scale, const standin_tensor *offset,
                            const standin_tensor *w, const grouped_args *a) {
    need(x, !a->nz, "weight of INT4 is not ND, the format that goes with x of BFLOAT16");
    need(x, w->view[2] % 2 == 0, "the last axis of weight is not even");
    const standin_tensor *both[] = {scale, offset};
    for (size_t i = 0; i < 2; i++) {
        const standin_tensor *t = both[i];
        need(x, t->dtype == TD_ACL_BF16, "antiquantScale or antiquantOffset does not have x's dtype");
        need(x, t->n_view == 3 && t->view[0] == a->groups && t->view[2] == a->n && standin_contiguous(t),
             "antiquantScale or antiquantOffset is not [E, G, N] (per channel it is not here)");
        need(x, t->view[1] > 0 && a->k % t->view[1] == 0 && t->view[1] == scale->view[1],
             "antiquantScale's or antiquantOffset's groups do not divide K, or differ");
    }
}

td_aclnn_status aclnnGroupedMatmulV5GetWorkspaceSize(
    const td_acl_tensor_list *xs, const td_acl_tensor_list *weight, const td_acl_tensor_list *bias,
    const td_acl_tensor_list *scale, const td_acl_tensor_list *offset, const td_acl_tensor_list *antiquant_scale,
    const td_acl_tensor_list *antiquant_offset, const td_acl_tensor_list *token_scale, const td_acl_tensor *list,
    const td_acl_tensor_list *activation_in, const td_acl_tensor_list *activation_scale,
    const td_acl_tensor_list *activation_offset, int64_t split, int64_t group_axis, int64_t groups_type, int64_t activation,
    td_acl_int_array *tuning, td_acl_tensor_list *outs, td_acl_tensor_list *activation_out,
    td_acl_tensor_list *quant_scale_out, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnGroupedMatmulV5", TF "gmm/grouped_matmul", xs, weight, bias, scale, offset, antiquant_scale,
                      antiquant_offset, token_scale, list, activation_in, activation_scale, activation_offset, split,
                      group_axis, groups_type, activation, tuning, outs, activation_out, quant_scale_out, STANDIN_END);
    const standin_tensor *t = standin_add(x, only(x, xs), "x", STANDIN_IN),
                         *w = standin_add(x, only(x, weight), "weight", STANDIN_IN),
                         *s = standin_add(x, only(x, scale), "scale", STANDIN_OPTIONAL),
                         *as = standin_add(x, only(x, antiquant_scale), "antiquantScale", STANDIN_OPTIONAL),
                         *ao = standin_add(x, only(x, antiquant_offset), "antiquantOffset", STANDIN_OPTIONAL),
                         *ts = standin_add(x, only(x, token_scale), "perTokenScale", STANDIN_OPTIONAL),
                         *l = standin_add(x, list, "groupList", STANDIN_IN),
                         *o = standin_add(x, only(x, outs), "out", STANDIN_OUT);
    const bool int4 = t->dtype == TD_ACL_BF16 && w->dtype == TD_ACL_INT4;
    need(x, int4 || (t->dtype == TD_ACL_INT8 && w->dtype == TD_ACL_INT8),
         "x and weight are neither INT8 nor BFLOAT16 with INT4 (other scenarios are not here)");
    need(x, !bias && !offset && !tuning, "bias, offset and tuningConfig are not here");
    need(x, int4 || (!as && !ao), "antiquantScale or antiquantOffset is given, which A8W8 does not take");
    need(x, !int4 || (as && ao),
         "antiquantScale and antiquantOffset must not be null in antiquant"); /* aclnn_grouped_matmul.cpp */
    need(x, !int4 || (!s && !ts), "scale or perTokenScale is given in antiquant");
    need(x, group_axis == 0, "groupType is not 0, the only one of A8W8");
    need(x, groups_type == 0 || groups_type == 1, "groupListType is neither 0 nor 1 (2 is not here)");
    need(x, activation == 0, "actType is not 0 (others are not here)");
    need(x, t->n_view == 2 && o->n_view == 2 && o->view[0] == t->view[0], "x or out is not [M, .] of the same M");
    need(x, t->format == TD_ACL_FORMAT_ND && standin_contiguous(t) && standin_contiguous(o),
         "x is not ND (a transposed x is not supported), or x or out not contiguous");
    grouped_args a = {.m = t->view[0],
                      .n = o->view[1],
                      .k = t->view[1],
                      .groups = w->n_view ? w->view[0] : 0,
                      .per_group = int4 && as->n_view == 3 && as->view[1] > 0 ? t->view[1] / as->view[1] : 0,
                      .sums = groups_type == 0,
                      .nz = w->format == TD_ACL_FORMAT_FRACTAL_NZ};
    check_weights(x, w, &a);
    need(x, is_vector(l, TD_ACL_INT64, a.groups) && a.groups <= EXPERTS_MAX,
         "groupList is not INT64 with a value a group, or there are more than 1024 groups");
    need(x, !s || s->dtype == TD_ACL_BF16, "scale is not BFLOAT16, the one that goes with out of BFLOAT16");
    need(x, o->dtype == (s || int4 ? TD_ACL_BF16 : TD_ACL_INT32), "out is not BFLOAT16 with a scale, or not INT32 without");
    if (int4) check_antiquant(x, as, ao, w, &a);
    need(x, !s || (s->n_view == 2 && s->view[0] == a.groups && s->view[1] == a.n && standin_contiguous(s)),
         "scale is not [E, N]");
    need(x, !ts || (s && is_vector(ts, TD_ACL_FLOAT, a.m)), "perTokenScale is not FLOAT [M], or without scale");
    return standin_end(x, run_grouped, &a, sizeof a, 16384, ws, executor);
}
STANDIN_SECOND(aclnnGroupedMatmulV5)

/* ---- the middle -------------------------------------------------------------------------------- */

enum { MIDDLE_X, MIDDLE_SCALE, MIDDLE_TOKEN_SCALE, MIDDLE_LIST, MIDDLE_OUT, MIDDLE_OUT_SCALE };

/* Value i of row `row`, which is of group g and has 2 n: sums are scaled, floats are as they are. */
static float middle_value(const standin_call *c, int64_t g, int64_t row, int64_t n, int64_t i) {
    int64_t at = row * 2 * n + i;
    if (!c->t[MIDDLE_SCALE]) return standin_get(c->at[MIDDLE_X], c->t[MIDDLE_X]->dtype, at);
    return (float)((const int32_t *)c->at[MIDDLE_X])[at] * ((const float *)c->at[MIDDLE_SCALE])[g * 2 * n + i] *
           ((const float *)c->at[MIDDLE_TOKEN_SCALE])[row];
}

/* Rows behind the last group are anything: here they become codes of 127. */
static void run_middle(const standin_call *c) {
    const standin_tensor *t = c->t[MIDDLE_X];
    int64_t               rows = t->view[0], n = t->view[1] / 2, row = 0;
    float                *y = malloc((size_t)n * sizeof *y);
    for (int64_t g = 0; g < c->t[MIDDLE_LIST]->view[0]; g++) {
        int64_t end = group_end(c, MIDDLE_LIST, g, row, rows, false, NN "quant/dequant_swiglu_quant V2");
        for (; row < end; row++) {
            for (int64_t i = 0; i < n; i++) {
                float gate = middle_value(c, g, row, n, i);
                y[i] = gate / (1 + expf(-gate)) * middle_value(c, g, row, n, n + i);
            }
            ((float *)c->at[MIDDLE_OUT_SCALE])[row] = standin_quant_row(y, n, (int8_t *)c->at[MIDDLE_OUT] + row * n);
        }
    }
    memset((int8_t *)c->at[MIDDLE_OUT] + row * n, 127, (size_t)((rows - row) * n));
    for (; row < rows; row++) ((float *)c->at[MIDDLE_OUT_SCALE])[row] = NAN;
    free(y);
}

td_aclnn_status aclnnDequantSwigluQuantV2GetWorkspaceSize(
    const td_acl_tensor *self, const td_acl_tensor *weight_scale, const td_acl_tensor *token_scale,
    const td_acl_tensor *bias, const td_acl_tensor *quant_scale, const td_acl_tensor *quant_offset,
    const td_acl_tensor *list, bool activate_left, char *quant_mode, int64_t out_dtype, char *round_mode,
    int64_t activate_dim, int64_t swiglu_mode, double clamp_limit, double glu_alpha, double glu_bias,
    const td_acl_tensor *out, const td_acl_tensor *scale, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnDequantSwigluQuantV2", NN "quant/dequant_swiglu_quant V2", self, weight_scale, token_scale, bias,
                      quant_scale, quant_offset, list, activate_left, quant_mode, out_dtype, round_mode, activate_dim,
                      swiglu_mode, clamp_limit, glu_alpha, glu_bias, out, scale, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN);
    need(x, t->dtype == TD_ACL_INT32 || t->dtype == TD_ACL_BF16, "x is neither INT32 nor BFLOAT16, as A2 and A3 want it");
    bool                  sums = t->dtype == TD_ACL_INT32;
    int                   role = sums ? STANDIN_IN : STANDIN_OPTIONAL;
    const standin_tensor *w = standin_add(x, weight_scale, "weightScale, which x of INT32 wants,", role),
                         *ts = standin_add(x, token_scale, "activationScale", role),
                         *l = standin_add(x, list, "groupIndex, which A2 and A3 want,", STANDIN_IN),
                         *o = standin_add(x, out, "yOut", STANDIN_OUT), *s = standin_add(x, scale, "scaleOut", STANDIN_OUT);
    need(x, sums || (!w && !ts), "weightScale or activationScale is given, and x is not INT32");
    need(x, !bias && !quant_scale, "bias and smooth scales are not here");
    need(x, !quant_offset, "quantOffset is given, and quantMode is \"dynamic\"");
    need(x, activate_left, "activateLeft is false, which is not here");
    need(x, quant_mode && !strcmp(quant_mode, "dynamic"), "quantMode is not \"dynamic\", the only one here");
    need(x, out_dtype == TD_ACL_INT8, "dstType is not 2 (INT8), the only one of A2 and A3");
    need(x, !round_mode || !strcmp(round_mode, "rint"), "roundMode is neither null nor \"rint\"");
    need(x, activate_dim == -1, "activateDim is not -1, the only one of A2 and A3");
    need(x, swiglu_mode == 0, "swigluMode is not 0, the only one here");
    need(x, clamp_limit > 0 && isfinite(clamp_limit) && isfinite(glu_alpha) && isfinite(glu_bias),
         "clampLimit is not positive and finite, or gluAlpha or gluBias not finite");
    need(x, t->n_view == 2, "x has not two dimensions, as A2 and A3 want it");
    int64_t rows = t->view[0], wide = t->view[1];
    need(x, wide > 0 && wide % 64 == 0, "x's last dimension is no multiple of 64");
    need(x, wide <= SWIGLU_MAX, "x's last dimension is more than 7232, with groups");
    need(x, l->dtype == TD_ACL_INT64 && l->n_view == 1 && l->view[0] > 0 && standin_contiguous(l),
         "groupIndex is not INT64 of one dimension");
    need(x,
         !w || (w->dtype == TD_ACL_FLOAT && w->n_view == 2 && w->view[0] == l->view[0] && w->view[1] == wide &&
                standin_contiguous(w)),
         "weightScale is not FLOAT [groups, 2 H]");
    need(x, !ts || is_vector(ts, TD_ACL_FLOAT, rows), "activationScale is not FLOAT [rows]");
    need(x, o->dtype == TD_ACL_INT8 && o->n_view == 2 && o->view[0] == rows && o->view[1] * 2 == wide,
         "yOut is not INT8 [rows, H]");
    need(x, is_vector(s, TD_ACL_FLOAT, rows), "scaleOut is not FLOAT [rows]");
    need(x, standin_contiguous(t) && standin_contiguous(o), "x or yOut is not contiguous");
    return standin_end(x, run_middle, NULL, 0, 512, ws, executor);
}
STANDIN_SECOND(aclnnDequantSwigluQuantV2)

/* ---- products and middle in one ------------------------------------------------------------------ */

enum { GATE_UP_X, GATE_UP_W, GATE_UP_SCALE, GATE_UP_TOKEN_SCALE, GATE_UP_LIST, GATE_UP_OUT, GATE_UP_OUT_SCALE };

/* Rows behind the last group stay as they are. The list holds sums. */
static void run_gate_up(const standin_call *c) {
    int64_t      rows = c->t[GATE_UP_X]->view[0], k = c->t[GATE_UP_X]->view[1], n = c->t[GATE_UP_SCALE]->view[1], row = 0;
    float       *y = malloc((size_t)n * sizeof *y);
    const float *token = c->at[GATE_UP_TOKEN_SCALE];
    for (int64_t g = 0; g < c->t[GATE_UP_LIST]->view[0]; g++) {
        const int8_t *w = (const int8_t *)c->at[GATE_UP_W] + g * k * n;
        int64_t       end = group_end(c, GATE_UP_LIST, g, row, rows, true, TF "gmm/grouped_matmul_swiglu_quant");
        for (; row < end; row++) {
            for (int64_t tile = 0; tile < n / 32; tile++) {
                int32_t sum[32];
                standin_tile_sums((const int8_t *)c->at[GATE_UP_X] + row * k, w, tile, k, sum);
                for (int64_t j = 0; j < 32; j++)
                    y[tile * 32 + j] = (float)sum[j] * token[row] *
                                       standin_get(c->at[GATE_UP_SCALE], c->t[GATE_UP_SCALE]->dtype, g * n + tile * 32 + j);
            }
            for (int64_t i = 0; i < n / 2; i++) y[i] = y[i] / (1 + expf(-y[i])) * y[n / 2 + i];
            ((float *)c->at[GATE_UP_OUT_SCALE])[row] =
                standin_quant_row(y, n / 2, (int8_t *)c->at[GATE_UP_OUT] + row * (n / 2));
        }
    }
    free(y);
}

/* The document has 5 dimensions for the weight; the published code takes a view of 3 over such a storage, too, which is
 * refused here. */
td_aclnn_status aclnnGroupedMatmulSwigluQuantWeightNZGetWorkspaceSize(
    const td_acl_tensor *self, const td_acl_tensor *weight, const td_acl_tensor *bias, const td_acl_tensor *offset,
    const td_acl_tensor *weight_scale, const td_acl_tensor *token_scale, const td_acl_tensor *list, td_acl_tensor *out,
    td_acl_tensor *scale, td_acl_tensor *out_offset, uint64_t *ws, td_acl_executor **executor) {
    td_acl_executor *x =
        standin_begin("aclnnGroupedMatmulSwigluQuantWeightNZ", TF "gmm/grouped_matmul_swiglu_quant", self, weight, bias,
                      offset, weight_scale, token_scale, list, out, scale, out_offset, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "x", STANDIN_IN), *w = standin_add(x, weight, "weight", STANDIN_IN),
                         *s = standin_add(x, weight_scale, "weightScale", STANDIN_IN),
                         *ts = standin_add(x, token_scale, "xScale", STANDIN_IN),
                         *l = standin_add(x, list, "groupList", STANDIN_IN), *o = standin_add(x, out, "output", STANDIN_OUT),
                         *os = standin_add(x, scale, "outputScale", STANDIN_OUT);
    need(x, t->dtype == TD_ACL_INT8 && w->dtype == TD_ACL_INT8, "x or weight is not INT8 (A8W4 is not here)");
    need(x, !bias, "bias is given, which A8W8 does not take");
    need(x, t->n_view == 2 && s->n_view == 2, "x is not [M, K], or weightScale not [E, N]");
    int64_t rows = t->view[0], k = t->view[1], groups = s->view[0], n = s->view[1];
    need(x, k < LAST_MAX, "K is 65536 or more");
    need(x, n <= GATE_UP_MAX, "N is more than 10240");
    need(x, n % 32 == 0 && k % 16 == 0 && n > 0 && k > 0, "N is no multiple of 32, or K none of 16: tiles are whole");
    need(x,
         w->format == TD_ACL_FORMAT_FRACTAL_NZ && w->n_view == 5 && w->view[0] == groups && w->view[1] == n / 32 &&
             w->view[2] == k / 16 && w->view[3] == 16 && w->view[4] == 32 && standin_contiguous(w),
         "weight is not NZ of [E, N / 32, K / 16, 16, 32]");
    need(x, standin_is_float(s->dtype), "weightScale is none of FLOAT, FLOAT16, BFLOAT16");
    need(x, is_vector(ts, TD_ACL_FLOAT, rows), "xScale is not FLOAT [M]");
    need(x, is_vector(l, TD_ACL_INT64, groups), "groupList is not INT64 with a value for each of weight's groups");
    need(x, o->dtype == TD_ACL_INT8 && o->n_view == 2 && o->view[0] == rows && o->view[1] * 2 == n,
         "output is not INT8 [M, N / 2]");
    need(x, is_vector(os, TD_ACL_FLOAT, rows), "outputScale is not FLOAT [M]");
    need(x, standin_contiguous(t) && standin_contiguous(s) && standin_contiguous(o),
         "x, weightScale or output is not contiguous");
    return standin_end(x, run_gate_up, NULL, 0, 16384, ws, executor);
}
STANDIN_SECOND(aclnnGroupedMatmulSwigluQuantWeightNZ)

/* ---- back from the experts --------------------------------------------------------------------- */

enum { BACK_X, BACK_PLACES, BACK_WEIGHTS, BACK_OUT };

static void run_back(const standin_call *c) {
    const standin_tensor *x = c->t[BACK_X], *w = c->t[BACK_WEIGHTS];
    int64_t               rows = w->view[0], k = w->view[1], h = x->view[1];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < h; i++) {
            float sum = 0;
            for (int64_t j = 0; j < k; j++) {
                int64_t place = ((const int32_t *)c->at[BACK_PLACES])[r * k + j];
                if (place < 0 || place >= rows * k)
                    standin_refuse(TF "moe/moe_finalize_routing_v2", "%s: expandedRowIdx has %lld of %lld", c->op,
                                   (long long)place, (long long)(rows * k));
                sum += standin_get(c->at[BACK_WEIGHTS], w->dtype, r * w->strides[0] + j * w->strides[1]) *
                       standin_get(c->at[BACK_X], x->dtype, place * x->strides[0] + i * x->strides[1]);
            }
            standin_set(c->at[BACK_OUT], c->t[BACK_OUT]->dtype, r * h + i, sum);
        }
}

td_aclnn_status aclnnMoeFinalizeRoutingV2GetWorkspaceSize(const td_acl_tensor *self, const td_acl_tensor *places,
                                                          const td_acl_tensor *x1, const td_acl_tensor *x2,
                                                          const td_acl_tensor *bias, const td_acl_tensor *weights,
                                                          const td_acl_tensor *ids, int64_t drop_pad_mode,
                                                          const td_acl_tensor *out, uint64_t *ws,
                                                          td_acl_executor **executor) {
    td_acl_executor *x = standin_begin("aclnnMoeFinalizeRoutingV2", TF "moe/moe_finalize_routing_v2", self, places, x1, x2,
                                       bias, weights, ids, drop_pad_mode, out, STANDIN_END);
    const standin_tensor *t = standin_add(x, self, "expandedX", STANDIN_IN),
                         *p = standin_add(x, places, "expandedRowIdx", STANDIN_IN),
                         *w = standin_add(x, weights, "scales", STANDIN_IN), *o = standin_add(x, out, "out", STANDIN_OUT);
    need(x, !x1 && !x2 && !bias && !ids, "x1, x2, bias and expertIdx are not here");
    need(x, drop_pad_mode == 2, "dropPadMode is not 2, which goes with the places of aclnnMoeInitRoutingV2");
    need(x, standin_is_float(t->dtype) && o->dtype == t->dtype, "expandedX is no float, or out not of its dtype");
    need(x, w->dtype == t->dtype || (w->dtype == TD_ACL_FLOAT && t->dtype == TD_ACL_BF16),
         "scales are not of expandedX's dtype, nor FLOAT with BFLOAT16");
    need(x, w->n_view == 2 && standin_count(w) > 0, "scales are not [rows, k], or empty");
    need(x, t->n_view == 2 && t->view[0] == standin_count(w), "expandedX is not [rows * k, H]");
    need(x, is_vector(p, TD_ACL_INT32, standin_count(w)), "expandedRowIdx is not INT32 [rows * k]");
    need(x, o->n_view == 2 && o->view[0] == w->view[0] && o->view[1] == t->view[1] && standin_contiguous(o),
         "out is not [rows, H], or not contiguous");
    return standin_end(x, run_back, NULL, 0, 1024, ws, executor);
}
STANDIN_SECOND(aclnnMoeFinalizeRoutingV2)
