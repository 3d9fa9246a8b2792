#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "kernels/rows/convert.h"
#include "npu/ascend/ascend_kept.h"
#include "npu/ascend/ascend_stack.h"
#include "npu/ascend/ascend_weight.h"
#include "npu/card/card_weight.h"
#include "quant/weight_quant.h"

#define ALIGNMENT TD_ASCEND_WEIGHT_ALIGNMENT
#define NZ_N TD_ASCEND_NZ_N
#define NZ_K TD_ASCEND_NZ_K
#define INT4_SIDE_MAX 65535 /* of aclnnWeightQuantBatchMatmulV2, as what follows */
#define INT4_GROUP_STEP 32

static size_t nz_bytes(size_t n, size_t k) {
    return td_round_up(td_round_up(n, NZ_N) * td_round_up(k, NZ_K), ALIGNMENT);
}

static td_weight_format kept_as(td_weight_format format) {
    return format == TD_WEIGHT_FP4G ? TD_WEIGHT_W8A8 : format;
}

/* W8A8: in NZ, with scales and a bias. What small models are filled up with is not counted. */
size_t td_ascend_weight_bytes(td_npu *d, td_weight_format format, uint32_t group, size_t n, size_t k) {
    (void)d;
    if (kept_as(format) != TD_WEIGHT_W8A8)
        return td_ascend_rows_bytes(format, td_weight_largest_groups(format, group).size, n, k);
    return nz_bytes(n, k) + 2 * td_round_up(td_round_up(n, NZ_N) * sizeof(float), ALIGNMENT);
}

bool td_ascend_weight_is_int8(const td_npu_weight *w) {
    return w && td_ascend_taken_as(w->shape.format) == TD_WEIGHT_W8A8;
}

/* ---- creating ---------------------------------------------------------------------------------- */

/* Codes that int8 rows would hold no better are kept: td_coded_exact_tiles says which. Others are rounded to int8. */
static td_status check_source(td_weight_format format, const td_tensor_view *src, td_npu_weight *w, td_error *err) {
    if (!td_weight_is_grouped(format) || !src->coded) return td_weight_check_source(format, src, &w->shape, &w->groups, err);
    TD_TRY(td_weight_check_sides(TD_WEIGHT_W8A8, src, &w->shape, err));
    if (w->shape.n != src->coded->n || w->shape.k != src->coded->k)
        return td_fail(err, TD_ENOTSUP, "a weight in groups is made from a checkpoint's codes");
    if (td_coded_exact_tiles(src->coded, &w->groups) == TD_CODED_INT4G) w->shape.format = TD_WEIGHT_INT4G;
    return TD_OK;
}

/* Codes of row after row, each through f32. */
static td_status round_coded(const td_coded_matrix *m, int8_t *q, float *scale, td_error *err) {
    float *row = malloc(m->k * sizeof *row);
    if (!row) return td_fail(err, TD_ENOMEM, "out of memory for a weight's row");
    td_status st = TD_OK;
    for (size_t r = 0; r < m->n && st == TD_OK; r++)
        if (!td_coded_row(m, r, row) || !td_quantize_weight_i8(TD_DT_F32, row, 1, m->k, q + r * m->k, m->k, scale + r))
            st = td_fail(err, TD_EFORMAT, TD_ASCEND_BAD_SCALE);
    free(row);
    return st;
}

static td_status convert(const td_npu_weight *w, const td_tensor_view *src, char *host, td_error *err) {
    const td_weight_shape *shape = &w->shape;
    float                 *scale = (float *)(host + td_ascend_codes_bytes(shape->format, shape->n, shape->k));
    if (shape->format == TD_WEIGHT_INT4G) return td_ascend_int4_convert(src->coded, &w->groups, host, err);
    if (shape->format != TD_WEIGHT_W8A8) return td_card_weight_floats(shape, src, host, err);
    if (src->coded && !src->data) return round_coded(src->coded, (int8_t *)host, scale, err);
    return td_card_weight_int8(shape, src, (int8_t *)host, shape->k, scale, err);
}

