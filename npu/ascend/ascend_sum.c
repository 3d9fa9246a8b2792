#include "npu/ascend/ascend_sum.h"

#include "core/error.h"
#include "npu/ascend/ascend_group.h"
#include "npu/ascend/ascend_kind.h"
#include "npu/ascend/ascend_stream.h"

#define CHUNK_ROWS 512 /* that are gathered from more than two cards at a time */

/* @return false: nothing is to be given to the stream, and nothing to be left. */
static bool enter(td_ascend_run *r, td_npu_group *g) {
    if (r->status != TD_OK) return false;
    if (r->s->base.capture) r->s->base.capture->group = g;
    r->status = td_ascend_stream_enter(r->s, g);
    return r->status == TD_OK;
}

static void leave(td_ascend_run *r, td_npu_group *g) {
    td_ascend_group_leave(g, r->d);
    if (r->status == TD_OK) td_card_launched(r->s, 1);
}

void td_ascend_op_first_cards(td_ascend_run *r, td_npu_group *g, void *at, size_t n) {
    if (!enter(r, g)) return;
    r->status = td_ascend_group_broadcast(g, r->d, r->stream, at, n);
    leave(r, g);
}

static void sum_over_cards(td_ascend_run *r, td_npu_group *g, const void *send, void *receive, size_t n) {
    if (!enter(r, g)) return;
    r->status = td_ascend_group_sum(g, r->d, r->stream, send, receive, n);
    leave(r, g);
}

/* ---- the sum ----------------------------------------------------------------------------------- */

/* What a block works on: rows of the step's bucket, from its first. */
typedef struct {
    const td_all_reduce_desc *a;
    size_t                    first, rows;
} part;

static td_ascend_view rows_of(const part *p, const void *at) {
    return td_ascend_rows_of(at, TD_ACL_BF16, p->first, p->rows, p->a->width);
}

static char *bytes_of(const part *p, const void *at) {
    return (char *)at + p->first * p->a->width * sizeof(td_bf16);
}

static void zero(td_ascend_run *r, void *at, size_t bytes) {
    if (r->status != TD_OK) return;
    td_acl_status code = r->d->acl->aclrtMemsetAsync(at, bytes, 0, bytes, r->stream);
    if (code != TD_ACL_SUCCESS)
        r->status = td_ascend_failed(r->d, "aclrtMemsetAsync", code, NULL);
    else
        td_card_launched(r->s, 1);
}

/* x = f32 sums of what lies in n places, in their order; y is scratch of the same size. */
static void sum_in_order(td_ascend_run *r, const td_ascend_view *from, size_t n, td_ascend_view x, td_ascend_view y) {
    td_ascend_op_cast(r, from[0], x);
    for (size_t i = 1; i < n; i++) {
        td_ascend_op_cast(r, from[i], y);
        td_ascend_op_add_to(r, x, y);
    }
}

/* The card's own part as bf16, in `out`, or where it lies already. Two bf16 are added and rounded once in either type. */
static const void *own_part(td_ascend_run *r, const part *p, td_ascend_view x, td_ascend_view y) {
    const td_all_reduce_desc *a = p->a;
    const void               *add[3];
    td_ascend_view            from[3];
    size_t                    n = 0;
    for (size_t i = 0; i < 3; i++)
        if (a->add[i]) {
            from[n] = rows_of(p, a->add[i]);
            add[n++] = a->add[i];
        }
    if (n == 1) return add[0];
    if (n == 0)
        zero(r, bytes_of(p, a->out), p->rows * a->width * sizeof(td_bf16));
    else if (n == 2 && (add[0] == a->out || add[1] == a->out))
        td_ascend_op_add_to(r, rows_of(p, a->out), from[add[0] == a->out]);
    else if (n == 2)
        td_ascend_op_add(r, from[0], from[1], rows_of(p, a->out));
    else {
        sum_in_order(r, from, n, x, y);
        td_ascend_op_cast(r, x, rows_of(p, a->out));
    }
    return a->out;
}

static void launch(td_ascend_run *r, const td_npu_block *b) {
    const td_all_reduce_desc *a = &b->desc.all_reduce;
    td_npu_group             *g = a->group;
    size_t                    cards = td_ascend_group_cards(g);
    size_t                    chunk = b->desc.max_tok < CHUNK_ROWS ? b->desc.max_tok : CHUNK_ROWS;
    for (size_t row = 0; row < r->step->max_tok; row += chunk) {
        size_t         rows = r->step->max_tok - row < chunk ? r->step->max_tok - row : chunk, n = rows * a->width;
        part           p = {a, r->step->first_row + row, rows};
        td_ascend_view x = td_ascend_rows_of(r->scratch + b->at.f32, TD_ACL_FLOAT, 0, rows, a->width),
                       y = td_ascend_rows_of(r->scratch + b->at.values, TD_ACL_FLOAT, 0, rows, a->width);
        const void *own = own_part(r, &p, x, y);
        if (!td_ascend_group_gathers(g)) {
            sum_over_cards(r, g, bytes_of(&p, own), bytes_of(&p, a->out), n);
            continue;
        }
        td_ascend_view parts[TD_CARDS_MAX];
        for (size_t i = 0; i < cards; i++)
            parts[i] = td_ascend_rows_of(r->scratch + b->at.wide, TD_ACL_BF16, i * rows, rows, a->width);
        sum_over_cards(r, g, bytes_of(&p, own), r->scratch + b->at.wide, n);
        sum_in_order(r, parts, cards, x, y);
        td_ascend_op_cast(r, x, rows_of(&p, a->out));
    }
}

static size_t place(const td_block_desc *desc, td_ascend_places *at) {
    const td_npu_group *g = desc->all_reduce.group;
    size_t              rows = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS, n = rows * desc->all_reduce.width;
    size_t              used = 0;
    at->f32 = td_ascend_place(&used, n * sizeof(float));
    at->values = td_ascend_place(&used, n * sizeof(float));
    at->wide = td_ascend_place(&used, td_ascend_group_gathers(g) ? td_ascend_group_cards(g) * n * sizeof(td_bf16) : 0);
    return used;
}

static td_status check(const td_ascend_npu *d, const td_block_desc *desc, td_error *err) {
    return td_ascend_group_has(desc->all_reduce.group, d)
               ? TD_OK
               : td_fail(err, TD_EINVAL, "the device is not in the group that it is to sum with");
}

const td_ascend_block_kind td_ascend_all_reduce = {.place = place, .check = check, .launch = launch};
