/* Attention over paged keys (see the header for the order of things). */
#include "npu/host/host_attention.h"

#include <math.h>

#include "core/error.h"
#include "quant/convert.h"

#define TILE       ((size_t)TD_ATTN_TILE)
#define PANEL      ((size_t)TD_ATTN_PANEL)
#define SPAN_TILES ((size_t)TD_HOST_SPAN / TD_ATTN_TILE)
#define Q_BLOCK    48   /* query rows of a product: scores and sums stay in L1 and L2 */
#define WALK_ROWS_GQA 64
#define WALK_ROWS_EXPANDED 8192 /* expanding a span costs as much as about 400 rows' attention to it */
#define WALK_ROWS_MIN 16
#define CHUNK_BYTES    ((size_t)256 << 20) /* of f32 rows between the parts of a block */
#define PARTIALS_BYTES ((size_t)64 << 20)  /* unless one row needs more */

_Static_assert(TD_ATTN_TILE == TD_KV_PAGE, "a tile is a page");

/* A worker's scratch. */
typedef struct {
    float      *kt;  /* [SPAN_TILES][TILE / PANEL][dk][PANEL] keys, transposed */
    float      *v;   /* [SPAN][dv] expanded values */
    float      *w_uk, *latent, *latent_t; /* expanded: [nope, kv_lora], [TILE, kv_lora], [TILE / PANEL][kv_lora][PANEL] */
    float      *q, *s, *acc; /* [Q_BLOCK][dk], [Q_BLOCK][TILE], [Q_BLOCK][dv] */
    td_softmax *span, *row;  /* [Q_BLOCK], [rows of a walk] */
    const void *values[SPAN_TILES];
    td_dtype    v_dtype;
    size_t      v_ld;
} workspace;

static size_t walk_rows_max(const td_attn_shape *s) {
    return s->form == TD_ATTN_EXPANDED ? WALK_ROWS_EXPANDED : WALK_ROWS_GQA * (s->heads / s->groups);
}

static size_t lay_workspace(const td_attn_shape *s, char *at, workspace *b) {
    td_host_plan p = {0};
    bool         expanded = s->form == TD_ATTN_EXPANDED;
    size_t       offset[10] = {
        td_host_take(&p, SPAN_TILES * s->dk * TILE * sizeof(float)),
        td_host_take(&p, expanded ? TD_HOST_SPAN * s->dv * sizeof(float) : 0),
        td_host_take(&p, expanded ? s->nope * s->kv_lora * sizeof(float) : 0),
        td_host_take(&p, expanded ? TILE * s->kv_lora * sizeof(float) : 0),
        td_host_take(&p, expanded ? TILE * s->kv_lora * sizeof(float) : 0),
        td_host_take(&p, Q_BLOCK * s->dk * sizeof(float)),
        td_host_take(&p, Q_BLOCK * TILE * sizeof(float)),
        td_host_take(&p, Q_BLOCK * s->dv * sizeof(float)),
        td_host_take(&p, Q_BLOCK * sizeof(td_softmax)),
        td_host_take(&p, walk_rows_max(s) * sizeof(td_softmax)),
    };
    if (b)
        *b = (workspace){
            .kt = (float *)(at + offset[0]), .v = (float *)(at + offset[1]), .w_uk = (float *)(at + offset[2]),
            .latent = (float *)(at + offset[3]), .latent_t = (float *)(at + offset[4]), .q = (float *)(at + offset[5]),
            .s = (float *)(at + offset[6]), .acc = (float *)(at + offset[7]), .span = (td_softmax *)(at + offset[8]),
            .row = (td_softmax *)(at + offset[9]),
        };
    return p.used;
}

/* Of one unit's spans. */
static size_t partial_bytes(const td_attn_shape *s, size_t n_spans) {
    return n_spans * s->heads * (s->dv * sizeof(float) + sizeof(td_softmax));
}

