/* Grouped-query attention: projections, norms and rope, the cache, attention, output projection. */
#include "core/error.h"
#include "npu/host/host_attention.h"

#define SPLIT_ROWS 8         /* a sequence with fewer rows in the chunk is computed by spans */
#define FULL_CHUNK_ROWS 1024 /* of a full block, whose chunks are done one after the other */
#define FULL_PART_ROWS 64    /* of its parts at least: so many go through a walk together */

static td_attn_shape shape_of(const td_host_npu *d, const td_gqa_desc *g) {
    return (td_attn_shape){.form = TD_ATTN_GQA,
                           .path = td_attn_path_of(d, g->kv_int8),
                           .heads = g->heads,
                           .groups = g->kv_heads,
                           .dk = g->head_dim,
                           .dv = g->head_dim,
                           .window = g->window,
                           .scale = g->softmax_scale};
}

typedef struct {
    td_host_npu        *d;
    const td_npu_block *b;
    const td_host_step *step;
    size_t              row0;
    float              *q, *k, *v; /* the chunk's rows */
    float              *projected; /* what q gives: q, or with gates per head [query | gate] */
    float              *out;       /* sums of values */
    const td_attn      *attn;
    const td_attn_unit *units;
} gqa_job;

/* The row's cosines, then its sines: those of a position, or put together from those of three. @param i in the chunk. */
static const float *rotation_of(const gqa_job *j, size_t i) {
    const td_gqa_desc *g = &j->b->desc.gqa;
    const size_t       row = j->row0 + i, rotated = td_gqa_rope_dim(g), half = rotated / 2;
    const float       *table = td_host_vector(g->rope);
    const uint32_t    *pos = j->step->a.rope_pos ? j->step->a.rope_pos + 3 * row : NULL;
    if (!td_rope_has_axes(&g->axes) || !pos) return table + j->step->a.pos[row] * rotated;
    if (pos[0] == pos[1] && pos[0] == pos[2]) return table + pos[0] * rotated;
    float *made = (float *)(j->d->scratch + j->b->at.rotation) + i * rotated;
    memcpy(made, table + pos[0] * rotated, rotated * sizeof *made);
    const size_t pairs[] = {0, g->axes.rows, g->axes.columns};
    for (size_t axis = 1; axis < 3; axis++) {
        const float *from = table + pos[axis] * rotated;
        const size_t behind = axis == 1 ? half - pairs[2] : half, step = g->axes.contiguous ? 1 : 3,
                     first = g->axes.contiguous ? behind - pairs[axis] : axis,
                     end = g->axes.contiguous ? behind : 3 * pairs[axis];
        for (size_t k = first; k < end && k < half; k += step) {
            made[k] = from[k];
            made[half + k] = from[half + k];
        }
    }
    return made;
}

/* Norm of a row of n heads, each of them or all at once, then rope. */
static void rotate_row(const gqa_job *j, float *x, size_t n, const td_npu_weight *norm, const float *rotation) {
    const td_gqa_desc   *g = &j->b->desc.gqa;
    const td_float_math *m = j->d->kernels->math;
    size_t               dim = g->head_dim, rotated = td_gqa_rope_dim(g);
    if (norm && g->norm_rows) m->rms_norm(x, td_host_vector(norm), g->eps, n * dim, x);
    for (size_t h = 0; h < n; h++) {
        if (norm && !g->norm_rows) m->rms_norm(x + h * dim, td_host_vector(norm), g->eps, dim, x + h * dim);
        m->rope(x + h * dim, rotation, rotated);
    }
}

/* A row's queries from between the gates. */
static void take_queries(const gqa_job *j, size_t i) {
    const td_gqa_desc *g = &j->b->desc.gqa;
    size_t             dim = g->head_dim, first = i * g->heads;
    for (size_t h = first; h < first + g->heads; h++) memcpy(j->q + h * dim, j->projected + 2 * h * dim, dim * sizeof *j->q);
}

/* A head's sum of values times the sigmoid of its gate. */
static void gate_head(void *ctx, uint32_t i, const td_worker *w) {
    const gqa_job *j = ctx;
    size_t         dim = j->b->desc.gqa.head_dim;
    float         *gate = j->projected + (2 * (size_t)i + 1) * dim, *out = j->out + i * dim;
    (void)w;
    j->d->kernels->math->sigmoid(gate, dim);
    for (size_t k = 0; k < dim; k++) out[k] *= gate[k];
}