td_status td_ascend_weight_create(td_npu *base, td_weight_format format, const td_tensor_view *src, td_npu_weight **out,
                                  td_error *err) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    td_npu_weight  made = {0};
    *out = NULL;
    TD_TRY(td_card_enter(&d->base));
    TD_TRY(check_source(format, src, &made, err));
    td_tensor_view view = *src;
    if (td_weight_is_grouped(format)) view.data = NULL;
    td_npu_weight *w = malloc(sizeof *w);
    if (!w) return td_fail(err, TD_ENOMEM, "out of memory for a weight");
    *w = made;
    size_t    bytes = td_ascend_rows_bytes(w->shape.format, w->groups.size, w->shape.n, w->shape.k);
    char     *host = calloc(1, bytes);
    td_status st = host ? convert(w, &view, host, err) : TD_OK;
    if (st == TD_OK)
        st = td_card_send(&d->base, host, bytes, "a weight", (void **)&w->rows, err);
    else
        free(host);
    if (st != TD_OK)
        td_ascend_weight_destroy(base, w);
    else
        *out = w;
    return st;
}

static void unref_matrix(td_ascend_npu *d, td_ascend_matrix *m) {
    if (!m || --m->refs) return;
    if (m->owns_data) td_card_give(&d->base, m->data);
    td_card_give(&d->base, m->scale);
    td_card_give(&d->base, m->scale16);
    td_card_give(&d->base, m->offset16);
    td_card_give(&d->base, m->bias);
    free(m);
}

void td_ascend_weight_destroy(td_npu *base, td_npu_weight *w) {
    td_ascend_npu *d = (td_ascend_npu *)base;
    if (!w || td_card_enter(&d->base) != TD_OK) return;
    unref_matrix(d, w->matrix);
    td_ascend_stack_unref(d, w->stack);
    td_card_give(&d->base, w->rows);
    td_card_give(&d->base, w->form.at[0]);
    free(w);
}

/* ---- laying out -------------------------------------------------------------------------------- */

/** Outputs of a part when it is filled up, to whole tiles. */
static size_t outputs_of(const td_ascend_part *p, td_weight_format format) {
    size_t n = p->lead ? p->blocks_to * (p->lead_to + p->rope_to) : p->n;
    return format == TD_WEIGHT_W8A8 || format == TD_WEIGHT_INT4G ? td_round_up(n, NZ_N) : n;
}

/** Where value i of a head goes of which the first `rotated` are rotated. */
static size_t rotated_place(size_t head, size_t rotated, size_t i) {
    const size_t half = head / 2, lead = rotated / 2;
    if (i < rotated) return i < lead ? i : half + i - lead;
    return i - lead < half ? i - lead : i;
}

/** Where output `row` of a part goes. */
static size_t place_of(const td_ascend_part *p, size_t row) {
    if (p->rotated) return row / p->head * p->head + rotated_place(p->head, p->rotated, row % p->head);
    if (!p->lead) return row;
    size_t block = row / (p->lead + p->rope), i = row % (p->lead + p->rope), at = block * (p->lead_to + p->rope_to);
    if (i < p->lead) return at + i;
    i -= p->lead;
    size_t second = i >= p->rope / 2, j = i - second * (p->rope / 2);
    return at + p->lead_to + (p->pairs ? 2 * j + second : second * (p->rope_to / 2) + j);
}

static bool keeps_places(const td_ascend_part *p) {
    if (p->rotated) return p->rotated == p->head;
    return !p->lead ||
           (!p->pairs && p->lead == p->lead_to && p->rope == p->rope_to && p->blocks_to * (p->lead_to + p->rope_to) == p->n);
}

/** A matrix's arrays before they are sent; those that its format has. */
typedef struct {
    size_t   bytes; /* of data */
    char    *data;
    float   *scale, *bias; /* [n] */
    td_bf16 *scale16, *offset16;
} arrays;

static void free_arrays(arrays *a) {
    free(a->data);
    free(a->scale);
    free(a->scale16);
    free(a->offset16);
    free(a->bias);
}

static size_t bytes_of(const td_ascend_matrix *m) {
    if (m->format == TD_WEIGHT_W8A8) return nz_bytes(m->n, m->k);
    if (m->format == TD_WEIGHT_INT4G) return m->n * m->k / 2;
    return m->n * m->k * td_ascend_element_bytes(m->format);
}

