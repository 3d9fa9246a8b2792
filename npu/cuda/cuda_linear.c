/* Products: a linear alone, and the gated MLP of dense layers and shared experts. */
#include "core/error.h"
#include "npu/cuda/cuda_kind.h"

/* ---- linear ------------------------------------------------------------------------------------ */

static size_t place_linear(const td_block_desc *desc, td_cuda_places *at) {
    size_t used = 0;
    *at = (td_cuda_places){0};
    at->in = td_cuda_place_rows(&used, desc->max_tok, desc->linear.k, false);
    return used;
}

static void launch_linear(td_cuda_run *r, const td_npu_block *b) {
    const td_linear_desc *l = &b->desc.linear;
    td_cuda_rows          in = td_cuda_input(r, &b->at.in, &l->w, 1, l->in, (td_rows_i8){0}, l->k);
    td_cuda_product(r, &in, l->w, l->bias, td_cuda_at_row(r, l->out, l->n * sizeof(td_bf16)), false);
}

const td_cuda_block_kind td_cuda_linear = {.place = place_linear, .launch = launch_linear};

/* ---- mlp --------------------------------------------------------------------------------------- */

#define GATE_THREADS 256

static size_t place_mlp(const td_block_desc *desc, td_cuda_places *at) {
    const td_mlp_desc *m = &desc->mlp;
    size_t             used = 0, rows = desc->max_tok;
    *at = (td_cuda_places){0};
    at->in = td_cuda_place_rows(&used, rows, m->hidden, false);
    at->wide = td_cuda_place(&used, rows * m->inter * sizeof(float));
    at->up = td_cuda_place(&used, rows * (m->inter > m->hidden ? m->inter : m->hidden) * sizeof(float));
    at->mid = td_cuda_place_rows(&used, rows, m->inter, true);
    at->gate = td_cuda_place(&used, rows * sizeof(float));
    return used;
}

static bool is_int8_pair(const td_mlp_desc *m) {
    return m->gate->shape.format == TD_WEIGHT_W8A8 && m->up->shape.format == TD_WEIGHT_W8A8;
}

/* As W8A8 in cuda_product.c, with half as many outputs of a block. */
static const td_cuda_variant SWIGLU[] = {{TD_CUDA_KERNEL_W8A8_SWIGLU_8, 8, 8},
                                         {TD_CUDA_KERNEL_W8A8_SWIGLU_16, 16, 8},
                                         {TD_CUDA_KERNEL_W8A8_SWIGLU_32, 32, 16},
                                         {TD_CUDA_KERNEL_W8A8_SWIGLU_64, 64, 32}};

/* Both products and what becomes of them in one launch. */
static td_cuda_rows swiglu_int8(td_cuda_run *r, const td_npu_block *b, const td_cuda_rows *in) {
    const td_mlp_desc *m = &b->desc.mlp;
    void              *wide = r->scratch + b->at.wide;
    if (td_cuda_product_by_library(r, in, m->gate, m->up, NULL, wide, true))
        return td_cuda_rows_of_f32(r, &b->at.mid, m->down, in->n, wide, m->inter);
    const td_cuda_variant v = td_cuda_variant_for(r->d, SWIGLU, sizeof SWIGLU / sizeof *SWIGLU, in->n.most, m->inter);
    void *const           args[] = {TD_P(in->n.count),   TD_P(in->q),
                                    TD_P(in->scale),     TD_U(td_cuda_row_codes(m->hidden)),
                                    TD_P(m->gate->data), TD_P(m->gate->scale),
                                    TD_P(m->up->data),   TD_P(m->up->scale),
                                    TD_U(m->inter),      TD_P(wide)};
    td_cuda_launch(r, v.id, TD_GRID(td_div_up(in->n.most, v.rows), td_div_up(m->inter, v.outputs), 1), 0, args,
                   sizeof args / sizeof *args);
    return td_cuda_rows_of_f32(r, &b->at.mid, m->down, in->n, wide, m->inter);
}

/* silu(gate) * up, as down takes it. */
static td_cuda_rows gate_and_up(td_cuda_run *r, const td_npu_block *b, const td_cuda_rows *in) {
    const td_mlp_desc *m = &b->desc.mlp;
    void              *gate = r->scratch + b->at.wide, *up = r->scratch + b->at.up;
    if (is_int8_pair(m)) return swiglu_int8(r, b, in);
    td_cuda_product(r, in, m->gate, NULL, gate, true);
    td_cuda_product(r, in, m->up, NULL, up, true);
    if (td_weight_takes_int8(m->down->shape.format))
        return td_cuda_gated_rows(r, &b->at.mid, in->n, (td_glu){0}, gate, up, m->inter);
    td_cuda_rows h = {.n = in->n};
    h.x = r->scratch + b->at.mid.x;
    TD_CUDA_LAUNCH(r, SWIGLU, TD_GRID(td_div_up(m->inter, TD_CUDA_EACH_VALUES), in->n.most, 1), 0, TD_P(in->n.count),
                   TD_P(gate), TD_P(up), TD_U(m->inter), TD_P(h.x));
    return h;
}

static void launch_mlp(td_cuda_run *r, const td_npu_block *b) {
    const td_mlp_desc *m = &b->desc.mlp;
    size_t             row = m->hidden * sizeof(td_bf16);
    void              *out = td_cuda_at_row(r, m->out, row);
    td_cuda_rows       in =
        td_cuda_input(r, &b->at.in, (const td_npu_weight *const[]){m->gate, m->up}, 2, m->in, m->in_i8, m->hidden);
    td_cuda_rows h = gate_and_up(r, b, &in);
    if (!m->out_gate) {
        td_cuda_product(r, &h, m->down, NULL, out, false);
        return;
    }
    void *down = r->scratch + b->at.up, *gate = r->scratch + b->at.gate;
    td_cuda_product(r, &h, m->down, NULL, down, true);
    td_cuda_product_f32(r, h.n, td_cuda_at_row(r, m->in, row), m->out_gate, 1, m->hidden, gate);
    TD_CUDA_LAUNCH(r, GATE_ROWS, TD_GRID(td_div_up(m->hidden, GATE_THREADS), h.n.most, 1), 0, TD_P(h.n.count), TD_P(down),
                   TD_P(gate), TD_U(m->hidden), TD_P(out));
}

const td_cuda_block_kind td_cuda_mlp = {.place = place_mlp, .launch = launch_mlp};
