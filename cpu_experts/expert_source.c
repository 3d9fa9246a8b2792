/* Filling a layer from matrices that are given one at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "cpu_experts/expert_state.h"
#include "kernels/rows/convert.h"
#include "quant/coded_matrix.h"
#include "quant/weight_quant.h"

static const char *const NAMES[TD_EXPERT_MATRICES] = {"gate_proj", "up_proj", "down_proj"};

static td_status check_view(const td_tensor_view *v, size_t n, size_t k, td_expert_matrix m, size_t expert, td_error *err) {
    if (!v->coded && v->dtype != TD_DT_BF16 && v->dtype != TD_DT_F16 && v->dtype != TD_DT_F32)
        return td_fail(err, TD_ENOTSUP, "%s of expert %zu is neither bf16, f16 nor f32", NAMES[m], expert);
    if (v->rank != 2 || v->shape[0] != n || v->shape[1] != k || !(v->data || v->coded))
        return td_fail(err, TD_EINVAL, "%s of expert %zu should have shape [%zu, %zu]", NAMES[m], expert, n, k);
    return TD_OK;
}

static td_status check_bias(const td_tensor_view *v, size_t n, bool wanted, td_expert_matrix m, size_t expert,
                            td_error *err) {
    if (!wanted)
        return v->data ? td_fail(err, TD_EINVAL, "%s of expert %zu has a bias, which this model has not", NAMES[m], expert)
                       : TD_OK;
    if (!v->data || v->rank != 1 || v->shape[0] != n)
        return td_fail(err, TD_EINVAL, "the bias of %s of expert %zu should have shape [%zu]", NAMES[m], expert, n);
    if (v->coded || (v->dtype != TD_DT_BF16 && v->dtype != TD_DT_F16 && v->dtype != TD_DT_F32))
        return td_fail(err, TD_ENOTSUP, "the bias of %s of expert %zu is neither bf16, f16 nor f32", NAMES[m], expert);
    return TD_OK;
}

/* n rows [n, cols] to nearest, or as they are to bf16. @param factor of fp4g @param tmp [cols] f32, not w. */
static bool round_rows(const td_experts *x, td_dtype dtype, const void *w, size_t n, size_t cols, size_t k, float factor,
                       const td_gemm_weights *out, float *tmp) {
    const td_expert_groups *g = &x->layout.groups;
    switch (x->config.format) {
        case TD_EXPERT_INT4C: return td_quantize_weight_i4(dtype, w, n, cols, out->rows, k, out->scale);
        case TD_EXPERT_INT8C: return td_quantize_weight_i8(dtype, w, n, cols, out->rows, k, out->scale);
        case TD_EXPERT_INT4G:
            return td_quantize_weight_i4_groups(dtype, w, n, cols, g->size, g->scale_dtype, out->rows, k, out->scale, tmp);
        case TD_EXPERT_FP4G:
            for (size_t r = 0; r < n; r++) out->factor[r] = factor;
            return td_quantize_weight_fp4_groups(dtype, w, n, cols, g->size, g->scale_dtype, factor, out->rows, k,
                                                 out->scale, tmp);
        case TD_EXPERT_BF16: break;
    }
    td_bf16 *rows = out->rows;
    bool     finite = true;
    for (size_t r = 0; r < n; r++, rows += k) {
        const char *row = (const char *)w + r * cols * td_dtype_bytes(dtype);
        if (dtype == TD_DT_BF16) {
            memcpy(rows, row, cols * sizeof *rows);
        } else {
            td_to_f32(dtype, row, cols, tmp);
            td_f32_to_bf16_n(tmp, cols, rows);
        }
        memset(rows + cols, 0, (k - cols) * sizeof *rows);
        finite = finite && isfinite(td_amax(TD_DT_BF16, rows, cols));
    }
    return finite;
}

/* One row code by code, of a matrix that the format carries. Beyond its columns: weights of 0. */
static bool carry_row(const td_experts *x, const td_coded_matrix *m, size_t row, size_t k, const td_gemm_weights *out) {
    td_expert_format format = x->config.format;
    if (td_expert_has_groups(format)) return td_coded_tile_row(m, row, &x->layout.groups, k, out);
    uint8_t *codes = out->rows, offset = m->codes == TD_CODES_INT8 ? 0 : (uint8_t)(1u << (m->bits - 1));
    bool     zeros_ok = !td_coded_is_unsigned(m) || td_coded_zeros(m, row, out->zero),
         scales_ok = td_coded_scales(m, row, out->scale);
    td_coded_codes(m, row, 0, m->k, codes);
    for (size_t i = 0; i < m->k; i++) codes[i] = (uint8_t)(codes[i] - offset);
    memset(codes + m->k, 0, k - m->k);
    return zeros_ok && scales_ok;
}

static bool coded_rows(const td_experts *x, const td_coded_matrix *m, size_t row, size_t n, size_t k, float factor,
                       const td_gemm_weights *out, void *tmp) {
    size_t n_scales = td_expert_has_groups(x->config.format) ? k / x->layout.groups.size : 1,
           element = td_gemm_element((td_product)x->config.format);
    bool   carried = td_expert_format_carries(x->config.format, &x->layout.groups, m), ok = true;
    float *decoded = tmp;
    for (size_t r = 0; r < n; r++) {
        td_gemm_weights one = {.rows = (char *)out->rows + r * k * element,
                               .scale = out->scale + r * n_scales,
                               .zero = out->zero + r * n_scales,
                               .factor = out->factor + r};
        if (carried)
            ok = carry_row(x, m, row + r, k, &one) && ok;
        else
            ok = td_coded_row(m, row + r, decoded) &&
                 round_rows(x, TD_DT_F32, decoded, 1, m->k, k, factor, &one, decoded + k) && ok;
    }
    return ok;
}

