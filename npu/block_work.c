#include "npu/block_work.h"

uint64_t td_work_row_bytes(td_weight_format format, uint64_t k) {
    return format == TD_WEIGHT_W8A8 ? k + sizeof(float) : k * (format == TD_WEIGHT_BF16 ? sizeof(td_bf16) : sizeof(float));
}

void td_work_add_product(td_tier_work *sum, td_weight_format format, uint64_t n, uint64_t k, uint64_t row_bytes,
                         uint64_t rows) {
    if (!rows) return;
    sum->bytes += n * row_bytes;
    *(td_weight_takes_int8(format) ? &sum->int8_ops : &sum->f32_ops) += 2 * n * k * rows;
}

uint64_t td_work_linear_rows(const td_block_desc *desc, uint64_t n_tok) {
    return desc->kind == TD_BLOCK_LINEAR ? n_tok * td_streams_of(desc->linear.streams) : n_tok;
}

void td_work_add_matrices(td_tier_work *sum, const td_block_desc *desc, const td_block_formats *formats, uint64_t n_tok,
                          uint64_t n_out) {
    td_block_weight list[TD_BLOCK_WEIGHTS_MAX];
    size_t          n = td_block_weights(desc, list);
    for (size_t i = 0; i < n; i++) {
        const td_block_weight *x = &list[i];
        td_weight_format       linear = formats->linear, scores = TD_WEIGHT_F32;
        switch (x->use) {
            case TD_USE_TABLE: sum->bytes += n_tok * td_work_row_bytes(formats->table, x->k); break;
            case TD_USE_LATENT: sum->bytes += x->n * td_work_row_bytes(formats->latent, x->k); break;
            case TD_USE_SCORES: td_work_add_product(sum, scores, x->n, x->k, td_work_row_bytes(scores, x->k), n_tok); break;
            case TD_USE_LINEAR:
                td_work_add_product(sum, linear, x->n, x->k, td_work_row_bytes(linear, x->k),
                                    td_work_linear_rows(desc, n_tok));
                break;
            case TD_USE_HEAD: td_work_add_product(sum, linear, x->n, x->k, td_work_row_bytes(linear, x->k), n_out); break;
            case TD_USE_EXPERT: /* those that the rows chose */
            case TD_USE_VECTOR:
            case TD_USE_ROPE:
            case TD_USE_TAPS: break;
        }
    }
}

/* (row, key it attends to): a row sees the keys up to its own, or the last `window` of them. */
static uint64_t pairs_of(const td_work_sequence *s, uint64_t window) {
    const uint64_t before = s->keys - s->rows;                         /* the first row sees one key more */
    const uint64_t until_full = window > before ? window - before : 0; /* rows that see all keys before them */
    const uint64_t growing = !window || until_full > s->rows ? s->rows : until_full;
    return growing * (2 * before + growing + 1) / 2 + (s->rows - growing) * window;
}

/* Keys that any of the rows sees. */
static uint64_t keys_of(const td_work_sequence *s, uint64_t window) {
    const uint64_t met = window + s->rows - 1;
    return window && met < s->keys ? met : s->keys;
}

/* An indexer's scores of so many (row, key) pairs: of integers of 8 bits where activations are bf16. */
static void add_index(td_tier_work *sum, uint64_t heads, uint64_t dim, size_t act_bytes, uint64_t keys, uint64_t pairs) {
    const bool quantised = act_bytes == sizeof(td_bf16);
    sum->bytes += keys * dim * (quantised ? 1 : act_bytes);
    *(quantised ? &sum->int8_ops : &sum->f32_ops) += pairs * heads * dim * 2;
}

/* Of a value in the cache. */
static uint64_t kv_bytes(bool kv_int8, size_t act_bytes) {
    return kv_int8 ? 1 : act_bytes;
}

/* Rows that choose meet `top` keys in the absorbed form; the few of the same step that do not are counted as if they did, and
 * tokens behind the last index key are not. With an indexer of the layer's own there are the scores of all keys, too. */
static void add_chosen_mla(td_tier_work *sum, const td_mla_desc *m, size_t act_bytes, const td_work_sequence *s) {
    const td_index_desc *x = &m->index;
    const uint64_t       dk = (uint64_t)m->kv_lora + m->rope_dim;
    sum->bytes += s->rows * x->top * dk * kv_bytes(m->kv_int8, act_bytes);
    sum->f32_ops += s->rows * m->heads * ((uint64_t)m->nope_dim + m->v_dim) * m->kv_lora * 2;
    sum->f32_ops += s->rows * x->top * m->heads * (dk + m->kv_lora) * 2;
    const uint64_t pool = td_index_pool(x);
    if (x->heads) add_index(sum, x->heads, x->dim, act_bytes, s->keys / pool, pairs_of(s, 0) / pool);
}

