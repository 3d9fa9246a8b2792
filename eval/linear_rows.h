/* Keeps, while a model runs, some of the rows that each of its linears reads. Errors of weights are measured on these
 * rows. */
#ifndef TD_EVAL_LINEAR_ROWS_H
#define TD_EVAL_LINEAR_ROWS_H

#include "model/model.h"

#define TD_LINEAR_ROWS_MAX 32

typedef struct {
    float   *x; /* [n, k]; NULL: none */
    uint32_t n;
} td_kept_rows;

typedef struct {
    uint32_t      n_layers;  /* of the model, MTP's included */
    td_kept_rows *kept;      /* [TD_ROLE_COUNT, n_layers]; roles of the whole model at layer 0 */
    bool          no_memory; /* memory was short for some linears */
} td_linear_rows;

TD_NODISCARD td_status td_linear_rows_open(td_linear_rows *r, const td_model_config *c, td_error *err);
void                   td_linear_rows_close(td_linear_rows *r);

/** td_rows_tap's arguments, and the model that runs. Keeps the first rows of each weight. */
void td_linear_rows_keep(td_linear_rows *r, const td_model *m, const td_npu_weight *const *weights, size_t n_weights,
                         td_dtype dtype, const void *x, size_t n, size_t k);

const td_kept_rows *td_linear_rows_of(const td_linear_rows *r, td_role role, uint32_t layer);

#endif
