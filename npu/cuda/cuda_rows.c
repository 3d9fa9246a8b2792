/* The blocks that work on rows: embed, norm, combine, head, the best logits. */
#include "core/error.h"
#include "npu/cuda/cuda_kind.h"

#define COMBINE_THREADS 256

static size_t place_nothing(const td_block_desc *desc, td_cuda_places *at) {
    (void)desc;
    *at = (td_cuda_places){0};
    return 0;
}

/* ---- embed ------------------------------------------------------------------------------------- */

static void launch_embed(td_cuda_run *r, const td_npu_block *b) {
    const td_embed_desc *e = &b->desc.embed;
    td_cuda_count        n = td_cuda_n_tok(r);
    TD_CUDA_LAUNCH(r, EMBED, TD_GRID(td_div_up(e->hidden, TD_CUDA_EMBED_VALUES), n.most, 1), 0, TD_P(n.count),
                   TD_P(r->step->dev.token), TD_P(e->table->data), TD_U(e->table->shape.n), TD_U(e->hidden),
                   TD_P(td_cuda_at_row(r, e->out, e->hidden * sizeof(td_bf16))));
}

const td_cuda_block_kind td_cuda_embed = {.place = place_nothing, .launch = launch_embed};

/* ---- norm -------------------------------------------------------------------------------------- */

static td_status check_norm(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    (void)d;
    return td_cuda_check_norm(desc->norm.hidden, TD_CUDA_NORM_MAX, "a norm", err);
}

static td_cuda_kernel_id norm_of(size_t hidden) {
    return hidden <= TD_CUDA_SHORT_MAX    ? TD_CUDA_KERNEL_NORM_SHORT
           : hidden <= TD_CUDA_MIDDLE_MAX ? TD_CUDA_KERNEL_NORM_MIDDLE
                                          : TD_CUDA_KERNEL_NORM;
}

static void launch_norm(td_cuda_run *r, const td_npu_block *b) {
    const td_norm_desc *d = &b->desc.norm;
    td_cuda_count       n = td_cuda_n_tok(r);
    size_t              stride = d->out_stride ? d->out_stride : d->hidden, row = d->hidden * sizeof(td_bf16);
    TD_CUDA_LAUNCH_ONE(r, norm_of(d->hidden), n.most, TD_P(n.count), TD_P(NULL), TD_P(td_cuda_at_row(r, d->x, row)),
                       TD_P(td_cuda_at_row(r, d->add, row)), TD_P(d->gamma->data), TD_F(d->eps), TD_U(d->hidden),
                       TD_P(td_cuda_at_row(r, d->out, stride * sizeof(td_bf16))), TD_U(stride),
                       TD_P(td_cuda_at_row(r, d->out_i8.q, d->hidden)), TD_U(d->hidden),
                       TD_P(td_cuda_at_row(r, d->out_i8.scale, sizeof(float))));
}

const td_cuda_block_kind td_cuda_norm = {.place = place_nothing, .check = check_norm, .launch = launch_norm};

/* ---- combine ----------------------------------------------------------------------------------- */

static void launch_combine(td_cuda_run *r, const td_npu_block *b) {
    const td_combine_desc *c = &b->desc.combine;
    td_cuda_count          n = td_cuda_n_tok(r);
    size_t                 row = c->hidden * sizeof(td_bf16);
    TD_CUDA_LAUNCH(r, COMBINE, TD_GRID(td_div_up(c->hidden, COMBINE_THREADS), n.most, 1), 0, TD_P(n.count),
                   TD_P(td_cuda_at_row(r, c->x, row)), TD_P(td_cuda_at_row(r, c->add[0], row)),
                   TD_P(td_cuda_at_row(r, c->add[1], row)), TD_P(td_cuda_at_row(r, c->add[2], row)), TD_U(c->hidden));
}

const td_cuda_block_kind td_cuda_combine = {.place = place_nothing, .launch = launch_combine};

/* ---- head -------------------------------------------------------------------------------------- */

