/* The sum over cards as a block. */
#include "core/error.h"
#include "npu/cuda/cuda_group.h"
#include "npu/cuda/cuda_kind.h"

#define PLACE_GROUPS (TD_CUDA_PLACE_VALUES / TD_CUDA_SUM_VALUES)
#define TWO_SHOT_BYTES ((size_t)256 << 10) /* of the rows of a bucket, from three cards on */

/* Of a row, in values of bf16: two are a word. */
static size_t width_of(const td_all_reduce_desc *a) {
    return a->exact ? a->width * sizeof(int32_t) / sizeof(td_bf16) : a->width;
}

static size_t place_sum(const td_block_desc *desc, td_cuda_places *at) {
    (void)desc;
    *at = (td_cuda_places){0};
    return 0;
}

static td_status check_sum(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    const td_all_reduce_desc *a = &desc->all_reduce;
    if (width_of(a) % TD_CUDA_SUM_VALUES || width_of(a) > TD_CUDA_PLACE_VALUES)
        return td_fail(err, TD_ENOTSUP, "cards sum rows of %d to %zu values in steps of %d, not of %zu", TD_CUDA_SUM_VALUES,
                       TD_CUDA_PLACE_VALUES, TD_CUDA_SUM_VALUES, width_of(a));
    if (!a->out || !td_cuda_group_member(a->group, d))
        return td_fail(err, TD_EINVAL, "the device is not in the group that it is to sum with, or the sum has no place");
    return TD_OK;
}

/* A piece of a sum: rows of the step, from `first` on. */
typedef struct {
    td_npu_group             *g;
    const td_all_reduce_desc *a;
    td_cuda_member           *m;
    uint32_t                  self;
    size_t                    first, rows, blocks;
} piece;

static void *rows_of(const td_cuda_run *r, const piece *p, const void *buffer) {
    size_t row = width_of(p->a) * sizeof(td_bf16);
    return buffer ? (char *)td_cuda_at_row(r, buffer, row) + p->first * row : NULL;
}
static const void *part_of(const piece *p, uint32_t card) {
    return card < p->g->n ? p->m->exchange_of[card] + TD_CUDA_SIGNALS_BYTES : NULL;
}
static const void *signals_of(const piece *p, uint32_t card) {
    return card < p->g->n ? p->m->exchange_of[card] : NULL;
}
#define OF_CARDS(of, p)                                                                                             \
    TD_P(of(p, 0)), TD_P(of(p, 1)), TD_P(of(p, 2)), TD_P(of(p, 3)), TD_P(of(p, 4)), TD_P(of(p, 5)), TD_P(of(p, 6)), \
        TD_P(of(p, 7))

static void meet(td_cuda_run *r, const piece *p, bool begins) {
    TD_CUDA_LAUNCH(r, CARDS_MEET, TD_GRID(1, 1, 1), 0, OF_CARDS(signals_of, p), TD_U(p->g->n), TD_U(p->self),
                   TD_P(p->m->state), TD_U(begins), TD_P(p->m->stop), TD_P(p->m->gave_up));
}

/* @param stretch the card whose stretch it is, or the number of cards: all */
static void sum_parts(td_cuda_run *r, const piece *p, uint32_t stretch, const void *out) {
    TD_CUDA_LAUNCH(r, CARDS_SUM, TD_GRID(p->blocks, 1, 1), 0, TD_P(td_cuda_n_tok(r).count), TD_U(p->first), TD_U(p->rows),
                   OF_CARDS(part_of, p), TD_U(p->g->n), TD_U(width_of(p->a)), TD_P(p->m->state), TD_U(PLACE_GROUPS),
                   TD_U(stretch), TD_P(part_of(p, p->self)), TD_P(out), TD_U(p->a->exact));
}

static void launch_piece(td_cuda_run *r, const piece *p) {
    const td_all_reduce_desc *a = p->a;
    void                     *out = rows_of(r, p, a->out);
    TD_CUDA_LAUNCH(r, CARDS_PART, TD_GRID(p->blocks, 1, 1), 0, TD_P(td_cuda_n_tok(r).count), TD_U(p->first), TD_U(p->rows),
                   TD_P(rows_of(r, p, a->add[0])), TD_P(rows_of(r, p, a->add[1])), TD_P(rows_of(r, p, a->add[2])),
                   TD_U(width_of(a)), TD_P(p->m->state), TD_P(part_of(p, p->self)), TD_U(PLACE_GROUPS), TD_U(a->exact));
    meet(r, p, true);
    if (p->g->n < 3 || p->rows * width_of(a) * sizeof(td_bf16) < TWO_SHOT_BYTES) {
        sum_parts(r, p, p->g->n, out);
        return;
    }
    sum_parts(r, p, p->self, out);
    meet(r, p, false);
    TD_CUDA_LAUNCH(r, CARDS_GATHER, TD_GRID(p->blocks, 1, 1), 0, TD_P(td_cuda_n_tok(r).count), TD_U(p->first), TD_U(p->rows),
                   OF_CARDS(part_of, p), TD_U(p->g->n), TD_U(width_of(a)), TD_P(p->m->state), TD_U(PLACE_GROUPS), TD_P(out));
}

static void launch_sum(td_cuda_run *r, const td_npu_block *b) {
    const td_all_reduce_desc *a = &b->desc.all_reduce;
    td_cuda_member           *m = td_cuda_group_member(a->group, r->d);
    size_t                    most = TD_CUDA_PLACE_VALUES / width_of(a), left = r->step->max_tok;
    if (td_cuda_group_is_aborted(a->group)) {
        r->status = TD_EDEVICE;
        return;
    }
    for (size_t first = 0; first < r->step->max_tok; first += most, left -= most) {
        piece p = {a->group, a, m, (uint32_t)(m - a->group->members), first, left < most ? left : most, 0};
        p.blocks = td_div_up(p.rows * width_of(a), (size_t)TD_CUDA_SUM_THREADS * TD_CUDA_SUM_VALUES);
        launch_piece(r, &p);
        if (left <= most) break;
    }
}

const td_cuda_block_kind td_cuda_all_reduce = {.place = place_sum, .check = check_sum, .launch = launch_sum};
