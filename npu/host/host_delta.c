/*
 * Gated DeltaNet (td_delta_desc): projections, the convolution, rows of blocks, states, output projection.
 *
 * DESIGN. Projections are for all rows of a chunk. The rest goes by strips, some blocks of rows that stay in the caches from
 * pass to pass. A strip has parts, one a sequence, and a part has pieces: its rows of one block of TD_STATE_BLOCK positions.
 * Three passes, each an item list for the pool:
 *   prepare  piece x key head: q, k and v by the convolution, gates, the products of k and q with the block's k;
 *   recur    part x value head x panels of columns of values, pieces in order: v' and o, and the state where a block ends.
 *            Columns of v', o and S do not meet, so few heads make many items;
 *   finish   piece x key head: the norm of o; the last block's rows go to the open slot.
 * Only recur goes from block to block. It writes v' where the open slot has them, from block to block in the same place;
 * what else is in the slots is read by prepare and recur, and written by finish. Parts of one open slot go through the
 * passes in waves, one after the other.
 */
#include <math.h>

#include "core/error.h"
#include "npu/host/host_attention.h"

#define BLOCK ((size_t)TD_STATE_BLOCK)
#define UNIT_EPS 1e-6f
#define FEW_ROWS 2                    /* generated tokens, with a draft: nothing takes longer than reading S */
#define STRIP_BLOCKS 2                /* of a strip at least */
#define STRIP_WORKERS_PER_BLOCK 8     /* so that a strip has some items for each */
#define PANEL ((size_t)TD_ATTN_PANEL) /* keys of a block, and columns of values, that lie side by side */

typedef struct {
    td_host_part of; /* rows of the strip */
    uint32_t     first_piece, n_pieces;
} delta_part;

typedef struct {
    uint32_t part, row, n, pos;
} delta_piece;

typedef struct {
    td_host_npu         *d;
    const td_npu_block  *b;
    const td_delta_desc *m;
    size_t               r, conv, ld_head; /* value heads of a key head; its rows of the convolution, and of qkv */
    const delta_part    *parts;
    const delta_piece   *pieces;
    size_t               panels;                  /* of values in an item of recur */
    float               *qkv, *z, *b_out, *a_out; /* rows of the strip in the chunk's, as `out` */
    size_t               ld_gate, head_gate;      /* of b_out and a_out: a row, a key head */
    size_t               strip;                   /* rows that the arrays have place for */
    float               *qk;                      /* [key_heads][strip][q | k] */
    float               *v;                       /* [key_heads][strip][r][value_dim] */
    float               *met;                     /* [key_heads][strip][q.k | k.k of the block's rows] */
    float               *sum, *beta;              /* [key_heads][strip][r] */
    float               *out;                     /* [rows][value_heads][value_dim] */
} delta_job;

/* A worker's scratch: prepare has keys and their transposes, recur the rest. */
typedef struct {
    float *keys, *across, *zeros;
    float *product, *of_v, *of_o, *sum, *decay, *weight;
} workspace;

static size_t lay_workspace(const td_delta_desc *m, char *at, workspace *w) {
    size_t       used = 0;
    const size_t offset[] = {td_host_place(&used, BLOCK * m->key_dim * sizeof(float)),
                             td_host_place(&used, (td_round_up(BLOCK, PANEL) * m->key_dim + PANEL) * sizeof(float)),
                             td_host_place(&used, td_delta_conv_rows(m) * sizeof(float)),
                             td_host_place(&used, 2 * BLOCK * PANEL * sizeof(float)),
                             td_host_place(&used, BLOCK * BLOCK * sizeof(float)),
                             td_host_place(&used, BLOCK * BLOCK * sizeof(float)),
                             td_host_place(&used, BLOCK * sizeof(float)),
                             td_host_place(&used, BLOCK * sizeof(float)),
                             td_host_place(&used, BLOCK * sizeof(float))};
#define AT(i) ((float *)(at + offset[i]))
    if (w) *w = (workspace){AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7), AT(8)};
#undef AT
    return used;
}

static workspace workspace_of(const delta_job *j, const td_worker *worker) {
    workspace w;
    lay_workspace(j->m, j->d->scratch + j->b->at.f32 + worker->index * j->b->at.per_worker, &w);
    return w;
}

