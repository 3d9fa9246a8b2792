/* Weights of the host device: converted once, laid out as their reader wants them. */
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "npu/host/host_device.h"
#include "quant/coded_matrix.h"
#include "quant/weight_quant.h"

size_t td_host_tiles_bytes(const td_host_npu *d, td_weight_format format, size_t n, size_t k, const td_gemm_groups *groups) {
    const td_tile_layout *tiles = td_host_tile_kernel(d, format)->tiles;
    return td_round_up((n + tiles->nr - 1) / tiles->nr * td_host_tile_bytes(tiles, k, groups), TD_FILE_BLOCK);
}

size_t td_host_weight_bytes(td_npu *npu, td_weight_format format, uint32_t group, size_t n, size_t k) {
    const td_host_npu *d = (const td_host_npu *)npu;
    td_gemm_groups     groups = td_weight_largest_groups(format, group);
    switch (format) {
        case TD_WEIGHT_W8A8:
        case TD_WEIGHT_INT4G:
        case TD_WEIGHT_FP4G: return td_host_tiles_bytes(d, format, n, k, &groups);
        case TD_WEIGHT_BF16:
            return td_round_up((n == 1 ? 1 : td_round_up(n, TD_HOST_NR_BF16)) * k * sizeof(td_bf16), TD_FILE_BLOCK);
        default: return td_round_up((n == 1 ? 1 : td_round_up(n, TD_HOST_NR_F32)) * k * sizeof(float), TD_FILE_BLOCK);
    }
}

typedef struct {
    td_host_npu          *d;
    td_npu_weight        *w;
    const td_tensor_view *src;
    size_t                temp_bytes; /* per worker, in the scratch */
    _Atomic bool          not_finite;
} conversion;

/* What a worker needs to make a tile of W8A8. */
static size_t w8a8_temp_bytes(const td_tile_layout *tiles, size_t k) {
    return tiles->nr * (sizeof(float) + td_round_up(k, tiles->kr));
}

/* One tile: quantise its rows, or take them as they are, and pack them. */
static void pack_w8a8_tile(void *ctx, uint32_t tile, const td_worker *worker) {
    conversion           *c = ctx;
    const td_tile_layout *tiles = td_host_tile_kernel(c->d, TD_WEIGHT_W8A8)->tiles;
    size_t                k = c->w->shape.k, padded = td_round_up(k, tiles->kr), row = (size_t)tile * tiles->nr;
    size_t                rows = c->w->shape.n - row < tiles->nr ? c->w->shape.n - row : tiles->nr;
    float                *scale = (float *)(c->d->scratch + worker->index * c->temp_bytes);
    int8_t               *q = (int8_t *)(scale + tiles->nr);
    if (c->src->dtype == TD_DT_I8) {
        const int8_t *codes = (const int8_t *)c->src->data + row * k;
        for (size_t i = 0; i < rows; i++) {
            memcpy(q + i * padded, codes + i * k, k);
            memset(q + i * padded + k, 0, padded - k);
        }
        memcpy(scale, c->src->scale + row, rows * sizeof *scale);
    } else {
        const char *src = (const char *)c->src->data + row * k * td_dtype_bytes(c->src->dtype);
        if (!td_quantize_weight_i8(c->src->dtype, src, rows, k, q, padded, scale)) c->not_finite = true;
    }
    memset(q + rows * padded, 0, (tiles->nr - rows) * padded); /* rows beyond the last weigh nothing */
    memset(scale + rows, 0, (tiles->nr - rows) * sizeof *scale);
    td_tile_pack(tiles, (char *)c->w->data + tile * td_tile_bytes(tiles, padded, NULL),
                 &(td_gemm_weights){.rows = q, .scale = scale}, padded, NULL);
}

/* What a worker needs to make a tile in groups. */
static size_t group_temp_bytes(const td_tile_layout *tiles, size_t k, const td_gemm_groups *groups) {
    size_t n_scales = td_round_up(k, tiles->kr) / groups->size;
    return tiles->nr * (td_round_up(k, tiles->kr) + n_scales * (sizeof(float) + 1) + sizeof(float));
}

