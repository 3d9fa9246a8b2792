/*
 * What a forward pass is to compute: rows of sequences, as plain arrays. A row is one token at a position of a sequence.
 * Scheduler, eval and quantize fill the arrays; the model mirrors them on the device (model/step_buf.h).
 */
#ifndef TD_MODEL_STEP_ROWS_H
#define TD_MODEL_STEP_ROWS_H

#include "npu/npu.h"

/** What a token of an image has: row `at` of each of its tables of `of` rows (td_sequence_image.features). */
typedef struct {
    const float *features;
    uint32_t     at, of;
} td_image_row;

/** Anybody may read the members; only the functions below change them. */
typedef struct {
    uint32_t      max_tok, max_seq, block_stride; /* room: rows, sequences, pages of a sequence */
    uint32_t      n_tok, n_seq, n_images;
    uint32_t     *token, *pos, *slot;                /* [n_tok] as td_step_arrays have them */
    uint32_t     *rope_pos;                          /* [n_tok, 3] likewise */
    td_image_row *images;                            /* [n_images] of the tokens that have features, in their order */
    uint32_t     *image_row;                         /* [n_tok] which of these a token has, or TD_NO_IMAGE */
    uint32_t     *seq_start;                         /* [n_seq + 1] */
    uint32_t     *kv_len;                            /* [n_seq] */
    uint32_t     *block_table;                       /* [n_seq, block_stride] */
    uint32_t     *window_slot, *window_table;        /* [n_tok], [n_seq, block_stride] */
    uint8_t      *absorbed;                          /* [n_seq] */
    uint32_t     *state_in, *state_out, *state_open; /* [n_seq] */
    void         *memory;
} td_step_rows;

/** @param max_seq_tokens longest sequence. */
TD_NODISCARD td_status td_step_rows_open(td_step_rows *r, uint32_t max_tok, uint32_t max_seq, uint32_t max_seq_tokens,
                                         td_error *err);
void                   td_step_rows_close(td_step_rows *r); /* one that is not open is fine */

static inline void td_step_rows_clear(td_step_rows *r) {
    r->n_tok = r->n_seq = r->n_images = 0;
}

#define TD_NO_PAGE UINT32_MAX

/** Where a sequence's recurrent layers have their state (td_step_arrays, npu/npu.h); other models ignore it. */
typedef struct {
    uint32_t in, out, open;
} td_sequence_state;

/** The slots of the q-th sequence where each has one of its own, and where a step begins at position `first`. */
static inline td_sequence_state td_own_state(uint32_t q, uint32_t first) {
    return (td_sequence_state){.in = first ? q : TD_STATE_NONE, .out = q, .open = q};
}

/** An image in a sequence: rows * columns tokens from position `first` on, row by row. */
typedef struct {
    uint32_t first, rows, columns;
    /** [1 + taps, rows * columns, hidden] as td_vision_start gives them, for models that take images: what tokens have in the
     * place of their embeddings, and what decoder layers 0 .. taps - 1 add to their outputs. The caller's, unchanged as long as
     * the rows of a step are. NULL: the tokens are looked up as text. */
    const float *features;
} td_sequence_image;

/** What rows of a sequence need to know of it. */
typedef struct {
    const uint32_t *pages;   /* [n_pages] of the sequence from position 0 on; the last row's position has one */
    const uint32_t *windows; /* [n_pages] of its layers with a window, where those have pages of their own: TD_NO_PAGE where
                                  it has none, which no row of these needs. NULL: the same pages */
    uint32_t        n_pages;
    bool            absorbed; /* the rows are computed in MLA's absorbed form (npu/npu.h), as generated tokens are */
    td_sequence_state        state;
    const td_sequence_image *images; /* [n_images] in their order, none within another; each has rows and columns */
    uint32_t                 n_images;
} td_step_sequence;

/**
 * Add n rows of one sequence: its tokens [n] at positions first .. first + n - 1, whose KV lies in its pages. With p = 0 at the
 * beginning, text has the three rope positions (p, p, p), and then p++. The token in row y and column x of an image has (p, p +
 * y, p + x). Behind the image p += the larger of its rows and columns, so no rope position is above the token's own.
 */
void td_step_rows_add(td_step_rows *r, const uint32_t *tokens, uint32_t first, uint32_t n, const td_step_sequence *seq);

/** Sequences of a step in pieces: a request's prompt, and what it has generated. */
#define TD_ASIDE_SEQ 2

/** What a device is told of them. */
td_step_kind td_step_rows_kind(const td_step_rows *r);

/** How many of a row's largest logits leave a device with a memory of its own, if the row's other logits are not wanted. */
#define TD_MODEL_TOP 256

/** What log-probabilities need of a row whose largest logits alone come. */
typedef struct {
    bool     wanted;
    uint32_t id;      /* a token whose logit is wanted too; UINT32_MAX for none */
    double   log_sum; /* output: log(sum(exp(logit))) over the whole row; NAN if it was not wanted, or all logits came */
} td_out_logprobs;

/** Rows of the last forward whose logits are wanted. */
typedef struct {
    const uint32_t  *row;      /* [n] their numbers in the step */
    const bool      *best;     /* [n] true: the TD_MODEL_TOP largest logits suffice, and others may be -inf. NULL: all are
                                  wanted */
    td_out_logprobs *logprobs; /* [n] or NULL */
    uint32_t         n;        /* 0..max_out */
} td_out_rows;

#endif