static size_t groups_of(const td_ascend_matrix *m) {
    return m->format == TD_WEIGHT_INT4G ? m->k / m->group * m->n : 0;
}

static td_status alloc_arrays(const td_ascend_matrix *m, arrays *a, td_error *err) {
    size_t groups = groups_of(m);
    bool   has_bias = false;
    for (size_t i = 0; i < m->n_parts; i++) has_bias |= m->parts[i].bias != NULL;
    a->bytes = bytes_of(m);
    a->data = calloc(1, a->bytes);
    if (m->format == TD_WEIGHT_W8A8) a->scale = calloc(m->n, sizeof *a->scale);
    if (groups) a->scale16 = calloc(groups, sizeof *a->scale16);
    if (groups) a->offset16 = calloc(groups, sizeof *a->offset16);
    if (has_bias) a->bias = calloc(m->n, sizeof *a->bias);
    if (a->data && (a->scale || m->format != TD_WEIGHT_W8A8) && (!groups || (a->scale16 && a->offset16)) &&
        (a->bias || !has_bias))
        return TD_OK;
    return td_fail(err, TD_ENOMEM, "out of memory while a weight is laid out");
}

/* Put a part's rows where its outputs go. */
static void place_part(const td_ascend_matrix *m, arrays *a, size_t i, const char *rows) {
    const td_ascend_part *p = &m->parts[i];
    size_t                element = td_ascend_element_bytes(m->format), first = m->first[i];
    const float          *scales = (const float *)(rows + td_ascend_codes_bytes(m->format, p->n, p->k));
    const td_ascend_int4  int4 = {m->n, m->k, m->group, (uint8_t *)a->data, a->scale16, a->offset16};
    for (size_t r = 0; r < p->n; r++) {
        size_t to = first + place_of(p, r);
        if (m->format == TD_WEIGHT_INT4G) {
            td_ascend_place_int4(rows, p->n, r, &int4, to);
        } else if (m->format == TD_WEIGHT_W8A8) {
            td_ascend_place_nz((const int8_t *)rows + r * p->k, p->k, m->k, to, (int8_t *)a->data);
            a->scale[to] = scales[r];
        } else {
            memcpy(a->data + to * m->k * element, rows + r * p->k * element, p->k * element);
        }
    }
}

static td_status place_bias(td_ascend_npu *d, const td_ascend_matrix *m, arrays *a, size_t i, td_error *err) {
    const td_ascend_part *p = &m->parts[i];
    float                *values = (float *)td_ascend_bring(d, p->bias, err);
    if (!values) return err ? err->status : TD_EDEVICE;
    for (size_t r = 0; r < p->n; r++) a->bias[m->first[i] + place_of(p, r)] = values[r];
    free(values);
    return TD_OK;
}

static td_status place_parts(td_ascend_npu *d, const td_ascend_matrix *m, arrays *a, td_error *err) {
    for (size_t i = 0; i < m->n_parts; i++) {
        const td_npu_weight *w = m->parts[i].w;
        char *rows = m->format == TD_WEIGHT_INT4G ? td_ascend_bring_kept(d, w, err) : td_ascend_bring(d, w, err);
        if (!rows) return err ? err->status : TD_EDEVICE;
        place_part(m, a, i, rows);
        free(rows);
        if (m->parts[i].bias) TD_TRY(place_bias(d, m, a, i, err));
    }
    return TD_OK;
}

/* As products add it: f32 to what codes give, else bf16. */
static td_status send_bias(td_ascend_npu *d, td_status so_far, td_ascend_matrix *m, float *bias, td_error *err) {
    if (!bias || td_ascend_is_coded(m)) return td_ascend_send(d, so_far, bias, m->n * sizeof *bias, &m->bias, err);
    td_bf16 *rounded = malloc(m->n * sizeof *rounded);
    if (rounded) td_f32_to_bf16_n(bias, m->n, rounded);
    free(bias);
    if (!rounded && so_far == TD_OK) return td_fail(err, TD_ENOMEM, "out of memory while a weight is laid out");
    return td_ascend_send(d, so_far, rounded, m->n * sizeof *rounded, &m->bias, err);
}

