#include "bench/bench_device.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/math/rng.h"
#include "npu/host/host_npu.h"
#include "quant/coded_matrix.h"

#define STAGING_VALUES ((size_t)4 << 20)
#define GROUP 32

td_status td_bench_device_open(td_bench_device *d, td_bench *b, bool bare, td_error *err) {
    const char     *name = b->o->device ? b->o->device : "host";
    td_worker_place place = {.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    td_npu_caps     caps;
    *d = (td_bench_device){0};
    if (td_npu_threads_needed(name, 1)) TD_TRY(td_pool_create(&place, 1, &d->own, err));
    td_host_npu_config host = {.pool = d->own ? d->own : b->pool, .own_threads = d->own != NULL};
    td_npu_config      config = {.act_dtype = TD_DT_BF16, .host = &host, .card = b->o->first_card, .bare = bare};
    TD_TRY(td_npu_open(name, &config, &d->npu, err));
    d->npu->ops->caps(d->npu, &caps);
    d->unified = caps.unified_memory;
    td_bench_stand(b, name, d->npu);
    return d->npu->ops->stream_create(d->npu, &d->stream, err);
}

void td_bench_device_close(td_bench_device *d) {
    if (d->stream) d->npu->ops->stream_destroy(d->npu, d->stream);
    if (d->npu) d->npu->ops->close(d->npu);
    td_pool_destroy(d->own);
    *d = (td_bench_device){0};
}

/* ---- values ------------------------------------------------------------------------------------ */

static void fill_values(td_bf16 *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = td_f32_to_bf16((float)(i * 2654435761u % 2001) / 1000 - 1);
}

/* The same values in every stretch. */
static td_status upload_values(const td_bench_device *d, td_bf16 *out, size_t n, td_error *err) {
    const td_npu_ops *ops = d->npu->ops;
    size_t            stretch = n < STAGING_VALUES ? n : STAGING_VALUES;
    td_bf16          *pinned;
    TD_TRY(ops->host_alloc(d->npu, stretch * sizeof *pinned, (void **)&pinned, err));
    fill_values(pinned, stretch);
    td_status st = TD_OK;
    for (size_t i = 0; i < n && st == TD_OK; i += stretch)
        st =
            ops->copy(d->npu, d->stream, out + i, pinned, (n - i < stretch ? n - i : stretch) * sizeof *pinned, TD_COPY_H2D);
    td_status synced = ops->stream_sync(d->npu, d->stream);
    ops->host_free(d->npu, pinned, stretch * sizeof *pinned);
    if (st == TD_OK) st = synced;
    return st == TD_OK ? TD_OK : td_fail(err, st, "a copy to the device failed: %s", td_status_text(st));
}

td_status td_bench_device_activations(const td_bench_device *d, size_t n, void **out, td_error *err) {
    TD_TRY(d->npu->ops->alloc(d->npu, n * sizeof(td_bf16), out, err));
    if (!d->unified) return upload_values(d, *out, n, err);
    fill_values(*out, n);
    return TD_OK;
}

/* ---- weights ----------------------------------------------------------------------------------- */

static td_status make_real(const td_bench_device *d, td_weight_format format, uint32_t rank, size_t n, size_t k,
                           td_npu_weight **out, td_error *err) {
    size_t   count = rank == 1 ? k : n * k;
    td_bf16 *values = malloc(count * sizeof *values);
    if (!values) return td_fail(err, TD_ENOMEM, "out of memory for a weight of %zu values", count);
    for (size_t i = 0; i < count; i++)
        values[i] = td_f32_to_bf16(((float)(td_rng_u64(1, 2, i / 8) >> i % 8 * 8 & 255) / 128 - 1) * 0.05f);
    td_tensor_view v = {.dtype = TD_DT_BF16, .rank = rank, .shape = {rank == 1 ? k : n, k}, .data = values};
    td_status      st = d->npu->ops->weight_create(d->npu, format, &v, out, err);
    free(values);
    return st;
}

/* Bytes that are drawn, and n scales that are all the same. */
typedef struct {
    uint8_t *codes;
    void    *scale;
} drawn;

static void free_drawn(drawn *x) {
    free(x->codes);
    free(x->scale);
}

static td_status draw(size_t bytes, size_t n_scales, const void *scale, size_t scale_bytes, drawn *out, td_error *err) {
    *out = (drawn){.codes = malloc((bytes + 7) / 8 * 8), .scale = malloc(n_scales * scale_bytes)};
    if (!out->codes || !out->scale) {
        free_drawn(out);
        return td_fail(err, TD_ENOMEM, "out of memory for a weight of %zu bytes", bytes);
    }
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = td_rng_u64(1, 2, i / 8);
        memcpy(out->codes + i, &word, sizeof word);
    }
    for (size_t i = 0; i < n_scales; i++) memcpy((char *)out->scale + i * scale_bytes, scale, scale_bytes);
    return TD_OK;
}

