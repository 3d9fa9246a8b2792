/* Attention over paged keys (see the header for the order of things). */
#include "npu/host/host_attention.h"

#include <math.h>

#include "core/error.h"

#define TILE ((size_t)TD_ATTN_TILE)
#define SPAN_TILES ((size_t)TD_HOST_SPAN / TD_ATTN_TILE)
#define WALK_ROWS_GQA 64
#define WALK_ROWS_EXPANDED 8192 /* expanding a span costs as much as about 400 rows' attention to it */
#define WALK_ROWS_SHARED 2048   /* so a block of that many is a fifth slower, and is not cut further for a part's sake */
#define WALK_ROWS_MIN 16
#define WALK_BYTES ((size_t)256 << 20)    /* of all workers' expanded rows: queries, states and sums */
#define CHUNK_BYTES ((size_t)256 << 20)   /* of f32 rows between the parts of a block */
#define PARTIALS_BYTES ((size_t)64 << 20) /* unless one row needs more */

_Static_assert(TD_ATTN_TILE == TD_KV_PAGE && TD_ATTN16_KEYS == TD_ATTN_TILE, "a tile is a page");

/* Query rows that a worker has ready from its last item of a split. */
typedef struct {
    const td_attn_unit *unit; /* NULL: none */
    size_t              head;
} held_rows;

/* A worker's scratch. */
typedef struct {
    held_rows  *held;
    float      *acc, *span_acc; /* sums: [query rows of a walk][ld]; of one span, [TD_HOST_ATTN_ROWS][ld] */
    td_softmax *row, *span;     /* their states */
    void       *path;
} workspace;

/* Rows of the step that go through a walk together. */
static size_t walk_rows_max(const td_host_npu *d, const td_attn_shape *s) {
    if (s->form != TD_ATTN_EXPANDED) return WALK_ROWS_GQA;
    size_t affordable = WALK_BYTES / d->n_workers / ((s->dk + td_attn_ld(s)) * sizeof(float)), rows = WALK_ROWS_EXPANDED;
    while (rows > WALK_ROWS_MIN && rows > affordable) rows /= 2;
    return rows;
}

/* Query rows that are kept ready: all of a walk, or all heads of a group. */
static size_t q_rows_max(const td_host_npu *d, const td_attn_shape *s) {
    return td_round_up((s->form == TD_ATTN_ABSORBED ? 1 : walk_rows_max(d, s)) * (s->heads / s->groups), s->path->rows);
}

static size_t lay_workspace(const td_host_npu *d, const td_attn_shape *s, char *at, workspace *b) {
    size_t used = 0;
    size_t rows = q_rows_max(d, s),
           offset[6] = {
               td_host_place(&used, sizeof(held_rows)), /* on a line of its own: the caller clears it */
               td_host_place(&used, rows * td_attn_ld(s) * sizeof(float)),
               td_host_place(&used, TD_HOST_ATTN_ROWS * td_attn_ld(s) * sizeof(float)),
               td_host_place(&used, rows * sizeof(td_softmax)),
               td_host_place(&used, TD_HOST_ATTN_ROWS * sizeof(td_softmax)),
               td_host_place(&used, s->path->bytes(d, s, rows)),
           };
    if (b)
        *b = (workspace){.held = (held_rows *)(at + offset[0]),
                         .acc = (float *)(at + offset[1]),
                         .span_acc = (float *)(at + offset[2]),
                         .row = (td_softmax *)(at + offset[3]),
                         .span = (td_softmax *)(at + offset[4]),
                         .path = at + offset[5]};
    return used;
}

static workspace workspace_of(const td_attn *a, size_t worker) {
    workspace b;
    lay_workspace(a->d, &a->shape, a->workers + worker * lay_workspace(a->d, &a->shape, NULL, NULL), &b);
    return b;
}

/* Of one unit's spans. */
static size_t partial_bytes(const td_attn_shape *s, size_t n_spans) {
    return n_spans * s->heads * (td_attn_ld(s) * sizeof(float) + sizeof(td_softmax));
}

static uint32_t span_count(size_t n_keys) {
    return (uint32_t)((n_keys + TD_HOST_SPAN - 1) / TD_HOST_SPAN);
}

