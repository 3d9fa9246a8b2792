/*
 * softmax(q K^T * scale) V over paged keys: one core for grouped-query attention and for both forms of latent attention.
 *
 * DESIGN. Keys are cut at fixed positions: spans of TD_HOST_SPAN keys, in tiles of one page. Within a span a query row takes
 * its tiles in order (scores of a tile, running maximum, weighted values); the spans of a row are then merged in order. Who
 * computes a span, together with which other rows, changes no bit.
 *   walk   many rows of one sequence: an item takes a block of rows through all spans, so a span's keys are transposed (or
 *          expanded) once for all of them. Expanded rows only ever walk: their sums go on from span to span without a merge.
 *   split  single rows (generation): an item takes one row through one span and leaves a partial result; then partials are
 *          merged.
 * All query heads that share keys (a group) are rows of the same small matrix products. With a window a row's first span and
 * first tile are those of the first key that it meets; the keys before it in that tile weigh nothing. A sink is added when
 * all spans are.
 *
 * How a tile is computed is a td_attn_path: in f32 when activations are f32, in integers of 16 bits (kernels/attn16.h) when
 * they are bf16. Two paths do so: their caches hold rows of 16 bits, or of 8.
 */
#ifndef TD_NPU_HOST_ATTENTION_H
#define TD_NPU_HOST_ATTENTION_H

#include "npu/host/host_device.h"

#define TD_HOST_SPAN 512
#define TD_HOST_ATTN_ROWS 64 /* query rows that go through a tile together, at most */

typedef enum { TD_ATTN_GQA, TD_ATTN_ABSORBED, TD_ATTN_EXPANDED } td_attn_form;

typedef struct td_attn_path td_attn_path;

/** Sizes and arithmetic: known when a block is made. */
typedef struct {
    td_attn_form        form;
    const td_attn_path *path;
    size_t              heads, groups;       /* groups: kv heads; 1 when absorbed; heads when expanded */
    size_t              dk, dv;              /* of a query row and of its result */
    size_t              kv_lora, nope, rope; /* latent forms */
    size_t              window;              /* keys that a row meets at most; 0: all up to its own */
    size_t              chosen; /* td_host_attn_sort leaves out rows that see more keys than this; 0: it has all */
    float               scale;
} td_attn_shape;

/** A query row that is computed by spans. */
typedef struct {
    uint32_t row, seq; /* of the step */
    uint32_t q_row;    /* its row in q and out */
    size_t   n_keys;   /* of the sequence, its own the last */
    uint32_t first_span, n_spans;
    size_t   first_item, first_partial; /* filled in by td_host_attn_split */
} td_attn_unit;

typedef struct {
    td_host_npu         *d;
    td_attn_shape        shape;
    const void          *k, *v; /* caches, in pages of the path: K and V; or latent and rope parts */
    const td_npu_weight *kv_b;  /* expanded form */
    const float         *sinks; /* [heads] or NULL */
    const td_host_step  *step;
    const float         *q;                  /* [rows, heads * dk] */
    float               *out;                /* [rows, heads * dv] */
    size_t               row0;               /* walk: the step's row that q's first row stands for */
    char                *workers, *partials; /* scratch */
} td_attn;

/** A run of rows of one sequence. */
typedef struct {
    uint32_t seq, row, n_rows;
    size_t   first_item, block_rows; /* filled in by td_host_attn_walk */
} td_attn_segment;

/** A tile of a sequence's keys, for one group. */
typedef struct {
    uint32_t seq;
    size_t   group, place, tile,
        end;    /* place: of the tile in its span; end: of the keys that are wanted, counted from the sequence's start */
    bool first; /* it starts the rows' sums */
    bool once;  /* few rows attend to it: values are read where they are */
    bool often; /* more rows attend to it than go through it at a time */
} td_attn_tile;

static inline size_t td_attn_tile_keys(const td_attn_tile *t) {
    return t->end - t->tile * TD_ATTN_TILE < TD_ATTN_TILE ? t->end - t->tile * TD_ATTN_TILE : TD_ATTN_TILE;
}

