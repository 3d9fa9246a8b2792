#include "eval/scored_model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/threads/thread_layout.h"
#include "engine/engine_options.h"
#include "kernels/kernels.h"

#define BATCH_ROWS 2048                 /* of a step, where a window has fewer */
#define LOGITS_BYTES ((size_t)64 << 20) /* at a time */
#define OUT_MIN 16
#define OUT_MAX 256

td_batch_shape td_batch_shape_for(const td_scored_text *t, uint32_t vocab) {
    td_batch_shape s = {0};
    for (uint64_t i = 0; i < t->n_windows; i++) {
        uint32_t rows = td_window_rows(t, &t->windows[i]);
        if (rows > s.max_rows) s.max_rows = rows;
    }
    s.max_seq = s.max_rows < BATCH_ROWS ? BATCH_ROWS / s.max_rows : 1;
    if (s.max_seq > t->n_windows) s.max_seq = (uint32_t)t->n_windows;
    size_t out = LOGITS_BYTES / (vocab * sizeof(float));
    s.max_out = out < OUT_MIN ? OUT_MIN : out > OUT_MAX ? OUT_MAX : (uint32_t)out;
    return s;
}

/* ---- a batch --------------------------------------------------------------------------------- */

td_status td_batch_open(td_batch *b, const td_batch_shape *shape, td_error *err) {
    size_t n_seq = shape->max_seq, n_tok = n_seq * shape->max_rows;
    *b = (td_batch){.shape = *shape, .pages_per_seq = (shape->max_rows + TD_KV_PAGE - 1) / TD_KV_PAGE};
    b->window = calloc(shape->max_rows, sizeof *b->window);
    b->page = calloc(n_seq * b->pages_per_seq, sizeof *b->page);
    b->row = calloc(n_tok, sizeof *b->row);
    b->target = calloc(n_tok, sizeof *b->target);
    td_status st = b->window && b->page && b->row && b->target
                       ? TD_OK
                       : td_fail(err, TD_ENOMEM, "out of memory for a batch of windows");
    if (st == TD_OK) st = td_step_rows_open(&b->rows, (uint32_t)n_tok, shape->max_seq, shape->max_rows, err);
    if (st != TD_OK) {
        td_batch_close(b);
        return st;
    }
    for (uint32_t i = 0; i < n_seq * b->pages_per_seq; i++) b->page[i] = i;
    return TD_OK;
}

void td_batch_close(td_batch *b) {
    td_step_rows_close(&b->rows);
    free(b->window);
    free(b->page);
    free(b->row);
    free(b->target);
    *b = (td_batch){0};
}

void td_batch_fill(td_batch *b, const td_scored_text *t, uint64_t first, uint32_t n) {
    assert(n >= 1 && n <= b->shape.max_seq);
    b->n_scored = 0;
    td_step_rows_clear(&b->rows);
    for (uint32_t s = 0; s < n; s++) {
        const td_text_window *w = &t->windows[first + s];
        const uint32_t       *ids = t->ids + w->begin;
        uint32_t              at = b->rows.n_tok;
        memcpy(b->window, t->prefix, t->n_prefix * sizeof *t->prefix);
        memcpy(b->window + t->n_prefix, ids, (w->n - 1) * sizeof *ids);
        td_step_sequence seq = {
            .pages = b->page + (size_t)s * b->pages_per_seq, .n_pages = b->pages_per_seq, .state = td_own_state(s, 0)};
        td_step_rows_add(&b->rows, b->window, 0, td_window_rows(t, w), &seq);
        for (uint32_t i = w->first_scored; i < w->n; i++) {
            b->row[b->n_scored] = at + t->n_prefix + i - 1;
            b->target[b->n_scored++] = ids[i];
        }
    }
}

/* ---- room ------------------------------------------------------------------------------------ */

td_status td_scored_room_look(td_scored_room *r, const td_engine_options *o, td_error *err) {
    td_machine        machine = {0};
    td_thread_layout *layout = calloc(1, sizeof *layout);
    if (!layout) return td_fail(err, TD_ENOMEM, "out of memory for the thread layout");
    td_thread_wishes wishes = {.cpuinfer = o->cpuinfer, .subpool_count = o->subpool_count};
    td_npu_wish(o->device, o->base_gpu_id, 1, &wishes);
    td_status st = td_thread_layout_here(td_kernels_here()->read, &wishes, layout, &machine, err);
    if (st == TD_OK && !r->experts_pool) st = td_pool_create(layout->experts, layout->n_experts, &r->experts_pool, err);
    if (st == TD_OK && !r->npu_pool && layout->n_npu) st = td_pool_create(layout->npu, layout->n_npu, &r->npu_pool, err);
    r->room = (td_model_room){.expert_pool = r->experts_pool,
                              .npu_pools = r->npu_pool ? &r->npu_pool : NULL,
                              .available_bytes = machine.available_bytes};
    free(layout);
    return st;
}

void td_scored_room_close(td_scored_room *r) {
    td_pool_destroy(r->npu_pool);
    if (r->experts_pool) td_pool_destroy(r->experts_pool);
    *r = (td_scored_room){0};
}

/* ---- a model --------------------------------------------------------------------------------- */

static td_status open_model(td_scored_model *m, const td_engine_options *o, const td_batch_shape *shape,
                            const td_model_room *room, const td_model_probe *probe, td_error *err) {
    td_engine_config config;
    TD_TRY(td_engine_resolve(o, &config, err));
    uint32_t      n_pages = shape->max_seq * ((shape->max_rows + TD_KV_PAGE - 1) / TD_KV_PAGE);
    td_model_spec spec = config.model; /* as the engine's, but whole, on one card, for steps of another shape */
    spec.without_mtp = false;
    spec.n_cards = 1;
    spec.experts.copy_files = false;
    spec.max_tok = shape->max_seq * shape->max_rows;
    spec.max_seq = shape->max_seq;
    spec.max_out = shape->max_out;
    spec.overlap_min_tok = 0;
    spec.max_total_tokens = (uint64_t)n_pages * TD_KV_PAGE;
    spec.max_running = 1;
    m->quantization = config.quantization;
    m->act_dtype = td_model_act_dtype(&spec);
    TD_TRY(td_placed_model_open(&spec, room, probe, &m->placed, err));
    m->model = m->placed.model;
    m->expert_quantization = td_model_expert_quantization(m->model);
    if (td_model_context_length(m->model) < shape->max_rows)
        return td_fail(err, TD_EINVAL,
                       "a window takes %u positions, but the model's context has %u: choose a smaller window",
                       shape->max_rows, td_model_context_length(m->model));
    return td_model_load(m->model, n_pages, err);
}

td_status td_scored_model_open(td_scored_model *m, const td_engine_options *o, const td_batch_shape *shape,
                               const td_model_room *room, const td_model_probe *probe, td_error *err) {
    *m = (td_scored_model){0};
    td_status st = open_model(m, o, shape, room, probe, err);
    if (st != TD_OK) td_scored_model_close(m);
    return st;
}

void td_scored_model_close(td_scored_model *m) {
    td_placed_model_close(&m->placed);
    *m = (td_scored_model){0};
}

td_status td_scored_checkpoint_open(const td_engine_options *o, td_checkpoint **out, td_error *err) {
    if (o->load_format && !strcmp(o->load_format, "dummy")) return td_checkpoint_open_dummy(0, out, err);
    return td_checkpoint_open(o->model_path, out, err);
}