/* ---- places ---------------------------------------------------------------------------------- */

static size_t panels_of(const td_delta_desc *m) {
    return (m->value_dim + PANEL - 1) / PANEL;
}

/* Of a key head in a state slot: S [r][panel of value_dim][key_dim][of panel], then the last inputs [conv_width -
 * 1][conv]. */
static float *state_of(const delta_job *j, uint32_t slot, size_t head) {
    return (float *)j->m->state + (slot * (size_t)j->m->key_heads + head) * td_delta_state_values(j->m);
}
static float *last_inputs(const delta_job *j, uint32_t slot, size_t head) {
    return state_of(j, slot, head) + j->r * j->m->key_dim * j->m->value_dim;
}

/* Of a key head in an open slot: k [BLOCK][key_dim], v' [r][panel][BLOCK][of panel], G [r][BLOCK], inputs [BLOCK][conv]. */
static float *open_keys(const delta_job *j, uint32_t slot, size_t head) {
    return (float *)j->m->open + (slot * (size_t)j->m->key_heads + head) * td_delta_open_values(j->m);
}
static float *open_values(const delta_job *j, uint32_t slot, size_t head) {
    return open_keys(j, slot, head) + BLOCK * j->m->key_dim;
}
static float *open_sums(const delta_job *j, uint32_t slot, size_t head) {
    return open_values(j, slot, head) + BLOCK * j->r * j->m->value_dim;
}
static float *open_inputs(const delta_job *j, uint32_t slot, size_t head) {
    return open_sums(j, slot, head) + BLOCK * j->r;
}

/* Row `row` of a key head in an array [key_heads][strip][width]. */
static float *head_row(const delta_job *j, float *array, size_t head, size_t row, size_t width) {
    return array + (head * j->strip + row) * width;
}
static float *input_row(const delta_job *j, size_t head, size_t row) {
    return j->qkv + (row * j->m->key_heads + head) * j->ld_head;
}

/* The convolution's input at a position of the part, at most conv_width - 1 before its first row. NULL: before the
 * sequence's beginning. */
static const float *input_at(const delta_job *j, const delta_part *p, size_t head, int64_t pos) {
    const int64_t border = p->of.pos - p->of.pos % BLOCK, kept = (int64_t)j->m->conv_width - 1;
    if (pos >= p->of.pos) return input_row(j, head, p->of.row + (size_t)(pos - p->of.pos));
    if (pos >= border) return open_inputs(j, p->of.open, head) + (size_t)(pos - border) * j->conv;
    return p->of.from == TD_STATE_NONE ? NULL : last_inputs(j, p->of.from, head) + (size_t)(pos - border + kept) * j->conv;
}

/* ---- prepare --------------------------------------------------------------------------------- */

/* q, k and v of a row. */
static void convolve(const delta_job *j, const workspace *w, const delta_part *p, size_t head, size_t row, int64_t pos) {
    const td_delta_desc *m = j->m;
    const td_delta_math *math = j->d->kernels->delta;
    const size_t         dk = m->key_dim, ldw = m->key_heads * j->conv;
    const float         *taps = td_host_vector(m->conv) + head * j->conv, *x[TD_CONV_WIDTH_MAX];
    float               *qk = head_row(j, j->qk, head, row, 2 * dk);
    for (size_t i = 0; i < m->conv_width; i++) {
        x[i] = input_at(j, p, head, pos - (int64_t)(m->conv_width - 1 - i));
        if (!x[i]) x[i] = w->zeros;
    }
    math->conv(x, taps, ldw, m->conv_width, 2 * dk, qk);
    for (size_t i = 0; i < m->conv_width; i++) x[i] += 2 * dk;
    math->conv(x, taps + 2 * dk, ldw, m->conv_width, j->r * m->value_dim, head_row(j, j->v, head, row, j->r * m->value_dim));
    math->unit(qk, UNIT_EPS, 1.0f / sqrtf((float)dk), dk);
    math->unit(qk + dk, UNIT_EPS, 1, dk);
}

