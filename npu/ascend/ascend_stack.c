#include "npu/ascend/ascend_stack.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "kernels/rows/convert.h"
#include "npu/ascend/ascend_kept.h"

void td_ascend_stack_unref(td_ascend_npu *d, td_ascend_stack *s) {
    if (!s || --s->refs) return;
    td_card_give(&d->base, s->data);
    td_card_give(&d->base, s->scale);
    td_card_give(&d->base, s->scale16);
    td_card_give(&d->base, s->offset16);
    free(s->weights);
    free(s);
}

bool td_ascend_stack_has_int4(const td_ascend_stack_part *part) {
    return part->w[0]->shape.format == TD_WEIGHT_INT4G;
}

bool td_ascend_stack_takes_int4(const td_ascend_stack_part *parts, size_t n_parts, size_t n_experts, size_t k_to) {
    const size_t group = td_ascend_int4_group(parts[0].w[0]);
    if (!group || k_to != parts[0].k || k_to % group) return false;
    for (size_t i = 0; i < n_parts; i++)
        for (size_t e = 0; e < n_experts; e++) {
            const td_npu_weight *w = parts[i].w[e];
            if (w->shape.format != TD_WEIGHT_INT4G || td_ascend_int4_group(w) != group || parts[i].n % 2) return false;
        }
    return true;
}

/* Check all weights of all parts, expert by expert within a part. */
static td_status check_parts(const td_ascend_stack_part *parts, size_t n_parts, size_t n_experts,
                             const td_ascend_stack **made, td_error *err) {
    *made = parts[0].w[0]->stack;
    bool found = *made && (*made)->n_weights == n_parts * n_experts;
    for (size_t i = 0; i < n_parts; i++)
        for (size_t e = 0; e < n_experts; e++) {
            const td_npu_weight *w = parts[i].w[e];
            if (td_ascend_taken_as(w->shape.format) != TD_WEIGHT_W8A8)
                return td_fail(err, TD_ENOTSUP, "%s is neither int8 nor of 4-bit codes, as experts on an Ascend card are",
                               parts[i].what);
            if (*made ? !found || (*made)->weights[i * n_experts + e] != w : w->stack || w->matrix || !w->rows)
                return td_fail(err, TD_EINVAL, "%s is laid out for another block", parts[i].what);
        }
    return TD_OK;
}

/* ---- on the host --------------------------------------------------------------------------------- */

/** A stack's arrays before they are sent; those that its kind has. */
typedef struct {
    size_t   each; /* bytes of an expert's weights */
    char    *data;
    float   *scale;
    td_bf16 *scale16, *offset16;
} arrays;

static void free_arrays(arrays *a) {
    free(a->data);
    free(a->scale);
    free(a->scale16);
    free(a->offset16);
}

static td_status alloc_arrays(const td_ascend_stack *s, arrays *a, td_error *err) {
    const size_t n = s->n_experts * s->n, groups = s->group ? n * (s->k / s->group) : n;
    a->each = s->group ? s->k * s->n / 2 : td_round_up(s->n, TD_ASCEND_NZ_N) * td_round_up(s->k, TD_ASCEND_NZ_K);
    a->data = calloc(s->n_experts, a->each);
    a->scale16 = calloc(groups, sizeof *a->scale16);
    if (s->group)
        a->offset16 = calloc(groups, sizeof *a->offset16);
    else
        a->scale = calloc(n, sizeof *a->scale);
    if (a->data && a->scale16 && (a->scale || a->offset16)) return TD_OK;
    return td_fail(err, TD_ENOMEM, "out of memory while experts are laid out");
}

/* An expert's int8 rows, as outputs from `first` on. */
static void place_int8(const td_ascend_stack *s, arrays *a, const td_ascend_stack_part *p, size_t e, size_t first,
                       const char *rows) {
    float *scale = a->scale + e * s->n + first;
    for (size_t r = 0; r < p->n; r++)
        td_ascend_place_nz((const int8_t *)rows + r * p->k, p->k, s->k, first + r, (int8_t *)a->data + e * a->each);
    memcpy(scale, rows + td_ascend_codes_bytes(TD_WEIGHT_W8A8, p->n, p->k), p->n * sizeof *scale);
    td_f32_to_bf16_n(scale, p->n, a->scale16 + e * s->n + first);
}