/* Norm and rope of a row's queries. */
static void place_queries(void *ctx, uint32_t i, const td_worker *w) {
    const gqa_job     *j = ctx;
    const td_gqa_desc *g = &j->b->desc.gqa;
    (void)w;
    if (g->gated) take_queries(j, i);
    rotate_row(j, j->q + (size_t)i * g->heads * g->head_dim, g->heads, g->q_norm, rotation_of(j, i));
}

/* Norm and rope of a row's keys; its keys and values go to the cache. */
static void place_keys(void *ctx, uint32_t i, const td_worker *w) {
    const gqa_job     *j = ctx;
    const td_gqa_desc *g = &j->b->desc.gqa;
    size_t             row = j->row0 + i, dim = g->head_dim, at = i * g->kv_heads * dim;
    size_t             slot = g->window ? j->step->a.window_slot[row] : j->step->a.slot[row];
    (void)w;
    rotate_row(j, j->k + at, g->kv_heads, g->k_norm, rotation_of(j, i));
    for (size_t h = 0; h < g->kv_heads; h++) {
        td_attn_store(j->d, j->attn->shape.path, g->kv_k, slot, g->kv_heads, h, j->k + at + h * dim, dim);
        td_attn_store(j->d, j->attn->shape.path, g->kv_v, slot, g->kv_heads, h, j->v + at + h * dim, dim);
    }
}

static void place_row(void *ctx, uint32_t i, const td_worker *w) {
    place_queries(ctx, i, w);
    place_keys(ctx, i, w);
}

typedef enum { QUERIES = 1, KEYS = 2 } gqa_parts;

/* Queries, keys and values of the chunk's rows, or some of these; keys and values go to the cache. */
static void project(gqa_job *j, size_t rows, gqa_parts parts) {
    const td_npu_block *b = j->b;
    const td_gqa_desc  *g = &b->desc.gqa;
    td_host_npu        *d = j->d;
    const size_t        q_width = (size_t)g->heads * g->head_dim, kv_width = (size_t)g->kv_heads * g->head_dim,
                 width = (parts & QUERIES ? q_width : 0) + (parts & KEYS ? 2 * kv_width : 0);
    const td_host_product products[] = {
        {.w = g->q, .bias = g->q_bias, .out = j->projected, .ldo = td_gqa_q_rows(g), .out_dtype = TD_DT_F32},
        {.w = g->k, .bias = g->k_bias, .out = j->k, .ldo = kv_width, .out_dtype = TD_DT_F32},
        {.w = g->v, .bias = g->v_bias, .out = j->v, .ldo = kv_width, .out_dtype = TD_DT_F32}};
    td_host_rows x;
    if (b->desc.rows_f32)
        td_host_rows_init(&x, d->scratch + b->at.x, (const float *)g->in + j->row0 * g->hidden, TD_DT_F32, rows, g->hidden);
    else
        td_host_rows_input(d, &x, d->scratch + b->at.x, g->in, g->in_i8, j->row0, rows, g->hidden);
    td_host_products(d, &x, parts & QUERIES ? products : products + 1, parts == QUERIES ? 1 : parts == KEYS ? 2 : 3);
    td_host_for(d, parts == QUERIES ? place_queries : parts == KEYS ? place_keys : place_row, j, rows, rows * width * 2);
}

static void merge_item(void *ctx, uint32_t i, const td_worker *w) {
    const gqa_job *j = ctx;
    size_t         heads = j->b->desc.gqa.heads;
    (void)w;
    td_host_attn_merge(j->attn, &j->units[i / heads], i % heads);
}

static bool by_spans(const td_host_step *step, uint32_t seq, size_t n_rows) {
    (void)step, (void)seq;
    return n_rows < SPLIT_ROWS;
}

static void flush_units(void *ctx, td_attn_unit *units, size_t n) {
    gqa_job *j = ctx;
    size_t   heads = j->b->desc.gqa.heads, cost = 0;
    td_host_attn_split(j->attn, units, n);
    j->units = units;
    for (size_t i = 0; i < n; i++) cost += (units[i].n_spans + 1) * heads * j->attn->shape.dv;
    td_host_for(j->d, merge_item, j, n * heads, cost);
}

