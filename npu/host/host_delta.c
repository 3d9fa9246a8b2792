/*
 * Gated DeltaNet and Kimi delta attention (td_delta_desc): projections, the convolution, rows of blocks, states, output projection.
 *
 * DESIGN. Projections are for all rows of a chunk. The rest goes by strips, some blocks of rows that stay in the caches from
 * pass to pass. A strip has parts, one a sequence, and a part has pieces: its rows of one block of TD_STATE_BLOCK positions.
 * Three passes, each an item list for the pool:
 *   prepare  piece x key head: q, k and v by the convolution, gates, the products of k and q with the block's k, of KDA with
 *            decays in them;
 *   recur    part x value head x panels of columns of values, pieces in order: v' and o, and the state where a block ends.
 *            Columns of v', o and S do not meet, so few heads make many items;
 *   finish   piece x key head: the norm of o; the last block's rows go to the open slot.
 * Only recur goes from block to block. It writes v' where the open slot has them, from block to block in the same place;
 * what else is in the slots is read by prepare and recur, and written by finish. Parts of one open slot go through the
 * passes in waves, one after the other.
 */
#include <math.h>

#include "core/error.h"
#include "kernels/vec/fetch.h"
#include "npu/host/host_attention.h"

#define BLOCK ((size_t)TD_STATE_BLOCK)
#define RUN ((size_t)TD_STATE_RUN)
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

/* Inputs of the convolution that a key head has side by side: q, k or v. */
typedef struct {
    size_t       width, place; /* values; where they begin among a row of the head's that is kept */
    size_t       at, per_head; /* the same in a row of qkv, of key head 0, and from head to head */
    const float *taps;         /* [conv_width][ld_taps], of key head 0 */
    size_t       ld_taps, taps_per_head;
} delta_input;

enum { Q, K, V, INPUTS };

typedef struct {
    td_host_npu         *d;
    const td_npu_block  *b;
    const td_delta_desc *m;
    size_t               r, conv, decays; /* of a key head: its value heads, rows of the convolution, values of G in a row */
    delta_input          input[INPUTS];
    size_t               ld_qkv; /* a row of qkv */
    const delta_part    *parts;
    const delta_piece   *pieces;
    size_t               panels;                             /* of values in an item of recur */
    float               *qkv, *z, *b_out, *a_out;            /* rows of the strip in the chunk's, as `out` */
    size_t               ld_b, b_per_head, ld_a, a_per_head; /* of b_out and a_out: a row, a key head */
    size_t               strip;                              /* rows that the arrays have place for */
    float               *qk;                                 /* [key_heads][strip][q | k] */
    float               *faded; /* the same, times what S has lost of each channel; of DeltaNet qk */
    float               *v;     /* [key_heads][strip][r][value_dim] */
    float               *met;   /* [key_heads][strip][q.k | k.k of the block's rows] */
    float               *sum;   /* [key_heads][strip][decays] */
    float               *beta;  /* [key_heads][strip][r] */
    float               *out;   /* [rows][value_heads][value_dim] */
} delta_job;

/* A worker's scratch: prepare has keys, their sums and transposes, recur the rest, and of KDA keys. */
typedef struct {
    float *keys, *across, *zeros;
    float *sums, *faded, *run; /* KDA: G of the block's rows; keys and a run's q and k, times their factors */
    float *product, *of_v, *of_o, *sum, *decay, *weight;
} workspace;

static bool is_kimi(const td_delta_desc *m) {
    return m->form == TD_DELTA_KIMI;
}

static size_t lay_workspace(const td_delta_desc *m, char *at, workspace *w) {
    const size_t kimi = is_kimi(m) ? m->key_dim * sizeof(float) : 0;
    size_t       used = 0;
    const size_t offset[] = {td_host_place(&used, BLOCK * m->key_dim * sizeof(float)),
                             td_host_place(&used, (td_round_up(BLOCK, PANEL) * m->key_dim + PANEL) * sizeof(float)),
                             td_host_place(&used, td_delta_conv_rows(m) * sizeof(float)),
                             td_host_place(&used, BLOCK * kimi),
                             td_host_place(&used, BLOCK * kimi),
                             td_host_place(&used, 2 * RUN * kimi),
                             td_host_place(&used, 2 * BLOCK * PANEL * sizeof(float)),
                             td_host_place(&used, BLOCK * BLOCK * sizeof(float)),
                             td_host_place(&used, BLOCK * BLOCK * sizeof(float)),
                             td_host_place(&used, BLOCK * sizeof(float)),
                             td_host_place(&used, BLOCK * sizeof(float)),
                             td_host_place(&used, (BLOCK > m->key_dim ? BLOCK : m->key_dim) * sizeof(float))};
#define AT(i) ((float *)(at + offset[i]))
    if (w) *w = (workspace){AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7), AT(8), AT(9), AT(10), AT(11)};
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

