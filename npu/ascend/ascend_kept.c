#include "npu/ascend/ascend_kept.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "quant/weight_quant.h"

size_t td_ascend_element_bytes(td_weight_format format) {
    return format == TD_WEIGHT_W8A8 ? 1 : format == TD_WEIGHT_BF16 ? sizeof(td_bf16) : sizeof(float);
}

size_t td_ascend_codes_bytes(td_weight_format format, size_t n, size_t k) {
    return td_round_up(format == TD_WEIGHT_INT4G ? n * ((k + 1) / 2) : n * k * td_ascend_element_bytes(format),
                       TD_ASCEND_WEIGHT_ALIGNMENT);
}

size_t td_ascend_rows_bytes(td_weight_format format, size_t group, size_t n, size_t k) {
    size_t bytes = td_ascend_codes_bytes(format, n, k);
    if (format == TD_WEIGHT_W8A8) return bytes + td_round_up(n * sizeof(float), TD_ASCEND_WEIGHT_ALIGNMENT);
    if (format != TD_WEIGHT_INT4G) return bytes;
    size_t groups = n * td_div_up(k, group);
    return bytes + td_round_up(groups * sizeof(float), TD_ASCEND_WEIGHT_ALIGNMENT) +
           td_round_up(groups, TD_ASCEND_WEIGHT_ALIGNMENT);
}

void td_ascend_place_nz(const int8_t *row, size_t k, size_t k_to, size_t n, int8_t *nz) {
    int8_t *tile =
        nz + n / TD_ASCEND_NZ_N * td_div_up(k_to, TD_ASCEND_NZ_K) * TD_ASCEND_NZ_K * TD_ASCEND_NZ_N + n % TD_ASCEND_NZ_N;
    for (size_t i = 0; i < k; i++) tile[i * TD_ASCEND_NZ_N] = row[i]; /* tiles of k follow each other */
}

/* ---- codes in groups ------------------------------------------------------------------------------ */

static td_status convert_row(const td_coded_matrix *m, size_t r, const td_gemm_groups *g, td_gemm_weights *row, char *host) {
    const size_t groups = td_div_up(m->k, g->size), codes = td_ascend_codes_bytes(TD_WEIGHT_INT4G, m->n, m->k),
                 scales = td_round_up(m->n * groups * sizeof(float), TD_ASCEND_WEIGHT_ALIGNMENT);
    uint8_t *to = (uint8_t *)host + r * ((m->k + 1) / 2);
    memset(row->zero, 8, groups);
    if (!td_coded_tile_row(m, r, g, groups * g->size, row)) return TD_EFORMAT;
    for (size_t c = 0; c < m->k; c++) to[c / 2] |= (uint8_t)(((const uint8_t *)row->rows)[c] << (c % 2 ? 4 : 0));
    memcpy(host + codes + r * groups * sizeof(float), row->scale, groups * sizeof(float));
    memcpy(host + codes + scales + r * groups, row->zero, groups);
    return TD_OK;
}

td_status td_ascend_int4_convert(const td_coded_matrix *m, const td_gemm_groups *g, char *host, td_error *err) {
    const size_t groups = td_div_up(m->k, g->size), k = groups * g->size;
    uint8_t     *codes = malloc(k + groups);
    float       *scale = malloc((groups + 1) * sizeof *scale);
    td_status    st = codes && scale ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for a weight's row");
    for (size_t r = 0; r < m->n && st == TD_OK; r++) {
        td_gemm_weights row = {.rows = codes, .scale = scale, .zero = codes + k, .factor = scale + groups};
        st = convert_row(m, r, g, &row, host);
        if (st != TD_OK) st = td_fail(err, st, TD_ASCEND_BAD_SCALE);
    }
    free(codes);
    free(scale);
    return st;
}