static td_status make_matrix(td_ascend_npu *d, td_ascend_matrix *m, td_error *err) {
    arrays    a = {0};
    size_t    halves = groups_of(m) * sizeof(td_bf16);
    td_status st = alloc_arrays(m, &a, err);
    m->owns_data = true;
    if (st == TD_OK) st = place_parts(d, m, &a, err);
    if (st != TD_OK) {
        free_arrays(&a);
        return st;
    }
    st = td_ascend_send(d, TD_OK, a.data, a.bytes, &m->data, err);
    st = td_ascend_send(d, st, a.scale, m->n * sizeof *a.scale, (void **)&m->scale, err);
    st = td_ascend_send(d, st, a.scale16, halves, (void **)&m->scale16, err);
    st = td_ascend_send(d, st, a.offset16, halves, (void **)&m->offset16, err);
    return send_bias(d, st, m, a.bias, err);
}

static td_status check_part(const td_ascend_part *p, const td_ascend_part *first, td_error *err) {
    if (td_ascend_taken_as(p->w->shape.format) != td_ascend_taken_as(first->w->shape.format))
        return td_fail(err, TD_ENOTSUP, "the weights %s and %s are multiplied with the same rows and differ in their format",
                       first->what, p->what);
    if (p->bias && !p->bias->rows) return td_fail(err, TD_EINVAL, "the bias of %s is laid out for another block", p->what);
    return p->k == first->k ? TD_OK
                            : td_fail(err, TD_EINVAL, "the weights %s and %s have other inputs", first->what, p->what);
}

/* Whether a matrix keeps 4-bit codes, by the rules of the operation's document: groups of 32 and its multiples, or one; an
 * even number of outputs, which whole tiles are. */
static bool keeps_int4(const td_ascend_npu *d, const td_ascend_part *parts, size_t n_parts, size_t k_to) {
    const size_t k = parts[0].k, group = td_ascend_int4_group(parts[0].w);
    size_t       n = 0;
    if (!d->l->ops.aclnnWeightQuantBatchMatmulV2 || !group || k_to != k || k > INT4_SIDE_MAX || k % group) return false;
    for (size_t i = 0; i < n_parts; i++) {
        const td_npu_weight *w = parts[i].w;
        n += outputs_of(&parts[i], TD_WEIGHT_INT4G);
        if (w->shape.format != TD_WEIGHT_INT4G || parts[i].int8 || td_ascend_int4_group(w) != group) return false;
    }
    return n <= INT4_SIDE_MAX && (group == k || group % INT4_GROUP_STEP == 0);
}

static bool is_part(const td_ascend_part *a, const td_ascend_part *b) {
    return a->w == b->w && a->bias == b->bias && a->lead == b->lead && a->lead_to == b->lead_to && a->rope == b->rope &&
           a->rope_to == b->rope_to && a->blocks_to == b->blocks_to && a->head == b->head && a->rotated == b->rotated;
}

/* Whether the matrix was made of these parts. */
static bool is_matrix(const td_ascend_matrix *m, const td_ascend_part *parts, size_t n_parts, size_t k_to) {
    bool same = m->n_parts == n_parts && m->k == k_to;
    for (size_t i = 0; same && i < n_parts; i++) same = is_part(&m->parts[i], &parts[i]);
    return same;
}