/* The first span of a row whose own key is the last of so many. */
static uint32_t first_span(const td_attn_shape *s, size_t n_keys) {
    return (uint32_t)(td_attn_first_key(s, n_keys) / TD_HOST_SPAN);
}

/* The tile of a span that a row with so many keys begins at, counted from the span's first. */
static size_t first_tile(const td_attn_shape *s, size_t n_keys, size_t span) {
    size_t first = td_attn_first_key(s, n_keys);
    return first > span * TD_HOST_SPAN ? (first - span * TD_HOST_SPAN) / TILE : 0;
}

/* ---- spans ----------------------------------------------------------------------------------- */

static void start(td_softmax *state, size_t n) {
    for (size_t i = 0; i < n; i++) state[i] = (td_softmax){-INFINITY, 0};
}

static void merge(const td_attn *a, td_softmax *into, float *acc, const td_softmax *span, const float *span_acc) {
    const td_float_math *m = a->d->kernels->math;
    size_t               dv = a->shape.dv;
    float                max = span->max > into->max ? span->max : into->max;
    float                factor[2] = {(into->max - max) * a->shape.path->unit, (span->max - max) * a->shape.path->unit};
    m->exp_sum(factor, 0, 2);
    m->scale_add(acc, factor[0], span_acc, factor[1], dv);
    *into = (td_softmax){max, into->sum * factor[0] + span->sum * factor[1]};
}

/* out [dv], the row's sums of values, becomes their mean: the sink weighs as a key does, and has no value. */
static void finish(const td_attn *a, size_t head, td_softmax row, float *out) {
    float scale = 1.0f / row.sum;
    if (a->sinks) {
        float sink = a->sinks[head] / a->shape.path->unit, max = sink > row.max ? sink : row.max;
        float factor[2] = {(row.max - max) * a->shape.path->unit, (sink - max) * a->shape.path->unit};
        a->d->kernels->math->exp_sum(factor, 0, 2);
        scale = factor[0] / (row.sum * factor[0] + factor[1]);
    }
    a->d->kernels->math->scale_add(out, scale, NULL, 0, a->shape.dv);
    if (a->shape.path->rotate_back) a->shape.path->rotate_back(a, out);
}

/* ---- walk ------------------------------------------------------------------------------------ */

typedef struct {
    const td_attn   *a;
    td_attn_segment *segments;
    size_t           n, first_item;
} walk_job;

