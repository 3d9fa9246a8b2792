/*
 * Routed experts that lie on the card, in W8A8 or 4-bit groups.
 *
 * DESIGN. The rows of a step are put in the order of their experts on the card (experts.cu). Products take a tile of one
 * expert's rows a block, with the expert's matrix from a table in device memory; and a row's results are added, times their
 * weights, to an exact sum. An expert's row and the sum have the CPU tier's bits (docs/determinism.md, "A routed expert on
 * any tier"): every operation is the CPU tier's. No length is the host's, so a graph serves every step of its bucket. With
 * several cards each has a stretch of every expert. All add parts of the same experts: the router's sums have the same bits
 * on every card, and so have the rows that it reads.
 */
#include <stdlib.h>

#include "core/error.h"
#include "kernels/exact_sum.h"
#include "npu/cuda/cuda_chosen.h"

#define SUM_THREADS 256

enum { GATE, UP, DOWN, MATRICES };

static bool is_int8(const td_npu_weight *w) {
    return w->shape.format == TD_WEIGHT_W8A8;
}

/* Both products have tiles of the same rows. */
static uint32_t many_rows(const td_experts_desc *x) {
    const td_npu_weight *gate = x->gate[0], *up = x->up[0], *down = x->down[0];
    if (is_int8(gate) != is_int8(down)) return 0;
    if (is_int8(gate)) return TD_CUDA_MANY_ROWS;
    const uint32_t of[] = {gate->groups.size, up->groups.size, down->groups.size};
    return td_cuda_many_in_groups(of[0] < of[1] ? of[0] < of[2] ? of[0] : of[2] : of[1] < of[2] ? of[1] : of[2]);
}

/* @param made false: the weights may be NULL, as in place */
static td_cuda_choice choice_of(const td_experts_desc *x, bool made) {
    return (td_cuda_choice){.hidden = x->hidden,
                            .inter = x->inter,
                            .n_experts = x->n_experts,
                            .top_k = x->top_k,
                            .end = x->top_k,
                            .many_rows = made ? many_rows(x) : 0,
                            .ids = x->ids,
                            .weights = x->weights};
}

