/* Creating and filling the store; packed files are in expert_file.c. */
#include "cpu_experts/expert_store.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "core/cpu.h"
#include "core/error.h"
#include "core/rng.h"
#include "kernels/rows/convert.h"
#include "quant/coded_matrix.h"
#include "quant/weight_quant.h"

static td_status check_config(const td_experts_config *c, td_error *err) {
    if (c->top_k == 0 || c->top_k > c->n_experts || c->max_tok == 0 || c->max_deferred >= c->top_k)
        return td_fail(err, TD_EINVAL, "experts with top_k %u of %u, %u tokens, %u deferred", c->top_k, c->n_experts,
                       c->max_tok, c->max_deferred);
    if (c->act_dtype != TD_DT_F32 && c->act_dtype != TD_DT_BF16)
        return td_fail(err, TD_EINVAL, "activations of the experts are f32 or bf16");
    if (!isfinite(c->glu.alpha) || !isfinite(c->glu.up_add) || !(c->glu.limit >= 0) || !isfinite(c->glu.limit))
        return td_fail(err, TD_EINVAL, "the experts' gated unit has a limit of %g, alpha %g and %g to add",
                       (double)c->glu.limit, (double)c->glu.alpha, (double)c->glu.up_add);
    return TD_OK;
}

td_status td_experts_plan(const td_experts_config *c, uint32_t n_subpools, uint32_t n_workers, uint64_t *weight_bytes,
                          uint64_t *scratch_bytes, td_error *err) {
    const td_gemm_kernel *kernel = td_kernels_here()->product[c->format];
    expert_layout         l;
    expert_scratch_plan   scratch;
    *weight_bytes = *scratch_bytes = 0;
    TD_TRY(check_config(c, err));
    TD_TRY(td_expert_layout_init(&l, c, kernel->tiles, n_subpools, err));
    td_expert_scratch_init(&scratch, c, kernel, &l);
    *weight_bytes = l.layer_bytes * c->n_layers;
    *scratch_bytes = scratch.bytes + n_workers * scratch.worker_bytes;
    return TD_OK;
}

td_status td_expert_layer_memory(td_experts *x, uint32_t layer, td_error *err) {
    void **shards = x->shard_data + (size_t)layer * x->layout.n_shards;
    if (x->files[layer].base) td_expert_layer_release(x, layer);
    x->loaded[layer] = false;
    for (uint32_t s = 0; s < x->layout.n_shards; s++)
        if (!shards[s]) TD_TRY(td_mem_map(x->layout.shard[s].bytes, td_pool_node(x->pool, s), &shards[s], err));
    return TD_OK;
}

void td_expert_layer_release(td_experts *x, uint32_t layer) {
    void **shards = x->shard_data + (size_t)layer * x->layout.n_shards;
    bool   mapped = x->files[layer].base != NULL;
    x->loaded[layer] = false;
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        if (!mapped) td_mem_unmap(shards[s], x->layout.shard[s].bytes);
        shards[s] = NULL;
    }
    td_file_map_close(&x->files[layer]);
}

static td_status open_store(td_experts *x, td_error *err) {
    const td_experts_config *c = &x->config;
    TD_TRY(check_config(c, err));
    TD_TRY(td_expert_layout_init(&x->layout, c, x->kernel->tiles, td_pool_subpools(x->pool), err));
    td_expert_scratch_init(&x->scratch, c, x->kernel, &x->layout);
    x->shard_data = calloc((size_t)c->n_layers * x->layout.n_shards, sizeof *x->shard_data);
    x->files = calloc(c->n_layers, sizeof *x->files);
    x->loaded = calloc(c->n_layers, sizeof *x->loaded);
    x->worker_scratch = aligned_alloc(td_page_bytes(), td_pool_workers(x->pool) * x->scratch.worker_bytes);
    if (!x->shard_data || !x->files || !x->loaded || !x->worker_scratch)
        return td_fail(err, TD_ENOMEM, "out of memory for the expert store");
    TD_TRY(td_arena_open(&x->arena, x->scratch.bytes, td_pool_home(x->pool), err));
    return td_expert_ffn_open(x, err);
}

td_status td_experts_create(const td_experts_config *c, td_pool *pool, td_experts **out, td_error *err) {
    *out = NULL;
    td_experts *x = calloc(1, sizeof *x);
    if (!x) return td_fail(err, TD_ENOMEM, "out of memory for the expert store");
    x->config = *c;
    x->pool = pool;
    x->kernel = td_kernels_here()->product[c->format];
    x->rows = td_kernels_here()->rows;
    td_status status = open_store(x, err);
    if (status != TD_OK) {
        td_experts_destroy(x);
        return status;
    }
    *out = x;
    return TD_OK;
}