static void walk_item(void *ctx, uint32_t i_of_share, const td_worker *w) {
    const walk_job      *job = ctx;
    const td_attn       *a = job->a;
    const td_attn_shape *s = &a->shape;
    size_t               i = job->n - 1, item = job->first_item + i_of_share;
    while (job->segments[i].first_item > item) i--;
    const td_attn_segment *seg = &job->segments[i];
    size_t blocks = (seg->n_rows + seg->block_rows - 1) / seg->block_rows, of_segment = item - seg->first_item;
    size_t group = of_segment / blocks, block = blocks - 1 - of_segment % blocks; /* the later rows see more keys: first */
    size_t row = seg->row + block * seg->block_rows, per_group = s->heads / s->groups;
    size_t rows = seg->row + seg->n_rows - row < seg->block_rows ? seg->row + seg->n_rows - row : seg->block_rows;
    const uint32_t *pos = a->step->a.pos + row;
    size_t          n_q = rows * per_group, end = (size_t)pos[rows - 1] + 1, span0 = first_span(s, (size_t)pos[0] + 1);
    workspace       b = workspace_of(a, w->index);
    size_t          ld = td_attn_ld(s), at_once = a->shape.path->rows;

    a->shape.path->open(a, b.path, group);
    for (size_t j0 = 0; j0 < n_q; j0 += at_once) {
        const float *q[TD_HOST_ATTN_ROWS];
        size_t       nq = n_q - j0 < at_once ? n_q - j0 : at_once;
        for (size_t j = 0; j < nq; j++)
            q[j] = a->q +
                   ((row - a->row0 + (j0 + j) / per_group) * s->heads + group * per_group + (j0 + j) % per_group) * s->dk;
        a->shape.path->take(a, b.path, j0, q, nq);
    }
    start(b.row, n_q);
    for (size_t span = span0; span < span_count(end); span++) {
        size_t       tiles = (end + TILE - 1) / TILE - span * SPAN_TILES;
        td_attn_tile tile[SPAN_TILES];
        bool         apart = span > span0 && s->form == TD_ATTN_GQA;
        if (tiles > SPAN_TILES) tiles = SPAN_TILES;
        for (size_t t = first_tile(s, (size_t)pos[0] + 1, span); t < tiles; t++) {
            tile[t] = (td_attn_tile){.seq = seg->seq,
                                     .group = group,
                                     .place = t,
                                     .tile = span * SPAN_TILES + t,
                                     .end = end,
                                     .often = n_q > at_once};
            a->shape.path->load(a, b.path, &tile[t]);
        }
        for (size_t j0 = 0, nq; j0 < n_q; j0 += nq) {
            size_t n_keys[TD_HOST_ATTN_ROWS];
            nq = n_q - j0 < at_once ? n_q - j0 : at_once;
            for (size_t j = 0; j < nq; j++) n_keys[j] = (size_t)pos[(j0 + j) / per_group] + 1;
            if (n_keys[nq - 1] <= span * TD_HOST_SPAN || first_span(s, n_keys[0]) > span) continue; /* all outside it */
            td_softmax  *state = apart ? b.span : b.row + j0;
            float       *acc = apart ? b.span_acc : b.acc + j0 * ld;
            const size_t tile0 = first_tile(s, n_keys[0], span);
            if (apart) start(state, nq);
            for (size_t t = tile0; t < tiles; t++) {
                tile[t].first = t == tile0 && (span == span0 || apart);
                a->shape.path->attend(a, b.path, &tile[t], j0, nq, n_keys, state, acc, NULL);
            }
            for (size_t j = 0; apart && j < nq; j++) {
                const uint32_t begin = first_span(s, n_keys[j]);
                if (n_keys[j] <= span * TD_HOST_SPAN || begin > span) continue;
                if (begin == span) {
                    b.row[j0 + j] = b.span[j];
                    memcpy(b.acc + (j0 + j) * ld, b.span_acc + j * ld, ld * sizeof(float));
                } else {
                    merge(a, &b.row[j0 + j], b.acc + (j0 + j) * ld, &b.span[j], b.span_acc + j * ld);
                }
            }
        }
    }
    for (size_t j = 0; j < n_q; j++) {
        float *out = a->out + ((row - a->row0 + j / per_group) * s->heads + group * per_group + j % per_group) * s->dv;
        memcpy(out, b.acc + j * ld, s->dv * sizeof(float));
        finish(a, group * per_group + j % per_group, b.row[j], out);
    }
}

/* So many turns an item for each worker: heads' blocks of so many rows. */
static size_t turns_of(const td_host_npu *d, size_t items) {
    return (items + d->n_workers - 1) / d->n_workers;
}

/* How many rows of n segments go through a walk together. Fewer where all are shared out in more shares than there are turns:
 * an expanded head's keys are expanded for each block. */
static size_t block_rows_of(const td_host_npu *d, const td_attn_shape *s, size_t rows, size_t n, size_t shares) {
    size_t most = walk_rows_max(d, s);
    while (most > WALK_ROWS_MIN && rows / most * s->groups < 4 * (size_t)d->n_workers &&
           (n * s->groups < 2 * (size_t)d->n_workers || s->form == TD_ATTN_GQA))
        most /= 2;
    const size_t block = rows < most ? rows : most, turns = turns_of(d, (rows + most - 1) / most * s->groups);
    const size_t affordable = block / WALK_ROWS_SHARED, cuts = shares / turns < affordable ? shares / turns : affordable;
    return cuts > 1 ? td_round_up((block + cuts - 1) / cuts, s->path->rows) : most;
}

