/* Multi-head latent attention: projections, norms and rope, the cache, attention in either form, output projection. */
#include "core/error.h"
#include "npu/host/host_attention.h"

#define ABSORBED_ROWS 64 /* computed together: a head's W_UK and W_UV are read once for all of them */

static td_attn_shape shape_of(const td_mla_desc *m, td_attn_form form) {
    bool expanded = form == TD_ATTN_EXPANDED;
    return (td_attn_shape){
        .form = form,
        .heads = m->heads,
        .groups = expanded ? m->heads : 1,
        .dk = (expanded ? m->nope_dim : m->kv_lora) + m->rope_dim,
        .dv = expanded ? m->v_dim : m->kv_lora,
        .kv_lora = m->kv_lora,
        .nope = m->nope_dim,
        .rope = m->rope_dim,
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
    math->rope(rope, td_host_vector(m->rope) + (size_t)j->step->a.pos[row] * m->rope_dim, m->rope_dim);
    td_attn_store(j->d, m->kv_latent, slot, 1, 0, latent, m->kv_lora);
    td_attn_store(j->d, m->kv_rope, slot, 1, 0, rope, m->rope_dim);
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
    } else {
        td_host_products(d, &x, (td_host_product[]){{.w = m->q, .out = j->q, .ldo = q_width, .out_dtype = TD_DT_F32}, kv},
                         2);
        td_host_for(d, place_row, j, rows, rows * kv_width * 2);
    }
    td_host_for(d, rotate_row, j, rows, rows * m->heads * m->rope_dim);
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

/* ---- the block ------------------------------------------------------------------------------- */

static td_status run_mla(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_mla_desc *m = &b->desc.mla;
    size_t             v_width = (size_t)m->heads * m->v_dim;
    TD_TRY(td_host_check_attention_step(b, s, m->rope->shape.n));
    for (size_t row = 0; row < s->n_tok; row += b->at.chunk) {
        size_t  rows = s->n_tok - row < b->at.chunk ? s->n_tok - row : b->at.chunk;
        mla_job j = {
            .d = d,
            .b = b,
            .step = s,
            .row0 = row,
            .q_low = (float *)(d->scratch + b->at.q_low),
            .kv = (float *)(d->scratch + b->at.kv),
            .q = (float *)(d->scratch + b->at.q),
            .out = (float *)(d->scratch + b->at.out),
            .q_lat = (float *)(d->scratch + b->at.q_lat),
            .ctx = (float *)(d->scratch + b->at.ctx),
        };
        td_attn walk = {
            .d = d,
            .path = td_attn_path_of(d),
            .shape = shape_of(m, TD_ATTN_EXPANDED),
            .k = m->kv_latent,
            .v = m->kv_rope,
            .kv_b = m->kv_b,
            .step = s,
            .q = j.q,
            .out = j.out,
            .row0 = row,
            .workers = d->scratch + b->at.attn.workers,
            .partials = d->scratch + b->at.attn.partials,
        };
        j.absorbed = walk;
        j.absorbed.shape = shape_of(m, TD_ATTN_ABSORBED);
        j.absorbed.q = j.q_lat;
        j.absorbed.out = j.ctx;
        project(&j, rows);
        size_t n_segments = td_host_attn_sort(d, &b->at.attn, &walk.shape, s, row, rows, is_absorbed, flush_units, &j);
        td_host_attn_walk(&walk, (td_attn_segment *)(d->scratch + b->at.attn.segments), n_segments);
        td_host_rows o;
        td_host_rows_init(&o, d->scratch + b->at.rows, j.out, TD_DT_F32, rows, v_width);
        td_host_products(d, &o,
                         &(td_host_product){.w = m->o,
                                            .bias = m->o_bias,
                                            .out = (char *)m->out + td_host_act_bytes(d, row * m->hidden),
                                            .ldo = m->hidden,
                                            .out_dtype = d->act},
                         1);
    }
    return TD_OK;
}

static void place_mla(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_mla_desc *m = &desc->mla;
    td_attn_shape      walk = shape_of(m, TD_ATTN_EXPANDED), split = shape_of(m, TD_ATTN_ABSORBED);
    size_t             q_width = (size_t)m->heads * (m->nope_dim + m->rope_dim), v_width = (size_t)m->heads * m->v_dim;
    size_t             kv_width = (size_t)m->kv_lora + m->rope_dim;
    size_t             chunk = td_host_chunk_rows(desc->max_tok, (q_width + v_width + kv_width + m->q_lora) * sizeof(float));
    size_t             absorbed = chunk < ABSORBED_ROWS ? chunk : ABSORBED_ROWS;
    size_t             used = 0;
    b->run = run_mla;
    b->at.chunk = chunk;
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
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_mla = {.place = place_mla};
