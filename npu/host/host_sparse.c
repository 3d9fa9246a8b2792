/*
 * DeepSeek-V4's attention (td_sparse_desc): projections, compressed rows, the indexer's choice, attention, output
 * projection.
 *
 * DESIGN. A chunk of rows goes through passes, each an item list for the pool:
 *   rows      norms and rope of q and of the key, which goes to its page
 *   compress  the rows that end in the chunk: part by part (td_host_part), since a part reads what the one before left in its
 *             slots; then the part's state and open block are written
 *   choose    of rows that see more compressed rows than may be chosen: host_index.c
 *   attend    row x some heads: the keys of the row are gathered tile by tile, and are the second matrix of two products
 * Every sum of a row has an order that its position gives alone.
 */
#include <math.h>

#include "core/error.h"
#include "kernels/rows/convert.h"
#include "npu/host/host_attention.h"
#include "npu/host/host_index.h"

#define BLOCK ((size_t)TD_STATE_BLOCK)
#define TILE ((size_t)256)            /* keys that are gathered at a time */
#define PANEL ((size_t)TD_ATTN_PANEL) /* keys that lie side by side when they are transposed */
#define FOLD_ROWS (2 * BLOCK)         /* that go into a compressed row at a time, at most */
#define LEAST_HEADS 4                 /* of an item of attend */

/* A compressor and what it works on. */
typedef struct {
    const td_compressor *c;
    size_t               dim, width;
    const float         *kv, *gate;         /* [rows][width] of the chunk */
    size_t               state_at, open_at; /* its first value in a slot */
    char                *cache;
    bool                 index; /* its rows are keys of the indexer */
} stream;

typedef struct {
    td_host_npu          *d;
    const td_npu_block   *b;
    const td_sparse_desc *m;
    const td_host_step   *s;
    size_t                row0, rows; /* of the chunk in the step */
    size_t                splits;     /* of the heads */
    stream                streams[2]; /* main, index */
    td_host_part          part;       /* under way */
    uint32_t              seq;        /* its sequence */
    float                *low, *q, *kv, *out, *index_q, *weights, *projected;
    uint32_t             *seq_of; /* [rows] sequence of a row */
    td_host_index         index;  /* of the chunk, in layers that choose */
} job;

/* A worker's scratch: compress has rows and sums, attend keys. */
typedef struct {
    float *weights, *sums;         /* [FOLD_ROWS][dim], [max | sum | values] */
    float *keys, *across, *scores; /* [TILE][dim], [TILE / PANEL][dim][PANEL], [heads][keys of a row] */
} workspace;

/* Keys that a row meets at most. */
static size_t keys_max(const td_sparse_desc *m, size_t max_kv) {
    const size_t rows = m->ratio ? max_kv / m->ratio : 0;
    return td_round_up(m->window + (m->index_heads && m->index_top < rows ? m->index_top : rows), PANEL);
}

static size_t lay_workspace(const td_block_desc *desc, char *at, workspace *w) {
    const td_sparse_desc *m = &desc->sparse;
    const size_t          dim = m->dim > m->index_dim ? m->dim : m->index_dim, heads = m->heads * keys_max(m, desc->max_kv);
    size_t                used = 0;
    const size_t          offset[] = {td_host_place(&used, FOLD_ROWS * dim * sizeof(float)),
                                      td_host_place(&used, 3 * dim * sizeof(float)), td_host_place(&used, TILE * dim * sizeof(float)),
                                      td_host_place(&used, (TILE * dim + PANEL) * sizeof(float)),
                                      td_host_place(&used, heads * sizeof(float))};
#define AT(i) ((float *)(at + offset[i]))
    if (w) *w = (workspace){AT(0), AT(1), AT(2), AT(3), AT(4)};
#undef AT
    return used;
}

