/* td_trace_routing: windows through the model, a batch at a time; what its routers chose goes to a file, token by token. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/file_write.h"
#include "core/files/partial_file.h"
#include "engine/model_folder.h"
#include "eval/scored_model.h"
#include "residency/routing_trace.h"

#define WINDOW_DEFAULT 512

typedef struct {
    const td_trace_routing_options *o;
    td_tokenizer                   *tok;
    td_scored_text                  text;
    td_scored_room                  room;
    td_batch                        batch;
    td_scored_model                 model;
    td_partial_file                 file;
    td_routing_header               header;
    uint16_t                       *ids; /* [rows of a batch, n_layers, top_k] */
} run;

static td_status open_text(run *r, td_error *err) {
    const td_trace_routing_options *o = r->o;
    uint32_t                        window = o->window ? o->window : WINDOW_DEFAULT;
    const char                     *dir = o->model.tokenizer_path ? o->model.tokenizer_path : o->model.model_path;
    if (!dir) return td_fail(err, TD_EINVAL, "model-path is missing");
    if (!o->text_path || !o->output_path) return td_fail(err, TD_EINVAL, "text or output is missing");
    if (td_same_file(o->output_path, o->text_path))
        return td_fail(err, TD_EINVAL, "%s would be overwritten: choose another file for the trace", o->text_path);
    if (o->model.model_path) TD_TRY(td_model_folder_check(o->model.model_path, false, err));
    TD_TRY(td_tokenizer_open(dir, &r->tok, err));
    td_text_protocol p = {.window = window, .stride = window, .limit = o->limit};
    return td_scored_text_open(o->text_path, r->tok, &p, &r->text, err);
}

static td_status open_model(run *r, td_error *err) {
    td_batch_shape shape = td_batch_shape_for(&r->text, (uint32_t)td_tokenizer_vocab_size(r->tok));
    TD_TRY(td_batch_open(&r->batch, &shape, err));
    TD_TRY(td_scored_room_look(&r->room, &r->o->model, err));
    TD_TRY(
        td_scored_model_open(&r->model, &r->o->model, &shape, &r->room.room, &(td_model_probe){.keep_routing = true}, err));
    const td_model_config *c = td_model_get_config(r->model.model);
    uint32_t               n_moe = td_moe_layers_in(c, (td_layer_range){0, c->n_layers});
    if (!n_moe) return td_fail(err, TD_EINVAL, "the model has no routed experts");
    r->header = td_routing_header_of(n_moe, c->n_experts, c->top_k, r->text.n_fed);
    return td_scored_text_check_ids(&r->text, c->vocab, err);
}

static td_status open_file(run *r, td_error *err) {
    const td_routing_header *h = &r->header;
    size_t                   token = (size_t)h->n_layers * h->top_k;
    if (h->n_tok > (TD_ROUTING_BYTES_MAX - sizeof *h) / (token * sizeof *r->ids))
        return td_fail(err, TD_EINVAL, "a trace of %llu tokens is too large: set a limit", (unsigned long long)h->n_tok);
    r->ids = malloc((size_t)r->batch.shape.max_seq * r->batch.shape.max_rows * token * sizeof *r->ids);
    if (!r->ids) return td_fail(err, TD_ENOMEM, "out of memory for the experts' ids");
    TD_TRY(td_partial_file_create(&r->file, r->o->output_path, err));
    return td_partial_file_write(&r->file, h, sizeof *h, err);
}

/* What the step's rows chose, layer by layer, to the file, token by token. */
static td_status write_rows(run *r, td_error *err) {
    const td_routing_header *h = &r->header;
    size_t                   n_tok = r->batch.rows.n_tok, token = (size_t)h->n_layers * h->top_k;
    for (uint32_t l = 0; l < h->n_layers; l++) {
        const uint16_t *chosen;
        const float    *weights;
        td_model_get_routing(r->model.model, l, &chosen, &weights);
        for (size_t i = 0; i < n_tok; i++)
            memcpy(r->ids + i * token + l * h->top_k, chosen + i * h->top_k, h->top_k * sizeof *chosen);
    }
    return td_partial_file_write(&r->file, r->ids, n_tok * token * sizeof *r->ids, err);
}

static td_status trace(run *r, td_error *err) {
    const td_trace_routing_options *o = r->o;
    uint64_t                        fed = 0;
    if (o->progress) o->progress(o->user, 0, r->text.n_fed, "reading");
    for (uint64_t w = 0, n; w < r->text.n_windows; w += n) {
        n = r->text.n_windows - w < r->batch.shape.max_seq ? r->text.n_windows - w : r->batch.shape.max_seq;
        td_batch_fill(&r->batch, &r->text, w, (uint32_t)n);
        td_status st = td_model_forward(r->model.model, &r->batch.rows, (td_out_rows){0}, NULL);
        if (st != TD_OK) return td_fail(err, st, "a step failed: %s", td_model_why(r->model.model, st));
        TD_TRY(write_rows(r, err));
        fed += r->batch.rows.n_tok;
        if (o->progress) o->progress(o->user, fed, r->text.n_fed, "reading");
    }
    return td_partial_file_finish(&r->file, err);
}

td_status td_trace_routing(const td_trace_routing_options *o, td_trace_routing_result *out, td_error *err) {
    run       r = {.o = o};
    td_status st = open_text(&r, err);
    if (st == TD_OK) st = open_model(&r, err);
    if (st == TD_OK) st = open_file(&r, err);
    if (st == TD_OK) st = trace(&r, err);
    *out = (td_trace_routing_result){
        .tokens = r.header.n_tok, .n_layers = r.header.n_layers, .n_experts = r.header.n_experts, .top_k = r.header.top_k};
    td_scored_model_close(&r.model);
    td_scored_room_close(&r.room);
    td_partial_file_close(&r.file);
    td_batch_close(&r.batch);
    td_scored_text_close(&r.text);
    td_tokenizer_close(r.tok);
    free(r.ids);
    return st;
}
