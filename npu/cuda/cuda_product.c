#include "npu/cuda/cuda_product.h"

#include "core/log/log.h"

#define EPILOGUE_THREADS 256
#define ROWS_MULTIPLE 128 /* of a stretch: tiles of rows are no larger */

/* ---- rows -------------------------------------------------------------------------------------- */

td_cuda_rows_places td_cuda_place_rows(size_t *used, size_t rows, size_t k, bool of_f32) {
    td_cuda_rows_places at = {0};
    at.q = td_cuda_place(used, rows * td_cuda_row_codes(k));
    at.scale = td_cuda_place(used, rows * sizeof(float));
    at.x = of_f32 ? td_cuda_place(used, rows * k * sizeof(td_bf16)) : 0;
    return at;
}

static td_cuda_rows codes_of_bf16(td_cuda_run *r, const td_cuda_rows_places *at, td_cuda_count n, const void *x, size_t k) {
    td_cuda_rows rows = {.n = n, .x = x, .q = r->scratch + at->q, .scale = r->scratch + at->scale};
    TD_CUDA_LAUNCH_ROWS(r, QUANTIZE_BF16, k, n.most, TD_P(n.count), TD_P(x), TD_U(k), TD_U(k), TD_P(rows.q),
                        TD_U(td_cuda_row_codes(k)), TD_P(rows.scale));
    return rows;
}

td_cuda_rows td_cuda_rows_of_bf16(td_cuda_run *r, const td_cuda_rows_places *at, const td_npu_weight *w, td_cuda_count n,
                                  const void *x, size_t k) {
    return td_weight_takes_int8(w->shape.format) ? codes_of_bf16(r, at, n, x, k) : (td_cuda_rows){.n = n, .x = x};
}

td_cuda_rows td_cuda_rows_of_f32(td_cuda_run *r, const td_cuda_rows_places *at, const td_npu_weight *w, td_cuda_count n,
                                 const void *x, size_t k) {
    td_cuda_rows rows = {.n = n};
    if (td_weight_takes_int8(w->shape.format)) {
        rows.q = r->scratch + at->q;
        rows.scale = r->scratch + at->scale;
        TD_CUDA_LAUNCH_ROWS(r, QUANTIZE_F32, k, n.most, TD_P(n.count), TD_P(x), TD_U(k), TD_U(k), TD_P(rows.q),
                            TD_U(td_cuda_row_codes(k)), TD_P(rows.scale));
    } else {
        rows.x = r->scratch + at->x;
        TD_CUDA_LAUNCH(r, ROUND, TD_GRID(td_div_up(k, TD_CUDA_EACH_VALUES), n.most, 1), 0, TD_P(n.count), TD_P(x), TD_U(k),
                       TD_P(rows.x));
    }
    return rows;
}

td_cuda_rows td_cuda_gated_rows(td_cuda_run *r, const td_cuda_rows_places *at, td_cuda_count n, td_glu glu, const void *gate,
                                const void *up, size_t k) {
    const td_glu whole = td_glu_in_full(&glu);
    td_cuda_rows rows = {.n = n, .q = r->scratch + at->q, .scale = r->scratch + at->scale};
    TD_CUDA_LAUNCH_ROWS(r, GLU_QUANTIZE, k, n.most, TD_P(n.count), TD_P(gate), TD_P(up), TD_U(k), TD_F(whole.alpha),
                        TD_F(whole.limit), TD_F(whole.up_add), TD_P(rows.q), TD_U(td_cuda_row_codes(k)), TD_P(rows.scale));
    return rows;
}

td_cuda_rows td_cuda_input(td_cuda_run *r, const td_cuda_rows_places *at, const td_npu_weight *const *w, size_t n_w,
                           const void *in, td_rows_i8 in_i8, size_t k) {
    for (size_t i = 0; i < n_w; i++)
        if (td_weight_takes_int8(w[i]->shape.format)) return td_cuda_input_codes(r, at, in, in_i8, k);
    return (td_cuda_rows){.n = td_cuda_n_tok(r), .x = td_cuda_at_row(r, in, k * sizeof(td_bf16))};
}

td_cuda_rows td_cuda_input_codes(td_cuda_run *r, const td_cuda_rows_places *at, const void *in, td_rows_i8 in_i8, size_t k) {
    td_cuda_count n = td_cuda_n_tok(r);
    td_cuda_rows  rows = {.n = n, .x = td_cuda_at_row(r, in, k * sizeof(td_bf16))};
    if (!in_i8.q) return codes_of_bf16(r, at, n, rows.x, k);
    rows.q = td_cuda_at_row(r, in_i8.q, k);
    rows.scale = td_cuda_at_row(r, in_i8.scale, sizeof(float));
    if (k == td_cuda_row_codes(k)) return rows;
    void *placed = r->scratch + at->q;
    TD_CUDA_LAUNCH(r, PLACE_CODES, TD_GRID(n.most, 1, 1), 0, TD_P(n.count), TD_P(rows.q), TD_U(k), TD_P(placed),
                   TD_U(td_cuda_row_codes(k)));
    rows.q = placed;
    return rows;
}