/** The first key that a row meets whose own is the last of so many. */
static inline size_t td_attn_first_key(const td_attn_shape *s, size_t keys) {
    return s->window && s->window < keys ? keys - s->window : 0;
}

/** Sums of values have rows of this many floats. */
static inline size_t td_attn_ld(const td_attn_shape *s) {
    return td_round_up(s->dv, 32);
}

/** The arithmetic of tiles. `scratch` is a worker's, `bytes` long; it holds the tiles of one span and some query rows. */
struct td_attn_path {
    size_t rows;                    /* that attend takes at most */
    float  unit;                    /* of a softmax state's max */
    size_t (*page_bytes)(size_t n); /* of a page of rows of n values */
    /** Row `offset` of a page := x [n], which may be overwritten. */
    void (*store)(const td_host_npu *d, void *page, size_t offset, float *x, size_t n);
    /** Row `offset` of a page := row `from_offset` of another. */
    void (*copy)(void *page, size_t offset, const void *from, size_t from_offset, size_t n);
    size_t (*bytes)(const td_host_npu *d, const td_attn_shape *s, size_t q_rows);
    /** Before the group's first tile. */
    void (*open)(const td_attn *a, void *scratch, size_t group);
    /** Make the tile's keys and values ready at its place. */
    void (*load)(const td_attn *a, void *scratch, const td_attn_tile *t);
    /** Make n query rows [dk] ready as rows at, at + 1, ...; at is a multiple of `rows`. */
    void (*take)(const td_attn *a, void *scratch, size_t at, const float *const *q, size_t n);
    /**
     * A loaded tile for the n rows from `at` on, of which row i sees the keys [first_key(n_keys[i]), n_keys[i]) of the
     * sequence. state and acc [n, td_attn_ld] are carried on; a first tile, of which a row sees a key, starts acc. next: the
     * tile to prefetch meanwhile, or NULL.
     */
    void (*attend)(const td_attn *a, void *scratch, const td_attn_tile *t, size_t at, size_t n, const size_t *n_keys,
                   td_softmax *state, float *acc, const td_attn_tile *next);
    /** A row's mean of values [dv], as the cache has them, becomes that of the values themselves; NULL: it is that. */
    void (*rotate_back)(const td_attn *a, float *out);
};

extern const td_attn_path td_attn_f32, td_attn_int16, td_attn_int8;

/** For caches of a block, which are in 8 bits or not. */
static inline const td_attn_path *td_attn_path_of(const td_host_npu *d, bool kv_int8) {
    if (kv_int8) return &td_attn_int8;
    return d->act == TD_DT_BF16 ? &td_attn_int16 : &td_attn_f32;
}

/** Keys [from, to) of a tile that a row sees; none: both 0. */
typedef struct {
    size_t from, to;
} td_attn_seen;

static inline td_attn_seen td_attn_seen_of(const td_attn_shape *s, const td_attn_tile *t, size_t n_keys) {
    const size_t before = t->tile * TD_ATTN_TILE, first = td_attn_first_key(s, n_keys), end = before + TD_ATTN_TILE;
    if (n_keys <= before || first >= end) return (td_attn_seen){0};
    return (td_attn_seen){first > before ? first - before : 0, (n_keys < end ? n_keys : end) - before};
}

/** The page of keys (or latents) in a->k, and of values (or rope parts) in a->v, that the tile's group sees. */
const void *td_attn_keys(const td_attn *a, const td_attn_tile *t);
const void *td_attn_values(const td_attn *a, const td_attn_tile *t);

/** Row `slot` of a cache that has `per_page` pages of n values side by side for a page's tokens, of them number i. */
static inline void td_attn_store(const td_host_npu *d, const td_attn_path *path, void *cache, size_t slot, size_t per_page,
                                 size_t i, float *x, size_t n) {
    path->store(d, (char *)cache + (slot / TD_KV_PAGE * per_page + i) * path->page_bytes(n), slot % TD_KV_PAGE, x, n);
}

