/*
 * An indexer's choice: of the rows of a cache that a row of a step may attend to, those of the best scores (td_index_desc,
 * td_sparse_desc).
 *
 * DESIGN. Passes, each an item list for the pool:
 *   take    a row: its queries are made ready
 *   score   some rows x a tile of keys: keys are loaded once for the item's rows of a sequence
 *   choose  a row: bit by bit the least score that is chosen, then the rows of the cache in order
 * A score is a sum over index heads in a fixed order. So a row's choice depends on the row and its keys alone.
 *
 * How keys are kept and scores computed is a td_index_path: in f32 when activations are f32, in integers of 8 bits when they
 * are bf16.
 */
#ifndef TD_NPU_HOST_INDEX_H
#define TD_NPU_HOST_INDEX_H

#include "npu/host/host_device.h"

#define TD_INDEX_TILE ((size_t)256) /* keys that are loaded together */

typedef struct td_index_path td_index_path;

/** A chunk of a step's rows, and what they choose from. */
typedef struct {
    td_host_npu         *d;
    const td_index_path *path;
    const td_host_step  *s;
    size_t               row0, rows;      /* of the chunk in the step */
    size_t               heads, dim, top; /* of the indexer; a row chooses where it sees more than `top` rows of the cache */
    size_t               ratio;           /* tokens of a row of the cache; a page has a multiple of TD_ATTN_PANEL rows */
    const void          *keys;            /* the cache: pages of TD_KV_PAGE / ratio keys as the path stores them */
    const uint32_t      *seq_of;          /* [rows] sequence of a row */
    float               *q;               /* [rows][heads * dim]; overwritten */
    const float         *weights;         /* [rows][heads] */
    char                *queries;         /* [rows] of the path's query_bytes: scratch */
    float               *scores;          /* [rows][ld_scores] */
    size_t               ld_scores;
    uint32_t            *chosen;  /* [rows][top], ascending; of rows that choose */
    char                *workers; /* the path's bytes for each worker */
} td_host_index;

/** The arithmetic of scores. `scratch` is a worker's, `bytes` long; it holds one tile of keys. */
struct td_index_path {
    /** Of a page of so many keys; the same per key for all numbers of them. */
    size_t (*page_bytes)(const td_host_npu *d, size_t rows, size_t dim);
    /** Key `offset` of such a page := key [dim], which is overwritten. */
    void (*store)(const td_host_npu *d, void *page, size_t rows, size_t offset, float *key, size_t dim);
    size_t (*query_bytes)(const td_host_npu *d, size_t heads, size_t dim); /* of a row's queries when they are ready */
    size_t (*bytes)(const td_host_npu *d, size_t heads, size_t dim);
    void (*take)(const td_host_index *x, void *scratch, size_t i); /* make row i's queries ready; NULL: they are */
    /** Load a page's first n keys as keys at, at + 1, ... of the tile. */
    void (*load)(const td_host_index *x, void *scratch, size_t at, const void *page, size_t n);
    /** Scores [n] of row i with the tile's first n keys. */
    void (*score)(const td_host_index *x, void *scratch, size_t i, size_t n, float *scores);
};

extern const td_index_path td_index_f32, td_index_int8;

static inline const td_index_path *td_index_path_of(const td_host_npu *d) {
    return d->act == TD_DT_BF16 ? &td_index_int8 : &td_index_f32;
}

/** Keys that lie together in the cache. */
static inline size_t td_host_index_per_page(const td_host_index *x) {
    return TD_KV_PAGE / x->ratio;
}

/** Row w of a cache of rows of `ratio` tokens. @param pages of the sequence, in order. */
static inline char *td_host_cache_row(const td_host_npu *d, const uint32_t *pages, const void *cache, size_t w, size_t ratio,
                                      size_t dim) {
    const size_t per_page = TD_KV_PAGE / ratio, page = pages[w / per_page];
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

/** Key `offset` of page `page` of a cache of keys of `ratio` tokens := key [dim], which is overwritten. */
static inline void td_host_index_store(const td_host_npu *d, void *keys, size_t ratio, size_t page, size_t offset,
                                       float *key, size_t dim) {
    const td_index_path *path = td_index_path_of(d);
    const size_t         rows = TD_KV_PAGE / ratio;
    path->store(d, (char *)keys + page * path->page_bytes(d, rows, dim), rows, offset, key, dim);
}

/** Fill chosen. Equal scores: the lowest row of the cache first; a NaN counts as less than everything else. */
void td_host_index_choose(const td_host_index *x);

#endif
