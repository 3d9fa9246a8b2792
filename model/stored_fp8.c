/*
 * FP8: X.weight is e4m3 [n, k] and its scale, which multiplies,
 *   DeepSeek-V3 ("fp8")   X.weight_scale_inv [ceil(n / rows), ceil(k / columns)], weight_block_size [rows, columns]
 *   compressed-tensors    X.weight_scale, [n, 1] a row each, one element for all, or blocks as above
 */
#include "core/error.h"
#include "model/stored_weight.h"

static size_t parts(size_t n, size_t size) { return (n + size - 1) / size; }

static void set_blocks(td_coded_matrix *out, size_t rows, size_t columns) {
    out->scale_rows = rows;
    out->group = columns;
    out->scale_row_step = parts(out->k, columns);
    out->scale_group_step = 1;
}

td_status td_stored_fp8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out) {
    const td_safetensors_entry *scale;
    const td_quant_scheme      *s = NULL;
    bool                        blocks = q->quant->method == TD_QUANT_FP8;
    for (uint32_t i = 0; i < q->quant->n_schemes; i++)
        if (q->quant->scheme[i].is_float && q->quant->scheme[i].bits == 8) s = &q->quant->scheme[i];
    if (!s) return td_stored_fail(q, e, TD_EFORMAT, "is F8_E4M3, and quantization_config does not describe FP8 weights");
    TD_TRY(td_stored_need(q, blocks ? "weight_scale_inv" : "weight_scale", &scale));
    TD_TRY(td_stored_scale_dtype(q, scale, &out->scale_dtype));
    out->codes = TD_CODES_E4M3;
    out->bits = 8;
    out->data = e->data;
    out->scale = scale->data;
    if (!s->group && td_stored_is(scale, out->n, 1)) {
        set_blocks(out, 1, out->k);
        return TD_OK;
    }
    if (!s->group && (scale->rank == 0 || td_stored_is(scale, 1, 1))) {
        set_blocks(out, out->n, out->k);
        return TD_OK;
    }
    size_t rows = s->group ? s->block_rows : 1, columns = s->group ? s->group : out->k;
    set_blocks(out, rows, columns);
    return td_stored_check(q, scale, scale->dtype, parts(out->n, rows), parts(out->k, columns));
}
