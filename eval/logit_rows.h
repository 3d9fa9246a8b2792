/* Rows of logits: log-probabilities, how far one distribution is from another, and a compact form for files. */
#ifndef TD_EVAL_LOGIT_ROWS_H
#define TD_EVAL_LOGIT_ROWS_H

#include "tandem_tools.h"

/** max + log sum exp(x - max) over a row; NAN when a logit is NaN or +inf. */
double td_log_sum_exp(const float *x, size_t n);

/** sum_i p_i (log p_i - log q_i), p and q the softmax of two rows, whose td_log_sum_exp are given. In nats. */
double td_kl_divergence(const float *p, double p_lse, const float *q, double q_lse, size_t n);

/** The largest value's index, the lowest where several are. */
uint32_t td_row_best(const float *x, size_t n);

/**
 * Log-probabilities in 16 bits each: log p = -range (code / 65535)^2, so that they are finest where p is large: the error is
 * at most sqrt(-log p * range) / 65535. Below -TD_CODE_RANGE_MAX they are cut off.
 */
#define TD_CODE_RANGE_MAX 1e4f
void td_logprobs_encode(const float *x, double lse, size_t n, float *range, uint16_t *code);
void td_logprobs_decode(float range, const uint16_t *code, size_t n, float *x);

#endif
