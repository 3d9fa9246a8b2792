/* Hyper-connections: the mixture of residual streams that a sublayer reads, and what it writes to them. */
#include <math.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "kernels/rows/row_quant.h"
#include "npu/host/host_device.h"

#define CHUNK_ROWS 256

typedef struct {
    td_host_npu        *d;
    const td_npu_block *b;
    size_t              row0;
} stream_job;

static float *worker_rows(const stream_job *j, const td_worker *w) {
    return (float *)(j->d->scratch + j->b->at.f32 + w->index * j->b->at.per_worker);
}

/* ---- mix ------------------------------------------------------------------------------------- */

/* Divide what lies `step` apart, n numbers, by their sum + eps. */
static void divide_by_sum(float *x, size_t n, size_t step, float eps) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i * step];
    for (size_t i = 0; i < n; i++) x[i * step] /= sum + eps;
}

/* A matrix whose rows and columns have sums of nearly 1, from any (Sinkhorn and Knopp). */
static void balance(const td_float_math *math, const td_mix_desc *m, float *comb) {
    const size_t n = m->streams;
    for (size_t i = 0; i < n; i++) {
        float *row = comb + i * n, max = row[0];
        for (size_t k = 1; k < n; k++) max = row[k] > max ? row[k] : max;
        const float sum = math->exp_sum(row, max, n);
        for (size_t k = 0; k < n; k++) row[k] = row[k] / sum + m->mix_eps;
    }
    for (size_t k = 0; k < n; k++) divide_by_sum(comb + k, n, n, m->mix_eps);
    for (uint32_t round = 1; round < m->rounds; round++) {
        for (size_t i = 0; i < n; i++) divide_by_sum(comb + i * n, n, 1, m->mix_eps);
        for (size_t k = 0; k < n; k++) divide_by_sum(comb + k, n, n, m->mix_eps);
    }
}

static void mix_item(void *ctx, uint32_t i, const td_worker *w) {
    const stream_job    *j = ctx;
    const td_mix_desc   *m = &j->b->desc.mix;
    const td_float_math *math = j->d->kernels->math;
    const size_t         n = m->streams, hidden = m->hidden, width = n * hidden, row = j->row0 + i, outputs = td_mix_rows(m);
    float               *x = worker_rows(j, w), *out = x + td_round_up(width, 16),
          *f = (float *)(j->d->scratch + j->b->at.out) + i * outputs;
    const float *base = td_host_vector(m->base), *scale = td_host_vector(m->scale);
    td_to_f32(j->d->act, (const char *)m->x + td_host_act_bytes(j->d, row * width), width, x);
    const float unit = 1 / sqrtf(math->dot(x, x, width) / (float)width + m->eps);
    for (size_t k = 0; k < outputs; k++) f[k] = f[k] * unit * scale[k < n ? 0 : k < 2 * n ? 1 : 2] + base[k];
    const bool is_last = m->form == TD_MIX_LAST;
    math->sigmoid(f, is_last ? n : 2 * n);
    memset(out, 0, hidden * sizeof *out);
    for (size_t k = 0; k < n; k++) math->scale_add(out, 1, x + k * hidden, f[k] + m->mix_eps, hidden);
    if (!is_last) {
        float *post = m->post + row * (n + n * n);
        for (size_t k = 0; k < n; k++) post[k] = 2 * f[n + k];
        memcpy(post + n, f + 2 * n, n * n * sizeof *post);
        balance(math, m, post + n);
    }
    if (m->gamma) math->rms_norm(out, td_host_vector(m->gamma), m->eps, hidden, out);
    void *to = m->out ? (char *)m->out + td_host_act_bytes(j->d, row * hidden)
                      : (void *)x; /* the int8 row is made from the rounded one */
    td_from_f32(j->d->act, out, hidden, to);
    if (m->out_i8.q)
        td_quantize_rows_i8(j->d->act, to, 1, hidden, hidden, m->out_i8.q + row * hidden, hidden, m->out_i8.scale + row,
                            NULL);
}

/* The mean of a token's streams, and nothing else. */
static void mean_item(void *ctx, uint32_t i, const td_worker *w) {
    const stream_job    *j = ctx;
    const td_mix_desc   *m = &j->b->desc.mix;
    const td_float_math *math = j->d->kernels->math;
    const size_t         n = m->streams, hidden = m->hidden, row = j->row0 + i;
    float               *x = worker_rows(j, w), *out = x + td_round_up(n * hidden, 16);
    td_to_f32(j->d->act, (const char *)m->x + td_host_act_bytes(j->d, row * n * hidden), n * hidden, x);
    memset(out, 0, hidden * sizeof *out);
    for (size_t k = 0; k < n; k++) math->scale_add(out, 1, x + k * hidden, 1 / (float)n, hidden);
    td_from_f32(j->d->act, out, hidden, (char *)m->out + td_host_act_bytes(j->d, row * hidden));
}

