/*
 * Routed experts that lie in slots of the card's memory, packed as the CPU tier packs them, and the sum of both tiers'
 * parts.
 *
 * DESIGN. As cuda_experts.c, over the choices that have TD_ID_RESIDENT alone. A product's blocks find an expert by its slot,
 * and a tile in it by a table of offsets that the block is made with: kernels/product/packed_expert.h knows where tiles lie.
 * Which expert lies in which slot is read on the card (packed.cuh), so a graph serves any placement. A row whose marked
 * expert has no slot gets a sum of NaNs, which its logits show.
 *
 * Why there is no second form. An upload could make the rows of cuda_weight.h, for the kernels of cuda_experts.c. Each
 * upload would be a pass over the expert's bytes, on the CPU or on the card, with room for a copy. Those rows have no int4
 * with a scale a row, no bf16 and no biases. And products of few rows would gain nothing: they wait for bytes, which are as
 * many in either form.
 */
#include <stdlib.h>

#include "core/error.h"
#include "kernels/exact_sum.h"
#include "kernels/product/group_layout.h"
#include "npu/cuda/cuda_chosen.h"

_Static_assert(TD_CUDA_ID_RESIDENT == TD_ID_RESIDENT && TD_CUDA_NO_SLOT == TD_NO_SLOT &&
                   TD_CUDA_SLOT_ELSEWHERE == TD_SLOT_ELSEWHERE,
               "as the kernels have them");

#define SUM_THREADS 256

static bool is_bf16(const td_resident_desc *x) {
    return x->packed->product == TD_PRODUCT_BF16;
}

static bool is_grouped(const td_resident_desc *x) {
    return x->packed->product == TD_PRODUCT_INT4G || x->packed->product == TD_PRODUCT_FP4G;
}

static td_cuda_choice choice_of(const td_resident_desc *x) {
    return (td_cuda_choice){.hidden = x->hidden,
                            .inter = x->inter,
                            .n_experts = x->n_experts,
                            .top_k = x->top_k,
                            .mark = TD_ID_RESIDENT,
                            .begin = x->first,
                            .end = td_resident_end(x),
                            .slot_of = x->slot_of,
                            .many_rows = is_bf16(x)      ? 0
                                         : is_grouped(x) ? td_cuda_many_in_groups(x->packed->groups.size)
                                                         : TD_CUDA_MANY_ROWS,
                            .ids = x->ids,
                            .weights = x->weights};
}

static size_t place_resident(const td_block_desc *desc, td_cuda_places *at) {
    const td_cuda_choice c = choice_of(&desc->resident);
    return td_cuda_place_experts(desc->max_tok, &c, at);
}

static td_status check_resident(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    const td_resident_desc *x = &desc->resident;
    (void)d;
    return x->in || !is_bf16(x) ? TD_OK : td_fail(err, TD_EINVAL, "resident experts in bf16 need rows in bf16");
}

/* ---- tables -------------------------------------------------------------------------------------- */

/* In the card's memory. */
typedef struct {
    td_cuda_packed      gate_up, down;
    td_cuda_packed_tile tile[]; /* of gate and up in turns, then of down */
} resident_tables;

static uint32_t log2_of(size_t power) {
    return (uint32_t)__builtin_ctzll(power);
}

static td_cuda_packed shape_of(const td_packed_expert *p, bool down) {
    const uint32_t       n = down ? p->hidden : p->inter, n_matrices = down ? 1 : 2;
    const size_t         k = down ? p->inter_k : p->hidden_k, nr = p->sizes.nr;
    const td_gemm_groups g = p->groups;
    td_cuda_packed       out = {.slot_bytes = p->bytes,
                                .n = n,
                                .k = (uint32_t)k,
                                .nr = (uint32_t)nr,
                                .run = p->tiles->run,
                                .flip = p->tiles->flip,
                                .n_matrices = n_matrices,
                                .n_tiles = (uint32_t)(td_div_up(n, nr) * n_matrices),
                                .has_bias = p->sizes.bias};
    if (!g.size) return out;
    out.group_size = g.size;
    out.scale_kind = td_cuda_scale_kind(g.scale_dtype);
    out.scale_bytes = (uint32_t)td_dtype_bytes(g.scale_dtype);
    out.has_zeros = g.zero_points;
    out.head_bytes = (uint32_t)head_bytes(nr, k, &g);
    out.block_bytes = (uint32_t)block_bytes(nr, &g);
    out.block_shift = log2_of(block_k(&g));
    return out;
}