/* Rows of INT4G as rows of W8A8: a scale for each row, codes rounded. */
static td_status to_int8(const td_npu_weight *w, const char *rows, char *out, td_error *err) {
    const size_t   n = w->shape.n, k = w->shape.k, groups = td_div_up(k, w->groups.size);
    const float   *scale = (const float *)(rows + td_ascend_codes_bytes(TD_WEIGHT_INT4G, n, k));
    const uint8_t *zero = (const uint8_t *)scale + td_round_up(n * groups * sizeof *scale, TD_ASCEND_WEIGHT_ALIGNMENT);
    float         *to_scale = (float *)(out + td_ascend_codes_bytes(TD_WEIGHT_W8A8, n, k)), *row = malloc(k * sizeof *row);
    if (!row) return td_fail(err, TD_ENOMEM, "out of memory for a weight's row");
    td_status st = TD_OK;
    for (size_t r = 0; r < n && st == TD_OK; r++) {
        for (size_t c = 0; c < k; c++) {
            size_t at = r * groups + c / w->groups.size;
            row[c] = (float)((int)td_ascend_int4_code(rows, k, r, c) - zero[at]) * scale[at];
        }
        if (!td_quantize_weight_i8(TD_DT_F32, row, 1, k, (int8_t *)out + r * k, k, to_scale + r))
            st = td_fail(err, TD_EFORMAT, TD_ASCEND_BAD_SCALE);
    }
    free(row);
    return st;
}

void td_ascend_place_int4(const char *rows, size_t n, size_t r, const td_ascend_int4 *m, size_t to) {
    const size_t   groups = m->k / m->group;
    const float   *scale = (const float *)(rows + td_ascend_codes_bytes(TD_WEIGHT_INT4G, n, m->k));
    const uint8_t *zero = (const uint8_t *)scale + td_round_up(n * groups * sizeof *scale, TD_ASCEND_WEIGHT_ALIGNMENT);
    for (size_t k = 0; k < m->k; k++)
        m->codes[(k * m->n + to) / 2] |= (uint8_t)((td_ascend_int4_code(rows, m->k, r, k) ^ 8) << (to % 2 ? 4 : 0));
    for (size_t g = 0; g < groups; g++) {
        m->scale[g * m->n + to] = td_f32_to_bf16(scale[r * groups + g]);
        m->offset[g * m->n + to] = td_f32_to_bf16((float)(8 - zero[r * groups + g]));
    }
}

/* ---- rows on the host again ----------------------------------------------------------------------- */

char *td_ascend_bring_kept(td_ascend_npu *d, const td_npu_weight *w, td_error *err) {
    size_t bytes = td_ascend_rows_bytes(w->shape.format, w->groups.size, w->shape.n, w->shape.k);
    char  *host = malloc(bytes);
    if (!host) {
        (void)td_fail(err, TD_ENOMEM, "out of memory while a weight is laid out");
        return NULL;
    }
    if (td_ascend_download(d, host, w->rows, bytes, err) == TD_OK) return host;
    free(host);
    return NULL;
}

char *td_ascend_bring(td_ascend_npu *d, const td_npu_weight *w, td_error *err) {
    char *kept = td_ascend_bring_kept(d, w, err);
    if (!kept || w->shape.format != TD_WEIGHT_INT4G) return kept;
    char *rows = malloc(td_ascend_rows_bytes(TD_WEIGHT_W8A8, 0, w->shape.n, w->shape.k));
    if (!rows) (void)td_fail(err, TD_ENOMEM, "out of memory while a weight is laid out");
    if (rows && to_int8(w, kept, rows, err) != TD_OK) {
        free(rows);
        rows = NULL;
    }
    free(kept);
    return rows;
}

td_status td_ascend_send(td_ascend_npu *d, td_status so_far, void *host, size_t bytes, void **out, td_error *err) {
    if (host && so_far == TD_OK) return td_card_send(&d->base, host, bytes, "a weight's layout", out, err);
    free(host);
    return so_far;
}

void td_ascend_forget_rows(td_ascend_npu *d, const td_npu_weight *weight) {
    td_npu_weight *w = (td_npu_weight *)weight; /* the handle is opaque: only its layout changes */
    td_card_give(&d->base, w->rows);
    w->rows = NULL;
}
