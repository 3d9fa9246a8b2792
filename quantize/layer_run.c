#include "quantize/layer_run.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "kernels/rows/convert.h"
#include "model/placed_model.h"

#define BATCH_TOKENS 2048 /* of a step, where a window has fewer */

typedef struct {
    td_quantizer   *q;
    td_layer_seen  *seen;
    td_placed_model placed;
    td_dtype        act_dtype;
    uint32_t        windows, pages_per_window; /* of a step at most */
    uint64_t        at;                        /* token that the step begins with */
    bool            mtp;                       /* the layer is fed the next tokens */
    td_step_rows    rows;
    uint32_t       *token; /* [window] */
    uint32_t       *page;  /* [windows, pages_per_window] */
    void           *x;     /* [step, hidden] of act_dtype */
    void           *store; /* the same of the file's type */
    float          *wide;  /* [step, hidden] */
} layer_run;

static void see(void *user, const td_layer_output *o) {
    layer_run             *r = user;
    const td_model_config *c = &r->q->config;
    size_t                 hidden = c->hidden, pairs = (size_t)o->n_tok * c->top_k;
    td_layer_seen         *s = r->seen;
    if (s->out && r->at < s->out_tokens) {
        uint64_t left = s->out_tokens - r->at, n = o->n_tok < left ? o->n_tok : left;
        td_to_f32(o->dtype, o->x, n * hidden, s->out + r->at * hidden);
    }
    if (!o->expert_x) return;
    if (s->expert_x) td_to_f32(o->dtype, o->expert_x, o->n_tok * hidden, s->expert_x + r->at * hidden);
    if (s->expert_ids) memcpy(s->expert_ids + r->at * c->top_k, o->expert_ids, pairs * sizeof *s->expert_ids);
    if (s->expert_weights)
        memcpy(s->expert_weights + r->at * c->top_k, o->expert_weights, pairs * sizeof *s->expert_weights);
}

static void see_rows(void *user, const td_npu_weight *const *weights, size_t n, td_dtype dtype, const void *x, size_t m,
                     size_t k) {
    layer_run *r = user;
    td_role    roles[TD_ROLE_COUNT];
    uint32_t   layer;
    size_t     known = 0;
    assert(dtype == TD_DT_F32); /* the numbers of the source */
    for (size_t i = 0; i < n; i++) known += td_model_find_weight(r->placed.model, weights[i], &layer, &roles[known]);
    if (known) td_linear_rounding_add(r->seen->linears, roles, known, x, m, k);
}

static uint32_t step_windows(const td_quantizer *q) {
    uint32_t n = q->text.window < BATCH_TOKENS ? BATCH_TOKENS / q->text.window : 1;
    return n < q->text.n_windows ? n : q->text.n_windows;
}

static td_status open_model(layer_run *r, uint32_t layer, td_layer_numbers numbers) {
    td_quantizer *q = r->q;
    bool          written = numbers == TD_LAYER_WRITTEN;
    r->mtp = layer >= q->config.n_layers;
    r->windows = step_windows(q);
    r->pages_per_window = (q->text.window + TD_KV_PAGE - 1) / TD_KV_PAGE;
    td_model_spec  spec = td_model_spec_of(q->o->model_path, r->windows * q->text.window);
    td_model_room  room = {.expert_pool = q->pool};
    td_model_probe probe = {.layer_tap = see, .rows_tap = r->seen && r->seen->linears ? see_rows : NULL, .user = r};
    spec.checkpoint = q->source;
    spec.layers = (td_layer_range){layer, layer + 1};
    if (written) {
        spec.cpu_weight_path = q->o->output_path;
        spec.w8a8 = q->w8a8;
        spec.experts.format = q->experts->format;
        spec.experts.groups = q->experts->groups;
    }
    spec.max_seq = r->windows;
    spec.context_length = q->text.window;
    spec.n_pages = r->windows * r->pages_per_window;
    r->act_dtype = td_model_act_dtype(&spec);
    return td_placed_model_open(&spec, &room, &probe, &r->placed, q->err);
}

