/*
 * Integers of 4 or 8 bits in words of 32, p = 32 / bits codes each, with scales per group of columns and perhaps zeros:
 *   compressed-tensors  weight_packed [n, ceil(k / p)], weight_scale [n, groups], weight_zero_point [ceil(n / p), groups], weight_shape {n, k}
 *   GPTQ                qweight [k / p, n], scales [groups, n], qzeros [groups, n / p], less by one but in gptq_v2
 *   AWQ                 qweight [k, n / 8], scales [groups, n], qzeros [groups, n / 8], all words in AWQ's order of rows
 * weight_g_idx and g_idx [k] are the group of every column. Where columns were quantised in another order than they are
 * stored (desc_act), groups are no stretches of columns; the weights are the same, but what holds groups exactly cannot
 * hold them.
 */
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "model/checkpoint/stored_families.h"

static td_status read_order(const stored_query *q, const char *name, bool expected, td_coded_matrix *out) {
    const td_safetensors_entry *e = td_stored_entry(q, name);
    if (!e && !(expected && td_coded_groups(out) > 1)) return TD_OK;
    TD_TRY(td_stored_need(q, name, &e));
    TD_TRY(td_stored_check(q, e, TD_DT_I32, out->k, 1));
    if (!q->scratch) return TD_OK;
    bool   in_order = true;
    size_t groups = td_coded_groups(out);
    for (size_t c = 0; c < out->k; c++) {
        uint32_t g;
        memcpy(&g, (const char *)e->data + c * sizeof g, sizeof g);
        if (g >= groups)
            return td_stored_fail(q, e, TD_EFORMAT, "puts column %zu into group %d, and there are %zu", c, (int)g, groups);
        in_order &= g == c / out->group;
    }
    if (in_order) return TD_OK;
    uint32_t *copy = td_scratch_take(q->scratch, out->k * sizeof *copy, q->err);
    if (!copy) return TD_ENOMEM;
    out->group_of = memcpy(copy, e->data, out->k * sizeof *copy);
    return TD_OK;
}

static size_t group_of_scheme(const td_quant_scheme *s, size_t k) {
    return s->group && s->group < k ? s->group : k;
}

/* Of several groups of quantization_config the one whose bits and group fit this module's tensors, or the first that stores
 * integers. */
static const td_quant_scheme *find_scheme(const stored_query *q, const td_safetensors_entry *packed,
                                          const td_safetensors_entry *scale) {
    const td_quant_scheme *first = NULL;
    size_t                 n = q->spec->shape[0], k = q->spec->shape[1];
    for (uint32_t i = 0; i < q->quant->n_schemes; i++) {
        const td_quant_scheme *s = &q->quant->scheme[i];
        if (s->is_float) continue;
        if (!first) first = s;
        if (td_stored_is(packed, n, td_div_up(k, 32u / s->bits)) &&
            td_stored_is(scale, n, td_div_up(k, group_of_scheme(s, k))))
            return s;
    }
    return first;
}

static td_status check_shape_tensor(const stored_query *q, td_coded_matrix *out) {
    const td_safetensors_entry *e = td_stored_entry(q, "weight_shape");
    int64_t                     sides[2];
    if (!e) return TD_OK;
    if ((e->dtype != TD_DT_I32 && e->dtype != TD_DT_I64) || !td_stored_is(e, 2, 1))
        return td_stored_fail(q, e, TD_EFORMAT, "should be I32 or I64 of shape [2]");
    if (!q->scratch) return TD_OK;
    for (size_t i = 0; i < 2; i++) {
        int32_t side;
        memcpy(&side, (const char *)e->data + i * sizeof side, sizeof side);
        sides[i] = side;
    }
    if (e->dtype == TD_DT_I64) memcpy(sides, e->data, sizeof sides);
    if (sides[0] == (int64_t)out->n && sides[1] == (int64_t)out->k) return TD_OK;
    return td_stored_fail(q, e, TD_EFORMAT, "says [%lld, %lld], expected [%zu, %zu]", (long long)sides[0],
                          (long long)sides[1], out->n, out->k);
}