void td_experts_destroy(td_experts *x) {
    if (!x) return;
    td_expert_ffn_close(x);
    td_arena_close(&x->arena);
    for (uint32_t layer = 0; x->loaded && x->files && x->shard_data && layer < x->config.n_layers; layer++)
        td_expert_layer_release(x, layer);
    free(x->shard_data);
    free(x->files);
    free(x->loaded);
    free(x->worker_scratch);
    free(x);
}

const char *td_experts_kernel_name(const td_experts *x) {
    return x->kernel->name;
}

void td_experts_counters(const td_experts *x, uint64_t *pairs, td_tier_work *work) {
    *pairs = atomic_load_explicit(&x->n_pairs, memory_order_relaxed);
    *work = td_tier_read(&x->meter);
}

_Static_assert(TD_EXPERT_NODES_MAX >= TD_POOL_SUBPOOLS_MAX, "every shard may have a node of its own");

uint32_t td_experts_nodes(const td_experts *x, td_expert_node *out) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < x->layout.n_shards; s++) {
        uint32_t node = td_pool_node(x->pool, s), i = 0;
        if (node == TD_NODE_SPREAD) node = TD_NODE_ANY;
        while (i < n && out[i].node != node) i++;
        if (i == n) out[n++] = (td_expert_node){.node = node};
        out[i].share += (double)x->layout.shard[s].bytes / (double)x->layout.layer_bytes;
    }
    return n;
}

bool td_experts_doing(const td_experts *x, uint32_t *layer) {
    return td_tier_doing(&x->meter, layer) != NULL;
}

/* ---- from a checkpoint's views ----------------------------------------------------------------- */

static td_status check_view(const td_tensor_view *v, size_t n, size_t k, const char *name, size_t expert, td_error *err) {
    if (!v->coded && v->dtype != TD_DT_BF16 && v->dtype != TD_DT_F16 && v->dtype != TD_DT_F32)
        return td_fail(err, TD_ENOTSUP, "%s of expert %zu is neither bf16, f16 nor f32", name, expert);
    if (v->rank != 2 || v->shape[0] != n || v->shape[1] != k || !(v->data || v->coded))
        return td_fail(err, TD_EINVAL, "%s of expert %zu should have shape [%zu, %zu]", name, expert, n, k);
    return TD_OK;
}

static td_status check_bias(const td_tensor_view *v, size_t n, bool wanted, const char *name, size_t expert, td_error *err) {
    if (!wanted)
        return v->data ? td_fail(err, TD_EINVAL, "%s of expert %zu has a bias, which this model has not", name, expert)
                       : TD_OK;
    if (!v->data || v->rank != 1 || v->shape[0] != n)
        return td_fail(err, TD_EINVAL, "the bias of %s of expert %zu should have shape [%zu]", name, expert, n);
    if (v->coded || (v->dtype != TD_DT_BF16 && v->dtype != TD_DT_F16 && v->dtype != TD_DT_F32))
        return td_fail(err, TD_ENOTSUP, "the bias of %s of expert %zu is neither bf16, f16 nor f32", name, expert);
    return TD_OK;
}

/* The matrix that a worker is packing, its bytes fetched. */
typedef struct {
    size_t           expert; /* SIZE_MAX: none yet */
    td_expert_matrix m;
    td_tensor_view   view;
    td_coded_matrix  coded;  /* what view.coded points to */
    float            factor; /* of fp4g */
    void            *buffer;
    const void      *fetched; /* where the bytes came from */
    size_t           bytes;   /* 0: none */
} near_matrix;

typedef struct {
    const td_experts        *x;
    const td_expert_weights *experts;
    float (*factor)[TD_EXPERT_MATRICES]; /* [n_experts] of fp4g's matrices, where they are not near; or NULL: 1 */
    const td_expert_fetch *fetch;
    near_matrix           *near; /* [workers], or NULL: nothing is fetched */
} view_source;

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

/* Bytes of a view that lie one after the other; 0: not known here. */
static size_t view_bytes(const td_tensor_view *v) {
    size_t n = v->shape[0] * v->shape[1];
    if (!v->coded) return n * td_dtype_bytes(v->dtype);
    return v->coded->codes == TD_CODES_E4M3 || v->coded->codes == TD_CODES_INT8 ? n : 0;
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
    return td_expert_format_carries(TD_EXPERT_FP4G, &x->layout.groups, v->coded) ? 1
                                                                                 : td_fp4_factor(coded_amax(v->coded, row));
}