/* The largest weight of a coded matrix; NaN where a scale is none. */
static float coded_amax(const td_coded_matrix *m, float *row) {
    float amax = 0;
    for (size_t r = 0; r < m->n; r++) {
        if (!td_coded_row(m, r, row)) return NAN;
        float a = td_amax(TD_DT_F32, row, m->k);
        if (!(a <= amax)) amax = a;
        if (isnan(amax)) return NAN;
    }
    return amax;
}

/* NVFP4 has a factor for each matrix, which its largest weight decides. @param row [k] f32 */
static float factor_of(const td_experts *x, const td_tensor_view *v, float *row) {
    if (x->config.format != TD_EXPERT_FP4G || x->layout.groups.scale_dtype != TD_DT_F8_E4M3) return 1;
    if (!v->coded) return td_fp4_factor(td_amax(v->dtype, v->data, v->shape[0] * v->shape[1]));
    if (td_expert_format_carries(TD_EXPERT_FP4G, &x->layout.groups, v->coded)) return 1;
    return td_fp4_factor(coded_amax(v->coded, row));
}

/* The matrix that a worker is packing. */
typedef struct {
    size_t           expert; /* SIZE_MAX: none yet */
    td_expert_matrix m;
    td_tensor_view   view;
    float            factor; /* of fp4g */
    void            *buffer;
    td_status        status; /* of the first that could not be had */
    td_error         err;
} taken_matrix;

typedef struct {
    const td_experts       *x;
    const td_expert_source *source;
    taken_matrix           *taken; /* [workers] */
} taking;

static void leave(const taking *t, const taken_matrix *w) {
    if (w->expert != SIZE_MAX && w->status == TD_OK && t->source->leave) t->source->leave(t->source->ctx, w->expert, w->m);
}

static void take(const taking *t, size_t expert, td_expert_matrix m, taken_matrix *w, float *row) {
    const expert_layout *l = &t->x->layout;
    leave(t, w);
    w->expert = expert;
    w->m = m;
    w->status = t->source->take(t->source->ctx, expert, m, w->buffer, &w->view, &w->err);
    if (w->status == TD_OK)
        w->status = check_view(&w->view, expert_matrix_rows(l, m), expert_matrix_cols(l, m), m, expert, &w->err);
    if (w->status == TD_OK) w->factor = factor_of(t->x, &w->view, row);
}

static bool rows_of_taken(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, size_t k,
                          const td_gemm_weights *out, void *tmp, uint32_t worker) {
    const taking         *t = ctx;
    taken_matrix         *w = &t->taken[worker];
    const td_tensor_view *v = &w->view;
    size_t                cols = expert_matrix_cols(&t->x->layout, m);
    if (w->status == TD_OK && (w->expert != expert || w->m != m)) take(t, expert, m, w, tmp);
    if (w->status != TD_OK) return false;
    if (v->coded) return coded_rows(t->x, v->coded, row, n, k, w->factor, out, tmp);
    return round_rows(t->x, v->dtype, (const char *)v->data + row * cols * td_dtype_bytes(v->dtype), n, cols, k, w->factor,
                      out, tmp);
}

static bool bias_of_source(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, float *out) {
    const taking  *t = ctx;
    td_tensor_view v = t->source->bias(t->source->ctx, expert, m);
    td_to_f32(v.dtype, (const char *)v.data + row * td_dtype_bytes(v.dtype), n, out);
    return isfinite(td_amax(TD_DT_F32, out, n));
}

static td_status check_biases(const td_experts *x, const td_expert_source *source, td_error *err) {
    for (size_t e = 0; source->bias && e < x->config.n_experts; e++)
        for (td_expert_matrix m = 0; m < TD_EXPERT_MATRICES; m++) {
            td_tensor_view v = source->bias(source->ctx, e, m);
            TD_TRY(check_bias(&v, m == TD_EXPERT_DOWN ? x->config.hidden : x->config.inter, x->config.bias, m, e, err));
        }
    return TD_OK;
}

/* The first failure of a worker says more than that a layer was refused. */
static td_status close_taken(const taking *t, uint32_t n, td_status s, td_error *err) {
    for (uint32_t i = 0; i < n; i++) {
        const taken_matrix *w = &t->taken[i];
        leave(t, w);
        if (w->status != TD_OK) s = td_fail(err, w->status, "%s", w->err.text);
        td_mem_unmap(w->buffer, t->source->buffer_bytes);
    }
    free(t->taken);
    return s;
}

td_status td_experts_load(td_experts *x, uint32_t layer, const td_expert_source *source, td_error *err) {
    uint32_t n = td_pool_workers(x->pool);
    if (layer >= x->config.n_layers) return td_fail(err, TD_EINVAL, "MoE layer %u of %u", layer, x->config.n_layers);
    TD_TRY(check_biases(x, source, err));
    taking    t = {.x = x, .source = source, .taken = calloc(n, sizeof *t.taken)};
    td_status s = t.taken ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the experts' buffers");
    if (!t.taken) return s;
    for (uint32_t i = 0; i < n; i++) t.taken[i].expert = SIZE_MAX;
    for (uint32_t i = 0; s == TD_OK && source->buffer_bytes && i < n; i++)
        s = td_mem_map(source->buffer_bytes, TD_NODE_ANY, &t.taken[i].buffer, err);
    if (s == TD_OK) s = td_expert_pack_layer(x, layer, rows_of_taken, source->bias ? bias_of_source : NULL, &t, err);
    return close_taken(&t, n, s, err);
}
