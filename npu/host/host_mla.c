/*
 * Multi-head latent attention: projections, norms and rope, the cache, attention in either form, output projection.
 *
 * A row that chooses its keys (td_index_desc) is an absorbed row. What the cache has of its keys is copied to pages of the
 * row's own, which it attends to as to a sequence of so many keys. Where an index key stands for several tokens, these are the
 * tokens of the chosen ones, then those behind the last index key.
 */
#include <math.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "npu/host/host_attention.h"
#include "npu/host/host_index.h"
#include "npu/host/host_pool.h"

#define ABSORBED_ROWS 64 /* computed together: a head's W_UK and W_UV are read once for all of them */
#define CHOOSING_ROWS 16 /* the same of rows that have pages of their own */
#define INDEX_EPS 1e-6f

static td_attn_shape shape_of(const td_host_npu *d, const td_mla_desc *m, td_attn_form form) {
    bool expanded = form == TD_ATTN_EXPANDED;
    return (td_attn_shape){
        .form = form,
        .path = td_attn_path_of(d, m->kv_int8),
        .heads = m->heads,
        .groups = expanded ? m->heads : 1,
        .dk = (expanded ? m->nope_dim : m->kv_lora) + m->rope_dim,
        .dv = expanded ? m->v_dim : m->kv_lora,
        .kv_lora = m->kv_lora,
        .nope = m->nope_dim,
        .rope = m->rope_dim,
        .chosen = m->index.top ? td_index_first(&m->index) : 0,
        .scale = m->softmax_scale,
    };
}

typedef struct {
    td_host_npu        *d;
    const td_npu_block *b;
    const td_host_step *step;
    size_t              row0;
    float              *q_low, *kv, *q, *out; /* the chunk's rows */
    float              *q_lat, *ctx;          /* of a batch of absorbed rows */
    td_attn             absorbed;
    const td_attn_unit *units;
    size_t              n_units;
    float              *index_q, *index_weights;  /* what it reads */
    float              *index_keys, *index_gates; /* [rows][dim] keys of the rows; of a pool their gates */
    uint32_t           *seq_of;                   /* [rows] sequence of a row */
    char               *latents, *ropes;          /* pages of rows that choose, [rows][tiles] */
} mla_job;

/* ---- projections ----------------------------------------------------------------------------- */

static void place_row(void *ctx, uint32_t i, const td_worker *w) {
    const mla_job       *j = ctx;
    const td_mla_desc   *m = &j->b->desc.mla;
    const td_float_math *math = j->d->kernels->math;
    size_t               row = j->row0 + i, slot = j->step->a.slot[row];
    float               *latent = j->kv + i * ((size_t)m->kv_lora + m->rope_dim), *rope = latent + m->kv_lora;
    (void)w;
    math->rms_norm(latent, td_host_vector(m->kv_a_norm), m->eps, m->kv_lora, latent);
    if (m->rope) math->rope(rope, td_host_vector(m->rope) + (size_t)j->step->a.pos[row] * m->rope_dim, m->rope_dim);
    td_attn_store(j->d, j->absorbed.shape.path, m->kv_latent, slot, 1, 0, latent, m->kv_lora);
    if (m->rope_dim) td_attn_store(j->d, j->absorbed.shape.path, m->kv_rope, slot, 1, 0, rope, m->rope_dim);
    if (m->q_lora)
        math->rms_norm(j->q_low + (size_t)i * m->q_lora, td_host_vector(m->q_a_norm), m->eps, m->q_lora,
                       j->q_low + (size_t)i * m->q_lora);
}

static void rotate_row(void *ctx, uint32_t i, const td_worker *w) {
    const mla_job     *j = ctx;
    const td_mla_desc *m = &j->b->desc.mla;
    size_t             dim = (size_t)m->nope_dim + m->rope_dim;
    const float       *table = td_host_vector(m->rope) + (size_t)j->step->a.pos[j->row0 + i] * m->rope_dim;
    (void)w;
    for (size_t h = 0; h < m->heads; h++)
        j->d->kernels->math->rope(j->q + (i * (size_t)m->heads + h) * dim + m->nope_dim, table, m->rope_dim);
}

/* ---- the indexer ----------------------------------------------------------------------------- */

/* x = (x - mean) / deviation * gain + bias */
static void layer_norm(const td_float_math *math, float *x, const float *gain, const float *bias, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    for (size_t i = 0; i < n; i++) x[i] -= sum / (float)n;
    const float unit = 1 / sqrtf(math->dot(x, x, n) / (float)n + INDEX_EPS);
    for (size_t i = 0; i < n; i++) x[i] = x[i] * unit * gain[i] + bias[i];
}

