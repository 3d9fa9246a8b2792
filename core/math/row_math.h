/*
 * A row of logits: its largest, its exponentials, their sum. All is plain C in a fixed order, so that every machine gets the
 * same bits.
 */
#ifndef TD_CORE_MATH_ROW_MATH_H
#define TD_CORE_MATH_ROW_MATH_H

#include <stddef.h>
#include <stdint.h>

/** The largest of x[0..n); NAN when an element is NaN or +inf. */
float td_row_max(const float *x, size_t n);

/** The first index of v in x[0..n), which must contain it. */
uint32_t td_row_find(const float *x, size_t n, float v);

/** e[i] = exp(x[i]) for x <= 0, within 2 ulp; 0 below -87. */
void td_row_exp(const float *x, float *e, size_t n);

double td_row_sum(const float *x, size_t n);

/** sum of exp(x[i] - max), max being td_row_max of the row. */
float td_row_exp_sum(const float *x, size_t n, float max);

#endif
