#include "npu/cuda/cuda_chosen.h"

static size_t rows_of_run(size_t rows) {
    return rows < TD_CUDA_RUN_ROWS ? rows : TD_CUDA_RUN_ROWS;
}

/* Tiles of so many pairs at most: full ones, and of each expert one that is not. */
static size_t tiles_most(size_t n_experts, size_t pairs, size_t tile_rows) {
    return pairs / tile_rows + (n_experts < pairs ? n_experts : pairs);
}

size_t td_cuda_place_experts(uint32_t max_tok, const td_cuda_choice *c, td_cuda_places *at) {
    size_t used = 0, pairs = rows_of_run(max_tok) * c->top_k;
    *at = (td_cuda_places){0};
    at->in = td_cuda_place_rows(&used, max_tok, c->hidden, false);
    at->row_at = td_cuda_place(&used, pairs * sizeof(uint32_t));
    at->place_of = td_cuda_place(&used, pairs * sizeof(uint32_t));
    at->tiles = td_cuda_place(&used, tiles_most(c->n_experts, pairs, TD_CUDA_FEW_ROWS) * 3 * sizeof(uint32_t));
    at->count = td_cuda_place(&used, 2 * sizeof(uint32_t));
    at->wide = td_cuda_place(&used, pairs * c->inter * sizeof(float));
    at->up = td_cuda_place(&used, pairs * (c->inter > c->hidden ? c->inter : c->hidden) * sizeof(float));
    at->mid = td_cuda_place_rows(&used, pairs, c->inter, false);
    return used;
}

td_cuda_chosen td_cuda_choose(td_cuda_run *r, const td_npu_block *b, const td_cuda_choice *c, size_t first) {
    td_cuda_chosen out = {.first = first, .rows = rows_of_run(r->step->max_tok - first), .tile_rows = TD_CUDA_FEW_ROWS};
    const size_t   pairs = out.rows * c->top_k;
    if (c->many_rows && pairs >= (size_t)TD_CUDA_FEW_ROWS * c->n_experts) out.tile_rows = c->many_rows;
    out.tiles = tiles_most(c->n_experts, pairs, out.tile_rows);
    out.ids = td_cuda_at_run(r, first, c->ids, c->top_k * sizeof(uint16_t));
    out.weights = td_cuda_at_run(r, first, c->weights, c->top_k * sizeof(float));
    out.row_at = r->scratch + b->at.row_at;
    out.place_of = r->scratch + b->at.place_of;
    out.tile = r->scratch + b->at.tiles;
    out.totals = r->scratch + b->at.count;
    out.places = (td_cuda_count){out.totals, (uint32_t)pairs};
    TD_CUDA_LAUNCH(r, EXPERTS_PLACE, TD_GRID(c->n_experts, 1, 1), c->n_experts * sizeof(int), TD_P(td_cuda_n_tok(r).count),
                   TD_U(first), TD_U(out.rows), TD_P(out.ids), TD_U(c->n_experts), TD_U(c->top_k), TD_U(c->mark),
                   TD_U(c->begin), TD_U(c->end), TD_P(c->slot_of), TD_U(out.tile_rows), TD_P(out.row_at), TD_P(out.place_of),
                   TD_P(out.tile), TD_P(out.totals));
    return out;
}
