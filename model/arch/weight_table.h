/*
 * The rows of a family's table of weights, and those that families have in common.
 *
 * What every row must say comes first, and a row without it does not compile:
 *
 *   TD_MATRIX(role, scope, name, rows, columns, ...)   random in a dummy model
 *   TD_VECTOR(role, scope, name, elements, ...)        a bias, for instance: kept in f32, zeros in a dummy model
 *   TD_NORM(role, scope, name, elements, ...)          a norm's gain: kept in f32, ones in a dummy model
 *   TD_NORM_PLUS_ONE(...)                              the same where the checkpoint has the gain less one
 *
 *   role      TD_ROLE_..., without the prefix
 *   scope     MODEL, LAYER, DENSE, MOE, EXPERT, MTP: how often it occurs (td_weight_scope)
 *   name      in the checkpoint; # is the layer, the second # the expert
 *   rows, columns, elements   its shape (td_weight_dim)
 *
 * Then come members of td_weight_rule (arch.h) by name, where they are not as follows:
 *
 *   .place     TD_PLACE_LAYER; of scope EXPERT always TD_PLACE_EXPERTS
 *   .keep      TD_KEEP_LINEAR; the CPU tier keeps experts as --expert-quantization says
 *   .split     TD_SPLIT_WHOLE
 *   .order     TD_ORDER_SAME
 *   .rotation  a rotation of the residual stream does not act on it; else TD_GAIN, TD_STREAM, TD_READS(the norm's role),
 *              TD_WRITES, TD_JOINS(the norm's role), TD_UNDOES(the norm's role)
 *   .plus_one  false
 *   .stack     TD_STACK_NONE
 *   .within    there is no such tensor
 *   .when      it always exists
 *   .fallback  it is required; else TD_OR(the role that stands in for it)
 */
#ifndef TD_MODEL_ARCH_WEIGHT_TABLE_H
#define TD_MODEL_ARCH_WEIGHT_TABLE_H

#include "model/arch/arch.h"