void td_host_attn_walk(const td_attn *a, td_attn_segment *segments, size_t n, const td_attn_share *share) {
    size_t rows = 0, items = 0;
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) rows += segments[i].n_rows;
    const size_t most = block_rows_of(a->d, &a->shape, rows, n, share->n > 2 ? share->n - 2 : share->n);
    for (size_t i = 0; i < n; i++) {
        segments[i].block_rows = most;
        segments[i].first_item = items;
        items += (segments[i].n_rows + most - 1) / most * a->shape.groups;
    }
    const size_t workers = a->d->n_workers, turns = turns_of(a->d, items),
                 begin = td_attn_share_begin(share, share->i, turns) * workers,
                 next = td_attn_share_begin(share, share->i + 1, turns) * workers, end = next < items ? next : items;
    if (begin < end)
        td_pool_run(a->d->pool, walk_item, &(walk_job){.a = a, .segments = segments, .n = n, .first_item = begin},
                    (uint32_t)(end - begin));
}

/* ---- split ----------------------------------------------------------------------------------- */

typedef struct {
    const td_attn *a;
    td_attn_unit  *units;
    size_t         n, splits; /* splits: of a group's heads, when there are fewer spans than workers */
    uint32_t       items;
} split_job;

/* An item: some heads of a group, in one of a unit's spans. */
typedef struct {
    const td_attn_unit *unit;
    size_t              span /* counted from the unit's first */, group, head, head_end, tiles;
    td_attn_tile        first; /* of the tiles */
} split_place;

static split_place place_of(const split_job *job, uint32_t item) {
    const td_attn_shape *s = &job->a->shape;
    size_t lo = 0, hi = job->n - 1, per_group = s->heads / s->groups, per_item = (per_group + job->splits - 1) / job->splits;
    while (lo < hi) {
        size_t mid = (lo + hi + 1) / 2;
        if (job->units[mid].first_item <= item)
            lo = mid;
        else
            hi = mid - 1;
    }
    const td_attn_unit *u = &job->units[lo];
    size_t              of_unit = item - u->first_item, of_span = of_unit % (s->groups * job->splits), keys = u->n_keys;
    split_place         p = {.unit = u, .span = of_unit / (s->groups * job->splits), .group = of_span / job->splits};
    size_t              end = (p.group + 1) * per_group, head = p.group * per_group + of_span % job->splits * per_item;
    p.head = head < end ? head : end;
    p.head_end = p.head + per_item < end ? p.head + per_item : end;
    size_t span = u->first_span + p.span, skip = first_tile(s, keys, span);
    p.tiles = (keys + TILE - 1) / TILE - span * SPAN_TILES;
    p.tiles = (p.tiles > SPAN_TILES ? SPAN_TILES : p.tiles) - skip;
    p.first = (td_attn_tile){
        .seq = u->seq, .group = p.group, .tile = span * SPAN_TILES + skip, .end = keys, .first = true, .once = true};
    return p;
}

/* The partials of a unit: the states of its spans [n_spans][heads], then their sums [n_spans][heads][dv]. */
static td_softmax *partial_state(const td_attn *a, const td_attn_unit *u, size_t span) {
    return (td_softmax *)(a->partials + partial_bytes(&a->shape, u->first_partial)) + span * a->shape.heads;
}

static float *partial_acc(const td_attn *a, const td_attn_unit *u, size_t span) {
    return (float *)partial_state(a, u, u->n_spans) + span * a->shape.heads * td_attn_ld(&a->shape);
}

static void split_item(void *ctx, uint32_t item, const td_worker *w) {
    const split_job  *job = ctx;
    const td_attn    *a = job->a;
    const size_t      block = a->shape.path->rows;
    const split_place p = place_of(job, item), after = place_of(job, item + 1 < job->items ? item + 1 : item);
    const bool same = after.unit == p.unit && after.span == p.span && after.group == p.group; /* it needs the same tiles */
    const workspace b = workspace_of(a, w->index);
    td_softmax     *state = partial_state(a, p.unit, p.span);
    float          *acc = partial_acc(a, p.unit, p.span);
    size_t          n_keys[TD_HOST_ATTN_ROWS];
    for (size_t i = 0; i < block; i++) n_keys[i] = p.first.end;
    a->shape.path->open(a, b.path, p.group);
    for (size_t h = p.head; h < p.head_end && (b.held->unit != p.unit || b.held->head != p.head); h += block) {
        const float *q[TD_HOST_ATTN_ROWS];
        size_t       nq = p.head_end - h < block ? p.head_end - h : block;
        for (size_t i = 0; i < nq; i++) q[i] = a->q + ((size_t)p.unit->q_row * a->shape.heads + h + i) * a->shape.dk;
        a->shape.path->take(a, b.path, h - p.head, q, nq);
    }
    *b.held = (held_rows){p.unit, p.head};
    start(state + p.head, p.head_end - p.head);
    td_attn_tile tile = p.first, next = p.first;
    for (size_t t = 0; t < p.tiles; t++, tile = next) {
        const bool last = t + 1 == p.tiles;
        next = last ? after.first
                    : (td_attn_tile){.seq = tile.seq,
                                     .group = tile.group,
                                     .place = t + 1,
                                     .tile = tile.tile + 1,
                                     .end = tile.end,
                                     .once = true};
        a->shape.path->load(a, b.path, &tile);
        for (size_t h = p.head; h < p.head_end; h += block)
            a->shape.path->attend(a, b.path, &tile, h - p.head, p.head_end - h < block ? p.head_end - h : block, n_keys,
                                  state + h, acc + h * td_attn_ld(&a->shape), h > p.head || (last && same) ? NULL : &next);
    }
}