/* G and beta of a row. @param before G of the row before it, `stride` apart; NULL: it begins its block. */
static void gate(const delta_job *j, size_t head, size_t row, const float *before, size_t stride) {
    const size_t at = row * j->ld_gate + head * j->head_gate, first = head * j->r;
    float       *sum = head_row(j, j->sum, head, row, j->r);
    j->d->kernels->delta->gates(j->a_out + at, j->b_out + at, td_host_vector(j->m->a_log) + first,
                                td_host_vector(j->m->dt_bias) + first, j->r, sum, head_row(j, j->beta, head, row, j->r));
    for (size_t i = 0; before && i < j->r; i++) sum[i] += before[i * stride];
}

/* The products of the piece's q and k with the k of its block. */
static void meet(const delta_job *j, const workspace *w, const delta_piece *x, size_t head) {
    const td_float_math *math = j->d->kernels->math;
    const size_t         dk = j->m->key_dim, begun = x->pos % BLOCK, keys = begun + x->n;
    const float         *qk = head_row(j, j->qk, head, x->row, 2 * dk);
    memcpy(w->keys, open_keys(j, j->parts[x->part].of.open, head), begun * dk * sizeof(float));
    for (size_t i = 0; i < x->n; i++) memcpy(w->keys + (begun + i) * dk, qk + (2 * i + 1) * dk, dk * sizeof(float));
    math->transpose(w->across, PANEL * dk, TD_DT_F32, w->keys, dk, keys, dk);
    td_host_attn_meet(math, qk, 2 * (size_t)x->n, dk, w->across, keys, head_row(j, j->met, head, x->row, 2 * BLOCK), BLOCK);
}

static void prepare_item(void *ctx, uint32_t item, const td_worker *worker) {
    const delta_job   *j = ctx;
    const size_t       head = item % j->m->key_heads;
    const delta_piece *x = &j->pieces[item / j->m->key_heads];
    const delta_part  *p = &j->parts[x->part];
    const workspace    w = workspace_of(j, worker);
    const float       *before = x->pos % BLOCK ? open_sums(j, p->of.open, head) + x->pos % BLOCK - 1 : NULL;
    size_t             stride = BLOCK;
    memset(w.zeros, 0, j->conv * sizeof(float));
    for (size_t i = 0; i < x->n; i++) {
        convolve(j, &w, p, head, x->row + i, (int64_t)x->pos + (int64_t)i);
        gate(j, head, x->row + i, before, stride);
        before = head_row(j, j->sum, head, x->row + i, j->r);
        stride = 1;
    }
    meet(j, &w, x, head);
}

/* ---- recur ----------------------------------------------------------------------------------- */

/* What an item is about: a value head, and where the state of its block lies. */
typedef struct {
    const delta_part *p;
    size_t            head, i; /* key head, which of its value heads */
    const float      *state;   /* S of the value head at the block's beginning; NULL: zeros */
    float            *next;    /* where S goes when a block ends */
    float            *v;       /* v' in the open slot */
} recurrence;

/* Of a panel of columns: S, v' and o are all of it. */
typedef struct {
    size_t column, n;
} delta_panel;

static float *panel_of(float *array, const delta_panel *c, size_t rows) {
    return array + c->column * rows;
}

/* G, and what the block's rows weigh for one another: w->of_v and w->of_o. */
static void weigh(const delta_job *j, const recurrence *c, const workspace *w, const delta_piece *x) {
    const size_t begun = x->pos % BLOCK;
    memcpy(w->sum, open_sums(j, c->p->of.open, c->head) + c->i * BLOCK, begun * sizeof(float));
    for (size_t t = 0; t < x->n; t++) w->sum[begun + t] = head_row(j, j->sum, c->head, x->row + t, j->r)[c->i];
    j->d->kernels->delta->decays(w->sum + begun, x->n, w->decay);
    for (size_t t = 0; t < x->n; t++) {
        const float *met = head_row(j, j->met, c->head, x->row + t, 2 * BLOCK);
        memcpy(w->of_o + t * BLOCK, met, (begun + t + 1) * sizeof(float));
        memcpy(w->of_v + t * BLOCK, met + BLOCK, (begun + t + 1) * sizeof(float));
        j->d->kernels->delta->fade(w->sum[begun + t], w->sum, begun + t + 1, w->of_v + t * BLOCK,
                                   -head_row(j, j->beta, c->head, x->row + t, j->r)[c->i], w->of_o + t * BLOCK);
    }
}

