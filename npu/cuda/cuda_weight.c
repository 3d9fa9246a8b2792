#include "npu/cuda/cuda_weight.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/math/small_float.h"
#include "core/memory/mem.h"
#include "kernels/rows/convert.h"
#include "npu/card/card_weight.h"
#include "npu/cuda/cuda_pack.h"
#include "quant/coded_matrix.h"

#define ALIGNMENT 256

/** Where the parts of a weight lie, in bytes. */
typedef struct {
    size_t scale, zero, factor, all;
} layout;

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
    size_t groups = td_weight_is_grouped(format) ? n * td_div_up(k, g->size) : 0,
           scales = td_weight_is_grouped(format) ? groups * td_dtype_bytes(g->scale_dtype)
                                                 : (format == TD_WEIGHT_W8A8 ? n * sizeof(float) : 0);
    l.zero = l.scale + td_round_up(scales, ALIGNMENT);
    l.factor = l.zero + td_round_up(g->zero_points ? groups : 0, ALIGNMENT);
    l.all = l.factor + td_round_up(format == TD_WEIGHT_FP4G ? n * sizeof(float) : 0, ALIGNMENT);
    return l;
}

size_t td_cuda_weight_bytes(td_npu *d, td_weight_format format, uint32_t group, size_t n, size_t k) {
    td_gemm_groups groups = td_weight_largest_groups(format, group);
    (void)d;
    return lay_out(format, &groups, n, k).all;
}

/* ---- creating ---------------------------------------------------------------------------------- */

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
    size_t groups = td_div_up(w->shape.k, w->groups.size), k = groups * w->groups.size,
           scale_bytes = td_dtype_bytes(w->groups.scale_dtype);
    uint8_t  *codes = malloc(k + groups);
    float    *scale = malloc((groups + 1) * sizeof *scale);
    td_status st = codes && scale ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for a weight's row");
    for (size_t r = 0; r < w->shape.n && st == TD_OK; r++) {
        uint8_t        *zero = codes + k;
        float          *factor = (float *)(void *)(host + l->factor) + r;
        td_gemm_weights row = {.rows = codes,
                               .scale = scale,
                               .zero = zero,
                               .factor = w->shape.format == TD_WEIGHT_FP4G ? factor : scale + groups};
        memset(zero, 8, groups);
        if (!td_coded_tile_row(m, r, &w->groups, k, &row)) {
            st = td_fail(err, TD_EFORMAT,
                         "a weight has a scale that is no positive number, or a zero where the checkpoint says it has none");
            break;
        }
        td_cuda_pack_codes(codes, k, w->shape.format == TD_WEIGHT_FP4G,
                           (uint8_t *)host + r * row_bytes(w->shape.format, w->shape.k));
        for (size_t g = 0; g < groups; g++)
            put_scale(w->groups.scale_dtype, scale[g], host + l->scale + (r * groups + g) * scale_bytes);
        if (w->groups.zero_points) memcpy(host + l->zero + r * groups, zero, groups);
    }
    free(codes);
    free(scale);
    return st;
}

static td_status convert(const td_npu_weight *w, const td_tensor_view *src, const layout *l, char *host, td_error *err) {
    const td_weight_shape *shape = &w->shape;
    if (td_weight_is_grouped(shape->format)) return convert_groups(w, src->coded, l, host, err);
    if (shape->format != TD_WEIGHT_W8A8) return td_card_weight_floats(shape, src, host, err);
    return td_card_weight_int8(shape, src, (int8_t *)host, td_cuda_row_codes(shape->k), (float *)(void *)(host + l->scale),
                               err);
}

td_status td_cuda_weight_create(td_npu *base, td_weight_format format, const td_tensor_view *src, td_npu_weight **out,
                                td_error *err) {
    td_cuda_npu    *d = (td_cuda_npu *)base;
    td_gemm_groups  groups = {0};
    td_weight_shape shape;
    *out = NULL;
    TD_TRY(td_card_enter(&d->base));
    TD_TRY(td_weight_check_source(format, src, &shape, &groups, err));
    td_npu_weight *w = calloc(1, sizeof *w);
    if (!w) return td_fail(err, TD_ENOMEM, "out of memory for a weight");
    *w = (td_npu_weight){.shape = shape, .groups = groups};
    layout    l = lay_out(format, &groups, shape.n, shape.k);
    char     *host = calloc(1, l.all);
    td_status st = host ? convert(w, src, &l, host, err) : TD_OK;
    if (st == TD_OK)
        st = td_card_send(&d->base, host, l.all, "a weight", (void **)&w->data, err);
    else
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
