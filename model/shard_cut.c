#include "model/shard_cut.h"

#include <string.h>

#include "core/error.h"
#include "quant/coded_matrix.h"
#include "quant/weight_quant.h"

/* A stretch of the columns of every row [n, k], as it is. */
static td_status copy_columns(const td_shard_part *part, td_scratch *scratch, td_tensor_view *v, td_error *err) {
    size_t element = td_dtype_bytes(v->dtype), row_bytes = v->shape[1] * element, bytes = part->shape[1] * element;
    char  *copy = td_scratch_take(scratch, v->shape[0] * bytes, err);
    if (!copy) return TD_ENOMEM;
    for (size_t r = 0; r < v->shape[0]; r++)
        memcpy(copy + r * bytes, (const char *)v->data + r * row_bytes + part->first[1] * element, bytes);
    v->data = copy;
    return TD_OK;
}

/* The same of a float matrix, each row rounded to int8 whole. */
static td_status round_columns(const td_shard_part *part, td_scratch *scratch, td_tensor_view *v, td_error *err) {
    size_t  n = v->shape[0], k = v->shape[1], width = part->shape[1];
    int8_t *codes = td_scratch_take(scratch, n * width, err), *row = td_scratch_take(scratch, k, err);
    float  *scale = td_scratch_take(scratch, n * sizeof *scale, err);
    bool    finite = true;
    if (!codes || !row || !scale) return TD_ENOMEM;
    for (size_t r = 0; r < n; r++) {
        finite &= td_quantize_weight_i8(v->dtype, (const char *)v->data + r * k * td_dtype_bytes(v->dtype), 1, k, row, k,
                                        scale + r);
        memcpy(codes + r * width, row + part->first[1], width);
    }
    v->dtype = TD_DT_I8;
    v->data = codes;
    v->scale = scale;
    return finite ? TD_OK : td_fail(err, TD_EFORMAT, "a weight holds an infinity or a NaN");
}

td_status td_shard_cut(const td_tensor_spec *spec, const td_shard_part *part, td_weight_format format, td_scratch *scratch,
                       td_tensor_view *v, td_error *err) {
    size_t row_bytes = (spec->rank > 1 ? spec->shape[1] : 1) * td_dtype_bytes(v->dtype);
    v->data = (const char *)v->data + part->first[0] * row_bytes;
    if (v->scale) v->scale += part->first[0];
    v->shape[0] = part->shape[0];
    if (spec->rank < 2 || part->shape[1] == spec->shape[1]) return TD_OK;
    TD_TRY((format == TD_WEIGHT_W8A8 && v->dtype != TD_DT_I8 ? round_columns : copy_columns)(part, scratch, v, err));
    v->shape[1] = part->shape[1];
    return TD_OK;
}

td_status td_shard_cut_codes(const td_tensor_spec *spec, const td_shard_part *part, td_scratch *scratch, td_tensor_view *v,
                             td_error *err) {
    const td_coded_matrix *whole = v->coded;
    if (!td_coded_divides(whole, part->shape[1]))
        return td_fail(err, TD_ENOTSUP,
                       "--tensor-parallel-size %zu cuts the groups of %zu columns that share a scale in %s; a size that "
                       "divides %zu would do",
                       spec->shape[1] / part->shape[1], whole->group, spec->name,
                       whole->k % whole->group ? 1 : td_coded_groups(whole));
    td_coded_matrix *window = td_scratch_take(scratch, sizeof *window, err);
    if (!window) return TD_ENOMEM;
    *window = td_coded_window(whole, part->first[0], part->shape[0], part->first[1], part->shape[1]);
    v->coded = window;
    memcpy(v->shape, part->shape, sizeof part->shape);
    return TD_OK;
}
