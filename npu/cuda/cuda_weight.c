#include "npu/cuda/cuda_weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/math/small_float.h"
#include "core/memory/mem.h"
#include "kernels/rows/convert.h"
#include "npu/cuda/cuda_pack.h"
#include "quant/coded_matrix.h"
#include "quant/weight_quant.h"

#define DIM_MAX ((size_t)1 << 22)
#define ALIGNMENT 256
#define BF16_MULTIPLE 8 /* of k: kernels load 16 bytes at a time */

/** Where the parts of a weight lie, in bytes. */
typedef struct {
    size_t scale, zero, factor, all;
} layout;

static bool is_grouped(td_weight_format format) {
    return format == TD_WEIGHT_INT4G || format == TD_WEIGHT_FP4G;
}

static size_t row_bytes(td_weight_format format, size_t k) {
    switch (format) {
        case TD_WEIGHT_W8A8: return td_cuda_row_codes(k);
        case TD_WEIGHT_BF16: return k * sizeof(td_bf16);
        case TD_WEIGHT_F32: return k * sizeof(float);
        default: return td_cuda_packed_bytes(k);
    }
}

static layout lay_out(td_weight_format format, const td_gemm_groups *g, size_t n, size_t k) {
    layout l = {.scale = td_round_up(n * row_bytes(format, k), ALIGNMENT)};
    size_t groups = is_grouped(format) ? n * td_div_up(k, g->size) : 0,
           scales = is_grouped(format) ? groups * td_dtype_bytes(g->scale_dtype)
                                       : (format == TD_WEIGHT_W8A8 ? n * sizeof(float) : 0);
    l.zero = l.scale + td_round_up(scales, ALIGNMENT);
    l.factor = l.zero + td_round_up(g->zero_points ? groups : 0, ALIGNMENT);
    l.all = l.factor + td_round_up(format == TD_WEIGHT_FP4G ? n * sizeof(float) : 0, ALIGNMENT);
    return l;
}

size_t td_cuda_weight_bytes(td_npu *d, td_weight_format format, size_t n, size_t k) {
    static const td_gemm_groups NONE = {0}, INT4G_LARGEST = {.size = 32, .scale_dtype = TD_DT_F32, .zero_points = true},
                                FP4G_LARGEST = {.size = 16, .scale_dtype = TD_DT_F8_E4M3};
    (void)d;
    return lay_out(format,
                   format == TD_WEIGHT_INT4G  ? &INT4G_LARGEST
                   : format == TD_WEIGHT_FP4G ? &FP4G_LARGEST
                                              : &NONE,
                   n, k)
        .all;
}

/* ---- creating ---------------------------------------------------------------------------------- */

static td_status check_source(td_weight_format format, const td_tensor_view *src, td_gemm_groups *groups, td_error *err) {
    bool real = src->dtype == TD_DT_F32 || src->dtype == TD_DT_BF16 || src->dtype == TD_DT_F16;
    if (src->rank < 1 || src->rank > 2) return td_fail(err, TD_EINVAL, "a weight has rank 1 or 2, not %u", src->rank);
    for (uint32_t i = 0; i < src->rank; i++)
        if (src->shape[i] == 0 || src->shape[i] > DIM_MAX)
            return td_fail(err, TD_EINVAL, "a weight's sides are 1 to %zu, not %zu", DIM_MAX, src->shape[i]);
    if (is_grouped(format)) {
        td_coded_tiles wanted = format == TD_WEIGHT_INT4G ? TD_CODED_INT4G : TD_CODED_FP4G;
        if (src->rank != 2 || !src->coded || src->coded->n != src->shape[0] || src->coded->k != src->shape[1] ||
            td_coded_exact_tiles(src->coded, groups) != wanted)
            return td_fail(err, TD_ENOTSUP, "a weight in groups is made from a checkpoint's codes of its kind");
        return TD_OK;
    }
    if (!src->data) return td_fail(err, TD_ENOTSUP, "codes are taken by weights in groups only");
    if (format != TD_WEIGHT_W8A8)
        return real ? TD_OK : td_fail(err, TD_ENOTSUP, "a bf16 or f32 weight is made from f32, bf16 or f16");
    if (src->rank != 2) return td_fail(err, TD_EINVAL, "a W8A8 weight has rank 2");
    if (src->shape[1] > TD_INT8C_K_MAX)
        return td_fail(err, TD_ENOTSUP, "a W8A8 weight has at most %d inputs, not %zu", TD_INT8C_K_MAX, src->shape[1]);
    if (!real && !(src->dtype == TD_DT_I8 && src->scale))
        return td_fail(err, TD_ENOTSUP, "a W8A8 weight is made from f32, bf16, f16, or int8 with scales");
    return TD_OK;
}

