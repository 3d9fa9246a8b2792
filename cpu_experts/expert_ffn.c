/*
 * The FFN of one layer.
 *
 * A call goes through batches of at most batch_tok tokens, so that scratch stays bounded. A batch:
 *   group   (token, expert) pairs sorted by pass, expert, token; each expert's pairs cut into equal blocks of up to up_rows
 *   rows    x -> int8 rows or f32 rows (bf16), once per token
 *   up      items (block, chunk of the shard's tiles). The block's rows side by side in the worker's scratch; gate and up
 *           tiles, gated into the pair's intermediate row. Who finishes a block last quantises its rows: in place, or, where
 *           an item is a whole block, from the worker's scratch, which the floats need not leave
 *   down    items (token range, chunk of the shard's tiles). Over experts, terms weight * value into the worker's exact sums
 *           (kernels/exact_sum.h) of those tokens and columns, which stay in its L2; then to act_dtype
 *
 * Few tokens with deferral make two passes of up and down: experts that some token needs now, with all their pairs; then,
 * after immediate_done, the rest. Both passes add to the deferred sums, which are `later` then: as the sums are exact, the
 * bits are those of a single pass.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "cpu_experts/expert_state.h"
#include "kernels/product/gemm_row.h"
#include "kernels/rows/convert.h"

#define BLOCK_ROWS 112 /* pairs of a block where the kernel has no wish: whole register tiles of int4c, 8 times 14 */
#define BLOCK_BYTES ((size_t)1 << 20)     /* of their codes, at most: half of a 2 MiB L2 */
#define SCRATCH_BYTES ((size_t)384 << 20) /* of the arrays that grow with the tokens of a batch */
#define LATER_BYTES ((size_t)64 << 20)    /* of deferred sums */
#define ITEMS_PER_WORKER 32               /* dynamic items even out what workers take */
#define ITEM_BYTES_MIN ((size_t)64 << 10) /* weights of an item: several microseconds of streaming */
#define RANGE_TOK 1024                    /* most tokens of an item of the down phase, unless memory binds it */
#define SUM_BYTES ((size_t)7 << 18)       /* of its sums: most of a 2 MiB L2 */

typedef struct {
    uint32_t         expert; /* index in active[] */
    uint32_t         pair0, n_pairs;
    _Atomic uint32_t left; /* items of the up phase; acq_rel: the last one reads what the others wrote */
} row_block;

typedef struct {
    uint32_t id, pair0, n_pairs;
} active_expert;

typedef struct {
    uint32_t token;
    bool     is_deferred;
    float    weight;
} pair;

/* How many terms the two sums of a token have. */
typedef struct {
    uint32_t now, deferred;
} term_counts;

struct expert_ffn {
    /* arrays of a batch, from the store's arena */
    char          *x;     /* [batch_tok] rows of x_stride bytes */
    char          *h;     /* [max_pairs] rows of h_stride bytes: f32, then int8 in place; or int8 alone, code_stride apart */
    int32_t       *later; /* [defer_tok] deferred sums of two passes, rows of td_exact_words(y_stride) */
    term_counts   *terms; /* [batch_tok] */
    pair          *pairs; /* [max_pairs] sorted */
    td_gemm_row   *x_rows;       /* [batch_tok] */
    td_gemm_row   *h_rows;       /* [max_pairs] */
    row_block     *blocks;       /* [max_blocks] */
    active_expert *active;       /* [n_experts] */
    uint32_t      *expert_pairs; /* [n_experts] count, then where the next pair goes */
    bool          *expert_now;   /* [n_experts] some token needs it now */

    /* the batch */
    const td_ffn_args *args;
    uint32_t           layer, tok0, n_tok, n_pairs, n_active, n_blocks;
    uint32_t           n_now; /* active[0 .. n_now) are the first pass */
    bool               two_passes;
    /* the pass */
    uint32_t first_active, end_active, first_block, end_block, n_chunks, n_ranges;
    bool     second;
};

/* ---- scratch ----------------------------------------------------------------------------------- */

/* A worker's, of the up phase: of a block the gate's values of a tile, its rows, their codes side by side, and their
 * intermediate values as long as they are f32. Of the down phase: where a block's outputs go, and the sums of an item and of
 * its deferred pairs. */
typedef struct {
    float       *gate;   /* [up_rows, TD_GEMM_NR_MAX] */
    td_gemm_row *rows;   /* [up_rows] */
    char        *codes;  /* [up_rows] rows of x_stride bytes */
    char        *values; /* [up_rows] rows of h_stride bytes */
    size_t       bytes;
} up_scratch;

static up_scratch lay_up(const expert_scratch_places *p, char *at) {
    const size_t gate = p->up_rows * TD_GEMM_NR_MAX * sizeof(float),
                 rows = td_round_up(p->up_rows * sizeof(td_gemm_row), TD_CACHE_LINE), codes = p->up_rows * p->x_stride;
    return (up_scratch){.gate = (float *)(void *)at,
                        .rows = (td_gemm_row *)(void *)(at + gate),
                        .codes = at + gate + rows,
                        .values = at + gate + rows + codes,
                        .bytes = gate + rows + codes + p->up_rows * p->h_stride};
}

