/* The small blocks: embed, norm, linear, combine, head. Rows are items; each worker has a few f32 rows of scratch. */
#include "core/error.h"
#include "kernels/rows/convert.h"
#include "kernels/rows/row_quant.h"
#include "npu/host/host_device.h"

#define CHUNK_ROWS 1024
#define PART_ROWS 128 /* of a linear's part at least */

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

typedef struct {
    td_host_npu        *d;
    const td_npu_block *b;
    const td_host_step *step;
    size_t              row0; /* first row of the chunk */
} row_job;

static float *worker_rows(const row_job *j, const td_worker *w) {
    return (float *)(j->d->scratch + j->b->at.f32 + w->index * j->b->at.per_worker);
}

/* Scratch: for each worker n_rows f32 rows of `width`. */
static void place_worker_rows(const td_host_npu *d, td_npu_block *b, size_t *used, size_t n_rows, size_t width) {
    b->at.per_worker = td_round_up(n_rows * td_round_up(width, 16) * sizeof(float), TD_CACHE_LINE);
    b->at.f32 = td_host_place(used, b->at.per_worker * d->n_workers);
    b->scratch_bytes = *used;
}

static const void *row_at(td_dtype dtype, const void *x, size_t element) {
    return (const char *)x + element * td_dtype_bytes(dtype);
}
static void *row_to(td_dtype dtype, void *x, size_t element) {
    return (char *)x + element * td_dtype_bytes(dtype);
}
static const void *act_row(const td_host_npu *d, const void *x, size_t element) {
    return (const char *)x + td_host_act_bytes(d, element);
}
static void *act_out(const td_host_npu *d, void *x, size_t element) {
    return (char *)x + td_host_act_bytes(d, element);
}

/* ---- rows of images -------------------------------------------------------------------------- */

/* The token's row of images' features. @return NULL: it has none. */
static const void *image_row(const row_job *j, const void *images, size_t hidden, size_t token) {
    const uint32_t *rows = images ? j->step->a.image_row : NULL;
    return rows && rows[token] != TD_NO_IMAGE ? act_row(j->d, images, rows[token] * hidden) : NULL;
}

static bool image_rows_are_there(const td_npu_block *b, const void *images, const td_host_step *s) {
    if (!images || !s->a.image_row) return true;
    for (uint32_t i = 0; i < s->n_tok; i++)
        if (s->a.image_row[i] != TD_NO_IMAGE && s->a.image_row[i] >= b->desc.max_tok) return false;
    return true;
}

/* ---- embed ----------------------------------------------------------------------------------- */

static void embed_row(void *ctx, uint32_t i, const td_worker *w) {
    const row_job       *j = ctx;
    const td_embed_desc *e = &j->b->desc.embed;
    float               *f = worker_rows(j, w);
    const void          *image = image_row(j, e->images, e->hidden, i);
    if (image) {
        memcpy(act_out(j->d, e->out, (size_t)i * e->hidden), image, td_host_act_bytes(j->d, e->hidden));
        return;
    }
    td_host_weight_row(e->table, j->step->a.token[i], f);
    const size_t streams = td_streams_of(e->streams);
    for (size_t s = 0; s < streams; s++)
        td_from_f32(j->d->act, f, e->hidden, act_out(j->d, e->out, (i * streams + s) * e->hidden));
}

static td_status run_embed(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    for (uint32_t i = 0; i < s->n_tok; i++)
        if (s->a.token[i] >= b->desc.embed.table->shape.n) return TD_EINVAL;
    if (!image_rows_are_there(b, b->desc.embed.images, s)) return TD_EINVAL;
    row_job j = {.d = d, .b = b, .step = s};
    td_host_for(d, embed_row, &j, s->n_tok, (size_t)s->n_tok * b->desc.embed.hidden);
    return TD_OK;
}

static void place_embed(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    b->run = run_embed;
    place_worker_rows(d, b, &(size_t){0}, 1, desc->embed.hidden);
}

const td_host_block_kind td_host_embed = {.place = place_embed};

/* ---- norm ------------------------------------------------------------------------------------ */

#define LANES 16 /* of a sum over a row, by index, as those of td_float_math */

