/*
 * A step as the vendor's operations want it, made of step->host before every launch.
 *
 * DESIGN. Operations have the shapes of the bucket, so rows beyond the counts are computed like all others. They get token 0
 * and position 0, and their keys and values go to pages behind the cache that no sequence has (td_npu_caps.kv_spare); no
 * slot is named twice.
 *
 * Attention takes lengths of sequences from the host. A cut divides the rows of a bucket into so many pieces, always the
 * same number. Pieces are runs of rows of one sequence, each with the keys that its last row sees, and runs of the rows
 * beyond the counts. So shapes never change, no piece is empty, and the pieces' rows are all rows. Pieces of a row each need
 * no mask.
 *
 * The arrays are copied to the device before a launch, all of a step by one copy, only when they differ, and by one that the
 * host waits for. The contract allows it: nothing enqueued with the step is under way then. A copy in stream order that
 * fails would leave what is behind it with an earlier step's slots, which may be somebody else's by now.
 */
#ifndef TD_NPU_ASCEND_ASCEND_STEP_H
#define TD_NPU_ASCEND_ASCEND_STEP_H

#include "npu/ascend/ascend_device.h"

#define TD_ASCEND_ROUTES_MAX 4

/** Arrays that are made on the host and copied to the device. */
typedef struct {
    char  *fresh, *host, *dev; /* [bytes] each: as they are made; as they were; on the device */
    size_t bytes;
    bool   copied; /* the device has what host holds */
} td_ascend_mirror;

typedef struct {
    td_ascend_cut_key key;
    bool              used;            /* an attention of the step has it; else its arrays are zeros */
    uint32_t          n, stride;       /* pieces; columns of the table */
    int64_t          *rows_end, *keys; /* [n] sum of rows so far; keys; on the host */
    int64_t          *fresh_lengths;   /* [2 n] */
    size_t            at, bytes;       /* its arrays in the step's mirror */
    const int32_t    *slot;            /* device: [max_tok] */
    const int64_t    *slot64;          /* the same */
    const int32_t    *table;           /* device: [n, stride] */
} td_ascend_cut;

/**
 * Where the rows of a step's routed experts go, written by operations of the step. A stream goes on behind an operation that
 * failed: what the next one reads as ids, places or counts must be some of this bucket then, too. So they have memory of
 * their own, a piece for each run of rows that goes through the experts together, zeros at first.
 */
typedef struct {
    uint32_t         n_experts, top_k, most; /* rows of a run at most */
    td_ascend_mirror m;
    int32_t         *ids, *places;  /* device: [max_tok, top_k] each; ids: of several cards, the first one's, */
    float           *weights;       /* [max_tok, top_k] with its weights behind them */
    int64_t         *counts, *sums; /* [runs, n_experts]: rows of each expert; the same cumulated */
    int32_t         *counts32;      /* counts in int32 */
} td_ascend_route;

typedef struct {
    td_step          step;                  /* a copy: steps of equal sizes and arrays are one */
    td_ascend_mirror m;                     /* the rows' arrays, then each cut's: one copy brings all */
    const int32_t   *token, *pos, *out_row; /* device: [max_tok], [max_tok], [max_out] */
    const int64_t   *pos64, *n_rows;        /* device: pos once more; [1] max_tok */
    uint64_t         n_tokens, n_positions; /* that the blocks know: more is refused; UINT64_MAX: any */
    size_t           n_cuts;
    td_ascend_cut    cuts[TD_ASCEND_CUTS_MAX];
    size_t           n_routes;
    td_ascend_route  routes[TD_ASCEND_ROUTES_MAX];
    const void      *rope; /* in a capture: whose rows have been gathered */
} td_ascend_step;

/** Whether step is the one that s was made for. */
bool td_ascend_step_is(const td_ascend_step *s, const td_step *step);
/**
 * @param cut of the block that it is made for, which the step then has; most 0: none.
 * @param others it has those of the device's other attentions, too: their arrays are one copy with the rows'.
 * @return TD_ENOMEM, or what the card says.
 */
TD_NODISCARD td_status td_ascend_step_open(td_ascend_npu *d, const td_step *step, td_ascend_cut_key cut, bool others,
                                           td_ascend_step **out);
void                   td_ascend_step_close(td_ascend_npu *d, td_ascend_step *s);

/**
 * How many pieces a bucket is cut into: enough for any counts, and never more than rows.
 * @param most rows of a piece; UINT32_MAX: any number.
 */
uint32_t td_ascend_cut_pieces(const td_step *step, uint32_t most, uint32_t kv_spare_pages);

/** Whether it has a cut of that key; and that cut, which is filled from then on. */
bool           td_ascend_step_has(td_ascend_step *s, td_ascend_cut_key key);
td_ascend_cut *td_ascend_step_cut(td_ascend_step *s, td_ascend_cut_key key);

/** The route of these sizes, made when there is none. @return NULL: memory or room for it are out, which is in the log. */
td_ascend_route *td_ascend_step_route(td_ascend_npu *d, td_ascend_step *s, uint32_t n_experts, uint32_t top_k,
                                      uint32_t most);

/**
 * Make all arrays of step->host and bring them to the device; not in captures.
 * @param changed what attentions were prepared with no longer holds.
 * @return TD_EINVAL: a token, position, page or length that the blocks do not know; which one is in the log.
 */
TD_NODISCARD td_status td_ascend_step_fill(td_ascend_npu *d, td_ascend_step *s, bool *changed);

/** Lengths as large as a bucket's can be, for a capture that asks for workspace. */
void td_ascend_cut_set_longest(const td_ascend_step *s, td_ascend_cut *c);

#endif