static uint32_t span_count(size_t n_keys) { return (uint32_t)((n_keys + TD_HOST_SPAN - 1) / TD_HOST_SPAN); }

/* ---- keys and values of a span --------------------------------------------------------------- */

static const char *cache_at(const td_attn *a, const void *cache, size_t element) {
    return (const char *)cache + element * td_dtype_bytes(a->d->act);
}

/* Keys and values of one head from the latents of a tile. */
static void expand_tile(const td_attn *a, workspace *b, size_t head, size_t tile, const char *latent, size_t n) {
    const td_attn_shape *s = &a->shape;
    const td_host_math  *m = a->d->math;
    bool                 f32 = a->kv_b->format == TD_WEIGHT_F32;
    const char *w_uv = (const char *)a->kv_b->data + (head * (s->nope + s->dv) + s->nope) * s->kv_lora * (f32 ? sizeof(float) : sizeof(td_bf16));
    td_to_f32(a->d->act, latent, n * s->kv_lora, b->latent);
    m->transpose(b->latent_t, s->kv_lora * PANEL, TD_DT_F32, b->latent, s->kv_lora, n, s->kv_lora);
    for (size_t p = 0; p * PANEL < n; p++)
        m->gemm(&(td_fgemm_args){
            .m = s->nope, .n = PANEL, .k = s->kv_lora, .a = b->w_uk, .lda = s->kv_lora, .b = b->latent_t + p * s->kv_lora * PANEL, .ldb = PANEL,
            .b_dtype = TD_DT_F32, .c = b->kt + (tile * TILE + p * PANEL) * s->dk, .ldc = PANEL,
        });
    m->gemm(&(td_fgemm_args){
        .m = n, .n = s->dv, .k = s->kv_lora, .a = b->latent, .lda = s->kv_lora,
        .b = w_uv, .ldb = s->dv, .b_dtype = f32 ? TD_DT_F32 : TD_DT_BF16, .c = b->v + tile * TILE * s->dv, .ldc = s->dv,
    });
}

/* The tile's page in a cache, as one group sees it. */
static const char *key_page(const td_attn *a, uint32_t seq, size_t group, size_t tile) {
    size_t page = a->step->host.block_table[(size_t)seq * a->step->block_stride + tile];
    size_t at = a->shape.form == TD_ATTN_GQA ? (page * a->shape.groups + group) * TILE * a->shape.dk : page * TILE * a->shape.kv_lora;
    return cache_at(a, a->k, at);
}

/* Make the keys [tile * TILE, end) of a sequence ready at place t of the span. */
static void load_tile(const td_attn *a, workspace *b, uint32_t seq, size_t group, size_t t, size_t tile, size_t end) {
    const td_attn_shape *s = &a->shape;
    const td_host_math  *m = a->d->math;
    td_dtype             act = a->d->act;
    size_t               n = end - tile * TILE < TILE ? end - tile * TILE : TILE;
    size_t               page = a->step->host.block_table[(size_t)seq * a->step->block_stride + tile];
    float               *kt = b->kt + t * s->dk * TILE;
    const char          *keys = key_page(a, seq, group, tile);
    b->v_dtype = act;
    b->v_ld = s->dv;
    if (s->form == TD_ATTN_GQA) {
        m->transpose(kt, s->dk * PANEL, act, keys, s->dk, n, s->dk);
        b->values[t] = cache_at(a, a->v, (page * s->groups + group) * TILE * s->dv);
        return;
    }
    if (s->form == TD_ATTN_EXPANDED) {
        expand_tile(a, b, group, t, keys, n);
        b->values[t] = b->v + t * TILE * s->dv;
        b->v_dtype = TD_DT_F32;
    } else {
        m->transpose(kt, s->dk * PANEL, act, keys, s->kv_lora, n, s->kv_lora);
        b->values[t] = keys;
    }
    m->transpose(kt + (s->dk - s->rope) * PANEL, s->dk * PANEL, act, cache_at(a, a->v, page * TILE * s->rope), s->rope, n, s->rope);
}