static void find_factors(void *ctx, uint32_t expert, const td_worker *w) {
    const view_source *src = ctx;
    for (int m = 0; m < TD_EXPERT_MATRICES; m++)
        src->factor[expert][m] = factor_of(src->x, td_expert_view(&src->experts[expert], (td_expert_matrix)m),
                                           expert_worker_scratch(src->x, w->index));
}

static void let_go(const view_source *src, near_matrix *here) {
    if (here->bytes) src->fetch->release(src->fetch->ctx, here->fetched, here->bytes);
    here->bytes = 0;
}

/* A worker's next matrix, in its buffer where that is better than where it lies. */
static void bring_near(const view_source *src, size_t expert, td_expert_matrix m, near_matrix *here, float *row) {
    const td_tensor_view *v = td_expert_view(&src->experts[expert], m);
    size_t                bytes = view_bytes(v);
    let_go(src, here);
    *here = (near_matrix){.expert = expert, .m = m, .view = *v, .buffer = here->buffer};
    if (v->coded) {
        here->coded = *v->coded;
        here->view.coded = &here->coded;
    }
    const void **data = v->coded ? &here->coded.data : &here->view.data;
    if (bytes) {
        here->fetched = *data;
        here->bytes = bytes;
        *data = src->fetch->fetch(src->fetch->ctx, *data, bytes, here->buffer);
    }
    here->factor = factor_of(src->x, &here->view, row);
}

static bool rows_of_view(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, size_t k,
                         const td_gemm_weights *out, void *tmp, uint32_t worker) {
    const view_source    *src = ctx;
    const td_tensor_view *v = td_expert_view(&src->experts[expert], m);
    size_t                cols = expert_matrix_cols(&src->x->layout, m);
    float                 factor = src->factor ? src->factor[expert][m] : 1;
    if (src->near) {
        near_matrix *here = &src->near[worker];
        if (here->expert != expert || here->m != m) bring_near(src, expert, m, here, tmp);
        v = &here->view;
        factor = here->factor;
    }
    if (v->coded) return coded_rows(src->x, v->coded, row, n, k, factor, out, tmp);
    return round_rows(src->x, v->dtype, (const char *)v->data + row * cols * td_dtype_bytes(v->dtype), n, cols, k, factor,
                      out, tmp);
}

static bool bias_of_view(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, float *out) {
    const view_source    *src = ctx;
    const td_tensor_view *v = td_expert_bias_view(&src->experts[expert], m);
    td_to_f32(v->dtype, (const char *)v->data + row * td_dtype_bytes(v->dtype), n, out);
    return isfinite(td_amax(TD_DT_F32, out, n));
}

static void close_near(view_source *src, size_t buffer_bytes) {
    for (uint32_t i = 0; src->near && i < td_pool_workers(src->x->pool); i++) {
        let_go(src, &src->near[i]);
        td_mem_unmap(src->near[i].buffer, buffer_bytes);
    }
    free(src->near);
}

/* A buffer for each worker. Several subpools each pack a part of every matrix: then the system's cache is what they share.
 */
static td_status open_near(view_source *src, const td_expert_fetch *fetch, size_t buffer_bytes, td_error *err) {
    uint32_t n = td_pool_workers(src->x->pool);
    if (!fetch || src->x->layout.n_shards > 1) return TD_OK;
    src->near = calloc(n, sizeof *src->near);
    if (!src->near) return td_fail(err, TD_ENOMEM, "out of memory for the experts' buffers");
    src->fetch = fetch;
    for (uint32_t i = 0; i < n; i++) {
        src->near[i].expert = SIZE_MAX;
        TD_TRY(td_mem_map(buffer_bytes, TD_NODE_ANY, &src->near[i].buffer, err));
    }
    return TD_OK;
}

