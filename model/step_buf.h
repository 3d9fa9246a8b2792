/*
 * A step's arrays in pinned memory and their mirror on the device, for every shape bucket.
 *
 * DESIGN. A pass of n rows goes through in the smallest bucket that holds it: powers of two up to 256 rows, eighths of
 * powers of two above, and the largest step. A bucket's arrays lie one behind the other, so one copy of the bucket's size
 * brings them to the device, whatever is in them. All buckets share the memory: one pass is under way at a time. A bucket
 * whose steps go in two halves has the halves' arrays too; half 0 has td_first_half(bucket) rows, half 1 the rest, and its
 * rows follow in the same buffers (td_step.first_row).
 */
#ifndef TD_MODEL_STEP_BUF_H
#define TD_MODEL_STEP_BUF_H

#include "bridge/bridge.h"
#include "model/step_rows.h"
#include "npu/npu.h"

static inline uint32_t td_first_half(uint32_t n) {
    return n - n / 2;
}

typedef struct {
    uint32_t max_tok;
    uint32_t n_halves; /* 1, or TD_HALVES */
    td_step  whole, half[TD_HALVES];
    size_t   bytes; /* that go to the device */
} td_step_bucket;

typedef struct {
    td_npu         *npu;
    bool            unified;
    uint32_t        max_seq, max_out, block_stride;
    td_step_bucket *buckets; /* [n] ascending */
    uint32_t        n;
    char           *host, *dev; /* the same with unified memory */
    size_t          bytes;
} td_step_buf;

typedef struct {
    uint32_t max_tok, max_seq, max_out; /* of a step */
    uint32_t max_seq_tokens;            /* longest sequence */
    uint32_t first_row;                 /* of the blocks' buffers: where the rows begin */
    bool     windows;                   /* the arrays of windows are there, else they are NULL */
    bool     rope_axes;                 /* the rope positions are there, else they are NULL */
    bool     images;    /* the rows of images' features are there, else they are NULL, and no token has one */
    bool     recurrent; /* layers have states: the arrays of their slots are there, else they are NULL */
    /** Whether a step of n rows goes in halves; asked for the smallest one of each bucket. */
    bool (*splits)(const void *user, uint32_t n_tok);
    const void *user;
} td_step_shape;

/** What td_step_buf_open takes in each of two memories; with one of both, the host's alone. */
uint64_t td_step_buf_bytes(const td_step_shape *shape);

/** Rows of the bucket that holds n, of steps of max_tok rows. */
uint32_t td_step_bucket_rows(uint32_t n, uint32_t max_tok);

/** The most rows that a bucket has beyond the counts of a step. */
uint32_t td_step_spare_rows(uint32_t max_tok);

/** @param npu borrowed. */
TD_NODISCARD td_status td_step_buf_open(td_step_buf *b, const td_step_shape *shape, td_npu *npu, td_error *err);
void                   td_step_buf_close(td_step_buf *b); /* one that is not open is fine */

/**
 * Fill a bucket on the host, while nothing enqueued with it is under way.
 * @param token [rows->n_tok] in the place of the rows' own, or NULL. @param out_row [n_out] rows whose logits are wanted.
 * @return the bucket, an element of b->buckets.
 */
const td_step_bucket *td_step_buf_fill(td_step_buf *b, const td_step_rows *rows, const uint32_t *token,
                                       const uint32_t *out_row, uint32_t n_out);

/** The same of a step for a measurement, of which nothing but the number of rows is read. */
const td_step_bucket *td_step_buf_count(td_step_buf *b, uint32_t n_tok);

/** What the bucket is enqueued for next, its halves too. */
void td_step_buf_set_kind(td_step_buf *b, const td_step_bucket *bucket, td_step_kind kind);

/** The copy to the device, of the bucket's size; nothing with unified memory. */
TD_NODISCARD td_status td_step_buf_enqueue_upload(const td_step_buf *b, const td_step_bucket *bucket, td_npu_stream *s);

#endif
