/*
 * What blocks of a pass in pieces take, foreseen from those that ran before (pass_pieces.c). Seconds; 0: nothing is known.
 */
#ifndef TD_MODEL_PIECE_PACE_H
#define TD_MODEL_PIECE_PACE_H

#include "npu/npu.h"

/** What a part of a block took. */
typedef struct {
    double   s;
    uint32_t n_tok; /* rows of the block */
} td_part_time;

#define TD_PACES (2 * TD_BLOCK_COUNT) /* kinds of blocks, and widths of some */

/** What was measured of blocks that take about as long. */
typedef struct {
    double       row_s;              /* the last whole block, divided by its rows */
    td_part_time first, last;        /* the last first part, which projects all rows, and the last last one */
    td_part_time middle, middle_was; /* the longest part between them: of this block so far, and of the block before */
} td_piece_pace;

/** A part has run. A block that goes whole is its first part. @param n_tok rows of the block. */
void td_piece_pace_note(td_piece_pace *p, const td_block_part *part, uint32_t n_tok, double seconds);

/** A whole block has run, in parts or not. */
void td_piece_pace_note_block(td_piece_pace *p, uint32_t n_tok, double seconds);

/** How many parts a block of so many rows goes in, each of about part_s; `most` where it would be more. */
uint32_t td_piece_pace_parts(const td_piece_pace *p, uint32_t n_tok, double part_s, uint32_t most);

/**
 * What the next part will take: more rows take longer in proportion. A block may divide into fewer parts than it is asked
 * for, and then some of those between the ends are empty: so the longest of them counts.
 */
double td_piece_pace_foreseen(const td_piece_pace *p, const td_block_part *part, uint32_t n_tok);

#endif