static size_t ways_bytes(const expert_scratch_places *p) {
    return td_round_up(p->down_rows * (sizeof(int32_t *) + sizeof(float)), TD_CACHE_LINE);
}

static int32_t *worker_sums(const td_experts *x, const td_worker *w) {
    return (int32_t *)(void *)((char *)expert_worker_scratch(x, w->index) + ways_bytes(&x->scratch));
}

uint32_t td_expert_block_rows(const td_gemm_kernel *kernel, size_t k) {
    size_t wish = kernel->rows ? kernel->rows : BLOCK_ROWS, fit = BLOCK_BYTES / k / 32 * 32;
    return (uint32_t)(fit < 32 ? 32 : fit < wish ? fit : wish);
}

/* An odd number of cache lines, so that consecutive rows fall into different sets of the L1. */
static size_t odd_lines(size_t bytes) {
    return (td_round_up(bytes, TD_CACHE_LINE) / TD_CACHE_LINE | 1) * TD_CACHE_LINE;
}

/* Of a row of activations for the kernel. */
static size_t row_bytes(td_expert_format format, const expert_layout *l, size_t k) {
    return td_gemm_row_bytes((td_product)format, &l->groups, k);
}

/* Of what the kernel reads through td_gemm_row.x. */
static size_t x_element(const td_experts *x) {
    return x->config.format == TD_EXPERT_BF16 ? sizeof(float) : sizeof(int8_t);
}

void td_expert_scratch_init(expert_scratch_places *p, const td_experts_config *c, const td_gemm_kernel *kernel,
                            const expert_layout *l) {
    const td_tile_layout *tiles = kernel->tiles;
    size_t inter_tiles = l->n_gate * tiles->nr * sizeof(float), inter_row = row_bytes(c->format, l, l->inter_k);
    *p = (expert_scratch_places){.x_stride = odd_lines(row_bytes(c->format, l, l->hidden_k)),
                                 .h_stride = odd_lines(inter_tiles > inter_row ? inter_tiles : inter_row),
                                 .code_stride = odd_lines(inter_row),
                                 .y_stride = l->n_down * tiles->nr,
                                 .up_rows = td_expert_block_rows(kernel, l->hidden_k),
                                 .down_rows = td_expert_block_rows(kernel, l->inter_k)};
    size_t sums_bytes = td_exact_words(p->y_stride) * sizeof(int32_t);
    size_t pair_bytes = p->h_stride + sizeof(pair) + sizeof(td_gemm_row);
    size_t tok_bytes = p->x_stride + sizeof(td_gemm_row) + sizeof(term_counts) + c->top_k * pair_bytes;
    size_t fit = SCRATCH_BYTES / tok_bytes;
    p->batch_tok = (uint32_t)(fit < 1 ? 1 : fit < c->max_tok ? fit : c->max_tok);
    if (c->max_deferred) {
        size_t rows = LATER_BYTES / sums_bytes;
        if (rows > TD_EXPERTS_HELD_TOK) rows = TD_EXPERTS_HELD_TOK;
        p->defer_tok = (uint32_t)(rows < p->batch_tok ? rows : p->batch_tok);
    }
    p->max_pairs = p->batch_tok * c->top_k;
    p->max_blocks = c->n_experts + p->max_pairs / p->up_rows;
    size_t most = ways_bytes(p) + (c->max_deferred ? 2 : 1) * SUM_BYTES, up = lay_up(p, NULL).bytes,
           pack = td_expert_pack_worker_bytes(tiles, l);
    if (most < up) most = up;
    if (most < pack) most = pack;
    p->worker_bytes = td_round_up(most, td_page_bytes()); /* each is touched first by its worker, on its node */
    p->bytes = tok_bytes * p->batch_tok + p->defer_tok * sums_bytes + p->max_blocks * sizeof(row_block) +
               c->n_experts * (sizeof(active_expert) + sizeof(uint32_t) + sizeof(bool)) + 32 * TD_CACHE_LINE;
}

