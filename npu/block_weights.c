#include "npu/block_weights.h"

#include "core/error.h"
#include "core/log/log.h"
#include "quant/coded_matrix.h"

/* ---- what a weight is made from ---------------------------------------------------------------- */

static td_status check_groups(td_weight_format format, const td_tensor_view *src, td_gemm_groups *groups, td_error *err) {
    td_coded_tiles wanted = format == TD_WEIGHT_INT4G ? TD_CODED_INT4G : TD_CODED_FP4G;
    if (src->rank == 2 && src->coded && src->coded->n == src->shape[0] && src->coded->k == src->shape[1] &&
        td_coded_exact_tiles(src->coded, groups) == wanted)
        return TD_OK;
    return td_fail(err, TD_ENOTSUP, "a weight in groups is made from a checkpoint's codes of its kind");
}

td_status td_weight_check_sides(td_weight_format kept, const td_tensor_view *src, td_weight_shape *shape, td_error *err) {
    if (src->rank < 1 || src->rank > 2) return td_fail(err, TD_EINVAL, "a weight has rank 1 or 2, not %u", src->rank);
    for (uint32_t i = 0; i < src->rank; i++)
        if (src->shape[i] == 0 || src->shape[i] > TD_WEIGHT_SIDE_MAX)
            return td_fail(err, TD_EINVAL, "a weight's sides are 1 to %zu, not %zu", TD_WEIGHT_SIDE_MAX, src->shape[i]);
    *shape = (td_weight_shape){kept, src->rank, src->rank == 2 ? src->shape[0] : 1, src->shape[src->rank - 1]};
    if (kept != TD_WEIGHT_W8A8) return TD_OK;
    if (src->rank != 2) return td_fail(err, TD_EINVAL, "a W8A8 weight has rank 2");
    if (shape->k > TD_INT8C_K_MAX)
        return td_fail(err, TD_ENOTSUP, "a W8A8 weight has at most %d inputs, not %zu", TD_INT8C_K_MAX, shape->k);
    return TD_OK;
}

td_status td_weight_check_source(td_weight_format format, const td_tensor_view *src, td_weight_shape *shape,
                                 td_gemm_groups *groups, td_error *err) {
    bool real = src->dtype == TD_DT_F32 || src->dtype == TD_DT_BF16 || src->dtype == TD_DT_F16;
    TD_TRY(td_weight_check_sides(format, src, shape, err));
    if (td_weight_is_grouped(format)) return check_groups(format, src, groups, err);
    if (!src->data) return td_fail(err, TD_ENOTSUP, "codes are taken by weights in groups only");
    if (format != TD_WEIGHT_W8A8)
        return real ? TD_OK : td_fail(err, TD_ENOTSUP, "a bf16 or f32 weight is made from f32, bf16 or f16");
    if (!real && !(src->dtype == TD_DT_I8 && src->scale))
        return td_fail(err, TD_ENOTSUP, "a W8A8 weight is made from f32, bf16, f16, or int8 with scales");
    return TD_OK;
}

td_gemm_groups td_weight_largest_groups(td_weight_format format, uint32_t group) {
    const uint16_t size = (uint16_t)group;
    switch (format) {
        case TD_WEIGHT_INT4G:
            return (td_gemm_groups){.size = size ? size : 32, .scale_dtype = TD_DT_F32, .zero_points = true};
        case TD_WEIGHT_FP4G: return (td_gemm_groups){.size = size ? size : 16, .scale_dtype = TD_DT_F8_E4M3};
        default: return (td_gemm_groups){0};
    }
}

/* ---- the weights of a block -------------------------------------------------------------------- */

#define ADD_LIST(name, matrices, n_matrices, used, outputs, inputs, int8)                                            \
    list[n++] = (td_block_weight) {                                                                                  \
        .what = name, .w = matrices, .count = n_matrices, .use = used, .n = outputs, .k = inputs, .given_int8 = int8 \
    }
#define ADD(name, weight, used, outputs, inputs) ADD_LIST(name, &(weight), 1, used, outputs, inputs, false)
#define LINEAR(name, weight, outputs, inputs) ADD(name, weight, TD_USE_LINEAR, outputs, inputs)
#define READS(rows, name, weight, outputs, inputs) \
    ADD_LIST(name, &(weight), 1, TD_USE_LINEAR, outputs, inputs, (rows).q != NULL)
#define VECTOR(name, weight, size) ADD(name, weight, TD_USE_VECTOR, 1, size)
#define OPTIONAL(name, weight, size) \
    if (weight) VECTOR(name, weight, size)