/* Of a key head in an open slot: k [BLOCK][key_dim], v' [r][panel][BLOCK][of panel], G [r][BLOCK], of KDA [BLOCK][key_dim],
 * inputs [BLOCK][conv]. */
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
    return open_sums(j, slot, head) + BLOCK * j->decays;
}

/* Row `row` of a key head in an array [key_heads][strip][width]. */
static float *head_row(const delta_job *j, float *array, size_t head, size_t row, size_t width) {
    return array + (head * j->strip + row) * width;
}
static float *input_row(const delta_job *j, const delta_input *in, size_t head, size_t row) {
    return j->qkv + row * j->ld_qkv + in->at + head * in->per_head;
}

/* The convolution's input at a position of the part, at most conv_width - 1 before its first row. NULL: before the
 * sequence's beginning. */
static const float *input_at(const delta_job *j, const delta_part *p, const delta_input *in, size_t head, int64_t pos) {
    const int64_t border = p->of.pos - p->of.pos % BLOCK, kept = (int64_t)j->m->conv_width - 1;
    if (pos >= p->of.pos) return input_row(j, in, head, p->of.row + (size_t)(pos - p->of.pos));
    if (pos >= border) return open_inputs(j, p->of.open, head) + (size_t)(pos - border) * j->conv + in->place;
    if (p->of.from == TD_STATE_NONE) return NULL;
    return last_inputs(j, p->of.from, head) + (size_t)(pos - border + kept) * j->conv + in->place;
}

/* ---- prepare --------------------------------------------------------------------------------- */

static void convolve_input(const delta_job *j, const workspace *w, const delta_part *p, const delta_input *in, size_t head,
                           int64_t pos, float *out) {
    const size_t width = j->m->conv_width;
    const float *x[TD_CONV_WIDTH_MAX];
    for (size_t i = 0; i < width; i++) {
        x[i] = input_at(j, p, in, head, pos - (int64_t)(width - 1 - i));
        if (!x[i]) x[i] = w->zeros;
    }
    j->d->kernels->delta->conv(x, in->taps + head * in->taps_per_head, in->ld_taps, width, in->width, out);
}

/* q, k and v of a row. */
static void convolve(const delta_job *j, const workspace *w, const delta_part *p, size_t head, size_t row, int64_t pos) {
    const td_delta_math *math = j->d->kernels->delta;
    const size_t         dk = j->m->key_dim;
    float               *qk = head_row(j, j->qk, head, row, 2 * dk);
    convolve_input(j, w, p, &j->input[Q], head, pos, qk);
    convolve_input(j, w, p, &j->input[K], head, pos, qk + dk);
    convolve_input(j, w, p, &j->input[V], head, pos, head_row(j, j->v, head, row, j->r * j->m->value_dim));
    math->unit(qk, UNIT_EPS, 1.0f / sqrtf((float)dk), dk);
    math->unit(qk + dk, UNIT_EPS, 1, dk);
}

/* G and beta of a row. @param before G of the row before it, `stride` apart; NULL: it begins its block. */
static void gate(const delta_job *j, size_t head, size_t row, const float *before, size_t stride) {
    const size_t first = head * j->r;
    const float *a = j->a_out + row * j->ld_a + head * j->a_per_head, *b = j->b_out + row * j->ld_b + head * j->b_per_head,
                *a_log = td_host_vector(j->m->a_log), *dt_bias = td_host_vector(j->m->dt_bias);
    float *sum = head_row(j, j->sum, head, row, j->decays), *beta = head_row(j, j->beta, head, row, j->r);
    if (is_kimi(j->m)) {
        j->d->kernels->delta->channel_gates(a, dt_bias + head * j->decays, a_log[head], j->m->floor, before, j->decays, sum);
        j->d->kernels->delta->sigmoid(b, 1, beta);
        return;
    }
    j->d->kernels->delta->gates(a, b, a_log + first, dt_bias + first, j->r, sum, beta);
    for (size_t i = 0; before && i < j->r; i++) sum[i] += before[i * stride];
}