td_status td_expert_ffn_open(td_experts *x, td_error *err) {
    const expert_scratch_places *p = &x->scratch;
    const td_experts_config     *c = &x->config;
    td_arena                    *a = &x->arena;
    expert_ffn                  *f = x->ffn = calloc(1, sizeof *f);
    if (!f) return td_fail(err, TD_ENOMEM, "out of memory for the expert scratch");
    f->x = td_arena_take(a, p->batch_tok * p->x_stride);
    f->h = td_arena_take(a, p->max_pairs * p->h_stride);
    f->later = td_arena_take(a, p->defer_tok * td_exact_words(p->y_stride) * sizeof *f->later);
    f->terms = td_arena_take(a, p->batch_tok * sizeof *f->terms);
    f->pairs = td_arena_take(a, p->max_pairs * sizeof *f->pairs);
    f->x_rows = td_arena_take(a, p->batch_tok * sizeof *f->x_rows);
    f->h_rows = td_arena_take(a, p->max_pairs * sizeof *f->h_rows);
    f->blocks = td_arena_take(a, p->max_blocks * sizeof *f->blocks);
    f->active = td_arena_take(a, c->n_experts * sizeof *f->active);
    f->expert_pairs = td_arena_take(a, c->n_experts * sizeof *f->expert_pairs);
    f->expert_now = td_arena_take(a, c->n_experts * sizeof *f->expert_now);
    assert(f->x && f->h && f->later && f->terms && f->pairs && f->x_rows && f->h_rows && f->blocks && f->active &&
           f->expert_pairs && f->expert_now); /* td_expert_scratch_init counted them */
    return TD_OK;
}

void td_expert_ffn_close(td_experts *x) {
    free(x->ffn);
    x->ffn = NULL;
}

/* ---- group ------------------------------------------------------------------------------------- */

static const uint16_t *token_ids(const expert_ffn *f, uint32_t t) {
    return f->args->ids + (size_t)(f->tok0 + t) * f->args->top_k;
}

/* Rows of the next block of so many: of equal height, as each is a pass over the weights. */
static uint32_t block_rows(uint32_t left, uint32_t most) {
    uint32_t blocks = (left + most - 1) / most;
    return (left + blocks - 1) / blocks;
}

static void add_active(const td_experts *x, expert_ffn *f, uint32_t e, uint32_t *pair0) {
    uint32_t n = f->expert_pairs[e], most = x->scratch.up_rows;
    assert(!expert_is_dropped(x, f->layer, e));
    f->expert_pairs[e] = *pair0; /* from now on: where its next pair goes */
    for (uint32_t at = 0, rows; at < n; at += rows) {
        row_block *b = &f->blocks[f->n_blocks++];
        rows = block_rows(n - at, most);
        b->expert = f->n_active;
        b->pair0 = *pair0 + at;
        b->n_pairs = rows;
    }
    f->active[f->n_active++] = (active_expert){.id = e, .pair0 = *pair0, .n_pairs = n};
    *pair0 += n;
}

static void group_pairs(td_experts *x, expert_ffn *f) {
    const td_ffn_args *a = f->args;
    uint32_t           n_experts = x->config.n_experts, pair0 = 0;
    memset(f->expert_pairs, 0, n_experts * sizeof *f->expert_pairs);
    memset(f->expert_now, 0, n_experts * sizeof *f->expert_now);
    for (uint32_t t = 0; t < f->n_tok; t++) {
        const uint16_t *ids = token_ids(f, t);
        term_counts     n = {0};
        for (uint32_t j = 0; j < a->top_k; j++) {
            if (td_id_is_resident(ids[j])) continue;
            assert(ids[j] < n_experts);
            f->expert_pairs[ids[j]]++;
            if (j < a->n_immediate) f->expert_now[ids[j]] = true;
            *(j < a->n_immediate ? &n.now : &n.deferred) += 1;
        }
        f->terms[t] = n;
    }
    bool may_hold = a->n_immediate < a->top_k && f->n_tok <= x->scratch.defer_tok, later = false;
    for (uint32_t e = 0; e < n_experts && !later; e++) later = f->expert_pairs[e] && !f->expert_now[e];
    bool now = false;
    for (uint32_t e = 0; e < n_experts && !now; e++) now = f->expert_now[e];
    f->two_passes = may_hold && now && later;

    f->n_active = f->n_blocks = 0;
    for (uint32_t e = 0; e < n_experts; e++)
        if (f->expert_pairs[e] && (!f->two_passes || f->expert_now[e])) add_active(x, f, e, &pair0);
    f->n_now = f->n_active;
    if (f->two_passes)
        for (uint32_t e = 0; e < n_experts; e++)
            if (f->expert_pairs[e] && !f->expert_now[e]) add_active(x, f, e, &pair0);

    for (uint32_t t = 0; t < f->n_tok; t++) {
        const uint16_t *ids = token_ids(f, t);
        for (uint32_t j = 0; j < a->top_k; j++) {
            if (td_id_is_resident(ids[j])) continue;
            f->pairs[f->expert_pairs[ids[j]]++] = (pair){
                .token = t, .is_deferred = j >= a->n_immediate, .weight = a->weights[(size_t)(f->tok0 + t) * a->top_k + j]};
        }
    }
    f->n_pairs = pair0;
}

/* ---- rows -------------------------------------------------------------------------------------- */

#define TOKENS_PER_ITEM 4 /* a row takes about a microsecond: few tokens are not worth a wake-up */