/* ---- a block of query rows ------------------------------------------------------------------- */

/*
 * The tile at place t of a span for nq rows, of which row i sees n_keys[i] keys in all. state and acc [nq][dv] are started by the span's
 * first tile and carried on by the others. ahead: the page that is needed next, or NULL.
 */
static void attend_tile(const td_attn *a, const workspace *b, size_t t, size_t tile, const float *q, size_t nq, const size_t *n_keys,
                        td_softmax *state, float *acc, const char *ahead) {
    const td_attn_shape *s = &a->shape;
    const td_host_math  *m = a->d->math;
    size_t               n[Q_BLOCK], n_max = 0;
    for (size_t i = 0; i < nq; i++) {
        n[i] = n_keys[i] <= tile * TILE ? 0 : n_keys[i] - tile * TILE < TILE ? n_keys[i] - tile * TILE : TILE;
        if (n[i] > n_max) n_max = n[i];
        if (t == 0) state[i] = (td_softmax){-INFINITY, 0};
    }
    if (n_max == 0) return;
    size_t      n_fill = td_round_up(n_max, 16);
    const char *values = s->form == TD_ATTN_GQA ? b->values[t] : NULL; /* the latent forms have read theirs */
    for (size_t p = 0; p < n_fill; p += PANEL)
        m->gemm(&(td_fgemm_args){
            .m = nq, .n = n_fill - p < PANEL ? n_fill - p : PANEL, .k = s->dk, .a = q, .lda = s->dk,
            .b = b->kt + (t * TILE + p) * s->dk, .ldb = PANEL, .b_dtype = TD_DT_F32, .c = b->s + p, .ldc = TILE,
            .ahead = values ? values + p / PANEL * s->dk * TD_CACHE_LINE : NULL,
        });
    for (size_t i = 0; i < nq; i++) {
        if (n[i] == 0) {
            memset(b->s + i * TILE, 0, n_fill * sizeof(float));
            continue;
        }
        float factor = m->softmax(&state[i], b->s + i * TILE, n[i], n_fill, s->scale);
        if (t && factor != 1) m->scale_add(acc + i * s->dv, factor, NULL, 0, s->dv);
    }
    m->gemm(&(td_fgemm_args){
        .m = nq, .n = s->dv, .k = n_max, .a = b->s, .lda = TILE,
        .b = b->values[t], .ldb = b->v_ld, .b_dtype = b->v_dtype, .accumulate = t > 0, .c = acc, .ldc = s->dv, .ahead = ahead,
    });
}

static void merge(const td_host_math *m, td_softmax *into, float *acc, const td_softmax *span, const float *span_acc, size_t dv) {
    float max = span->max > into->max ? span->max : into->max;
    float factor[2] = {into->max, span->max};
    m->exp_sum(factor, max, 2);
    m->scale_add(acc, factor[0], span_acc, factor[1], dv);
    *into = (td_softmax){max, into->sum * factor[0] + span->sum * factor[1]};
}

/* ---- walk ------------------------------------------------------------------------------------ */

typedef struct {
    const td_attn   *a;
    td_attn_segment *segments;
    size_t           n;
} walk_job;