static td_status take_arrays(layer_run *r) {
    size_t n_tok = (size_t)r->windows * r->q->text.window, n_pages = (size_t)r->windows * r->pages_per_window,
           row = r->q->config.hidden * sizeof(float);
    r->token = calloc(r->q->text.window, sizeof *r->token);
    r->page = malloc(n_pages * sizeof *r->page);
    r->x = aligned_alloc(TD_CACHE_LINE, td_round_up(n_tok * row, TD_CACHE_LINE));
    r->store = malloc(n_tok * row);
    r->wide = malloc(n_tok * row);
    if (!r->token || !r->page || !r->x || !r->store || !r->wide)
        return td_fail(r->q->err, TD_ENOMEM, "out of memory for a step of the calibration");
    for (uint32_t i = 0; i < n_pages; i++) r->page[i] = i;
    return td_step_rows_open(&r->rows, (uint32_t)n_tok, r->windows, r->q->text.window, r->q->err);
}

/* What an MTP layer is fed: behind a window's last token, whose successor is not in the text, its first. */
static void take_next_tokens(layer_run *r, uint32_t s) {
    uint32_t window = r->q->text.window;
    for (uint32_t i = 0; i < window; i++) r->token[i] = r->q->text.ids[r->at + s * window + (i + 1) % window];
}

static td_status run_windows(layer_run *r, uint32_t n, const td_hidden_states *in, td_hidden_writer *next) {
    td_quantizer *q = r->q;
    size_t        n_tok = (size_t)n * q->text.window, values = n_tok * q->config.hidden;
    td_step_rows_clear(&r->rows);
    for (uint32_t w = 0; w < n; w++) {
        if (r->mtp) take_next_tokens(r, w);
        td_step_sequence seq = {
            .pages = r->page + (size_t)w * r->pages_per_window, .n_pages = r->pages_per_window, .state = td_own_state(w, 0)};
        td_step_rows_add(&r->rows, r->token, 0, q->text.window, &seq);
    }
    td_to_f32(in->dtype, in->rows + r->at * q->config.hidden * td_dtype_bytes(in->dtype), values, r->wide);
    td_from_f32(r->act_dtype, r->wide, values, r->x);
    td_status st = td_model_run_layers(r->placed.model, &r->rows, r->x, r->x);
    if (st != TD_OK) return td_fail(q->err, st, "a step of the calibration failed: %s", td_model_why(r->placed.model, st));
    if (!next) return TD_OK;
    td_to_f32(r->act_dtype, r->x, values, r->wide);
    td_from_f32(td_hidden_dtype(q), r->wide, values, r->store);
    return td_hidden_append(q, next, r->at, n_tok, r->store);
}

static void close_run(layer_run *r) {
    td_placed_model_close(&r->placed);
    td_step_rows_close(&r->rows);
    free(r->token);
    free(r->page);
    free(r->x);
    free(r->store);
    free(r->wide);
}

td_status td_layer_run(td_quantizer *q, uint32_t layer, td_layer_numbers numbers, const td_hidden_states *in,
                       td_layer_seen *seen, td_hidden_writer *next) {
    layer_run r = {.q = q, .seen = seen};
    td_status st = open_model(&r, layer, numbers);
    if (st == TD_OK) st = td_model_load(r.placed.model, r.placed.shares.n_pages, q->err);
    if (st == TD_OK) st = take_arrays(&r);
    for (uint32_t w = 0, n; st == TD_OK && w < q->text.n_windows; w += n) {
        n = q->text.n_windows - w < r.windows ? q->text.n_windows - w : r.windows;
        r.at = (uint64_t)w * q->text.window;
        st = run_windows(&r, n, in, next);
    }
    close_run(&r);
    return st;
}

td_status td_layer_run_bytes(td_quantizer *q, uint32_t layer, uint64_t *bytes) {
    layer_run r = {.q = q};
    *bytes = 0;
    td_status st = open_model(&r, layer, TD_LAYER_SOURCE); /* weights in bf16: the larger ones */
    if (st == TD_OK)
        *bytes = td_model_memory_bytes(&r.placed.memory, r.placed.shares.n_pages) +
                 3 * sizeof(float) * r.windows * q->text.window * q->config.hidden; /* x, store, wide */
    close_run(&r);
    return st;
}
