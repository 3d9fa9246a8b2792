/*
 * A step as two halves, for the pass that overlaps the tiers (program.h).
 *
 * The halves are steps of their own over the same arrays: the first td_first_half(n) rows, and the rest. A sequence that lies across the
 * cut is in both: its keys end with its rows in the first half there, and its rows in the second half follow them.
 */
#ifndef TD_MODEL_STEP_SPLIT_H
#define TD_MODEL_STEP_SPLIT_H

#include "bridge/bridge.h" /* TD_HALVES */

typedef struct {
    td_step   half[TD_HALVES];
    uint32_t *seq_start[TD_HALVES]; /* [max_tok + 1] */
    uint32_t *kv_len;               /* [max_tok] of the first half */
} td_step_split;

/** Room for steps of up to max_tok rows, every sequence of which has a row. */
TD_NODISCARD td_status td_step_split_open(td_step_split *s, uint32_t max_tok, td_error *err);
void                   td_step_split_close(td_step_split *s);

/**
 * Fill s->half from a step of 2..max_tok rows. Allocates nothing. The halves borrow the step's host arrays; their dev is their host, and
 * they have no out_row.
 */
void td_step_split_make(td_step_split *s, const td_step *step);

#endif