static void index_row(void *ctx, uint32_t i, const td_worker *w) {
    const mla_job       *j = ctx;
    const td_mla_desc   *m = &j->b->desc.mla;
    const td_index_desc *x = &m->index;
    const td_float_math *math = j->d->kernels->math;
    const size_t         row = j->row0 + i, dim = x->dim;
    float               *key = j->index_keys + i * dim;
    (void)w;
    layer_norm(math, key, td_host_vector(x->k_norm), td_host_vector(x->k_norm_bias), dim);
    if (m->rope) {
        const float *table = td_host_vector(m->rope) + (size_t)j->step->a.pos[row] * m->rope_dim;
        math->rope(key, table, m->rope_dim);
        for (size_t h = 0; h < x->heads; h++) math->rope(j->index_q + (i * x->heads + h) * dim, table, m->rope_dim);
    }
    if (td_index_pool(x) == 1)
        td_host_index_store(j->d, x->keys, 1, j->step->a.slot[row] / TD_KV_PAGE, j->step->a.slot[row] % TD_KV_PAGE, key,
                            dim);
}

/* The keys of the chunk's rows go to their pages; rows choose among those up to their own. q_low is normed. */
static void choose(mla_job *j, td_host_rows *low, size_t rows) {
    const td_npu_block  *b = j->b;
    const td_mla_desc   *m = &b->desc.mla;
    const td_index_desc *x = &m->index;
    td_host_npu         *d = j->d;
    td_host_rows         in;
    if (!x->heads) return;
    td_host_products(
        d, low, &(td_host_product){.w = x->q, .out = j->index_q, .ldo = (size_t)x->heads * x->dim, .out_dtype = TD_DT_F32},
        1);
    td_host_rows_input(d, &in, d->scratch + b->at.x, m->in, (td_rows_i8){0}, j->row0, rows, m->hidden);
    td_host_products(
        d, &in,
        (td_host_product[]){{.w = x->k, .out = j->index_keys, .ldo = x->dim, .out_dtype = TD_DT_F32},
                            {.w = x->weights, .out = j->index_weights, .ldo = x->heads, .out_dtype = TD_DT_F32}},
        2);
    if (td_index_pool(x) > 1)
        td_host_products(d, &in,
                         &(td_host_product){.w = x->gate, .out = j->index_gates, .ldo = x->dim, .out_dtype = TD_DT_F32}, 1);
    td_host_for(d, index_row, j, rows, rows * ((size_t)x->heads * m->rope_dim + x->dim * 4));
    if (td_index_pool(x) > 1)
        td_host_pool_keys(&(td_host_pool){.d = d,
                                          .x = x,
                                          .s = &j->step->a,
                                          .n_seq = j->step->n_seq,
                                          .block_stride = j->step->block_stride,
                                          .row0 = j->row0,
                                          .rows = rows,
                                          .keys = j->index_keys,
                                          .gates = j->index_gates,
                                          .workers = d->scratch + b->at.index.pools});
    td_host_find_sequences(j->step, j->row0, rows, j->seq_of);
    td_host_index_choose(&(td_host_index){.d = d,
                                          .path = td_index_path_of(d),
                                          .s = j->step,
                                          .row0 = j->row0,
                                          .rows = rows,
                                          .heads = x->heads,
                                          .dim = x->dim,
                                          .top = td_index_choice(x),
                                          .ratio = td_index_pool(x),
                                          .keys = x->keys,
                                          .seq_of = j->seq_of,
                                          .q = j->index_q,
                                          .weights = j->index_weights,
                                          .queries = d->scratch + b->at.index.queries,
                                          .scores = (float *)(d->scratch + b->at.index.scores),
                                          .ld_scores = b->at.index.ld_scores,
                                          .chosen = x->chosen + j->row0 * td_index_choice(x),
                                          .workers = d->scratch + b->at.index.workers});
}

