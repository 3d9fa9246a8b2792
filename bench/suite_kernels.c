/*
 * The device's linears by rows: W8A8, and one shape in groups of 4 bits. Their weights are rotated over copies that exceed
 * the last cache level, as the layers of a model do. The experts' kernels are in suite_expert_kernels.c.
 */
#include <stdlib.h>

#include "bench/bench.h"
#include "bench/bench_device.h"
#include "core/error.h"

#define BUFFER_BYTES ((size_t)640 << 20) /* beyond any last cache that this is run on */
#define CALL_BYTES ((uint64_t)16 << 30)  /* of a call to a card: some ms */
#define COPIES_MAX 320
#define ROWS_HOST 1024
#define ROWS_MAX 2048    /* of a card; a CPU takes seconds for them */
#define SIDE_MULTIPLE 64 /* of sizes that were divided */

typedef struct {
    const char      *name;
    size_t           n, k;
    td_weight_format format;
    bool             head;
} linear;

static const linear LINEARS[] = {
    {"v2-lite o 2048x2048", 2048, 2048, TD_WEIGHT_W8A8, false},
    {"v3 kv_a 576x7168", 576, 7168, TD_WEIGHT_W8A8, false},
    {"v3 q_b 24576x1536", 24576, 1536, TD_WEIGHT_W8A8, false},
    {"v3 o 7168x16384", 7168, 16384, TD_WEIGHT_W8A8, false},
    {"v3 dense up 18432x7168", 18432, 7168, TD_WEIGHT_W8A8, false},
    {"v3 dense up, int4 groups", 18432, 7168, TD_WEIGHT_INT4G, false},
    {"v3 dense up, mxfp4", 18432, 7168, TD_WEIGHT_FP4G, false},
    {"v2-lite head 102400x2048", 102400, 2048, TD_WEIGHT_W8A8, true},
};

static const uint32_t ROWS[] = {1, 4, 16, 64, 256, ROWS_HOST, ROWS_MAX};

static const char *const FORMATS[TD_WEIGHT_FORMATS] = {
    [TD_WEIGHT_W8A8] = "w8a8", [TD_WEIGHT_INT4G] = "int4g", [TD_WEIGHT_FP4G] = "fp4g"};

typedef struct {
    td_bench_device d;
    td_bench_steps  steps;
    td_npu_graph   *graph;
    size_t          n_copies;
    uint32_t        rows; /* at most */
    td_npu_weight  *weights[COPIES_MAX];
    td_npu_block   *blocks[COPIES_MAX];
    void           *in, *out;
    size_t          in_bytes, out_bytes;
} copies;

static td_status run(void *ctx, td_error *err) {
    copies *c = ctx;
    return td_bench_device_run(&c->d, c->graph, err);
}

static size_t weight_bytes(const linear *l) {
    return td_weight_takes_int8(l->format) && l->format != TD_WEIGHT_W8A8 ? l->n * l->k / 2 : l->n * l->k;
}

static td_status open_copies(copies *c, const td_bench *b, const linear *l, td_error *err) {
    const td_npu_ops *ops = c->d.npu->ops;
    c->n_copies = BUFFER_BYTES / b->o->divide / b->o->divide / weight_bytes(l) + 1;
    if (c->n_copies > COPIES_MAX) c->n_copies = COPIES_MAX;
    c->rows = b->device ? ROWS_MAX : ROWS_HOST;
    c->in_bytes = c->rows * l->k * sizeof(td_bf16);
    c->out_bytes = c->rows * l->n * (l->head ? sizeof(float) : sizeof(td_bf16));
    TD_TRY(td_bench_steps_open(&c->steps, &c->d, &(td_bench_step_shape){.n_seq = 1, .n_new = c->rows}, c->rows, err));
    TD_TRY(td_bench_device_activations(&c->d, c->in_bytes / sizeof(td_bf16), &c->in, err));
    TD_TRY(ops->alloc(c->d.npu, c->out_bytes, &c->out, err));
    for (size_t i = 0; i < c->n_copies; i++) {
        TD_TRY(td_bench_device_weight(&c->d, l->format, 2, l->n, l->k, &c->weights[i], err));
        td_block_desc desc = {
            .kind = TD_BLOCK_LINEAR,
            .max_tok = c->rows,
            .linear = {.n = (uint32_t)l->n, .k = (uint32_t)l->k, .w = c->weights[i], .in = c->in, .out = c->out}};
        if (l->head)
            desc = (td_block_desc){.kind = TD_BLOCK_HEAD,
                                   .max_tok = c->rows,
                                   .head = {.hidden = (uint32_t)l->k,
                                            .vocab = (uint32_t)l->n,
                                            .max_out = c->rows,
                                            .w = c->weights[i],
                                            .x = c->in,
                                            .logits = c->out}};
        TD_TRY(ops->block_create(c->d.npu, &desc, &c->blocks[i], err));
    }
    return TD_OK;
}