static void walk_item(void *ctx, uint32_t item, const td_worker *w) {
    const walk_job      *job = ctx;
    const td_attn       *a = job->a;
    const td_attn_shape *s = &a->shape;
    const td_host_math  *m = a->d->math;
    size_t               i = job->n - 1;
    while (job->segments[i].first_item > item) i--;
    const td_attn_segment *seg = &job->segments[i];
    size_t blocks = (seg->n_rows + seg->block_rows - 1) / seg->block_rows, of_segment = item - seg->first_item;
    size_t group = of_segment / blocks, block = blocks - 1 - of_segment % blocks; /* the later rows see more keys: first */
    size_t row = seg->row + block * seg->block_rows, per_group = s->heads / s->groups;
    size_t rows = seg->row + seg->n_rows - row < seg->block_rows ? seg->row + seg->n_rows - row : seg->block_rows;
    const uint32_t *pos = a->step->host.pos + row;
    size_t          n_q = rows * per_group, end = (size_t)pos[rows - 1] + 1;
    workspace           b;
    lay_workspace(s, a->workers + w->index * lay_workspace(s, NULL, NULL), &b);

    if (s->form == TD_ATTN_EXPANDED) {
        bool   f32 = a->kv_b->format == TD_WEIGHT_F32;
        size_t at = group * (s->nope + s->dv) * s->kv_lora;
        td_to_f32(f32 ? TD_DT_F32 : TD_DT_BF16, (const char *)a->kv_b->data + at * (f32 ? sizeof(float) : sizeof(td_bf16)),
                  s->nope * s->kv_lora, b.w_uk);
    }
    for (size_t j = 0; j < n_q; j++) {
        float *out = a->out + ((row - a->row0 + j / per_group) * s->heads + group * per_group + j % per_group) * s->dv;
        b.row[j] = (td_softmax){-INFINITY, 0};
        memset(out, 0, s->dv * sizeof(float));
    }
    for (size_t span = 0; span < span_count(end); span++) {
        size_t first = span * SPAN_TILES, tiles = (end + TILE - 1) / TILE - first;
        if (tiles > SPAN_TILES) tiles = SPAN_TILES;
        for (size_t t = 0; t < tiles; t++) load_tile(a, &b, seg->seq, group, t, first + t, end);
        for (size_t j0 = 0; j0 < n_q; j0 += Q_BLOCK) {
            size_t nq = n_q - j0 < Q_BLOCK ? n_q - j0 : Q_BLOCK, n_keys[Q_BLOCK];
            for (size_t j = 0; j < nq; j++) {
                size_t r = (j0 + j) / per_group, h = group * per_group + (j0 + j) % per_group;
                n_keys[j] = (size_t)pos[r] + 1;
                memcpy(b.q + j * s->dk, a->q + ((row - a->row0 + r) * s->heads + h) * s->dk, s->dk * sizeof(float));
            }
            for (size_t t = 0; t < tiles; t++) attend_tile(a, &b, t, first + t, b.q, nq, n_keys, b.span, b.acc, NULL);
            for (size_t j = 0; j < nq; j++) {
                size_t r = (j0 + j) / per_group, h = group * per_group + (j0 + j) % per_group;
                if (n_keys[j] <= span * TD_HOST_SPAN) continue;
                merge(m, &b.row[j0 + j], a->out + ((row - a->row0 + r) * s->heads + h) * s->dv, &b.span[j], b.acc + j * s->dv, s->dv);
            }
        }
    }
    for (size_t j = 0; j < n_q; j++) {
        float *out = a->out + ((row - a->row0 + j / per_group) * s->heads + group * per_group + j % per_group) * s->dv;
        m->scale_add(out, 1.0f / b.row[j].sum, NULL, 0, s->dv);
    }
}

void td_host_attn_walk(const td_attn *a, td_attn_segment *segments, size_t n) {
    size_t rows = 0, most = a->shape.form == TD_ATTN_EXPANDED ? WALK_ROWS_EXPANDED : WALK_ROWS_GQA, items = 0;
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) rows += segments[i].n_rows;
    while (most > WALK_ROWS_MIN && rows / most * a->shape.groups < 4 * (size_t)a->d->n_workers &&
           (n * a->shape.groups < 2 * (size_t)a->d->n_workers || a->shape.form == TD_ATTN_GQA))
        most /= 2;
    for (size_t i = 0; i < n; i++) {
        segments[i].block_rows = most;
        segments[i].first_item = items;
        items += (segments[i].n_rows + most - 1) / most * a->shape.groups;
    }
    td_pool_run(a->d->pool, walk_item, &(walk_job){.a = a, .segments = segments, .n = n}, (uint32_t)items);
}

