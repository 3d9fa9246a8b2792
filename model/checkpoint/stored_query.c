#include "model/checkpoint/stored_query.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define NAME_BYTES (sizeof((td_tensor_spec *)0)->name + 32)

static const char WEIGHT[] = ".weight";

size_t td_stored_base_length(const td_tensor_spec *spec) {
    size_t n = strlen(spec->name), suffix = sizeof WEIGHT - 1;
    return spec->rank == 2 && n > suffix && !strcmp(spec->name + n - suffix, WEIGHT) ? n - suffix : 0;
}

static const char *name_of(const td_tensor_spec *spec, size_t base_len, const char *suffix, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "%.*s.%s", (int)base_len, spec->name, suffix);
    return name;
}

const td_safetensors_entry *td_stored_entry(const stored_query *q, const char *suffix) {
    char name[NAME_BYTES];
    return td_checkpoint_files_find(q->files, name_of(q->spec, q->base_len, suffix, name));
}

td_status td_stored_need(const stored_query *q, const char *suffix, const td_safetensors_entry **out) {
    char name[NAME_BYTES];
    *out = td_checkpoint_files_find(q->files, name_of(q->spec, q->base_len, suffix, name));
    if (!*out)
        return td_fail(q->err, TD_ENOTFOUND, "%s: tensor %s is missing, which the codes of %.*s need",
                       td_checkpoint_files_dir(q->files), name, (int)q->base_len, q->spec->name);
    return td_safetensors_check_size(td_checkpoint_files_with(q->files, name), q->err);
}

td_status td_stored_fail(const stored_query *q, const td_safetensors_entry *e, td_status status, const char *fmt, ...) {
    char    text[TD_ERROR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return td_fail(q->err, status, "%s: tensor %s %s", td_safetensors_path(td_checkpoint_files_with(q->files, e->name)),
                   e->name, text);
}

const char *td_shape_text(char *text, size_t size, const size_t *shape, uint32_t rank) {
    size_t at = (size_t)snprintf(text, size, "[");
    for (uint32_t i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%zu", i ? ", " : "", shape[i]);
    if (at < size) snprintf(text + at, size - at, "]");
    return text;
}

bool td_stored_is(const td_safetensors_entry *e, size_t rows, size_t columns) {
    if (e->rank == 1) return columns == 1 && e->shape[0] == rows;
    return e->rank == 2 && e->shape[0] == rows && e->shape[1] == columns;
}

td_status td_stored_check(const stored_query *q, const td_safetensors_entry *e, td_dtype dtype, size_t rows,
                          size_t columns) {
    char have[96];
    if (e->dtype != dtype)
        return td_stored_fail(q, e, TD_EFORMAT, "is %s, expected %s", e->dtype_name, td_safetensors_dtype_name(dtype));
    if (td_stored_is(e, rows, columns)) return TD_OK;
    return td_stored_fail(q, e, TD_EFORMAT,
                          "has the shape %s, and [%zu, %zu] follows from the model's sizes and quantization_config",
                          td_shape_text(have, sizeof have, e->shape, e->rank), rows, columns);
}

bool td_stored_is_plain(const td_safetensors_entry *e) {
    return e->dtype == TD_DT_BF16 || e->dtype == TD_DT_F16 || e->dtype == TD_DT_F32;
}

td_status td_stored_scale_dtype(const stored_query *q, const td_safetensors_entry *e, td_dtype *out) {
    *out = e->dtype;
    return td_stored_is_plain(e) ? TD_OK
                                 : td_stored_fail(q, e, TD_EFORMAT, "is %s, and a scale is F32, BF16 or F16", e->dtype_name);
}

bool td_stored_all_zero(const td_safetensors_entry *e) {
    const unsigned char *p = e->data;
    if (e->dtype == TD_DT_COUNT) return false;
    size_t element = td_dtype_bytes(e->dtype);
    for (size_t i = 0; i < e->bytes; i++)
        if (p[i] && !(p[i] == 0x80 && (i + 1) % element == 0 && e->dtype <= TD_DT_F16)) return false;
    return true;
}
