/*
 * Measures, layer by layer, how far a model's outputs are from a reference's on the same rows. Both see a batch, the
 * reference first. Two outputs are compared: the residual stream after the layer, and what its routed experts add to it.
 */
#ifndef TD_EVAL_LAYER_ERRORS_H
#define TD_EVAL_LAYER_ERRORS_H

#include "eval/rotated_stream.h"

typedef struct {
    uint32_t                 n_layers, hidden, max_rows; /* rows of a batch that are compared, its first */
    float                   *kept[2]; /* [n_layers, max_rows, hidden] of the reference: hidden states, routed sums */
    float                   *scratch; /* [2, hidden] */
    double                  *signal[2], *noise[2]; /* [n_layers] sums of squares */
    bool                    *has_routed;           /* [n_layers] */
    bool                     mismatch;             /* the reference has experts in other layers */
    const td_rotated_stream *rotated;              /* of the reference's rows; borrowed */
} td_layer_errors;

/**
 * @param rows of a batch, at most; fewer are compared if all would take too much memory.
 * @param rotated as long as e is open.
 */
TD_NODISCARD td_status td_layer_errors_open(td_layer_errors *e, uint32_t n_layers, uint32_t hidden, uint32_t rows,
                                            const td_rotated_stream *rotated, td_error *err);
void                   td_layer_errors_close(td_layer_errors *e);

/** td_layer_tap of the two models. @param user a td_layer_errors that is open when steps run. */
void td_layer_errors_reference(void *user, const td_layer_output *out);
void td_layer_errors_compare(void *user, const td_layer_output *out);

/** @return a malloc'd array [n_layers], NULL when memory is short. */
td_layer_snr *td_layer_errors_result(const td_layer_errors *e);

#endif