static void prepare_rows(void *ctx, uint32_t item, const td_worker *w) {
    td_experts *x = ctx;
    expert_ffn *f = x->ffn;
    uint32_t    end = (item + 1) * TOKENS_PER_ITEM < f->n_tok ? (item + 1) * TOKENS_PER_ITEM : f->n_tok;
    (void)w;
    for (uint32_t t = item * TOKENS_PER_ITEM; t < end; t++) {
        const size_t            hidden = x->config.hidden, k = x->layout.hidden_k, first = (f->tok0 + t) * hidden;
        const td_ffn_args      *a = f->args;
        const td_product        product = (td_product)x->config.format;
        const td_expert_groups *groups = &x->layout.groups;
        char                   *dst = f->x + t * x->scratch.x_stride;
        if (a->x_i8)
            td_gemm_row_take(product, groups, a->x_i8 + first, a->x_scale[f->tok0 + t], hidden, k, dst, &f->x_rows[t]);
        else
            td_gemm_row_make(product, groups, x->config.act_dtype,
                             (const char *)a->x + first * td_dtype_bytes(x->config.act_dtype), hidden, k, dst,
                             &f->x_rows[t]);
    }
}

/* ---- up ---------------------------------------------------------------------------------------- */

/* The block's rows, at equal distances as kernels want them: where they are, or else copied. */
static void gather_rows(const td_experts *x, const row_block *b, const up_scratch *up) {
    const expert_ffn *f = x->ffn;
    const pair       *pairs = f->pairs + b->pair0;
    bool              even = true;
    for (uint32_t i = 0; i < b->n_pairs; i++) {
        up->rows[i] = f->x_rows[pairs[i].token];
        if (i >= 2) even = even && pairs[i].token - pairs[i - 1].token == pairs[1].token - pairs[0].token;
    }
    if (even) return;
    for (uint32_t i = 0; i < b->n_pairs; i++)
        up->rows[i].x = memcpy(up->codes + i * x->scratch.x_stride, up->rows[i].x, x->layout.hidden_k * x_element(x));
}

/* Whether an item of the up phase makes all values of its block, which then become codes elsewhere. */
static bool item_is_block(const td_experts *x) {
    return x->ffn->n_chunks == 1 && x->layout.n_shards == 1 && x->config.format != TD_EXPERT_BF16;
}

/* values: of the block's first row. */
static void finish_block(td_experts *x, const row_block *b, const char *values) {
    expert_ffn  *f = x->ffn;
    const size_t stride = item_is_block(x) ? x->scratch.code_stride : x->scratch.h_stride;
    for (uint32_t p = b->pair0; p < b->pair0 + b->n_pairs; p++, values += x->scratch.h_stride)
        td_gemm_row_make((td_product)x->config.format, &x->layout.groups, TD_DT_F32, values, x->config.inter,
                         x->layout.inter_k, f->h + p * stride, &f->h_rows[p]);
}

/* The first tile of the up phase's next item, which its worker most likely goes on with. */
static const char *item_after_up(const td_experts *x, uint32_t subpool, uint32_t item) {
    const expert_ffn   *f = x->ffn;
    const expert_shard *sh = &x->layout.shard[subpool];
    uint32_t            block = f->first_block + (item + 1) / f->n_chunks, chunk = (item + 1) % f->n_chunks;
    if (block == f->end_block) return NULL;
    return (const char *)expert_shard_data(x, f->layer, subpool) + f->active[f->blocks[block].expert].id * sh->expert.bytes +
           td_piece_tile_at(&x->layout.sizes, &sh->expert, TD_EXPERT_GATE, sh->expert.n_gate * chunk / f->n_chunks);
}

/* The biases of the tiles of a shard from one on, or NULL. */
static const float *shard_bias(const td_experts *x, uint32_t subpool, size_t expert, td_expert_matrix m, size_t tile) {
    uint32_t shard;
    if (!x->layout.sizes.bias) return NULL;
    size_t at = td_expert_bias_offset(&x->layout, expert, m, tile, &shard);
    return (const float *)(const void *)((const char *)expert_shard_data(x, x->ffn->layer, subpool) + at);
}

