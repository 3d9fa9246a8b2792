/*
 * Routed experts that lie on the card, W8A8; W4A16 where a checkpoint has 4-bit codes.
 *
 * DESIGN. The rows of a step are put in the order of their experts, each row once for every expert that it chose. Two
 * grouped products, with the middle of the MLP between them, compute all experts' rows. The results go back to their tokens,
 * times their weights, and are added in the order of a token's ids, which is the router's. The host knows no
 * length: the number of rows of each expert stays on the device, so a graph serves every step of its bucket. Rows go through
 * in runs of TD_ASCEND_EXPERT_ROWS, so that what lies between the operations does not grow with the prompts of a step; each
 * run reads the weights anew.
 *
 * W4A16 has rows and the middle in bf16, and no fused operation: product, SwiGlu, product.
 *
 * With several cards each has a stretch of every expert, and all must add parts of the same experts. No document says that
 * two cards' routers give the same bits (aclnnMm is not deterministic by default), so the first card's ids and weights are
 * sent to all.
 */
#include <stdio.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/mem.h"
#include "npu/ascend/ascend_group.h"
#include "npu/ascend/ascend_stack.h"
#include "npu/ascend/ascend_stream.h"
#include "npu/ascend/ascend_sum.h"
#include "npu/ascend/ascend_weight.h"

#define T(v) td_ascend_tensor(r, v)
#define L(v) td_ascend_list(r, T(v))
#define GROUPS_MAX 1024   /* of aclnnGroupedMatmulV5 with one tensor of weights */
#define LAST_MAX 65536    /* the last dimensions of aclnnGroupedMatmulV5 are less than this */
#define SWIGLU_MAX 7232   /* gate and up together, of aclnnDequantSwigluQuantV2 with groups */
#define GATE_UP_MAX 10240 /* gate and up together, of aclnnGroupedMatmulSwigluQuantWeightNZ */