static td_status prepare_resident(td_cuda_npu *d, td_npu_block *b, td_error *err) {
    b->packed = *b->desc.resident.packed;
    b->desc.resident.packed = &b->packed;
    const td_packed_expert *p = &b->packed;
    const td_cuda_packed    gate_up = shape_of(p, false), down = shape_of(p, true);
    const size_t            n = (size_t)gate_up.n_tiles + down.n_tiles,
                 bytes = sizeof(resident_tables) + n * sizeof(td_cuda_packed_tile);
    resident_tables *t = calloc(1, bytes);
    for (size_t i = 0; t && i < n; i++) {
        const bool             is_down = i >= gate_up.n_tiles;
        const td_expert_matrix m = is_down ? TD_EXPERT_DOWN : i % 2 ? TD_EXPERT_UP : TD_EXPERT_GATE;
        size_t                 bias;
        t->tile[i].tile = td_packed_tile_at(p, m, is_down ? i - gate_up.n_tiles : i / 2, &bias);
        t->tile[i].bias = bias;
    }
    if (t) t->gate_up = gate_up, t->down = down;
    return td_card_send(&d->base, t, bytes, "a table of tiles", &b->tables, err);
}

/* ---- one run of rows ----------------------------------------------------------------------------- */

/* out, up [places, n] f32 of the rows of each place, with the biases. @param row_at NULL: in has a row for each place */
static void product(td_cuda_run *r, const td_npu_block *b, const td_cuda_chosen *e, const td_cuda_rows *in,
                    const void *row_at, bool down, void *out, void *up) {
    static const td_cuda_kernel_id IDS[TD_PRODUCTS][2] = {
        [TD_PRODUCT_INT8C] = {TD_CUDA_KERNEL_PACKED_INT8_8, TD_CUDA_KERNEL_PACKED_INT8_64},
        [TD_PRODUCT_INT4C] = {TD_CUDA_KERNEL_PACKED_INT4_8, TD_CUDA_KERNEL_PACKED_INT4_64},
        [TD_PRODUCT_INT4G] = {TD_CUDA_KERNEL_PACKED_INT4_GROUPS_8, TD_CUDA_KERNEL_PACKED_INT4_GROUPS_16},
        [TD_PRODUCT_FP4G] = {TD_CUDA_KERNEL_PACKED_FP4_GROUPS_8, TD_CUDA_KERNEL_PACKED_FP4_GROUPS_16}};
    const td_resident_desc *x = &b->desc.resident;
    const resident_tables  *t = b->tables; /* an address of the card: not read here */
    const td_cuda_packed    shape = shape_of(x->packed, down);
    const size_t            outputs = (size_t)shape.n_tiles * shape.nr;
    const bool              many = e->tile_rows > TD_CUDA_FEW_ROWS;
    const void *at = down ? &t->down : &t->gate_up, *tiles = &t->tile[down ? shape_of(x->packed, false).n_tiles : 0];
    if (is_bf16(x)) {
        void *const args[] = {TD_P(e->totals), TD_P(e->tile),  TD_P(row_at),     TD_P(in->x), TD_P(at),
                              TD_P(tiles),     TD_P(x->slots), TD_P(x->slot_of), TD_P(out),   TD_P(up)};
        td_cuda_launch(r, down ? TD_CUDA_KERNEL_PACKED_BF16_F32 : TD_CUDA_KERNEL_PACKED_BF16,
                       TD_GRID(e->tiles, td_div_up(outputs, TD_CUDA_PACKED_BF16_N), 1), 0, args, sizeof args / sizeof *args);
        return;
    }
    void *const args[] = {TD_P(e->totals),  TD_P(e->tile),   TD_P(row_at),
                          TD_P(in->q),      TD_P(in->scale), TD_U(td_cuda_row_codes(down ? x->inter : x->hidden)),
                          TD_P(at),         TD_P(tiles),     TD_P(x->slots),
                          TD_P(x->slot_of), TD_P(out),       TD_P(up)};
    td_cuda_launch(r, IDS[x->packed->product][many],
                   TD_GRID(e->tiles, td_div_up(outputs, many && !is_grouped(x) ? 64 : TD_CUDA_TILE_N), 1), 0, args,
                   sizeof args / sizeof *args);
}