td_status td_ascend_matrix_of(td_ascend_npu *d, const td_ascend_part *parts, size_t n_parts, size_t k_to,
                              const td_ascend_matrix **out, td_error *err) {
    *out = NULL;
    for (size_t i = 0; i < n_parts; i++) TD_TRY(check_part(&parts[i], &parts[0], err));
    for (size_t i = 0; i < n_parts; i++) {
        td_ascend_matrix *made = parts[i].w->matrix;
        if (made && is_matrix(made, parts, n_parts, k_to)) {
            *out = made;
            return TD_OK;
        }
        if (made || !parts[i].w->rows)
            return td_fail(err, TD_EINVAL, "the weight %s is laid out for another block", parts[i].what);
    }
    td_ascend_matrix *m = calloc(1, sizeof *m);
    if (!m) return td_fail(err, TD_ENOMEM, "out of memory for a weight");
    bool int4 = keeps_int4(d, parts, n_parts, k_to);
    m->format = int4 ? TD_WEIGHT_INT4G : td_ascend_taken_as(parts[0].w->shape.format);
    m->group = int4 ? td_ascend_int4_group(parts[0].w) : 0;
    m->k = k_to;
    m->n_parts = n_parts;
    for (size_t i = 0; i < n_parts; i++) {
        m->parts[i] = parts[i];
        m->first[i] = m->n;
        m->n += outputs_of(&parts[i], m->format);
    }
    m->refs = 1; /* ours, until the parts have it */
    td_status st = TD_OK;
    if (!td_ascend_is_coded(m) && n_parts == 1 && !parts[0].bias && keeps_places(&parts[0]) && k_to == parts[0].k)
        m->data = parts[0].w->rows; /* as they are; others may read them, too */
    else
        st = make_matrix(d, m, err);
    for (size_t i = 0; i < n_parts && st == TD_OK; i++) {
        ((td_npu_weight *)parts[i].w)->matrix = m;
        m->refs++;
        if (m->owns_data) td_ascend_forget_rows(d, parts[i].w);
    }
    if (st == TD_OK) *out = m;
    unref_matrix(d, m);
    return st;
}

/* ---- vectors and rows -------------------------------------------------------------------------- */

td_status td_ascend_plain_of(const td_npu_weight *w, const char *what, const void **out, td_error *err) {
    *out = w ? w->rows : NULL;
    return !w || w->rows ? TD_OK : td_fail(err, TD_EINVAL, "the weight %s is laid out for another block", what);
}

/* ---- what attention wants ---------------------------------------------------------------------- */

/* Whether the form is made; one that was made for other sizes is refused. */
static td_status find_form(const td_npu_weight *w, const size_t sizes[6], const char *what, bool *made, td_error *err) {
    *made = w->form.made && !memcmp(w->form.sizes, sizes, sizeof w->form.sizes);
    if (w->form.made && !*made)
        return td_fail(err, TD_EINVAL, "the weight %s is laid out for attention of another shape", what);
    return TD_OK;
}

/* first [n_first] and second [n_second] bytes of host become the weight's form. */
static td_status keep_form(td_ascend_npu *d, const td_npu_weight *weight, const size_t sizes[6], void *host, size_t n_first,
                           size_t n_second, td_error *err) {
    td_npu_weight *w = (td_npu_weight *)weight;
    TD_TRY(td_card_send(&d->base, host, n_first + n_second, "a weight's layout", &w->form.at[0], err));
    w->form.at[1] = (char *)w->form.at[0] + n_first;
    memcpy(w->form.sizes, sizes, sizeof w->form.sizes);
    w->form.made = true;
    return TD_OK;
}

/* The vector's form of n_to values: its own times factor, each where the part puts it; 0 elsewhere. */
static td_status vector_form(td_ascend_npu *d, const td_npu_weight *w, const size_t sizes[6], const td_ascend_part *part,
                             size_t n_to, double factor, const char *what, const void **out, td_error *err) {
    bool made;
    TD_TRY(find_form(w, sizes, what, &made, err));
    if (!made) {
        const size_t bytes = td_round_up(n_to * sizeof(float), ALIGNMENT);
        float       *values = (float *)td_ascend_bring(d, w, err), *to = calloc(1, bytes);
        for (size_t i = 0; values && to && i < part->n; i++) to[place_of(part, i)] = (float)(values[i] * factor);
        free(values);
        if (!values) {
            free(to);
            return err ? err->status : TD_EDEVICE;
        }
        TD_TRY(keep_form(d, w, sizes, to, bytes, 0, err));
    }
    *out = w->form.at[0];
    return TD_OK;
}

td_status td_ascend_scaled_vector_of(td_ascend_npu *d, const td_npu_weight *w, size_t k, size_t k_to, double factor,
                                     const char *what, const void **out, td_error *err) {
    TD_TRY(td_ascend_plain_of(w, what, out, err));
    if (k == k_to) return TD_OK;
    return vector_form(d, w, (const size_t[6]){k, k_to}, &(td_ascend_part){.n = k}, k_to, factor, what, out, err);
}