static workspace workspace_of(const job *j, const td_worker *worker) {
    workspace w;
    lay_workspace(&j->b->desc, j->d->scratch + j->b->at.f32 + worker->index * j->b->at.per_worker, &w);
    return w;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Turn the pairs at the end of a row. @param sign -1: back */
static void turn(const td_sparse_desc *m, float *x, size_t dim, size_t pos, float sign) {
    const size_t half = m->rope_dim / 2;
    const float *cosine = td_host_vector(m->rope) + pos * m->rope_dim, *sine = cosine + half;
    float       *pairs = x + dim - m->rope_dim;
    for (size_t i = 0; i < half; i++) {
        const float a = pairs[2 * i], b = pairs[2 * i + 1], s = sign * sine[i];
        pairs[2 * i] = a * cosine[i] - b * s;
        pairs[2 * i + 1] = b * cosine[i] + a * s;
    }
}

/* Row w of a cache of compressed rows. */
static char *compressed_row(const job *j, const void *cache, uint32_t seq, size_t w, size_t dim) {
    return td_host_cache_row(j->d, j->s->a.block_table + (size_t)seq * j->s->block_stride, cache, w, j->m->ratio, dim);
}

static void low_item(void *ctx, uint32_t i, const td_worker *worker) {
    const job *j = ctx;
    float     *low = j->low + (size_t)i * j->m->q_lora;
    (void)worker;
    j->d->kernels->math->rms_norm(low, td_host_vector(j->m->q_norm), j->m->eps, j->m->q_lora, low);
}

static void row_item(void *ctx, uint32_t i, const td_worker *worker) {
    const job            *j = ctx;
    const td_sparse_desc *m = j->m;
    const size_t          dim = m->dim, pos = j->s->a.pos[j->row0 + i], slot = j->s->a.window_slot[j->row0 + i];
    float                *q = j->q + i * m->heads * dim, *kv = j->kv + i * dim;
    (void)worker;
    for (size_t h = 0; h < m->heads; h++) {
        j->d->kernels->delta->unit(q + h * dim, m->eps * (float)dim, sqrtf((float)dim), dim);
        turn(m, q + h * dim, dim, pos, 1);
    }
    for (size_t h = 0; h < m->index_heads; h++)
        turn(m, j->index_q + (i * m->index_heads + h) * m->index_dim, m->index_dim, pos, 1);
    j->d->kernels->math->rms_norm(kv, td_host_vector(m->kv_norm), m->eps, dim, kv);
    turn(m, kv, dim, pos, 1);
    td_from_f32(j->d->act, kv, dim, (char *)m->kv_rows + td_host_act_bytes(j->d, slot * dim));
}

/* ---- compress -------------------------------------------------------------------------------- */

static size_t border_of(const job *j) {
    return j->part.pos - j->part.pos % BLOCK;
}
static float *state_of(const job *j, const stream *st, uint32_t slot) {
    return (float *)j->m->state + slot * td_sparse_state_values(j->m) + st->state_at;
}
static float *open_row(const job *j, const stream *st, size_t pos) {
    return (float *)j->m->open + j->part.open * td_sparse_open_values(j->m) + st->open_at + pos % BLOCK * 2 * st->width;
}

/* kv x and gate x at a position; before the block's border only the first halves, which the state has. */
typedef struct {
    const float *kv, *gate;
} projected_row;

static projected_row projected_at(const job *j, const stream *st, size_t pos) {
    if (pos >= j->part.pos) {
        const size_t at = (j->part.row + pos - j->part.pos) * st->width;
        return (projected_row){st->kv + at, st->gate + at};
    }
    if (pos >= border_of(j)) {
        const float *row = open_row(j, st, pos);
        return (projected_row){row, row + st->width};
    }
    const float *row = state_of(j, st, j->part.from) + (pos + j->m->ratio - border_of(j)) * 2 * st->dim;
    return (projected_row){row, row + st->dim};
}

/* Rows of one half: positions [pos, pos + n), whose channels begin at `at`. */
typedef struct {
    size_t pos, n, at;
} run;

/* A softmax per channel over rows, as w->sums has it: take rows, one or two runs together, into the sums. @param begun the
 * sums have some already */
static void fold(const job *j, const stream *st, const workspace *w, const run *runs, size_t n_runs, bool begun) {
    const td_float_math *math = j->d->kernels->math;
    const size_t         dim = st->dim;
    float               *max = w->sums, *sum = max + dim, *values = sum + dim, *weight = w->weights;
    for (size_t k = 0; k < n_runs; k++)
        for (size_t i = 0; i < runs[k].n; i++, weight += dim) {
            const size_t pos = runs[k].pos + i;
            const float *gate = projected_at(j, st, pos).gate + runs[k].at,
                        *ape = td_host_vector(st->c->ape) + pos % j->m->ratio * st->width + runs[k].at;
            for (size_t c = 0; c < dim; c++) weight[c] = gate[c] + ape[c];
        }
    const size_t n = (size_t)(weight - w->weights) / dim;
    float       *factor = begun ? weight : NULL; /* behind the rows: there are at most FOLD_ROWS - 1 if some were before */
    if (begun) memcpy(factor, max, dim * sizeof *max);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < dim; c++) {
            const float g = w->weights[i * dim + c];
            if ((i == 0 && !begun) || g > max[c]) max[c] = g;
        }
    for (size_t i = 0; i < n + begun; i++)
        for (size_t c = 0; c < dim; c++) w->weights[i * dim + c] -= max[c];
    math->exp_sum(w->weights, 0, (n + begun) * dim);
    for (size_t c = 0; c < dim; c++) {
        sum[c] = begun ? sum[c] * factor[c] : 0;
        values[c] = begun ? values[c] * factor[c] : 0;
    }
    weight = w->weights;
    for (size_t k = 0; k < n_runs; k++)
        for (size_t i = 0; i < runs[k].n; i++, weight += dim) {
            const float *kv = projected_at(j, st, runs[k].pos + i).kv + runs[k].at;
            for (size_t c = 0; c < dim; c++) {
                sum[c] += weight[c];
                values[c] += weight[c] * kv[c];
            }
        }
}