/* Expanded, every key's latent goes through W_UK and W_UV; absorbed, every row's query and sum do. */
static void add_mla(td_tier_work *sum, const td_mla_desc *m, size_t act_bytes, const td_work_sequence *s) {
    uint64_t dk = (uint64_t)(s->absorbed ? m->kv_lora : m->nope_dim) + m->rope_dim, dv = s->absorbed ? m->kv_lora : m->v_dim;
    if (m->index.top && s->keys > td_index_first(&m->index)) {
        add_chosen_mla(sum, m, act_bytes, s);
        return;
    }
    sum->bytes += s->keys * ((uint64_t)m->kv_lora + m->rope_dim) * kv_bytes(m->kv_int8, act_bytes);
    sum->f32_ops += (s->absorbed ? s->rows : s->keys) * m->heads * ((uint64_t)m->nope_dim + m->v_dim) * m->kv_lora * 2;
    sum->f32_ops += pairs_of(s, 0) * m->heads * (dk + dv) * 2;
}

/* (row, row of its block that it meets) of the first n tokens. */
static uint64_t pairs_in_blocks(uint64_t n) {
    const uint64_t b = TD_STATE_BLOCK, rest = n % b;
    return n / b * b * (b + 1) / 2 + rest * (rest + 1) / 2;
}

/* Every row meets the state and the rows of its block up to its own; a block's rows go into the state when it ends. */
static void add_delta(td_tier_work *sum, const td_delta_desc *d, const td_work_sequence *s) {
    const uint64_t before = s->keys - s->rows, begun = before % TD_STATE_BLOCK, r = d->value_heads / d->key_heads,
                   ended = (s->keys / TD_STATE_BLOCK - before / TD_STATE_BLOCK) * TD_STATE_BLOCK,
                   pairs = pairs_in_blocks(s->keys) - pairs_in_blocks(before), dk = d->key_dim, dv = d->value_dim,
                   sums = d->form == TD_DELTA_KIMI ? dk : 0; /* of decays, beside k and v' of a row */
    if (!s->rows) return;
    if (before >= TD_STATE_BLOCK) sum->bytes += d->key_heads * td_delta_state_values(d) * sizeof(float);
    sum->bytes += d->key_heads * begun * (dk + r * dv + sums) * sizeof(float);
    sum->f32_ops += d->key_heads * (2 * s->rows * r * dk * dv + pairs * 2 * (dk + r * dv) + ended * r * dk * dv) * 2;
}

/* Keys of the window and compressed rows; with an indexer also the scores of all of these. */
static void add_sparse(td_tier_work *sum, const td_sparse_desc *m, size_t act_bytes, const td_work_sequence *s) {
    const uint64_t rows = m->ratio ? s->keys / m->ratio : 0,
                   met = m->index_heads && m->index_top < rows ? m->index_top : rows;
    if (!s->rows) return;
    sum->bytes += (keys_of(s, m->window) + met) * m->dim * act_bytes;
    sum->f32_ops += (pairs_of(s, m->window) + s->rows * met) * m->heads * m->dim * 2 * 2;
    if (met < rows) add_index(sum, m->index_heads, m->index_dim, act_bytes, rows, s->rows * rows);
}

void td_work_add_attention(td_tier_work *sum, const td_block_desc *desc, size_t act_bytes, const td_work_sequence *s) {
    const td_gqa_desc *g = &desc->gqa;
    if (desc->kind == TD_BLOCK_MLA) add_mla(sum, &desc->mla, act_bytes, s);
    if (desc->kind == TD_BLOCK_DELTA) add_delta(sum, &desc->delta, s);
    if (desc->kind == TD_BLOCK_SPARSE) add_sparse(sum, &desc->sparse, act_bytes, s);
    if (desc->kind != TD_BLOCK_GQA) return;
    sum->bytes += keys_of(s, g->window) * g->kv_heads * g->head_dim * 2 * kv_bytes(g->kv_int8, act_bytes);
    sum->f32_ops += (g->full ? s->rows * s->keys : pairs_of(s, g->window)) * g->heads * g->head_dim * 2 * 2;
}