static size_t place_head(const td_block_desc *desc, td_cuda_places *at) {
    const td_head_desc *h = &desc->head;
    size_t              used = 0;
    *at = (td_cuda_places){0};
    at->rows = td_cuda_place(&used, (size_t)h->max_out * h->hidden * sizeof(td_bf16));
    at->in = td_cuda_place_rows(&used, h->max_out, h->hidden, false);
    return used;
}

static td_status check_head(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    (void)d;
    return desc->head.gamma ? td_cuda_check_norm(desc->head.hidden, TD_CUDA_NORM_MAX, "the head's norm", err) : TD_OK;
}

/* Wanted rows count from the step's first one. */
static void launch_head(td_cuda_run *r, const td_npu_block *b) {
    const td_head_desc *h = &b->desc.head;
    td_cuda_count       n = td_cuda_n_out(r);
    void               *rows = r->scratch + b->at.rows;
    const void         *x = td_cuda_at_row(r, h->x, h->hidden * sizeof(td_bf16)), *row_of = r->step->dev.out_row;
    if (h->gamma)
        TD_CUDA_LAUNCH_ONE(r, norm_of(h->hidden), n.most, TD_P(n.count), TD_P(row_of), TD_P(x), TD_P(NULL),
                           TD_P(h->gamma->data), TD_F(h->eps), TD_U(h->hidden), TD_P(rows), TD_U(h->hidden), TD_P(NULL),
                           TD_U(0), TD_P(NULL));
    else /* rows of x as those of a table */
        TD_CUDA_LAUNCH(r, EMBED, TD_GRID(td_div_up(h->hidden, TD_CUDA_EMBED_VALUES), n.most, 1), 0, TD_P(n.count),
                       TD_P(row_of), TD_P(x), TD_U(r->step->max_tok), TD_U(h->hidden), TD_P(rows));
    td_cuda_rows in = td_cuda_rows_of_bf16(r, &b->at.in, h->w, n, rows, h->hidden);
    td_cuda_product(r, &in, h->w, NULL, h->logits, true);
}

const td_cuda_block_kind td_cuda_head = {.place = place_head, .check = check_head, .launch = launch_head};

/* ---- the best logits ----------------------------------------------------------------------------- */

/* Of a row: what its parts leave for the second kernel. */
static size_t top_parts(const td_top_desc *t) {
    return td_div_up(t->vocab, TD_CUDA_TOP_PART);
}

static size_t place_top(const td_block_desc *desc, td_cuda_places *at) {
    const td_top_desc *t = &desc->top;
    size_t             used = 0, parts = t->max_out * top_parts(t);
    *at = (td_cuda_places){0};
    at->partial = td_cuda_place(&used, parts * t->k * sizeof(uint64_t));
    at->wide = td_cuda_place(&used, parts * sizeof(td_log_sum));
    return used;
}

static td_status check_top(const td_cuda_npu *d, const td_block_desc *desc, td_error *err) {
    const td_top_desc *t = &desc->top;
    (void)d;
    if (t->k <= TD_CUDA_TOP_MAX) return TD_OK;
    return td_fail(err, TD_EINVAL, "the best %u logits are wanted; the card finds up to %d", t->k, TD_CUDA_TOP_MAX);
}

static void launch_top(td_cuda_run *r, const td_npu_block *b) {
    const td_top_desc *t = &b->desc.top;
    td_cuda_count      n = td_cuda_n_out(r);
    void              *words = r->scratch + b->at.partial, *sums = t->sums ? r->scratch + b->at.wide : NULL;
    TD_CUDA_LAUNCH(r, TOP_PARTS, TD_GRID(top_parts(t), n.most, 1), 0, TD_P(n.count), TD_P(t->logits), TD_U(t->vocab),
                   TD_U(t->k), TD_P(words), TD_P(sums));
    TD_CUDA_LAUNCH(r, TOP, TD_GRID(n.most, 1, 1), 0, TD_P(n.count), TD_P(t->logits), TD_U(t->vocab), TD_U(t->k), TD_P(words),
                   TD_P(sums), TD_U(top_parts(t)), TD_P(t->top), TD_P(t->sums));
}

const td_cuda_block_kind td_cuda_top = {.place = place_top, .check = check_top, .launch = launch_top};