static size_t mla_weights(const td_mla_desc *m, td_block_weight *list) {
    size_t q = (size_t)m->heads * ((size_t)m->nope_dim + m->rope_dim), v = (size_t)m->heads * m->v_dim,
           kv = (size_t)m->kv_lora + m->rope_dim, n = 0;
    if (m->q_lora) {
        READS(m->in_i8, "q_a", m->q_a, m->q_lora, m->hidden);
        VECTOR("q_a norm", m->q_a_norm, m->q_lora);
        OPTIONAL("q_a bias", m->q_a_bias, m->q_lora);
        LINEAR("q_b", m->q_b, q, m->q_lora);
    } else {
        READS(m->in_i8, "q", m->q, q, m->hidden);
    }
    READS(m->in_i8, "kv_a", m->kv_a, kv, m->hidden);
    VECTOR("kv_a norm", m->kv_a_norm, m->kv_lora);
    OPTIONAL("kv_a bias", m->kv_a_bias, kv);
    ADD("kv_b", m->kv_b, TD_USE_LATENT, (size_t)m->heads * ((size_t)m->nope_dim + m->v_dim), m->kv_lora);
    LINEAR("o", m->o, m->hidden, v);
    OPTIONAL("o bias", m->o_bias, m->hidden);
    if (m->rope) ADD("rope table", m->rope, TD_USE_ROPE, 0, m->rope_dim);
    if (!m->index.heads) return n;
    LINEAR("of the indexer's queries", m->index.q, (size_t)m->index.heads * m->index.dim, m->q_lora);
    LINEAR("of the indexer's keys", m->index.k, m->index.dim, m->hidden);
    LINEAR("of the indexer's heads", m->index.weights, m->index.heads, m->hidden);
    VECTOR("of the indexer's norm", m->index.k_norm, m->index.dim);
    VECTOR("of the bias of the indexer's norm", m->index.k_norm_bias, m->index.dim);
    if (td_index_pool(&m->index) == 1) return n;
    LINEAR("of the gates of the indexer's keys", m->index.gate, m->index.dim, m->hidden);
    ADD("of the positions of the indexer's keys", m->index.ape, TD_USE_ROPE, m->index.pool, m->index.dim);
    return n;
}

static size_t gqa_weights(const td_gqa_desc *g, td_block_weight *list) {
    size_t q = (size_t)g->heads * g->head_dim, kv = (size_t)g->kv_heads * g->head_dim, n = 0;
    READS(g->in_i8, "q", g->q, td_gqa_q_rows(g), g->hidden);
    READS(g->in_i8, "k", g->k, kv, g->hidden);
    READS(g->in_i8, "v", g->v, kv, g->hidden);
    LINEAR("o", g->o, g->hidden, q);
    OPTIONAL("q bias", g->q_bias, td_gqa_q_rows(g));
    OPTIONAL("k bias", g->k_bias, kv);
    OPTIONAL("v bias", g->v_bias, kv);
    OPTIONAL("o bias", g->o_bias, g->hidden);
    OPTIONAL("q norm", g->q_norm, g->norm_rows ? q : g->head_dim);
    OPTIONAL("k norm", g->k_norm, g->norm_rows ? kv : g->head_dim);
    OPTIONAL("sinks", g->sinks, g->heads);
    ADD("rope table", g->rope, TD_USE_ROPE, 0, td_gqa_rope_dim(g));
    return n;
}

static size_t kimi_delta_weights(const td_delta_desc *d, td_block_weight *list) {
    size_t k = (size_t)d->key_heads * d->key_dim, v = (size_t)d->value_heads * d->value_dim, n = 0;
    READS(d->in_i8, "q", d->qkv, k, d->hidden);
    READS(d->in_i8, "k", d->k, k, d->hidden);
    READS(d->in_i8, "v", d->v, v, d->hidden);
    LINEAR("a_low", d->a_low, d->low, d->hidden);
    LINEAR("a", d->a, k, d->low);
    LINEAR("z_low", d->z_low, d->low, d->hidden);
    LINEAR("z", d->z, v, d->low);
    ADD("b", d->b, TD_USE_SCORES, d->value_heads, d->hidden);
    ADD("conv of q", d->conv, TD_USE_TAPS, k, d->conv_width);
    ADD("conv of k", d->conv_k, TD_USE_TAPS, k, d->conv_width);
    ADD("conv of v", d->conv_v, TD_USE_TAPS, v, d->conv_width);
    VECTOR("A_log", d->a_log, d->value_heads);
    VECTOR("dt_bias", d->dt_bias, k);
    VECTOR("norm", d->norm, d->value_dim);
    LINEAR("o", d->o, d->hidden, v);
    return n;
}