/* ---- int8 products of many rows ----------------------------------------------------------------- */

/*
 * Int8 products of many rows: cuBLASLt's sums of some rows at a time, and our kernel that scales them. Our own products are
 * shaped for rows that wait for the weights: a warp loads and multiplies in turns, so from some TD_CUDA_LINEAR_ROWS_MAX rows
 * on the card could compute more.
 *
 * A library's product has the rows of the bucket, so those beyond the step's count are multiplied too. They are whatever the
 * memory holds; sums of a row are of that row alone, and the kernel does not read theirs.
 */

size_t td_cuda_library_bytes(const td_cuda_npu *d, uint32_t max_tok) {
    return d->blas.api && max_tok > TD_CUDA_LINEAR_ROWS_MAX ? d->blas.sums_bytes + d->blas.workspace_bytes : 0;
}

/* Rows that have room for their sums. @return 0: too few for the library to be worth it */
static uint32_t stretch(const td_cuda_blas *b, uint32_t most, size_t row_bytes) {
    size_t rows = b->sums_bytes / row_bytes;
    return rows >= most ? most : (uint32_t)(rows / ROWS_MULTIPLE * ROWS_MULTIPLE);
}

/* What it cannot do is ours from now on; without an algorithm only this one. */
static void cannot(td_cuda_npu *d, td_status st, const td_error *why) {
    if (st == TD_ENOTSUP) {
        td_debug("CUDA card %u: %s", d->base.config.card, why->text);
        return;
    }
    td_warn("CUDA card %u: %s; its int8 products of many rows are our own kernels' from now on", d->base.config.card,
            why->text);
    d->blas.has_failed = true;
}

static bool multiply(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const td_npu_weight *up,
                     const void *bias, void *out, bool out_is_f32) {
    const td_npu_weight *const of[2] = {w, up};
    const size_t               n_of = up ? 2 : 1, ldk = td_cuda_row_codes(w->shape.k), most = rows->n.most;
    const uint32_t             at_once = stretch(&r->d->blas, rows->n.most, n_of * w->shape.n * sizeof(int32_t));
    if (!at_once) return false;
    for (size_t first = 0; first < most; first += at_once) {
        td_cuda_blas_product p = {.x = (const char *)rows->q + first * ldk,
                                  .rows = most - first < at_once ? most - first : at_once,
                                  .n = w->shape.n,
                                  .ldk = ldk,
                                  .workspace = r->library + r->d->blas.sums_bytes};
        char                *sums[2] = {r->library, up ? r->library + p.rows * w->shape.n * sizeof(int32_t) : NULL};
        for (size_t i = 0; i < n_of; i++) {
            td_error why = {0};
            p.w = of[i]->data;
            p.sums = sums[i];
            if (!td_cuda_blas_takes(&r->d->blas, &p)) return false;
            td_status st = td_cuda_blas_multiply(&r->d->blas, r->stream, &p, &why);
            if (st != TD_OK) {
                cannot(r->d, st, &why);
                return false;
            }
            r->launches++;
        }
        TD_CUDA_LAUNCH(r, W8A8_EPILOGUE, TD_GRID(td_div_up(w->shape.n, EPILOGUE_THREADS), p.rows, 1), 0, TD_P(rows->n.count),
                       TD_U(first), TD_P(sums[0]), TD_P(sums[1]), TD_P(rows->scale), TD_P(w->scale),
                       TD_P(up ? up->scale : NULL), TD_P(bias), TD_U(w->shape.n), TD_P(out), TD_U(out_is_f32));
    }
    return true;
}

/* The library may load its kernels when it needs them first. In a capture a thread may not, but where it says that it knows
 * what it does. */
static bool exchange_mode(td_cuda_run *r, td_cu_capture_mode *mode) {
    td_cu_status said = r->d->cu->cuThreadExchangeStreamCaptureMode(mode);
    if (said == TD_CUDA_SUCCESS) return true;
    r->status = td_cuda_failed(r->d, "cuThreadExchangeStreamCaptureMode", said, NULL);
    return false;
}

bool td_cuda_product_by_library(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const td_npu_weight *up,
                                const void *bias, void *out, bool out_is_f32) {
    td_cu_capture_mode mode = TD_CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!r->library || rows->n.most <= TD_CUDA_LINEAR_ROWS_MAX || r->status != TD_OK) return false;
    if (!exchange_mode(r, &mode)) return false;
    bool done = multiply(r, rows, w, up, bias, out, out_is_f32);
    return exchange_mode(r, &mode) && done;
}