static void project(mla_job *j, size_t rows) {
    const td_npu_block *b = j->b;
    const td_mla_desc  *m = &b->desc.mla;
    td_host_npu        *d = j->d;
    size_t       q_width = (size_t)m->heads * (m->nope_dim + m->rope_dim), kv_width = (size_t)m->kv_lora + m->rope_dim;
    td_host_rows x, low;
    td_host_rows_input(d, &x, d->scratch + b->at.x, m->in, m->in_i8, j->row0, rows, m->hidden);
    td_host_product kv = {.w = m->kv_a, .bias = m->kv_a_bias, .out = j->kv, .ldo = kv_width, .out_dtype = TD_DT_F32};
    if (m->q_lora) {
        td_host_products(
            d, &x,
            (td_host_product[]){
                {.w = m->q_a, .bias = m->q_a_bias, .out = j->q_low, .ldo = m->q_lora, .out_dtype = TD_DT_F32}, kv},
            2);
        td_host_for(d, place_row, j, rows, rows * (kv_width + m->q_lora) * 2);
        td_host_rows_init(&low, d->scratch + b->at.q_rows, j->q_low, TD_DT_F32, rows, m->q_lora);
        td_host_products(d, &low, &(td_host_product){.w = m->q_b, .out = j->q, .ldo = q_width, .out_dtype = TD_DT_F32}, 1);
        choose(j, &low, rows);
    } else {
        td_host_products(d, &x, (td_host_product[]){{.w = m->q, .out = j->q, .ldo = q_width, .out_dtype = TD_DT_F32}, kv},
                         2);
        td_host_for(d, place_row, j, rows, rows * kv_width * 2);
    }
    if (m->rope) td_host_for(d, rotate_row, j, rows, rows * m->heads * m->rope_dim);
}

/* ---- absorbed rows --------------------------------------------------------------------------- */

/* Units that follow each other in the chunk too: their rows are one matrix. */
static size_t run_length(const mla_job *j, size_t i) {
    size_t n = 1;
    while (i + n < j->n_units && j->units[i + n].row == j->units[i].row + n) n++;
    return n;
}

static const void *head_matrix(const td_mla_desc *m, size_t head, size_t row) {
    return td_attn_up(m->kv_b, head, m->nope_dim, m->v_dim, m->kv_lora, row);
}

/* What a head's worker most likely reads next: the same matrix of the next head. Only the first of several products
 * prefetches it. */
static const char *next_head(const td_mla_desc *m, size_t head, size_t row, size_t product) {
    return product == 0 && head + 1 < m->heads ? head_matrix(m, head + 1, row) : NULL;
}

/* q_lat = W_UK^T q_nope, with the rope part behind it: scores against the latent cache. */
static void absorb_head(void *ctx, uint32_t head, const td_worker *w) {
    const mla_job     *j = ctx;
    const td_mla_desc *m = &j->b->desc.mla;
    size_t             dim = (size_t)m->nope_dim + m->rope_dim, dk = (size_t)m->kv_lora + m->rope_dim;
    (void)w;
    for (size_t i = 0, n; i < j->n_units; i += n) {
        n = run_length(j, i);
        const float *q = j->q + ((j->units[i].row - j->row0) * m->heads + head) * dim;
        float       *lat = j->q_lat + (i * m->heads + head) * dk;
        j->d->kernels->math->gemm(&(td_fgemm_args){
            .m = n,
            .n = m->kv_lora,
            .k = m->nope_dim,
            .a = q,
            .lda = m->heads * dim,
            .b = head_matrix(m, head, 0),
            .ldb = m->kv_lora,
            .b_dtype = td_attn_up_dtype(m->kv_b),
            .c = lat,
            .ldc = m->heads * dk,
            .ahead = next_head(m, head, 0, i),
        });
        for (size_t r = 0; r < n; r++)
            memcpy(lat + r * m->heads * dk + m->kv_lora, q + r * m->heads * dim + m->nope_dim, m->rope_dim * sizeof(float));
    }
}

/* out = W_UV ctx, after the spans of each row are merged. */
static void unabsorb_head(void *ctx, uint32_t head, const td_worker *w) {
    const mla_job     *j = ctx;
    const td_mla_desc *m = &j->b->desc.mla;
    (void)w;
    for (size_t i = 0; i < j->n_units; i++) td_host_attn_merge(&j->absorbed, &j->units[i], head);
    for (size_t i = 0, n; i < j->n_units; i += n) {
        n = run_length(j, i);
        j->d->kernels->math->gemm(&(td_fgemm_args){
            .m = n,
            .n = m->v_dim,
            .k = m->kv_lora,
            .a = j->ctx + (i * m->heads + head) * m->kv_lora,
            .lda = (size_t)m->heads * m->kv_lora,
            .b = head_matrix(m, head, m->nope_dim),
            .ldb = m->v_dim,
            .b_dtype = td_attn_up_dtype(m->kv_b),
            .c = j->out + ((j->units[i].row - j->row0) * m->heads + head) * m->v_dim,
            .ldc = (size_t)m->heads * m->v_dim,
            .ahead = next_head(m, head, m->nope_dim, i),
        });
    }
}