/* Columns of gate, of up, and of what down gives: whole tiles (ascend_weight.h). */
static size_t tiled(uint32_t n) {
    return td_round_up(n, 32);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t place_experts(const td_block_desc *desc, td_ascend_places *at) {
    const td_experts_desc *x = &desc->experts;
    size_t used = 0, rows = desc->max_tok, pairs = least(rows, TD_ASCEND_EXPERT_ROWS) * x->top_k, inter = tiled(x->inter);
    size_t widest = tiled(x->hidden) > inter ? tiled(x->hidden) : inter;
    *at = (td_ascend_places){0};
    at->codes = td_ascend_place(&used, rows * x->hidden); /* of the step's rows, where they do not come so */
    at->scale = td_ascend_place(&used, rows * sizeof(float));
    at->sent = td_ascend_place(&used, pairs * x->hidden);
    at->sent_scale = td_ascend_place(&used, pairs * sizeof(float));
    at->rows = td_ascend_place(&used, pairs * widest * sizeof(td_bf16)); /* that are quantised next; then what down gives */
    at->wide = td_ascend_place(&used, pairs * 2 * inter * sizeof(int32_t));
    at->mid = td_ascend_place(&used, pairs * inter * sizeof(td_bf16)); /* int8, or bf16 of W4A16 */
    at->mid_scale = td_ascend_place(&used, pairs * sizeof(float));
    return used;
}

static td_status check_experts(const td_ascend_npu *d, const td_block_desc *desc, td_error *err) {
    const td_experts_desc *x = &desc->experts;
    if (!td_ascend_has_experts(d->l))
        return td_fail(err, TD_ENOTSUP,
                       "the libraries have not all of aclnnMoeInitRoutingV3 (or V2), aclnnGroupedMatmulV5 and "
                       "aclnnMoeFinalizeRoutingV2, which routed experts on the card need");
    if (x->n_experts > GROUPS_MAX || tiled(x->hidden) >= LAST_MAX || 2 * tiled(x->inter) >= LAST_MAX)
        return td_fail(err, TD_ENOTSUP,
                       "the card's grouped product takes at most %d experts and less than %d columns, not %u of hidden %u "
                       "and inter %u",
                       GROUPS_MAX, LAST_MAX, x->n_experts, x->hidden, x->inter);
    if (!x->in) return td_fail(err, TD_EINVAL, "experts on an Ascend card need rows in bf16");
    if (x->group && !td_ascend_group_has(x->group, d))
        return td_fail(err, TD_EINVAL, "the device is not in the group whose experts it has a part of");
    return TD_OK;
}

/* Columns of a group that would let the card keep 4-bit codes; 0: none. */
static uint32_t group_that_would_do(const td_experts_desc *x) {
    uint32_t group = 128;
    while (group >= 32 && (x->hidden % group || x->inter % group)) group /= 2;
    return group >= 32 ? group : 0;
}

/* Once. */
static void tell_rounded(td_ascend_npu *d, const td_experts_desc *x) {
    const uint32_t group = group_that_would_do(x);
    char           advice[80] = "no groups of 32, 64 or 128 do with so many cards";
    if (d->told_rounded) return;
    d->told_rounded = true;
    if (group) snprintf(advice, sizeof advice, "groups of %u would do", group);
    td_warn(
        "the experts' 4-bit codes are rounded to int8, twice their bytes: the card's product wants groups of one size in "
        "all "
        "experts of a matrix, which divide its inputs (hidden %u, and inter %u on this card): %s",
        x->hidden, x->inter, advice);
}

static td_status prepare_experts(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_experts_desc     *x = &b->desc.experts;
    const td_ascend_stack_part gate_up[2] = {{"an expert's gate", x->gate, x->inter, x->hidden},
                                             {"an expert's up", x->up, x->inter, x->hidden}},
                               down = {"an expert's down", x->down, x->hidden, x->inter};
    bool int4 = td_ascend_stack_takes_int4(gate_up, 2, x->n_experts, x->hidden) &&
                td_ascend_stack_takes_int4(&down, 1, x->n_experts, tiled(x->inter));
    if (!int4 && td_ascend_stack_has_int4(gate_up)) tell_rounded(d, x);
    TD_TRY(td_ascend_stack_of(d, gate_up, 2, x->n_experts, x->hidden, int4, &b->gate_up, err));
    return td_ascend_stack_of(d, &down, 1, x->n_experts, tiled(x->inter), int4, &b->down, err);
}

/* ---- one run of rows ---------------------------------------------------------------------------- */

typedef struct {
    const td_experts_desc *x;
    bool                   sums;               /* counts are cumulated, as one of the operations wants them */
    size_t                 first, rows, pairs; /* of the step's rows; top_k pairs each */
    td_ascend_view         ids, places, weights, counts, counts32, list; /* list: as the products take counts */
} experts_run;

/* The rules of GroupedMatmulSwigluQuantWeightNZ's document, and whole tiles. It takes cumulated counts. */
static bool takes_gate_up(const td_ascend_run *r, const td_ascend_stack *w) {
    bool has_sums = TD_ASCEND_HAS(r, aclnnCumsum) || !TD_ASCEND_HAS(r, aclnnMoeInitRoutingV3);
    return !w->group && TD_ASCEND_HAS(r, aclnnGroupedMatmulSwigluQuantWeightNZ) && has_sums && w->n <= GATE_UP_MAX &&
           w->n % 32 == 0 && w->k % 16 == 0 && w->k < LAST_MAX;
}

static experts_run run_of(const td_ascend_run *r, const td_npu_block *b, size_t first) {
    const td_experts_desc *x = &b->desc.experts;
    const td_ascend_route *o = r->route;
    experts_run            e = {.x = x,
                                .sums = takes_gate_up(r, b->gate_up),
                                .first = first,
                                .rows = least(r->step->max_tok - first, TD_ASCEND_EXPERT_ROWS)};
    size_t                 at = first / TD_ASCEND_EXPERT_ROWS * x->n_experts;
    e.pairs = e.rows * x->top_k;
    e.ids = x->group ? td_ascend_rows_of(o->ids, TD_ACL_INT32, first, e.rows, x->top_k)
                     : td_ascend_rows_of(x->ids, TD_ACL_INT32, r->step->first_row + first, e.rows, x->top_k);
    e.places = td_ascend_vector(o->places, TD_ACL_INT32, first * x->top_k, e.pairs);
    e.counts = td_ascend_vector(o->counts, TD_ACL_INT64, at, x->n_experts);
    e.counts32 = td_ascend_vector(o->counts32, TD_ACL_INT32, at, x->n_experts);
    e.list = e.sums && TD_ASCEND_HAS(r, aclnnMoeInitRoutingV3) ? td_ascend_vector(o->sums, TD_ACL_INT64, at, x->n_experts)
                                                               : e.counts;
    e.weights = x->group ? td_ascend_rows_of(o->ids, TD_ACL_FLOAT, 0, e.rows, x->top_k)
                         : td_ascend_rows_of(x->weights, TD_ACL_FLOAT, r->step->first_row + first, e.rows, x->top_k);
    if (x->group) e.weights.offset = (int64_t)((r->step->max_tok + first) * x->top_k); /* behind the ids */
    return e;
}

static td_ascend_input pairs_of(const td_ascend_run *r, size_t codes, size_t scale, size_t pairs, size_t width) {
    return (td_ascend_input){.x = td_ascend_rows_of(r->scratch + codes, TD_ACL_INT8, 0, pairs, width),
                             .scale = td_ascend_vector(r->scratch + scale, TD_ACL_FLOAT, 0, pairs)};
}

static td_ascend_view some_rows(td_ascend_view v, size_t first, size_t rows) {
    v.offset += (int64_t)first * v.stride[0];
    v.shape[0] = (int64_t)rows;
    return v;
}

/* Rows in the order of their experts, with the newer operation. It gives counts only: its tiling refuses cumulated ones
 * (ops-transformer, moe_init_routing_v3_tiling.cpp). scales: of int8 rows, which are sent, too; else sent_scale stays as it
 * is. */
static void send_by_v3(td_ascend_run *r, const experts_run *e, td_ascend_view rows, const td_ascend_view *scales,
                       td_ascend_view sent, td_ascend_view sent_scale) {
    const int64_t     every[2] = {0, e->x->n_experts};
    td_acl_int_array *range = r->status == TD_OK ? r->d->acl->aclCreateIntArray(every, 2) : NULL;
    if (!range && r->status == TD_OK) r->status = TD_EDEVICE;
    TD_ASCEND_OP(r, aclnnMoeInitRoutingV3, T(rows), T(e->ids), scales ? T(*scales) : NULL, NULL, (int64_t)e->pairs, 0,
                 e->x->n_experts, 0, 1, true, -1, range, 0, T(sent), T(e->places), T(e->counts), T(sent_scale));
    if (e->sums) TD_ASCEND_OP(r, aclnnCumsum, T(e->counts), 0, TD_ACL_INT64, T(e->list));
    if (range) (void)r->d->acl->aclDestroyIntArray(range);
}

/* Rows in the order of their experts, as bf16. */
static td_ascend_view send_floats(td_ascend_run *r, const td_npu_block *b, const experts_run *e) {
    const td_experts_desc *x = e->x;
    td_ascend_view         rows = td_ascend_rows_of(x->in, TD_ACL_BF16, r->step->first_row + e->first, e->rows, x->hidden),
                   sent = td_ascend_rows_of(r->scratch + b->at.rows, TD_ACL_BF16, 0, e->pairs, x->hidden);
    if (TD_ASCEND_HAS(r, aclnnMoeInitRoutingV3)) {
        send_by_v3(r, e, rows, NULL, sent, td_ascend_vector(r->scratch + b->at.sent_scale, TD_ACL_FLOAT, 0, e->pairs));
        return sent;
    }
    TD_ASCEND_OP(r, aclnnMoeInitRoutingV2, T(rows), T(e->ids), 0, 0, x->n_experts, 0, e->sums ? 1 : 2, false, T(sent),
                 T(e->places), T(e->counts32), NULL);
    td_ascend_op_cast(r, e->counts32, e->counts);
    return sent;
}

/* Rows in the order of their experts, as int8. all: the step's rows as int8, where the library sends those. */
static td_ascend_input send_rows(td_ascend_run *r, const td_npu_block *b, const experts_run *e, td_ascend_input all) {
    td_ascend_input sent = pairs_of(r, b->at.sent, b->at.sent_scale, e->pairs, e->x->hidden);
    if (TD_ASCEND_HAS(r, aclnnMoeInitRoutingV3)) {
        td_ascend_view scales = some_rows(all.scale, e->first, e->rows);
        send_by_v3(r, e, some_rows(all.x, e->first, e->rows), &scales, sent.x, sent.scale);
    } else {
        td_ascend_op_quantize(r, send_floats(r, b, e), sent.x, sent.scale);
    }
    return sent;
}

/* out = x w^T of each expert's rows: bf16 with both scales, or sums of int32. */
static void grouped_product(td_ascend_run *r, const experts_run *e, td_ascend_input in, const td_ascend_stack *w,
                            td_ascend_view out) {
    bool           sums = out.dtype == TD_ACL_INT32;
    td_ascend_view scale = td_ascend_rows_of(w->scale16, TD_ACL_BF16, 0, w->n_experts, w->n);
    TD_ASCEND_OP(r, aclnnGroupedMatmulV5, L(in.x),
                 td_ascend_list(r, td_ascend_tensor_nz_stack(r, w->data, w->n_experts, w->k, w->n)), NULL,
                 sums ? NULL : L(scale), NULL, NULL, NULL, sums ? NULL : L(in.scale), T(e->list), NULL, NULL, NULL, 2, 0,
                 e->sums ? 0 : 1, 0, NULL, L(out), NULL, NULL);
}

/* silu(gate) * up of each expert's rows, as int8. */
static td_ascend_input gate_up(td_ascend_run *r, const td_npu_block *b, const experts_run *e, td_ascend_input sent) {
    const td_ascend_stack *w = b->gate_up;
    size_t                 inter = w->n / 2;
    td_ascend_input        mid = pairs_of(r, b->at.mid, b->at.mid_scale, e->pairs, inter);
    td_ascend_view         scale = td_ascend_rows_of(w->scale, TD_ACL_FLOAT, 0, w->n_experts, w->n);
    if (e->sums) {
        TD_ASCEND_OP(r, aclnnGroupedMatmulSwigluQuantWeightNZ, T(sent.x),
                     td_ascend_tensor_tiles(r, w->data, w->n_experts, w->k, w->n), NULL, NULL, T(scale), T(sent.scale),
                     T(e->list), T(mid.x), T(mid.scale), NULL);
        return mid;
    }
    bool           fused = TD_ASCEND_HAS(r, aclnnDequantSwigluQuantV2) && w->n <= SWIGLU_MAX;
    td_ascend_view wide = td_ascend_rows_of(r->scratch + b->at.wide, fused ? TD_ACL_INT32 : TD_ACL_BF16, 0, e->pairs, w->n);
    grouped_product(r, e, sent, w, wide);
    if (fused) {
        char dynamic[] = "dynamic", rint_mode[] = "rint";
        TD_ASCEND_OP(r, aclnnDequantSwigluQuantV2, T(wide), T(scale), T(sent.scale), NULL, NULL, NULL, T(e->list), true,
                     dynamic, TD_ACL_INT8, rint_mode, -1, 0, 7.0, 1.702, 1.0, T(mid.x), T(mid.scale));
        return mid;
    }
    td_ascend_view h = td_ascend_rows_of(r->scratch + b->at.rows, TD_ACL_BF16, 0, e->pairs, inter);
    TD_ASCEND_OP(r, aclnnSwiGlu, T(wide), -1, T(h));
    td_ascend_op_quantize(r, h, mid.x, mid.scale);
    return mid;
}

/* out = x w^T of each expert's rows of bf16, with weights of 4-bit codes. */
static void grouped_product_int4(td_ascend_run *r, const experts_run *e, td_ascend_view x, const td_ascend_stack *w,
                                 td_ascend_view out) {
    size_t         groups = w->n_experts * (w->k / w->group);
    td_ascend_view scale = td_ascend_heads(
                       td_ascend_rows_of(w->scale16, TD_ACL_BF16, 0, w->n_experts, groups / w->n_experts * w->n),
                       w->k / w->group, w->n, w->n),
                   offset = scale;
    offset.data = w->offset16;
    TD_ASCEND_OP(r, aclnnGroupedMatmulV5, L(x),
                 td_ascend_list(r, td_ascend_tensor_int4(r, w->data, w->n_experts, w->k, w->n)), NULL, NULL, NULL, L(scale),
                 L(offset), NULL, T(e->list), NULL, NULL, NULL, 2, 0, 1, 0, NULL, L(out), NULL, NULL);
}

/* What down gives each expert's rows, W4A16. */
static void run_int4(td_ascend_run *r, const td_npu_block *b, const experts_run *e, td_ascend_view back) {
    const size_t   n = b->gate_up->n;
    td_ascend_view wide = td_ascend_rows_of(r->scratch + b->at.wide, TD_ACL_BF16, 0, e->pairs, n),
                   mid = td_ascend_rows_of(r->scratch + b->at.mid, TD_ACL_BF16, 0, e->pairs, n / 2);
    grouped_product_int4(r, e, send_floats(r, b, e), b->gate_up, wide);
    TD_ASCEND_OP(r, aclnnSwiGlu, T(wide), -1, T(mid));
    grouped_product_int4(r, e, mid, b->down, back);
}

static void launch_run(td_ascend_run *r, const td_npu_block *b, const experts_run *e, td_ascend_input all) {
    const td_experts_desc *x = e->x;
    td_ascend_view         back = td_ascend_rows_of(r->scratch + b->at.rows, TD_ACL_BF16, 0, e->pairs, b->down->n),
                   out = td_ascend_rows_of(x->out, TD_ACL_BF16, r->step->first_row + e->first, e->rows, x->hidden);
    if (b->down->group)
        run_int4(r, b, e, back);
    else
        grouped_product(r, e, gate_up(r, b, e, send_rows(r, b, e, all)), b->down, back);
    TD_ASCEND_OP(r, aclnnMoeFinalizeRoutingV2, T(td_ascend_columns(back, 0, x->hidden)), T(e->places), NULL, NULL, NULL,
                 T(e->weights), NULL, 2, T(out));
}

/* ---- the block ----------------------------------------------------------------------------------- */

static void copy_words(td_ascend_run *r, void *to, const void *from, size_t n) {
    if (r->status != TD_OK) return;
    td_acl_status code = r->d->acl->aclrtMemcpyAsync(to, n * 4, from, n * 4, TD_ACL_MEMCPY_DEVICE_TO_DEVICE, r->stream);
    if (code == TD_ACL_SUCCESS) {
        td_card_launched(r->s, 1);
        return;
    }
    (void)td_ascend_failed(r->d, "aclrtMemcpyAsync", code, NULL);
    r->status = TD_EDEVICE;
}

/* The first card's ids and weights, for all. */
static void share_choice(td_ascend_run *r, const td_experts_desc *x) {
    size_t first = r->step->first_row * (size_t)x->top_k, pairs = r->step->max_tok * (size_t)x->top_k;
    copy_words(r, r->route->ids, (const int32_t *)x->ids + first, pairs);
    copy_words(r, r->route->weights, x->weights + first, pairs);
    if (r->status == TD_OK) td_ascend_op_first_cards(r, x->group, r->route->ids, 2 * pairs);
}

static void launch_experts(td_ascend_run *r, const td_npu_block *b) {
    const td_experts_desc *x = &b->desc.experts;
    size_t                 rows = r->step->max_tok, first = r->step->first_row;
    td_ascend_input        all = {0};
    if (x->group) share_choice(r, x);
    bool codes = TD_ASCEND_HAS(r, aclnnMoeInitRoutingV3) && !b->down->group; /* go to the experts */
    if (codes && x->in_i8.q)
        all = (td_ascend_input){.x = td_ascend_rows_of(x->in_i8.q, TD_ACL_INT8, first, rows, x->hidden),
                                .scale = td_ascend_vector(x->in_i8.scale, TD_ACL_FLOAT, first, rows)};
    else if (codes)
        all = td_ascend_codes_of(r, b, td_ascend_in_rows(r, x->in, x->hidden));
    for (size_t row = 0; row < rows; row += TD_ASCEND_EXPERT_ROWS) {
        experts_run e = run_of(r, b, row);
        launch_run(r, b, &e, all);
    }
}

const td_ascend_block_kind td_ascend_experts = {
    .place = place_experts, .check = check_experts, .prepare = prepare_experts, .launch = launch_experts};