/* ---- products ---------------------------------------------------------------------------------- */

/* Variants of the int8 product: rows and outputs of a block. All give the same bits; few rows want few outputs. */
static const td_cuda_variant W8A8[] = {{TD_CUDA_KERNEL_W8A8_8, 8, 16},
                                       {TD_CUDA_KERNEL_W8A8_16, 16, 16},
                                       {TD_CUDA_KERNEL_W8A8_32, 32, 32},
                                       {TD_CUDA_KERNEL_W8A8_64, 64, 64}};

td_cuda_variant td_cuda_variant_for(const td_cuda_npu *d, const td_cuda_variant *of, size_t n_of, size_t rows,
                                    size_t outputs) {
    size_t i = 0;
    while (i + 1 < n_of && of[i].rows < rows) i++;
    while (i && td_div_up(rows, of[i].rows) * td_div_up(outputs, of[i].outputs) < d->multiprocessors) i--;
    return of[i];
}

static void launch_int8(td_cuda_run *r, const td_cuda_rows *rows, const td_cuda_factor *of, size_t n_of, bool out_is_f32) {
    const td_cuda_factor none = {0}, *m[TD_CUDA_FACTORS_MAX];
    size_t               n[TD_CUDA_FACTORS_MAX] = {0}, outputs = 0, blocks = 0;
    for (size_t i = 0; i < TD_CUDA_FACTORS_MAX; i++) {
        m[i] = i < n_of ? &of[i] : &none;
        n[i] = i < n_of ? of[i].w->shape.n : 0;
        outputs += n[i];
    }
    const td_cuda_variant v = td_cuda_variant_for(r->d, W8A8, sizeof W8A8 / sizeof *W8A8, rows->n.most, outputs);
    for (size_t i = 0; i < n_of; i++) blocks += td_div_up(n[i], v.outputs);
#define FACTOR(i)                                                                                                      \
    TD_P(m[i]->w ? m[i]->w->data : NULL), TD_P(m[i]->w ? m[i]->w->scale : NULL), TD_P(td_cuda_bias(m[i])), TD_U(n[i]), \
        TD_P(m[i]->out)
    void *const args[] = {TD_P(rows->n.count), TD_P(rows->q), TD_P(rows->scale), TD_U(td_cuda_row_codes(of->w->shape.k)),
                          TD_U(out_is_f32),    FACTOR(0),     FACTOR(1),         FACTOR(2)};
#undef FACTOR
    td_cuda_launch(r, v.id, TD_GRID(td_div_up(rows->n.most, v.rows), blocks, 1), 0, args, sizeof args / sizeof *args);
}

uint32_t td_cuda_scale_kind(td_dtype dtype) {
    switch (dtype) {
        case TD_DT_BF16: return TD_CUDA_SCALE_BF16;
        case TD_DT_F16: return TD_CUDA_SCALE_F16;
        case TD_DT_F8_E4M3: return TD_CUDA_SCALE_E4M3;
        case TD_DT_F8_E8M0: return TD_CUDA_SCALE_E8M0;
        default: return TD_CUDA_SCALE_F32;
    }
}

static void launch_groups(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const void *bias, void *out,
                          bool out_is_f32) {
    static const td_cuda_variant OF[2][2] = {
        {{TD_CUDA_KERNEL_FP4_LINEAR_8, 8, 16}, {TD_CUDA_KERNEL_FP4_LINEAR_16, 16, 16}},
        {{TD_CUDA_KERNEL_INT4_LINEAR_8, 8, 16}, {TD_CUDA_KERNEL_INT4_LINEAR_16, 16, 16}}};
    bool                  is_int4 = w->shape.format == TD_WEIGHT_INT4G;
    size_t                k = td_round_up(w->shape.k, w->groups.size), n_of = w->groups.size < 32 ? 1 : 2;
    const td_cuda_variant v = td_cuda_variant_for(r->d, OF[is_int4], n_of, rows->n.most, w->shape.n);
    td_cuda_grid          grid = TD_GRID(td_div_up(rows->n.most, v.rows), td_div_up(w->shape.n, v.outputs), 1);
    const void           *zero_or_factor = is_int4 ? w->zero : w->factor;
    void *const           args[] = {TD_P(rows->n.count),
                                    TD_P(rows->q),
                                    TD_U(td_cuda_row_codes(w->shape.k)),
                                    TD_P(rows->scale),
                                    TD_P(w->data),
                                    TD_P(w->scale),
                                    TD_U(td_cuda_scale_kind(w->groups.scale_dtype)),
                                    TD_P(zero_or_factor),
                                    TD_P(bias),
                                    TD_U(w->shape.n),
                                    TD_U(k),
                                    TD_U(w->groups.size),
                                    TD_P(out),
                                    TD_U(out_is_f32)};
    td_cuda_launch(r, v.id, grid, 0, args, sizeof args / sizeof *args);
}