static bool is_absorbed(const td_host_step *step, uint32_t seq, size_t n_rows) {
    (void)n_rows;
    return step->a.absorbed[seq] != 0;
}

static void flush_units(void *ctx, td_attn_unit *units, size_t n) {
    mla_job *j = ctx;
    for (size_t i = 0; i < n; i++) units[i].q_row = (uint32_t)i;
    j->units = units;
    j->n_units = n;
    td_pool_run(j->d->pool, absorb_head, j, j->b->desc.mla.heads);
    td_host_attn_split(&j->absorbed, units, n);
    td_pool_run(j->d->pool, unabsorb_head, j, j->b->desc.mla.heads);
}

/* ---- rows that choose their keys --------------------------------------------------------------- */

static size_t tiles_of_choice(const td_mla_desc *m) {
    return (td_index_first(&m->index) + TD_ATTN_TILE - 1) / TD_ATTN_TILE;
}

/* The position of a row's key k. */
static size_t position_of(const mla_job *j, const td_attn_unit *u, size_t k) {
    const td_index_desc *x = &j->b->desc.mla.index;
    const size_t         pool = td_index_pool(x);
    if (k >= x->top) return (j->step->a.pos[u->row] + (size_t)1) / pool * pool + k - x->top;
    return x->chosen[(size_t)u->row * td_index_choice(x) + k / pool] * pool + k % pool;
}

/* Items are the tiles of one unit after the other. */
static void gather_item(void *ctx, uint32_t item, const td_worker *w) {
    const mla_job      *j = ctx;
    const td_mla_desc  *m = &j->b->desc.mla;
    const td_attn_path *path = j->absorbed.shape.path;
    const td_attn_unit *u = &j->units[item / tiles_of_choice(m)];
    const size_t        latent = path->page_bytes(m->kv_lora), rope = path->page_bytes(m->rope_dim),
                 first = item % tiles_of_choice(m) * TD_ATTN_TILE, rest = u->n_keys > first ? u->n_keys - first : 0,
                 n = rest < TD_ATTN_TILE ? rest : TD_ATTN_TILE;
    const uint32_t *pages = j->step->a.block_table + (size_t)u->seq * j->step->block_stride;
    char           *latents = j->latents + item * latent, *ropes = j->ropes + item * rope;
    (void)w;
    if (n < TD_ATTN_TILE) { /* what no row has written is no number */
        memset(latents, 0, latent);
        memset(ropes, 0, rope);
    }
    for (size_t k = 0; k < n; k++) {
        const size_t pos = position_of(j, u, first + k), page = pages[pos / TD_KV_PAGE], at = pos % TD_KV_PAGE;
        path->copy(latents, k, (const char *)m->kv_latent + page * latent, at, m->kv_lora);
        if (m->rope_dim) path->copy(ropes, k, (const char *)m->kv_rope + page * rope, at, m->rope_dim);
    }
}

/* The rows of a batch, as absorbed rows of sequences whose pages lie one after the other. */
static void attend_to_chosen(mla_job *j, td_attn_unit *units, size_t n) {
    const td_mla_desc *m = &j->b->desc.mla;
    const uint32_t     tiles = (uint32_t)tiles_of_choice(m);
    uint32_t          *pages = (uint32_t *)(j->d->scratch + j->b->at.own_pages);
    mla_job            own = *j;
    td_host_step       step = *j->step;
    j->units = units;
    td_pool_run(j->d->pool, gather_item, j, (uint32_t)n * tiles);
    for (uint32_t i = 0; i < n * tiles; i++) pages[i] = i;
    for (uint32_t i = 0; i < n; i++) units[i].seq = i;
    step.a.block_table = pages;
    step.block_stride = tiles;
    own.absorbed.step = &step;
    own.absorbed.k = j->latents;
    own.absorbed.v = j->ropes;
    flush_units(&own, units, n);
}

