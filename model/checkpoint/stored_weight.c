#include "model/checkpoint/stored_weight.h"

#include "core/error.h"
#include "model/checkpoint/stored_families.h"

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
    stored_query                q = {files, &config->quant, spec, td_stored_base_length(spec), scratch, err};
    const td_safetensors_entry *e = td_checkpoint_files_find(files, spec->name);
    char                        want[64];
    size_t                      n = spec->shape[0], k = spec->shape[1];
    *out = (td_stored_weight){.coded = {.n = n, .k = k, .stored_n = n, .stored_k = k, .scale_rows = 1, .factor = 1}};
    if (spec->stack.n_experts) return td_stored_stack(&q, &out->plain, &out->coded);
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
                   td_shape_text(want, sizeof want, spec->shape, spec->rank));
}

bool td_stored_exists(const td_checkpoint_files *files, const td_tensor_spec *spec) {
    stored_query q = {.files = files, .spec = spec, .base_len = td_stored_base_length(spec)};
    if (spec->stack.n_experts) return td_stored_stack_exists(files, spec);
    return td_checkpoint_files_find(files, spec->name) ||
           (q.base_len && (td_stored_entry(&q, "weight_packed") || td_stored_entry(&q, "qweight")));
}

td_status td_stored_check_values(const td_checkpoint_files *files, const td_tensor_spec *spec, const td_coded_matrix *m,
                                 td_error *err) {
    stored_query   q = {.files = files, .spec = spec, .base_len = td_stored_base_length(spec), .err = err};
    size_t         row, group;
    td_coded_fault fault = td_coded_check(m, &row, &group);
    if (fault == TD_CODED_OK) return TD_OK;
    static const char *const    SCALES[] = {"weight_scale", "weight_scale_inv", "scales"};
    static const char *const    ZEROS[] = {"qzeros", "weight_zero_point"};
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