static void launch_bf16(td_cuda_run *r, const td_cuda_heads_product *p, const void *bias) {
    bool        many = p->n_rows.most > 8;
    void *const args[] = {TD_P(p->n_rows.count), TD_P(p->x),        TD_U(p->ldx),       TD_U(p->x_head), TD_P(p->w),
                          TD_U(p->w_head),       TD_P(bias),        TD_U(p->n),         TD_U(p->k),      TD_P(p->out),
                          TD_U(p->ldo),          TD_U(p->out_head), TD_U(p->out_is_f32)};
    td_cuda_launch(r, many ? TD_CUDA_KERNEL_BF16_LINEAR_32 : TD_CUDA_KERNEL_BF16_LINEAR_8,
                   TD_GRID(td_div_up(p->n_rows.most, many ? 32 : 8), td_div_up(p->n, TD_CUDA_TILE_N), p->heads), 0, args,
                   sizeof args / sizeof *args);
}

static void launch_columns(td_cuda_run *r, const td_cuda_heads_product *p) {
    bool        many = p->n_rows.most > 8;
    void *const args[] = {TD_P(p->n_rows.count), TD_P(p->x), TD_U(p->ldx), TD_U(p->x_head), TD_P(p->w),
                          TD_U(p->w_head),       TD_U(p->n), TD_U(p->k),   TD_P(p->out),    TD_U(p->ldo),
                          TD_U(p->out_head)};
    td_cuda_launch(r, many ? TD_CUDA_KERNEL_BF16_COLUMNS_32 : TD_CUDA_KERNEL_BF16_COLUMNS_8,
                   TD_GRID(td_div_up(p->n, TD_CUDA_COLUMNS_N), td_div_up(p->n_rows.most, many ? 32 : 8), p->heads), 0, args,
                   sizeof args / sizeof *args);
}

void td_cuda_product_of_heads(td_cuda_run *r, const td_cuda_heads_product *p) {
    if (p->by_columns)
        launch_columns(r, p);
    else
        launch_bf16(r, p, NULL);
}

void td_cuda_product_f32(td_cuda_run *r, td_cuda_count n, const void *x, const td_npu_weight *w, size_t outputs, size_t k,
                         void *out) {
    bool         many = n.most > 1;
    void *const  args[] = {TD_P(n.count), TD_P(x), TD_P(w->data), TD_U(outputs), TD_U(k), TD_P(out)};
    td_cuda_grid grid = many ? TD_GRID(td_div_up(outputs, TD_CUDA_F32_OUTPUTS), td_div_up(n.most, TD_CUDA_F32_ROWS), 1)
                             : TD_GRID(outputs, 1, 1);
    td_cuda_launch(r, many ? TD_CUDA_KERNEL_F32_LINEAR_8 : TD_CUDA_KERNEL_F32_LINEAR_1, grid, 0, args,
                   sizeof args / sizeof *args);
}

/* One matrix. */
static void multiply_one(td_cuda_run *r, const td_cuda_rows *rows, const td_cuda_factor *of, bool out_is_f32) {
    const td_npu_weight *w = of->w;
    if (w->shape.format != TD_WEIGHT_BF16) {
        launch_groups(r, rows, w, td_cuda_bias(of), of->out, out_is_f32);
        return;
    }
    launch_bf16(r,
                &(td_cuda_heads_product){.n_rows = rows->n,
                                         .x = rows->x,
                                         .w = w->data,
                                         .out = of->out,
                                         .n = w->shape.n,
                                         .k = w->shape.k,
                                         .ldx = w->shape.k,
                                         .ldo = w->shape.n,
                                         .heads = 1,
                                         .out_is_f32 = out_is_f32},
                td_cuda_bias(of));
}

void td_cuda_products(td_cuda_run *r, const td_cuda_rows *rows, const td_cuda_factor *of, size_t n_of, bool out_is_f32) {
    td_cuda_factor own[TD_CUDA_FACTORS_MAX];
    size_t         n_own = 0; /* int8, and ours to multiply */
    for (size_t i = 0; i < n_of; i++) {
        if (of[i].w->shape.format != TD_WEIGHT_W8A8)
            multiply_one(r, rows, &of[i], out_is_f32);
        else if (!td_cuda_product_by_library(r, rows, of[i].w, NULL, td_cuda_bias(&of[i]), of[i].out, out_is_f32))
            own[n_own++] = of[i];
    }
    if (n_own) launch_int8(r, rows, own, n_own, out_is_f32);
}

void td_cuda_product(td_cuda_run *r, const td_cuda_rows *rows, const td_npu_weight *w, const td_npu_weight *bias, void *out,
                     bool out_is_f32) {
    td_cuda_products(r, rows, &(td_cuda_factor){w, bias, out}, 1, out_is_f32);
}
