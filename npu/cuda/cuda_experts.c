/*
 * Routed experts that lie on the card, in W8A8 or 4-bit groups.
 *
 * DESIGN. The rows of a step are put in the order of their experts on the card (experts.cu); products take a tile of one
 * expert's rows a block, with the expert's matrix from a table in device memory; and a row's results are added, times their
 * weights, to an exact sum. An expert's row and the sum have the CPU tier's bits (docs/determinism.md, "A routed expert on any
 * tier"): every operation is the CPU tier's. No length is the host's, so a graph serves every step of its bucket. Rows
 * go through in runs of RUN_ROWS, so that what lies between the launches does not grow with the prompts of a step; each run
 * reads the weights anew. With several cards each has a stretch of every expert. All add parts of the same experts: the
 * router's sums have the same bits on every card, and so have the rows that it reads.
 */
#include <stdlib.h>

#include "core/error.h"
#include "kernels/exact_sum.h"
#include "npu/cuda/cuda_kind.h"

#define RUN_ROWS 1024
#define FEW_ROWS 8 /* of a tile; of 4-bit groups always */
#define MANY_ROWS 64
#define SUM_THREADS 256

enum { GATE, UP, DOWN, MATRICES };

static size_t rows_of_run(size_t rows) {
    return rows < RUN_ROWS ? rows : RUN_ROWS;
}
/* Tiles of so many pairs at most: full ones, and of each expert one that is not. */
static size_t tiles_most(const td_experts_desc *x, size_t pairs, size_t tile_rows) {
    return pairs / tile_rows + (x->n_experts < pairs ? x->n_experts : pairs);
}

static size_t place_experts(const td_block_desc *desc, td_cuda_places *at) {
    const td_experts_desc *x = &desc->experts;
    size_t                 used = 0, pairs = rows_of_run(desc->max_tok) * x->top_k;
    *at = (td_cuda_places){0};
    at->in = td_cuda_place_rows(&used, desc->max_tok, x->hidden, false);
    at->row_at = td_cuda_place(&used, pairs * sizeof(uint32_t));
    at->place_of = td_cuda_place(&used, pairs * sizeof(uint32_t));
    at->tiles = td_cuda_place(&used, tiles_most(x, pairs, FEW_ROWS) * 3 * sizeof(uint32_t));
    at->count = td_cuda_place(&used, 2 * sizeof(uint32_t));
    at->wide = td_cuda_place(&used, pairs * x->inter * sizeof(float));
    at->up = td_cuda_place(&used, pairs * (x->inter > x->hidden ? x->inter : x->hidden) * sizeof(float));
    at->mid = td_cuda_place_rows(&used, pairs, x->inter, false);
    return used;
}

static bool is_alike(const td_npu_weight *a, const td_npu_weight *b) {
    return a->shape.format == b->shape.format && a->groups.size == b->groups.size &&
           a->groups.scale_dtype == b->groups.scale_dtype;
}

static td_status check_matrices(const td_npu_weight *const *w, uint32_t n_experts, const char *what, td_error *err) {
    for (uint32_t e = 0; e < n_experts; e++) {
        if (!td_weight_takes_int8(w[e]->shape.format))
            return td_fail(err, TD_ENOTSUP, "%s is bf16 or f32; routed experts on the card are W8A8 or 4-bit groups", what);
        if (!is_alike(w[e], w[0]))
            return td_fail(err, TD_ENOTSUP, "%s has other numbers in expert %u than in the first", what, e);
    }
    return TD_OK;
}

static bool is_int8(const td_npu_weight *w) {
    return w->shape.format == TD_WEIGHT_W8A8;
}

static td_status check_experts(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    (void)d;
    return desc->experts.in ? TD_OK : td_fail(err, TD_EINVAL, "experts on a CUDA card need rows in bf16");
}

static td_status check_formats(const td_cuda_npu *d, const td_experts_desc *x, td_error *err) {
    TD_TRY(check_matrices(x->gate, x->n_experts, "an expert's gate", err));
    TD_TRY(check_matrices(x->up, x->n_experts, "an expert's up", err));
    TD_TRY(check_matrices(x->down, x->n_experts, "an expert's down", err));
    if (is_int8(x->gate[0]) != is_int8(x->up[0]))
        return td_fail(err, TD_ENOTSUP, "of an expert's gate and up one is W8A8 and one is not");
    if (!is_int8(x->gate[0])) TD_TRY(td_cuda_need_shared(d, x->inter * sizeof(float), "an expert of this inter", err));
    return TD_OK;
}