static void attend_choosing_rows(mla_job *j, const td_attn_share *share) {
    const td_mla_desc *m = &j->b->desc.mla;
    const uint32_t     keys = td_index_first(&m->index), spans = (keys + TD_HOST_SPAN - 1) / TD_HOST_SPAN;
    const size_t       first = share->row + td_attn_share_begin(share, share->i, share->rows),
                 end = share->row + td_attn_share_begin(share, share->i + 1, share->rows);
    td_attn_unit *units = (td_attn_unit *)(j->d->scratch + j->b->at.attn.units);
    size_t        most = j->b->at.attn.spans_max / spans, n = 0;
    if (most > j->b->at.choosing) most = j->b->at.choosing;
    for (uint32_t q = 0; q < j->step->n_seq; q++)
        for (uint32_t row = j->step->a.seq_start[q]; row < j->step->a.seq_start[q + 1]; row++) {
            if (row < first || row >= end || j->step->a.pos[row] < keys) continue;
            const uint32_t met = m->index.top + (j->step->a.pos[row] + 1) % td_index_pool(&m->index);
            units[n++] =
                (td_attn_unit){.row = row, .seq = q, .n_keys = met, .n_spans = (met + TD_HOST_SPAN - 1) / TD_HOST_SPAN};
            if (n == most) {
                attend_to_chosen(j, units, n);
                n = 0;
            }
        }
    if (n) attend_to_chosen(j, units, n);
}

/* ---- the block ------------------------------------------------------------------------------- */

static void run_share(td_host_npu *d, const td_npu_block *b, const td_host_step *s, const td_attn_share *share,
                      char *between) {
    const td_mla_desc *m = &b->desc.mla;
    const size_t       v_width = (size_t)m->heads * m->v_dim, q_width = (size_t)m->heads * (m->nope_dim + m->rope_dim);
    mla_job            j = {
                   .d = d,
                   .b = b,
                   .step = s,
                   .row0 = share->row,
                   .q_low = (float *)(d->scratch + b->at.q_low),
                   .kv = (float *)(d->scratch + b->at.kv),
                   .q = (float *)(between ? between : d->scratch + b->at.q),
                   .out = between ? (float *)between + share->rows * q_width : (float *)(d->scratch + b->at.out),
                   .q_lat = (float *)(d->scratch + b->at.q_lat),
                   .ctx = (float *)(d->scratch + b->at.ctx),
                   .index_q = (float *)(d->scratch + b->at.index.q),
                   .index_weights = (float *)(d->scratch + b->at.index.weights),
                   .index_keys = (float *)(d->scratch + b->at.index.keys),
                   .index_gates = (float *)(d->scratch + b->at.index.gates),
                   .seq_of = (uint32_t *)(d->scratch + b->at.index.seq_of),
                   .latents = d->scratch + b->at.own_latents,
                   .ropes = d->scratch + b->at.own_ropes,
    };
    td_attn walk = {
        .d = d,
        .shape = shape_of(d, m, TD_ATTN_EXPANDED),
        .k = m->kv_latent,
        .v = m->kv_rope,
        .kv_b = m->kv_b,
        .step = s,
        .q = j.q,
        .out = j.out,
        .row0 = share->row,
        .workers = d->scratch + b->at.attn.workers,
        .partials = d->scratch + b->at.attn.partials,
    };
    j.absorbed = walk;
    j.absorbed.shape = shape_of(d, m, TD_ATTN_ABSORBED);
    j.absorbed.q = j.q_lat;
    j.absorbed.out = j.ctx;
    if (share->i == 0) project(&j, share->rows);
    size_t n_segments = td_host_attn_sort(d, &b->at.attn, &walk.shape, s, share, is_absorbed, flush_units, &j);
    td_host_attn_walk(&walk, (td_attn_segment *)(d->scratch + b->at.attn.segments), n_segments, share);
    if (m->index.top) attend_choosing_rows(&j, share);
    if (share->i + 1 < share->n) return;
    td_host_rows o;
    td_host_rows_init(&o, d->scratch + b->at.rows, j.out, TD_DT_F32, share->rows, v_width);
    td_host_products(d, &o,
                     &(td_host_product){.w = m->o,
                                        .bias = m->o_bias,
                                        .out = (char *)m->out + td_host_act_bytes(d, share->row * m->hidden),
                                        .ldo = m->hidden,
                                        .out_dtype = d->act},
                     1);
}

static td_status run_mla(td_host_npu *d, const td_npu_block *b, const td_host_step *s, const td_block_part *part) {
    td_attn_share        share;
    const td_npu_weight *rope = b->desc.mla.rope;
    const td_index_desc *x = &b->desc.mla.index;
    TD_TRY(td_host_check_attention_step(b, s, rope ? rope->shape.n : UINT32_MAX));
    if (td_index_open_values(x)) TD_TRY(td_host_check_open(s, x->open_slots));
    for (uint32_t k = 0; td_host_attn_share_of(part, s->n_tok, b->at.chunk, k, &share); k++)
        run_share(d, b, s, &share, part->between);
    return TD_OK;
}

