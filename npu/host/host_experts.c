/*
 * Routed experts on the device. The rows of each expert are gathered, go through its MLP, and are added, times their
 * weights, to the exact sums of the step's rows (kernels/exact_sum.h). So a row has the bits that the CPU tier would give
 * it.
 */
#include <string.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "npu/host/host_chosen.h"

#define CHUNK_ROWS 512

typedef struct {
    td_host_npu           *d;
    const td_npu_block    *b;
    const td_experts_desc *x;
    size_t                 row0;
    td_host_choice         choice;
    const td_host_chosen  *list; /* of the expert under way */
} experts_job;

/* Row i of the expert's, from the step's. */
static void gather_row(void *ctx, uint32_t i, const td_worker *w) {
    const experts_job *j = ctx;
    size_t             hidden = j->x->hidden, from = (j->row0 + j->list[i].row) * hidden;
    char              *mem = j->d->scratch + j->b->at.gathered;
    (void)w;
    if (j->x->in_i8.q) {
        memcpy(mem + i * hidden, j->x->in_i8.q + from, hidden);
        ((float *)(j->d->scratch + j->b->at.scales))[i] = j->x->in_i8.scale[j->row0 + j->list[i].row];
        return;
    }
    memcpy(mem + td_host_act_bytes(j->d, i * hidden), (const char *)j->x->in + td_host_act_bytes(j->d, from),
           td_host_act_bytes(j->d, hidden));
}

static void store_row(void *ctx, uint32_t i, const td_worker *w) {
    const experts_job *j = ctx;
    size_t             hidden = j->x->hidden;
    (void)w;
    float *values = (float *)(j->d->scratch + j->b->at.down) + i * hidden; /* of no expert any more */
    j->d->kernels->rows->exact_end(j->choice.sums + i * td_exact_words(hidden), hidden, values);
    td_from_f32(j->d->act, values, hidden, (char *)j->x->out + td_host_act_bytes(j->d, (j->row0 + i) * hidden));
}

static void run_expert(const experts_job *j, size_t e, size_t n) {
    td_host_npu           *d = j->d;
    const td_npu_block    *b = j->b;
    const td_experts_desc *x = j->x;
    char                  *gathered = d->scratch + b->at.gathered;
    float                 *down = (float *)(d->scratch + b->at.down);
    td_rows_i8             i8 = {0};
    td_host_rows           in, h;
    if (x->in_i8.q) i8 = (td_rows_i8){(int8_t *)gathered, (float *)(d->scratch + b->at.scales)};
    td_host_for(d, gather_row, (void *)j, n, n * x->hidden);
    td_host_rows_input(d, &in, d->scratch + b->at.x, i8.q ? NULL : gathered, i8, 0, n, x->hidden);
    float *inter = (float *)(d->scratch + b->at.inter);
    td_host_gate_up(d, &in, x->gate[e], x->up[e], inter);
    td_host_rows_init(&h, d->scratch + b->at.rows, inter, TD_DT_F32, n, x->inter);
    td_host_products(d, &h, &(td_host_product){.w = x->down[e], .out = down, .ldo = x->hidden, .out_dtype = TD_DT_F32}, 1);
    td_host_choice_add(d, &j->choice, e, down);
}

static td_status run_experts(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_experts_desc *x = &b->desc.experts;
    for (size_t row = 0; row < s->n_tok; row += b->at.chunk) {
        experts_job           j = {.d = d, .b = b, .x = x, .row0 = row};
        const td_host_choice *c = &j.choice;
        j.choice = (td_host_choice){.rows = s->n_tok - row < b->at.chunk ? s->n_tok - row : b->at.chunk,
                                    .top_k = x->top_k,
                                    .n_experts = x->n_experts,
                                    .hidden = x->hidden,
                                    .end_choice = x->top_k,
                                    .ids = (const uint16_t *)x->ids + row * x->top_k,
                                    .weights = x->weights + row * x->top_k,
                                    .first = (uint32_t *)(d->scratch + b->at.first),
                                    .list = (td_host_chosen *)(d->scratch + b->at.chosen),
                                    .sums = (int32_t *)(d->scratch + b->at.sums)};
        TD_TRY(td_host_choice_list(c));
        for (size_t e = 0; e < x->n_experts; e++) {
            j.list = c->list + c->first[e];
            if (c->first[e + 1] > c->first[e]) run_expert(&j, e, c->first[e + 1] - c->first[e]);
        }
        td_host_for(d, store_row, &j, c->rows, c->rows * x->hidden);
    }
    return TD_OK;
}

static void place_experts(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_experts_desc *x = &desc->experts;
    size_t                 used = 0;
    size_t                 chunk = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS;
    b->run = run_experts;
    b->at.chunk = chunk;
    b->at.first = td_host_place(&used, (x->n_experts + 1) * sizeof(uint32_t));      /* where each expert's pairs begin */
    b->at.chosen = td_host_place(&used, chunk * x->top_k * sizeof(td_host_chosen)); /* the pairs */
    b->at.gathered = td_host_place(&used, td_host_act_bytes(d, chunk * x->hidden)); /* gathered rows */
    b->at.scales = td_host_place(&used, chunk * sizeof(float));                     /* scales of the gathered rows */
    b->at.x = td_host_place(&used, td_host_rows_bytes(chunk, x->hidden, d->act));
    b->at.inter = td_host_place(&used, chunk * x->inter * sizeof(float));
    b->at.rows = td_host_place(&used, td_host_rows_bytes(chunk, x->inter, TD_DT_F32));
    b->at.down = td_host_place(&used, chunk * x->hidden * sizeof(float));
    b->at.sums = td_host_place(&used, chunk * td_exact_words(x->hidden) * sizeof(int32_t));
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_experts = {.place = place_experts};
