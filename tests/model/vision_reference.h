/* The vision encoder of Qwen3-VL (arXiv 2511.21631) in plain loops, for one picture: what the engine's is held against. */
#ifndef TD_TESTS_VISION_REFERENCE_H
#define TD_TESTS_VISION_REFERENCE_H

#include "model/checkpoint/checkpoint_files.h"

#define VISION_TAPS_MAX 4

typedef struct {
    uint32_t depth, hidden, heads, inter, out, side, values; /* side: of the table of positions; values: of a patch */
    uint32_t n_taps, taps[VISION_TAPS_MAX];                  /* layers whose outputs have mergers of their own */
} vision_sizes;

/**
 * @param files a checkpoint's, with weights under model.visual.
 * @param pixels [rows * columns, values], squares of 2 x 2 patches one after the other, row by row.
 * @param merged [rows * columns / 4, out].
 * @param deepstack [n_taps, rows * columns / 4, out].
 */
void vision_reference(const td_checkpoint_files *files, const vision_sizes *s, const float *pixels, uint32_t rows,
                      uint32_t columns, float *merged, float *deepstack);

#endif