/* The sums of a run of tokens without overlap from `first` until `end`, block by block. */
static void fold_blocks(const job *j, const stream *st, const workspace *w, size_t first, size_t end) {
    const size_t border = border_of(j);
    bool         begun = first < border;
    if (begun) {
        memcpy(w->sums, state_of(j, st, j->part.from), 3 * st->dim * sizeof(float));
        first = border;
    }
    for (size_t next; first < end; first = next) {
        next = (first / BLOCK + 1) * BLOCK;
        if (next > end) next = end;
        fold(j, st, w, &(run){first, next - first, 0}, 1, begun);
        begun = true;
    }
}

/* Of the sequence under way, where row w of a cache of compressed rows lies. */
static size_t page_of(const job *j, size_t w) {
    return j->s->a.block_table[(size_t)j->seq * j->s->block_stride + w / (TD_KV_PAGE / j->m->ratio)];
}

static void compress_row(const job *j, const stream *st, const workspace *w, size_t row) {
    const size_t r = j->m->ratio, first = row * r, dim = st->dim;
    float       *sums = w->sums, *values = sums + 2 * dim;
    if (j->m->overlap) {
        const run runs[] = {{first - r, r, 0}, {first, r, dim}};
        fold(j, st, w, row ? runs : runs + 1, row ? 2 : 1, false);
    } else {
        fold_blocks(j, st, w, first, first + r);
    }
    for (size_t c = 0; c < dim; c++) values[c] /= sums[dim + c];
    j->d->kernels->math->rms_norm(values, td_host_vector(st->c->norm), j->m->eps, dim, values);
    turn(j->m, values, dim, first, 1);
    if (st->index)
        td_host_index_store(j->d, st->cache, r, page_of(j, row), row % (TD_KV_PAGE / r), values, dim);
    else
        td_from_f32(j->d->act, values, dim, compressed_row(j, st->cache, j->seq, row, dim));
}

static size_t stream_count(const td_sparse_desc *m) {
    return !m->ratio ? 0 : m->index_heads ? 2 : 1;
}

static void compress_item(void *ctx, uint32_t item, const td_worker *worker) {
    const job      *j = ctx;
    const size_t    n = stream_count(j->m);
    const workspace w = workspace_of(j, worker);
    compress_row(j, &j->streams[item % n], &w, j->part.pos / j->m->ratio + item / n);
}