td_status td_ascend_rotated_vector_of(td_ascend_npu *d, const td_npu_weight *w, size_t n, size_t head, size_t rotated,
                                      const char *what, const void **out, td_error *err) {
    TD_TRY(td_ascend_plain_of(w, what, out, err));
    if (!w || rotated == head) return TD_OK;
    const td_ascend_part part = {.n = n, .head = head, .rotated = rotated};
    return vector_form(d, w, (const size_t[6]){n, head, rotated}, &part, n, 1, what, out, err);
}

td_status td_ascend_bf16_vector_of(td_ascend_npu *d, const td_npu_weight *w, size_t k, size_t k_to, double factor,
                                   const char *what, const void **out, td_error *err) {
    size_t sizes[6] = {k, k_to, sizeof(td_bf16)};
    TD_TRY(td_ascend_plain_of(w, what, out, err));
    *out = NULL;
    if (w->form.made && memcmp(w->form.sizes, sizes, sizeof sizes) != 0)
        return TD_OK; /* an earlier block's values had none */
    if (!w->form.made) {
        float   *values = (float *)td_ascend_bring(d, w, err);
        td_bf16 *to = values ? calloc(1, td_round_up(k_to * sizeof *to, ALIGNMENT)) : NULL;
        bool     same = to != NULL;
        for (size_t i = 0; same && i < k; i++) {
            double value = (double)values[i] * factor;
            to[i] = td_f32_to_bf16((float)value);
            same = !((double)td_bf16_to_f32(to[i]) < value) && !((double)td_bf16_to_f32(to[i]) > value);
        }
        free(values);
        if (!values) return err ? err->status : TD_EDEVICE;
        if (to && !same) {
            free(to);
            return TD_OK;
        }
        TD_TRY(keep_form(d, w, sizes, to, td_round_up(k_to * sizeof *to, ALIGNMENT), 0, err));
    }
    *out = w->form.at[0];
    return TD_OK;
}

td_status td_ascend_rope_both_of(td_ascend_npu *d, const td_npu_weight *w, size_t dim, size_t dim_to, const void **table,
                                 size_t *positions, td_error *err) {
    const size_t sizes[6] = {dim, dim_to, 1};
    bool         made;
    TD_TRY(find_form(w, sizes, "rope", &made, err));
    if (!made) {
        float *values = (float *)td_ascend_bring(d, w, err);
        if (!values) return err ? err->status : TD_EDEVICE;
        size_t   bytes = td_round_up(w->shape.n * dim_to * sizeof(td_bf16), ALIGNMENT);
        td_bf16 *to = calloc(1, bytes);
        for (size_t p = 0; to && p < w->shape.n; p++)
            for (size_t i = 0; i < dim_to / 2; i++) {
                to[p * dim_to + i] = td_f32_to_bf16(i < dim / 2 ? values[p * dim + i] : 1);
                to[p * dim_to + dim_to / 2 + i] = td_f32_to_bf16(i < dim / 2 ? values[p * dim + dim / 2 + i] : 0);
            }
        free(values);
        TD_TRY(keep_form(d, w, sizes, to, bytes, 0, err));
        td_ascend_forget_rows(d, w);
    }
    *table = w->form.at[0];
    *positions = w->shape.n;
    return TD_OK;
}

td_status td_ascend_rope_of(td_ascend_npu *d, const td_npu_weight *w, size_t dim, size_t dim_to, const void **cos,
                            const void **sin, size_t *positions, td_error *err) {
    const size_t sizes[6] = {dim, dim_to};
    bool         made;
    TD_TRY(find_form(w, sizes, "rope", &made, err));
    size_t bytes = td_round_up(w->shape.n * dim_to * sizeof(td_bf16), ALIGNMENT);
    if (!made) {
        float *table = (float *)td_ascend_bring(d, w, err);
        if (!table) return err ? err->status : TD_EDEVICE;
        td_bf16 *to = calloc(1, 2 * bytes), *to_sin = to ? to + bytes / sizeof *to : NULL;
        for (size_t p = 0; to && p < w->shape.n; p++)
            for (size_t i = 0; i < dim_to / 2; i++) {
                float c = i < dim / 2 ? table[p * dim + i] : 1, s = i < dim / 2 ? table[p * dim + dim / 2 + i] : 0;
                for (size_t half = 0; half < 2; half++) {
                    to[p * dim_to + half * (dim_to / 2) + i] = td_f32_to_bf16(c);
                    to_sin[p * dim_to + half * (dim_to / 2) + i] = td_f32_to_bf16(s);
                }
            }
        free(table);
        TD_TRY(keep_form(d, w, sizes, to, bytes, bytes, err));
        td_ascend_forget_rows(d, w);
    }
    *cos = w->form.at[0];
    *sin = w->form.at[1];
    *positions = w->shape.n;
    return TD_OK;
}

