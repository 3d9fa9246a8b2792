/*
 * The device's linears in W8A8, by rows. Their weights are rotated over copies that exceed the last cache level, as the
 * layers of a model do. The experts' kernels are in suite_expert_kernels.c.
 */
#include <stdlib.h>

#include "bench/bench.h"
#include "bench/bench_device.h"
#include "core/error.h"

#define BUFFER_BYTES ((size_t)640 << 20) /* beyond any L3 that this is run on */
#define COPIES_MAX 320
#define ROWS_MAX 1024

typedef struct {
    const char *name;
    size_t      n, k;
    bool        head;
} linear;

static const linear LINEARS[] = {
    {"v2-lite o 2048x2048", 2048, 2048, false},       {"v3 kv_a 576x7168", 576, 7168, false},
    {"v3 q_b 24576x1536", 24576, 1536, false},        {"v3 dense up 18432x7168", 18432, 7168, false},
    {"v2-lite head 102400x2048", 102400, 2048, true},
};

static const uint32_t ROWS[] = {1, 4, 16, 64, 256, ROWS_MAX};

typedef struct {
    td_bench_device d;
    size_t          n_copies, turn;
    td_npu_weight  *weights[COPIES_MAX];
    td_npu_block   *blocks[COPIES_MAX];
    void           *in, *out;
    size_t          in_bytes, out_bytes;
    td_step         step;
} copies;

static td_status run(void *ctx, td_error *err) {
    copies *c = ctx;
    return td_bench_device_run(&c->d, c->blocks[c->turn++ % c->n_copies], &c->step, err);
}

static td_status open_copies(copies *c, const linear *l, td_error *err) {
    const td_npu_ops *ops = c->d.npu->ops;
    c->n_copies = BUFFER_BYTES / (l->n * l->k) + 1;
    if (c->n_copies > COPIES_MAX) c->n_copies = COPIES_MAX;
    c->in_bytes = ROWS_MAX * l->k * sizeof(td_bf16);
    c->out_bytes = ROWS_MAX * l->n * (l->head ? sizeof(float) : sizeof(td_bf16));
    TD_TRY(td_bench_device_activations(&c->d, c->in_bytes / sizeof(td_bf16), &c->in, err));
    TD_TRY(ops->alloc(c->d.npu, c->out_bytes, &c->out, err));
    for (size_t i = 0; i < c->n_copies; i++) {
        TD_TRY(td_bench_device_weight(&c->d, TD_WEIGHT_W8A8, 2, l->n, l->k, &c->weights[i], err));
        td_block_desc desc = {
            .kind = TD_BLOCK_LINEAR,
            .max_tok = ROWS_MAX,
            .linear = {.n = (uint32_t)l->n, .k = (uint32_t)l->k, .w = c->weights[i], .in = c->in, .out = c->out}};
        if (l->head)
            desc = (td_block_desc){.kind = TD_BLOCK_HEAD,
                                   .max_tok = ROWS_MAX,
                                   .head = {.hidden = (uint32_t)l->k,
                                            .vocab = (uint32_t)l->n,
                                            .max_out = ROWS_MAX,
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
}

static td_status time_linear(td_bench *b, const td_bench_device *d, const linear *l, td_error *err) {
    static uint32_t out_row[ROWS_MAX];
    copies          c = {.d = *d};
    td_status       st = open_copies(&c, l, err);
    for (uint32_t i = 0; i < ROWS_MAX; i++) out_row[i] = i;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS && st == TD_OK; i++) {
        uint32_t      m = ROWS[i];
        td_bench_case row = {.m = m,
                             .kernel = "w8a8",
                             .calls = m <= 16   ? (uint32_t)c.n_copies
                                      : m <= 64 ? 8
                                                : 2,
                             .run = run,
                             .ctx = &c,
                             .bytes = (double)(l->n * l->k),
                             .ops = 2.0 * (double)(l->n * l->k) * m};
        snprintf(row.shape, sizeof row.shape, "%s", l->name);
        td_step_counts counts = {.n_tok = m, .n_out = m};
        c.step = td_step_unified(&(td_step_arrays){.counts = &counts, .out_row = out_row}, 0);
        st = td_bench_time(b, &row, err);
    }
    close_copies(&c);
    return st;
}

td_status td_bench_kernels(td_bench *b, td_error *err) {
    td_bench_device d;
    td_status       st = td_bench_device_open(&d, b, err);
    for (size_t i = 0; i < sizeof LINEARS / sizeof *LINEARS && st == TD_OK; i++)
        if (td_bench_wanted(b, LINEARS[i].name)) st = time_linear(b, &d, &LINEARS[i], err);
    td_bench_device_close(&d);
    return st == TD_OK ? td_bench_expert_kernels(b, err) : st;
}
