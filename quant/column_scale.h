/*
 * Scales of a weight's columns. With W' = W diag(s) and inputs x' = x diag(1/s) a layer computes the same, and rounds
 * differently. 1/s is folded into what makes the inputs: a norm's weight, or the rows of up_proj before down_proj. There it
 * changes no code of up_proj, only the scales of its rows.
 */
#ifndef TD_QUANT_COLUMN_SCALE_H
#define TD_QUANT_COLUMN_SCALE_H

#include "quant/matrix_round.h"

/**
 * Find the best s of a family: s_j = rms(x_j)^a / rms(w_j)^b, with geometric mean 1, a and b on a grid. The family contains
 * AWQ's scales (arXiv 2306.00978, section 3.2), SmoothQuant's (2211.10438), plain equalisation of the weight's columns, and
 * (0, 0), which changes nothing. The best has the least error of quant/matrix_round.h. If inputs are given, the error that
 * rounding them to int8 per token (scale: a token's largest / 127) adds on average counts, too: the sum over tokens of
 * (max |x'| / 127)^2 / 12 * ||W'||^2.
 * @param w   [n, k]: all matrices that get these inputs, stacked, or a sample of their rows: every s tried costs about one
 * call of clip.
 * @param h   [k, k] of the inputs, mirrored.
 * @param x   [n_tok, k] f32: the inputs that h is the sum of, or NULL: they are not rounded.
 * @param o   how w will be rounded; for gptq the error of clip is taken, which needs a fraction of the time.
 * @param s   [k] out, above zero.
 * @param gain out: error with s / error with ones, at most 1.
 * @return the statuses of td_round_matrix. Thread-safe.
 */
TD_NODISCARD td_status td_column_scales(const td_blas *b, const float *w, size_t n, size_t k, const float *h, const float *x,
                                        size_t n_tok, const td_round_options *o, float *s, double *gain, td_error *err);

/** to [n, k] = from diag(s); may be the same. */
void td_scale_columns(const float *from, size_t n, size_t k, const float *s, float *to);

/** to [k, k] = the Hessian of inputs x diag(1/s); may be h. */
void td_scale_hessian(const float *h, size_t k, const float *s, float *to);

#endif