/* v' and o of a panel's columns: what is left of v when S and the rows before have had their say. */
static void meet_state(const delta_job *j, const recurrence *c, const workspace *w, const delta_piece *x,
                       const delta_panel *panel) {
    const td_delta_desc *m = j->m;
    const td_delta_math *math = j->d->kernels->delta;
    const size_t         begun = x->pos % BLOCK, n = panel->n, dv = m->value_dim, ld_o = m->value_heads * dv;
    float *v = panel_of(c->v, panel, BLOCK), *o = j->out + x->row * ld_o + (c->head * j->r + c->i) * dv + panel->column;
    td_fgemm_args g = {.m = 2 * (size_t)x->n,
                       .n = n,
                       .k = m->key_dim,
                       .a = head_row(j, j->qk, c->head, x->row, 2 * m->key_dim),
                       .lda = m->key_dim,
                       .ldb = n,
                       .b_dtype = TD_DT_F32,
                       .c = w->product,
                       .ldc = n};
    if (c->state) {
        g.b = c->state + panel->column * m->key_dim;
        (x->n <= FEW_ROWS ? math->few : j->d->kernels->math->gemm)(&g);
    } else {
        memset(w->product, 0, 2 * x->n * n * sizeof(float));
    }
    for (size_t t = 0; t < x->n; t++) { /* w->product has S^T q and S^T k in turn */
        const float  beta = head_row(j, j->beta, c->head, x->row + t, j->r)[c->i];
        const float *value = head_row(j, j->v, c->head, x->row + t, j->r * dv) + c->i * dv + panel->column;
        math->mix(o + t * ld_o, w->decay[t], w->product + 2 * t * n, 0, NULL, n);
        math->mix(v + (begun + t) * n, -beta * w->decay[t], w->product + (2 * t + 1) * n, beta, value, n);
    }
    td_lower_args l = {
        .m = x->n, .n = n, .keys = begun, .a = w->of_v, .lda = BLOCK, .u = v, .ldu = n, .c = v + begun * n, .ldc = n};
    math->lower(&l);
    l.keys = begun + 1;
    l.a = w->of_o;
    l.c = o;
    l.ldc = ld_o;
    math->lower(&l);
}

/* A block ends: its rows go into the state, a panel of columns. */
static void end_block(const delta_job *j, const recurrence *c, const workspace *w, const delta_piece *x,
                      const delta_panel *panel) {
    const td_delta_math *math = j->d->kernels->delta;
    const size_t         begun = x->pos % BLOCK, dk = j->m->key_dim, n = panel->n;
    const float         *v = panel_of(c->v, panel, BLOCK);
    for (size_t s = 0; s < BLOCK; s++) math->mix(w->product + s * n, w->weight[s], v + s * n, 0, NULL, n);
    td_fold_args f = {.m = dk,
                      .n = n,
                      .keys = begun,
                      .k = open_keys(j, c->p->of.open, c->head),
                      .ldk = dk,
                      .u = w->product,
                      .ldu = n,
                      .in = c->state ? c->state + panel->column * dk : NULL,
                      .scale = w->decay[x->n - 1],
                      .out = panel_of(c->next, panel, dk),
                      .ld = n};
    if (begun) {
        math->fold(&f);
        f.in = f.out;
        f.scale = 1;
    }
    f.keys = x->n;
    f.k = head_row(j, j->qk, c->head, x->row, 2 * dk) + dk;
    f.ldk = 2 * dk;
    f.u += begun * n;
    math->fold(&f);
}

/* The last inputs of the convolution in a block that ends. */
static void keep_inputs(const delta_job *j, const recurrence *c, const delta_piece *x) {
    const size_t  kept = j->m->conv_width - 1;
    const int64_t first = (int64_t)x->pos + x->n - (int64_t)kept;
    for (size_t i = 0; i < kept; i++)
        memcpy(last_inputs(j, c->p->of.to, c->head) + i * j->conv, input_at(j, c->p, c->head, first + (int64_t)i),
               j->conv * sizeof(float));
}