/* One tile, code by code. */
static void pack_group_tile(void *ctx, uint32_t tile, const td_worker *worker) {
    conversion            *c = ctx;
    const td_gemm_groups  *groups = &c->w->groups;
    const td_tile_layout  *tiles = td_host_tile_kernel(c->d, c->w->shape.format)->tiles;
    const td_coded_matrix *m = c->src->coded;
    size_t                 nr = tiles->nr, k = td_round_up(m->k, tiles->kr), n_scales = k / groups->size, row = tile * nr,
           n = m->n - row < nr ? m->n - row : nr;
    float   *scale = (float *)(c->d->scratch + worker->index * c->temp_bytes), *factor = scale + nr * n_scales;
    uint8_t *codes = (uint8_t *)(factor + nr), *zero = codes + nr * k;
    memset(scale, 0, nr * (n_scales + 1) * sizeof *scale); /* rows beyond the last weigh nothing */
    memset(codes, 0, nr * k);
    memset(zero, 8, nr * n_scales);
    for (size_t r = 0; r < n; r++) {
        td_gemm_weights one = {
            .rows = codes + r * k, .scale = scale + r * n_scales, .zero = zero + r * n_scales, .factor = factor + r};
        if (!td_coded_tile_row(m, row + r, groups, k, &one)) c->not_finite = true;
    }
    td_gemm_weights all = {.rows = codes, .scale = scale, .zero = zero, .factor = factor};
    td_tile_pack(tiles, (char *)c->w->data + tile * td_tile_bytes(tiles, k, groups), &all, k, groups);
}

static void convert_row(void *ctx, uint32_t row, const td_worker *worker) {
    conversion *c = ctx;
    size_t      k = c->w->shape.k;
    const char *src = (const char *)c->src->data + row * k * td_dtype_bytes(c->src->dtype);
    if (c->w->shape.format == TD_WEIGHT_F32) {
        td_to_f32(c->src->dtype, src, k, (float *)c->w->data + row * k);
    } else if (c->src->dtype == TD_DT_BF16) {
        memcpy((td_bf16 *)c->w->data + row * k, src, k * sizeof(td_bf16));
    } else {
        float *f = (float *)(c->d->scratch + worker->index * c->temp_bytes);
        td_to_f32(c->src->dtype, src, k, f);
        td_f32_to_bf16_n(f, k, (td_bf16 *)c->w->data + row * k);
    }
    td_dtype made = c->w->shape.format == TD_WEIGHT_F32 ? TD_DT_F32 : TD_DT_BF16;
    if (!isfinite(td_amax(made, (const char *)c->w->data + row * k * td_dtype_bytes(made), k))) c->not_finite = true;
}

td_status td_host_weight_create(td_npu *npu, td_weight_format format, const td_tensor_view *src, td_npu_weight **out,
                                td_error *err) {
    td_host_npu    *d = (td_host_npu *)npu;
    td_weight_shape shape;
    td_gemm_groups  groups = {0};
    *out = NULL;
    TD_TRY(td_weight_check_source(format, src, &shape, &groups, err));
    td_npu_weight *w = calloc(1, sizeof *w);
    if (!w) return td_fail(err, TD_ENOMEM, "out of memory for a weight");
    w->shape = shape;
    w->groups = groups;
    w->layout = td_weight_takes_int8(format) ? TD_HOST_PANELS : TD_HOST_ROWS;
    const td_gemm_kernel *kernel = td_host_tile_kernel(d, format);
    const bool            grouped = kernel && format != TD_WEIGHT_W8A8;
    w->bytes = kernel ? td_host_tiles_bytes(d, format, w->shape.n, w->shape.k, &w->groups)
                      : td_host_weight_bytes(npu, format, 0, w->shape.n, w->shape.k);
    td_status status = td_mem_map(w->bytes, td_pool_home(d->pool), &w->data, err);
    if (status == TD_OK) {
        conversion c = {.d = d, .w = w, .src = src};
        c.temp_bytes = td_round_up(grouped  ? group_temp_bytes(kernel->tiles, w->shape.k, &w->groups)
                                   : kernel ? w8a8_temp_bytes(kernel->tiles, w->shape.k)
                                            : w->shape.k * sizeof(float),
                                   TD_CACHE_LINE);
        pthread_mutex_lock(&d->lock);
        status = td_host_scratch_grow(d, c.temp_bytes * d->n_workers, err);
        uint32_t n_tiles = kernel ? (uint32_t)((w->shape.n + kernel->tiles->nr - 1) / kernel->tiles->nr) : 0;
        if (status == TD_OK && grouped) {
            td_pool_run(d->pool, pack_group_tile, &c, n_tiles);
            if (c.not_finite)
                status = td_fail(
                    err, TD_EFORMAT,
                    "a weight has a scale that is no positive number, or a zero where the checkpoint says it has none");
        } else if (status == TD_OK && kernel) {
            td_pool_run(d->pool, pack_w8a8_tile, &c, n_tiles);
        } else if (status == TD_OK) {
            td_pool_run(d->pool, convert_row, &c, (uint32_t)w->shape.n);
        }
        if (status == TD_OK && c.not_finite) status = td_fail(err, TD_EFORMAT, "a weight holds an infinity or a NaN");
        pthread_mutex_unlock(&d->lock);
    }
    if (status != TD_OK) {
        td_host_weight_destroy(npu, w);
        return status;
    }
    *out = w;
    return TD_OK;
}

