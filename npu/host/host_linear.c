/* Matrix products over the pool: rows are prepared once for all products that read them, then panels and row blocks are
 * items. */
#include <assert.h>
#include <math.h>

#include "kernels/rows/convert.h"
#include "kernels/rows/row_quant.h"
#include "npu/host/host_device.h"

#define INLINE_COST 8192             /* elements or bytes below which a wake-up costs more than the work */
#define ITEMS_PER_WORKER 32          /* who is done first waits for less than one; the next item goes on where one ends */
#define ITEM_BYTES (32 << 10)        /* weights of an item at least: a microsecond or two */
#define F_AHEAD_BYTES 4096           /* what a product of floats prefetches ahead of itself */
#define X_BLOCK_BYTES (384 << 10)    /* rows of an item: they should stay in L2 beside a panel */
#define X_BLOCK_BYTES_MANY (1 << 20) /* of a kernel that likes many */
#define F_BLOCK_ROWS 48
#define G_BLOCK_ROWS 112            /* of products with weights in groups */
#define FAR_BYTES ((size_t)1 << 20) /* of outputs, half of an L2 */
#define GATED_BLOCK_ROWS 512        /* whose gates of a panel lie on the stack, 64 KB */
#define GROUP_MIN 16

void td_host_for(td_host_npu *d, td_pool_fn fn, void *ctx, size_t n, size_t cost) {
    if (cost > INLINE_COST && n > 1) {
        td_pool_run(d->pool, fn, ctx, (uint32_t)n);
        return;
    }
    const td_worker caller = {0};
    for (size_t i = 0; i < n; i++) fn(ctx, (uint32_t)i, &caller);
}

/* ---- preparing rows -------------------------------------------------------------------------- */

#define PADDED(k) td_round_up(k, 128)      /* the most that kernels pad k to */
#define LDQ(k) (PADDED(k) + TD_CACHE_LINE) /* an odd number of lines: rows do not fall on the same sets of a cache */

size_t td_host_rows_bytes(size_t m, size_t k, td_dtype dtype) {
    size_t widened = dtype == TD_DT_F32 ? 0 : m * k * sizeof(float);
    return td_round_up(m * sizeof(td_gemm_row), 64) + m * LDQ(k) + td_round_up(widened, 64) +
           td_round_up(m * PADDED(k) / GROUP_MIN * sizeof(int32_t), 64);
}

void td_host_rows_init(td_host_rows *r, void *mem, const void *x, td_dtype dtype, size_t m, size_t k) {
    char *p = mem;
    *r = (td_host_rows){.m = m, .k = k, .dtype = dtype, .x = x, .ldq = LDQ(k), .has_f = dtype == TD_DT_F32};
    r->rows = (td_gemm_row *)(void *)p;
    p += td_round_up(m * sizeof(td_gemm_row), 64);
    r->q = (int8_t *)p;
    p += m * r->ldq;
    r->group_sum = (int32_t *)p;
    p += td_round_up(m * PADDED(k) / GROUP_MIN * sizeof(int32_t), 64);
    r->widened = (float *)p;
    r->f = r->has_f ? x : p;
}

void td_host_rows_input(const td_host_npu *d, td_host_rows *r, void *mem, const void *in, td_rows_i8 in_i8, size_t row,
                        size_t m, size_t k) {
    td_host_rows_init(r, mem, in ? (const char *)in + td_host_act_bytes(d, row * k) : NULL, d->act, m, k);
    if (!in_i8.q) return;
    r->given = (td_rows_i8){in_i8.q + row * k, in_i8.scale + row};
}

static void quantize_item(void *ctx, uint32_t i, const td_worker *w) {
    (void)w;
    td_host_rows *r = ctx;
    td_gemm_row  *row = &r->rows[i];
    *row = (td_gemm_row){.x = r->q + i * r->ldq};
    if (r->given.q) {
        row->scale = r->given.scale[i];
        td_place_row_i8(r->given.q + i * r->k, r->k, r->q + i * r->ldq, r->ldq, &row->sum);
        return;
    }
    const char *x = (const char *)r->x + i * r->k * td_dtype_bytes(r->dtype);
    td_quantize_rows_i8(r->dtype, x, 1, r->k, r->k, r->q + i * r->ldq, r->ldq, &row->scale, &row->sum);
}

static void widen_item(void *ctx, uint32_t i, const td_worker *w) {
    (void)w;
    td_host_rows *r = ctx;
    td_to_f32(r->dtype, (const char *)r->x + i * r->k * td_dtype_bytes(r->dtype), r->k, r->widened + i * r->k);
}