/** W_UK [nope, kv_lora] of a head, and the transpose of its W_UV, [kv_lora, v]; BF16 or F32 as kv_b is. */
static inline td_dtype td_attn_up_dtype(const td_npu_weight *kv_b) {
    return kv_b->shape.format == TD_WEIGHT_F32 ? TD_DT_F32 : TD_DT_BF16;
}
static inline const void *td_attn_up(const td_npu_weight *kv_b, size_t head, size_t nope, size_t v, size_t kv_lora,
                                     size_t row) {
    return (const char *)kv_b->data + (head * (nope + v) + row) * kv_lora * td_dtype_bytes(td_attn_up_dtype(kv_b));
}

/** For a block of `chunk` rows and keys up to max_kv; walk and split may be of different forms. */
void td_host_attn_place(const td_host_npu *d, size_t *used, const td_attn_shape *walk, const td_attn_shape *split,
                        size_t chunk, size_t max_kv, size_t units_max, td_attn_places *at);

/** c [m, ldc] = a [m, k] times n rows of k that td_float_math.transpose has laid into panels, TD_ATTN_PANEL rows side by side
 * in each. */
void td_host_attn_meet(const td_float_math *math, const float *a, size_t m, size_t k, const float *panels, size_t n,
                       float *c, size_t ldc);

/** Rows of a chunk so that what it needs per row stays bounded; a function of the sizes alone. */
size_t td_host_chunk_rows(size_t max_tok, size_t row_bytes);

/** Which way a sequence's n_rows rows go: true by spans (split), false together (walk). */
typedef bool (*td_attn_choice)(const td_host_step *step, uint32_t seq, size_t n_rows);
/**
 * What a part of a block computes at a time: share i of n of the attention of a chunk of rows. The first share has the
 * projections, and the rows that go by spans; behind the last one, which has the output's, the chunk is done. A walk's items
 * are shared out among those between them, or among both where there are no others: heads, and blocks of rows.
 */
typedef struct {
    size_t   row, rows; /* of the chunk */
    uint32_t i, n;
} td_attn_share;

/** Share number k, from 0 on, of a part of a block that takes `chunk` rows of n_tok at a time. @return false: there is none. */
bool td_host_attn_share_of(const td_block_part *part, size_t n_tok, size_t chunk, uint32_t k, td_attn_share *out);

/** In how many parts a block over rows of one sequence goes, in chunks of so many rows. */
size_t td_host_attn_parts(const td_host_npu *d, const td_attn_shape *walk, size_t n_tok, size_t chunk,
                          td_parts_wanted wanted);

/** The first of n items of share i; the share ends where the next one begins. */
static inline size_t td_attn_share_begin(const td_attn_share *s, uint32_t i, size_t n) {
    if (s->n <= 2) return n * i / s->n;
    return i == 0 ? 0 : i == s->n ? n : n * (i - 1) / (s->n - 2);
}

/** Compute a batch of units to the end. */
typedef void (*td_attn_flush)(void *ctx, td_attn_unit *units, size_t n);

/** Sort the share's rows: batches of units go to flush at once, if it is the chunk's first share, and segments are left at
 * places->segments. @return how many */
size_t td_host_attn_sort(td_host_npu *d, const td_attn_places *at, const td_attn_shape *shape, const td_host_step *step,
                         const td_attn_share *share, td_attn_choice by_spans, td_attn_flush flush, void *ctx);

/** The share's items of the segments' rows, finished in out. */
void td_host_attn_walk(const td_attn *a, td_attn_segment *segments, size_t n, const td_attn_share *share);

/** The spans of all units. Finish each (unit, head) with td_host_attn_merge. */
void td_host_attn_split(const td_attn *a, td_attn_unit *units, size_t n);
void td_host_attn_merge(const td_attn *a, const td_attn_unit *unit, size_t head);

/** Check a step's arrays: rows are consecutive positions, and keys within max_kv, max_pos and the block table. Pages and
 * slots are trusted. */
TD_NODISCARD td_status td_host_check_attention_step(const td_npu_block *b, const td_host_step *s, size_t max_pos);

#endif