td_status td_ascend_heads_of(td_ascend_npu *d, const td_npu_weight *w, size_t heads, size_t heads_to, size_t nope, size_t v,
                             size_t lora, size_t lora_to, const void **w_uk, const void **w_uv, td_error *err) {
    const size_t sizes[6] = {heads, heads_to, nope, v, lora, lora_to};
    bool         made;
    if (w->shape.format != TD_WEIGHT_BF16) return td_fail(err, TD_EINVAL, "the weight kv_b must be bf16");
    TD_TRY(find_form(w, sizes, "kv_b", &made, err));
    size_t uk_bytes = td_round_up(heads_to * nope * lora_to * sizeof(td_bf16), ALIGNMENT),
           uv_bytes = td_round_up(heads * lora_to * v * sizeof(td_bf16), ALIGNMENT);
    if (!made) {
        td_bf16 *rows = (td_bf16 *)td_ascend_bring(d, w, err);
        if (!rows) return err ? err->status : TD_EDEVICE;
        td_bf16 *uk = calloc(1, uk_bytes + uv_bytes), *uv = uk ? uk + uk_bytes / sizeof *uk : NULL;
        for (size_t h = 0; uk && h < heads; h++) {
            const td_bf16 *head = rows + h * (nope + v) * lora;
            for (size_t i = 0; i < nope; i++) memcpy(uk + (h * nope + i) * lora_to, head + i * lora, lora * sizeof *uk);
            for (size_t i = 0; i < v; i++)
                for (size_t l = 0; l < lora; l++) uv[(h * lora_to + l) * v + i] = head[(nope + i) * lora + l];
        }
        free(rows);
        TD_TRY(keep_form(d, w, sizes, uk, uk_bytes, uv_bytes, err));
        td_ascend_forget_rows(d, w);
    }
    *w_uk = w->form.at[0];
    *w_uv = w->form.at[1];
    return TD_OK;
}

/* ---- products ---------------------------------------------------------------------------------- */

#define T(v) td_ascend_tensor(r, v)

td_ascend_input td_ascend_codes_of(td_ascend_run *r, const td_npu_block *b, td_ascend_view x) {
    size_t          n = (size_t)x.shape[0], k = (size_t)x.shape[1];
    td_ascend_input in = {.x = td_ascend_rows_of(r->scratch + b->at.codes, TD_ACL_INT8, 0, n, k),
                          .scale = td_ascend_vector(r->scratch + b->at.scale, TD_ACL_FLOAT, 0, n)};
    td_ascend_op_quantize(r, x, in.x, in.scale);
    return in;
}

td_ascend_input td_ascend_input_of(td_ascend_run *r, const td_npu_block *b, const td_ascend_matrix *m, td_ascend_view x) {
    return m->format == TD_WEIGHT_W8A8 ? td_ascend_codes_of(r, b, x) : (td_ascend_input){.x = x};
}

td_ascend_input td_ascend_block_input(td_ascend_run *r, const td_npu_block *b, const td_ascend_matrix *m, const void *in,
                                      td_rows_i8 in_i8, size_t width) {
    size_t first = r->step->first_row, n = r->step->max_tok;
    if (in_i8.q)
        return (td_ascend_input){.x = td_ascend_rows_of(in_i8.q, TD_ACL_INT8, first, n, width),
                                 .scale = td_ascend_vector(in_i8.scale, TD_ACL_FLOAT, first, n)};
    return td_ascend_input_of(r, b, m, td_ascend_in_rows(r, in, width));
}

static size_t outputs_of_part(const td_ascend_matrix *m, size_t i) {
    return (i + 1 < m->n_parts ? m->first[i + 1] : m->n) - m->first[i];
}