static size_t delta_weights(const td_delta_desc *d, td_block_weight *list) {
    if (d->form == TD_DELTA_KIMI) return kimi_delta_weights(d, list);
    size_t conv = d->key_heads * td_delta_conv_rows(d), v = (size_t)d->value_heads * d->value_dim, n = 0;
    READS(d->in_i8, "qkv", d->qkv, d->z ? conv : conv + v, d->hidden);
    if (d->z) READS(d->in_i8, "z", d->z, v, d->hidden);
    ADD("b", d->b, TD_USE_SCORES, (d->a ? 1 : 2) * (size_t)d->value_heads, d->hidden);
    if (d->a) ADD("a", d->a, TD_USE_SCORES, d->value_heads, d->hidden);
    ADD("conv", d->conv, TD_USE_TAPS, conv, d->conv_width);
    VECTOR("A_log", d->a_log, d->value_heads);
    VECTOR("dt_bias", d->dt_bias, d->value_heads);
    VECTOR("norm", d->norm, d->value_dim);
    LINEAR("o", d->o, d->hidden, v);
    return n;
}

/* @param dim of a compressed row */
static size_t compressor_weights(const td_sparse_desc *s, const td_compressor *c, size_t dim, td_block_weight *list) {
    const size_t width = td_sparse_width(s, dim);
    size_t       n = 0;
    LINEAR("of a compressor's rows", c->kv, width, s->hidden);
    LINEAR("of a compressor's gates", c->gate, width, s->hidden);
    ADD("of a compressor's positions", c->ape, TD_USE_ROPE, s->ratio, width);
    VECTOR("of a compressor's norm", c->norm, dim);
    return n;
}

static size_t sparse_weights(const td_sparse_desc *s, td_block_weight *list) {
    const size_t q = (size_t)s->heads * s->dim, low = (size_t)s->groups * s->o_lora;
    size_t       n = 0;
    READS(s->in_i8, "q_a", s->q_a, s->q_lora, s->hidden);
    VECTOR("q norm", s->q_norm, s->q_lora);
    LINEAR("q_b", s->q_b, q, s->q_lora);
    READS(s->in_i8, "kv", s->kv, s->dim, s->hidden);
    VECTOR("kv norm", s->kv_norm, s->dim);
    LINEAR("o_a", s->o_a, low, q / s->groups);
    LINEAR("o_b", s->o_b, s->hidden, low);
    VECTOR("sinks", s->sinks, s->heads);
    ADD("rope table", s->rope, TD_USE_ROPE, 0, s->rope_dim);
    if (s->ratio) n += compressor_weights(s, &s->rows, s->dim, list + n);
    if (!s->index_heads) return n;
    LINEAR("of the indexer's queries", s->index_q, (size_t)s->index_heads * s->index_dim, s->q_lora);
    LINEAR("of the indexer's heads", s->index_weights, s->index_heads, s->hidden);
    return n + compressor_weights(s, &s->index, s->index_dim, list + n);
}

static size_t mix_weights(const td_mix_desc *m, td_block_weight *list) {
    const size_t rows = td_mix_rows(m);
    size_t       n = 0;
    if (m->form == TD_MIX_MEAN) return 0;
    ADD("of a mixture", m->fn, TD_USE_SCORES, rows, (size_t)m->streams * m->hidden);
    VECTOR("of a mixture's base", m->base, rows);
    VECTOR("of a mixture's scale", m->scale, m->form == TD_MIX_LAST ? 1 : 3);
    OPTIONAL("gamma", m->gamma, m->hidden);
    return n;
}

static size_t mlp_weights(const td_mlp_desc *m, td_block_weight *list) {
    size_t n = 0;
    READS(m->in_i8, "gate", m->gate, m->inter, m->hidden);
    READS(m->in_i8, "up", m->up, m->inter, m->hidden);
    LINEAR("down", m->down, m->hidden, m->inter);
    if (m->out_gate) ADD("out_gate", m->out_gate, TD_USE_SCORES, 1, m->hidden);
    return n;
}

static size_t router_weights(const td_router_desc *r, td_block_weight *list) {
    size_t n = 0;
    ADD("router", r->w, TD_USE_SCORES, r->n_experts, r->hidden);
    OPTIONAL("bias of the router's logits", r->logit_bias, r->n_experts);
    OPTIONAL("router bias", r->bias, r->n_experts);
    if (r->by_token) ADD("of the tokens' experts", r->by_token, TD_USE_TABLE, 0, r->top_k);
    return n;
}

static size_t experts_weights(const td_experts_desc *x, td_block_weight *list) {
    bool   int8 = x->in_i8.q != NULL;
    size_t n = 0;
    ADD_LIST("of an expert's gate", x->gate, x->n_experts, TD_USE_EXPERT, x->inter, x->hidden, int8);
    ADD_LIST("of an expert's up", x->up, x->n_experts, TD_USE_EXPERT, x->inter, x->hidden, int8);
    ADD_LIST("of an expert's down", x->down, x->n_experts, TD_USE_EXPERT, x->hidden, x->inter, false);
    return n;
}

