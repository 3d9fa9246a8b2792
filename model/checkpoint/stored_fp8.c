/*
 * FP8: X.weight is e4m3 [n, k] and its scale, which multiplies,
 *   DeepSeek-V3 ("fp8")   X.weight_scale_inv [ceil(n / rows), ceil(k / columns)], weight_block_size [rows, columns]
 *   DeepSeek-V4 ("fp8")   X.scale, the same blocks, F8_E8M0
 *   compressed-tensors    X.weight_scale, [n, 1] a row each, one element for all, or blocks as above
 */
#include "core/error.h"
#include "core/memory/mem.h"
#include "model/checkpoint/stored_families.h"

static bool is_one(const td_safetensors_entry *scale) {
    return scale->rank == 0 || td_stored_is(scale, 1, 1);
}

/* Of several groups of quantization_config the one that this scale fits, or the first that stores FP8. @param scale NULL: it
 * is missing. */
static const td_quant_scheme *find_scheme(const stored_query *q, const td_safetensors_entry *scale) {
    const td_quant_scheme *first = NULL;
    size_t                 n = q->spec->shape[0], k = q->spec->shape[1];
    for (uint32_t i = 0; i < q->quant->n_schemes; i++) {
        const td_quant_scheme *s = &q->quant->scheme[i];
        if (!s->is_float || s->bits != 8) continue;
        if (!first) first = s;
        if (!scale) continue;
        if (s->group ? td_stored_is(scale, td_div_up(n, s->block_rows), td_div_up(k, s->group))
                     : td_stored_is(scale, n, 1) || is_one(scale))
            return s;
    }
    return first;
}

td_status td_stored_fp8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out) {
    const char                 *scale_name = q->quant->method != TD_QUANT_FP8 ? "weight_scale"
                                             : td_stored_entry(q, "scale")    ? "scale"
                                                                              : "weight_scale_inv";
    const td_safetensors_entry *scale = td_stored_entry(q, scale_name);
    const td_quant_scheme      *s = find_scheme(q, scale);
    if (!s) return td_stored_fail(q, e, TD_EFORMAT, "is F8_E4M3, and quantization_config does not describe FP8 weights");
    TD_TRY(td_stored_need(q, scale_name, &scale));
    out->scale_dtype = scale->dtype;
    if (scale->dtype != TD_DT_F8_E8M0) TD_TRY(td_stored_scale_dtype(q, scale, &out->scale_dtype));
    bool one = !s->group && is_one(scale);
    out->codes = TD_CODES_E4M3;
    out->bits = 8;
    out->data = e->data;
    out->scale = scale->data;
    out->scale_rows = s->group ? s->block_rows : one ? out->n : 1;
    out->group = s->group ? s->group : out->k;
    out->scale_row_step = td_coded_groups(out);
    out->scale_group_step = 1;
    return one ? TD_OK : td_stored_check(q, scale, scale->dtype, td_div_up(out->n, out->scale_rows), td_coded_groups(out));
}