void td_host_attn_split(const td_attn *a, td_attn_unit *units, size_t n) {
    size_t spans = 0, items = 0, per_group = a->shape.heads / a->shape.groups, splits = 1;
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) {
        units[i].first_partial = spans;
        spans += units[i].n_spans;
    }
    while (spans * a->shape.groups * splits < a->d->n_workers && per_group / (splits * 2) >= 8) splits *= 2;
    for (size_t i = 0; i < n; i++) {
        units[i].first_item = items;
        items += units[i].n_spans * a->shape.groups * splits;
    }
    for (size_t i = 0; i < a->d->n_workers; i++) workspace_of(a, i).held->unit = NULL;
    td_pool_run(a->d->pool, split_item,
                &(split_job){.a = a, .units = units, .n = n, .splits = splits, .items = (uint32_t)items}, (uint32_t)items);
}

void td_host_attn_merge(const td_attn *a, const td_attn_unit *u, size_t head) {
    const td_attn_shape *s = &a->shape;
    float               *out = a->out + ((size_t)u->q_row * s->heads + head) * s->dv;
    td_softmax           row = partial_state(a, u, 0)[head];
    memcpy(out, partial_acc(a, u, 0) + head * td_attn_ld(s), s->dv * sizeof(float));
    for (size_t span = 1; span < u->n_spans; span++)
        merge(a, &row, out, partial_state(a, u, span) + head, partial_acc(a, u, span) + head * td_attn_ld(s));
    finish(a, head, row, out);
}

/* ---- shares, places and sorting -------------------------------------------------------------- */

bool td_host_attn_share_of(const td_block_part *part, size_t n_tok, size_t chunk, uint32_t k, td_attn_share *out) {
    const size_t chunks = (n_tok + chunk - 1) / chunk, of_chunk = chunks && part->n > chunks ? part->n / chunks : 1,
                 all = chunks * of_chunk, at = all * part->i / part->n + k;
    if (at >= all * (part->i + 1) / part->n) return false;
    const size_t row = at / of_chunk * chunk;
    *out = (td_attn_share){.row = row,
                           .rows = n_tok - row < chunk ? n_tok - row : chunk,
                           .i = (uint32_t)(at % of_chunk),
                           .n = (uint32_t)of_chunk};
    return true;
}

size_t td_host_attn_parts(const td_host_npu *d, const td_attn_shape *walk, size_t n_tok, size_t chunk,
                          td_parts_wanted wanted) {
    const size_t chunks = (n_tok + chunk - 1) / chunk, of_chunk = wanted.n / chunks, rows = n_tok < chunk ? n_tok : chunk;
    if (of_chunk <= 2) return wanted.n < 2 * chunks ? wanted.n : 2 * chunks;
    const size_t block = block_rows_of(d, walk, rows, 1, wanted.at_a_cost ? of_chunk - 2 : 1),
                 turns = turns_of(d, (rows + block - 1) / block * walk->groups);
    return chunks * (2 + (turns < of_chunk - 2 ? turns : of_chunk - 2));
}

size_t td_host_chunk_rows(size_t max_tok, size_t row_bytes) {
    size_t rows = CHUNK_BYTES / row_bytes;
    if (rows < 64) rows = 64;
    return rows < max_tok ? rows : max_tok;
}