/* The block's keys up to the piece's last row. */
static void gather_keys(const delta_job *j, const workspace *w, const delta_piece *x, size_t head) {
    const size_t dk = j->m->key_dim, begun = x->pos % BLOCK;
    const float *qk = head_row(j, j->qk, head, x->row, 2 * dk);
    memcpy(w->keys, open_keys(j, j->parts[x->part].of.open, head), begun * dk * sizeof(float));
    for (size_t i = 0; i < x->n; i++) memcpy(w->keys + (begun + i) * dk, qk + (2 * i + 1) * dk, dk * sizeof(float));
}

/* The products of the piece's q and k with the k of its block. */
static void meet(const delta_job *j, const workspace *w, const delta_piece *x, size_t head) {
    const td_float_math *math = j->d->kernels->math;
    const size_t         dk = j->m->key_dim, keys = x->pos % BLOCK + x->n;
    const float         *qk = head_row(j, j->qk, head, x->row, 2 * dk);
    gather_keys(j, w, x, head);
    math->transpose(w->across, PANEL * dk, TD_DT_F32, w->keys, dk, keys, dk);
    td_host_attn_meet(math, qk, 2 * (size_t)x->n, dk, w->across, keys, head_row(j, j->met, head, x->row, 2 * BLOCK), BLOCK);
}

/* ---- prepare: decays of each channel ----------------------------------------------------------- */

/* The block's G up to the piece's last row. */
static void gather_sums(const delta_job *j, const workspace *w, const delta_piece *x, size_t head) {
    const size_t dk = j->m->key_dim, begun = x->pos % BLOCK;
    memcpy(w->sums, open_sums(j, j->parts[x->part].of.open, head), begun * dk * sizeof(float));
    memcpy(w->sums + begun * dk, head_row(j, j->sum, head, x->row, dk), x->n * dk * sizeof(float));
}

/* The products of rows `from` to end - 1 of the block, all of one run, with k of the rows before the run. */
static void meet_runs_before(const delta_job *j, const workspace *w, const delta_piece *x, size_t head, size_t from,
                             size_t end) {
    const td_delta_math *math = j->d->kernels->delta;
    const size_t         dk = j->m->key_dim, run = from - from % RUN, row = x->row + (from - x->pos % BLOCK);
    const float         *first = w->sums + run * dk; /* G of the run's first row */
    if (run == 0) return;
    for (size_t s = 0; s < run; s++)
        math->fade_channels(first, w->sums + s * dk, w->keys + s * dk, 1, dk, w->faded + s * dk);
    for (size_t t = from; t < end; t++)
        math->fade_channels(w->sums + t * dk, first, head_row(j, j->qk, head, row + (t - from), 2 * dk), 2, dk,
                            w->run + 2 * (t - from) * dk);
    j->d->kernels->math->transpose(w->across, PANEL * dk, TD_DT_F32, w->faded, dk, run, dk);
    td_host_attn_meet(j->d->kernels->math, w->run, 2 * (end - from), dk, w->across, run,
                      head_row(j, j->met, head, row, 2 * BLOCK), BLOCK);
}

/* The products of the piece's q and k with the k of its block, each channel times its decay in between; and q and k as they
 * meet S. */
static void meet_faded(const delta_job *j, const workspace *w, const delta_piece *x, size_t head) {
    const td_delta_math *math = j->d->kernels->delta;
    const size_t         dk = j->m->key_dim, begun = x->pos % BLOCK, rows = begun + x->n;
    gather_keys(j, w, x, head);
    gather_sums(j, w, x, head);
    for (size_t from = begun, end; from < rows; from = end) {
        end = from - from % RUN + RUN < rows ? from - from % RUN + RUN : rows;
        meet_runs_before(j, w, x, head, from, end);
    }
    for (size_t t = begun; t < rows; t++) {
        const size_t row = x->row + (t - begun), run = t - t % RUN;
        const float *qk = head_row(j, j->qk, head, row, 2 * dk), *sum = w->sums + t * dk;
        float       *met = head_row(j, j->met, head, row, 2 * BLOCK) + run;
        math->meet_channels(qk, sum, w->keys + run * dk, w->sums + run * dk, t - run + 1, dk, met, met + BLOCK);
        math->fade_channels(sum, NULL, qk, 2, dk, head_row(j, j->faded, head, row, 2 * dk));
    }
}