static void run_share(td_host_npu *d, const td_npu_block *b, const td_host_step *s, const td_attn_share *share,
                      char *between) {
    const td_gqa_desc *g = &b->desc.gqa;
    const size_t       row = share->row, rows = share->rows;
    const size_t       q_width = (size_t)g->heads * g->head_dim;
    gqa_job            j = {.d = d,
                            .b = b,
                            .step = s,
                            .row0 = row,
                            .q = (float *)(between ? between : d->scratch + b->at.q),
                            .k = (float *)(d->scratch + b->at.k),
                            .v = (float *)(d->scratch + b->at.v),
                            .out = between ? (float *)between + rows * q_width : (float *)(d->scratch + b->at.out)};
    td_attn            attn = {.d = d,
                               .shape = shape_of(d, g),
                               .k = g->kv_k,
                               .v = g->kv_v,
                               .sinks = td_host_vector(g->sinks),
                               .step = s,
                               .q = j.q,
                               .out = j.out,
                               .row0 = row,
                               .workers = d->scratch + b->at.attn.workers,
                               .partials = d->scratch + b->at.attn.partials};
    j.projected = !g->gated ? j.q : between ? j.out + rows * q_width : (float *)(d->scratch + b->at.q_rows);
    j.attn = &attn;
    if (share->i == 0) project(&j, rows, g->full ? QUERIES : QUERIES | KEYS);
    size_t n_segments = td_host_attn_sort(d, &b->at.attn, &attn.shape, s, share, by_spans, flush_units, &j);
    td_host_attn_walk(&attn, (td_attn_segment *)(d->scratch + b->at.attn.segments), n_segments, share);
    if (share->i + 1 < share->n) return;
    td_host_rows   o;
    const td_dtype dtype = td_host_rows_dtype(d, &b->desc);
    if (g->gated) td_host_for(d, gate_head, &j, rows * g->heads, rows * q_width * 4);
    td_host_rows_init(&o, d->scratch + b->at.rows, j.out, TD_DT_F32, rows, q_width);
    td_host_products(d, &o,
                     &(td_host_product){.w = g->o,
                                        .bias = g->o_bias,
                                        .out = (char *)g->out + row * g->hidden * td_dtype_bytes(dtype),
                                        .ldo = g->hidden,
                                        .out_dtype = dtype},
                     1);
}

/* Whether the table has all positions of rope. */
static bool has_positions(const td_gqa_desc *g, const td_host_step *s) {
    if (!td_rope_has_axes(&g->axes) || !s->a.rope_pos) return true;
    for (size_t i = 0; i < 3 * (size_t)s->n_tok; i++)
        if (s->a.rope_pos[i] >= g->rope->shape.n) return false;
    return true;
}

/* All rows meet the keys that the last one of their sequence meets: its position becomes theirs. */
static td_status see_all_rows(const td_host_npu *d, const td_npu_block *b, td_host_step *s) {
    uint32_t *pos = (uint32_t *)(d->scratch + b->at.last_pos);
    for (uint32_t q = 0; q < s->n_seq; q++) {
        if (s->a.kv_len[q] != s->a.seq_start[q + 1] - s->a.seq_start[q]) return TD_EINVAL;
        for (uint32_t row = s->a.seq_start[q]; row < s->a.seq_start[q + 1]; row++) pos[row] = s->a.kv_len[q] - 1;
    }
    s->a.pos = pos;
    return TD_OK;
}

/* Keys and values of rows first to end - 1. */
static void project_keys(td_host_npu *d, const td_npu_block *b, const td_host_step *s, size_t first, size_t end) {
    const td_attn attn = {.shape = shape_of(d, &b->desc.gqa)};
    gqa_job       j = {.d = d,
                       .b = b,
                       .step = s,
                       .row0 = first,
                       .k = (float *)(d->scratch + b->at.k),
                       .v = (float *)(d->scratch + b->at.v),
                       .attn = &attn};
    for (; j.row0 < end; j.row0 += b->at.chunk) project(&j, end - j.row0 < b->at.chunk ? end - j.row0 : b->at.chunk, KEYS);
}

static size_t full_runs(size_t n_tok) {
    return (n_tok + FULL_PART_ROWS - 1) / FULL_PART_ROWS;
}

/* Of n parts of a full block, the first ones, which have keys alone: by the share of the work that these are. */
static size_t parts_of_keys(const td_gqa_desc *g, size_t n_tok, size_t n) {
    const size_t keys = 2 * (size_t)g->kv_heads * g->hidden, rows = 2 * (size_t)g->heads * (g->hidden + n_tok),
                 least = n * keys / (keys + rows);
    return least ? least : 1;
}

/* Part i of n of n_tok rows, in whole runs. */
static size_t full_row(size_t n_tok, size_t i, size_t n) {
    const size_t row = full_runs(n_tok) * i / n * FULL_PART_ROWS;
    return row < n_tok ? row : n_tok;
}

