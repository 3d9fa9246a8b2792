#include "npu/block_work.h"

static size_t add(td_block_matrix *list, size_t n_list, const td_npu_weight *w, td_matrix_use use, uint64_t n, uint64_t k) {
    list[n_list] = (td_block_matrix){w, use, n, k};
    return n_list + 1;
}

static size_t mla_matrices(const td_mla_desc *m, td_block_matrix *list) {
    uint64_t q = (uint64_t)m->heads * (m->nope_dim + m->rope_dim), v = (uint64_t)m->heads * m->v_dim;
    size_t   n = 0;
    if (m->q_lora) {
        n = add(list, n, m->q_a, TD_MATRIX_LINEAR, m->q_lora, m->hidden);
        n = add(list, n, m->q_b, TD_MATRIX_LINEAR, q, m->q_lora);
    } else {
        n = add(list, n, m->q, TD_MATRIX_LINEAR, q, m->hidden);
    }
    n = add(list, n, m->kv_a, TD_MATRIX_LINEAR, (uint64_t)m->kv_lora + m->rope_dim, m->hidden);
    n = add(list, n, m->kv_b, TD_MATRIX_LATENT, (uint64_t)m->heads * (m->nope_dim + m->v_dim), m->kv_lora);
    return add(list, n, m->o, TD_MATRIX_LINEAR, m->hidden, v);
}

static size_t gqa_matrices(const td_gqa_desc *g, td_block_matrix *list) {
    uint64_t q = (uint64_t)g->heads * g->head_dim, kv = (uint64_t)g->kv_heads * g->head_dim;
    size_t   n = add(list, 0, g->q, TD_MATRIX_LINEAR, q, g->hidden);
    n = add(list, n, g->k, TD_MATRIX_LINEAR, kv, g->hidden);
    n = add(list, n, g->v, TD_MATRIX_LINEAR, kv, g->hidden);
    return add(list, n, g->o, TD_MATRIX_LINEAR, g->hidden, q);
}

static size_t mlp_matrices(const td_mlp_desc *m, td_block_matrix *list) {
    size_t n = add(list, 0, m->gate, TD_MATRIX_LINEAR, m->inter, m->hidden);
    n = add(list, n, m->up, TD_MATRIX_LINEAR, m->inter, m->hidden);
    n = add(list, n, m->down, TD_MATRIX_LINEAR, m->hidden, m->inter);
    return m->out_gate ? add(list, n, m->out_gate, TD_MATRIX_SCORES, 1, m->hidden) : n;
}

size_t td_block_matrices(const td_block_desc *d, td_block_matrix list[TD_BLOCK_MATRICES_MAX]) {
    switch (d->kind) {
        case TD_BLOCK_EMBED: return add(list, 0, d->embed.table, TD_MATRIX_TABLE, 0, d->embed.hidden);
        case TD_BLOCK_LINEAR: return add(list, 0, d->linear.w, TD_MATRIX_LINEAR, d->linear.n, d->linear.k);
        case TD_BLOCK_MLA: return mla_matrices(&d->mla, list);
        case TD_BLOCK_GQA: return gqa_matrices(&d->gqa, list);
        case TD_BLOCK_MLP: return mlp_matrices(&d->mlp, list);
        case TD_BLOCK_ROUTER: return add(list, 0, d->router.w, TD_MATRIX_SCORES, d->router.n_experts, d->router.hidden);
        case TD_BLOCK_HEAD: return add(list, 0, d->head.w, TD_MATRIX_HEAD, d->head.vocab, d->head.hidden);
        case TD_BLOCK_EXPERTS: /* those that the rows chose */
        case TD_BLOCK_NORM:
        case TD_BLOCK_COMBINE:
        case TD_BLOCK_ALL_REDUCE:
        case TD_BLOCK_TOP:
        case TD_BLOCK_COUNT: break;
    }
    return 0;
}