static void close_copies(copies *c) {
    const td_npu_ops *ops = c->d.npu->ops;
    for (size_t i = 0; i < c->n_copies; i++) {
        if (c->blocks[i]) ops->block_destroy(c->d.npu, c->blocks[i]);
        if (c->weights[i]) ops->weight_destroy(c->d.npu, c->weights[i]);
    }
    if (c->in) ops->free(c->d.npu, c->in, c->in_bytes);
    if (c->out) ops->free(c->d.npu, c->out, c->out_bytes);
    td_bench_steps_close(&c->steps);
}

/* So many products in a call that what a launch takes is little beside them; a CPU has enough with few. */
static uint32_t products_of_call(const td_bench *b, const copies *c, const linear *l, uint32_t m) {
    if (!b->device) return m <= 16 ? (uint32_t)c->n_copies : m <= 64 ? 8 : 2;
    uint64_t divide = b->o->divide, wanted = CALL_BYTES / (divide * divide * divide) / weight_bytes(l);
    return (uint32_t)(wanted > c->n_copies ? wanted / c->n_copies * c->n_copies : c->n_copies);
}

/* @param named rows; there may be fewer. */
static td_status time_rows(td_bench *b, copies *c, const linear *l, uint32_t named, td_error *err) {
    uint32_t       m = named > b->o->divide ? named / b->o->divide : 1, n = products_of_call(b, c, l, m);
    td_bench_case  row = {.m = named,
                          .kernel = FORMATS[l->format],
                          .calls = 1,
                          .times = n,
                          .run = run,
                          .ctx = c,
                          .bytes = (double)weight_bytes(l),
                          .int8_ops = 2.0 * (double)(l->n * l->k) * m};
    const td_step *step;
    snprintf(row.shape, sizeof row.shape, "%s", l->name);
    TD_TRY(td_bench_steps_fill(&c->steps, &c->d, &(td_bench_step_shape){.n_seq = 1, .n_new = m}, m, &step, err));
    TD_TRY(td_bench_device_capture(&c->d, c->blocks, c->n_copies, n, step, &c->graph, err));
    td_status st = td_bench_time(b, &row, err);
    c->d.npu->ops->graph_destroy(c->d.npu, c->graph);
    return st;
}

static td_status time_linear(td_bench *b, const td_bench_device *d, const linear *l, td_error *err) {
    copies    c = {.d = *d};
    td_status st = open_copies(&c, b, l, err);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS && st == TD_OK; i++)
        if (ROWS[i] <= c.rows) st = time_rows(b, &c, l, ROWS[i], err);
    close_copies(&c);
    return st;
}

static size_t divided(const td_bench *b, size_t side) {
    size_t less = side / b->o->divide / SIDE_MULTIPLE * SIDE_MULTIPLE;
    return b->o->divide == 1 ? side : less ? less : SIDE_MULTIPLE;
}

td_status td_bench_kernels(td_bench *b, td_error *err) {
    td_bench_device d;
    td_status       st = td_bench_device_open(&d, b, false, err);
    for (size_t i = 0; i < sizeof LINEARS / sizeof *LINEARS && st == TD_OK; i++) {
        linear l = LINEARS[i];
        l.n = divided(b, l.n);
        l.k = divided(b, l.k);
        if (td_bench_wanted(b, l.name)) st = time_linear(b, &d, &l, err);
    }
    bool cpu = !b->device;
    td_bench_device_close(&d);
    return st == TD_OK && cpu ? td_bench_expert_kernels(b, err) : st;
}