static void recur_item(void *ctx, uint32_t item, const td_worker *worker) {
    const delta_job     *j = ctx;
    const td_delta_desc *m = j->m;
    const size_t         splits = (panels_of(m) + j->panels - 1) / j->panels, value_head = item / splits % m->value_heads,
                 first = item % splits * j->panels, dv = m->value_dim, of_head = m->key_dim * dv;
    const workspace w = workspace_of(j, worker);
    recurrence      c = {.p = &j->parts[item / splits / m->value_heads], .head = value_head / j->r, .i = value_head % j->r};
    c.v = open_values(j, c.p->of.open, c.head) + c.i * BLOCK * dv;
    if (c.p->of.from != TD_STATE_NONE) c.state = state_of(j, c.p->of.from, c.head) + c.i * of_head;
    for (uint32_t k = 0; k < c.p->n_pieces; k++) {
        const delta_piece *x = &j->pieces[c.p->first_piece + k];
        const bool         ends = x->pos % BLOCK + x->n == BLOCK;
        weigh(j, &c, &w, x);
        if (ends) {
            c.next = state_of(j, c.p->of.to, c.head) + c.i * of_head;
            for (size_t s = 0; s < BLOCK; s++) w.weight[s] = 1;
            j->d->kernels->delta->fade(w.sum[BLOCK - 1], w.sum, BLOCK, w.weight, 1, NULL);
        }
        for (size_t at = first * PANEL; at < dv && at < (first + j->panels) * PANEL; at += PANEL) {
            const delta_panel panel = {at, dv - at < PANEL ? dv - at : PANEL};
            meet_state(j, &c, &w, x, &panel);
            if (ends) end_block(j, &c, &w, x, &panel);
        }
        if (!ends) continue;
        c.state = c.next;
        if (c.i == 0 && first == 0) keep_inputs(j, &c, x);
    }
}

/* ---- finish ---------------------------------------------------------------------------------- */

static void keep_row(const delta_job *j, uint32_t slot, size_t head, size_t row, size_t place) {
    const size_t dk = j->m->key_dim;
    memcpy(open_keys(j, slot, head) + place * dk, head_row(j, j->qk, head, row, 2 * dk) + dk, dk * sizeof(float));
    memcpy(open_inputs(j, slot, head) + place * j->conv, input_row(j, head, row), j->conv * sizeof(float));
    for (size_t i = 0; i < j->r; i++) open_sums(j, slot, head)[i * BLOCK + place] = head_row(j, j->sum, head, row, j->r)[i];
}

static void finish_item(void *ctx, uint32_t item, const td_worker *worker) {
    const delta_job     *j = ctx;
    const td_delta_desc *m = j->m;
    const size_t         head = item % m->key_heads, dv = m->value_dim;
    const delta_piece   *x = &j->pieces[item / m->key_heads];
    const delta_part    *p = &j->parts[x->part];
    const uint32_t       end = x->pos + x->n;
    const bool           keeps =
        end == p->of.pos + p->of.n && (p->of.is_last || end % BLOCK); /* a last block's last row may be a draft */
    (void)worker;
    for (size_t t = 0; t < x->n; t++) {
        const size_t row = x->row + t, first = (row * m->value_heads + head * j->r) * dv;
        const float *z = m->z ? j->z + first : input_row(j, head, row) + j->conv;
        for (size_t i = 0; i < j->r; i++)
            j->d->kernels->delta->gated_norm(j->out + first + i * dv, td_host_vector(m->norm), z + i * dv, m->eps, dv);
        if (keeps) keep_row(j, p->of.open, head, row, x->pos % BLOCK + t);
    }
}

/* ---- strips ---------------------------------------------------------------------------------- */

/* Rows of a strip that begins at a row. It ends with the chunk, or where a block does in the sequence that goes on behind
 * it. */
static size_t strip_rows(const td_step_arrays *a, size_t first, size_t end, size_t most) {
    if (end - first <= most) return end - first;
    const size_t open = a->pos[first + most] % BLOCK; /* 0 also where a sequence begins */
    return open < most ? most - open : most;
}

static bool has_open(const delta_part *parts, size_t n, uint32_t open) {
    for (size_t i = 0; i < n; i++)
        if (parts[i].of.open == open) return true;
    return false;
}

