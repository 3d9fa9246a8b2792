/* The blocks that work on rows: embed, norm, combine, head, the best logits. */
#include "core/error.h"
#include "npu/ascend/ascend_weight.h"

#define T(v) td_ascend_tensor(r, v)

/* ---- embed ------------------------------------------------------------------------------------- */

static size_t place_embed(const td_block_desc *desc, td_ascend_places *at) {
    (void)desc;
    *at = (td_ascend_places){0};
    return 0;
}

static td_status prepare_embed(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_embed_desc *e = &b->desc.embed;
    (void)d;
    const td_weight_shape *shape = (const td_weight_shape *)e->table;
    if (shape->format != TD_WEIGHT_BF16) return td_fail(err, TD_EINVAL, "the embedding must be bf16 on an Ascend card");
    b->n_tokens = shape->n;
    return td_ascend_plain_of(e->table, "embedding", &b->bias, err);
}

static void launch_embed(td_ascend_run *r, const td_npu_block *b) {
    const td_embed_desc *e = &b->desc.embed;
    td_ascend_view       table = td_ascend_rows_of(b->bias, TD_ACL_BF16, 0, b->n_tokens, e->hidden);
    TD_ASCEND_OP(r, aclnnEmbedding, T(table), T(td_ascend_vector(r->made->token, TD_ACL_INT32, 0, r->step->max_tok)),
                 T(td_ascend_in_rows(r, e->out, e->hidden)));
}

const td_ascend_block_kind td_ascend_embed = {.place = place_embed, .prepare = prepare_embed, .launch = launch_embed};

/* ---- norm -------------------------------------------------------------------------------------- */

static size_t place_norm(const td_block_desc *desc, td_ascend_places *at) {
    size_t used = 0;
    *at = (td_ascend_places){0};
    at->rstd = td_ascend_place(&used, desc->max_tok * sizeof(float));
    at->rows = td_ascend_place(&used, (size_t)desc->max_tok * desc->norm.hidden * sizeof(td_bf16));
    at->unread = td_ascend_place(&used, TD_ASCEND_UNREAD_BYTES);
    return used;
}

/* Whether it is asked for rows in f32, and gives them: caps.norm_f32. */
static bool gives_f32(const td_ascend_npu *d, const td_norm_desc *n) {
    return n->out_f32 && d->l->ops.aclnnAddRmsNormCast;
}

static bool without_gaps(const td_norm_desc *n) {
    return !n->out_stride || n->out_stride == n->hidden;
}

static td_status prepare_norm(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_norm_desc *n = &b->desc.norm;
    TD_TRY(td_ascend_plain_of(n->gamma, "gamma", &b->gamma[0], err));
    if (n->out ? !gives_f32(d, n) || !without_gaps(n) : !d->l->ops.aclnnAddRmsNormDynamicQuant) return TD_OK;
    return td_ascend_bf16_vector_of(d, n->gamma, n->hidden, n->hidden, 1, "gamma", &b->gamma16[0], err);
}

static void launch_norm(td_ascend_run *r, const td_npu_block *b) {
    const td_norm_desc *n = &b->desc.norm;
    td_ascend_view      x = td_ascend_in_rows(r, n->x, n->hidden);
    td_ascend_view      out = n->out ? td_ascend_in_rows(r, n->out, n->out_stride ? n->out_stride : n->hidden)
                                     : td_ascend_scratch_rows(r, b->at.rows, TD_ACL_BF16, n->hidden);
    out = td_ascend_columns(out, 0, n->hidden);
    td_ascend_view codes = td_ascend_rows_of(n->out_i8.q, TD_ACL_INT8, r->step->first_row, r->step->max_tok, n->hidden);
    td_ascend_view scale = td_ascend_vector(n->out_i8.scale, TD_ACL_FLOAT, r->step->first_row, r->step->max_tok);
    if (n->add) td_ascend_op_add_to(r, x, td_ascend_in_rows(r, n->add, n->hidden));
    if (b->gamma16[0] && !n->out) {
        td_ascend_op_norm_quantize(r, x, b->gamma16[0], (double)n->eps, codes, scale, r->scratch + b->at.rows,
                                   r->scratch + b->at.unread);
        return;
    }
    td_ascend_view floats = td_ascend_rows_of(n->out_f32, TD_ACL_FLOAT, r->step->first_row, r->step->max_tok, n->hidden);
    if (b->gamma16[0]) {
        td_ascend_op_norm_cast(r, x, b->gamma16[0], (double)n->eps, floats, out, r->scratch + b->at.rstd,
                               r->scratch + b->at.rows);
    } else {
        td_ascend_op_norm(r, x, b->gamma[0], (double)n->eps, out, r->scratch + b->at.rstd);
        if (gives_f32(r->d, n)) td_ascend_op_cast(r, out, floats);
    }
    if (n->out_i8.q) td_ascend_op_quantize(r, out, codes, scale);
}

const td_ascend_block_kind td_ascend_norm = {.place = place_norm, .prepare = prepare_norm, .launch = launch_norm};

/* ---- combine ----------------------------------------------------------------------------------- */

static size_t place_combine(const td_block_desc *desc, td_ascend_places *at) {
    size_t used = 0;
    *at = (td_ascend_places){0};
    at->rows = td_ascend_place(&used, (size_t)desc->max_tok * desc->combine.hidden * sizeof(td_bf16));
    return used;
}