/* The table that the products read their matrices from. */
static td_status prepare_experts(td_cuda_npu *d, td_npu_block *b, td_error *err) {
    const td_experts_desc            *x = &b->desc.experts;
    const td_npu_weight *const *const of[MATRICES] = {x->gate, x->up, x->down};
    size_t                            n = (size_t)MATRICES * x->n_experts;
    TD_TRY(check_formats(d, x, err));
    td_cuda_expert_matrix *table = calloc(n, sizeof *table);
    for (size_t i = 0; table && i < n; i++) {
        const td_npu_weight *w = of[i / x->n_experts][i % x->n_experts];
        table[i] = (td_cuda_expert_matrix){td_cuda_address(w->data), td_cuda_address(w->scale), td_cuda_address(w->zero),
                                           td_cuda_address(w->factor)};
    }
    return td_card_send(&d->base, table, n * sizeof *table, "a table of experts", &b->tables, err);
}

/* ---- one run of rows ---------------------------------------------------------------------------- */

/* Rows of the step from `first` on, by expert. */
typedef struct {
    const td_npu_block *b;
    size_t              first, rows, pairs, tile_rows, tiles;
    const void         *row_at, *place_of, *tile, *totals;
    td_cuda_count       places;
} experts_run;

static experts_run run_of(const td_cuda_run *r, const td_npu_block *b, size_t first, size_t rows) {
    const td_experts_desc *x = &b->desc.experts;
    experts_run            e = {.b = b, .first = first, .rows = rows, .pairs = rows * x->top_k, .tile_rows = FEW_ROWS};
    if (is_int8(x->gate[0]) && is_int8(x->down[0]) && e.pairs >= (size_t)FEW_ROWS * x->n_experts) e.tile_rows = MANY_ROWS;
    e.tiles = tiles_most(x, e.pairs, e.tile_rows);
    e.row_at = r->scratch + b->at.row_at;
    e.place_of = r->scratch + b->at.place_of;
    e.tile = r->scratch + b->at.tiles;
    e.totals = r->scratch + b->at.count;
    e.places = (td_cuda_count){e.totals, (uint32_t)e.pairs};
    return e;
}

/** Of the step's row that the run begins with, in a buffer with rows of so many bytes. */
static const void *at_run(const td_cuda_run *r, const experts_run *e, const void *buffer, size_t row_bytes) {
    return (const char *)td_cuda_at_row(r, buffer, row_bytes) + e->first * row_bytes;
}

static void place_rows(td_cuda_run *r, const experts_run *e) {
    const td_experts_desc *x = &e->b->desc.experts;
    TD_CUDA_LAUNCH(r, EXPERTS_PLACE, TD_GRID(x->n_experts, 1, 1), x->n_experts * sizeof(int), TD_P(td_cuda_n_tok(r).count),
                   TD_U(e->first), TD_U(e->rows), TD_P(at_run(r, e, x->ids, x->top_k * sizeof(uint16_t))),
                   TD_U(x->n_experts), TD_U(x->top_k), TD_U(e->tile_rows), TD_P(e->row_at), TD_P(e->place_of), TD_P(e->tile),
                   TD_P(e->totals));
}

static const void *table_of(const experts_run *e, int matrix) {
    return (const td_cuda_expert_matrix *)e->b->tables + (size_t)matrix * e->b->desc.experts.n_experts;
}

