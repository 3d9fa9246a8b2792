#include "model/checkpoint/stored_weight.h"

#include <string.h>

#include "core/error.h"
#include "model/checkpoint/stored_families.h"

/* ---- which family ---------------------------------------------------------------------------- */

/* A depthwise convolution's weight [n, k] is stored as [n, 1, k], and A_log [n] of Kimi-Linear as [1, 1, n, 1]. */
static td_status check_whole(const stored_query *q, const td_safetensors_entry *e) {
    const size_t *s = q->spec->shape;
    if (q->spec->rank == 1 && e->rank == 4) return td_stored_check_whole(q, e, (const size_t[]){1, 1, s[0], 1}, 4);
    return q->spec->rank == 2 && e->rank == 3 ? td_stored_check_whole(q, e, (const size_t[]){s[0], 1, s[1]}, 3)
                                              : td_stored_check_whole(q, e, s, q->spec->rank);
}

/* X.weight of a type that needs scales. */
static td_status find_codes(const stored_query *q, const td_safetensors_entry *e, td_stored_weight *out) {
    const bool bytes = e->dtype == TD_DT_I8 || e->dtype == TD_DT_U8;
    if (q->base_len && bytes && q->quant->method == TD_QUANT_FP8) return td_stored_fp4_beside_fp8(q, e, &out->coded);
    TD_TRY(check_whole(q, e));
    if (q->base_len && e->dtype == TD_DT_F8_E4M3) return td_stored_fp8(q, e, &out->coded);
    if (q->base_len && e->dtype == TD_DT_I8) return td_stored_int8(q, e, &out->coded);
    return td_stored_fail(q, e, TD_ENOTSUP, "is %s, and only BF16, F16 and F32 are supported there", e->dtype_name);
}

/* Whether there is a tensor of the spec's name, in any of the ways. */
static bool has_own(const td_checkpoint_files *files, const td_tensor_spec *spec) {
    stored_query q = {.files = files, .spec = spec, .base_len = td_stored_base_length(spec)};
    return td_checkpoint_files_find(files, spec->name) ||
           (q.base_len && (td_stored_entry(&q, "weight_packed") || td_stored_entry(&q, "qweight")));
}

/* The spec as the checkpoint has the weight: in a tensor of its own, or in that of all experts. */
static td_tensor_spec spec_there(const td_checkpoint_files *files, const td_tensor_spec *spec) {
    td_tensor_spec own = *spec, stack = *spec;
    if (!spec->within[0]) return own;
    own.stack = (td_stack_part){0};
    memcpy(stack.name, spec->within, sizeof stack.name);
    stack.within[0] = 0;
    stack.stack.transposed = td_stored_stack_is_transposed(files, &stack);
    return has_own(files, &own) || !td_stored_stack_exists(files, &stack) ? own : stack;
}

td_status td_stored_find(const td_checkpoint_files *files, const td_model_config *config, const td_tensor_spec *wanted,
                         td_scratch *scratch, td_stored_weight *out, td_error *err) {
    *out = (td_stored_weight){.found = spec_there(files, wanted)};
    const td_tensor_spec       *spec = &out->found;
    stored_query                q = {files, &config->quant, spec, td_stored_base_length(spec), scratch, err};
    const td_safetensors_entry *e = td_checkpoint_files_find(files, spec->name);
    char                        want[64];
    size_t                      n = spec->shape[0], k = spec->shape[1];
    out->coded = (td_coded_matrix){.n = n, .k = k, .stored_n = n, .stored_k = k, .scale_rows = 1, .factor = 1};
    if (spec->stack.n_experts) return td_stored_stack(&q, &out->plain, &out->coded);
    if (e && spec->n_experts && (e->dtype == TD_DT_I64 || e->dtype == TD_DT_I32)) {
        out->plain = e;
        return check_whole(&q, e);
    }
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
    return td_fail(err, TD_ENOTFOUND, "%s: tensor %s of shape %s is missing%s%s", td_checkpoint_files_dir(files), spec->name,
                   td_shape_text(want, sizeof want, spec->shape, spec->rank), spec->within[0] ? ", and so is " : "",
                   spec->within);
}

bool td_stored_exists(const td_checkpoint_files *files, const td_tensor_spec *spec) {
    td_tensor_spec there = spec_there(files, spec);
    return there.stack.n_experts ? td_stored_stack_exists(files, &there) : has_own(files, &there);
}

td_status td_stored_check_values(const td_checkpoint_files *files, const td_tensor_spec *wanted, const td_coded_matrix *m,
                                 td_error *err) {
    td_tensor_spec there = spec_there(files, wanted), *spec = &there;
    stored_query   q = {.files = files, .spec = spec, .base_len = td_stored_base_length(spec), .err = err};
    size_t         row, group;
    td_coded_fault fault = td_coded_check(m, &row, &group);
    if (fault == TD_CODED_OK) return TD_OK;
    static const char *const    SCALES[] = {"weight_scale", "weight_scale_inv", "scale", "scales"};
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