/* Tiles of n follow each other, and a part begins with one. */
td_acl_tensor *td_ascend_tensor_part(td_ascend_run *r, const td_ascend_matrix *m, size_t i) {
    size_t tile_row = td_div_up(m->k, NZ_K) * NZ_K * NZ_N;
    return td_ascend_tensor_nz(r, (const char *)m->data + m->first[i] / NZ_N * tile_row, m->k, outputs_of_part(m, i));
}

td_acl_tensor *td_ascend_tensor_part_scale(td_ascend_run *r, const td_ascend_matrix *m, size_t i) {
    return T(td_ascend_rows_of(m->scale + m->first[i], TD_ACL_FLOAT, 0, 1, outputs_of_part(m, i)));
}

/* Rows of bf16 with 4-bit codes. A scale for whole rows is none of a group. */
static void product_int4(td_ascend_run *r, td_ascend_view x, const td_ascend_matrix *m, td_acl_tensor *bias,
                         td_ascend_view out) {
    td_ascend_view scale = td_ascend_rows_of(m->scale16, TD_ACL_BF16, 0, m->k / m->group, m->n),
                   offset = td_ascend_rows_of(m->offset16, TD_ACL_BF16, 0, m->k / m->group, m->n);
    TD_ASCEND_OP(r, aclnnWeightQuantBatchMatmulV2, T(x), td_ascend_tensor_int4(r, m->data, 0, m->k, m->n), T(scale),
                 T(offset), NULL, NULL, bias, m->group == m->k ? 0 : (int)m->group, T(out));
}

void td_ascend_op_matrix(td_ascend_run *r, td_ascend_input in, const td_ascend_matrix *m, td_ascend_view out) {
    if (!td_ascend_is_coded(m)) {
        td_acl_dtype   dtype = m->format == TD_WEIGHT_BF16 ? TD_ACL_BF16 : TD_ACL_FLOAT;
        td_ascend_view rows = td_ascend_rows_of(m->data, dtype, 0, m->n, m->k);
        td_ascend_op_product(r, in.x, td_ascend_transposed(rows), out);
        if (m->bias) td_ascend_op_add_to(r, out, td_ascend_vector(m->bias, TD_ACL_BF16, 0, m->n));
        return;
    }
    td_acl_tensor *bias = m->bias && r->status == TD_OK ? T(td_ascend_vector(m->bias, TD_ACL_FLOAT, 0, m->n)) : NULL;
    td_ascend_view scale = td_ascend_vector(m->scale, TD_ACL_FLOAT, 0, m->n);
    if (m->format == TD_WEIGHT_INT4G)
        product_int4(r, in.x, m, bias, out);
    else if (TD_ASCEND_HAS(r, aclnnQuantMatmulWeightNz))
        TD_ASCEND_OP(r, aclnnQuantMatmulWeightNz, T(in.x), td_ascend_tensor_nz(r, m->data, m->k, m->n), T(in.scale),
                     T(scale), NULL, NULL, NULL, NULL, bias, false, false, 0, T(out));
    else if (TD_ASCEND_HAS(r, aclnnQuantMatmulV5))
        TD_ASCEND_OP(r, aclnnQuantMatmulV5, T(in.x), td_ascend_tensor_nz(r, m->data, m->k, m->n), T(in.scale), T(scale),
                     NULL, NULL, NULL, NULL, bias, false, false, 0, T(out));
    else
        TD_ASCEND_OP(r, aclnnQuantMatmulV4, T(in.x), td_ascend_tensor_nz(r, m->data, m->k, m->n), T(scale), NULL,
                     T(in.scale), bias, false, false, T(out));
}

void td_ascend_op_matrix_to(td_ascend_run *r, td_ascend_input in, const td_ascend_matrix *m, char *filled,
                            td_ascend_view out) {
    if ((size_t)out.shape[1] == m->n) {
        td_ascend_op_matrix(r, in, m, out);
        return;
    }
    td_ascend_view all = td_ascend_rows_of(filled, out.dtype, 0, (size_t)out.shape[0], m->n);
    td_ascend_op_matrix(r, in, m, all);
    td_ascend_op_cast(r, td_ascend_columns(all, 0, (size_t)out.shape[1]), out);
}