/* out [places, n] f32; of gate with W8A8, silu(gate) * up. @param row_at NULL: in has a row for each place */
static void product(td_cuda_run *r, const experts_run *e, const td_cuda_rows *in, const void *row_at, int matrix,
                    const td_npu_weight *like, void *out) {
    bool swiglu = matrix == GATE, many = e->tile_rows == MANY_ROWS;
    if (!is_int8(like)) {
        void *const args[] = {TD_P(e->totals),
                              TD_P(e->tile),
                              TD_P(row_at),
                              TD_P(in->q),
                              TD_U(td_cuda_row_codes(like->shape.k)),
                              TD_P(in->scale),
                              TD_P(table_of(e, matrix)),
                              TD_U(td_cuda_scale_kind(like->groups.scale_dtype)),
                              TD_U(like->shape.n),
                              TD_U(td_round_up(like->shape.k, like->groups.size)),
                              TD_U(like->groups.size),
                              TD_P(out)};
        td_cuda_launch(r, like->shape.format == TD_WEIGHT_INT4G ? TD_CUDA_KERNEL_EXPERTS_INT4 : TD_CUDA_KERNEL_EXPERTS_FP4,
                       TD_GRID(td_div_up(like->shape.n, TD_CUDA_TILE_N), e->tiles, 1), 0, args, sizeof args / sizeof *args);
        return;
    }
    static const td_cuda_kernel_id IDS[2][2] = {{TD_CUDA_KERNEL_EXPERTS_W8A8_8, TD_CUDA_KERNEL_EXPERTS_W8A8_64},
                                                {TD_CUDA_KERNEL_EXPERTS_SWIGLU_8, TD_CUDA_KERNEL_EXPERTS_SWIGLU_64}};
    size_t                         outputs = (many ? 64 : 16) / (swiglu ? 2 : 1); /* of a block */
    void *const                    args[] = {TD_P(e->totals),
                                             TD_P(e->tile),
                                             TD_P(row_at),
                                             TD_P(in->q),
                                             TD_P(in->scale),
                                             TD_P(table_of(e, matrix)),
                                             TD_P(table_of(e, UP)),
                                             TD_U(like->shape.n),
                                             TD_U(td_cuda_row_codes(like->shape.k)),
                                             TD_P(out)};
    td_cuda_launch(r, IDS[swiglu][many], TD_GRID(td_div_up(like->shape.n, outputs), e->tiles, 1), 0, args,
                   sizeof args / sizeof *args);
}

/* silu(gate) * up of each place, as down takes it. */
static td_cuda_rows gate_and_up(td_cuda_run *r, const experts_run *e, const td_cuda_rows *in) {
    const td_npu_block    *b = e->b;
    const td_experts_desc *x = &b->desc.experts;
    void                  *gate = r->scratch + b->at.wide, *up = r->scratch + b->at.up;
    product(r, e, in, e->row_at, GATE, x->gate[0], gate);
    if (is_int8(x->gate[0])) return td_cuda_rows_of_f32(r, &b->at.mid, x->down[0], e->places, gate, x->inter);
    product(r, e, in, e->row_at, UP, x->up[0], up);
    td_cuda_rows h = {.n = e->places, .q = r->scratch + b->at.mid.q, .scale = r->scratch + b->at.mid.scale};
    TD_CUDA_LAUNCH(r, SWIGLU_QUANTIZE, TD_GRID(h.n.most, 1, 1), x->inter * sizeof(float), TD_P(h.n.count), TD_P(gate),
                   TD_P(up), TD_U(x->inter), TD_P(h.q), TD_U(td_cuda_row_codes(x->inter)), TD_P(h.scale));
    return h;
}

static void launch_run(td_cuda_run *r, const experts_run *e, const td_cuda_rows *in) {
    const td_experts_desc *x = &e->b->desc.experts;
    void                  *down = r->scratch + e->b->at.up;
    place_rows(r, e);
    td_cuda_rows h = gate_and_up(r, e, in);
    product(r, e, &h, NULL, DOWN, x->down[0], down);
    TD_CUDA_LAUNCH(r, EXPERTS_SUM, TD_GRID(td_div_up(x->hidden, SUM_THREADS), e->rows, 1), 0, TD_P(td_cuda_n_tok(r).count),
                   TD_U(e->first), TD_P(at_run(r, e, x->ids, x->top_k * sizeof(uint16_t))),
                   TD_P(at_run(r, e, x->weights, x->top_k * sizeof(float))), TD_P(e->place_of), TD_U(x->n_experts),
                   TD_U(x->top_k), TD_P(down), TD_U(x->hidden), TD_P(at_run(r, e, x->out, x->hidden * sizeof(td_bf16))));
}

static void launch_experts(td_cuda_run *r, const td_npu_block *b) {
    const td_experts_desc *x = &b->desc.experts;
    td_cuda_rows           in =
        td_cuda_input(r, &b->at.in, (const td_npu_weight *const[]){x->gate[0], x->up[0]}, 2, x->in, x->in_i8, x->hidden);
    for (size_t first = 0; first < r->step->max_tok; first += RUN_ROWS) {
        experts_run e = run_of(r, b, first, rows_of_run(r->step->max_tok - first));
        launch_run(r, &e, &in);
    }
}

const td_cuda_block_kind td_cuda_experts = {
    .place = place_experts, .check = check_experts, .launch = launch_experts, .prepare = prepare_experts};