/* The same with 4-bit codes. */
static void place_int4(const td_ascend_stack *s, arrays *a, const td_ascend_stack_part *p, size_t e, size_t first,
                       const char *rows) {
    const size_t         at = e * (s->k / s->group) * s->n;
    const td_ascend_int4 m = {.n = s->n,
                              .k = s->k,
                              .group = s->group,
                              .codes = (uint8_t *)a->data + e * a->each,
                              .scale = a->scale16 + at,
                              .offset = a->offset16 + at};
    for (size_t r = 0; r < p->n; r++) td_ascend_place_int4(rows, p->n, r, &m, first + r);
}

/* A weight's rows are brought to the host, and their device memory is given back, before the next weight's. So a layer's
 * experts are never in memory twice. */
static td_status place_parts(td_ascend_npu *d, const td_ascend_stack *s, const td_ascend_stack_part *parts, size_t n_parts,
                             arrays *a, td_error *err) {
    for (size_t i = 0, first = 0; i < n_parts; first += s->group ? parts[i].n : td_round_up(parts[i].n, TD_ASCEND_NZ_N), i++)
        for (size_t e = 0; e < s->n_experts; e++) {
            const td_npu_weight *w = parts[i].w[e];
            char                *rows = s->group ? td_ascend_bring_kept(d, w, err) : td_ascend_bring(d, w, err);
            if (!rows) return err ? err->status : TD_EDEVICE;
            if (s->group)
                place_int4(s, a, &parts[i], e, first, rows);
            else
                place_int8(s, a, &parts[i], e, first, rows);
            free(rows);
            td_ascend_forget_rows(d, w);
        }
    return TD_OK;
}

/* ---- on the card --------------------------------------------------------------------------------- */

static td_status make_stack(td_ascend_npu *d, td_ascend_stack *s, const td_ascend_stack_part *parts, size_t n_parts,
                            td_error *err) {
    arrays    a = {0};
    td_status st = alloc_arrays(s, &a, err);
    if (st == TD_OK) st = place_parts(d, s, parts, n_parts, &a, err);
    if (st != TD_OK) {
        free_arrays(&a);
        return st;
    }
    const size_t n = s->n_experts * s->n, halves = (s->group ? n * (s->k / s->group) : n) * sizeof(td_bf16);
    st = td_ascend_send(d, TD_OK, a.data, s->n_experts * a.each, &s->data, err);
    st = td_ascend_send(d, st, a.scale, n * sizeof *a.scale, (void **)&s->scale, err);
    st = td_ascend_send(d, st, a.scale16, halves, (void **)&s->scale16, err);
    return td_ascend_send(d, st, a.offset16, halves, (void **)&s->offset16, err);
}

td_status td_ascend_stack_of(td_ascend_npu *d, const td_ascend_stack_part *parts, size_t n_parts, size_t n_experts,
                             size_t k_to, bool int4, const td_ascend_stack **out, td_error *err) {
    TD_TRY(check_parts(parts, n_parts, n_experts, out, err));
    if (*out) return TD_OK;
    td_ascend_stack *s = calloc(1, sizeof *s);
    if (!s) return td_fail(err, TD_ENOMEM, "out of memory for experts");
    *s = (td_ascend_stack){.n_experts = n_experts,
                           .k = k_to,
                           .group = int4 ? td_ascend_int4_group(parts[0].w[0]) : 0,
                           .refs = 1,
                           .n_weights = n_parts * n_experts};
    s->weights = calloc(s->n_weights, sizeof *s->weights);
    for (size_t i = 0; i < n_parts; i++) {
        s->n += int4 ? parts[i].n : td_round_up(parts[i].n, TD_ASCEND_NZ_N);
        for (size_t e = 0; s->weights && e < n_experts; e++) s->weights[i * n_experts + e] = parts[i].w[e];
    }
    td_status st = s->weights ? make_stack(d, s, parts, n_parts, err) : td_fail(err, TD_ENOMEM, "out of memory for experts");
    for (size_t i = 0; i < s->n_weights && st == TD_OK; i++) {
        ((td_npu_weight *)s->weights[i])->stack = s; /* the handle is opaque: only its layout changes */
        s->refs++;
    }
    if (st == TD_OK) *out = s;
    td_ascend_stack_unref(d, s);
    return st;
}