static size_t parts_of_mla(const td_host_npu *d, const td_npu_block *b, size_t n_tok, td_parts_wanted wanted) {
    const td_attn_shape shape = shape_of(d, &b->desc.mla, TD_ATTN_EXPANDED);
    return td_host_attn_parts(d, &shape, n_tok, b->at.chunk, wanted);
}

static void place_mla(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_mla_desc   *m = &desc->mla;
    td_attn_shape        walk = shape_of(d, m, TD_ATTN_EXPANDED), split = shape_of(d, m, TD_ATTN_ABSORBED);
    size_t               q_width = (size_t)m->heads * (m->nope_dim + m->rope_dim), v_width = (size_t)m->heads * m->v_dim;
    size_t               kv_width = (size_t)m->kv_lora + m->rope_dim;
    const td_index_desc *x = &m->index;
    const td_index_path *index = td_index_path_of(d);
    const size_t         index_q = (size_t)x->heads * x->dim,
                 scores = index_q ? td_host_index_ld(desc->max_kv, td_index_pool(x)) : 0,
                 queries = index_q ? index->query_bytes(d, x->heads, x->dim) : 0;
    size_t chunk = td_host_chunk_rows(
        desc->max_tok, (q_width + v_width + kv_width + m->q_lora + index_q + 2 * x->dim + scores) * sizeof(float) + queries);
    size_t absorbed = chunk < ABSORBED_ROWS ? chunk : ABSORBED_ROWS;
    size_t used = 0;
    b->run_part = run_mla;
    b->parts = parts_of_mla;
    b->at.chunk = chunk;
    b->at.between = (q_width + v_width) * sizeof(float);
    b->at.x = td_host_place(&used, td_host_rows_bytes(chunk, m->hidden, d->act));
    b->at.q_low = td_host_place(&used, chunk * m->q_lora * sizeof(float));
    b->at.q_rows = td_host_place(&used, td_host_rows_bytes(chunk, m->q_lora, TD_DT_F32));
    b->at.kv = td_host_place(&used, chunk * kv_width * sizeof(float));
    b->at.q = td_host_place(&used, chunk * q_width * sizeof(float));
    b->at.out = td_host_place(&used, chunk * v_width * sizeof(float));
    b->at.rows = td_host_place(&used, td_host_rows_bytes(chunk, v_width, TD_DT_F32));
    b->at.q_lat = td_host_place(&used, absorbed * m->heads * kv_width * sizeof(float));
    b->at.ctx = td_host_place(&used, absorbed * m->heads * m->kv_lora * sizeof(float));
    td_host_attn_place(d, &used, &walk, &split, chunk, desc->max_kv, absorbed, &b->at.attn);
    if (index_q) {
        b->at.index.q = td_host_place(&used, chunk * index_q * sizeof(float));
        b->at.index.keys = td_host_place(&used, chunk * x->dim * sizeof(float));
        if (td_index_pool(x) > 1) {
            b->at.index.gates = td_host_place(&used, chunk * x->dim * sizeof(float));
            b->at.index.pools = td_host_place(&used, td_host_pool_bytes(x) * d->n_workers);
        }
        b->at.index.weights = td_host_place(&used, chunk * x->heads * sizeof(float));
        b->at.index.seq_of = td_host_place(&used, chunk * sizeof(uint32_t));
        b->at.index.queries = td_host_place(&used, chunk * queries);
        b->at.index.ld_scores = scores;
        b->at.index.scores = td_host_place(&used, chunk * scores * sizeof(float));
        b->at.index.workers = td_host_place(&used, index->bytes(d, x->heads, x->dim) * d->n_workers);
    }
    if (x->top && td_index_first(x) < desc->max_kv) {
        const td_attn_path *path = walk.path;
        b->at.choosing = absorbed < CHOOSING_ROWS ? absorbed : CHOOSING_ROWS;
        const size_t pages = b->at.choosing * tiles_of_choice(m);
        b->at.own_pages = td_host_place(&used, pages * sizeof(uint32_t));
        b->at.own_latents = td_host_place(&used, pages * path->page_bytes(m->kv_lora));
        b->at.own_ropes = td_host_place(&used, pages * path->page_bytes(m->rope_dim));
    }
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_mla = {.place = place_mla};