/* The part's last block that has ended leaves a state. */
static void keep_state(const job *j, const stream *st, const workspace *w) {
    const size_t border = (j->part.pos + j->part.n) / BLOCK * BLOCK, r = j->m->ratio, dim = st->dim;
    float       *to = state_of(j, st, j->part.to);
    if (border == border_of(j)) return;
    if (!j->m->overlap) {
        if (border % r == 0) return; /* no run of tokens goes on */
        fold_blocks(j, st, w, border / r * r, border);
        memcpy(to, w->sums, 3 * dim * sizeof *to);
        return;
    }
    for (size_t i = 0; i < r; i++) {
        const projected_row row = projected_at(j, st, border - r + i);
        memcpy(to + 2 * i * dim, row.kv, dim * sizeof *to);
        memcpy(to + (2 * i + 1) * dim, row.gate, dim * sizeof *to);
    }
}

/* Of a block that ends with the part, too, whose last row may be a draft. */
static void keep_open(const job *j, const stream *st) {
    const size_t end = j->part.pos + j->part.n, border = (end - 1) / BLOCK * BLOCK;
    for (size_t pos = border > j->part.pos ? border : j->part.pos; pos < end; pos++) {
        const projected_row row = projected_at(j, st, pos);
        memcpy(open_row(j, st, pos), row.kv, st->width * sizeof(float));
        memcpy(open_row(j, st, pos) + st->width, row.gate, st->width * sizeof(float));
    }
}

static void keep_item(void *ctx, uint32_t item, const td_worker *worker) {
    const job      *j = ctx;
    const workspace w = workspace_of(j, worker);
    keep_state(j, &j->streams[item], &w);
    keep_open(j, &j->streams[item]);
}

static void compress(job *j) {
    const size_t n = stream_count(j->m), r = j->m->ratio;
    for (j->seq = 0; n && j->seq < j->s->n_seq; j->seq++) {
        j->part = td_host_part_of(&j->s->a, j->seq, j->row0, j->rows);
        if (!j->part.n) continue;
        const size_t rows = (j->part.pos + j->part.n) / r - j->part.pos / r, of_row = j->streams[0].width * r;
        td_host_for(j->d, compress_item, j, rows * n, rows * of_row * 4);
        td_host_for(j->d, keep_item, j, n, j->part.n * j->streams[0].width);
    }
}

/* ---- choose ---------------------------------------------------------------------------------- */

/* Compressed rows that row i of the chunk may meet. */
static size_t visible_to(const job *j, size_t i) {
    return j->m->ratio ? td_host_index_visible(&j->index, i) : 0;
}

static bool chooses(const job *j, size_t i) {
    return j->m->index_heads && td_host_index_chooses(&j->index, i);
}

/* ---- attend ---------------------------------------------------------------------------------- */

/* The keys of a row: those of its window, then compressed rows, by position. */
typedef struct {
    size_t          first, in_window, n;
    const uint32_t *chosen; /* NULL: all compressed rows */
} row_keys;

static row_keys keys_of(const job *j, size_t i) {
    const size_t end = j->s->a.pos[j->row0 + i] + 1, first = end > j->m->window ? end - j->m->window : 0;
    const bool   some = chooses(j, i);
    return (row_keys){.first = first,
                      .in_window = end - first,
                      .n = end - first + (some ? j->m->index_top : visible_to(j, i)),
                      .chosen = some ? j->index.chosen + i * j->m->index_top : NULL};
}

/* Panels of n rows, n at most TILE. */
static void transpose(const job *j, const workspace *w, size_t n, size_t dim) {
    for (size_t at = 0; at < n; at += TD_ATTN_TILE)
        j->d->kernels->math->transpose(w->across + at * dim, PANEL * dim, TD_DT_F32, w->keys + at * dim, dim,
                                       n - at < TD_ATTN_TILE ? n - at : TD_ATTN_TILE, dim);
}

static void gather(const job *j, const workspace *w, uint32_t seq, const row_keys *keys, size_t first, size_t n) {
    const td_sparse_desc *m = j->m;
    const size_t          dim = m->dim;
    for (size_t k = 0; k < n; k++) {
        const size_t at = first + k, pos = keys->first + at, other = at - keys->in_window;
        const void  *row;
        if (at < keys->in_window)
            row = td_host_cache_row(j->d, j->s->a.window_table + (size_t)seq * j->s->block_stride, m->kv_rows, pos, 1, dim);
        else
            row = compressed_row(j, m->compressed, seq, keys->chosen ? keys->chosen[other] : other, dim);
        td_to_f32(j->d->act, row, dim, w->keys + k * dim);
    }
}