static td_status run_mean(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_mix_desc *m = &b->desc.mix;
    stream_job         j = {.d = d, .b = b};
    td_host_for(d, mean_item, &j, s->n_tok, (size_t)s->n_tok * m->streams * m->hidden);
    return TD_OK;
}

static td_status run_mix(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_mix_desc *m = &b->desc.mix;
    const size_t       width = (size_t)m->streams * m->hidden;
    for (size_t row = 0; row < s->n_tok; row += b->at.chunk) {
        const size_t rows = s->n_tok - row < b->at.chunk ? s->n_tok - row : b->at.chunk;
        stream_job   j = {.d = d, .b = b, .row0 = row};
        td_host_rows x;
        td_host_rows_init(&x, d->scratch + b->at.rows, (const char *)m->x + td_host_act_bytes(d, row * width), d->act, rows,
                          width);
        td_host_products(
            d, &x,
            &(td_host_product){.w = m->fn, .out = d->scratch + b->at.out, .ldo = td_mix_rows(m), .out_dtype = TD_DT_F32}, 1);
        td_host_for(d, mix_item, &j, rows, rows * width * 4);
    }
    return TD_OK;
}

static void place_mix(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_mix_desc *m = &desc->mix;
    const size_t       width = (size_t)m->streams * m->hidden;
    size_t             used = 0;
    b->run = m->form == TD_MIX_MEAN ? run_mean : run_mix;
    b->at.chunk = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS;
    b->at.rows = td_host_place(&used, td_host_rows_bytes(b->at.chunk, width, d->act));
    b->at.out = td_host_place(&used, b->at.chunk * td_mix_rows(m) * sizeof(float));
    b->at.per_worker = td_round_up((td_round_up(width, 16) + m->hidden) * sizeof(float), TD_CACHE_LINE);
    b->at.f32 = td_host_place(&used, b->at.per_worker * d->n_workers);
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_mix = {.place = place_mix};

/* ---- spread ---------------------------------------------------------------------------------- */

/* out = stream k: its share of what the sublayer gives, and of all streams. @param x all streams. @param sum the sublayer's */
static void share(const td_float_math *math, const td_spread_desc *p, const float *post, size_t k, const float *x,
                  const float *sum, float *out) {
    const size_t n = p->streams, hidden = p->hidden;
    const float *comb = post + n;
    memset(out, 0, hidden * sizeof *out);
    math->scale_add(out, 1, sum, post[k], hidden);
    for (size_t s = 0; s < n; s++) math->scale_add(out, 1, x + s * hidden, comb[s * n + k], hidden);
}

static void spread_item(void *ctx, uint32_t i, const td_worker *w) {
    const stream_job     *j = ctx;
    const td_spread_desc *p = &j->b->desc.spread;
    const td_float_math  *math = j->d->kernels->math;
    const size_t          n = p->streams, hidden = p->hidden, width = n * hidden;
    float                *x = worker_rows(j, w), *sum = x + td_round_up(width, 16), *out = sum + td_round_up(hidden, 16);
    char                 *at = (char *)p->x + td_host_act_bytes(j->d, i * width);
    td_to_f32(j->d->act, at, width, x);
    memset(sum, 0, hidden * sizeof *sum);
    for (int a = 0; a < 3; a++) {
        if (!p->add[a]) continue;
        td_to_f32(j->d->act, (const char *)p->add[a] + td_host_act_bytes(j->d, i * hidden), hidden, out);
        math->add(sum, out, hidden);
    }
    for (size_t k = 0; k < n; k++) {
        if (p->post)
            share(math, p, p->post + i * (n + n * n), k, x, sum, out);
        else
            math->add(memcpy(out, x + k * hidden, hidden * sizeof *out), sum, hidden);
        td_from_f32(j->d->act, out, hidden, at + td_host_act_bytes(j->d, k * hidden));
    }
}

static td_status run_spread(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_spread_desc *p = &b->desc.spread;
    stream_job            j = {.d = d, .b = b};
    td_host_for(d, spread_item, &j, s->n_tok, (size_t)s->n_tok * p->streams * p->streams * p->hidden);
    return TD_OK;
}

static void place_spread(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_spread_desc *p = &desc->spread;
    const size_t          floats = td_round_up((size_t)p->streams * p->hidden, 16) + 2 * td_round_up(p->hidden, 16);
    size_t                used = 0;
    b->run = run_spread;
    b->at.per_worker = td_round_up(floats * sizeof(float), TD_CACHE_LINE);
    b->at.f32 = td_host_place(&used, b->at.per_worker * d->n_workers);
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_spread = {.place = place_spread};