/* ---- split ----------------------------------------------------------------------------------- */

typedef struct {
    const td_attn *a;
    td_attn_unit  *units;
    size_t         n, splits; /* splits: of a group's heads, when there are fewer spans than workers */
} split_job;

/* The partials of a unit: the states of its spans [n_spans][heads], then their sums [n_spans][heads][dv]. */
static td_softmax *partial_state(const td_attn *a, const td_attn_unit *u, size_t span) {
    return (td_softmax *)(a->partials + partial_bytes(&a->shape, u->first_partial)) + span * a->shape.heads;
}

static float *partial_acc(const td_attn *a, const td_attn_unit *u, size_t span) {
    return (float *)partial_state(a, u, u->n_spans) + span * a->shape.heads * a->shape.dv;
}

static void split_item(void *ctx, uint32_t item, const td_worker *w) {
    const split_job     *job = ctx;
    const td_attn       *a = job->a;
    const td_attn_shape *s = &a->shape;
    size_t               lo = 0, hi = job->n - 1;
    while (lo < hi) {
        size_t mid = (lo + hi + 1) / 2;
        if (job->units[mid].first_item <= item)
            lo = mid;
        else
            hi = mid - 1;
    }
    const td_attn_unit *u = &job->units[lo];
    size_t of_unit = item - u->first_item, span = of_unit / (s->groups * job->splits), of_span = of_unit % (s->groups * job->splits);
    size_t group = of_span / job->splits, per_group = s->heads / s->groups, per_item = (per_group + job->splits - 1) / job->splits;
    size_t head = group * per_group + of_span % job->splits * per_item, head_end = head + per_item;
    if (head_end > (group + 1) * per_group) head_end = (group + 1) * per_group;
    size_t keys = (size_t)a->step->host.pos[u->row] + 1, n_keys[Q_BLOCK];
    size_t first = span * SPAN_TILES, tiles = (keys + TILE - 1) / TILE - first;
    workspace b;
    lay_workspace(s, a->workers + w->index * lay_workspace(s, NULL, NULL), &b);
    if (tiles > SPAN_TILES) tiles = SPAN_TILES;
    for (size_t i = 0; i < Q_BLOCK; i++) n_keys[i] = keys;
    for (size_t t = 0; t < tiles; t++) {
        load_tile(a, &b, u->seq, group, t, first + t, keys);
        for (size_t h = head; h < head_end; h += Q_BLOCK) {
            size_t nq = head_end - h < Q_BLOCK ? head_end - h : Q_BLOCK;
            attend_tile(a, &b, t, first + t, a->q + ((size_t)u->q_row * s->heads + h) * s->dk, nq, n_keys, partial_state(a, u, span) + h,
                        partial_acc(a, u, span) + h * s->dv, t + 1 < tiles ? key_page(a, u->seq, group, first + t + 1) : NULL);
        }
    }
}

void td_host_attn_split(const td_attn *a, td_attn_unit *units, size_t n) {
    size_t spans = 0, items = 0, per_group = a->shape.heads / a->shape.groups, splits = 1;
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) {
        units[i].first_partial = spans;
        spans += units[i].n_spans;
    }
    while (spans * a->shape.groups * splits < 2 * (size_t)a->d->n_workers && per_group / (splits * 2) >= 8) splits *= 2;
    for (size_t i = 0; i < n; i++) {
        units[i].first_item = items;
        items += units[i].n_spans * a->shape.groups * splits;
    }
    td_pool_run(a->d->pool, split_item, &(split_job){.a = a, .units = units, .n = n, .splits = splits}, (uint32_t)items);
}

