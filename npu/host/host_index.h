/*
 * An indexer's choice: of the rows of a cache that a row of a step may attend to, those of the best scores (td_index_desc,
 * td_sparse_desc).
 *
 * DESIGN. Two passes, each an item list for the pool:
 *   score   some rows x a tile of keys: keys are transposed once for the item's rows of a sequence
 *   choose  a row: a heap of its best, which are then put in order
 * A score is a sum in the order of index heads, and of a head's values as td_float_math.gemm has it. So a row's choice
 * depends on the row and its keys alone.
 */
#ifndef TD_NPU_HOST_INDEX_H
#define TD_NPU_HOST_INDEX_H

#include "npu/host/host_device.h"

/** A chunk of a step's rows, and what they choose from. */
typedef struct {
    td_host_npu        *d;
    const td_host_step *s;
    size_t              row0, rows;      /* of the chunk in the step */
    size_t              heads, dim, top; /* of the indexer; a row chooses where it sees more than `top` rows of the cache */
    size_t              ratio;           /* tokens of a row of the cache; a page has a multiple of TD_ATTN_PANEL rows */
    const void         *keys;            /* the cache: pages of TD_KV_PAGE / ratio rows [dim] in act_dtype */
    const uint32_t     *seq_of;          /* [rows] sequence of a row */
    const float        *q, *weights;     /* [rows][heads * dim], [rows][heads] */
    float              *scores;          /* [rows][ld_scores] */
    size_t              ld_scores;
    uint32_t           *chosen;  /* [rows][top], ascending; of rows that choose */
    char               *workers; /* td_host_index_worker_bytes for each worker */
} td_host_index;

/** Row w of a cache of rows of `ratio` tokens. */
static inline char *td_host_cache_row(const td_host_npu *d, const td_host_step *s, const void *cache, uint32_t seq, size_t w,
                                      size_t ratio, size_t dim) {
    const size_t per_page = TD_KV_PAGE / ratio, page = s->a.block_table[(size_t)seq * s->block_stride + w / per_page];
    return (char *)cache + td_host_act_bytes(d, (page * per_page + w % per_page) * dim);
}

/** seq_of [rows] of the rows [row0, row0 + rows) of a step. */
void td_host_find_sequences(const td_host_step *s, size_t row0, size_t rows, uint32_t *seq_of);

/** Rows of the cache that row i of the chunk sees. */
static inline size_t td_host_index_visible(const td_host_index *x, size_t i) {
    return (x->s->a.pos[x->row0 + i] + 1) / x->ratio;
}

static inline bool td_host_index_chooses(const td_host_index *x, size_t i) {
    return td_host_index_visible(x, i) > x->top;
}

/** Floats of a row of scores, with so many tokens at most. */
static inline size_t td_host_index_ld(size_t max_kv, size_t ratio) {
    return td_round_up(max_kv / ratio + 1, 16);
}
size_t td_host_index_worker_bytes(size_t heads, size_t dim);

/** Fill chosen. Equal scores: the lowest row of the cache first; a NaN counts as less than everything else. */
void td_host_index_choose(const td_host_index *x);

#endif
