/* The gated MLP: dense layers and shared experts. */
#include <math.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "npu/host/host_device.h"

#define CHUNK_ROWS 2048
#define PART_ROWS 256

void td_host_gate_up(td_host_npu *d, td_host_rows *x, const td_npu_weight *gate, const td_npu_weight *up, float *inter) {
    td_host_product p = {.w = up, .out = inter, .ldo = up->shape.n, .out_dtype = TD_DT_F32};
    if (gate->shape.format == up->shape.format && gate->groups.size == up->groups.size) {
        p.gate = gate;
    } else {
        td_host_products(d, x, &(td_host_product){.w = gate, .out = inter, .ldo = up->shape.n, .out_dtype = TD_DT_F32}, 1);
        p.gated = true;
    }
    td_host_products(d, x, &p, 1);
}

typedef struct {
    td_host_npu        *d;
    const td_npu_block *b;
    size_t              row0;
} mlp_job;

/* inter = (up' + up_add) * gate' * sigmoid(alpha * gate'), both cut at the limit */
static void glu_item(void *ctx, uint32_t i, const td_worker *w) {
    const mlp_job     *j = ctx;
    const td_mlp_desc *m = &j->b->desc.mlp;
    const td_glu       glu = td_glu_in_full(&m->glu);
    float             *gate = (float *)(j->d->scratch + j->b->at.inter) + (size_t)i * m->inter,
          *up = (float *)(j->d->scratch + j->b->at.up) + (size_t)i * m->inter;
    (void)w;
    for (size_t k = 0; k < m->inter; k++) {
        const float g = fminf(gate[k], glu.limit);
        up[k] = (fminf(fmaxf(up[k], -glu.limit), glu.limit) + glu.up_add) * g;
        gate[k] = glu.alpha * g;
    }
    j->d->kernels->math->sigmoid(gate, m->inter);
    for (size_t k = 0; k < m->inter; k++) gate[k] *= up[k];
}

static void gate_up_limited(mlp_job *j, td_host_rows *x, size_t rows) {
    const td_mlp_desc *m = &j->b->desc.mlp;
    td_host_product    p[] = {{.w = m->gate, .out = j->d->scratch + j->b->at.inter, .ldo = m->inter, .out_dtype = TD_DT_F32},
                              {.w = m->up, .out = j->d->scratch + j->b->at.up, .ldo = m->inter, .out_dtype = TD_DT_F32}};
    td_host_products(j->d, x, p, 2);
    td_host_for(j->d, glu_item, j, rows, rows * m->inter * 4);
}

/* out = down * sigmoid(out_gate . x) */
static void gate_item(void *ctx, uint32_t i, const td_worker *w) {
    const mlp_job     *j = ctx;
    const td_mlp_desc *m = &j->b->desc.mlp;
    size_t             at = (j->row0 + i) * m->hidden;
    float             *x = (float *)(j->d->scratch + j->b->at.per_worker) + w->index * td_round_up(m->hidden, 16);
    float             *down = (float *)(j->d->scratch + j->b->at.down) + (size_t)i * m->hidden, gate;
    td_to_f32(j->d->act, (const char *)m->in + td_host_act_bytes(j->d, at), m->hidden, x);
    gate = j->d->kernels->math->dot(x, td_host_vector(m->out_gate), m->hidden);
    j->d->kernels->math->sigmoid(&gate, 1);
    j->d->kernels->math->scale_add(down, gate, NULL, 0, m->hidden);
    td_from_f32(j->d->act, down, m->hidden, (char *)m->out + td_host_act_bytes(j->d, at));
}

static void run_rows(td_host_npu *d, const td_npu_block *b, size_t row, size_t rows) {
    const td_mlp_desc *m = &b->desc.mlp;
    float             *inter = (float *)(d->scratch + b->at.inter), *down = (float *)(d->scratch + b->at.down);
    mlp_job            j = {.d = d, .b = b, .row0 = row};
    td_host_rows       x, h;
    td_host_rows_input(d, &x, d->scratch + b->at.x, m->in, m->in_i8, row, rows, m->hidden);
    if (td_glu_is_silu(&m->glu))
        td_host_gate_up(d, &x, m->gate, m->up, inter);
    else
        gate_up_limited(&j, &x, rows);
    td_host_rows_init(&h, d->scratch + b->at.rows, inter, TD_DT_F32, rows, m->inter);
    if (m->out_gate) {
        td_host_products(d, &h, &(td_host_product){.w = m->down, .out = down, .ldo = m->hidden, .out_dtype = TD_DT_F32}, 1);
        td_host_for(d, gate_item, &j, rows, rows * m->hidden);
    } else {
        void *out = (char *)m->out + td_host_act_bytes(d, row * m->hidden);
        td_host_products(d, &h, &(td_host_product){.w = m->down, .out = out, .ldo = m->hidden, .out_dtype = d->act}, 1);
    }
}

static size_t runs_of(size_t n_tok) {
    return (n_tok + PART_ROWS - 1) / PART_ROWS;
}

static size_t parts_of_mlp(const td_host_npu *d, const td_npu_block *b, size_t n_tok, td_parts_wanted wanted) {
    (void)d, (void)b;
    return wanted.n < runs_of(n_tok) ? wanted.n : runs_of(n_tok);
}

/* A part has whole runs of PART_ROWS rows, so that the weights are read for many rows each time. */
static td_status run_mlp(td_host_npu *d, const td_npu_block *b, const td_host_step *s, const td_block_part *part) {
    const size_t runs = runs_of(s->n_tok), first = runs * part->i / part->n * PART_ROWS,
                 next = runs * (part->i + 1) / part->n * PART_ROWS, end = next < s->n_tok ? next : s->n_tok;
    for (size_t row = first; row < end; row += b->at.chunk)
        run_rows(d, b, row, end - row < b->at.chunk ? end - row : b->at.chunk);
    return TD_OK;
}

static void place_mlp(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_mlp_desc *m = &desc->mlp;
    size_t             used = 0;
    size_t             chunk = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS;
    b->run_part = run_mlp;
    b->parts = parts_of_mlp;
    b->at.chunk = chunk;
    b->at.x = td_host_place(&used, td_host_rows_bytes(chunk, m->hidden, d->act));
    b->at.inter = td_host_place(&used, chunk * m->inter * sizeof(float));
    b->at.up = td_host_place(&used, td_glu_is_silu(&m->glu) ? 0 : chunk * m->inter * sizeof(float));
    b->at.per_worker = td_host_place(&used, m->out_gate ? d->n_workers * td_round_up(m->hidden, 16) * sizeof(float) : 0);
    b->at.rows = td_host_place(&used, td_host_rows_bytes(chunk, m->inter, TD_DT_F32));
    b->at.down = td_host_place(&used, chunk * m->hidden * sizeof(float));
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_mlp = {.place = place_mlp};
