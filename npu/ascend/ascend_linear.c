/* Products: a linear alone, and the gated MLP of dense layers and shared experts. */
#include "core/error.h"
#include "core/memory/mem.h"
#include "npu/ascend/ascend_weight.h"

#define T(v) td_ascend_tensor(r, v)

/* ---- linear ------------------------------------------------------------------------------------ */

static size_t place_linear(const td_block_desc *desc, td_ascend_places *at) {
    size_t used = 0;
    *at = (td_ascend_places){0};
    at->codes = td_ascend_place(&used, (size_t)desc->max_tok * desc->linear.k * sizeof(float)); /* or the rows in f32 */
    at->scale = td_ascend_place(&used, desc->max_tok * sizeof(float));
    at->wide = td_ascend_place(&used, (size_t)desc->max_tok * (desc->linear.n + 32) * sizeof(float));
    return used;
}

static td_status prepare_linear(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_linear_desc *l = &b->desc.linear;
    td_ascend_part        part = {.what = "w", .w = l->w, .bias = l->bias, .n = l->n, .k = l->k};
    return td_ascend_matrix_of(d, &part, 1, l->k, &b->in, err);
}

static void launch_linear(td_ascend_run *r, const td_npu_block *b) {
    const td_linear_desc   *l = &b->desc.linear;
    const td_ascend_matrix *m = b->in;
    td_ascend_view          x = td_ascend_in_rows(r, l->in, l->k), out = td_ascend_in_rows(r, l->out, l->n);
    if (m->format != TD_WEIGHT_F32) {
        td_ascend_op_matrix_to(r, td_ascend_input_of(r, b, m, x), m, r->scratch + b->at.wide, out);
        return;
    }
    td_ascend_view wide = td_ascend_scratch_rows(r, b->at.wide, TD_ACL_FLOAT, l->n),
                   f = td_ascend_scratch_rows(r, b->at.codes, TD_ACL_FLOAT, l->k);
    td_ascend_op_cast(r, x, f);
    td_ascend_op_matrix(r, (td_ascend_input){.x = f}, m, wide);
    td_ascend_op_cast(r, wide, out);
}

const td_ascend_block_kind td_ascend_linear = {.place = place_linear, .prepare = prepare_linear, .launch = launch_linear};

/* ---- mlp --------------------------------------------------------------------------------------- */

/* Columns of gate, and of up: whole tiles of W8A8 (ascend_weight.h). */
static size_t inter_of(const td_block_desc *desc) {
    return td_round_up(desc->mlp.inter, 32);
}

static size_t place_mlp(const td_block_desc *desc, td_ascend_places *at) {
    size_t used = 0, rows = desc->max_tok, inter = inter_of(desc), hidden = td_round_up(desc->mlp.hidden, 32);
    size_t widest = inter > hidden ? inter : hidden;
    *at = (td_ascend_places){0};
    at->codes = td_ascend_place(&used, rows * widest);
    at->scale = td_ascend_place(&used, rows * sizeof(float));
    at->wide = td_ascend_place(&used, rows * 2 * inter * sizeof(td_bf16));
    at->rows = td_ascend_place(&used, rows * widest * sizeof(td_bf16));
    at->f32 = td_ascend_place(&used, rows * hidden * sizeof(float));
    at->gate = td_ascend_place(&used, rows * sizeof(float));
    at->values = td_ascend_place(&used, rows * sizeof(float));
    return used;
}

static td_status prepare_mlp(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_mlp_desc *m = &b->desc.mlp;
    /* Blocks of inter outputs become blocks of whole tiles, so that the halves are equal in every format. */
    size_t               to = inter_of(&b->desc);
    bool                 int8 = m->in_i8.q != NULL;
    const td_ascend_part gate_up[2] = {{.what = "gate",
                                        .w = m->gate,
                                        .n = m->inter,
                                        .k = m->hidden,
                                        .lead = m->inter,
                                        .lead_to = to,
                                        .blocks_to = 1,
                                        .int8 = int8},
                                       {.what = "up",
                                        .w = m->up,
                                        .n = m->inter,
                                        .k = m->hidden,
                                        .lead = m->inter,
                                        .lead_to = to,
                                        .blocks_to = 1,
                                        .int8 = int8}},
                         down = {.what = "down", .w = m->down, .n = m->hidden, .k = m->inter};
    TD_TRY(td_ascend_matrix_of(d, gate_up, 2, m->hidden, &b->in, err));
    TD_TRY(td_ascend_matrix_of(d, &down, 1, to, &b->out, err));
    if (td_ascend_is_coded(b->in) != td_ascend_is_coded(b->out) || b->in->format == TD_WEIGHT_F32)
        return td_fail(err, TD_ENOTSUP, "an mlp's weights must all be of codes, or all bf16");
    return td_ascend_plain_of(m->out_gate, "out_gate", &b->gamma[0], err);
}