/* Scores of a head become weights. @return what the sum of values is to be multiplied by */
static float weigh(const job *j, float *scores, size_t n, size_t head) {
    const td_float_math *math = j->d->kernels->math;
    float                sink_weight = td_host_vector(j->m->sinks)[head], max = sink_weight;
    math->scale_add(scores, 1 / sqrtf((float)j->m->dim), NULL, 0, n);
    for (size_t k = 0; k < n; k++) max = scores[k] > max ? scores[k] : max;
    math->exp_sum(&sink_weight, max, 1);
    return 1 / (math->exp_sum(scores, max, n) + sink_weight);
}

static void attend_item(void *ctx, uint32_t item, const td_worker *worker) {
    const job            *j = ctx;
    const td_sparse_desc *m = j->m;
    const size_t          dim = m->dim, i = item / j->splits, heads = m->heads / j->splits, head = item % j->splits * heads;
    const row_keys        keys = keys_of(j, i);
    const workspace       w = workspace_of(j, worker);
    const size_t          ld = keys_max(m, j->b->desc.max_kv);
    const float          *q = j->q + (i * m->heads + head) * dim;
    float                *out = j->out + (i * m->heads + head) * dim, factor[TD_SPARSE_HEADS_MAX];
    for (size_t at = 0; at < keys.n; at += TILE) {
        const size_t n = keys.n - at < TILE ? keys.n - at : TILE;
        gather(j, &w, j->seq_of[i], &keys, at, n);
        transpose(j, &w, n, dim);
        td_host_attn_meet(j->d->kernels->math, q, heads, dim, w.across, n, w.scores + at, ld);
    }
    for (size_t h = 0; h < heads; h++) factor[h] = weigh(j, w.scores + h * ld, keys.n, head + h);
    for (size_t at = 0; at < keys.n; at += TILE) {
        const size_t n = keys.n - at < TILE ? keys.n - at : TILE;
        if (keys.n > TILE) gather(j, &w, j->seq_of[i], &keys, at, n);
        j->d->kernels->math->gemm(&(td_fgemm_args){.m = heads,
                                                   .n = dim,
                                                   .k = n,
                                                   .a = w.scores + at,
                                                   .lda = ld,
                                                   .b = w.keys,
                                                   .ldb = dim,
                                                   .b_dtype = TD_DT_F32,
                                                   .accumulate = at > 0,
                                                   .c = out,
                                                   .ldc = dim});
    }
    for (size_t h = 0; h < heads; h++) {
        j->d->kernels->math->scale_add(out + h * dim, factor[h], NULL, 0, dim);
        turn(m, out + h * dim, dim, j->s->a.pos[j->row0 + i], -1);
    }
}

static void attend(job *j) {
    const td_sparse_desc *m = j->m;
    j->splits = 1;
    while (j->rows * j->splits < 2 * (size_t)j->d->n_workers && m->heads % (2 * j->splits) == 0 &&
           m->heads / (2 * j->splits) >= LEAST_HEADS)
        j->splits *= 2;
    td_host_for(j->d, attend_item, j, j->rows * j->splits, j->rows * m->heads * m->dim * m->window);
}

/* ---- projections ----------------------------------------------------------------------------- */

/* Some outputs of the grouped projection: a panel of o_a, which one group's heads multiply. */
static void group_item(void *ctx, uint32_t panel, const td_worker *worker) {
    const job            *j = ctx;
    const td_sparse_desc *m = j->m;
    const size_t          nr = td_host_nr(j->d, m->o_a), k = (size_t)m->heads / m->groups * m->dim, column = panel * nr,
                 group = column / m->o_lora, ld = (size_t)m->groups * m->o_lora;
    const td_dtype dtype = m->o_a->shape.format == TD_WEIGHT_BF16 ? TD_DT_BF16 : TD_DT_F32;
    (void)worker;
    j->d->kernels->math->gemm(&(td_fgemm_args){.m = j->rows,
                                               .n = nr,
                                               .k = k,
                                               .a = j->out + group * k,
                                               .lda = (size_t)m->heads * m->dim,
                                               .b = (const char *)m->o_a->data + column * k * td_dtype_bytes(dtype),
                                               .ldb = nr,
                                               .b_dtype = dtype,
                                               .c = j->projected + column,
                                               .ldc = ld});
}

