/*
 * Compares a rotated model (model/checkpoint/rotation.h) with a reference that is not rotated. The model's residual stream
 * is the reference's times R, and its norms have no gains. So the reference's rows are rotated before they are compared
 * with the model's, or given to its experts.
 */
#ifndef TD_EVAL_ROTATED_STREAM_H
#define TD_EVAL_ROTATED_STREAM_H

#include "eval/scored_model.h"
#include "quant/hadamard.h"

typedef struct {
    td_hadamard rotation; /* k 0: nothing is rotated */
    float      *gain;     /* [n_layers, hidden] of the reference's norms in front of MLPs */
    bool        apart;    /* the reference is rotated and the model is not: their rows cannot be compared */
} td_rotated_stream;

/**
 * Find out by the gains of both models' norms which is rotated: in a rotated model all are exactly 1.
 * @param own, reference open, with the options that opened them and the same number of layers and hidden size.
 */
TD_NODISCARD td_status td_rotated_stream_open(td_rotated_stream *t, const td_scored_model *own,
                                              const td_engine_options *own_options, const td_scored_model *reference,
                                              const td_engine_options *reference_options, td_error *err);
void                   td_rotated_stream_close(td_rotated_stream *t);

/** Rows of the reference's residual stream, or of what is added to it, in place. @param x [n, hidden] */
void td_rotated_stream_rows(const td_rotated_stream *t, float *x, size_t n);

/** Rows that the experts of a layer of the reference read, in place. @param x [n, hidden] */
void td_rotated_stream_inputs(const td_rotated_stream *t, uint32_t layer, float *x, size_t n);

#endif
