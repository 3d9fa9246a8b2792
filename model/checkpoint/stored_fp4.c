/*
 * FP4 of compressed-tensors: X.weight_packed U8 [n, k / 2], two e2m1 a byte, the even column in the low nibble, and
 *   MXFP4   X.weight_scale U8 or F8_E8M0 [n, k / 32], e8m0
 *   NVFP4   X.weight_scale F8_E4M3 [n, k / 16], X.weight_global_scale F32 [1]: weight = code * scale / global scale
 * DeepSeek-V4 has MXFP4 beside FP8, as X.weight I8 [n, k / 2] and X.scale F8_E8M0 [n, k / 32].
 */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "model/checkpoint/stored_families.h"

static td_status read_factor(const stored_query *q, td_coded_matrix *out) {
    const td_safetensors_entry *e;
    float                       global;
    TD_TRY(td_stored_need(q, "weight_global_scale", &e));
    if (e->dtype != TD_DT_F32 || e->bytes != sizeof global) return td_stored_fail(q, e, TD_EFORMAT, "should be one F32");
    if (!q->scratch) return TD_OK;
    memcpy(&global, e->data, sizeof global);
    out->factor = 1 / global;
    if (!(isfinite(global) && global > 0 && isfinite(out->factor)))
        return td_stored_fail(q, e, TD_EFORMAT, "is %g, which is no scale", (double)global);
    return TD_OK;
}

/* @param e codes of 4 bits, two a byte. @param scale one for each of out->group columns */
static td_status take_codes(const stored_query *q, const td_safetensors_entry *e, const td_safetensors_entry *scale,
                            td_coded_matrix *out) {
    if (out->k % out->group)
        return td_stored_fail(q, e, TD_ENOTSUP, "has %zu columns, which is not a multiple of %zu", out->k, out->group);
    TD_TRY(td_stored_check(q, e, e->dtype, out->n, out->k / 2));
    TD_TRY(td_stored_check(q, scale, out->group == 32 ? scale->dtype : TD_DT_F8_E4M3, out->n, out->k / out->group));
    out->codes = TD_CODES_E2M1;
    out->bits = 4;
    out->data = e->data;
    out->scale_dtype = out->group == 32 ? TD_DT_F8_E8M0 : TD_DT_F8_E4M3;
    out->scale = scale->data;
    out->scale_row_step = out->k / out->group;
    out->scale_group_step = 1;
    return TD_OK;
}

td_status td_stored_fp4_beside_fp8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out) {
    const td_safetensors_entry *scale;
    TD_TRY(td_stored_need(q, "scale", &scale));
    if (scale->dtype != TD_DT_F8_E8M0 && scale->dtype != TD_DT_U8)
        return td_stored_fail(q, scale, TD_EFORMAT, "is %s, expected F8_E8M0", scale->dtype_name);
    out->group = 32;
    return take_codes(q, e, scale, out);
}

td_status td_stored_fp4(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out) {
    const td_safetensors_entry *scale;
    TD_TRY(td_stored_need(q, "weight_scale", &scale));
    out->group = scale->dtype == TD_DT_U8 || scale->dtype == TD_DT_F8_E8M0 ? 32 : 16;
    const td_quant_scheme *s = NULL;
    for (uint32_t i = 0; i < q->quant->n_schemes; i++)
        if (q->quant->scheme[i].is_float && q->quant->scheme[i].bits == 4 && q->quant->scheme[i].group == out->group)
            s = &q->quant->scheme[i];
    if (!s)
        return td_stored_fail(q, e, TD_EFORMAT,
                              "has FP4 codes in groups of %zu, and quantization_config does not describe them", out->group);
    TD_TRY(take_codes(q, e, scale, out));
    return out->group == 16 ? read_factor(q, out) : TD_OK;
}