/* Parts of sequences from *q on, until one has the open slot of another; *q is left at it. @return how many. */
static size_t take_wave(const td_host_step *s, uint32_t *q, size_t row0, size_t rows, delta_part *parts) {
    size_t n = 0;
    for (; *q < s->n_seq; ++*q) {
        const td_host_part p = td_host_part_of(&s->a, *q, row0, rows);
        if (p.n == 0) continue;
        if (has_open(parts, n, p.open)) break;
        parts[n++] = (delta_part){.of = p};
    }
    return n;
}

/* @return how many there are */
static size_t cut_parts(delta_part *parts, size_t n_parts, delta_piece *pieces) {
    size_t n = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        delta_part *p = &parts[i];
        p->first_piece = (uint32_t)n;
        for (uint32_t done = 0, rows; done < p->of.n; done += rows) {
            const uint32_t pos = p->of.pos + done, left = (uint32_t)(BLOCK - pos % BLOCK);
            rows = p->of.n - done < left ? p->of.n - done : left;
            pieces[n++] = (delta_piece){.part = i, .row = p->of.row + done, .n = rows, .pos = pos};
        }
        p->n_pieces = (uint32_t)(n - p->first_piece);
    }
    return n;
}

static void run_wave(delta_job *j, delta_part *parts, size_t n_parts, delta_piece *pieces) {
    const td_delta_desc *m = j->m;
    const size_t         n_pieces = cut_parts(parts, n_parts, pieces), items = n_parts * m->value_heads;
    const size_t         panels = panels_of(m);
    size_t               rows = 0, splits = 1;
    for (size_t i = 0; i < n_parts; i++) rows += parts[i].of.n;
    while (splits < panels && items * splits < 2 * j->d->n_workers) splits *= 2;
    j->panels = splits < panels ? panels / splits : 1;
    splits = (panels + j->panels - 1) / j->panels;
    j->parts = parts;
    j->pieces = pieces;
    td_host_for(j->d, prepare_item, j, n_pieces * m->key_heads, rows * m->key_heads * (j->conv + m->key_dim * BLOCK));
    td_host_for(j->d, recur_item, j, items * splits, rows * m->value_heads * m->value_dim * m->key_dim);
    td_host_for(j->d, finish_item, j, n_pieces * m->key_heads, rows * m->value_heads * m->value_dim * 2);
}

static void run_strip(delta_job *j, const td_host_step *s, size_t row, size_t rows) {
    delta_part  *parts = (delta_part *)(j->d->scratch + j->b->at.delta.parts);
    delta_piece *pieces = (delta_piece *)(j->d->scratch + j->b->at.delta.pieces);
    for (uint32_t q = 0; q < s->n_seq;) {
        const size_t n = take_wave(s, &q, row, rows, parts);
        if (n) run_wave(j, parts, n, pieces);
    }
}