static td_status make_int8(const td_bench_device *d, size_t n, size_t k, td_npu_weight **out, td_error *err) {
    const float scale = 0.05f / 128;
    drawn       x;
    TD_TRY(draw(n * k, n, &scale, sizeof scale, &x, err));
    td_tensor_view v = {.dtype = TD_DT_I8, .rank = 2, .shape = {n, k}, .data = x.codes, .scale = x.scale};
    for (size_t i = 0; i < n * k; i++)
        if (x.codes[i] == 128) x.codes[i] = 0; /* -128 is no code */
    td_status st = d->npu->ops->weight_create(d->npu, TD_WEIGHT_W8A8, &v, out, err);
    free_drawn(&x);
    return st;
}

static td_status make_groups(const td_bench_device *d, td_weight_format format, size_t n, size_t k, td_npu_weight **out,
                             td_error *err) {
    const bool    fp4 = format == TD_WEIGHT_FP4G;
    const td_bf16 bf16 = td_f32_to_bf16(1.0f / 128);
    const uint8_t e8m0 = 127 - 7;
    drawn         x;
    TD_TRY(draw(n * k / 2, n * (k / GROUP), fp4 ? (const void *)&e8m0 : &bf16, fp4 ? sizeof e8m0 : sizeof bf16, &x, err));
    td_coded_matrix m = {.codes = fp4 ? TD_CODES_E2M1 : TD_CODES_ROW_WORDS,
                         .bits = 4,
                         .n = n,
                         .k = k,
                         .stored_n = n,
                         .stored_k = k,
                         .data = x.codes,
                         .scale_dtype = fp4 ? TD_DT_F8_E8M0 : TD_DT_BF16,
                         .scale = x.scale,
                         .scale_rows = 1,
                         .scale_row_step = k / GROUP,
                         .scale_group_step = 1,
                         .group = GROUP,
                         .zeros = TD_ZEROS_NONE,
                         .factor = 1};
    td_tensor_view  v = {.dtype = TD_DT_F32, .rank = 2, .shape = {n, k}, .coded = &m};
    td_status       st = d->npu->ops->weight_create(d->npu, format, &v, out, err);
    free_drawn(&x);
    return st;
}

td_status td_bench_device_weight(const td_bench_device *d, td_weight_format format, uint32_t rank, size_t n, size_t k,
                                 td_npu_weight **out, td_error *err) {
    switch (format) {
        case TD_WEIGHT_W8A8: return make_int8(d, n, k, out, err);
        case TD_WEIGHT_INT4G:
        case TD_WEIGHT_FP4G: return make_groups(d, format, n, k, out, err);
        default: return make_real(d, format, rank, n, k, out, err);
    }
}

/* ---- steps ------------------------------------------------------------------------------------- */

static uint32_t pages_of(const td_bench_step_shape *shape) {
    return (shape->context + shape->n_new + TD_KV_PAGE - 1) / TD_KV_PAGE;
}