static void prepare_item(void *ctx, uint32_t item, const td_worker *worker) {
    const delta_job   *j = ctx;
    const size_t       head = item % j->m->key_heads;
    const delta_piece *x = &j->pieces[item / j->m->key_heads];
    const delta_part  *p = &j->parts[x->part];
    const workspace    w = workspace_of(j, worker);
    const size_t       begun = x->pos % BLOCK;
    size_t             stride = is_kimi(j->m) ? 1 : BLOCK; /* of G in the open slot */
    const float *before = begun ? open_sums(j, p->of.open, head) + (begun - 1) * (is_kimi(j->m) ? j->decays : 1) : NULL;
    memset(w.zeros, 0, j->conv * sizeof(float));
    for (size_t i = 0; i < x->n; i++) {
        convolve(j, &w, p, head, x->row + i, (int64_t)x->pos + (int64_t)i);
        gate(j, head, x->row + i, before, stride);
        before = head_row(j, j->sum, head, x->row + i, j->decays);
        stride = 1;
    }
    if (is_kimi(j->m))
        meet_faded(j, &w, x, head);
    else
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

/* What the block's rows weigh for one another: w->of_v and w->of_o. S meets rows that have its decay in them. */
static void weigh_faded(const delta_job *j, const recurrence *c, const workspace *w, const delta_piece *x) {
    for (size_t t = 0; t < x->n; t++) {
        const size_t keys = x->pos % BLOCK + t + 1;
        const float *met = head_row(j, j->met, c->head, x->row + t, 2 * BLOCK);
        memcpy(w->of_o + t * BLOCK, met, keys * sizeof(float));
        j->d->kernels->delta->mix(w->of_v + t * BLOCK, -*head_row(j, j->beta, c->head, x->row + t, 1), met + BLOCK, 0, NULL,
                                  keys);
        w->decay[t] = 1;
    }
}

/* The same, and G, of DeltaNet. */
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

static void fetch(const float *p, size_t n) {
    for (size_t at = 0; at < n; at += TD_CACHE_LINE / sizeof *p) fetch_l1(p + at);
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
                       .a = head_row(j, j->faded, c->head, x->row, 2 * m->key_dim),
                       .lda = m->key_dim,
                       .ldb = n,
                       .b_dtype = TD_DT_F32,
                       .c = w->product,
                       .ldc = n};
    if (c->state) {
        if (x->n <= FEW_ROWS) fetch(v, begun * n); /* they come while S is read */
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

/* A block of KDA is about to end: w->faded has its keys, and w->weight what S keeps of each channel. */
static void fade_keys(const delta_job *j, const recurrence *c, const workspace *w, const delta_piece *x) {
    const td_delta_math *math = j->d->kernels->delta;
    const size_t         dk = j->m->key_dim, begun = x->pos % BLOCK;
    const float         *last = head_row(j, j->sum, c->head, x->row + x->n - 1, dk);
    for (size_t s = 0; s < begun; s++)
        math->fade_channels(last, open_sums(j, c->p->of.open, c->head) + s * dk,
                            open_keys(j, c->p->of.open, c->head) + s * dk, 1, dk, w->faded + s * dk);
    for (size_t t = 0; t < x->n; t++)
        math->fade_channels(last, head_row(j, j->sum, c->head, x->row + t, dk),
                            head_row(j, j->qk, c->head, x->row + t, 2 * dk) + dk, 1, dk, w->faded + (begun + t) * dk);
    math->fade_channels(last, NULL, NULL, 1, dk, w->weight);
}

/* end_block of KDA. */
static void end_faded_block(const delta_job *j, const recurrence *c, const workspace *w, const delta_panel *panel) {
    const td_delta_math *math = j->d->kernels->delta;
    const size_t         dk = j->m->key_dim, n = panel->n;
    float               *next = panel_of(c->next, panel, dk);
    for (size_t i = 0; c->state && i < dk; i++)
        math->mix(next + i * n, w->weight[i], c->state + panel->column * dk + i * n, 0, NULL, n);
    math->fold(&(td_fold_args){.m = dk,
                               .n = n,
                               .keys = BLOCK,
                               .k = w->faded,
                               .ldk = dk,
                               .u = panel_of(c->v, panel, BLOCK),
                               .ldu = n,
                               .in = c->state ? next : NULL,
                               .scale = 1,
                               .out = next,
                               .ld = n});
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

/* What the panels of a block that ends have in common. */
static void prepare_end(const delta_job *j, const recurrence *c, const workspace *w, const delta_piece *x) {
    if (is_kimi(j->m)) {
        fade_keys(j, c, w, x);
        return;
    }
    for (size_t s = 0; s < BLOCK; s++) w->weight[s] = 1;
    j->d->kernels->delta->fade(w->sum[BLOCK - 1], w->sum, BLOCK, w->weight, 1, NULL);
}

/* The last inputs of the convolution in a block that ends. */
static void keep_inputs(const delta_job *j, const recurrence *c, const delta_piece *x) {
    const size_t  kept = j->m->conv_width - 1;
    const int64_t first = (int64_t)x->pos + x->n - (int64_t)kept;
    for (size_t i = 0; i < kept; i++)
        for (const delta_input *in = j->input; in < j->input + INPUTS; in++)
            memcpy(last_inputs(j, c->p->of.to, c->head) + i * j->conv + in->place,
                   input_at(j, c->p, in, c->head, first + (int64_t)i), in->width * sizeof(float));
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
        if (is_kimi(m))
            weigh_faded(j, &c, &w, x);
        else
            weigh(j, &c, &w, x);
        if (ends) {
            c.next = state_of(j, c.p->of.to, c.head) + c.i * of_head;
            prepare_end(j, &c, &w, x);
        }
        for (size_t at = first * PANEL; at < dv && at < (first + j->panels) * PANEL; at += PANEL) {
            const delta_panel panel = {at, dv - at < PANEL ? dv - at : PANEL};
            meet_state(j, &c, &w, x, &panel);
            if (!ends) continue;
            if (is_kimi(m))
                end_faded_block(j, &c, &w, &panel);
            else
                end_block(j, &c, &w, x, &panel);
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
    const float *sum = head_row(j, j->sum, head, row, j->decays);
    for (const delta_input *in = j->input; in < j->input + INPUTS; in++)
        memcpy(open_inputs(j, slot, head) + place * j->conv + in->place, input_row(j, in, head, row),
               in->width * sizeof(float));
    if (is_kimi(j->m))
        memcpy(open_sums(j, slot, head) + place * dk, sum, dk * sizeof(float));
    else
        for (size_t i = 0; i < j->r; i++) open_sums(j, slot, head)[i * BLOCK + place] = sum[i];
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
    const td_delta_math *math = j->d->kernels->delta;
    (void)worker;
    for (size_t t = 0; t < x->n; t++) {
        const size_t row = x->row + t, first = (row * m->value_heads + head * j->r) * dv;
        const float *z = m->z ? j->z + first : input_row(j, &j->input[Q], head, row) + j->conv;
        for (size_t i = 0; i < j->r; i++)
            (is_kimi(m) ? math->sigmoid_norm : math->gated_norm)(j->out + first + i * dv, td_host_vector(m->norm),
                                                                 z + i * dv, m->eps, dv);
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

/* ---- projections ----------------------------------------------------------------------------- */

/* Of DeltaNet a key head's q, k and v lie side by side, in qkv as in the convolution's taps. */
static void lay_joint_inputs(delta_job *j) {
    const td_delta_desc *m = j->m;
    const size_t         per_head = j->conv + (m->z ? 0 : j->r * m->value_dim), width[] = {m->key_dim, m->key_dim};
    size_t               at = 0;
    for (int i = 0; i < INPUTS; i++) {
        const size_t n = i == V ? j->r * m->value_dim : width[i];
        j->input[i] = (delta_input){.width = n,
                                    .place = at,
                                    .at = at,
                                    .per_head = per_head,
                                    .taps = td_host_vector(m->conv) + at,
                                    .ld_taps = m->key_heads * j->conv,
                                    .taps_per_head = j->conv};
        at += n;
    }
    j->ld_qkv = m->key_heads * per_head;
}

/* Of KDA q of all heads comes first, then k and v, each with taps of its own. */
static void lay_inputs_apart(delta_job *j) {
    const td_delta_desc *m = j->m;
    const td_npu_weight *taps[] = {m->conv, m->conv_k, m->conv_v};
    size_t               at = 0;
    for (int i = 0; i < INPUTS; i++) {
        const size_t n = i == V ? m->value_dim : m->key_dim;
        j->input[i] = (delta_input){.width = n,
                                    .place = at,
                                    .at = m->key_heads * at,
                                    .per_head = n,
                                    .taps = td_host_vector(taps[i]),
                                    .ld_taps = m->key_heads * n,
                                    .taps_per_head = n};
        at += n;
    }
    j->ld_qkv = m->key_heads * at;
}

static void project_joint(const delta_job *j, td_host_rows *x) {
    const td_delta_desc  *m = j->m;
    const td_host_product wide[] =
        {{.w = m->qkv, .out = j->qkv, .ldo = j->ld_qkv, .out_dtype = TD_DT_F32},
         {.w = m->z, .out = j->z, .ldo = (size_t)m->value_heads * m->value_dim, .out_dtype = TD_DT_F32}},
                          gates[] = {{.w = m->b, .out = j->b_out, .ldo = j->ld_b, .out_dtype = TD_DT_F32},
                                     {.w = m->a, .out = j->a_out, .ldo = j->ld_a, .out_dtype = TD_DT_F32}};
    td_host_products(j->d, x, wide, m->z ? 2 : 1);
    td_host_products(j->d, x, gates, m->a ? 2 : 1);
}

static void project_apart(const delta_job *j, td_host_rows *x, size_t rows) {
    const td_delta_desc   *m = j->m;
    const td_delta_places *at = &j->b->at.delta;
    float                 *low_a = (float *)(j->d->scratch + at->low_a), *low_z = (float *)(j->d->scratch + at->low_z);
    const size_t           v_width = (size_t)m->value_heads * m->value_dim;
#define INTO(weight, to, width) \
    { .w = weight, .out = to, .ldo = width, .out_dtype = TD_DT_F32 }
    const td_host_product wide[] = {INTO(m->qkv, j->qkv + j->input[Q].at, j->ld_qkv),
                                    INTO(m->k, j->qkv + j->input[K].at, j->ld_qkv),
                                    INTO(m->v, j->qkv + j->input[V].at, j->ld_qkv)},
                          narrow[] = {INTO(m->a_low, low_a, m->low), INTO(m->z_low, low_z, m->low),
                                      INTO(m->b, j->b_out, j->ld_b)},
                          a = INTO(m->a, j->a_out, j->ld_a), z = INTO(m->z, j->z, v_width);
#undef INTO
    td_host_rows low;
    td_host_products(j->d, x, wide, 3);
    td_host_products(j->d, x, narrow, 3);
    td_host_rows_init(&low, j->d->scratch + j->b->at.rows, low_a, TD_DT_F32, rows, m->low);
    td_host_products(j->d, &low, &a, 1);
    td_host_rows_init(&low, j->d->scratch + j->b->at.rows, low_z, TD_DT_F32, rows, m->low);
    td_host_products(j->d, &low, &z, 1);
}

static delta_job open_job(td_host_npu *d, const td_npu_block *b) {
    const td_delta_desc   *m = &b->desc.delta;
    const td_delta_places *at = &b->at.delta;
    const size_t           r = m->value_heads / m->key_heads;
    delta_job              j = {.d = d,
                                .b = b,
                                .m = m,
                                .r = r,
                                .conv = td_delta_conv_rows(m),
                                .decays = td_delta_decays(m),
                                .strip = at->strip,
                                .qkv = (float *)(d->scratch + at->qkv),
                                .z = (float *)(d->scratch + at->z),
                                .b_out = (float *)(d->scratch + at->b),
                                .a_out = (float *)(d->scratch + at->a),
                                .qk = (float *)(d->scratch + at->qk),
                                .faded = (float *)(d->scratch + at->faded),
                                .v = (float *)(d->scratch + at->v),
                                .met = (float *)(d->scratch + at->met),
                                .sum = (float *)(d->scratch + at->sum),
                                .beta = (float *)(d->scratch + at->beta),
                                .out = (float *)(d->scratch + b->at.out)};
    if (is_kimi(m))
        lay_inputs_apart(&j);
    else
        lay_joint_inputs(&j);
    if (!m->a) j.a_out = j.b_out + r; /* of each key head behind its b */
    j.b_per_head = m->a ? r : 2 * r;
    j.a_per_head = m->a ? j.decays : 2 * r;
    j.ld_b = m->key_heads * j.b_per_head;
    j.ld_a = m->key_heads * j.a_per_head;
    return j;
}

static td_status run_delta(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_delta_desc *m = &b->desc.delta;
    const delta_job      j = open_job(d, b);
    const size_t         v_width = (size_t)m->value_heads * m->value_dim;
    TD_TRY(td_host_check_states(s, m->state_slots, m->open_slots));
    for (size_t row = 0; row < s->n_tok; row += b->at.chunk) {
        const size_t rows = s->n_tok - row < b->at.chunk ? s->n_tok - row : b->at.chunk;
        td_host_rows x, o;
        td_host_rows_input(d, &x, d->scratch + b->at.x, m->in, m->in_i8, row, rows, m->hidden);
        if (is_kimi(m))
            project_apart(&j, &x, rows);
        else
            project_joint(&j, &x);
        for (size_t done = 0, n; done < rows; done += n) {
            n = strip_rows(&s->a, row + done, row + rows, j.strip);
            delta_job strip = j;
            strip.qkv += done * j.ld_qkv;
            strip.z += done * v_width;
            strip.b_out += done * j.ld_b;
            strip.a_out += done * j.ld_a;
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
    const bool           kimi = is_kimi(m), z = kimi || m->z, a = kimi || m->a;
    const size_t         heads = m->value_heads, v = heads * m->value_dim, qkv = m->key_heads * td_delta_conv_rows(m),
                 decays = m->key_heads * td_delta_decays(m), low = kimi ? m->low : 0, widest = v > low ? v : low,
                 qk = (size_t)m->key_heads * 2 * m->key_dim, met = (size_t)m->key_heads * 2 * BLOCK,
                 chunk = td_host_chunk_rows(desc->max_tok, (qkv + heads + decays + 2 * low + 2 * v) * sizeof(float)),
                 blocks = td_round_up(d->n_workers, STRIP_WORKERS_PER_BLOCK) / STRIP_WORKERS_PER_BLOCK,
                 strip = BLOCK * (blocks > STRIP_BLOCKS ? blocks : STRIP_BLOCKS);

    td_delta_places *at = &b->at.delta;
    size_t           used = 0;
#define FLOATS(rows, width) td_host_place(&used, (rows) * (width) * sizeof(float))
    b->run = run_delta;
    b->at.chunk = chunk;
    b->at.x = td_host_place(&used, td_host_rows_bytes(chunk, m->hidden, d->act));
    b->at.rows = td_host_place(&used, td_host_rows_bytes(chunk, widest, TD_DT_F32));
    at->strip = strip < chunk ? strip : chunk;
    at->parts = td_host_place(&used, at->strip * sizeof(delta_part));
    at->pieces = td_host_place(&used, at->strip * sizeof(delta_piece));
    at->qkv = FLOATS(chunk, z ? qkv : qkv + v);
    at->z = FLOATS(chunk, z ? v : 0);
    at->b = FLOATS(chunk, a ? heads : 2 * heads);
    at->a = FLOATS(chunk, a ? decays : 0);
    at->low_a = FLOATS(chunk, low);
    at->low_z = FLOATS(chunk, low);
    at->qk = FLOATS(at->strip, qk);
    at->faded = kimi ? FLOATS(at->strip, qk) : at->qk;
    at->v = FLOATS(at->strip, v);
    at->met = FLOATS(at->strip, met);
    at->sum = FLOATS(at->strip, decays);
    at->beta = FLOATS(at->strip, heads);
    b->at.out = FLOATS(chunk, v);
#undef FLOATS
    b->at.per_worker = lay_workspace(m, NULL, NULL);
    b->at.f32 = td_host_place(&used, b->at.per_worker * d->n_workers);
    b->scratch_bytes = used;
}

const td_host_block_kind td_host_delta = {.place = place_delta};