static void put_scale(td_dtype dtype, float v, char *at) {
    td_bf16 half = dtype == TD_DT_F16 ? td_f32_to_f16(v) : td_f32_to_bf16(v);
    switch (dtype) {
        case TD_DT_F8_E8M0: *(uint8_t *)at = td_f32_to_e8m0_floor(v); break;
        case TD_DT_F8_E4M3: *(uint8_t *)at = td_f32_to_e4m3(v); break;
        case TD_DT_F32: memcpy(at, &v, sizeof v); break;
        default: memcpy(at, &half, sizeof half); break;
    }
}

/* Code by code: nothing is rounded. */
static td_status convert_groups(const td_npu_weight *w, const td_coded_matrix *m, const layout *l, char *host,
                                td_error *err) {
    size_t groups = td_div_up(w->k, w->groups.size), k = groups * w->groups.size,
           scale_bytes = td_dtype_bytes(w->groups.scale_dtype);
    uint8_t  *codes = malloc(k + groups);
    float    *scale = malloc((groups + 1) * sizeof *scale);
    td_status st = codes && scale ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for a weight's row");
    for (size_t r = 0; r < w->n && st == TD_OK; r++) {
        uint8_t        *zero = codes + k;
        float          *factor = (float *)(void *)(host + l->factor) + r;
        td_gemm_weights row = {
            .rows = codes, .scale = scale, .zero = zero, .factor = w->format == TD_WEIGHT_FP4G ? factor : scale + groups};
        memset(zero, 8, groups);
        if (!td_coded_tile_row(m, r, &w->groups, k, &row)) {
            st = td_fail(err, TD_EFORMAT,
                         "a weight has a scale that is no positive number, or a zero where the checkpoint says it has none");
            break;
        }
        td_cuda_pack_codes(codes, k, w->format == TD_WEIGHT_FP4G, (uint8_t *)host + r * row_bytes(w->format, w->k));
        for (size_t g = 0; g < groups; g++)
            put_scale(w->groups.scale_dtype, scale[g], host + l->scale + (r * groups + g) * scale_bytes);
        if (w->groups.zero_points) memcpy(host + l->zero + r * groups, zero, groups);
    }
    free(codes);
    free(scale);
    return st;
}

static td_status not_finite(td_error *err) {
    return td_fail(err, TD_EFORMAT, "a weight holds an infinity or a NaN");
}

static td_status convert_codes(const td_npu_weight *w, const td_tensor_view *src, const layout *l, char *host,
                               td_error *err) {
    size_t stride = td_cuda_row_codes(w->k);
    float *scale = (float *)(void *)(host + l->scale);
    if (src->dtype != TD_DT_I8)
        return td_quantize_weight_i8(src->dtype, src->data, w->n, w->k, (int8_t *)host, stride, scale) ? TD_OK
                                                                                                       : not_finite(err);
    for (size_t r = 0; r < w->n; r++) memcpy(host + r * stride, (const char *)src->data + r * w->k, w->k);
    memcpy(scale, src->scale, w->n * sizeof *scale);
    return TD_OK;
}

static td_status convert_floats(const td_npu_weight *w, const td_tensor_view *src, char *host, td_error *err) {
    size_t   n = w->n * w->k, from = td_dtype_bytes(src->dtype);
    td_dtype to = w->format == TD_WEIGHT_F32 ? TD_DT_F32 : TD_DT_BF16;
    float    some[256];
    for (size_t i = 0; i < n; i += 256) {
        size_t m = n - i < 256 ? n - i : 256;
        td_to_f32(src->dtype, (const char *)src->data + i * from, m, some);
        td_from_f32(to, some, m, host + i * td_dtype_bytes(to));
    }
    return isfinite(td_amax(to, host, n)) ? TD_OK : not_finite(err);
}

static td_status convert(const td_npu_weight *w, const td_tensor_view *src, const layout *l, char *host, td_error *err) {
    if (is_grouped(w->format)) return convert_groups(w, src->coded, l, host, err);
    return w->format == TD_WEIGHT_W8A8 ? convert_codes(w, src, l, host, err) : convert_floats(w, src, host, err);
}