td_status td_stored_packed_int(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out) {
    const td_safetensors_entry *scale, *zero;
    TD_TRY(td_stored_need(q, "weight_scale", &scale));
    const td_quant_scheme *s = q->quant->method == TD_QUANT_COMPRESSED ? find_scheme(q, e, scale) : NULL;
    if (!s) return td_stored_fail(q, e, TD_EFORMAT, "has packed integers, and quantization_config does not describe them");
    uint32_t per_word = 32u / s->bits;
    out->codes = TD_CODES_ROW_WORDS;
    out->bits = s->bits;
    out->group = group_of_scheme(s, out->k);
    out->symmetric = s->symmetric;
    out->data = e->data;
    out->scale = scale->data;
    out->scale_row_step = td_coded_groups(out);
    out->scale_group_step = 1;
    TD_TRY(td_stored_check(q, e, TD_DT_I32, out->n, td_div_up(out->k, per_word)));
    TD_TRY(td_stored_scale_dtype(q, scale, &out->scale_dtype));
    TD_TRY(td_stored_check(q, scale, scale->dtype, out->n, td_coded_groups(out)));
    TD_TRY(check_shape_tensor(q, out));
    zero = td_stored_entry(q, "weight_zero_point");
    if (!s->symmetric) TD_TRY(td_stored_need(q, "weight_zero_point", &zero));
    if (zero &&
        !(s->symmetric && zero->dtype == TD_DT_I8 &&
          (!q->scratch || td_stored_all_zero(zero)))) { /* symmetric: zeros that are not packed, or half of the range */
        TD_TRY(td_stored_check(q, zero, TD_DT_I32, td_div_up(out->n, per_word), td_coded_groups(out)));
        out->zeros = TD_ZEROS_ROW_WORDS;
        out->zero = zero->data;
    }
    return read_order(q, "weight_g_idx", s->act_order, out);
}

/* Scales and zeros of GPTQ and AWQ, whose outer dimension is the groups. */
static td_status find_groups(const stored_query *q, td_zeros_layout layout, td_coded_matrix *out) {
    const td_safetensors_entry *scale, *zero;
    TD_TRY(td_stored_need(q, "scales", &scale));
    TD_TRY(td_stored_scale_dtype(q, scale, &out->scale_dtype));
    TD_TRY(td_stored_check(q, scale, scale->dtype, td_coded_groups(out), out->n));
    out->scale = scale->data;
    out->scale_row_step = 1;
    out->scale_group_step = out->n;
    zero = td_stored_entry(q, "qzeros");
    if (!zero && out->symmetric) return TD_OK;
    TD_TRY(td_stored_need(q, "qzeros", &zero));
    TD_TRY(td_stored_check(q, zero, TD_DT_I32, td_coded_groups(out), td_div_up(out->n, 32u / out->bits)));
    out->zeros = layout;
    out->zero = zero->data;
    return TD_OK;
}

/* Begin with codes and groups: what GPTQ and AWQ have in common. */
static td_status begin(const stored_query *q, const td_safetensors_entry *e, td_quant_method method, const char *name,
                       td_coded_matrix *out) {
    if (q->quant->method != method)
        return td_stored_fail(q, e, TD_EFORMAT, "is of %s, and quantization_config does not say so", name);
    const td_quant_scheme *s = &q->quant->scheme[0];
    uint32_t               per_word = 32u / s->bits;
    out->bits = s->bits;
    out->group = group_of_scheme(s, out->k);
    out->symmetric = s->symmetric;
    out->data = e->data;
    if (method == TD_QUANT_GPTQ && out->k % per_word)
        return td_stored_fail(q, e, TD_ENOTSUP, "packs %zu columns, which is not a multiple of %u", out->k, per_word);
    if (method == TD_QUANT_AWQ && out->n % per_word)
        return td_stored_fail(q, e, TD_ENOTSUP, "packs %zu rows, which is not a multiple of %u", out->n, per_word);
    return method == TD_QUANT_GPTQ ? td_stored_check(q, e, TD_DT_I32, out->k / per_word, out->n)
                                   : td_stored_check(q, e, TD_DT_I32, out->k, out->n / per_word);
}

td_status td_stored_gptq(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out) {
    TD_TRY(begin(q, e, TD_QUANT_GPTQ, "GPTQ or AWQ", out));
    out->codes = TD_CODES_COLUMN_WORDS;
    out->zero_add = !q->quant->gptq_v2;
    TD_TRY(find_groups(q, TD_ZEROS_GPTQ, out));
    return read_order(q, "g_idx", q->quant->scheme[0].act_order, out);
}

td_status td_stored_awq(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out) {
    TD_TRY(begin(q, e, TD_QUANT_AWQ, "AWQ", out));
    out->codes = TD_CODES_AWQ_WORDS;
    return find_groups(q, TD_ZEROS_AWQ, out);
}
