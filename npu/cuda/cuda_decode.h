/*
 * The rows of a step whose attention is computed by spans of keys, in pieces whose spans have room in the scratch.
 *
 * Of a step of generated tokens these are all rows, as they lie. Of others the card lists them: td_list_rows (gqa.cu).
 */
#ifndef TD_NPU_CUDA_CUDA_DECODE_H
#define TD_NPU_CUDA_CUDA_DECODE_H

#include "npu/cuda/cuda_kind.h"

/** Spans of some rows: 64 rows of DeepSeek-V3. */
#define TD_CUDA_PARTIAL_BYTES ((size_t)264 << 20)

typedef struct {
    uint32_t    most, at_once; /* rows of all pieces, and of each but the last */
    const char *count, *list;  /* words: rows of each piece; [most, 2] as td_decode_row takes it, NULL: all rows */
} td_cuda_decode;

/** A piece, as the kernels take it. */
typedef struct {
    td_cuda_count n;
    const void   *list;
} td_cuda_piece;

/** Rows whose spans are computed together. @param row_bytes of the spans of one */
uint32_t td_cuda_decode_at_once(uint32_t rows, size_t row_bytes);
/** Places for counts, lists, and spans. */
void td_cuda_decode_place(size_t *used, uint32_t rows, size_t row_bytes, td_cuda_places *at);
/** Whether all rows of the step are decode's, as they lie. */
bool td_cuda_decode_is_whole(const td_step *step, uint32_t at_once);
/** @param absorbed  what tells decode's sequences, on the card; NULL: those that are short. */
td_cuda_decode td_cuda_decode_rows(td_cuda_run *r, const td_npu_block *b, const void *absorbed, uint32_t at_once);
/** Piece i. @return false: there are not so many. */
bool td_cuda_decode_piece(const td_cuda_decode *d, uint32_t i, td_cuda_piece *out);

#endif
