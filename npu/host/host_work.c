/*
 * What a block has to read and compute, for the metrics: a lower bound that any schedule shares.
 *
 * Read once: weights of matrix products, the embedding rows of the tokens, and the KV of every sequence. Computed: two
 * operations a multiply-add of products, scores and sums of values; products of int8 rows in int8, all else counts as f32,
 * attention in 16-bit integers too. Left out: norms, rope, softmax, biases, activations, the KV that is written, and the
 * scales of its rows.
 */
#include "npu/host/host_device.h"

static uint64_t row_bytes(const td_npu_weight *w) {
    if (w->format == TD_WEIGHT_INT4G || w->format == TD_WEIGHT_FP4G) return w->bytes / w->n;
    return w->format == TD_WEIGHT_W8A8 ? w->k + sizeof(float)
                                       : w->k * (w->format == TD_WEIGHT_BF16 ? sizeof(td_bf16) : sizeof(float));
}

static void add_product(td_tier_work *sum, const td_npu_weight *w, size_t rows) {
    if (!w || !rows) return;
    sum->bytes += w->n * row_bytes(w);
    *(td_weight_takes_int8(w->format) ? &sum->int8_ops : &sum->f32_ops) += 2 * (uint64_t)w->n * w->k * rows;
}

typedef struct {
    uint64_t rows, keys, pairs; /* pairs: (row, key it attends to) */
} attended;

static attended of_sequence(const td_host_step *s, uint32_t q) {
    uint64_t rows = s->a.seq_start[q + 1] - s->a.seq_start[q], keys = s->a.kv_len[q];
    return (attended){rows, keys, rows * (2 * keys - rows + 1) / 2};
}

static void add_gqa(td_tier_work *sum, const td_host_npu *d, const td_gqa_desc *g, const td_host_step *s) {
    const td_npu_weight *const products[] = {g->q, g->k, g->v, g->o};
    for (size_t i = 0; i < 4; i++) add_product(sum, products[i], s->n_tok);
    for (uint32_t q = 0; q < s->n_seq; q++) {
        attended a = of_sequence(s, q);
        sum->bytes += td_host_act_bytes(d, a.keys * g->kv_heads * g->head_dim * 2);
        sum->f32_ops += a.pairs * g->heads * g->head_dim * 2 * 2;
    }
}

/* Expanded, every key's latent goes through W_UK and W_UV; absorbed, every row's query and sum do. */
static void add_mla(td_tier_work *sum, const td_host_npu *d, const td_mla_desc *m, const td_host_step *s) {
    const td_npu_weight *const products[] = {m->q_a, m->q_b, m->q, m->kv_a, m->o};
    for (size_t i = 0; i < 5; i++) add_product(sum, products[i], s->n_tok);
    sum->bytes += m->kv_b->n * row_bytes(m->kv_b);
    for (uint32_t q = 0; q < s->n_seq; q++) {
        attended a = of_sequence(s, q);
        bool     absorbed = s->a.absorbed[q];
        uint64_t dk = (uint64_t)(absorbed ? m->kv_lora : m->nope_dim) + m->rope_dim, dv = absorbed ? m->kv_lora : m->v_dim;
        sum->bytes += td_host_act_bytes(d, a.keys * ((size_t)m->kv_lora + m->rope_dim));
        sum->f32_ops += (absorbed ? a.rows : a.keys) * m->heads * ((uint64_t)m->nope_dim + m->v_dim) * m->kv_lora * 2;
        sum->f32_ops += a.pairs * m->heads * (dk + dv) * 2;
    }
}

td_tier_work td_host_block_work(const td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_block_desc *desc = &b->desc;
    td_tier_work         sum = {0};
    switch (desc->kind) {
        case TD_BLOCK_EMBED: sum.bytes += s->n_tok * row_bytes(desc->embed.table); break;
        case TD_BLOCK_LINEAR: add_product(&sum, desc->linear.w, s->n_tok); break;
        case TD_BLOCK_MLA: add_mla(&sum, d, &desc->mla, s); break;
        case TD_BLOCK_GQA: add_gqa(&sum, d, &desc->gqa, s); break;
        case TD_BLOCK_MLP:
            add_product(&sum, desc->mlp.gate, s->n_tok);
            add_product(&sum, desc->mlp.up, s->n_tok);
            add_product(&sum, desc->mlp.down, s->n_tok);
            add_product(&sum, desc->mlp.out_gate, s->n_tok);
            break;
        case TD_BLOCK_ROUTER: add_product(&sum, desc->router.w, s->n_tok); break;
        case TD_BLOCK_HEAD: add_product(&sum, desc->head.w, s->n_out); break;
        case TD_BLOCK_NORM:
        case TD_BLOCK_COMBINE:
        case TD_BLOCK_ALL_REDUCE:
        case TD_BLOCK_TOP:
        case TD_BLOCK_COUNT: break;
    }
    return sum;
}