void td_host_attn_place(const td_host_npu *d, size_t *used, const td_attn_shape *walk, const td_attn_shape *split,
                        size_t chunk, size_t max_kv, size_t units_max, td_attn_places *at) {
    size_t worker = lay_workspace(d, walk, NULL, NULL), of_split = lay_workspace(d, split, NULL, NULL);
    size_t row_spans = span_count(max_kv), affordable = PARTIALS_BYTES / partial_bytes(split, 1);
    if (split->window && span_count(split->window) + 1 < row_spans) row_spans = span_count(split->window) + 1;
    if (worker < of_split) worker = of_split;
    at->units_max = units_max;
    at->spans_max = units_max * row_spans < affordable ? units_max * row_spans : affordable;
    if (at->spans_max < row_spans) at->spans_max = row_spans;
    at->segments = td_host_place(used, chunk * sizeof(td_attn_segment));
    at->units = td_host_place(used, units_max * sizeof(td_attn_unit));
    at->workers = td_host_place(used, d->n_workers * worker);
    at->partials = td_host_place(used, partial_bytes(split, at->spans_max));
}

size_t td_host_attn_sort(td_host_npu *d, const td_attn_places *at, const td_attn_shape *shape, const td_host_step *step,
                         const td_attn_share *share, td_attn_choice by_spans, td_attn_flush flush, void *ctx) {
    const size_t          row0 = share->row, rows = share->rows;
    const td_step_arrays *s = &step->a;
    td_attn_segment      *segments = (td_attn_segment *)(d->scratch + at->segments);
    td_attn_unit         *units = (td_attn_unit *)(d->scratch + at->units);
    size_t                n_segments = 0, n_units = 0, spans = 0;
    for (uint32_t q = 0; q < step->n_seq; q++) {
        size_t first = s->seq_start[q] > row0 ? s->seq_start[q] : row0,
               last = s->seq_start[q + 1] < row0 + rows ? s->seq_start[q + 1] : row0 + rows;
        if (first >= last) continue;
        if (shape->chosen && first + shape->chosen < last + s->pos[first])
            last = s->pos[first] < shape->chosen ? first + shape->chosen - s->pos[first] : first;
        if (first == last) continue;
        if (!by_spans(step, q, last - first)) {
            segments[n_segments++] = (td_attn_segment){.seq = q, .row = (uint32_t)first, .n_rows = (uint32_t)(last - first)};
            continue;
        }
        for (size_t row = first; share->i == 0 && row < last; row++) {
            const size_t keys = (size_t)s->pos[row] + 1;
            td_attn_unit u = {.row = (uint32_t)row,
                              .seq = q,
                              .q_row = (uint32_t)(row - row0),
                              .n_keys = keys,
                              .first_span = first_span(shape, keys),
                              .n_spans = span_count(keys) - first_span(shape, keys)};
            if (n_units == at->units_max || spans + u.n_spans > at->spans_max) {
                flush(ctx, units, n_units);
                n_units = spans = 0;
            }
            spans += u.n_spans;
            units[n_units++] = u;
        }
    }
    if (n_units) flush(ctx, units, n_units);
    return n_segments;
}

/* ---- checks ---------------------------------------------------------------------------------- */

td_status td_host_check_attention_step(const td_npu_block *b, const td_host_step *s, size_t max_pos) {
    const td_step_arrays *a = &s->a;
    if (s->n_tok == 0) return TD_OK;
    if (a->seq_start[0] != 0 || a->seq_start[s->n_seq] != s->n_tok) return TD_EINVAL;
    for (uint32_t q = 0; q < s->n_seq; q++) {
        uint32_t first = a->seq_start[q], last = a->seq_start[q + 1], keys = a->kv_len[q];
        if (last < first || last > s->n_tok || keys > b->desc.max_kv || keys < last - first || keys > max_pos ||
            keys > (size_t)s->block_stride * TD_KV_PAGE)
            return TD_EINVAL;
        for (uint32_t row = first; row < last; row++)
            if (a->pos[row] != keys - (last - row)) return TD_EINVAL;
    }
    return TD_OK;
}