static void up_item(void *ctx, uint32_t item, const td_worker *w) {
    td_experts           *x = ctx;
    expert_ffn           *f = x->ffn;
    const td_gemm_kernel *kernel = x->kernel;
    const expert_shard   *sh = &x->layout.shard[w->subpool];
    row_block            *b = &f->blocks[f->first_block + item / f->n_chunks];
    size_t                chunk = item % f->n_chunks, tile0 = sh->expert.n_gate * chunk / f->n_chunks,
           tile1 = sh->expert.n_gate * (chunk + 1) / f->n_chunks;
    size_t      tile_bytes = x->layout.sizes.gate_tile_bytes;
    const char *tile = (const char *)expert_shard_data(x, f->layer, w->subpool) +
                       f->active[b->expert].id * sh->expert.bytes +
                       td_piece_tile_at(&x->layout.sizes, &sh->expert, TD_EXPERT_GATE, tile0);
    const char      *after = item_after_up(x, w->subpool, item);
    const up_scratch up = lay_up(&x->scratch, expert_worker_scratch(x, w->index));
    const size_t     nr = kernel->tiles->nr, ldh = x->scratch.h_stride / sizeof(float);
    const float     *bias =
        tile0 == tile1 ? NULL : shard_bias(x, w->subpool, f->active[b->expert].id, TD_EXPERT_GATE, sh->gate_tile0 + tile0);
    char *values = item_is_block(x) ? up.values : f->h + b->pair0 * x->scratch.h_stride;
    gather_rows(x, b, &up);
    for (size_t t = tile0; t < tile1; t++, tile += 2 * tile_bytes) {
        td_gemm_args g = {.tile = tile,
                          .n_tiles = 1,
                          .next = tile + tile_bytes,
                          .k = x->layout.hidden_k,
                          .m = b->n_pairs,
                          .rows = up.rows,
                          .groups = x->layout.groups,
                          .end = {.n = nr, .bias = bias, .out = up.gate, .ld = nr, .dtype = TD_DT_F32}};
        kernel->run(&g);
        g.tile = tile + tile_bytes;
        g.next = t + 1 < tile1 ? tile + 2 * tile_bytes : after;
        g.end.gate = up.gate;
        g.end.ld_gate = nr;
        g.end.glu = x->config.glu;
        if (bias) g.end.bias = bias + nr, bias += 2 * nr;
        g.end.out = (float *)(void *)values + (sh->gate_tile0 + t) * nr;
        g.end.ld = ldh;
        kernel->run(&g);
    }
    if (atomic_fetch_sub_explicit(&b->left, 1, memory_order_acq_rel) == 1) finish_block(x, b, values);
}

/* ---- down -------------------------------------------------------------------------------------- */

/* Rows of sums of the region's tokens, from its first column on. */
typedef struct {
    int32_t *at;
    size_t   words; /* from a row to the next */
} sum_rows;

typedef struct {
    size_t   column0, column1; /* of whole tiles */
    uint32_t tok0, tok1;
    sum_rows now, deferred;
} down_region;

static int32_t *row_of(const down_region *r, const sum_rows *sums, uint32_t t) {
    return sums->at + (t - r->tok0) * sums->words;
}

/* An odd number of cache lines, for a chunk of so many tiles. */
static size_t sums_words(size_t tiles, size_t nr) {
    return odd_lines(td_exact_words(tiles * nr) * sizeof(int32_t)) / sizeof(int32_t);
}

static void begin_now(const td_experts *x, const down_region *r) {
    for (uint32_t t = r->tok0; t < r->tok1; t++)
        td_exact_begin(row_of(r, &r->now, t), r->column1 - r->column0, x->ffn->terms[t].now);
}

static void begin_deferred(const td_experts *x, const down_region *r) {
    for (uint32_t t = r->tok0; t < r->tok1; t++)
        td_exact_begin(row_of(r, &r->deferred, t), r->column1 - r->column0, x->ffn->terms[t].deferred);
}

/* A row of sums to where the caller wants it, as it wants it. */
static void write_row(const td_experts *x, const down_region *r, const int32_t *sums, uint32_t t, void *dst) {
    size_t hidden = x->config.hidden, end = r->column1 < hidden ? r->column1 : hidden, row = x->ffn->tok0 + t;
    if (x->ffn->args->in_parts) {
        memcpy((int32_t *)dst + row * td_exact_words(hidden) + td_exact_at(r->column0), sums,
               td_exact_words(end - r->column0) * sizeof *sums);
        return;
    }
    for (size_t j = r->column0, n; j < end; j += n) {
        float values[16 * TD_EXACT_BLOCK];
        n = end - j < 16 * TD_EXACT_BLOCK ? end - j : 16 * TD_EXACT_BLOCK;
        x->rows->exact_end(sums + td_exact_at(j - r->column0), n, values);
        td_from_f32(x->config.act_dtype, values, n, (char *)dst + (row * hidden + j) * td_dtype_bytes(x->config.act_dtype));
    }
}

static void write_sums(const td_experts *x, const down_region *r, const sum_rows *sums, void *dst) {
    for (uint32_t t = r->tok0; t < r->tok1; t++) write_row(x, r, row_of(r, sums, t), t, dst);
}