td_status td_bench_steps_open(td_bench_steps *s, const td_bench_device *d, const td_bench_step_shape *largest,
                              uint32_t max_out, td_error *err) {
    uint32_t n_tok = largest->n_seq * largest->n_new, pages = largest->n_seq * pages_of(largest);
    uint32_t n = n_tok > pages ? n_tok : pages, longest = largest->context + largest->n_new;
    *s = (td_bench_steps){0};
    TD_TRY(td_step_rows_open(&s->rows, n_tok, largest->n_seq, longest, err));
    td_step_shape shape = {
        .max_tok = n_tok, .max_seq = largest->n_seq, .max_out = max_out, .max_seq_tokens = longest, .recurrent = true};
    TD_TRY(td_step_buf_open(&s->buf, &shape, d->npu, err));
    s->numbers = malloc(n * sizeof *s->numbers);
    if (!s->numbers) return td_fail(err, TD_ENOMEM, "out of memory for a step");
    for (uint32_t i = 0; i < n; i++) s->numbers[i] = i;
    return TD_OK;
}

void td_bench_steps_close(td_bench_steps *s) {
    td_step_buf_close(&s->buf);
    td_step_rows_close(&s->rows);
    free(s->numbers);
    *s = (td_bench_steps){0};
}

td_status td_bench_steps_fill(td_bench_steps *s, const td_bench_device *d, const td_bench_step_shape *shape, uint32_t n_out,
                              const td_step **out, td_error *err) {
    uint32_t pages = pages_of(shape);
    td_step_rows_clear(&s->rows);
    for (uint32_t q = 0; q < shape->n_seq; q++) {
        td_step_sequence seq = {.pages = s->numbers + (size_t)q * pages,
                                .n_pages = pages,
                                .absorbed = shape->n_new == 1,
                                .state = td_own_state(q, shape->context)};
        td_step_rows_add(&s->rows, s->numbers, shape->context, shape->n_new, &seq);
    }
    const td_step_bucket *bucket = td_step_buf_fill(&s->buf, &s->rows, NULL, s->numbers, n_out);
    td_step_buf_set_kind(&s->buf, bucket, td_step_rows_kind(&s->rows));
    td_status st = td_step_buf_enqueue_upload(&s->buf, bucket, d->stream);
    if (st == TD_OK) st = d->npu->ops->stream_sync(d->npu, d->stream);
    *out = &bucket->whole;
    return st == TD_OK ? TD_OK : td_fail(err, st, "a step's arrays cannot be copied to the device: %s", td_status_text(st));
}

td_status td_bench_device_capture(const td_bench_device *d, td_npu_block *const *blocks, size_t n_blocks, size_t n,
                                  const td_step *step, td_npu_graph **out, td_error *err) {
    const td_npu_ops *ops = d->npu->ops;
    td_status         st = ops->graph_begin(d->npu, d->stream);
    if (st != TD_OK) return td_fail(err, st, "the device cannot begin a capture");
    for (size_t i = 0; i < n && st == TD_OK; i++) st = ops->enqueue(d->npu, d->stream, blocks[i % n_blocks], step);
    if (st == TD_OK) return ops->graph_end(d->npu, d->stream, out, err);
    td_status ended = ops->graph_end(d->npu, d->stream, NULL, NULL); /* the first failure is told */
    (void)ended;
    return td_fail(err, st, "a block cannot be enqueued: %s", td_status_text(st));
}

td_status td_bench_device_run(const td_bench_device *d, td_npu_graph *graph, td_error *err) {
    td_status st = d->npu->ops->graph_launch(d->npu, d->stream, graph);
    if (st == TD_OK) st = d->npu->ops->stream_sync(d->npu, d->stream);
    return st == TD_OK ? st : td_fail(err, st, "a block of the device failed: %s", td_status_text(st));
}
