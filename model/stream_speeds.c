/* How fast link, card and CPU are with experts that are streamed: measured once, before the first step. */
#include <stdlib.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/log/trace.h"
#include "model/model_state.h"

#define CPU_MANY 1024 /* rows that the CPU computes to be measured: an expert has many of them, */
#define CPU_FEW 2     /* or hardly any */

typedef struct {
    td_model            *m;
    td_bridge_buffers    io;    /* on the host; zeros but for the ids */
    const td_block_desc *desc;  /* of the first layer's resident experts, */
    td_npu_block        *block; /* built */
} job;

static double seconds_since(uint64_t begin_ns) {
    return 1e-9 * (double)(td_trace_now() - begin_ns);
}

/* Each of n experts as often as another, top_k a row, or n of them. @param mark of every id but those that repeat one of
 * their row */
static void fill_ids(const job *j, const uint16_t *experts, uint32_t n, uint32_t n_tok, uint32_t top_k, uint16_t mark) {
    for (size_t i = 0; i < (size_t)n_tok * top_k; i++)
        ((uint16_t *)j->io.ids)[i] = experts[i % n] | (i % top_k < n ? mark : 0);
}

/* ---- the CPU -------------------------------------------------------------------------------------- */

/* @return seconds of n of the first layer's experts in a step of so many rows. */
static double time_cpu(const job *j, const uint16_t *experts, uint32_t n, uint32_t n_tok, uint32_t top_k) {
    const td_model *m = j->m;
    fill_ids(j, experts, n, n_tok, top_k, 0);
    const td_ffn_args a = {.n_tok = n_tok,
                           .top_k = top_k,
                           .x = j->io.x,
                           .x_i8 = j->io.x_i8.q,
                           .x_scale = j->io.x_i8.scale,
                           .ids = j->io.ids,
                           .weights = j->io.weights,
                           .n_immediate = top_k,
                           .y = j->io.y,
                           .in_parts = true};
    td_pool_hold(m->expert_pool);
    const uint64_t begin = td_trace_now();
    td_experts_ffn(m->experts, 0, &a);
    const double t = seconds_since(begin);
    td_pool_release(m->expert_pool);
    return t;
}

/* ---- the card --------------------------------------------------------------------------------------- */

static td_status run_block(td_card_model *c, const job *j, const td_step_bucket *bucket, double *seconds) {
    td_npu *d = c->npu;
    TD_TRY(d->ops->stream_sync(d, c->stream));
    const uint64_t begin = td_trace_now();
    TD_TRY(d->ops->enqueue(d, c->stream, j->block, &bucket->whole));
    TD_TRY(d->ops->stream_sync(d, c->stream));
    *seconds = seconds_since(begin);
    return TD_OK;
}

/* A step of so many rows, of which only their number counts. */
static td_status time_card(td_card_model *c, const job *j, uint32_t n_tok, double *seconds) {
    td_npu               *d = c->npu;
    const td_step_bucket *bucket = td_step_buf_count(&c->step, n_tok);
    const size_t          bytes = (size_t)n_tok * j->m->config.top_k * sizeof(uint16_t);
    TD_TRY(td_step_buf_enqueue_upload(&c->step, bucket, c->stream));
    TD_TRY(td_streamed_enqueue_take(j->m->streamed, c->shard.index, 0, c->stream));
    TD_TRY(d->ops->copy(d, c->stream, (void *)j->desc->resident.ids, j->io.ids, bytes, TD_COPY_H2D));
    TD_TRY(run_block(c, j, bucket, seconds)); /* once more: it is slower the first time */
    return run_block(c, j, bucket, seconds);
}

/* The first card's part of the experts. @return in *seconds, of a row as all cards would take it */
static td_status time_card_rows(td_card_model *c, const job *j, const uint16_t *experts, uint32_t n, double *seconds) {
    const uint32_t n_tok = j->m->spec.max_tok, end = td_resident_end(&j->desc->resident),
                   n_choices = (end < n ? end : n) - j->desc->resident.first;
    fill_ids(j, experts, n, n_tok, j->m->config.top_k, TD_ID_RESIDENT);
    TD_TRY(time_card(c, j, n_tok, seconds));
    *seconds /= (double)n_tok * n_choices * j->m->n_cards;
    return TD_OK;
}

/* ---- all of them ------------------------------------------------------------------------------------- */

static td_status measure(td_card_model *c, const job *j, uint16_t *experts) {
    td_model      *m = c->model;
    const uint32_t all = m->config.n_experts, many = m->spec.max_tok < CPU_MANY ? m->spec.max_tok : CPU_MANY,
                   few = many < CPU_FEW ? many : CPU_FEW;
    const uint16_t *row = td_streamed_measure_upload(m->streamed);
    uint32_t        n = 0;
    double          card_row;
    for (uint32_t e = 0; e < all; e++)
        if (row[e] != TD_NO_SLOT && row[e] != TD_SLOT_ELSEWHERE) experts[n++] = (uint16_t)e;
    if (!n) return TD_EDEVICE;
    TD_TRY(time_card_rows(c, j, experts, n, &card_row));
    row = td_resident_placement(m->resident, 0, 0);
    n = 0;
    for (uint32_t e = 0; e < all; e++)
        if (row[e] == TD_NO_SLOT) experts[n++] = (uint16_t)e; /* others may have left host memory */
    const uint32_t top_k = n < m->config.top_k ? n : m->config.top_k, chosen = few * top_k < n ? few * top_k : n;
    const double   cpu_row = time_cpu(j, experts, n, many, top_k) / ((double)many * top_k);
    td_streamed_set_speeds(m->streamed, card_row, cpu_row, time_cpu(j, experts, n, few, top_k) / chosen);
    return TD_OK;
}

td_status td_card_model_measure_streamed(td_card_model *c) {
    const td_program *p = &c->program[TD_PASS_FORWARD];
    job               j = {.m = c->model};
    uint16_t         *experts = malloc(c->model->config.n_experts * sizeof *experts);
    if (!experts) return TD_ENOMEM;
    for (const td_op *op = p->ops; !j.block; op++) {
        if (op->kind != TD_OP_BLOCK || op->block.desc.kind != TD_BLOCK_RESIDENT) continue;
        j.desc = &op->block.desc;
        j.block = op->block.built;
    }
    td_bridge_get_host_buffers(c->model->bridge, 0, &j.io);
    td_status st = measure(c, &j, experts);
    free(experts);
    return st;
}