static td_host_product product(const td_npu_weight *w, float *out) {
    return (td_host_product){.w = w, .out = out, .ldo = w->shape.n, .out_dtype = TD_DT_F32};
}

static void project_input(const job *j) {
    const td_sparse_desc *m = j->m;
    td_host_rows          x;
    td_host_rows_input(j->d, &x, j->d->scratch + j->b->at.x, m->in, m->in_i8, j->row0, j->rows, m->hidden);
    td_host_products(j->d, &x, (td_host_product[]){product(m->q_a, j->low), product(m->kv, j->kv)}, 2);
    if (!m->ratio) return;
    td_host_rows_input(j->d, &x, j->d->scratch + j->b->at.x, m->in, (td_rows_i8){0}, j->row0, j->rows, m->hidden);
    for (size_t i = 0; i < stream_count(m); i++) {
        const stream *st = &j->streams[i];
        td_host_products(
            j->d, &x, (td_host_product[]){product(st->c->kv, (float *)st->kv), product(st->c->gate, (float *)st->gate)}, 2);
    }
    if (m->index_heads) td_host_products(j->d, &x, (td_host_product[]){product(m->index_weights, j->weights)}, 1);
}

static void project_queries(job *j) {
    const td_sparse_desc *m = j->m;
    td_host_rows          low;
    td_host_for(j->d, low_item, j, j->rows, j->rows * m->q_lora);
    td_host_rows_init(&low, j->d->scratch + j->b->at.rows, j->low, TD_DT_F32, j->rows, m->q_lora);
    td_host_products(j->d, &low, (td_host_product[]){product(m->q_b, j->q)}, 1);
    if (m->index_heads) td_host_products(j->d, &low, (td_host_product[]){product(m->index_q, j->index_q)}, 1);
}

static void project_output(job *j) {
    const td_sparse_desc *m = j->m;
    const size_t          width = (size_t)m->groups * m->o_lora;
    td_host_rows          o;
    td_host_for(j->d, group_item, j, width / td_host_nr(j->d, m->o_a), j->rows * width * m->heads / m->groups * m->dim);
    td_host_rows_init(&o, j->d->scratch + j->b->at.sparse.rows_in, j->projected, TD_DT_F32, j->rows, width);
    td_host_products(j->d, &o,
                     &(td_host_product){.w = m->o_b,
                                        .out = (char *)m->out + td_host_act_bytes(j->d, j->row0 * m->hidden),
                                        .ldo = m->hidden,
                                        .out_dtype = j->d->act},
                     1);
}

static td_status run_sparse(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_sparse_desc   *m = &b->desc.sparse;
    const td_sparse_places *at = &b->at.sparse;
    const size_t            main_width = td_sparse_width(m, m->dim), index_width = td_sparse_width(m, m->index_dim);
#define FLOATS(offset) ((float *)(d->scratch + (offset)))
    job j = {.d = d,
             .b = b,
             .m = m,
             .s = s,
             .streams = {{.c = &m->rows,
                          .dim = m->dim,
                          .width = main_width,
                          .kv = FLOATS(at->main_kv),
                          .gate = FLOATS(at->main_gate),
                          .cache = m->compressed},
                         {.c = &m->index,
                          .dim = m->index_dim,
                          .width = index_width,
                          .kv = FLOATS(at->key_kv),
                          .gate = FLOATS(at->key_gate),
                          .state_at = (m->overlap ? 2 * m->ratio : 3) * (size_t)m->dim,
                          .open_at = 2 * BLOCK * main_width,
                          .cache = m->keys,
                          .index = true}},
             .low = FLOATS(at->low),
             .q = FLOATS(b->at.q),
             .kv = FLOATS(at->kv),
             .out = FLOATS(b->at.out),
             .index_q = FLOATS(at->index_q),
             .weights = FLOATS(at->weights),
             .projected = FLOATS(at->projected),
             .seq_of = (uint32_t *)(d->scratch + at->seq_of),
             .index = {.d = d,
                       .path = td_index_path_of(d),
                       .s = s,
                       .heads = m->index_heads,
                       .dim = m->index_dim,
                       .top = m->index_top,
                       .ratio = m->ratio,
                       .keys = m->keys,
                       .seq_of = (uint32_t *)(d->scratch + at->seq_of),
                       .q = FLOATS(at->index_q),
                       .weights = FLOATS(at->weights),
                       .queries = d->scratch + at->queries,
                       .scores = FLOATS(at->scores),
                       .ld_scores = at->ld_scores,
                       .chosen = (uint32_t *)(d->scratch + at->chosen),
                       .workers = d->scratch + at->index_workers}};
#undef FLOATS
    TD_TRY(td_host_check_attention_step(b, s, m->rope->shape.n));
    if (m->ratio) TD_TRY(td_host_check_states(s, m->state_slots, m->open_slots));
    for (j.row0 = 0; j.row0 < s->n_tok; j.row0 += j.rows) {
        j.rows = s->n_tok - j.row0 < b->at.chunk ? s->n_tok - j.row0 : b->at.chunk;
        j.index.row0 = j.row0;
        j.index.rows = j.rows;
        td_host_find_sequences(s, j.row0, j.rows, j.seq_of);
        project_input(&j);
        project_queries(&j);
        td_host_for(d, row_item, &j, j.rows, j.rows * m->heads * m->dim);
        compress(&j);
        if (m->index_heads) td_host_index_choose(&j.index);
        attend(&j);
        project_output(&j);
    }
    return TD_OK;
}