void td_host_attn_merge(const td_attn *a, const td_attn_unit *u, size_t head) {
    const td_attn_shape *s = &a->shape;
    float               *out = a->out + ((size_t)u->q_row * s->heads + head) * s->dv;
    td_softmax           row = {-INFINITY, 0};
    memset(out, 0, s->dv * sizeof(float));
    for (size_t span = 0; span < u->n_spans; span++)
        merge(a->d->math, &row, out, partial_state(a, u, span) + head, partial_acc(a, u, span) + head * s->dv, s->dv);
    a->d->math->scale_add(out, 1.0f / row.sum, NULL, 0, s->dv);
}

/* ---- planning and sorting -------------------------------------------------------------------- */

size_t td_host_chunk_rows(size_t max_tok, size_t row_bytes) {
    size_t rows = CHUNK_BYTES / row_bytes;
    if (rows < 64) rows = 64;
    return rows < max_tok ? rows : max_tok;
}

void td_host_attn_plan(const td_host_npu *d, td_host_plan *p, const td_attn_shape *walk, const td_attn_shape *split, size_t chunk,
                       size_t max_kv, size_t units_max, td_attn_places *at) {
    size_t worker = lay_workspace(walk, NULL, NULL), of_split = lay_workspace(split, NULL, NULL);
    size_t row_spans = span_count(max_kv), affordable = PARTIALS_BYTES / partial_bytes(split, 1);
    if (worker < of_split) worker = of_split;
    at->units_max = units_max;
    at->spans_max = units_max * row_spans < affordable ? units_max * row_spans : affordable;
    if (at->spans_max < row_spans) at->spans_max = row_spans;
    at->segments = td_host_take(p, chunk * sizeof(td_attn_segment));
    at->units = td_host_take(p, units_max * sizeof(td_attn_unit));
    at->workers = td_host_take(p, d->n_workers * worker);
    at->partials = td_host_take(p, partial_bytes(split, at->spans_max));
}

size_t td_host_attn_sort(td_host_npu *d, const td_attn_places *at, const td_step *step, size_t row0, size_t rows, td_attn_choice by_spans,
                         td_attn_flush flush, void *ctx) {
    const td_step_arrays *s = &step->host;
    td_attn_segment      *segments = (td_attn_segment *)(d->scratch + at->segments);
    td_attn_unit         *units = (td_attn_unit *)(d->scratch + at->units);
    size_t                n_segments = 0, n_units = 0, spans = 0;
    for (uint32_t q = 0; q < step->n_seq; q++) {
        size_t first = s->seq_start[q] > row0 ? s->seq_start[q] : row0, last = s->seq_start[q + 1] < row0 + rows ? s->seq_start[q + 1] : row0 + rows;
        if (first >= last) continue;
        if (!by_spans(step, q, last - first)) {
            segments[n_segments++] = (td_attn_segment){.seq = q, .row = (uint32_t)first, .n_rows = (uint32_t)(last - first)};
            continue;
        }
        for (size_t row = first; row < last; row++) {
            td_attn_unit u = {.row = (uint32_t)row, .seq = q, .q_row = (uint32_t)(row - row0), .n_spans = span_count((size_t)s->pos[row] + 1)};
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

td_status td_host_need_max_kv(const td_block_desc *desc, td_error *err) {
    if (desc->max_kv == 0 || desc->max_kv > TD_HOST_KV_MAX)
        return td_fail(err, TD_EINVAL, "attention takes 1 to %zu keys, not %u", TD_HOST_KV_MAX, desc->max_kv);
    return TD_OK;
}

td_status td_host_need_table(const td_npu_weight *w, size_t dim, td_error *err) {
    if (!w || w->format != TD_WEIGHT_F32 || w->layout != TD_HOST_ROWS || w->k != dim)
        return td_fail(err, TD_EINVAL, "the rope table must be f32 with rows of %zu", dim);
    return TD_OK;
}

td_status td_host_check_attention_step(const td_npu_block *b, const td_step *s, size_t max_pos) {
    const td_step_arrays *a = &s->host;
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
