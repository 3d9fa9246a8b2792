#include "model/checkpoint/stored_weight.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define NAME_BYTES (sizeof((td_tensor_spec *)0)->name + 32)

/* ---- tensors of a module --------------------------------------------------------------------- */

static const char WEIGHT[] = ".weight";

/* The length of "X" where the name is X.weight and the tensor a matrix; else 0, and there are no codes of it. */
static size_t base_length(const td_tensor_spec *spec) {
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

/* "[12, 34]"; returns text. */
static const char *shape_text(char *text, size_t size, const size_t *shape, uint32_t rank) {
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
                          shape_text(have, sizeof have, e->shape, e->rank), rows, columns);
}

bool td_stored_is_plain(const td_safetensors_entry *e) {
    return e->dtype == TD_DT_BF16 || e->dtype == TD_DT_F16 || e->dtype == TD_DT_F32;
}

td_status td_stored_check_whole(const stored_query *q, const td_safetensors_entry *e, const size_t *shape, uint32_t rank) {
    char want[96], have[96];
    if (e->rank != rank || memcmp(e->shape, shape, rank * sizeof *e->shape))
        return td_stored_fail(q, e, TD_EFORMAT, "has the shape %s, expected %s",
                              shape_text(have, sizeof have, e->shape, e->rank), shape_text(want, sizeof want, shape, rank));
    return td_safetensors_check_size(td_checkpoint_files_with(q->files, e->name), q->err);
}

td_status td_stored_scale_dtype(const stored_query *q, const td_safetensors_entry *e, td_dtype *out) {
    *out = e->dtype;
    return td_stored_is_plain(e) ? TD_OK
                                 : td_stored_fail(q, e, TD_EFORMAT, "is %s, and a scale is F32, BF16 or F16", e->dtype_name);
}

/* ---- which family ---------------------------------------------------------------------------- */

static td_status check_whole(const stored_query *q, const td_safetensors_entry *e) {
    return td_stored_check_whole(q, e, q->spec->shape, q->spec->rank);
}

/* X.weight of a type that needs scales. */
static td_status find_codes(const stored_query *q, const td_safetensors_entry *e, td_stored_weight *out) {
    TD_TRY(check_whole(q, e));
    if (q->base_len && e->dtype == TD_DT_F8_E4M3) return td_stored_fp8(q, e, &out->coded);
    if (q->base_len && e->dtype == TD_DT_I8) return td_stored_int8(q, e, &out->coded);
    return td_stored_fail(q, e, TD_ENOTSUP, "is %s, and only BF16, F16 and F32 are supported there", e->dtype_name);
}

td_status td_stored_find(const td_checkpoint_files *files, const td_model_config *config, const td_tensor_spec *spec,
                         td_scratch *scratch, td_stored_weight *out, td_error *err) {
    stored_query                q = {files, &config->quant, spec, base_length(spec), scratch, err};
    const td_safetensors_entry *e = td_checkpoint_files_find(files, spec->name);
    char                        want[64];
    size_t                      n = spec->shape[0], k = spec->shape[1];
    *out = (td_stored_weight){.coded = {.n = n, .k = k, .stored_n = n, .stored_k = k, .scale_rows = 1, .factor = 1}};
    if (spec->stack.n_experts) return td_stored_stack(&q, out);
    if (e && td_stored_is_plain(e)) {
        const td_safetensors_entry *codes = NULL;
        if (config->quant.method != TD_QUANT_NONE && q.base_len && !(codes = td_stored_entry(&q, "weight_packed")))
            codes = td_stored_entry(&q, "qweight");
        if (codes)
            return td_stored_fail(&q, codes, TD_EFORMAT, "is there, and %s is too: which of them is the weight is not known",
                                  spec->name);
        out->plain = e;
        return check_whole(&q, e);
    }
    if (config->quant.refusal[0])
        return td_fail(err, TD_ENOTSUP, "%s/config.json: %s", td_checkpoint_files_dir(files), config->quant.refusal);
    if (e) return find_codes(&q, e, out);
    if (q.base_len && (e = td_stored_entry(&q, "weight_packed")))
        return e->dtype == TD_DT_U8 ? td_stored_fp4(&q, e, &out->coded) : td_stored_packed_int(&q, e, &out->coded);
    if (q.base_len && (e = td_stored_entry(&q, "qweight")))
        return config->quant.method == TD_QUANT_AWQ ? td_stored_awq(&q, e, &out->coded) : td_stored_gptq(&q, e, &out->coded);
    return td_fail(err, TD_ENOTFOUND, "%s: tensor %s of shape %s is missing", td_checkpoint_files_dir(files), spec->name,
                   shape_text(want, sizeof want, spec->shape, spec->rank));
}

bool td_stored_exists(const td_checkpoint_files *files, const td_tensor_spec *spec) {
    stored_query q = {.files = files, .spec = spec, .base_len = base_length(spec)};
    if (spec->stack.n_experts) return td_stored_stack_exists(files, spec);
    return td_checkpoint_files_find(files, spec->name) ||
           (q.base_len && (td_stored_entry(&q, "weight_packed") || td_stored_entry(&q, "qweight")));
}

td_status td_stored_check_values(const td_checkpoint_files *files, const td_tensor_spec *spec, const td_coded_matrix *m,
                                 td_error *err) {
    stored_query   q = {.files = files, .spec = spec, .base_len = base_length(spec), .err = err};
    size_t         row, group;
    td_coded_fault fault = td_coded_check(m, &row, &group);
    if (fault == TD_CODED_OK) return TD_OK;
    static const char *const SCALES[] = {"weight_scale", "weight_scale_inv", "scales"}, *const ZEROS[] = {
                                                                                            "qzeros", "weight_zero_point"};
    const td_safetensors_entry *e = NULL;
    if (spec->stack.n_experts) e = td_stored_stack_scales(&q);
    if (fault == TD_CODED_SCALE) {
        for (size_t i = 0; !e && i < sizeof SCALES / sizeof *SCALES; i++) e = td_stored_entry(&q, SCALES[i]);
        return td_stored_fail(&q, e, TD_EFORMAT,
                              "has a scale that is not a positive number, or makes infinite weights, for row %zu, group %zu",
                              row, group);
    }
    for (size_t i = 0; !e && i < sizeof ZEROS / sizeof *ZEROS; i++) e = td_stored_entry(&q, ZEROS[i]);
    return td_stored_fail(
        &q, e, TD_EFORMAT,
        "has a zero that is not %u, for row %zu, group %zu, and quantization_config says that it is symmetric",
        1u << (m->bits - 1), row, group);
}