void td_host_weight_destroy(td_npu *d, td_npu_weight *w) {
    (void)d;
    if (!w) return;
    if (!w->adopted) td_mem_unmap(w->data, w->bytes);
    free(w);
}

/* ---- layouts --------------------------------------------------------------------------------- */

static size_t element_bytes(const td_npu_weight *w) {
    return w->shape.format == TD_WEIGHT_F32 ? sizeof(float) : sizeof(td_bf16);
}

/* dst[c, r] = src[r, c]; dst has leading dimension ldd, and its rows stay 0 beyond `rows`. */
static void transpose_elements(void *dst, size_t ldd, const void *src, size_t rows, size_t cols, size_t element) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            memcpy((char *)dst + (c * ldd + r) * element, (const char *)src + (r * cols + c) * element, element);
}

/* Before a layout changes: bytes that are only lent are copied. */
static td_status own_bytes(td_host_npu *d, td_npu_weight *w, td_error *err) {
    void *copy;
    if (!w->adopted) return TD_OK;
    TD_TRY(td_mem_map(w->bytes, td_pool_home(d->pool), &copy, err));
    memcpy(copy, w->data, w->bytes);
    w->data = copy;
    w->adopted = false;
    return TD_OK;
}

/* A panel takes the place of its rows. A single row is the exception: it is stored unpadded, and gets a mapping of its own.
 */
static td_status to_panels(td_host_npu *d, td_npu_weight *w, td_error *err) {
    size_t element = element_bytes(w), nr = td_host_nr(d, w), panel_bytes = nr * w->shape.k * element;
    void  *panel;
    TD_TRY(own_bytes(d, w, err));
    if (w->shape.n == 1) {
        TD_TRY(td_mem_map(panel_bytes, td_pool_home(d->pool), &panel, err));
        transpose_elements(panel, nr, w->data, 1, w->shape.k, element);
        td_mem_unmap(w->data, w->bytes);
        w->data = panel;
        w->bytes = panel_bytes;
    } else {
        panel = calloc(1, panel_bytes);
        if (!panel) return td_fail(err, TD_ENOMEM, "out of memory while packing a weight");
        for (size_t row = 0; row < w->shape.n; row += nr) {
            char  *rows = (char *)w->data + row * w->shape.k * element;
            size_t n = w->shape.n - row < nr ? w->shape.n - row : nr;
            if (n < nr) memset(panel, 0, panel_bytes);
            transpose_elements(panel, nr, rows, n, w->shape.k, element);
            memcpy(rows, panel, panel_bytes);
        }
        free(panel);
    }
    w->layout = TD_HOST_PANELS;
    return TD_OK;
}