size_t td_block_weights(const td_block_desc *d, td_block_weight list[TD_BLOCK_WEIGHTS_MAX]) {
    size_t n = 0;
    switch (d->kind) {
        case TD_BLOCK_EMBED: ADD("embedding", d->embed.table, TD_USE_TABLE, 0, d->embed.hidden); return n;
        case TD_BLOCK_NORM:
            VECTOR("gamma", d->norm.gamma, d->norm.hidden);
            OPTIONAL("beta", d->norm.beta, d->norm.hidden);
            return n;
        case TD_BLOCK_MIX: return mix_weights(&d->mix, list);
        case TD_BLOCK_LINEAR:
            LINEAR("w", d->linear.w, d->linear.n, d->linear.k);
            OPTIONAL("bias", d->linear.bias, d->linear.n);
            return n;
        case TD_BLOCK_MLA: return mla_weights(&d->mla, list);
        case TD_BLOCK_GQA: return gqa_weights(&d->gqa, list);
        case TD_BLOCK_DELTA: return delta_weights(&d->delta, list);
        case TD_BLOCK_SPARSE: return sparse_weights(&d->sparse, list);
        case TD_BLOCK_MLP: return mlp_weights(&d->mlp, list);
        case TD_BLOCK_ROUTER: return router_weights(&d->router, list);
        case TD_BLOCK_EXPERTS: return experts_weights(&d->experts, list);
        case TD_BLOCK_HEAD:
            OPTIONAL("gamma", d->head.gamma, d->head.hidden);
            ADD("head", d->head.w, TD_USE_HEAD, d->head.vocab, d->head.hidden);
            return n;
        case TD_BLOCK_SPREAD:
        case TD_BLOCK_RESIDENT:
        case TD_BLOCK_JOIN:
        case TD_BLOCK_COMBINE:
        case TD_BLOCK_ALL_REDUCE:
        case TD_BLOCK_TOP:
        case TD_BLOCK_COUNT: break;
    }
    return 0;
}

/* ---- what a descriptor has to be --------------------------------------------------------------- */

static td_status check_weight(const td_block_weight *x, const td_npu_weight *w, td_error *err) {
    const td_weight_shape *s = (const td_weight_shape *)w;
    bool                   matrix = x->use == TD_USE_LINEAR || x->use == TD_USE_HEAD || x->use == TD_USE_EXPERT;
    bool floats = x->use == TD_USE_VECTOR || x->use == TD_USE_SCORES || x->use == TD_USE_ROPE || x->use == TD_USE_TAPS;
    if (!w) return td_fail(err, TD_EINVAL, "the weight %s is missing", x->what);
    if (x->use == TD_USE_VECTOR && (s->format != TD_WEIGHT_F32 || s->n != 1 || s->k != x->k))
        return td_fail(err, TD_EINVAL, "the weight %s must be a vector of %zu f32, not %zu x %zu", x->what, x->k, s->n,
                       s->k);
    if ((matrix && s->rank != 2) || (x->n && s->n != x->n) || s->k != x->k)
        return td_fail(err, TD_EINVAL, "the weight %s is %zu x %zu, not %zu x %zu", x->what, s->n, s->k, x->n ? x->n : s->n,
                       x->k);
    if (floats && s->format != TD_WEIGHT_F32) return td_fail(err, TD_EINVAL, "the weight %s must be f32", x->what);
    if (!matrix && td_weight_takes_int8(s->format))
        return td_fail(err, TD_EINVAL, "the weight %s must be bf16 or f32", x->what);
    if (x->given_int8 && !td_weight_takes_int8(s->format))
        return td_fail(err, TD_EINVAL, "the weight %s cannot take rows that are quantised already", x->what);
    return TD_OK;
}

typedef struct {
    const char *name;
    size_t      value;
} size_of;