td_status td_experts_load_views(td_experts *x, uint32_t layer, const td_expert_weights *experts,
                                const td_expert_fetch *fetch, td_error *err) {
    size_t hidden = x->config.hidden, inter = x->config.inter, widest = 0;
    if (layer >= x->config.n_layers) return td_fail(err, TD_EINVAL, "MoE layer %u of %u", layer, x->config.n_layers);
    for (size_t e = 0; e < x->config.n_experts; e++) {
        TD_TRY(check_view(&experts[e].gate, inter, hidden, "gate_proj", e, err));
        TD_TRY(check_view(&experts[e].up, inter, hidden, "up_proj", e, err));
        TD_TRY(check_view(&experts[e].down, hidden, inter, "down_proj", e, err));
        TD_TRY(check_bias(&experts[e].gate_bias, inter, x->config.bias, "gate_proj", e, err));
        TD_TRY(check_bias(&experts[e].up_bias, inter, x->config.bias, "up_proj", e, err));
        TD_TRY(check_bias(&experts[e].down_bias, hidden, x->config.bias, "down_proj", e, err));
        for (int m = 0; m < TD_EXPERT_MATRICES; m++) {
            size_t bytes = view_bytes(td_expert_view(&experts[e], (td_expert_matrix)m));
            widest = bytes > widest ? bytes : widest;
        }
    }
    view_source src = {.x = x, .experts = experts};
    td_status   status = open_near(&src, fetch, widest + TD_EXPERT_FETCH_SLACK, err);
    if (status == TD_OK && x->config.format == TD_EXPERT_FP4G && !src.near) {
        src.factor = calloc(x->config.n_experts, sizeof *src.factor);
        if (src.factor)
            td_pool_run(x->pool, find_factors, &src, x->config.n_experts);
        else
            status = td_fail(err, TD_ENOMEM, "out of memory for the factors of the experts");
    }
    if (status == TD_OK) status = td_expert_pack_layer(x, layer, rows_of_view, bias_of_view, &src, err);
    free(src.factor);
    close_near(&src, widest + TD_EXPERT_FETCH_SLACK);
    return status;
}

td_status td_experts_load_layer(td_experts *x, uint32_t layer, const td_expert_weights *experts, td_error *err) {
    return td_experts_load_views(x, layer, experts, NULL, err);
}

/* ---- matrices that are made ------------------------------------------------------------------------ */

/* The matrix that a worker is packing. */
typedef struct {
    size_t           expert; /* SIZE_MAX: none yet */
    td_expert_matrix m;
    float           *values; /* [n, k] */
    float            factor; /* of fp4g */
    td_status        status; /* of the first that could not be made */
} made_matrix;

typedef struct {
    const td_experts      *x;
    const td_expert_maker *maker;
    made_matrix           *made; /* [workers] */
} made_source;

static bool rows_of_made(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, size_t k,
                         const td_gemm_weights *out, void *tmp, uint32_t worker) {
    const made_source *src = ctx;
    made_matrix       *here = &src->made[worker];
    size_t             rows = expert_matrix_rows(&src->x->layout, m), cols = expert_matrix_cols(&src->x->layout, m);
    if (here->expert != expert || here->m != m) {
        here->expert = expert;
        here->m = m;
        td_status s = src->maker->make(src->maker->ctx, expert, m, here->values);
        if (s != TD_OK) here->status = s;
        const td_tensor_view view = {.dtype = TD_DT_F32, .rank = 2, .shape = {rows, cols}, .data = here->values};
        here->factor = s == TD_OK ? factor_of(src->x, &view, tmp) : 1;
    }
    return here->status == TD_OK &&
           round_rows(src->x, TD_DT_F32, here->values + row * cols, n, cols, k, here->factor, out, tmp);
}

td_status td_experts_load_made(td_experts *x, uint32_t layer, const td_expert_maker *maker, td_error *err) {
    if (layer >= x->config.n_layers) return td_fail(err, TD_EINVAL, "MoE layer %u of %u", layer, x->config.n_layers);
    uint32_t    n = td_pool_workers(x->pool);
    size_t      bytes = (size_t)x->config.hidden * x->config.inter * sizeof(float);
    made_source src = {.x = x, .maker = maker, .made = calloc(n, sizeof *src.made)};
    td_status   s = TD_OK;
    if (!src.made) return td_fail(err, TD_ENOMEM, "out of memory for the experts' buffers");
    for (uint32_t i = 0; s == TD_OK && i < n; i++) {
        void *values;
        src.made[i].expert = SIZE_MAX;
        s = td_mem_map(bytes, TD_NODE_ANY, &values, err);
        if (s == TD_OK) src.made[i].values = values;
    }
    if (s == TD_OK) s = td_expert_pack_layer(x, layer, rows_of_made, NULL, &src, err);
    for (uint32_t i = 0; i < n; i++) {
        if (src.made[i].status != TD_OK)
            s = td_fail(err, src.made[i].status, "a matrix of the experts in MoE layer %u cannot be made: %s",
                        x->config.first_layer + layer, td_status_text(src.made[i].status));
        td_mem_unmap(src.made[i].values, bytes);
    }
    free(src.made);
    return s;
}

/* ---- random weights ---------------------------------------------------------------------------- */

typedef struct {
    const expert_layout *layout;
    td_expert_format     format;
    uint32_t             layer;
    uint64_t             seed;
} random_source;