td_status td_cuda_weight_create(td_npu *base, td_weight_format format, const td_tensor_view *src, td_npu_weight **out,
                                td_error *err) {
    td_cuda_npu   *d = (td_cuda_npu *)base;
    td_gemm_groups groups = {0};
    *out = NULL;
    TD_TRY(td_card_enter(&d->base));
    TD_TRY(check_source(format, src, &groups, err));
    td_npu_weight *w = calloc(1, sizeof *w);
    if (!w) return td_fail(err, TD_ENOMEM, "out of memory for a weight");
    *w = (td_npu_weight){.format = format,
                         .rank = src->rank,
                         .n = src->rank == 2 ? src->shape[0] : 1,
                         .k = src->shape[src->rank - 1],
                         .groups = groups};
    layout    l = lay_out(format, &groups, w->n, w->k);
    char     *host = calloc(1, l.all);
    td_status st = host ? convert(w, src, &l, host, err) : td_fail(err, TD_ENOMEM, "out of memory for a weight");
    if (st == TD_OK) st = td_card_take(&d->base, l.all, (void **)&w->data, err);
    if (st == TD_OK) st = td_card_upload(&d->base, w->data, host, l.all, err);
    free(host);
    if (st != TD_OK) {
        td_cuda_weight_destroy(base, w);
        return st;
    }
    w->scale = w->data + l.scale;
    w->zero = groups.zero_points ? w->data + l.zero : NULL;
    w->factor = format == TD_WEIGHT_FP4G ? w->data + l.factor : NULL;
    *out = w;
    return TD_OK;
}

void td_cuda_weight_destroy(td_npu *base, td_npu_weight *w) {
    td_cuda_npu *d = (td_cuda_npu *)base;
    if (!w || td_card_enter(&d->base) != TD_OK) return;
    td_card_give(&d->base, w->data);
    free(w);
}

/* ---- what blocks need -------------------------------------------------------------------------- */

td_status td_cuda_need_linear(const td_npu_weight *w, size_t n, size_t k, const char *what, td_error *err) {
    if (!w) return td_fail(err, TD_EINVAL, "the weight %s is missing", what);
    if (w->rank != 2 || w->n != n || w->k != k)
        return td_fail(err, TD_EINVAL, "the weight %s is %zu x %zu, not %zu x %zu", what, w->n, w->k, n, k);
    if (w->format == TD_WEIGHT_F32)
        return td_fail(err, TD_ENOTSUP, "the weight %s is f32, which the card does not multiply rows with", what);
    if (w->format == TD_WEIGHT_BF16 && k % BF16_MULTIPLE)
        return td_fail(err, TD_ENOTSUP, "the weight %s is bf16 and has %zu inputs; the card takes multiples of %d", what, k,
                       BF16_MULTIPLE);
    return TD_OK;
}

td_status td_cuda_need_vector(const td_npu_weight *w, size_t k, bool optional, const char *what, td_error *err) {
    if (!w && optional) return TD_OK;
    if (!w) return td_fail(err, TD_EINVAL, "the weight %s is missing", what);
    if (w->format != TD_WEIGHT_F32 || w->n != 1 || w->k != k)
        return td_fail(err, TD_EINVAL, "the weight %s must be a vector of %zu f32, not %zu x %zu", what, k, w->n, w->k);
    return TD_OK;
}

td_status td_cuda_need_rows(const td_npu_weight *w, td_weight_format format, size_t n, size_t k, const char *what,
                            td_error *err) {
    if (!w) return td_fail(err, TD_EINVAL, "the weight %s is missing", what);
    if (w->format != format || w->k != k || (n && w->n != n))
        return td_fail(err, TD_EINVAL, "the weight %s must be %s with rows of %zu", what,
                       format == TD_WEIGHT_F32 ? "f32" : "bf16", k);
    return TD_OK;
}

td_status td_cuda_need_int8(td_rows_i8 given, const td_npu_weight *const *w, size_t n, const char *what, td_error *err) {
    for (size_t i = 0; given.q && i < n; i++)
        if (!td_weight_takes_int8(w[i]->format))
            return td_fail(err, TD_EINVAL, "%s cannot take rows that are quantised already", what);
    return TD_OK;
}