static size_t place_experts(const td_block_desc *desc, td_cuda_places *at) {
    const td_cuda_choice c = choice_of(&desc->experts, false);
    return td_cuda_place_experts(desc->max_tok, &c, at);
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

static td_status check_experts(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    (void)d;
    return desc->experts.in ? TD_OK : td_fail(err, TD_EINVAL, "experts on a CUDA card need rows in bf16");
}

static td_status check_formats(const td_experts_desc *x, td_error *err) {
    TD_TRY(check_matrices(x->gate, x->n_experts, "an expert's gate", err));
    TD_TRY(check_matrices(x->up, x->n_experts, "an expert's up", err));
    TD_TRY(check_matrices(x->down, x->n_experts, "an expert's down", err));
    if (is_int8(x->gate[0]) != is_int8(x->up[0]))
        return td_fail(err, TD_ENOTSUP, "of an expert's gate and up one is W8A8 and one is not");
    return TD_OK;
}

/* The table that the products read their matrices from. */
static td_status prepare_experts(td_cuda_npu *d, td_npu_block *b, td_error *err) {
    const td_experts_desc            *x = &b->desc.experts;
    const td_npu_weight *const *const of[MATRICES] = {x->gate, x->up, x->down};
    size_t                            n = (size_t)MATRICES * x->n_experts;
    TD_TRY(check_formats(x, err));
    td_cuda_expert_matrix *table = calloc(n, sizeof *table);
    for (size_t i = 0; table && i < n; i++) {
        const td_npu_weight *w = of[i / x->n_experts][i % x->n_experts];
        table[i] = (td_cuda_expert_matrix){td_cuda_address(w->data), td_cuda_address(w->scale), td_cuda_address(w->zero),
                                           td_cuda_address(w->factor)};
    }
    return td_card_send(&d->base, table, n * sizeof *table, "a table of experts", &b->tables, err);
}

/* ---- one run of rows ---------------------------------------------------------------------------- */

static const void *table_of(const td_npu_block *b, int matrix) {
    return (const td_cuda_expert_matrix *)b->tables + (size_t)matrix * b->desc.experts.n_experts;
}

/* out [places, n] f32; of gate with W8A8, silu(gate) * up. @param row_at NULL: in has a row for each place */
static void product(td_cuda_run *r, const td_npu_block *b, const td_cuda_chosen *e, const td_cuda_rows *in,
                    const void *row_at, int matrix, const td_npu_weight *like, void *out) {
    bool swiglu = matrix == GATE, many = e->tile_rows > TD_CUDA_FEW_ROWS;
    if (!is_int8(like)) {
        void *const                    args[] = {TD_P(e->totals),
                                                 TD_P(e->tile),
                                                 TD_P(row_at),
                                                 TD_P(in->q),
                                                 TD_U(td_cuda_row_codes(like->shape.k)),
                                                 TD_P(in->scale),
                                                 TD_P(table_of(b, matrix)),
                                                 TD_U(td_cuda_scale_kind(like->groups.scale_dtype)),
                                                 TD_U(like->shape.n),
                                                 TD_U(td_round_up(like->shape.k, like->groups.size)),
                                                 TD_U(like->groups.size),
                                                 TD_P(out)};
        static const td_cuda_kernel_id IDS[2][2] = {{TD_CUDA_KERNEL_EXPERTS_FP4_8, TD_CUDA_KERNEL_EXPERTS_FP4_16},
                                                    {TD_CUDA_KERNEL_EXPERTS_INT4_8, TD_CUDA_KERNEL_EXPERTS_INT4_16}};
        td_cuda_launch(r, IDS[like->shape.format == TD_WEIGHT_INT4G][many],
                       TD_GRID(e->tiles, td_div_up(like->shape.n, TD_CUDA_TILE_N), 1), 0, args, sizeof args / sizeof *args);
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
                                             TD_P(table_of(b, matrix)),
                                             TD_P(table_of(b, UP)),
                                             TD_U(like->shape.n),
                                             TD_U(td_cuda_row_codes(like->shape.k)),
                                             TD_P(out)};
    td_cuda_launch(r, IDS[swiglu][many], TD_GRID(e->tiles, td_div_up(like->shape.n, outputs), 1), 0, args,
                   sizeof args / sizeof *args);
}

/* silu(gate) * up of each place, as down takes it. */
static td_cuda_rows gate_and_up(td_cuda_run *r, const td_npu_block *b, const td_cuda_chosen *e, const td_cuda_rows *in) {
    const td_experts_desc *x = &b->desc.experts;
    void                  *gate = r->scratch + b->at.wide, *up = r->scratch + b->at.up;
    product(r, b, e, in, e->row_at, GATE, x->gate[0], gate);
    if (is_int8(x->gate[0])) return td_cuda_rows_of_f32(r, &b->at.mid, x->down[0], e->places, gate, x->inter);
    product(r, b, e, in, e->row_at, UP, x->up[0], up);
    return td_cuda_gated_rows(r, &b->at.mid, e->places, (td_glu){0}, gate, up, x->inter);
}

static void launch_run(td_cuda_run *r, const td_npu_block *b, const td_cuda_choice *c, const td_cuda_rows *in,
                       size_t first) {
    const td_experts_desc *x = &b->desc.experts;
    const td_cuda_chosen   e = td_cuda_choose(r, b, c, first);
    void                  *down = r->scratch + b->at.up;
    td_cuda_rows           h = gate_and_up(r, b, &e, in);
    product(r, b, &e, &h, NULL, DOWN, x->down[0], down);
    TD_CUDA_LAUNCH(r, EXPERTS_SUM, TD_GRID(td_div_up(x->hidden, SUM_THREADS), e.rows, 1), 0, TD_P(td_cuda_n_tok(r).count),
                   TD_U(first), TD_P(e.ids), TD_P(e.weights), TD_P(e.place_of), TD_U(x->n_experts), TD_U(x->top_k),
                   TD_P(down), TD_U(x->hidden), TD_P(td_cuda_at_run(r, first, x->out, x->hidden * sizeof(td_bf16))));
}

static void launch_experts(td_cuda_run *r, const td_npu_block *b) {
    const td_experts_desc *x = &b->desc.experts;
    const td_cuda_choice   c = choice_of(x, true);
    td_cuda_rows           in =
        td_cuda_input(r, &b->at.in, (const td_npu_weight *const[]){x->gate[0], x->up[0]}, 2, x->in, x->in_i8, x->hidden);
    for (size_t first = 0; first < r->step->max_tok; first += TD_CUDA_RUN_ROWS) launch_run(r, b, &c, &in, first);
}

const td_cuda_block_kind td_cuda_experts = {
    .place = place_experts, .check = check_experts, .launch = launch_experts, .prepare = prepare_experts};