/* What the gated unit makes of each place, as down takes it. */
static td_cuda_rows gate_and_up(td_cuda_run *r, const td_npu_block *b, const td_cuda_chosen *e, const td_cuda_rows *in) {
    const td_resident_desc *x = &b->desc.resident;
    const td_glu            glu = td_glu_in_full(&x->packed->glu);
    void                   *gate = r->scratch + b->at.wide, *up = r->scratch + b->at.up;
    product(r, b, e, in, e->row_at, false, gate, up);
    if (!is_bf16(x)) return td_cuda_gated_rows(r, &b->at.mid, e->places, glu, gate, up, x->inter);
    TD_CUDA_LAUNCH(r, GLU_F32, TD_GRID(td_div_up(x->inter, TD_CUDA_EACH_VALUES), e->places.most, 1), 0,
                   TD_P(e->places.count), TD_P(gate), TD_P(up), TD_U(x->inter), TD_F(glu.alpha), TD_F(glu.limit),
                   TD_F(glu.up_add));
    return (td_cuda_rows){.n = e->places, .x = gate};
}

static void launch_run(td_cuda_run *r, const td_npu_block *b, const td_cuda_choice *c, const td_cuda_rows *in,
                       size_t first) {
    const td_resident_desc *x = &b->desc.resident;
    const td_cuda_chosen    e = td_cuda_choose(r, b, c, first);
    const td_cuda_rows      h = gate_and_up(r, b, &e, in);
    void                   *down = r->scratch + b->at.up;
    product(r, b, &e, &h, NULL, true, down, NULL);
    TD_CUDA_LAUNCH(r, EXPERTS_PART, TD_GRID(td_div_up(x->hidden, SUM_THREADS), e.rows, 1), 0, TD_P(td_cuda_n_tok(r).count),
                   TD_U(first), TD_P(e.ids), TD_P(e.weights), TD_P(e.place_of), TD_U(x->n_experts), TD_U(x->top_k),
                   TD_U(c->begin), TD_U(c->end), TD_P(x->slot_of), TD_P(down), TD_U(x->hidden),
                   TD_P(td_cuda_at_run(r, first, x->sums, td_exact_words(x->hidden) * sizeof(int32_t))));
}

static void launch_resident(td_cuda_run *r, const td_npu_block *b) {
    const td_resident_desc *x = &b->desc.resident;
    const td_cuda_choice    c = choice_of(x);
    td_cuda_rows            in = {.x = td_cuda_at_row(r, x->in, x->hidden * sizeof(td_bf16))};
    if (!is_bf16(x)) in = td_cuda_input_codes(r, &b->at.in, x->in, x->in_i8, x->hidden);
    for (size_t first = 0; first < r->step->max_tok; first += TD_CUDA_RUN_ROWS) launch_run(r, b, &c, &in, first);
}

const td_cuda_block_kind td_cuda_resident = {
    .place = place_resident, .check = check_resident, .launch = launch_resident, .prepare = prepare_resident};

/* ---- join ---------------------------------------------------------------------------------------- */

static size_t place_join(const td_block_desc *desc, td_cuda_places *at) {
    (void)desc;
    *at = (td_cuda_places){0};
    return 0;
}

static void launch_join(td_cuda_run *r, const td_npu_block *b) {
    const td_join_desc *x = &b->desc.join;
    const td_cuda_count n = td_cuda_n_tok(r);
    const size_t        row = td_exact_words(x->hidden) * sizeof(int32_t);
    TD_CUDA_LAUNCH(r, JOIN, TD_GRID(td_div_up(x->hidden, SUM_THREADS), n.most, 1), 0, TD_P(n.count),
                   TD_P(td_cuda_at_row(r, x->parts[0], row)), TD_P(td_cuda_at_row(r, x->parts[1], row)), TD_U(x->hidden),
                   TD_P(td_cuda_at_row(r, x->out, x->hidden * sizeof(td_bf16))));
}

const td_cuda_block_kind td_cuda_join = {.place = place_join, .launch = launch_join};
