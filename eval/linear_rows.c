#include "eval/linear_rows.h"

#include <stdlib.h>

#include "core/error.h"
#include "kernels/rows/convert.h"

td_status td_linear_rows_open(td_linear_rows *r, const td_model_config *c, td_error *err) {
    *r = (td_linear_rows){.n_layers = c->n_layers + c->n_mtp_layers};
    r->kept = calloc((size_t)TD_ROLE_COUNT * r->n_layers, sizeof *r->kept);
    return r->kept ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory to watch the linears");
}

void td_linear_rows_close(td_linear_rows *r) {
    for (size_t i = 0; r->kept && i < (size_t)TD_ROLE_COUNT * r->n_layers; i++) free(r->kept[i].x);
    free(r->kept);
    *r = (td_linear_rows){0};
}

const td_kept_rows *td_linear_rows_of(const td_linear_rows *r, td_role role, uint32_t layer) {
    return &r->kept[(size_t)role * r->n_layers + layer];
}

void td_linear_rows_keep(td_linear_rows *r, const td_model *m, const td_npu_weight *const *weights, size_t n_weights,
                         td_dtype dtype, const void *x, size_t n, size_t k) {
    for (size_t i = 0; i < n_weights; i++) {
        uint32_t layer;
        td_role  role;
        if (!td_model_find_weight(m, weights[i], &layer, &role)) continue;
        td_kept_rows *to = &r->kept[(size_t)role * r->n_layers + layer];
        size_t        more = n < TD_LINEAR_ROWS_MAX - to->n ? n : TD_LINEAR_ROWS_MAX - to->n;
        if (!more) continue;
        if (!to->x) to->x = malloc(TD_LINEAR_ROWS_MAX * k * sizeof *to->x);
        if (!to->x) {
            r->no_memory = true;
            continue;
        }
        td_to_f32(dtype, x, more * k, to->x + to->n * k);
        to->n += (uint32_t)more;
    }
}
