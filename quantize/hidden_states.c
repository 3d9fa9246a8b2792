#include "quantize/hidden_states.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

#define TENSOR "hidden_states"
#define HASH "calibration_hash"

static td_status path_of(const td_quantizer *q, uint32_t layer, char path[PATH_MAX]) {
    char name[64];
    snprintf(name, sizeof name, "calibration-%05u.safetensors", layer);
    return td_output_path(q, path, name);
}

static void hash_text(const td_quantizer *q, char text[17]) {
    snprintf(text, 17, "%016" PRIx64, q->text.hash);
}

td_status td_hidden_open(const td_quantizer *q, uint32_t layer, td_hidden_states *out) {
    char path[PATH_MAX], hash[17];
    *out = (td_hidden_states){0};
    hash_text(q, hash);
    TD_TRY(path_of(q, layer, path));
    TD_TRY(td_safetensors_open(path, &out->file, q->err));
    const td_safetensors_entry *e = td_safetensors_at(out->file, 0);
    const char                 *has = td_safetensors_metadata(out->file, HASH);
    bool ok = td_safetensors_count(out->file) == 1 && !strcmp(e->name, TENSOR) && e->dtype == td_hidden_dtype(q) &&
              e->rank == 2 && e->shape[0] == td_calibration_tokens(&q->text) && e->shape[1] == q->config.hidden && has &&
              !strcmp(has, hash);
    if (!ok) {
        td_hidden_close(out);
        return td_fail(q->err, TD_EFORMAT, "%s: it is not of this calibration", path);
    }
    out->dtype = e->dtype;
    out->rows = e->data;
    return TD_OK;
}

void td_hidden_close(td_hidden_states *h) {
    td_safetensors_close(h->file);
    *h = (td_hidden_states){0};
}

td_status td_hidden_create(const td_quantizer *q, uint32_t layer, td_hidden_writer *out) {
    char path[PATH_MAX], hash[17];
    *out = (td_hidden_writer){.item = {.name = TENSOR,
                                       .dtype = td_hidden_dtype(q),
                                       .rank = 2,
                                       .shape = {td_calibration_tokens(&q->text), q->config.hidden}}};
    hash_text(q, hash);
    TD_TRY(path_of(q, layer, path));
    TD_TRY(td_safetensors_writer_create(path, &out->item, 1, HASH, hash, &out->file, q->err));
    return td_safetensors_writer_begin(out->file, q->err);
}

td_status td_hidden_append(const td_quantizer *q, td_hidden_writer *w, uint64_t first, uint64_t n, const void *rows) {
    size_t row_bytes = q->config.hidden * td_dtype_bytes(w->item.dtype);
    return td_safetensors_writer_write(w->file, &w->item, first * row_bytes, rows, n * row_bytes, q->err);
}

td_status td_hidden_commit(const td_quantizer *q, td_hidden_writer *w) {
    return td_safetensors_writer_commit(w->file, q->err);
}

void td_hidden_writer_close(td_hidden_writer *w) {
    td_safetensors_writer_destroy(w->file);
    *w = (td_hidden_writer){0};
}

void td_hidden_remove(const td_quantizer *q, uint32_t layer) {
    char path[PATH_MAX];
    if (path_of(q, layer, path) == TD_OK) unlink(path);
}