/* clang-format off */
#define TD_WEIGHT(role, scope_, name_, ...) [TD_ROLE_##role] = {.scope = TD_SCOPE_##scope_, .name = name_, __VA_ARGS__}
#define TD_MATRIX(role, scope, name, rows_, columns_, ...) \
    TD_WEIGHT(role, scope, name, .rows = TD_DIM_##rows_, .columns = TD_DIM_##columns_, __VA_ARGS__)
#define TD_VECTOR(role, scope, name, elements, ...) \
    TD_WEIGHT(role, scope, name, .rows = TD_DIM_##elements, .keep = TD_KEEP_F32, .filling = TD_FILLING_ZEROS, __VA_ARGS__)
#define TD_NORM(role, scope, name, elements, ...) \
    TD_WEIGHT(role, scope, name, .rows = TD_DIM_##elements, .keep = TD_KEEP_F32, .filling = TD_FILLING_ONES, __VA_ARGS__)
#define TD_NORM_PLUS_ONE(role, scope, name, elements, ...) \
    TD_VECTOR(role, scope, name, elements, .plus_one = true, __VA_ARGS__)

#define TD_GAIN {TD_ROTATION_GAIN, TD_ROLE_COUNT}
#define TD_STREAM {TD_ROTATION_READS, TD_ROLE_COUNT} /* without a norm in between */
#define TD_READS(norm) {TD_ROTATION_READS, TD_ROLE_##norm}
#define TD_WRITES {TD_ROTATION_WRITES, TD_ROLE_COUNT}
#define TD_JOINS(norm) {TD_ROTATION_JOINS, TD_ROLE_##norm}
#define TD_UNDOES(norm) {TD_ROTATION_UNDOES, TD_ROLE_##norm}
#define TD_OR(role) {true, TD_ROLE_##role}
/* clang-format on */

/* ---- conditions -------------------------------------------------------------------------------- */

static inline bool td_when_q_lora(const td_model_config *c) {
    return c->q_lora > 0;
}
static inline bool td_when_no_q_lora(const td_model_config *c) {
    return c->q_lora == 0;
}
static inline bool td_when_attn_bias(const td_model_config *c) {
    return c->attn_bias;
}
static inline bool td_when_q_lora_bias(const td_model_config *c) {
    return c->q_lora > 0 && c->attn_bias;
}
static inline bool td_when_qkv_bias(const td_model_config *c) {
    return c->qkv_bias;
}
static inline bool td_when_qk_norm(const td_model_config *c) {
    return c->qk_norm;
}
static inline bool td_when_route_bias(const td_model_config *c) {
    return c->route_bias;
}
static inline bool td_when_shared(const td_model_config *c) {
    return c->shared_inter > 0;
}
static inline bool td_when_shared_gate(const td_model_config *c) {
    return c->shared_inter > 0 && c->shared_gate;
}
static inline bool td_when_mtp_rotated(const td_model_config *c) {
    return c->mtp_rotated;
}

/* ---- rows -------------------------------------------------------------------------------------- */

/* How several cards share a layer: linears that begin a parallel stretch (heads, MLP) are cut by their outputs, linears that
   end it by their inputs, and the sum over the cards follows. What a stretch begins from is whole on every card: the residual
   stream with its norms, MLA's latents, the router. So is the embedding: cut by vocabulary, every step would begin with a sum
   over the cards. */

/* clang-format off */
/* @param NORM TD_NORM, or TD_NORM_PLUS_ONE */
#define TD_STREAM_WEIGHTS_OF(NORM) \
    TD_MATRIX(EMBED, MODEL, "model.embed_tokens.weight", VOCAB, HIDDEN, \
              .place = TD_PLACE_ENDS, .keep = TD_KEEP_BF16, .rotation = TD_STREAM), \
    TD_MATRIX(LM_HEAD, MODEL, "lm_head.weight", VOCAB, HIDDEN, \
              .place = TD_PLACE_WHOLE_MODEL, .split = TD_SPLIT_ROWS, .rotation = TD_READS(FINAL_NORM)), \
    NORM(FINAL_NORM, MODEL, "model.norm.weight", HIDDEN, .place = TD_PLACE_ENDS, .rotation = TD_GAIN), \
    NORM(INPUT_NORM, LAYER, "model.layers.#.input_layernorm.weight", HIDDEN, .rotation = TD_GAIN), \
    NORM(POST_NORM, LAYER, "model.layers.#.post_attention_layernorm.weight", HIDDEN, .rotation = TD_GAIN)
#define TD_STREAM_WEIGHTS TD_STREAM_WEIGHTS_OF(TD_NORM)

#define TD_MLA_WEIGHTS \
    TD_MATRIX(Q_A, ATTENTION, "model.layers.#.self_attn.q_a_proj.weight", Q_LORA, HIDDEN, \
              .rotation = TD_READS(INPUT_NORM), .when = td_when_q_lora), \
    TD_VECTOR(Q_A_BIAS, ATTENTION, "model.layers.#.self_attn.q_a_proj.bias", Q_LORA, .when = td_when_q_lora_bias), \
    TD_NORM(Q_A_NORM, ATTENTION, "model.layers.#.self_attn.q_a_layernorm.weight", Q_LORA, .when = td_when_q_lora), \
    TD_MATRIX(Q_B, ATTENTION, "model.layers.#.self_attn.q_b_proj.weight", MLA_Q, Q_LORA, \
              .split = TD_SPLIT_ROWS, .order = TD_ORDER_MLA_Q, .when = td_when_q_lora), \
    TD_MATRIX(MLA_Q, ATTENTION, "model.layers.#.self_attn.q_proj.weight", MLA_Q, HIDDEN, \
              .split = TD_SPLIT_ROWS, .order = TD_ORDER_MLA_Q, .rotation = TD_READS(INPUT_NORM), .when = td_when_no_q_lora), \
    TD_MATRIX(KV_A, ATTENTION, "model.layers.#.self_attn.kv_a_proj_with_mqa.weight", KV_A, HIDDEN, \
              .order = TD_ORDER_KV_A, .rotation = TD_READS(INPUT_NORM)), \
    TD_VECTOR(KV_A_BIAS, ATTENTION, "model.layers.#.self_attn.kv_a_proj_with_mqa.bias", KV_A, \
              .order = TD_ORDER_KV_A, .when = td_when_attn_bias), \
    TD_NORM(KV_A_NORM, ATTENTION, "model.layers.#.self_attn.kv_a_layernorm.weight", KV_LORA), \
    TD_MATRIX(KV_B, ATTENTION, "model.layers.#.self_attn.kv_b_proj.weight", KV_B, KV_LORA, \
              .keep = TD_KEEP_LINEAR_BF16, .split = TD_SPLIT_ROWS), \
    TD_MATRIX(MLA_O, ATTENTION, "model.layers.#.self_attn.o_proj.weight", HIDDEN, MLA_V, \
              .split = TD_SPLIT_COLUMNS, .rotation = TD_WRITES), \
    TD_VECTOR(MLA_O_BIAS, ATTENTION, "model.layers.#.self_attn.o_proj.bias", HIDDEN, \
              .split = TD_SPLIT_CARD_0, .rotation = TD_STREAM, .when = td_when_attn_bias)

/* Kimi delta attention. What decays and gates are made from is never int8. */
#define TD_KDA_PROJECTION(role, name, rows, ...) \
    TD_MATRIX(role, DELTA, "model.layers.#.self_attn." name ".weight", rows, HIDDEN, .rotation = TD_READS(INPUT_NORM), __VA_ARGS__)
#define TD_KDA_FROM_LOW(role, name, rows) \
    TD_MATRIX(role, DELTA, "model.layers.#.self_attn." name ".weight", rows, DELTA_LOW, \
              .keep = TD_KEEP_LINEAR_BF16, .split = TD_SPLIT_ROWS)
#define TD_KDA_CONVOLUTION(role, name, rows) \
    TD_MATRIX(role, DELTA, "model.layers.#.self_attn." name ".weight", rows, DELTA_CONV, \
              .keep = TD_KEEP_F32, .split = TD_SPLIT_ROWS)
#define TD_KDA_WEIGHTS \
    TD_KDA_PROJECTION(DELTA_QKV, "q_proj", DELTA_K, .split = TD_SPLIT_ROWS), \
    TD_KDA_PROJECTION(DELTA_K, "k_proj", DELTA_K, .split = TD_SPLIT_ROWS), \
    TD_KDA_PROJECTION(DELTA_V, "v_proj", DELTA_V, .split = TD_SPLIT_ROWS), \
    TD_KDA_CONVOLUTION(DELTA_CONV, "q_conv1d", DELTA_K), \
    TD_KDA_CONVOLUTION(DELTA_CONV_K, "k_conv1d", DELTA_K), \
    TD_KDA_CONVOLUTION(DELTA_CONV_V, "v_conv1d", DELTA_V), \
    TD_KDA_PROJECTION(DELTA_A_LOW, "f_a_proj", DELTA_LOW, .keep = TD_KEEP_LINEAR_BF16), \
    TD_KDA_FROM_LOW(DELTA_A, "f_b_proj", DELTA_K), \
    TD_KDA_PROJECTION(DELTA_Z_LOW, "g_a_proj", DELTA_LOW, .keep = TD_KEEP_LINEAR_BF16), \
    TD_KDA_FROM_LOW(DELTA_Z, "g_b_proj", DELTA_V), \
    TD_KDA_PROJECTION(DELTA_B, "b_proj", DELTA_HEADS, .keep = TD_KEEP_F32, .split = TD_SPLIT_ROWS), \
    TD_VECTOR(DELTA_A_LOG, DELTA, "model.layers.#.self_attn.A_log", DELTA_HEADS, .split = TD_SPLIT_ROWS), \
    TD_VECTOR(DELTA_DT_BIAS, DELTA, "model.layers.#.self_attn.dt_bias", DELTA_K, .split = TD_SPLIT_ROWS), \
    TD_NORM(DELTA_NORM, DELTA, "model.layers.#.self_attn.o_norm.weight", DELTA_DIM), \
    TD_MATRIX(DELTA_O, DELTA, "model.layers.#.self_attn.o_proj.weight", HIDDEN, DELTA_V, \
              .split = TD_SPLIT_COLUMNS, .rotation = TD_WRITES)

/* DeepSeek Sparse Attention's indexer of tokens (DeepSeek-V3.2, arXiv 2512.02556). */
#define TD_INDEXER_WEIGHTS \
    TD_MATRIX(INDEX_Q, INDEXED, "model.layers.#.self_attn.indexer.wq_b.weight", INDEX_Q, Q_LORA, \
              .keep = TD_KEEP_LINEAR_BF16, .order = TD_ORDER_INDEX), \
    TD_MATRIX(INDEX_K, INDEXED, "model.layers.#.self_attn.indexer.wk.weight", INDEX_DIM, HIDDEN, \
              .keep = TD_KEEP_LINEAR_BF16, .order = TD_ORDER_INDEX, .rotation = TD_READS(INPUT_NORM)), \
    TD_NORM(INDEX_K_NORM, INDEXED, "model.layers.#.self_attn.indexer.k_norm.weight", INDEX_DIM, .order = TD_ORDER_INDEX), \
    TD_VECTOR(INDEX_K_BIAS, INDEXED, "model.layers.#.self_attn.indexer.k_norm.bias", INDEX_DIM, .order = TD_ORDER_INDEX), \
    TD_MATRIX(INDEX_WEIGHTS, INDEXED, "model.layers.#.self_attn.indexer.weights_proj.weight", INDEX_HEADS, HIDDEN, \
              .keep = TD_KEEP_BF16, .rotation = TD_READS(INPUT_NORM))

/* A mixture of residual streams (hyper-connections). @param scales of its parts: THREE, or of the last streams ONE */
#define TD_MIX_WEIGHTS(role, scope, name, rows, scales) \
    TD_MATRIX(role, scope, name "_fn", rows, WIDTH, .keep = TD_KEEP_F32), \
    TD_VECTOR(role##_BASE, scope, name "_base", rows), TD_NORM(role##_SCALE, scope, name "_scale", scales)

/* @param q_rows GQA_Q, or with a gate for each head GQA_Q_GATE */
#define TD_GQA_WEIGHTS_OF(q_rows) \
    TD_MATRIX(Q, ATTENTION, "model.layers.#.self_attn.q_proj.weight", q_rows, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(INPUT_NORM)), \
    TD_MATRIX(K, ATTENTION, "model.layers.#.self_attn.k_proj.weight", GQA_KV, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(INPUT_NORM)), \
    TD_MATRIX(V, ATTENTION, "model.layers.#.self_attn.v_proj.weight", GQA_KV, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(INPUT_NORM)), \
    TD_MATRIX(O, ATTENTION, "model.layers.#.self_attn.o_proj.weight", HIDDEN, GQA_Q, \
              .split = TD_SPLIT_COLUMNS, .rotation = TD_WRITES), \
    TD_VECTOR(Q_BIAS, ATTENTION, "model.layers.#.self_attn.q_proj.bias", q_rows, \
              .split = TD_SPLIT_ROWS, .when = td_when_qkv_bias), \
    TD_VECTOR(K_BIAS, ATTENTION, "model.layers.#.self_attn.k_proj.bias", GQA_KV, \
              .split = TD_SPLIT_ROWS, .when = td_when_qkv_bias), \
    TD_VECTOR(V_BIAS, ATTENTION, "model.layers.#.self_attn.v_proj.bias", GQA_KV, \
              .split = TD_SPLIT_ROWS, .when = td_when_qkv_bias)

#define TD_GQA_WEIGHTS TD_GQA_WEIGHTS_OF(GQA_Q)

/* Norms of each head of q and k. */
#define TD_HEAD_NORM_WEIGHTS_OF(NORM) \
    NORM(Q_NORM, ATTENTION, "model.layers.#.self_attn.q_norm.weight", HEAD, .when = td_when_qk_norm), \
    NORM(K_NORM, ATTENTION, "model.layers.#.self_attn.k_norm.weight", HEAD, .when = td_when_qk_norm)
#define TD_HEAD_NORM_WEIGHTS TD_HEAD_NORM_WEIGHTS_OF(TD_NORM)

#define TD_DENSE_WEIGHTS \
    TD_MATRIX(DENSE_GATE, DENSE, "model.layers.#.mlp.gate_proj.weight", INTER, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)), \
    TD_MATRIX(DENSE_UP, DENSE, "model.layers.#.mlp.up_proj.weight", INTER, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)), \
    TD_MATRIX(DENSE_DOWN, DENSE, "model.layers.#.mlp.down_proj.weight", HIDDEN, INTER, \
              .split = TD_SPLIT_COLUMNS, .rotation = TD_WRITES)

#define TD_ROUTER_WEIGHT \
    TD_MATRIX(ROUTER, MOE, "model.layers.#.mlp.gate.weight", EXPERTS, HIDDEN, \
              .keep = TD_KEEP_F32, .rotation = TD_READS(POST_NORM))

/* DeepSeek-V3's bias: added to the scores for the choice of experts, and not to their weights. */
#define TD_ROUTER_BIAS \
    TD_VECTOR(ROUTER_BIAS, MOE, "model.layers.#.mlp.gate.e_score_correction_bias", EXPERTS, \
              .when = td_when_route_bias)

#define TD_SHARED_WEIGHTS(mlp) \
    TD_MATRIX(SHARED_GATE, MOE, "model.layers.#." mlp ".gate_proj.weight", SHARED_INTER, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM), .when = td_when_shared), \
    TD_MATRIX(SHARED_UP, MOE, "model.layers.#." mlp ".up_proj.weight", SHARED_INTER, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM), .when = td_when_shared), \
    TD_MATRIX(SHARED_DOWN, MOE, "model.layers.#." mlp ".down_proj.weight", HIDDEN, SHARED_INTER, \
              .split = TD_SPLIT_COLUMNS, .rotation = TD_WRITES, .when = td_when_shared)