static td_status to_heads(td_host_npu *d, td_npu_weight *w, size_t heads, size_t nope, size_t v, td_error *err) {
    size_t kv_lora = w->shape.k;
    if (w->layout == TD_HOST_HEADS && w->heads == heads && w->nope == nope) return TD_OK;
    if (w->layout != TD_HOST_ROWS) return td_fail(err, TD_EINVAL, "the weight kv_b is in use with another shape");
    TD_TRY(own_bytes(d, w, err));
    size_t element = element_bytes(w), v_bytes = v * kv_lora * element;
    void  *transposed = malloc(v_bytes);
    if (!transposed) return td_fail(err, TD_ENOMEM, "out of memory while packing a weight");
    for (size_t h = 0; h < heads; h++) {
        char *w_uv = (char *)w->data + (h * (nope + v) + nope) * kv_lora * element;
        transpose_elements(transposed, v, w_uv, v, kv_lora, element);
        memcpy(w_uv, transposed, v_bytes);
    }
    free(transposed);
    w->layout = TD_HOST_HEADS;
    w->heads = (uint32_t)heads;
    w->nope = (uint32_t)nope;
    return TD_OK;
}

static td_status to_taps(td_host_npu *d, td_npu_weight *w, td_error *err) {
    const size_t bytes = w->shape.n * w->shape.k * sizeof(float);
    if (w->layout == TD_HOST_TAPS) return TD_OK;
    TD_TRY(own_bytes(d, w, err));
    void *rows = malloc(bytes);
    if (!rows) return td_fail(err, TD_ENOMEM, "out of memory while packing a weight");
    memcpy(rows, w->data, bytes);
    transpose_elements(w->data, w->shape.n, rows, w->shape.n, w->shape.k, sizeof(float));
    free(rows);
    w->layout = TD_HOST_TAPS;
    return TD_OK;
}

static td_status lay_out(td_host_npu *d, const td_block_desc *desc, const td_block_weight *x, td_npu_weight *w,
                         td_error *err) {
    bool gate = x->use == TD_USE_SCORES && desc->kind == TD_BLOCK_MLP; /* one row, read as a vector */
    if (x->use == TD_USE_LATENT) return to_heads(d, w, desc->mla.heads, desc->mla.nope_dim, desc->mla.v_dim, err);
    if (w->layout == TD_HOST_HEADS) return td_fail(err, TD_EINVAL, "the weight %s is laid out for attention", x->what);
    if (x->use == TD_USE_TAPS && w->layout != TD_HOST_PANELS) return to_taps(d, w, err);
    if (w->layout == TD_HOST_TAPS) return td_fail(err, TD_EINVAL, "the weight %s is laid out for a convolution", x->what);
    if (x->use == TD_USE_TABLE) return TD_OK; /* td_host_weight_row reads either layout */
    if (!gate && x->use != TD_USE_VECTOR && x->use != TD_USE_ROPE && x->use != TD_USE_TAPS)
        return w->layout == TD_HOST_PANELS ? TD_OK : to_panels(d, w, err);
    return w->layout == TD_HOST_ROWS ? TD_OK : td_fail(err, TD_EINVAL, "the weight %s is laid out for products", x->what);
}

td_status td_host_lay_out(td_host_npu *d, const td_block_desc *desc, td_error *err) {
    td_block_weight list[TD_BLOCK_WEIGHTS_MAX];
    size_t          n = td_block_weights(desc, list);
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < list[i].count; k++)
            TD_TRY(lay_out(d, desc, &list[i], (td_npu_weight *)list[i].w[k], err)); /* the handle is opaque */
    return TD_OK;
}

void td_host_weight_row(const td_npu_weight *w, size_t row, float *out) {
    td_dtype dtype = w->shape.format == TD_WEIGHT_F32 ? TD_DT_F32 : TD_DT_BF16;
    size_t   nr = w->shape.format == TD_WEIGHT_F32 ? TD_HOST_NR_F32 : TD_HOST_NR_BF16;
    if (w->layout == TD_HOST_ROWS) {
        td_to_f32(dtype, (const char *)w->data + row * w->shape.k * td_dtype_bytes(dtype), w->shape.k, out);
        return;
    }
    size_t at = row / nr * nr * w->shape.k + row % nr;
    for (size_t i = 0; i < w->shape.k; i++)
        out[i] = dtype == TD_DT_F32 ? ((const float *)w->data)[at + i * nr]
                                    : td_bf16_to_f32(((const td_bf16 *)w->data)[at + i * nr]);
}
