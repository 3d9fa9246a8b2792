/*
 * W8A8: X.weight is int8 [n, k], X.weight_scale [n, 1] or [n], symmetric. compressed-tensors (int-quantized, perhaps
 * with X.weight_zero_point, all zero), td_quantize and ModelSlim store weights in this way. ModelSlim also has
 * X.weight_offset, all zero, and a file quant_model_description.json {"X.weight": "FLOAT" | "W8A8_DYNAMIC" | "W8A8" …}. Its
 * static activations (W8A8: input_scale, input_offset, deq_scale, quant_bias) are not computed here.
 */
#include <jansson.h>
#include <string.h>

#include "core/error.h"
#include "model/checkpoint/stored_families.h"

/* Check what ModelSlim's description and offsets say. A zero of any type has only zero bits, but for the sign. */
static td_status check_modelslim(const stored_query *q, const td_safetensors_entry *e) {
    static const char *const STATIC[] = {"deq_scale", "input_scale", "quant_bias"};
    const char              *type = json_string_value(json_object_get(td_checkpoint_files_description(q->files), e->name));
    const td_safetensors_entry *more;
    if (type && strcmp(type, "W8A8") && strcmp(type, "W8A8_DYNAMIC"))
        return td_stored_fail(q, e, TD_EFORMAT, "is int8, and quant_model_description.json calls it '%.40s'", type);
    for (size_t i = 0; i < sizeof STATIC / sizeof *STATIC; i++)
        if ((more = td_stored_entry(q, STATIC[i])))
            return td_stored_fail(q, more, TD_ENOTSUP,
                                  "belongs to static quantisation of activations, which is not supported; W8A8_DYNAMIC is");
    return TD_OK;
}

static td_status check_symmetric(const stored_query *q) {
    static const char *const ZEROS[] = {"weight_offset", "weight_zero_point"}; /* of ModelSlim, of compressed-tensors */
    for (size_t i = 0; q->scratch && i < sizeof ZEROS / sizeof *ZEROS; i++) {
        const td_safetensors_entry *zero = td_stored_entry(q, ZEROS[i]);
        if (zero && !td_stored_all_zero(zero))
            return td_stored_fail(q, zero, TD_ENOTSUP, "is not zero: asymmetric int8 weights are not supported");
    }
    return TD_OK;
}

td_status td_stored_int8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out) {
    const td_safetensors_entry *scale;
    if (!td_quant_config_has_int8(q->quant))
        return td_stored_fail(q, e, TD_EFORMAT,
                              "is I8, and quantization_config does not describe int8 weights with a scale per row");
    TD_TRY(td_stored_need(q, "weight_scale", &scale));
    TD_TRY(td_stored_scale_dtype(q, scale, &out->scale_dtype));
    TD_TRY(td_stored_check(q, scale, scale->dtype, out->n, 1));
    TD_TRY(check_modelslim(q, e));
    TD_TRY(check_symmetric(q));
    out->codes = TD_CODES_INT8;
    out->bits = 8;
    out->data = e->data;
    out->scale = scale->data;
    out->scale_row_step = 1;
    out->group = out->k;
    return TD_OK;
}