#define TD_EXPERT_WEIGHTS \
    TD_MATRIX(EXPERT_GATE, EXPERT, "model.layers.#.mlp.experts.#.gate_proj.weight", MOE_INTER, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)), \
    TD_MATRIX(EXPERT_UP, EXPERT, "model.layers.#.mlp.experts.#.up_proj.weight", MOE_INTER, HIDDEN, \
              .split = TD_SPLIT_ROWS, .rotation = TD_READS(POST_NORM)), \
    TD_MATRIX(EXPERT_DOWN, EXPERT, "model.layers.#.mlp.experts.#.down_proj.weight", HIDDEN, MOE_INTER, \
              .split = TD_SPLIT_COLUMNS, .rotation = TD_WRITES)

/* DeepSeek-V3, arXiv 2412.19437 section 2.2.
   @param NORM as above. @param of before all names; the others are names of the two norms that are joined, the projection of
   both, and the last norm and head */
#define TD_MTP_WEIGHTS_OF(NORM, of, enorm, hnorm, proj, norm, head) \
    NORM(MTP_ENORM, MTP, of enorm ".weight", HIDDEN, .rotation = TD_GAIN), \
    NORM(MTP_HNORM, MTP, of hnorm ".weight", HIDDEN), \
    TD_MATRIX(MTP_EH_PROJ, MTP, of proj ".weight", HIDDEN, TWO_HIDDEN, .rotation = TD_JOINS(MTP_ENORM)), \
    TD_MATRIX(MTP_EMBED, MTP, of "embed_tokens.weight", VOCAB, HIDDEN, \
              .place = TD_PLACE_SHARED, .keep = TD_KEEP_BF16, .rotation = TD_STREAM, .fallback = TD_OR(EMBED)), \
    NORM(MTP_NORM, MTP, of norm ".weight", HIDDEN, .rotation = TD_GAIN, .fallback = TD_OR(FINAL_NORM)), \
    TD_MATRIX(MTP_HEAD, MTP, of head ".weight", VOCAB, HIDDEN, \
              .place = TD_PLACE_SHARED_UNLESS_ROTATED, .split = TD_SPLIT_ROWS, \
              .rotation = TD_READS(MTP_NORM), .fallback = TD_OR(LM_HEAD)), \
    TD_MATRIX(MTP_UNROTATE, MTP, of "hidden_proj.weight", HIDDEN, HIDDEN, \
              .rotation = TD_UNDOES(FINAL_NORM), .when = td_when_mtp_rotated)
#define TD_MTP_WEIGHTS \
    TD_MTP_WEIGHTS_OF(TD_NORM, "model.layers.#.", "enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head")
/* clang-format on */

#endif
