#include "eval/scored_model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "engine/engine_options.h"
#include "engine/memory_plan.h"

#define BATCH_ROWS   2048               /* of a step, where a window has fewer */
#define LOGITS_BYTES ((size_t)64 << 20) /* at a time */
#define OUT_MIN      16
#define OUT_MAX      256

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
    b->token = calloc(n_tok, sizeof *b->token);
    b->pos = calloc(n_tok, sizeof *b->pos);
    b->slot = calloc(n_tok, sizeof *b->slot);
    b->row = calloc(n_tok, sizeof *b->row);
    b->target = calloc(n_tok, sizeof *b->target);
    b->seq_start = calloc(n_seq + 1, sizeof *b->seq_start);
    b->kv_len = calloc(n_seq, sizeof *b->kv_len);
    b->absorbed = calloc(n_seq, sizeof *b->absorbed);
    b->block_table = calloc(n_seq * b->pages_per_seq, sizeof *b->block_table);
    if (b->token && b->pos && b->slot && b->row && b->target && b->seq_start && b->kv_len && b->absorbed && b->block_table) {
        for (uint32_t i = 0; i < n_seq * b->pages_per_seq; i++) b->block_table[i] = i;
        return TD_OK;
    }
    td_batch_close(b);
    return td_fail(err, TD_ENOMEM, "out of memory for a batch of windows");
}

void td_batch_close(td_batch *b) {
    free(b->token);
    free(b->pos);
    free(b->slot);
    free(b->row);
    free(b->target);
    free(b->seq_start);
    free(b->kv_len);
    free(b->absorbed);
    free(b->block_table);
    *b = (td_batch){0};
}

void td_batch_fill(td_batch *b, const td_scored_text *t, uint64_t first, uint32_t n) {
    assert(n >= 1 && n <= b->shape.max_seq);
    uint32_t at = 0;
    b->n_scored = 0;
    for (uint32_t s = 0; s < n; s++) {
        const td_text_window *w = &t->windows[first + s];
        const uint32_t       *ids = t->ids + w->begin;
        uint32_t              rows = td_window_rows(t, w);
        b->seq_start[s] = at;
        b->kv_len[s] = rows;
        memcpy(b->token + at, t->prefix, t->n_prefix * sizeof *t->prefix);
        memcpy(b->token + at + t->n_prefix, ids, (w->n - 1) * sizeof *ids);
        for (uint32_t i = 0; i < rows; i++) {
            b->pos[at + i] = i;
            b->slot[at + i] = s * b->pages_per_seq * TD_KV_PAGE + i;
        }
        for (uint32_t i = w->first_scored; i < w->n; i++) {
            b->row[b->n_scored] = at + t->n_prefix + i - 1;
            b->target[b->n_scored++] = ids[i];
        }
        at += rows;
    }
    b->seq_start[n] = at;
    b->step = (td_step){.n_tok = at, .n_seq = n, .block_stride = b->pages_per_seq,
                        .host = {.token = b->token, .pos = b->pos, .slot = b->slot, .seq_start = b->seq_start, .kv_len = b->kv_len,
                                 .absorbed = b->absorbed, .block_table = b->block_table}};
}

/* ---- a model --------------------------------------------------------------------------------- */

static td_status open_model(td_scored_model *m, const td_engine_options *o, const td_batch_shape *shape, td_pool *pool, uint64_t available_bytes,
                            td_layer_tap tap, td_rows_tap rows_tap, void *tap_user, td_error *err) {
    td_engine_plan plan;
    TD_TRY(td_engine_plan_make(o, &plan, err));
    m->quantization = plan.quantization;
    m->act_dtype = plan.w8a8 ? TD_DT_BF16 : TD_DT_F32;
    td_npu_config nc = {.act_dtype = m->act_dtype, .pool = pool, .rows_tap = rows_tap, .rows_tap_user = tap_user};
    TD_TRY(td_npu_open(o->device ? o->device : "host", &nc, &m->npu, err));
    td_model_options mo = {.model_path = o->model_path, .cpu_weight_path = o->cpu_weight_path, .override_json = o->model_override_json,
                           .load_dummy = plan.load_dummy, .w8a8 = plan.w8a8, .expert_format = plan.experts->format, .expert_groups = plan.experts->groups,
                           .experts_as_stored = plan.experts_as_stored,
                           .max_tok = shape->max_seq * shape->max_rows, .max_out = shape->max_out, .context_length = o->context_length,
                           .max_deferred = plan.max_deferred, .layer_tap = tap, .layer_tap_user = tap_user};
    TD_TRY(td_model_open(&mo, m->npu, pool, &m->model, err));
    m->expert_quantization = td_model_expert_quantization(m->model);
    if (td_model_context_length(m->model) < shape->max_rows)
        return td_fail(err, TD_EINVAL, "a window takes %u positions, but the model's context has %u: choose a smaller window", shape->max_rows,
                       td_model_context_length(m->model));
    td_model_plan mp;
    uint32_t      n_pages = shape->max_seq * ((shape->max_rows + TD_KV_PAGE - 1) / TD_KV_PAGE), fit;
    td_model_get_plan(m->model, &mp);
    td_memory_plan_input in = {.available_bytes = available_bytes, .fraction = o->mem_fraction_static,
                               .weight_bytes = mp.npu_weight_bytes + mp.expert_weight_bytes, .scratch_bytes = mp.scratch_bytes,
                               .kv_bytes_per_page = mp.kv_bytes_per_page, .max_total_tokens = (uint64_t)n_pages * TD_KV_PAGE,
                               .context_length = td_model_context_length(m->model), .max_running = 1};
    TD_TRY(td_memory_plan(&in, &fit, err));
    return td_model_load(m->model, n_pages, err);
}

td_status td_scored_model_open(td_scored_model *m, const td_engine_options *o, const td_batch_shape *shape, td_pool *pool, uint64_t available_bytes,
                               td_layer_tap tap, td_rows_tap rows_tap, void *tap_user, td_error *err) {
    *m = (td_scored_model){0};
    td_status st = open_model(m, o, shape, pool, available_bytes, tap, rows_tap, tap_user, err);
    if (st != TD_OK) td_scored_model_close(m);
    return st;
}

void td_scored_model_close(td_scored_model *m) {
    td_model_close(m->model);
    if (m->npu) m->npu->ops->close(m->npu);
    *m = (td_scored_model){0};
}

td_status td_scored_checkpoint_open(const td_engine_options *o, td_checkpoint **out, td_error *err) {
    if (o->load_format && !strcmp(o->load_format, "dummy")) return td_checkpoint_open_dummy(0, out, err);
    return td_checkpoint_open(o->model_path, out, err);
}