/* @param list ends with a name of NULL */
static td_status check_sizes(const size_of *list, td_error *err) {
    for (; list->name; list++)
        if (list->value < 1 || list->value > TD_WEIGHT_SIDE_MAX)
            return td_fail(err, TD_EINVAL, "%s must be 1 to %zu, not %zu", list->name, TD_WEIGHT_SIDE_MAX, list->value);
    return TD_OK;
}
#define SIZE(desc, member) \
    { #member, (desc)->member }
#define SIZES(...) TD_TRY(check_sizes((const size_of[]){__VA_ARGS__, {NULL, 0}}, err))

/* @param streams of hyper-connections */
static td_status check_streams(uint32_t hidden, uint32_t streams, td_error *err) {
    SIZES({"hidden", hidden}, {"streams", streams});
    return streams <= TD_STREAMS_MAX
               ? TD_OK
               : td_fail(err, TD_EINVAL, "a token has at most %d streams, not %u", TD_STREAMS_MAX, streams);
}

static td_status check_mix(const td_mix_desc *m, td_error *err) {
    TD_TRY(check_streams(m->hidden, m->streams, err));
    return m->form == TD_MIX_MEAN && (m->gamma || m->out_i8.q || !m->out)
               ? td_fail(err, TD_EINVAL, "a mean of %u streams is written as it is", m->streams)
               : TD_OK;
}

static td_status check_norm(const td_norm_desc *n, td_error *err) {
    TD_TRY(check_streams(n->hidden, (uint32_t)td_streams_of(n->streams), err));
    if (td_streams_of(n->streams) > 1 && (n->out_stride || n->out_i8.q || n->out_f32))
        return td_fail(err, TD_EINVAL, "a norm of %u streams writes rows side by side, and in one form", n->streams);
    if (n->out_stride && n->out_stride < n->hidden)
        return td_fail(err, TD_EINVAL, "a norm's out_stride %zu is less than hidden %u", n->out_stride, n->hidden);
    return n->out || n->out_i8.q ? TD_OK : td_fail(err, TD_EINVAL, "a norm has nowhere to write");
}

static td_status check_keys(const td_block_desc *d, td_error *err) {
    if (d->max_kv >= 1 && d->max_kv <= TD_KEYS_MAX) return TD_OK;
    return td_fail(err, TD_EINVAL, "attention takes 1 to %u keys, not %u", TD_KEYS_MAX, d->max_kv);
}

static td_status check_gqa(const td_block_desc *d, td_error *err) {
    const td_gqa_desc *g = &d->gqa;
    SIZES(SIZE(g, hidden), SIZE(g, heads), SIZE(g, kv_heads), SIZE(g, head_dim));
    if (g->heads % g->kv_heads || g->head_dim % 2)
        return td_fail(err, TD_EINVAL, "%u heads cannot share %u kv heads of dimension %u", g->heads, g->kv_heads,
                       g->head_dim);
    if (td_gqa_rope_dim(g) % 2 || td_gqa_rope_dim(g) > g->head_dim)
        return td_fail(err, TD_EINVAL, "rope turns an even number of a head's %u values, not %u", g->head_dim, g->rope_dim);
    if (g->axes.contiguous && (uint64_t)g->axes.rows + g->axes.columns > td_gqa_rope_dim(g) / 2)
        return td_fail(err, TD_EINVAL, "rows and columns cannot turn %u and %u of a head's %u pairs", g->axes.rows,
                       g->axes.columns, td_gqa_rope_dim(g) / 2);
    if (g->full && (g->window || !td_rope_has_axes(&g->axes)))
        return td_fail(err, TD_EINVAL,
                       "attention to all rows has axes and no window, not %u and %u pairs and a window of %u", g->axes.rows,
                       g->axes.columns, g->window);
    return check_keys(d, err);
}

static td_status check_index(const td_mla_desc *m, td_error *err) {
    const td_index_desc *x = &m->index;
    const uint32_t       pool = td_index_pool(x);
    if (!m->q_lora) return td_fail(err, TD_EINVAL, "an indexer needs the latent of q: q_lora is 0");
    if (m->rope_dim && !m->rope)
        return td_fail(err, TD_EINVAL, "an indexer needs rope where keys have it: the weight rope table is missing");
    if (pool > TD_INDEX_POOL_MAX || TD_STATE_BLOCK % pool || x->top % pool || (pool > 1 && m->rope))
        return td_fail(err, TD_EINVAL, "an index key cannot stand for %u tokens of the %u that a row chooses%s", pool,
                       x->top, m->rope ? " and that rope turns" : "");
    if (!x->heads) return TD_OK;
    SIZES(SIZE(x, heads), SIZE(x, dim), SIZE(x, top));
    if (pool > 1) SIZES(SIZE(x, open_slots));
    if (m->rope_dim > x->dim)
        return td_fail(err, TD_EINVAL, "rope cannot turn %u of an index head's %u values", m->rope_dim, x->dim);
    return TD_OK;
}

static td_status check_mla(const td_block_desc *d, td_error *err) {
    const td_mla_desc *m = &d->mla;
    SIZES(SIZE(m, hidden), SIZE(m, heads), SIZE(m, kv_lora), SIZE(m, nope_dim), SIZE(m, v_dim));
    if (m->rope_dim % 2 || m->rope_dim > TD_WEIGHT_SIDE_MAX)
        return td_fail(err, TD_EINVAL, "rope_dim must be even, not %u", m->rope_dim);
    if (m->index.top) TD_TRY(check_index(m, err));
    return check_keys(d, err);
}

static td_status check_delta(const td_delta_desc *d, td_error *err) {
    SIZES(SIZE(d, hidden), SIZE(d, key_heads), SIZE(d, value_heads), SIZE(d, key_dim), SIZE(d, value_dim),
          SIZE(d, conv_width), SIZE(d, state_slots), SIZE(d, open_slots));
    if (d->value_heads % d->key_heads)
        return td_fail(err, TD_EINVAL, "%u value heads cannot share %u key heads", d->value_heads, d->key_heads);
    if (d->form == TD_DELTA_KIMI) {
        SIZES(SIZE(d, low));
        if (d->value_heads != d->key_heads)
            return td_fail(err, TD_EINVAL, "Kimi delta attention has a key head for each of its %u value heads, not %u",
                           d->value_heads, d->key_heads);
        if (!((double)d->floor >= TD_DECAY_LEAST && d->floor <= 0))
            return td_fail(err, TD_EINVAL, "a floor of log decays is %g to 0, not %g", TD_DECAY_LEAST, (double)d->floor);
    }
    if (d->conv_width < 2 || d->conv_width > TD_CONV_WIDTH_MAX)
        return td_fail(err, TD_EINVAL, "a convolution has 2 to %d taps, not %u", TD_CONV_WIDTH_MAX, d->conv_width);
    return TD_OK;
}

static td_status check_sparse(const td_block_desc *d, td_error *err) {
    const td_sparse_desc *s = &d->sparse;
    SIZES(SIZE(s, hidden), SIZE(s, heads), SIZE(s, dim), SIZE(s, rope_dim), SIZE(s, q_lora), SIZE(s, window),
          SIZE(s, groups), SIZE(s, o_lora));
    if (s->heads > TD_SPARSE_HEADS_MAX || s->heads % s->groups || s->o_lora % TD_SPARSE_O_LORA)
        return td_fail(err, TD_EINVAL,
                       "%u heads in %u groups cannot have %u outputs each: at most %d heads, a multiple of %d", s->heads,
                       s->groups, s->o_lora, TD_SPARSE_HEADS_MAX, TD_SPARSE_O_LORA);
    if (s->rope_dim % 2 || s->rope_dim > s->dim)
        return td_fail(err, TD_EINVAL, "rope turns an even number of a head's %u values, not %u", s->dim, s->rope_dim);
    if (!s->ratio && (s->overlap || s->index_heads))
        return td_fail(err, TD_EINVAL, "without compressed rows there is nothing to overlap or to choose from");
    if (s->ratio) {
        SIZES(SIZE(s, state_slots), SIZE(s, open_slots));
        if (TD_KV_PAGE % s->ratio || (s->overlap && s->ratio > TD_STATE_BLOCK))
            return td_fail(err, TD_EINVAL, "a compressed row cannot stand for %u tokens%s", s->ratio,
                           s->overlap ? " that overlap" : "");
    }
    if (s->index_heads) {
        SIZES(SIZE(s, index_heads), SIZE(s, index_dim), SIZE(s, index_top));
        if (s->rope_dim > s->index_dim)
            return td_fail(err, TD_EINVAL, "rope cannot turn %u of an index head's %u values", s->rope_dim, s->index_dim);
    }
    return check_keys(d, err);
}

static td_status check_embed(const td_embed_desc *e, td_error *err) {
    SIZES(SIZE(e, hidden));
    return e->images && e->streams > 1
               ? td_fail(err, TD_EINVAL, "rows of images have one residual stream, not %u", e->streams)
               : TD_OK;
}

static td_status check_linear(const td_linear_desc *l, td_error *err) {
    SIZES(SIZE(l, n), SIZE(l, k));
    if ((unsigned)l->activation >= TD_ACTIVATIONS)
        return td_fail(err, TD_EINVAL, "a linear has no activation %d", (int)l->activation);
    return check_streams(l->k, (uint32_t)td_streams_of(l->streams), err);
}

static td_status check_router(const td_router_desc *r, td_error *err) {
    SIZES(SIZE(r, hidden), SIZE(r, n_experts), SIZE(r, top_k));
    if ((unsigned)r->score >= TD_ROUTER_SCORES) return td_fail(err, TD_EINVAL, "a router has no score %d", (int)r->score);
    if (r->n_experts > TD_EXPERTS_MAX || r->top_k > TD_TOP_K_MAX || r->top_k > r->n_experts)
        return td_fail(err, TD_EINVAL, "a router chooses 1 to %d of at most %d experts, not %u of %u", TD_TOP_K_MAX,
                       TD_EXPERTS_MAX, r->top_k, r->n_experts);
    if (r->group != TD_GROUP_NONE && (r->n_group == 0 || r->n_experts % r->n_group || r->topk_group == 0 ||
                                      r->topk_group > r->n_group || r->n_experts / r->n_group * r->topk_group < r->top_k))
        return td_fail(err, TD_EINVAL, "%u of %u groups cannot give %u of %u experts", r->topk_group, r->n_group, r->top_k,
                       r->n_experts);
    return TD_OK;
}

static td_status check_experts(const td_experts_desc *x, td_error *err) {
    SIZES(SIZE(x, hidden), SIZE(x, inter), SIZE(x, n_experts), SIZE(x, top_k));
    if (x->n_experts > TD_EXPERTS_MAX || x->top_k > TD_TOP_K_MAX || x->top_k > x->n_experts)
        return td_fail(err, TD_EINVAL, "a token uses 1 to %d of at most %d experts, not %u of %u", TD_TOP_K_MAX,
                       TD_EXPERTS_MAX, x->top_k, x->n_experts);
    return x->gate && x->up && x->down && x->ids && x->weights
               ? TD_OK
               : td_fail(err, TD_EINVAL, "experts need matrices, ids and weights");
}

static td_status check_resident(const td_resident_desc *x, td_error *err) {
    SIZES(SIZE(x, hidden), SIZE(x, inter), SIZE(x, n_experts), SIZE(x, top_k));
    if (x->n_experts > TD_EXPERTS_MAX || x->top_k > TD_TOP_K_MAX || x->top_k > x->n_experts)
        return td_fail(err, TD_EINVAL, "a token uses 1 to %d of at most %d experts, not %u of %u", TD_TOP_K_MAX,
                       TD_EXPERTS_MAX, x->top_k, x->n_experts);
    if (!x->packed || x->packed->hidden != x->hidden || x->packed->inter != x->inter)
        return td_fail(err, TD_EINVAL, "resident experts need to be packed as [%u, %u]", x->inter, x->hidden);
    if (x->first > td_resident_end(x) || x->end > x->top_k)
        return td_fail(err, TD_EINVAL, "of %u choices none are %u to %u", x->top_k, x->first, x->end);
    return TD_OK;
}

static td_status check_all_reduce(const td_all_reduce_desc *a, td_error *err) {
    SIZES(SIZE(a, width));
    return !a->exact || (a->add[0] && !a->add[1] && !a->add[2])
               ? TD_OK
               : td_fail(err, TD_EINVAL, "a card gives one part of an exact sum");
}

static td_status check_kind(const td_block_desc *d, td_error *err) {
    switch (d->kind) {
        case TD_BLOCK_EMBED: return check_embed(&d->embed, err);
        case TD_BLOCK_NORM: return check_norm(&d->norm, err);
        case TD_BLOCK_LINEAR: return check_linear(&d->linear, err);
        case TD_BLOCK_MLA: return check_mla(d, err);
        case TD_BLOCK_GQA: return check_gqa(d, err);
        case TD_BLOCK_DELTA: return check_delta(&d->delta, err);
        case TD_BLOCK_SPARSE: return check_sparse(d, err);
        case TD_BLOCK_MIX: return check_mix(&d->mix, err);
        case TD_BLOCK_SPREAD: return check_streams(d->spread.hidden, d->spread.streams, err);
        case TD_BLOCK_MLP: SIZES(SIZE(&d->mlp, hidden), SIZE(&d->mlp, inter)); return TD_OK;
        case TD_BLOCK_ROUTER: return check_router(&d->router, err);
        case TD_BLOCK_EXPERTS: return check_experts(&d->experts, err);
        case TD_BLOCK_RESIDENT: return check_resident(&d->resident, err);
        case TD_BLOCK_JOIN: SIZES(SIZE(&d->join, hidden)); return TD_OK;
        case TD_BLOCK_COMBINE: SIZES(SIZE(&d->combine, hidden)); return TD_OK;
        case TD_BLOCK_ALL_REDUCE: return check_all_reduce(&d->all_reduce, err);
        case TD_BLOCK_HEAD: SIZES(SIZE(&d->head, hidden), SIZE(&d->head, vocab), SIZE(&d->head, max_out)); return TD_OK;
        case TD_BLOCK_TOP:
            SIZES(SIZE(&d->top, vocab), SIZE(&d->top, k), SIZE(&d->top, max_out));
            return d->top.k <= d->top.vocab
                       ? TD_OK
                       : td_fail(err, TD_EINVAL, "the best %u of %u logits are wanted", d->top.k, d->top.vocab);
        case TD_BLOCK_COUNT: break;
    }
    return td_fail(err, TD_EINVAL, "there is no block kind %d", (int)d->kind);
}

static bool may_have_f32_rows(const td_block_desc *d) {
    switch (d->kind) {
        case TD_BLOCK_NORM: return !d->norm.out_i8.q && !d->norm.out_f32;
        case TD_BLOCK_LINEAR: return true;
        case TD_BLOCK_COMBINE: return !d->combine.images;
        case TD_BLOCK_GQA: return d->gqa.full && !d->gqa.in_i8.q;
        default: return false;
    }
}

td_status td_block_check(const td_block_desc *desc, uint32_t tok_max, td_error *err) {
    TD_TRY(check_kind(desc, err));
    if (desc->rows_f32 && !may_have_f32_rows(desc))
        return td_fail(err, TD_EINVAL, "a block of kind %d cannot have rows in f32 like this", (int)desc->kind);
    if (desc->max_tok < 1 || desc->max_tok > tok_max)
        return td_fail(err, TD_EINVAL, "a block takes 1 to %u rows, not %u", tok_max, desc->max_tok);
    return TD_OK;
}

td_status td_block_check_slotless(const td_block_desc *desc, td_error *err) {
    const bool uses_slots = desc->kind == TD_BLOCK_RESIDENT || desc->kind == TD_BLOCK_JOIN ||
                            (desc->kind == TD_BLOCK_ROUTER && desc->router.slot_of) ||
                            (desc->kind == TD_BLOCK_ALL_REDUCE && desc->all_reduce.exact);
    return uses_slots ? td_fail(err, TD_ENOTSUP, "this device keeps no experts in slots") : TD_OK;
}

td_status td_block_check_stateless(const td_block_desc *desc, td_error *err) {
    const bool has_streams = desc->kind == TD_BLOCK_MIX || desc->kind == TD_BLOCK_SPREAD ||
                             (desc->kind == TD_BLOCK_EMBED && desc->embed.streams > 1) ||
                             (desc->kind == TD_BLOCK_NORM && desc->norm.streams > 1) ||
                             (desc->kind == TD_BLOCK_LINEAR && desc->linear.streams > 1),
               is_other = (desc->kind == TD_BLOCK_ROUTER &&
                           (desc->router.by_token || desc->router.score == TD_SCORE_SQRT_SOFTPLUS)) ||
                          (desc->kind == TD_BLOCK_MLP && !td_glu_is_silu(&desc->mlp.glu));
    if (desc->kind == TD_BLOCK_MLA && desc->mla.index.top)
        return td_fail(err, TD_ENOTSUP, "this device has no attention to chosen keys");
    if (desc->kind == TD_BLOCK_MLA && !desc->mla.rope)
        return td_fail(err, TD_ENOTSUP, "this device has no latent attention without rope");
    if ((desc->kind == TD_BLOCK_EMBED && desc->embed.images) || (desc->kind == TD_BLOCK_COMBINE && desc->combine.images))
        return td_fail(err, TD_ENOTSUP, "this device takes no rows of images");
    if (desc->rows_f32) return td_fail(err, TD_ENOTSUP, "this device has no blocks with rows in f32");
    if (desc->kind == TD_BLOCK_NORM && desc->norm.beta) return td_fail(err, TD_ENOTSUP, "this device has no layer norms");
    if (desc->kind == TD_BLOCK_LINEAR && desc->linear.activation)
        return td_fail(err, TD_ENOTSUP, "this device has no activations of linears");
    if (desc->kind == TD_BLOCK_GQA && desc->gqa.full)
        return td_fail(err, TD_ENOTSUP, "this device has no attention to all rows of a sequence");
    if (desc->kind == TD_BLOCK_GQA && td_rope_has_axes(&desc->gqa.axes))
        return td_fail(err, TD_ENOTSUP, "this device has no rope by rows and columns of images");
    if (desc->kind == TD_BLOCK_DELTA) return td_fail(err, TD_ENOTSUP, "this device has no recurrent layers");
    if (desc->kind == TD_BLOCK_SPARSE) return td_fail(err, TD_ENOTSUP, "this device has no attention over compressed rows");
    if (has_streams) return td_fail(err, TD_ENOTSUP, "this device has one residual stream a token");
    return is_other
               ? td_fail(err, TD_ENOTSUP, "this device has no such %s", desc->kind == TD_BLOCK_MLP ? "gated unit" : "router")
               : TD_OK;
}

td_status td_block_check_step(const td_block_desc *desc, const td_step *step) {
    if (step->max_tok >= 1 && (uint64_t)step->first_row + step->max_tok <= desc->max_tok) return TD_OK;
    td_err("a step of rows %u to %u is given to a block of %u rows", step->first_row, step->first_row + step->max_tok,
           desc->max_tok);
    return TD_EINVAL;
}

td_status td_block_check_weights(const td_block_desc *desc, td_error *err) {
    td_block_weight list[TD_BLOCK_WEIGHTS_MAX];
    size_t          n = td_block_weights(desc, list);
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < list[i].count; k++) TD_TRY(check_weight(&list[i], list[i].w[k], err));
    if (desc->kind == TD_BLOCK_LINEAR && desc->linear.activation &&
        td_weight_takes_int8(((const td_weight_shape *)desc->linear.w)->format))
        return td_fail(err, TD_ENOTSUP, "a linear of quantised rows has no activation");
    return TD_OK;
}