uint64_t td_work_row_bytes(td_weight_format format, uint64_t k) {
    return format == TD_WEIGHT_W8A8 ? k + sizeof(float) : k * (format == TD_WEIGHT_BF16 ? sizeof(td_bf16) : sizeof(float));
}

void td_work_add_product(td_tier_work *sum, td_weight_format format, uint64_t n, uint64_t k, uint64_t row_bytes,
                         uint64_t rows) {
    if (!rows) return;
    sum->bytes += n * row_bytes;
    *(td_weight_takes_int8(format) ? &sum->int8_ops : &sum->f32_ops) += 2 * n * k * rows;
}

void td_work_add_matrices(td_tier_work *sum, const td_block_desc *desc, const td_block_formats *formats, uint64_t n_tok,
                          uint64_t n_out) {
    td_block_matrix list[TD_BLOCK_MATRICES_MAX];
    size_t          n = td_block_matrices(desc, list);
    for (size_t i = 0; i < n; i++) {
        const td_block_matrix *x = &list[i];
        td_weight_format       linear = formats->linear, scores = TD_WEIGHT_F32;
        switch (x->use) {
            case TD_MATRIX_TABLE: sum->bytes += n_tok * td_work_row_bytes(formats->table, x->k); break;
            case TD_MATRIX_LATENT: sum->bytes += x->n * td_work_row_bytes(formats->latent, x->k); break;
            case TD_MATRIX_SCORES:
                td_work_add_product(sum, scores, x->n, x->k, td_work_row_bytes(scores, x->k), n_tok);
                break;
            case TD_MATRIX_LINEAR:
                td_work_add_product(sum, linear, x->n, x->k, td_work_row_bytes(linear, x->k), n_tok);
                break;
            case TD_MATRIX_HEAD: td_work_add_product(sum, linear, x->n, x->k, td_work_row_bytes(linear, x->k), n_out); break;
        }
    }
}

/* (row, key it attends to): a row sees the keys up to its own, or the last `window` of them. */
static uint64_t pairs_of(const td_work_sequence *s, uint64_t window) {
    const uint64_t before = s->keys - s->rows; /* the first row sees one key more */
    const uint64_t growing = !window                     ? s->rows
                             : window <= before          ? 0
                             : window - before < s->rows ? window - before
                                                         : s->rows;
    return growing * (2 * before + growing + 1) / 2 + (s->rows - growing) * window;
}

/* Keys that any of the rows sees. */
static uint64_t keys_of(const td_work_sequence *s, uint64_t window) {
    const uint64_t met = window + s->rows - 1;
    return window && met < s->keys ? met : s->keys;
}

/* Expanded, every key's latent goes through W_UK and W_UV; absorbed, every row's query and sum do. */
static void add_mla(td_tier_work *sum, const td_mla_desc *m, size_t act_bytes, const td_work_sequence *s) {
    uint64_t dk = (uint64_t)(s->absorbed ? m->kv_lora : m->nope_dim) + m->rope_dim, dv = s->absorbed ? m->kv_lora : m->v_dim;
    sum->bytes += s->keys * ((uint64_t)m->kv_lora + m->rope_dim) * act_bytes;
    sum->f32_ops += (s->absorbed ? s->rows : s->keys) * m->heads * ((uint64_t)m->nope_dim + m->v_dim) * m->kv_lora * 2;
    sum->f32_ops += pairs_of(s, 0) * m->heads * (dk + dv) * 2;
}

void td_work_add_attention(td_tier_work *sum, const td_block_desc *desc, size_t act_bytes, const td_work_sequence *s) {
    const td_gqa_desc *g = &desc->gqa;
    if (desc->kind == TD_BLOCK_MLA) add_mla(sum, &desc->mla, act_bytes, s);
    if (desc->kind != TD_BLOCK_GQA) return;
    sum->bytes += keys_of(s, g->window) * g->kv_heads * g->head_dim * 2 * act_bytes;
    sum->f32_ops += pairs_of(s, g->window) * g->heads * g->head_dim * 2 * 2;
}