/* The sum of what is added is rounded to bf16 before it is added to x: an operation more would keep it in f32. */
static void launch_combine(td_ascend_run *r, const td_npu_block *b) {
    const td_combine_desc *c = &b->desc.combine;
    td_ascend_view         sum = td_ascend_scratch_rows(r, b->at.rows, TD_ACL_BF16, c->hidden), add[3];
    int                    n = 0;
    for (int i = 0; i < 3; i++)
        if (c->add[i]) add[n++] = td_ascend_in_rows(r, c->add[i], c->hidden);
    if (!n) return;
    if (n > 1) td_ascend_op_add(r, add[0], add[1], sum);
    if (n > 2) td_ascend_op_add_to(r, sum, add[2]);
    td_ascend_op_add_to(r, td_ascend_in_rows(r, c->x, c->hidden), n > 1 ? sum : add[0]);
}

const td_ascend_block_kind td_ascend_combine = {.place = place_combine, .launch = launch_combine};

/* ---- head -------------------------------------------------------------------------------------- */

static size_t place_head(const td_block_desc *desc, td_ascend_places *at) {
    const td_head_desc *h = &desc->head;
    size_t              used = 0, rows = h->max_out;
    *at = (td_ascend_places){0};
    at->rows = td_ascend_place(&used, rows * h->hidden * sizeof(td_bf16));
    at->q = td_ascend_place(&used, rows * h->hidden * sizeof(td_bf16));
    at->rstd = td_ascend_place(&used, rows * sizeof(float));
    at->codes = td_ascend_place(&used, rows * h->hidden);
    at->scale = td_ascend_place(&used, rows * sizeof(float));
    at->wide = td_ascend_place(&used, rows * (h->vocab + 32) * sizeof(td_bf16));
    return used;
}

static td_status prepare_head(td_ascend_npu *d, td_npu_block *b, td_error *err) {
    const td_head_desc *h = &b->desc.head;
    TD_TRY(td_ascend_plain_of(h->gamma, "gamma", &b->gamma[0], err));
    td_ascend_part part = {.what = "head", .w = h->w, .n = h->vocab, .k = h->hidden};
    TD_TRY(td_ascend_matrix_of(d, &part, 1, h->hidden, &b->in, err));
    return b->in->format == TD_WEIGHT_F32 ? td_fail(err, TD_ENOTSUP, "the head must be W8A8 or bf16 on an Ascend card")
                                          : TD_OK;
}

/* Products of the card give bf16, so logits are those of bf16 (docs/ascend-internals.md). */
static void launch_head(td_ascend_run *r, const td_npu_block *b) {
    const td_head_desc *h = &b->desc.head;
    size_t              n = r->step->max_out;
    if (!n) return;
    char          *s = r->scratch;
    td_ascend_view rows = td_ascend_rows_of(s + b->at.rows, TD_ACL_BF16, 0, n, h->hidden), normed = rows;
    td_ascend_view wide = td_ascend_rows_of(s + b->at.wide, TD_ACL_BF16, 0, n, b->in->n);
    /* Wanted rows count from the step's first one. */
    td_ascend_op_gather(r, td_ascend_in_rows(r, h->x, h->hidden), td_ascend_vector(r->made->out_row, TD_ACL_INT32, 0, n),
                        rows);
    if (b->gamma[0]) {
        normed.data = s + b->at.q;
        td_ascend_op_norm(r, rows, b->gamma[0], (double)h->eps, normed, s + b->at.rstd);
    }
    td_ascend_op_matrix(r, td_ascend_input_of(r, b, b->in, normed), b->in, wide);
    td_ascend_op_cast(r, td_ascend_columns(wide, 0, h->vocab), td_ascend_rows_of(h->logits, TD_ACL_FLOAT, 0, n, h->vocab));
}

const td_ascend_block_kind td_ascend_head = {.place = place_head, .prepare = prepare_head, .launch = launch_head};

/* ---- the best logits ----------------------------------------------------------------------------- */

static size_t place_top(const td_block_desc *desc, td_ascend_places *at) {
    size_t used = 0;
    *at = (td_ascend_places){0};
    at->order = td_ascend_place(&used, (size_t)desc->top.max_out * desc->top.k * sizeof(int64_t));
    return used;
}

static td_status check_top(const td_ascend_npu *d, const td_block_desc *desc, td_error *err) {
    (void)d;
    if (!desc->top.sums) return TD_OK;
    return td_fail(err, TD_ENOTSUP, "the card does not give what log-softmax needs of a row"); /* caps.log_sums */
}

/* Values and ids lie in turns, as two columns of pairs. */
static void launch_top(td_ascend_run *r, const td_npu_block *b) {
    const td_top_desc *t = &b->desc.top;
    size_t             n = r->step->max_out;
    if (!n) return;
    td_ascend_view logits = td_ascend_rows_of(t->logits, TD_ACL_FLOAT, 0, n, t->vocab);
    td_ascend_view order = td_ascend_rows_of(r->scratch + b->at.order, TD_ACL_INT64, 0, n, t->k);
    td_ascend_view values = td_ascend_rows_of(t->top, TD_ACL_FLOAT, 0, n, 2 * (size_t)t->k), ids;
    values.shape[1] = t->k;
    values.stride[1] = 2;
    ids = values;
    ids.dtype = TD_ACL_INT32;
    ids.offset = 1;
    TD_ASCEND_OP(r, aclnnTopk, T(logits), t->k, -1, true, true, T(values), T(order));
    td_ascend_op_cast(r, order, ids);
}

const td_ascend_block_kind td_ascend_top = {.place = place_top, .check = check_top, .launch = launch_top};