/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators"), one stream per row: fast, and the
   same weights for every kernel and shard count. */
static inline uint64_t next_random(uint64_t *s) {
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * 2685821657736338717u;
}

/* Eight codes of [-7, 7] from the low nibbles of eight bytes. */
static inline uint64_t random_codes(uint64_t r) {
    uint64_t u = r & 0x0f0f0f0f0f0f0f0fu;
    uint64_t zero = ~(u | u >> 1 | u >> 2 | u >> 3) & 0x0101010101010101u;
    uint64_t code = (u | zero) ^ 0x0808080808080808u;   /* 4-bit two's complement of u - 8 */
    return code | (code & 0x0808080808080808u) * 0x1eu; /* its sign in the upper nibble */
}

static void random_bf16(uint64_t *state, float rms, size_t cols, td_bf16 *out) {
    uint64_t exponent = (td_bf16)(td_f32_to_bf16(rms / 1.5f) & 0x7f80u);
    for (size_t i = 0; i < cols; i += 4) { /* random sign and mantissa: magnitudes in [1, 2) of the exponent */
        uint64_t bits = (next_random(state) & 0x807f807f807f807fu) | exponent * 0x0001000100010001u;
        memcpy(out + i, &bits, (cols - i < 4 ? cols - i : 4) * sizeof *out);
    }
}

/* Codes of [-7, 7], or odd ones of [-127, 127]. @return their rms. */
static float random_ints(uint64_t *state, bool int8, size_t cols, int8_t *out) {
    for (size_t i = 0; i < cols; i += 16) {
        uint64_t bits = next_random(state), codes[2] = {random_codes(bits), random_codes(bits >> 4)};
        if (int8) codes[0] = bits | 0x0101010101010101u, codes[1] = next_random(state) | 0x0101010101010101u;
        memcpy(out + i, codes, cols - i < 16 ? cols - i : 16);
    }
    return int8 ? 73.9f : 4.3f;
}

static bool random_rows(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, size_t k,
                        const td_gemm_weights *out, void *tmp, uint32_t worker) {
    const random_source *src = ctx;
    size_t               cols = expert_matrix_cols(src->layout, m), element = td_gemm_element((td_product)src->format);
    float                rms = 1.0f / sqrtf((float)cols); /* keeps the size of activations */
    (void)tmp;
    (void)worker;
    for (size_t r = 0; r < n; r++) {
        uint64_t state = td_rng_u64(src->seed, (uint64_t)src->layer << 32 | expert, (uint64_t)m << 32 | (row + r)) | 1u;
        char    *codes = (char *)out->rows + r * k * element;
        memset(codes + cols * element, 0, (k - cols) * element);
        if (src->format == TD_EXPERT_BF16) {
            random_bf16(&state, rms, cols, (td_bf16 *)codes);
            continue;
        }
        float scale = rms / random_ints(&state, src->format == TD_EXPERT_INT8C, cols, (int8_t *)codes);
        if (src->format == TD_EXPERT_FP4G) { /* every code of e2m1, their rms 2.93; scales of 1 */
            size_t n_groups = k / src->layout->groups.size;
            for (size_t i = 0; i < cols; i++) codes[i] &= 15;
            for (size_t g = 0; g < n_groups; g++) out->scale[r * n_groups + g] = 1;
            out->factor[r] = rms / 2.93f;
            continue;
        }
        if (src->format == TD_EXPERT_INT4G) {
            size_t n_groups = k / src->layout->groups.size;
            for (size_t i = 0; i < k; i++) codes[i] = (char)(codes[i] + 8);
            for (size_t g = 0; g < n_groups; g++)
                out->scale[r * n_groups + g] = td_bf16_to_f32((td_bf16)(td_f32_to_bf16(scale) & 0xfff8u)); /* f16 too */
        } else {
            out->scale[r] = scale;
        }
    }
    return true;
}

static bool random_bias(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, float *out) {
    const random_source *src = ctx;
    for (size_t r = 0; r < n; r++)
        out[r] =
            (float)td_rng_uniform(src->seed + 1, (uint64_t)src->layer << 32 | expert, (uint64_t)m << 32 | (row + r)) - 0.5f;
    return true;
}

td_status td_experts_fill_layer(td_experts *x, uint32_t layer, uint64_t seed, td_error *err) {
    if (layer >= x->config.n_layers) return td_fail(err, TD_EINVAL, "MoE layer %u of %u", layer, x->config.n_layers);
    random_source src = {&x->layout, x->config.format, layer, seed};
    return td_expert_pack_layer(x, layer, random_rows, random_bias, &src, err);
}