static void group_sums_item(void *ctx, uint32_t i, const td_worker *w) {
    (void)w;
    td_host_rows *r = ctx;
    int32_t      *sums = r->group_sum + i * (PADDED(r->k) / r->group);
    td_group_sums_i8(r->q + i * r->ldq, PADDED(r->k), r->group, sums);
    r->rows[i].group_sum = sums;
}

static void prepare(td_host_npu *d, td_host_rows *r, const td_npu_weight *w) {
    bool takes_int8 = td_weight_takes_int8(w->shape.format);
    if (takes_int8 && !r->has_q) {
        td_host_for(d, quantize_item, r, r->m, r->m * r->k);
        r->has_q = true;
    } else if (!takes_int8 && !r->has_f) {
        td_host_for(d, widen_item, r, r->m, r->m * r->k);
        r->has_f = true;
    }
    if (w->groups.size && r->group != w->groups.size) {
        r->group = w->groups.size;
        td_host_for(d, group_sums_item, r, r->m, r->m * r->k);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct {
    const td_host_npu  *d;
    const td_host_rows *x;
    size_t              n_products, block_rows, groups; /* groups: of panels, over all products */
    struct {
        const td_host_product *p;
        size_t                 panels, per_group, first_group;
    } part[TD_HOST_PRODUCTS_MAX];
} product_job;

/* x [n] := activation(x); n <= TD_HOST_NR_BF16 */
static void activate(const td_float_math *math, td_activation activation, float *x, size_t n) {
    float phi[TD_HOST_NR_BF16];
    if (activation == TD_ACTIVATE_GELU_ERF) {
        for (size_t i = 0; i < n; i++) x[i] *= 0.5f + 0.5f * erff(x[i] * (float)M_SQRT1_2);
        return;
    }
    const float slope = 1.5957691216f; /* (1 + tanh(z)) / 2 = sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3) */
    for (size_t i = 0; i < n; i++) phi[i] = slope * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
    math->sigmoid(phi, n);
    for (size_t i = 0; i < n; i++) x[i] *= phi[i];
}

/* c [rows, nr]: outputs of a panel from column col on. */
static void store_panel(const product_job *j, const td_host_product *p, size_t row, size_t rows, size_t col, size_t nr,
                        float *c) {
    size_t       cols = p->w->shape.n - col < nr ? p->w->shape.n - col : nr;
    const float *bias = td_host_vector(p->bias);
    for (size_t i = 0; i < rows; i++) {
        if (bias) j->d->kernels->math->add(c + i * nr, bias + col, cols);
        if (p->activation) activate(j->d->kernels->math, p->activation, c + i * nr, cols);
        td_from_f32(p->out_dtype, c + i * nr, cols,
                    (char *)p->out + ((row + i) * p->ldo + col) * td_dtype_bytes(p->out_dtype));
    }
}

/* Rows times tiles begin .. end of a weight. */
static td_gemm_args tile_args(const product_job *j, const td_npu_weight *w, size_t row, size_t rows, size_t begin,
                              size_t end) {
    const td_tile_layout *tiles = td_host_tile_kernel(j->d, w->shape.format)->tiles;
    const size_t          k = td_round_up(j->x->k, tiles->kr), bytes = td_tile_bytes(tiles, k, &w->groups);
    return (td_gemm_args){.tile = (const char *)w->data + begin * bytes,
                          .n_tiles = end - begin,
                          .next = (const char *)w->data + end * bytes, /* a worker's next item goes on there */
                          .k = k,
                          .m = rows,
                          .rows = j->x->rows + row,
                          .groups = w->groups};
}

static bool is_far(const product_job *j, const td_host_product *p) {
    return j->x->m * p->ldo * td_dtype_bytes(p->out_dtype) >= FAR_BYTES;
}

static void tile_item(const product_job *j, const td_host_product *p, size_t row, size_t rows, size_t begin, size_t end) {
    const td_gemm_kernel *kernel = td_host_tile_kernel(j->d, p->w->shape.format);
    td_gemm_args          g = tile_args(j, p->w, row, rows, begin, end);
    g.end = (td_gemm_end){.column = begin * kernel->tiles->nr,
                          .n = p->w->shape.n,
                          .bias = td_host_vector(p->bias),
                          .gate = p->gated ? (const float *)p->out + row * p->ldo : NULL,
                          .ld_gate = p->ldo,
                          .out = (char *)p->out + row * p->ldo * td_dtype_bytes(p->out_dtype),
                          .ld = p->ldo,
                          .dtype = p->out_dtype,
                          .far = is_far(j, p)};
    kernel->run(&g);
}

/* Tile by tile, so that the gates of one are still near when its values come. */
static void gated_tile_item(const product_job *j, const td_host_product *p, size_t row, size_t rows, size_t begin,
                            size_t end) {
    const td_gemm_kernel *kernel = td_host_tile_kernel(j->d, p->w->shape.format);
    const size_t          nr = kernel->tiles->nr;
    float                 gates[GATED_BLOCK_ROWS * TD_GEMM_NR_MAX] __attribute__((aligned(64)));
    for (size_t t = begin; t < end; t++) {
        td_gemm_args gate = tile_args(j, p->gate, row, rows, t, t + 1), up = tile_args(j, p->w, row, rows, t, t + 1);
        const void  *next_gate = gate.next;
        gate.next = up.tile;
        gate.end = (td_gemm_end){.n = nr, .out = gates, .ld = nr, .dtype = TD_DT_F32};
        kernel->run(&gate);
        up.next = next_gate;
        up.end = (td_gemm_end){.n = p->w->shape.n - t * nr < nr ? p->w->shape.n - t * nr : nr,
                               .gate = gates,
                               .ld_gate = nr,
                               .out = (float *)p->out + row * p->ldo + t * nr,
                               .ld = p->ldo,
                               .dtype = TD_DT_F32,
                               .far = is_far(j, p)};
        kernel->run(&up);
    }
}

/* c [rows, nr] */
static void float_panel(const product_job *j, const td_npu_weight *w, size_t row, size_t rows, size_t panel, float *c) {
    const td_host_rows *x = j->x;
    size_t              nr = td_host_nr(j->d, w), k = x->k;
    td_dtype            dtype = w->shape.format == TD_WEIGHT_F32 ? TD_DT_F32 : TD_DT_BF16;
    td_fgemm_args       g = {
              .k = k, .n = nr, .a = x->f + row * k, .lda = k, .ldb = nr, .b_dtype = dtype, .c = c, .ldc = nr, .m = rows};
    g.b = (const char *)w->data + panel * nr * k * td_dtype_bytes(dtype);
    g.ahead = (const char *)g.b + F_AHEAD_BYTES;
    j->d->kernels->math->gemm(&g);
}

/* gates [rows, nr]: what out holds from column col on */
static void load_gates(const td_host_product *p, size_t row, size_t rows, size_t col, size_t nr, float *gates) {
    size_t cols = p->w->shape.n - col < nr ? p->w->shape.n - col : nr;
    for (size_t i = 0; i < rows; i++)
        memcpy(gates + i * nr, (float *)p->out + (row + i) * p->ldo + col, cols * sizeof(float));
}

static void float_item(const product_job *j, const td_host_product *p, size_t row, size_t rows, size_t begin, size_t end) {
    size_t nr = td_host_nr(j->d, p->w);
    float  c[F_BLOCK_ROWS * TD_HOST_NR_BF16] __attribute__((aligned(64))),
        gates[F_BLOCK_ROWS * TD_HOST_NR_BF16] __attribute__((aligned(64)));
    for (size_t panel = begin; panel < end; panel++) {
        float_panel(j, p->w, row, rows, panel, c);
        if (p->gate) float_panel(j, p->gate, row, rows, panel, gates);
        if (p->gated) load_gates(p, row, rows, panel * nr, nr, gates);
        if (p->gate || p->gated) j->d->kernels->rows->glu(&(td_glu){0}, gates, c, rows, nr, c, nr);
        store_panel(j, p, row, rows, panel * nr, nr, c);
    }
}

static void product_item(void *ctx, uint32_t item, const td_worker *w) {
    (void)w;
    const product_job *j = ctx;
    size_t             group = item % j->groups, row = item / j->groups * j->block_rows, i = j->n_products - 1;
    while (j->part[i].first_group > group) i--;
    const td_host_product *p = j->part[i].p;
    size_t                 rows = j->x->m - row < j->block_rows ? j->x->m - row : j->block_rows;
    size_t begin = (group - j->part[i].first_group) * j->part[i].per_group, end = begin + j->part[i].per_group;
    if (end > j->part[i].panels) end = j->part[i].panels;
    if (!td_weight_takes_int8(p->w->shape.format))
        float_item(j, p, row, rows, begin, end);
    else if (p->gate)
        gated_tile_item(j, p, row, rows, begin, end);
    else
        tile_item(j, p, row, rows, begin, end);
}

static size_t panel_bytes(const td_host_npu *d, const td_npu_weight *w) {
    const td_gemm_kernel *kernel = td_host_tile_kernel(d, w->shape.format);
    if (kernel) return td_host_tile_bytes(kernel->tiles, w->shape.k, &w->groups);
    return td_host_nr(d, w) * w->shape.k * (w->shape.format == TD_WEIGHT_BF16 ? sizeof(td_bf16) : sizeof(float));
}

static void show_rows(td_host_npu *d, const td_host_rows *x, const td_host_product *products, size_t n_products) {
    const td_npu_weight *weights[2 * TD_HOST_PRODUCTS_MAX];
    size_t               n = 0;
    for (size_t i = 0; i < n_products; i++) {
        if (products[i].gate) weights[n++] = products[i].gate;
        weights[n++] = products[i].w;
    }
    d->config.rows_tap(d->config.rows_tap_user, weights, n, x->dtype, x->x, x->m, x->k);
}

/* Rows have the sums of one size of groups at a time. */
static bool same_groups(const td_host_product *products, size_t n_products) {
    size_t size = 0;
    for (size_t i = 0; i < n_products; i++) {
        size_t own = products[i].w->groups.size;
        if (own && size && own != size) return false;
        if (own) size = own;
    }
    return true;
}

static void run_products(td_host_npu *d, td_host_rows *x, const td_host_product *products, size_t n_products) {
    product_job j = {.d = d, .x = x, .n_products = n_products};
    size_t      panels = 0, bytes = 0, most_rows = SIZE_MAX;
    bool        gated = false;
    assert(n_products >= 1 && n_products <= TD_HOST_PRODUCTS_MAX);
    for (size_t i = 0; i < n_products; i++) {
        td_weight_format format = products[i].w->shape.format;
        size_t most = !td_weight_takes_int8(format) ? F_BLOCK_ROWS : products[i].w->groups.size ? G_BLOCK_ROWS : SIZE_MAX;
        prepare(d, x, products[i].w);
        if (most < most_rows) most_rows = most;
        j.part[i].p = &products[i];
        j.part[i].panels = (products[i].w->shape.n + td_host_nr(d, products[i].w) - 1) / td_host_nr(d, products[i].w);
        panels += j.part[i].panels;
        bytes += (products[i].gate ? 2 : 1) * j.part[i].panels * panel_bytes(d, products[i].w);
        gated |= products[i].gate != NULL;
    }
    j.block_rows = most_rows;
    if (most_rows == SIZE_MAX) { /* W8A8 alone */
        const td_gemm_kernel *kernel = d->kernels->product[TD_PRODUCT_INT8C];
        const size_t          mr = kernel->mr;
        j.block_rows = (kernel->rows ? X_BLOCK_BYTES_MANY : X_BLOCK_BYTES) / x->ldq / mr * mr;
        if (j.block_rows < 4 * mr) j.block_rows = 4 * mr;
        if (gated && j.block_rows > GATED_BLOCK_ROWS) j.block_rows = GATED_BLOCK_ROWS / mr * mr;
        size_t n = (x->m + j.block_rows - 1) / j.block_rows; /* of about equal height */
        j.block_rows = td_round_up((x->m + n - 1) / n, mr);
    }
    size_t blocks = (x->m + j.block_rows - 1) / j.block_rows;
    size_t per_group = panels * blocks / ((size_t)d->n_workers * ITEMS_PER_WORKER),
           least = (ITEM_BYTES * panels + bytes - 1) / bytes;
    if (per_group < least) per_group = least;
    for (size_t i = 0; i < n_products; i++) {
        j.part[i].per_group = per_group;
        j.part[i].first_group = j.groups;
        j.groups += (j.part[i].panels + per_group - 1) / per_group;
    }
    td_host_for(d, product_item, &j, j.groups * blocks, bytes);
}

void td_host_products(td_host_npu *d, td_host_rows *x, const td_host_product *products, size_t n_products) {
    if (x->m == 0) return;
    if (d->config.rows_tap) show_rows(d, x, products, n_products);
    bool together = same_groups(products, n_products);
    for (size_t i = 0, n = together ? n_products : 1; i < n_products; i += n) run_products(d, x, products + i, n);
}