static td_status run_delta(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_delta_desc   *m = &b->desc.delta;
    const td_delta_places *at = &b->at.delta;
    const size_t           r = m->value_heads / m->key_heads, v_width = (size_t)m->value_heads * m->value_dim;
    delta_job              j = {.d = d,
                                .b = b,
                                .m = m,
                                .r = r,
                                .conv = td_delta_conv_rows(m),
                                .ld_gate = (m->a ? 1 : 2) * (size_t)m->value_heads,
                                .head_gate = (m->a ? 1 : 2) * r,
                                .strip = at->strip,
                                .qkv = (float *)(d->scratch + at->qkv),
                                .z = (float *)(d->scratch + at->z),
                                .b_out = (float *)(d->scratch + at->b),
                                .qk = (float *)(d->scratch + at->qk),
                                .v = (float *)(d->scratch + at->v),
                                .met = (float *)(d->scratch + at->met),
                                .sum = (float *)(d->scratch + at->sum),
                                .beta = (float *)(d->scratch + at->beta),
                                .out = (float *)(d->scratch + b->at.out)};
    j.ld_head = j.conv + (m->z ? 0 : r * m->value_dim);
    j.a_out = m->a ? (float *)(d->scratch + at->a) : j.b_out + r;
    TD_TRY(td_host_check_states(s, m->state_slots, m->open_slots));
    for (size_t row = 0; row < s->n_tok; row += b->at.chunk) {
        const size_t    rows = s->n_tok - row < b->at.chunk ? s->n_tok - row : b->at.chunk;
        td_host_product wide[] = {{.w = m->qkv, .out = j.qkv, .ldo = m->key_heads * j.ld_head, .out_dtype = TD_DT_F32},
                                  {.w = m->z, .out = j.z, .ldo = v_width, .out_dtype = TD_DT_F32}},
                        gates[] = {{.w = m->b, .out = j.b_out, .ldo = j.ld_gate, .out_dtype = TD_DT_F32},
                                   {.w = m->a, .out = j.a_out, .ldo = j.ld_gate, .out_dtype = TD_DT_F32}};
        td_host_rows x, o;
        td_host_rows_input(d, &x, d->scratch + b->at.x, m->in, m->in_i8, row, rows, m->hidden);
        td_host_products(d, &x, wide, m->z ? 2 : 1);
        td_host_products(d, &x, gates, m->a ? 2 : 1);
        for (size_t done = 0, n; done < rows; done += n) {
            n = strip_rows(&s->a, row + done, row + rows, j.strip);
            delta_job strip = j;
            strip.qkv += done * m->key_heads * j.ld_head;
            strip.z += done * v_width;
            strip.b_out += done * j.ld_gate;
            strip.a_out += done * j.ld_gate;
            strip.out += done * v_width;
            run_strip(&strip, s, row + done, n);
        }
        td_host_rows_init(&o, d->scratch + b->at.rows, j.out, TD_DT_F32, rows, v_width);
        td_host_products(d, &o,
                         &(td_host_product){.w = m->o,
                                            .out = (char *)m->out + td_host_act_bytes(d, row * m->hidden),
                                            .ldo = m->hidden,
                                            .out_dtype = d->act},
                         1);
    }
    return TD_OK;
}

static void place_delta(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_delta_desc *m = &desc->delta;
    const size_t         heads = m->value_heads, v = heads * m->value_dim, qkv = m->key_heads * td_delta_conv_rows(m),
                 qk = (size_t)m->key_heads * 2 * m->key_dim, met = (size_t)m->key_heads * 2 * BLOCK,
                 chunk = td_host_chunk_rows(desc->max_tok, (qkv + 2 * heads + 2 * v) * sizeof(float)),
                 blocks = td_round_up(d->n_workers, STRIP_WORKERS_PER_BLOCK) / STRIP_WORKERS_PER_BLOCK,
                 strip = BLOCK * (blocks > STRIP_BLOCKS ? blocks : STRIP_BLOCKS);

    td_delta_places *at = &b->at.delta;
    size_t           used = 0;
#define FLOATS(rows, width) td_host_place(&used, (rows) * (width) * sizeof(float))
    b->run = run_delta;
    b->at.chunk = chunk;
    b->at.x = td_host_place(&used, td_host_rows_bytes(chunk, m->hidden, d->act));
    b->at.rows = td_host_place(&used, td_host_rows_bytes(chunk, v, TD_DT_F32));
    at->strip = strip < chunk ? strip : chunk;
    at->parts = td_host_place(&used, at->strip * sizeof(delta_part));
    at->pieces = td_host_place(&used, at->strip * sizeof(delta_piece));
    at->qkv = FLOATS(chunk, m->z ? qkv : qkv + v);
    at->z = FLOATS(chunk, m->z ? v : 0);
    at->b = FLOATS(chunk, m->a ? heads : 2 * heads);
    at->a = FLOATS(chunk, m->a ? heads : 0);
    at->qk = FLOATS(at->strip, qk);
    at->v = FLOATS(at->strip, v);
    at->met = FLOATS(at->strip, met);
    at->sum = FLOATS(at->strip, heads);
    at->beta = FLOATS(at->strip, heads);
    b->at.out = FLOATS(chunk, v);
#undef FLOATS
    b->at.per_worker = lay_workspace(m, NULL, NULL);
    b->at.f32 = td_host_place(&used, b->at.per_worker * d->n_workers);
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_delta = {.place = place_delta};