static void place_sparse(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_sparse_desc *m = &desc->sparse;
    const size_t          q = (size_t)m->heads * m->dim, index_q = (size_t)m->index_heads * m->index_dim,
                 width = m->ratio ? td_sparse_width(m, m->dim) : 0, index_width = td_sparse_width(m, m->index_dim),
                 low = (size_t)m->groups * m->o_lora, scores = index_q ? td_host_index_ld(desc->max_kv, m->ratio) : 0,
                 chosen = index_q ? m->index_top : 0,
                 queries = index_q ? td_index_path_of(d)->query_bytes(d, m->index_heads, m->index_dim) : 0,
                 chunk = td_host_chunk_rows(
                     desc->max_tok,
                     (2 * q + index_q + 2 * (width + index_width) + low + scores + chosen) * sizeof(float) + queries);
    td_sparse_places *at = &b->at.sparse;
    size_t            used = 0;
#define FLOATS(columns) td_host_place(&used, chunk *(columns) * sizeof(float))
    b->run = run_sparse;
    b->at.chunk = chunk;
    b->at.x = td_host_place(&used, td_host_rows_bytes(chunk, m->hidden, d->act));
    b->at.rows = td_host_place(&used, td_host_rows_bytes(chunk, m->q_lora, TD_DT_F32));
    at->rows_in = td_host_place(&used, td_host_rows_bytes(chunk, low, TD_DT_F32));
    at->low = FLOATS(m->q_lora);
    b->at.q = FLOATS(q);
    at->kv = FLOATS(m->dim);
    b->at.out = FLOATS(q);
    at->index_q = FLOATS(index_q);
    at->weights = FLOATS(m->index_heads);
    at->main_kv = FLOATS(width);
    at->main_gate = FLOATS(width);
    at->key_kv = FLOATS(index_width);
    at->key_gate = FLOATS(index_width);
    at->ld_scores = scores;
    at->queries = td_host_place(&used, chunk * queries);
    at->scores = FLOATS(scores);
    at->chosen = FLOATS(chosen);
    at->seq_of = FLOATS(1);
    at->projected = FLOATS(low);
#undef FLOATS
    b->at.per_worker = lay_workspace(desc, NULL, NULL);
    b->at.f32 = td_host_place(&used, b->at.per_worker * d->n_workers);
    at->index_workers =
        td_host_place(&used, index_q ? td_index_path_of(d)->bytes(d, m->index_heads, m->index_dim) * d->n_workers : 0);
    b->scratch_bytes = used;
}

static td_status check_sparse(td_host_npu *d, const td_block_desc *desc, td_error *err) {
    (void)d;
    return td_weight_takes_int8(desc->sparse.o_a->shape.format)
               ? td_fail(err, TD_EINVAL, "the weight o_a must be bf16 or f32")
               : TD_OK;
}

const td_host_block_kind td_host_sparse = {.place = place_sparse, .check = check_sparse};