/* x -= mean(x) */
static void subtract_mean(float *x, size_t n) {
    float sum[LANES] = {0};
    for (size_t i = 0; i < n; i++) sum[i % LANES] += x[i];
    for (size_t half = LANES / 2; half; half /= 2)
        for (size_t i = 0; i < half; i++) sum[i] += sum[i + half];
    const float mean = sum[0] / (float)n;
    for (size_t i = 0; i < n; i++) x[i] -= mean;
}

static void norm_row(void *ctx, uint32_t i, const td_worker *w) {
    const row_job      *j = ctx;
    const td_norm_desc *n = &j->b->desc.norm;
    float              *x = worker_rows(j, w), *add = x + td_round_up(n->hidden, 16);
    const td_dtype      rows = td_host_rows_dtype(j->d, &j->b->desc);
    size_t              at = (size_t)i * n->hidden;
    td_to_f32(rows, row_at(rows, n->x, at), n->hidden, x);
    if (n->add) {
        td_to_f32(rows, row_at(rows, n->add, at), n->hidden, add);
        j->d->kernels->math->add(x, add, n->hidden);
        td_from_f32(rows, x, n->hidden, row_to(rows, n->x, at));
        td_to_f32(rows, row_at(rows, n->x, at), n->hidden, x); /* the norm is of what others will read */
    }
    if (n->beta) subtract_mean(x, n->hidden);
    j->d->kernels->math->rms_norm(x, td_host_vector(n->gamma), n->eps, n->hidden, x);
    if (n->beta) j->d->kernels->math->add(x, td_host_vector(n->beta), n->hidden);
    void *out = n->out ? row_to(rows, n->out, (size_t)i * (n->out_stride ? n->out_stride : n->hidden))
                       : add; /* the int8 row is made from the rounded one */
    td_from_f32(rows, x, n->hidden, out);
    if (n->out_i8.q)
        td_quantize_rows_i8(rows, out, 1, n->hidden, n->hidden, n->out_i8.q + at, n->hidden, n->out_i8.scale + i, NULL);
}

static td_status run_norm(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const size_t rows = s->n_tok * td_streams_of(b->desc.norm.streams);
    row_job      j = {.d = d, .b = b, .step = s};
    td_host_for(d, norm_row, &j, rows, rows * b->desc.norm.hidden);
    return TD_OK;
}

static void place_norm(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    b->run = run_norm;
    place_worker_rows(d, b, &(size_t){0}, 2, desc->norm.hidden);
}

const td_host_block_kind td_host_norm = {.place = place_norm};

/* ---- linear ---------------------------------------------------------------------------------- */

static size_t linear_rows(const td_npu_block *b, size_t n_tok) {
    return n_tok * td_streams_of(b->desc.linear.streams);
}

static size_t linear_runs(size_t rows) {
    return (rows + PART_ROWS - 1) / PART_ROWS;
}

static size_t parts_of_linear(const td_host_npu *d, const td_npu_block *b, size_t n_tok, td_parts_wanted wanted) {
    (void)d;
    return min_size(wanted.n, linear_runs(linear_rows(b, n_tok)));
}

/* A part has whole runs of PART_ROWS rows, so that the weights are read for many rows each time. */
static td_status run_linear(td_host_npu *d, const td_npu_block *b, const td_host_step *s, const td_block_part *part) {
    const td_linear_desc *l = &b->desc.linear;
    const td_dtype        dtype = td_host_rows_dtype(d, &b->desc);
    const size_t          rows = linear_rows(b, s->n_tok), runs = linear_runs(rows),
                 end = min_size(rows, runs * (part->i + 1) / part->n * PART_ROWS);
    for (size_t row = runs * part->i / part->n * PART_ROWS; row < end; row += b->at.chunk) {
        td_host_rows x;
        td_host_rows_init(&x, d->scratch + b->at.rows, row_at(dtype, l->in, row * l->k), dtype,
                          min_size(b->at.chunk, end - row), l->k);
        td_host_products(d, &x,
                         &(td_host_product){.w = l->w,
                                            .bias = l->bias,
                                            .activation = l->activation,
                                            .out = row_to(dtype, l->out, row * l->n),
                                            .ldo = l->n,
                                            .out_dtype = dtype},
                         1);
    }
    return TD_OK;
}

