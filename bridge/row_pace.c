#include "bridge/row_pace.h"

#include <math.h>

#define PART_AT_LEAST 256 /* rows of a part: with fewer the experts' kernels are far from their bound */

uint32_t td_rows_in_time(const td_row_time *t, uint32_t left) {
    if (t->left_ns <= 0) return 0;
    const uint32_t few = left < TD_ROWS_AT_LEAST ? left : TD_ROWS_AT_LEAST;
    const double   fit = fmin(left, floor(t->left_ns / t->row_ns));
    if (fit < few) return 0;
    if (t->part_ns == 0) return (uint32_t)fit;
    const double part = fmax(PART_AT_LEAST, t->part_ns / t->row_ns), n_parts = floor(fit / part);
    return (uint32_t)(n_parts > 1 ? ceil(fit / n_parts) : fit);
}
