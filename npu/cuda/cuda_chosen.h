/* Rows of a step by the routed experts that they chose, on the card (experts.cu): for both blocks of experts. Rows go
 * through in runs, so that what lies between the launches does not grow with the prompts of a step; each run reads the
 * weights anew. */
#ifndef TD_NPU_CUDA_CUDA_CHOSEN_H
#define TD_NPU_CUDA_CUDA_CHOSEN_H

#include "npu/cuda/cuda_kind.h"

#define TD_CUDA_RUN_ROWS 1024
#define TD_CUDA_FEW_ROWS 8   /* of a tile */
#define TD_CUDA_MANY_ROWS 64 /* of int8, and of int4 with a scale a row */
#define TD_CUDA_MANY_IN_GROUPS 16

/** A block of experts, as its descriptor has it. */
typedef struct {
    uint32_t        hidden, inter, n_experts, top_k;
    uint32_t        mark;       /* 0, or TD_ID_RESIDENT: only choices that have it count, */
    uint32_t        begin, end; /* of a row's choices these, */
    const uint16_t *slot_of;    /* and none of experts elsewhere; or NULL */
    uint32_t        many_rows;  /* of the larger tiles that its products take; 0: there are none */
    const uint16_t *ids;        /* [max_tok, top_k] */
    const float    *weights;    /* [max_tok, top_k] */
} td_cuda_choice;

/** Rows of a tile of 4-bit weights in groups where there are many; 0: not with these groups. */
static inline uint32_t td_cuda_many_in_groups(uint32_t size) {
    return size >= 32 ? TD_CUDA_MANY_IN_GROUPS : 0;
}

/** One run: rows of the step from `first` on. A place is where a choice comes in the order of experts. */
typedef struct {
    size_t        first, rows, tile_rows, tiles;
    const void   *ids, *weights; /* of these rows */
    const void   *row_at, *place_of, *tile, *totals;
    td_cuda_count places;
} td_cuda_chosen;

/** Where the arrays of a block of experts go: all that a run has between its launches. @return bytes of the scratch. */
size_t td_cuda_place_experts(uint32_t max_tok, const td_cuda_choice *c, td_cuda_places *at);

/** Put the rows of the run that begins with row `first` in the order of their experts. */
td_cuda_chosen td_cuda_choose(td_cuda_run *r, const td_npu_block *b, const td_cuda_choice *c, size_t first);

/** Of the step's row that the run begins with, in a buffer with rows of so many bytes. */
static inline const void *td_cuda_at_run(const td_cuda_run *r, size_t first, const void *buffer, size_t row_bytes) {
    return (const char *)td_cuda_at_row(r, buffer, row_bytes) + first * row_bytes;
}

#endif