static void place_linear(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    size_t used = 0;
    b->run_part = run_linear;
    b->parts = parts_of_linear;
    b->at.chunk = min_size(desc->max_tok * td_streams_of(desc->linear.streams), CHUNK_ROWS);
    b->at.rows = td_host_place(&used, td_host_rows_bytes(b->at.chunk, desc->linear.k, td_host_rows_dtype(d, desc)));
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_linear = {.place = place_linear};

/* ---- combine --------------------------------------------------------------------------------- */

static void combine_row(void *ctx, uint32_t i, const td_worker *w) {
    const row_job         *j = ctx;
    const td_combine_desc *c = &j->b->desc.combine;
    size_t                 width = td_round_up(c->hidden, 16), at = (size_t)i * c->hidden;
    float                 *sum = worker_rows(j, w), *f = sum + width;
    const void            *image = image_row(j, c->images, c->hidden, i);
    const td_dtype         rows = td_host_rows_dtype(j->d, &j->b->desc);
    bool                   any = false;
    for (int a = 0; a < 3; a++) {
        if (!c->add[a]) continue;
        td_to_f32(rows, row_at(rows, c->add[a], at), c->hidden, any ? f : sum);
        if (any) j->d->kernels->math->add(sum, f, c->hidden);
        any = true;
    }
    if (!any && !image) return;
    td_to_f32(rows, row_at(rows, c->x, at), c->hidden, f);
    if (any) j->d->kernels->math->add(f, sum, c->hidden);
    if (image) {
        td_to_f32(j->d->act, image, c->hidden, sum);
        j->d->kernels->math->add(f, sum, c->hidden);
    }
    td_from_f32(rows, f, c->hidden, row_to(rows, c->x, at));
}

static td_status run_combine(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    if (!image_rows_are_there(b, b->desc.combine.images, s)) return TD_EINVAL;
    row_job j = {.d = d, .b = b, .step = s};
    td_host_for(d, combine_row, &j, s->n_tok, (size_t)s->n_tok * b->desc.combine.hidden * 2);
    return TD_OK;
}

static void place_combine(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    b->run = run_combine;
    place_worker_rows(d, b, &(size_t){0}, 2, desc->combine.hidden);
}

const td_host_block_kind td_host_combine = {.place = place_combine};

/* ---- head ------------------------------------------------------------------------------------ */

#define HEAD_ROWS 256

static void head_row(void *ctx, uint32_t i, const td_worker *w) {
    const row_job      *j = ctx;
    const td_head_desc *h = &j->b->desc.head;
    size_t              row = j->step->a.out_row[j->row0 + i];
    float              *f = (float *)(j->d->scratch + j->b->at.f32) + (size_t)i * h->hidden;
    (void)w;
    td_to_f32(j->d->act, act_row(j->d, h->x, row * h->hidden), h->hidden, f);
    if (h->gamma) j->d->kernels->math->rms_norm(f, td_host_vector(h->gamma), h->eps, h->hidden, f);
}

static td_status run_head(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_head_desc *h = &b->desc.head;
    if (s->n_out > h->max_out) return TD_EINVAL;
    for (uint32_t i = 0; i < s->n_out; i++)
        if (s->a.out_row[i] >= s->n_tok) return TD_EINVAL;
    for (size_t row = 0; row < s->n_out; row += b->at.chunk) {
        size_t       rows = min_size(b->at.chunk, s->n_out - row);
        row_job      j = {.d = d, .b = b, .step = s, .row0 = row};
        td_host_rows x;
        td_host_for(d, head_row, &j, rows, rows * h->hidden);
        td_host_rows_init(&x, d->scratch + b->at.rows, d->scratch + b->at.f32, TD_DT_F32, rows, h->hidden);
        td_host_products(
            d, &x, &(td_host_product){.w = h->w, .out = h->logits + row * h->vocab, .ldo = h->vocab, .out_dtype = TD_DT_F32},
            1);
    }
    return TD_OK;
}

static void place_head(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    size_t used = 0;
    (void)d;
    b->run = run_head;
    b->at.chunk = min_size(desc->head.max_out, HEAD_ROWS);
    b->at.f32 = td_host_place(&used, b->at.chunk * desc->head.hidden * sizeof(float));
    b->at.rows = td_host_place(&used, td_host_rows_bytes(b->at.chunk, desc->head.hidden, TD_DT_F32));
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_head = {.place = place_head};
