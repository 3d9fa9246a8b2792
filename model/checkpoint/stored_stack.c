/*
 * Weights of all experts in one tensor. X is the spec's name. An expert's part has N rows, which the spec's stack has; the
 * weight's row r is row step * r + first, since the rows of gate and up may alternate or follow each other.
 *   BF16, F16, F32  X [experts, N, k], or, transposed, [experts, k, N]; of a bias X [experts, N]. Where the shape is to say
 *                   which of them it is, N = k is refused
 *   MXFP4           X_blocks U8 [experts, N, k / 32, 16], two e2m1 a byte, the even column in the low nibble;
 *                   X_scales U8 [experts, N, k / 32], e8m0
 */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "model/checkpoint/stored_families.h"

#define GROUP 32
#define TILE 64 /* columns that are transposed at a time: a cache line of each */

static const td_safetensors_entry *find(const td_checkpoint_files *files, const td_tensor_spec *spec, const char *suffix) {
    char name[sizeof spec->name + 16];
    snprintf(name, sizeof name, "%s%s", spec->name, suffix);
    return td_checkpoint_files_find(files, name);
}

bool td_stored_stack_exists(const td_checkpoint_files *files, const td_tensor_spec *spec) {
    return find(files, spec, "") || find(files, spec, "_blocks");
}

bool td_stored_stack_is_transposed(const td_checkpoint_files *files, const td_tensor_spec *spec) {
    const td_safetensors_entry *e = find(files, spec, "");
    if (!spec->stack.by_shape || !e || e->rank != 3) return spec->stack.transposed;
    return e->shape[1] == spec->shape[1] && e->shape[2] == spec->stack.rows;
}

const td_safetensors_entry *td_stored_stack_scales(const stored_query *q) {
    return find(q->files, q->spec, "_scales");
}

static td_status check_u8(const stored_query *q, const td_safetensors_entry *e, const size_t *shape, uint32_t rank) {
    if (e->dtype != TD_DT_U8) return td_stored_fail(q, e, TD_EFORMAT, "is %s, expected U8", e->dtype_name);
    return td_stored_check_whole(q, e, shape, rank);
}

/* Where the weight's rows are among those of its expert. */
static td_status list_rows(const stored_query *q, td_coded_matrix *out) {
    const td_stack_part *p = &q->spec->stack;
    if (p->step == 1 || !q->scratch) return TD_OK;
    uint32_t *row_of = td_scratch_take(q->scratch, out->n * sizeof *row_of, q->err);
    if (!row_of) return TD_ENOMEM;
    for (size_t r = 0; r < out->n; r++) row_of[r] = (uint32_t)(p->step * r + p->first);
    out->row_of = row_of;
    return TD_OK;
}

static td_status find_blocks(const stored_query *q, const td_safetensors_entry *blocks, td_coded_matrix *out) {
    const td_stack_part        *p = &q->spec->stack;
    const td_safetensors_entry *scales = td_stored_stack_scales(q);
    size_t                      rows = p->rows, groups = out->k / GROUP;
    if (q->quant->method != TD_QUANT_MXFP4)
        return td_stored_fail(q, blocks, TD_EFORMAT, "has blocks of MXFP4, and quantization_config does not describe them");
    if (out->k % GROUP)
        return td_stored_fail(q, blocks, TD_ENOTSUP, "has rows of %zu values, which is not a multiple of %d", out->k, GROUP);
    if (!scales) return td_stored_fail(q, blocks, TD_ENOTFOUND, "is there, and %s_scales is missing", q->spec->name);
    TD_TRY(check_u8(q, blocks, (size_t[]){p->n_experts, rows, groups, GROUP / 2}, 4));
    TD_TRY(check_u8(q, scales, (size_t[]){p->n_experts, rows, groups}, 3));
    out->codes = TD_CODES_E2M1;
    out->bits = 4;
    out->group = GROUP;
    out->stored_n = rows;
    out->data = (const char *)blocks->data + p->expert * rows * (out->k / 2);
    out->scale_dtype = TD_DT_F8_E8M0;
    out->scale = (const char *)scales->data + p->expert * rows * groups;
    out->scale_row_step = groups;
    out->scale_group_step = 1;
    return list_rows(q, out);
}

td_status td_stored_stack(const stored_query *q, const td_safetensors_entry **plain, td_coded_matrix *out) {
    const td_tensor_spec       *spec = q->spec;
    const td_safetensors_entry *e = find(q->files, spec, ""), *blocks = find(q->files, spec, "_blocks");
    size_t                      rows = spec->stack.rows, k = spec->shape[1];
    if (e && blocks)
        return td_stored_fail(q, blocks, TD_EFORMAT, "is there, and %s is too: which of them is the weight is not known",
                              spec->name);
    if (e && !td_stored_is_plain(e))
        return td_stored_fail(q, e, TD_ENOTSUP, "is %s, and only BF16, F16 and F32 are supported there", e->dtype_name);
    if (e) {
        *plain = e;
        if (spec->stack.by_shape && rows == k)
            return td_stored_fail(q, e, TD_ENOTSUP,
                                  "may be stored as [experts, out, in] or as [experts, in, out], and with %zu of both its "
                                  "shape does not say which",
                                  k);
        size_t shape[3] = {spec->stack.n_experts, rows, k};
        if (spec->rank == 2 && spec->stack.transposed) shape[1] = k, shape[2] = rows;
        return td_stored_check_whole(q, e, shape, spec->rank + 1);
    }
    if (blocks && spec->rank == 2) return find_blocks(q, blocks, out);
    return spec->rank == 1
               ? td_fail(q->err, TD_ENOTFOUND, "%s: tensor %s is missing", td_checkpoint_files_dir(q->files), spec->name)
               : td_fail(q->err, TD_ENOTFOUND, "%s: tensor %s is missing, and so is %s_blocks",
                         td_checkpoint_files_dir(q->files), spec->name, spec->name);
}

/* to[r][c] = from[c][r * step], from's rows of from_row bytes; inlined with a width that the compiler knows. */
static inline void transpose(char *to, const char *from, size_t n, size_t k, size_t step, size_t from_row, size_t width) {
    for (size_t c0 = 0; c0 < k; c0 += TILE)
        for (size_t r = 0; r < n; r++)
            for (size_t c = c0; c < k && c < c0 + TILE; c++)
                memcpy(to + (r * k + c) * width, from + c * from_row + r * step * width, width);
}

td_status td_stored_stack_take(const td_tensor_spec *spec, const td_safetensors_entry *plain, td_scratch *scratch,
                               td_tensor_view *out, td_error *err) {
    const td_stack_part *p = &spec->stack;
    size_t               n = spec->shape[0], k = spec->rank > 1 ? spec->shape[1] : 1, width = td_dtype_bytes(plain->dtype);
    const char          *from = (const char *)plain->data + p->expert * k * p->rows * width;
    *out = (td_tensor_view){.dtype = plain->dtype, .rank = spec->rank, .shape = {n, spec->shape[1]}};
    if (!p->transposed) { /* rows that follow each other */
        out->data = from + p->first * k * width;
        return TD_OK;
    }
    char *to = td_scratch_take(scratch, n * k * width, err);
    if (!to) return TD_ENOMEM;
    from += p->first * width;
    if (width == 2)
        transpose(to, from, n, k, p->step, p->rows * width, 2);
    else
        transpose(to, from, n, k, p->step, p->rows * width, 4);
    out->data = to;
    return TD_OK;
}
