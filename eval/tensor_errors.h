/*
 * Measures, matrix by matrix, how far a model's weights are from a reference's. The numbers that the tiers multiply with are
 * compared, whatever the format. For the device's linears it also measures how far apart the products are with rows that the
 * reference's linear read; activations are not rounded for that.
 */
#ifndef TD_EVAL_TENSOR_ERRORS_H
#define TD_EVAL_TENSOR_ERRORS_H

#include "eval/linear_rows.h"
#include "eval/scored_model.h"

/**
 * Every matrix that both models have, worst first. Reads the checkpoints anew; experts come from the loaded stores.
 * @param own, reference  models of one shape, with the options they were opened with.
 * @param rows  of the reference's linears.
 * @param out   malloc'd.
 * @return TD_ENOMEM, or what reading a checkpoint gives.
 */
TD_NODISCARD td_status td_tensor_errors(const td_scored_model *own, const td_engine_options *own_options,
                                        const td_scored_model *reference, const td_engine_options *reference_options,
                                        const td_linear_rows *rows, td_pool *pool, td_tensor_snr **out, size_t *n,
                                        td_error *err);

#endif
