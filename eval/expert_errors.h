/*
 * Measures, expert by expert, how far a model's output is from a reference's on the same input: the rows that the reference
 * routed to the expert, with the reference's activations. Unlike in the layers' figures, no error of an earlier layer
 * counts.
 */
#ifndef TD_EVAL_EXPERT_ERRORS_H
#define TD_EVAL_EXPERT_ERRORS_H

#include "eval/rotated_stream.h"

typedef struct {
    uint32_t                 n_layers, n_experts, hidden, top_k; /* n_layers: all of the model, dense ones too */
    uint32_t                 max_rows, n_rows;                   /* of a batch, its first; n_rows: kept now */
    float                   *x;                     /* [n_layers, max_rows, hidden] what the experts of a layer read */
    uint16_t                *ids;                   /* [n_layers, max_rows, top_k] */
    bool                    *has_experts;           /* [n_layers] */
    double                  *signal, *noise;        /* [n_layers, n_experts] sums of squares */
    uint64_t                *tokens;                /* [n_layers, n_experts] */
    void                    *in, *out;              /* [max_rows, hidden] of an activation type */
    float                   *gathered, *outputs[2]; /* [max_rows, hidden] */
    uint16_t                *one_id;                /* [max_rows] */
    float                   *ones;                  /* [max_rows] */
    const td_rotated_stream *rotated;               /* of the reference's rows; borrowed */
} td_expert_errors;

/**
 * @param rows of a batch, at most; fewer are compared if all would take too much memory.
 * @param rotated as long as e is open.
 */
TD_NODISCARD td_status td_expert_errors_open(td_expert_errors *e, const td_model_config *c, uint32_t rows,
                                             const td_rotated_stream *rotated, td_error *err);
void                   td_expert_errors_close(td_expert_errors *e);

/** From the reference's layer tap. */
void td_expert_errors_keep(td_expert_errors *e, const td_layer_output *out);

/** After a batch, when no step is under way: run every expert of both models on what was kept. */
void td_expert_errors_compare(td_expert_errors *e, const td_scored_model *reference, const td_scored_model *own);

/** All experts that had tokens, worst first. @param out malloc'd, NULL when there are none. @return TD_ENOMEM. */
TD_NODISCARD td_status td_expert_errors_result(const td_expert_errors *e, td_expert_snr **out, size_t *n, td_error *err);

#endif