/* All keys come before the first row meets them. A chunk of rows is computed from its queries to its outputs. */
static void run_full(td_host_npu *d, const td_npu_block *b, const td_host_step *s, const td_block_part *part) {
    const size_t n_keys = part->n > 1 ? parts_of_keys(&b->desc.gqa, s->n_tok, part->n) : 0, n_rows = part->n - n_keys;
    if (part->n == 1) project_keys(d, b, s, 0, s->n_tok);
    if (part->i < n_keys) {
        project_keys(d, b, s, full_row(s->n_tok, part->i, n_keys), full_row(s->n_tok, part->i + 1, n_keys));
        return;
    }
    const size_t end = full_row(s->n_tok, part->i + 1 - n_keys, n_rows);
    for (size_t row = full_row(s->n_tok, part->i - n_keys, n_rows); row < end; row += b->at.chunk)
        run_share(d, b, s, &(td_attn_share){.row = row, .rows = end - row < b->at.chunk ? end - row : b->at.chunk, .n = 1},
                  NULL);
}

static td_status run_gqa(td_host_npu *d, const td_npu_block *b, const td_host_step *step, const td_block_part *part) {
    const td_gqa_desc *g = &b->desc.gqa;
    const bool         by_axes = td_rope_has_axes(&g->axes) && step->a.rope_pos;
    td_host_step       own = *step, *s = &own;
    td_attn_share      share;
    TD_TRY(td_host_check_attention_step(b, s, by_axes ? UINT32_MAX : g->rope->shape.n));
    if (!has_positions(g, s) || (g->full && !by_axes)) return TD_EINVAL;
    if (g->full) {
        TD_TRY(see_all_rows(d, b, s));
        run_full(d, b, s, part);
        return TD_OK;
    }
    for (uint32_t k = 0; td_host_attn_share_of(part, s->n_tok, b->at.chunk, k, &share); k++)
        run_share(d, b, s, &share, part->between);
    return TD_OK;
}

static size_t parts_of_gqa(const td_host_npu *d, const td_npu_block *b, size_t n_tok, td_parts_wanted wanted) {
    const td_attn_shape shape = shape_of(d, &b->desc.gqa);
    if (b->desc.gqa.full) return wanted.n < 2 * full_runs(n_tok) ? wanted.n : 2 * full_runs(n_tok);
    return td_host_attn_parts(d, &shape, n_tok, b->at.chunk, wanted);
}

static void place_gqa(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_gqa_desc *g = &desc->gqa;
    td_attn_shape      shape = shape_of(d, g);
    size_t             q_width = (size_t)g->heads * g->head_dim, kv_width = (size_t)g->kv_heads * g->head_dim;
    size_t             gates = g->gated ? td_gqa_q_rows(g) : 0; /* values of a row of queries and gates */
    size_t chunk = td_host_chunk_rows(g->full && desc->max_tok > FULL_CHUNK_ROWS ? FULL_CHUNK_ROWS : desc->max_tok,
                                      (2 * q_width + 2 * kv_width + gates) * sizeof(float));
    size_t used = 0;
    b->run_part = run_gqa;
    b->parts = parts_of_gqa;
    b->at.chunk = chunk;
    b->at.between = g->full ? 0 : (2 * q_width + gates) * sizeof(float);
    b->at.x = td_host_place(&used, td_host_rows_bytes(chunk, g->hidden, td_host_rows_dtype(d, desc)));
    b->at.q = td_host_place(&used, chunk * q_width * sizeof(float));
    b->at.q_rows = td_host_place(&used, chunk * gates * sizeof(float));
    b->at.k = td_host_place(&used, chunk * kv_width * sizeof(float));
    b->at.v = td_host_place(&used, chunk * kv_width * sizeof(float));
    b->at.out = td_host_place(&used, chunk * q_width * sizeof(float));
    b->at.rows = td_host_place(&used, td_host_rows_bytes(chunk, q_width, TD_DT_F32));
    b->at.rotation = td_host_place(&used, td_rope_has_axes(&g->axes) ? chunk * td_gqa_rope_dim(g) * sizeof(float) : 0);
    b->at.last_pos = td_host_place(&used, g->full ? desc->max_tok * sizeof(uint32_t) : 0);
    td_host_attn_place(d, &used, &shape, &shape, chunk, desc->max_kv, chunk, &b->at.attn);
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_gqa = {.place = place_gqa};