/* out *= sigmoid(out_gate . in) */
static void launch_out_gate(td_ascend_run *r, const td_npu_block *b, td_ascend_view out) {
    const td_mlp_desc *m = &b->desc.mlp;
    td_ascend_view     x = td_ascend_scratch_rows(r, b->at.f32, TD_ACL_FLOAT, m->hidden),
                   w = td_ascend_rows_of(b->gamma[0], TD_ACL_FLOAT, 0, 1, m->hidden),
                   dot = td_ascend_scratch_rows(r, b->at.gate, TD_ACL_FLOAT, 1),
                   gate = td_ascend_scratch_rows(r, b->at.values, TD_ACL_FLOAT, 1), rounded = dot;
    rounded.dtype = TD_ACL_BF16;
    td_ascend_op_cast(r, td_ascend_in_rows(r, m->in, m->hidden), x);
    td_ascend_op_product(r, x, td_ascend_transposed(w), dot);
    TD_ASCEND_OP(r, aclnnSigmoid, T(dot), T(gate));
    td_ascend_op_cast(r, gate, rounded);
    TD_ASCEND_OP(r, aclnnInplaceMul, T(out), T(rounded));
}

#define SWIGLU_QUANT_BYTES (192 << 10)
#define SWIGLU_MAX 7232 /* gate and up together, of the newer operation, which wants groups */

/* The rule of DequantSwigluQuant's document for rows of bf16; 910C does not have it. */
static bool takes_swiglu_quant(const td_ascend_run *r, const td_npu_block *b) {
    size_t bytes = r->step->max_tok * sizeof(float) / 40 + 10 * 2 * inter_of(&b->desc) * sizeof(td_bf16);
    return r->d->is_a2 && TD_ASCEND_HAS(r, aclnnDequantSwigluQuant) && bytes < SWIGLU_QUANT_BYTES;
}

/* The same with all rows as one group. */
static bool takes_grouped_swiglu_quant(const td_ascend_run *r, const td_npu_block *b) {
    return TD_ASCEND_HAS(r, aclnnDequantSwigluQuantV2) && 2 * inter_of(&b->desc) <= SWIGLU_MAX;
}

/* silu(gate) * up of wide [rows, 2 inter], as the second product takes it. */
static td_ascend_input swiglu(td_ascend_run *r, const td_npu_block *b, td_ascend_view wide) {
    size_t inter = inter_of(&b->desc), rows = r->step->max_tok;
    bool   one_by_one = b->out->format != TD_WEIGHT_W8A8;
    if (one_by_one || (!takes_swiglu_quant(r, b) && !takes_grouped_swiglu_quant(r, b))) {
        td_ascend_view h = td_ascend_scratch_rows(r, b->at.rows, TD_ACL_BF16, inter);
        TD_ASCEND_OP(r, aclnnSwiGlu, T(wide), -1, T(h));
        return td_ascend_input_of(r, b, b->out, h);
    }
    char            dynamic[] = "dynamic";
    td_ascend_input in = {.x = td_ascend_scratch_rows(r, b->at.codes, TD_ACL_INT8, inter),
                          .scale = td_ascend_vector(r->scratch + b->at.scale, TD_ACL_FLOAT, 0, rows)};
    if (takes_swiglu_quant(r, b))
        TD_ASCEND_OP(r, aclnnDequantSwigluQuant, T(wide), NULL, NULL, NULL, NULL, NULL, NULL, true, dynamic, T(in.x),
                     T(in.scale));
    else
        TD_ASCEND_OP(r, aclnnDequantSwigluQuantV2, T(wide), NULL, NULL, NULL, NULL, NULL,
                     T(td_ascend_vector(r->made->n_rows, TD_ACL_INT64, 0, 1)), true, dynamic, TD_ACL_INT8, NULL, -1, 0, 7.0,
                     1.702, 1.0, T(in.x), T(in.scale));
    return in;
}

static void launch_mlp(td_ascend_run *r, const td_npu_block *b) {
    const td_mlp_desc *m = &b->desc.mlp;
    size_t             inter = inter_of(&b->desc);
    td_ascend_view     out = td_ascend_in_rows(r, m->out, m->hidden);
    td_ascend_view     wide = td_ascend_scratch_rows(r, b->at.wide, TD_ACL_BF16, 2 * inter);
    td_ascend_op_matrix(r, td_ascend_block_input(r, b, b->in, m->in, m->in_i8, m->hidden), b->in, wide);
    td_ascend_op_matrix_to(r, swiglu(r, b, wide), b->out, r->scratch + b->at.f32, out);
    if (m->out_gate) launch_out_gate(r, b, out);
}

const td_ascend_block_kind td_ascend_mlp = {.place = place_mlp, .prepare = prepare_mlp, .launch = launch_mlp};
