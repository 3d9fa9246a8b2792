/* The gated MLP: dense layers and shared experts. */
#include "core/error.h"
#include "kernels/rows/convert.h"
#include "npu/host/host_device.h"

#define CHUNK_ROWS 1024
#define SILU_COLUMNS 2048 /* of an item */

typedef struct {
    const td_host_npu *d;
    size_t             inter, column_blocks;
    float             *gate;
    const float       *up;
} silu_job;

static void silu_item(void *ctx, uint32_t i, const td_worker *w) {
    const silu_job *j = ctx;
    size_t          row = i / j->column_blocks, col = i % j->column_blocks * SILU_COLUMNS, at = row * j->inter + col;
    size_t          n = j->inter - col < SILU_COLUMNS ? j->inter - col : SILU_COLUMNS;
    (void)w;
    j->d->kernels->rows->glu(&(td_glu){0}, j->gate + at, j->up + at, 1, n, j->gate + at, n);
}

void td_host_gate_up(td_host_npu *d, td_host_rows *x, const td_npu_weight *gate_w, const td_npu_weight *up_w, float *gate,
                     float *up) {
    size_t   inter = gate_w->n;
    silu_job j = {d, inter, (inter + SILU_COLUMNS - 1) / SILU_COLUMNS, gate, up};
    td_host_products(d, x, (td_host_product[]){{gate_w, NULL, gate, inter, TD_DT_F32}, {up_w, NULL, up, inter, TD_DT_F32}},
                     2);
    td_host_for(d, silu_item, &j, x->m * j.column_blocks, x->m * inter * 4);
}

typedef struct {
    td_host_npu        *d;
    const td_npu_block *b;
    size_t              row0;
} mlp_job;

/* out = down * sigmoid(out_gate . x) */
static void gate_item(void *ctx, uint32_t i, const td_worker *w) {
    const mlp_job     *j = ctx;
    const td_mlp_desc *m = &j->b->desc.mlp;
    size_t             at = (j->row0 + i) * m->hidden;
    float             *x = (float *)(j->d->scratch + j->b->at.up) + w->index * td_round_up(m->hidden, 16);
    float             *down = (float *)(j->d->scratch + j->b->at.down) + (size_t)i * m->hidden, gate;
    td_to_f32(j->d->act, (const char *)m->in + td_host_act_bytes(j->d, at), m->hidden, x);
    gate = j->d->kernels->math->dot(x, td_host_vector(m->out_gate), m->hidden);
    j->d->kernels->math->sigmoid(&gate, 1);
    j->d->kernels->math->scale_add(down, gate, NULL, 0, m->hidden);
    td_from_f32(j->d->act, down, m->hidden, (char *)m->out + td_host_act_bytes(j->d, at));
}

static td_status run_mlp(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_mlp_desc *m = &b->desc.mlp;
    for (size_t row = 0; row < s->n_tok; row += b->at.chunk) {
        size_t       rows = s->n_tok - row < b->at.chunk ? s->n_tok - row : b->at.chunk;
        float       *gate = (float *)(d->scratch + b->at.gate), *up = (float *)(d->scratch + b->at.up);
        float       *down = (float *)(d->scratch + b->at.down);
        mlp_job      j = {.d = d, .b = b, .row0 = row};
        td_host_rows x, h;
        td_host_rows_input(d, &x, d->scratch + b->at.x, m->in, m->in_i8, row, rows, m->hidden);
        td_host_gate_up(d, &x, m->gate, m->up, gate, up);
        td_host_rows_init(&h, d->scratch + b->at.rows, gate, TD_DT_F32, rows, m->inter);
        if (m->out_gate) {
            td_host_products(d, &h, &(td_host_product){m->down, NULL, down, m->hidden, TD_DT_F32}, 1);
            td_host_for(d, gate_item, &j, rows, rows * m->hidden);
        } else {
            void *out = (char *)m->out + td_host_act_bytes(d, row * m->hidden);
            td_host_products(d, &h, &(td_host_product){m->down, NULL, out, m->hidden, d->act}, 1);
        }
    }
    return TD_OK;
}

static td_status check_mlp(td_host_npu *d, const td_block_desc *desc, td_error *err) {
    const td_mlp_desc *m = &desc->mlp;
    TD_TRY(td_host_check_sizes(desc, err, "hidden", (size_t)m->hidden, "inter", (size_t)m->inter, (const char *)NULL));
    TD_TRY(td_host_need_linear(d, m->gate, m->inter, m->hidden, "gate", err));
    TD_TRY(td_host_need_linear(d, m->up, m->inter, m->hidden, "up", err));
    TD_TRY(td_host_need_linear(d, m->down, m->hidden, m->inter, "down", err));
    TD_TRY(td_host_need_int8(m->in_i8, (const td_npu_weight *const[]){m->gate, m->up}, 2, "the MLP's gate or up", err));
    return td_host_need_vector(m->out_gate, m->hidden, true, "out_gate", err);
}

static void plan_mlp(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_mlp_desc *m = &desc->mlp;
    td_host_plan       p = {0};
    size_t             chunk = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS;
    size_t up = chunk * m->inter * sizeof(float), gate_rows = d->n_workers * td_round_up(m->hidden, 16) * sizeof(float);
    b->run = run_mlp;
    b->at.chunk = chunk;
    b->at.x = td_host_take(&p, td_host_rows_bytes(chunk, m->hidden, d->act));
    b->at.gate = td_host_take(&p, chunk * m->inter * sizeof(float));
    b->at.up =
        td_host_take(&p, up > gate_rows ? up : gate_rows); /* the workers' rows of gate_item come when up is used up */
    b->at.rows = td_host_take(&p, td_host_rows_bytes(chunk, m->inter, TD_DT_F32));
    b->at.down = td_host_take(&p, chunk * m->hidden * sizeof(float));
    b->scratch_bytes = p.used;
}

const td_host_block_kind td_host_mlp = {check_mlp, plan_mlp};