/* First pair of an expert whose token is at least t. */
static uint32_t lower_pair(const expert_ffn *f, const active_expert *e, uint32_t t) {
    uint32_t lo = e->pair0, hi = e->pair0 + e->n_pairs;
    if (t == 0) return lo;
    if (t >= f->n_tok) return hi;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (f->pairs[mid].token < t)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The sums of pairs p0 .. p0 + m, and their weights. */
static void aim(const td_experts *x, const down_region *r, uint32_t p0, uint32_t m, int32_t **sums, float *weights) {
    for (uint32_t i = 0; i < m; i++) {
        const pair *p = &x->ffn->pairs[p0 + i];
        weights[i] = p->weight;
        sums[i] = row_of(r, p->is_deferred ? &r->deferred : &r->now, p->token);
    }
}

/* Intermediate rows that lie side by side; bytes 0: none. */
typedef struct {
    const void *at;
    size_t      bytes;
} rows_ahead;

static rows_ahead rows_at(const td_experts *x, uint32_t p, uint32_t n) {
    const td_gemm_row *rows = x->ffn->h_rows + p;
    if (n < 2 || (const char *)rows[1].x - (const char *)rows[0].x != (ptrdiff_t)x->scratch.code_stride)
        return (rows_ahead){0};
    return (rows_ahead){rows->x, n * x->scratch.code_stride};
}

/* The first ones of an active expert in the region. */
static rows_ahead rows_behind(const td_experts *x, const down_region *r, uint32_t e) {
    const active_expert *expert = &x->ffn->active[e];
    uint32_t             p = lower_pair(x->ffn, expert, r->tok0), end = lower_pair(x->ffn, expert, r->tok1);
    return rows_at(x, p, p < end ? block_rows(end - p, x->scratch.down_rows) : 0);
}

static void down_item(void *ctx, uint32_t item, const td_worker *w) {
    td_experts         *x = ctx;
    expert_ffn         *f = x->ffn;
    const expert_shard *sh = &x->layout.shard[w->subpool];
    uint32_t            chunk = item % f->n_chunks, range = item / f->n_chunks;
    size_t tile0 = sh->expert.n_down * chunk / f->n_chunks, tile1 = sh->expert.n_down * (chunk + 1) / f->n_chunks,
           nr = x->kernel->tiles->nr;
    size_t      tile_bytes = x->layout.sizes.down_tile_bytes;
    const char *tiles = (const char *)expert_shard_data(x, f->layer, w->subpool) +
                        td_piece_tile_at(&x->layout.sizes, &sh->expert, TD_EXPERT_DOWN, 0);
    int32_t   **ways = expert_worker_scratch(x, w->index), *sums = worker_sums(x, w);
    float      *weights = (float *)(ways + x->scratch.down_rows);
    down_region region = {.column0 = (sh->down_tile0 + tile0) * nr,
                          .column1 = (sh->down_tile0 + tile1) * nr,
                          .tok0 = (uint32_t)((uint64_t)f->n_tok * range / f->n_ranges),
                          .tok1 = (uint32_t)((uint64_t)f->n_tok * (range + 1) / f->n_ranges),
                          .now = {sums, sums_words(tile1 - tile0, nr)},
                          .deferred = {sums + SUM_BYTES / sizeof *sums, sums_words(tile1 - tile0, nr)}};
    const bool  any_deferred = f->args->n_immediate < f->args->top_k, is_last = f->second || !f->two_passes;
    if (tile0 == tile1) return;
    assert((region.tok1 - region.tok0) * region.now.words * sizeof *sums <= SUM_BYTES);
    if (f->two_passes) {
        region.deferred.words = td_exact_words(x->scratch.y_stride);
        region.deferred.at = f->later + region.tok0 * region.deferred.words + td_exact_at(region.column0);
    }
    if (!f->second) begin_now(x, &region);
    if (any_deferred && !f->second) begin_deferred(x, &region);
    for (uint32_t e = f->first_active; e < f->end_active; e++) {
        const active_expert *expert = &f->active[e];
        const char          *first = tiles + expert->id * sh->expert.bytes + tile0 * tile_bytes;
        const bool           last = e + 1 == f->end_active;
        const uint32_t       next_id = f->active[last ? f->first_active : e + 1].id;
        const char  *after = tiles + next_id * sh->expert.bytes + (last ? tile1 % sh->expert.n_down : tile0) * tile_bytes;
        const float *bias = shard_bias(x, w->subpool, expert->id, TD_EXPERT_DOWN, sh->down_tile0 + tile0);
        uint32_t     end = lower_pair(f, expert, region.tok1);
        for (uint32_t p = lower_pair(f, expert, region.tok0), m; p < end; p += m) {
            m = block_rows(end - p, x->scratch.down_rows);
            aim(x, &region, p, m, ways, weights);
            rows_ahead ahead = p + m < end ? rows_at(x, p + m, block_rows(end - p - m, x->scratch.down_rows))
                                           : rows_behind(x, &region, e + 1 < f->end_active ? e + 1 : f->first_active);
            x->kernel->run(
                &(td_gemm_args){.tile = first,
                                .n_tiles = tile1 - tile0,
                                .next = p + m < end ? first : after,
                                .ahead = ahead.at,
                                .ahead_bytes = ahead.bytes,
                                .k = x->layout.inter_k,
                                .m = m,
                                .rows = f->h_rows + p,
                                .groups = x->layout.groups,
                                .end = {.n = (tile1 - tile0) * nr, .bias = bias, .sums = ways, .weight = weights}});
        }
    }
    if (!f->second) write_sums(x, &region, &region.now, f->args->y);
    if (any_deferred && is_last) write_sums(x, &region, &region.deferred, f->args->y_deferred);
}

/* ---- passes ------------------------------------------------------------------------------------ */

static size_t clamp_size(size_t v, size_t lo, size_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

/* Into how many chunks a shard's tiles are cut so that `groups` x chunks items keep the workers evenly busy, without items
   of less work than streaming ITEM_BYTES_MIN. work_bytes: of all tiles of one group, times what its rows add to a pass over
   them. */
static uint32_t chunk_count(const td_experts *x, size_t groups, size_t tiles, size_t work_bytes) {
    size_t workers = (td_pool_workers(x->pool) + x->layout.n_shards - 1) / x->layout.n_shards;
    size_t wanted = (workers * ITEMS_PER_WORKER + groups - 1) / groups, most = work_bytes / ITEM_BYTES_MIN;
    return (uint32_t)clamp_size(clamp_size(wanted, 1, most ? most : 1), 1, tiles ? tiles : 1);
}

/* So many tokens and chunks leave an item's sums in its worker's L2. */
static bool sums_fit(const td_experts *x, size_t n_tok, size_t tiles, size_t chunks) {
    return n_tok * sums_words((tiles + chunks - 1) / chunks, x->kernel->tiles->nr) * sizeof(int32_t) <= SUM_BYTES;
}

/*
 * How the down phase is cut into ranges of tokens and chunks of columns, for a kernel that likes many rows: its arithmetic
 * is so fast that memory binds it. Three costs are counted in bytes. Each range reads the weights anew. Each chunk reads the
 * rows of all pairs, eight times as fast if they stay in L2. At the end all workers but one wait for half an item. Among the
 * cuts whose sums stay in a worker's L2, the one with the least sum of costs is taken. @param rows by what factor a pass
 * over the weights is longer because of its rows.
 */
static void cut_for_memory(const td_experts *x, size_t tiles, size_t weights, size_t n_pairs, size_t rows) {
    expert_ffn  *f = x->ffn;
    const size_t read = n_pairs * row_bytes(x->config.format, &x->layout, x->layout.inter_k),
                 workers = (td_pool_workers(x->pool) + x->layout.n_shards - 1) / x->layout.n_shards;
    const double pairs = (double)read / (read <= SUM_BYTES ? 8 : 1), waiting = (double)(weights * rows * (workers - 1)) / 2;
    double       least = INFINITY;
    for (size_t ranges = 1; (double)(ranges * weights) < least && ranges <= f->n_tok; ranges *= 2) {
        const size_t most = weights * rows / ranges / ITEM_BYTES_MIN;
        size_t       chunks = clamp_size((size_t)sqrt(waiting / (double)ranges / pairs), 1, clamp_size(most, 1, tiles));
        while (chunks <= tiles && !sums_fit(x, (f->n_tok + ranges - 1) / ranges, tiles, chunks)) chunks++;
        double cost = (double)(ranges * weights) + (double)chunks * pairs + waiting / (double)(ranges * chunks);
        if (chunks > tiles || cost >= least) continue;
        least = cost;
        f->n_ranges = (uint32_t)ranges;
        f->n_chunks = (uint32_t)chunks;
    }
    assert(least < (double)INFINITY);
}

/* The same for others, which arithmetic binds: many small items, whose sums leave the L2 to weights and rows. */
static void cut_evenly(const td_experts *x, size_t tiles, size_t weights, size_t rows) {
    expert_ffn *f = x->ffn;
    f->n_ranges = (f->n_tok + RANGE_TOK - 1) / RANGE_TOK;
    f->n_chunks = chunk_count(x, f->n_ranges, tiles, weights * rows);
    while (!sums_fit(x, (f->n_tok + f->n_ranges - 1) / f->n_ranges, tiles, f->n_chunks)) f->n_chunks++;
}

/* A phase on every worker; in a trace under its name, with the tokens and experts it is about. */
static void run_phase(td_experts *x, const char *name, uint32_t n_experts, td_pool_fn fn, uint32_t n_items, bool each) {
    td_trace_label label = {TD_TRACE_CPU, name, {"tokens", "experts"}, {x->ffn->n_tok, n_experts}};
    uint64_t       begin = td_trace_begin();
    td_pool_label(x->pool, &label);
    (each ? td_pool_run_each : td_pool_run)(x->pool, fn, x, n_items);
    td_trace_end(begin, &label);
}

static void run_pass(td_experts *x, bool second) {
    expert_ffn          *f = x->ffn;
    const expert_layout *l = &x->layout;
    size_t               gate_tiles = (l->n_gate + l->n_shards - 1) / l->n_shards;
    f->second = second;
    f->first_active = second ? f->n_now : 0;
    f->end_active = f->two_passes && !second ? f->n_now : f->n_active;
    f->first_block = 0;
    while (f->first_block < f->n_blocks && f->blocks[f->first_block].expert < f->first_active) f->first_block++;
    f->end_block = f->first_block;
    while (f->end_block < f->n_blocks && f->blocks[f->end_block].expert < f->end_active) f->end_block++;

    size_t n_blocks = f->end_block - f->first_block, n_experts = f->end_active - f->first_active;
    size_t n_pairs = f->n_pairs, rows = 1 + n_pairs / f->n_blocks / 4; /* four rows cost about a pass over the weights */
    f->n_chunks = chunk_count(x, n_blocks, gate_tiles, gate_tiles * 2 * l->sizes.gate_tile_bytes * rows);
    for (uint32_t b = f->first_block; b < f->end_block; b++)
        atomic_store_explicit(&f->blocks[b].left, f->n_chunks * l->n_shards, memory_order_relaxed);
    run_phase(x, second ? "deferred up" : "up", (uint32_t)n_experts, up_item, (uint32_t)n_blocks * f->n_chunks, true);

    const size_t down_tiles = (l->n_down + l->n_shards - 1) / l->n_shards,
                 weights = down_tiles * l->sizes.down_tile_bytes * n_experts;
    if (x->kernel->rows)
        cut_for_memory(x, down_tiles, weights, n_pairs * n_experts / f->n_active, rows);
    else
        cut_evenly(x, down_tiles, weights, rows);
    run_phase(x, second ? "deferred down" : "down", (uint32_t)n_experts, down_item, f->n_chunks * f->n_ranges, true);
}

/* What a batch gives whose experts are all on the device. */
static void write_zeros(const td_experts *x) {
    const td_ffn_args *a = x->ffn->args;
    const size_t       hidden = x->config.hidden,
                 row = a->in_parts ? td_exact_words(hidden) * sizeof(int32_t) : hidden * td_dtype_bytes(x->config.act_dtype);
    memset((char *)a->y + x->ffn->tok0 * row, 0, x->ffn->n_tok * row);
    if (a->n_immediate < a->top_k) memset((char *)a->y_deferred + x->ffn->tok0 * row, 0, x->ffn->n_tok * row);
}

td_tier_work td_experts_batch_work(const td_experts_config *c, uint64_t layer_bytes, uint64_t n_active, uint64_t n_pairs) {
    td_tier_work w = {.bytes = n_active * (layer_bytes / c->n_experts)};
    *(c->format == TD_EXPERT_BF16 ? &w.f32_ops : &w.int8_ops) = n_pairs * 6 * c->hidden * c->inter;
    return w;
}

void td_experts_ffn(td_experts *x, uint32_t layer, const td_ffn_args *a) {
    expert_ffn *f = x->ffn;
    assert(layer < x->config.n_layers && x->loaded[layer]);
    assert(a->top_k >= 1 && a->top_k <= x->config.top_k && a->n_immediate >= 1 && a->n_immediate <= a->top_k);
    assert(a->top_k - a->n_immediate <= x->config.max_deferred);
    bool         done_called = false;
    uint32_t     n_batches = (a->n_tok + x->scratch.batch_tok - 1) / x->scratch.batch_tok;
    td_tier_work work = {0};
    uint64_t     begin_ns = td_tier_begin(&x->meter, "experts", layer);
    for (uint32_t i = 0; i < n_batches; i++) {
        f->args = a;
        f->layer = layer;
        f->tok0 = (uint32_t)((uint64_t)a->n_tok * i / n_batches);
        f->n_tok = (uint32_t)((uint64_t)a->n_tok * (i + 1) / n_batches) - f->tok0;
        uint64_t begin = td_trace_begin();
        group_pairs(x, f);
        td_trace_end(begin, &(td_trace_label){TD_TRACE_CPU, "group", {"tokens", "experts"}, {f->n_tok, f->n_active}});
        if (!f->n_pairs) {
            write_zeros(x);
            continue;
        }
        run_phase(x, "prepare", f->n_active, prepare_rows, (f->n_tok + TOKENS_PER_ITEM - 1) / TOKENS_PER_ITEM, false);
        run_pass(x, false);
        if (f->two_passes) {
            if (i + 1 == n_batches && a->immediate_done) {
                a->immediate_done(a->user);
                done_called = true;
            }
            run_pass(x, true);
        }
        td_tier_work batch = td_experts_batch_work(&x->config, x->layout.layer_bytes, f->n_active, f->n_pairs);
        work.bytes += batch.bytes;
        work.int8_ops += batch.int8_ops;
        work.f32_ops += batch.f32_ops;
        atomic_fetch_add_explicit(&x->n_pairs, f->n_pairs, memory_order_relaxed);
    }
    td_tier_end(&x->meter, begin_ns, &work);
    if (!done_called && a->immediate_done) a->immediate_done(a->user);
}
