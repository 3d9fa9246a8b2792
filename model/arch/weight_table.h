/*
 * The columns of a family's table of weights, and the rows that families have in common.
 *
 * A row is TD_WEIGHT(...) with all columns: one that is left out does not compile. Words stand for enumerators:
 *
 *   role      TD_ROLE_…
 *   scope     MODEL, LAYER, DENSE, MOE, EXPERT, MTP: how often it occurs (td_weight_scope)
 *   name      in the checkpoint; # is the layer, the second # the expert
 *   rows, columns   its shape (td_weight_dim); columns NONE: a vector
 *   place     which tier has it, and for which part of a model (td_place)
 *   keep      how the device tier keeps it (td_weight_keep); the CPU tier keeps experts as --cpu-quantization says
 *   split     what of it each of several cards has (td_split)
 *   pairs     which of its rows a checkpoint of interleaved pairs has in another order (td_weight_pairs)
 *   turning   how a rotation of the residual stream acts on it (td_turning): NONE; GAIN; STREAM; READS(the norm's role);
 *             WRITES; JOINS(the norm's role); UNDOES(the norm's role)
 *   filling   what dummy weights are: RANDOM, ONES, ZEROS (td_filling)
 *   when      a condition on the configuration, or NULL
 *   fallback  ROLE(…) that stands in where the checkpoint has none, or REQUIRED
 */
#ifndef TD_MODEL_ARCH_WEIGHT_TABLE_H
#define TD_MODEL_ARCH_WEIGHT_TABLE_H

#include "model/arch/arch.h"

#define TD_WEIGHT(role, scope_, name_, rows_, columns_, place_, keep_, split_, pairs_, turning_, filling_, when_, \
                  fallback_)                                                                                      \
    [TD_ROLE_##role] = {.name = name_,                                                                            \
                        .scope = TD_SCOPE_##scope_,                                                               \
                        .rows = TD_DIM_##rows_,                                                                   \
                        .columns = TD_DIM_##columns_,                                                             \
                        .place = TD_PLACE_##place_,                                                               \
                        .keep = TD_KEEP_##keep_,                                                                  \
                        .split = TD_SPLIT_##split_,                                                               \
                        .pairs = TD_PAIRS_##pairs_,                                                               \
                        .turning = TD_TURNING_##turning_,                                                         \
                        .filling = TD_FILLING_##filling_,                                                         \
                        .when = when_,                                                                            \
                        .fallback = TD_FALLBACK_##fallback_}

#define TD_TURNING_NONE \
    { TD_TURN_NONE, TD_ROLE_COUNT }
#define TD_TURNING_GAIN \
    { TD_TURN_GAIN, TD_ROLE_COUNT }
#define TD_TURNING_STREAM \
    { TD_TURN_READS, TD_ROLE_COUNT }
#define TD_TURNING_READS(norm) \
    { TD_TURN_READS, TD_ROLE_##norm }
#define TD_TURNING_WRITES \
    { TD_TURN_WRITES, TD_ROLE_COUNT }
#define TD_TURNING_JOINS(norm) \
    { TD_TURN_JOINS, TD_ROLE_##norm }
#define TD_TURNING_UNDOES(norm) \
    { TD_TURN_UNDOES, TD_ROLE_##norm }
#define TD_FALLBACK_REQUIRED TD_ROLE_COUNT
#define TD_FALLBACK_ROLE(role) TD_ROLE_##role

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
static inline bool td_when_mtp_turned(const td_model_config *c) {
    return c->mtp_turned;
}

/* ---- rows -------------------------------------------------------------------------------------- */

/* The output dimension of what begins a parallel stretch (heads, MLP) is cut, the input dimension of what ends it; the sum
   over the cards follows. What a stretch begins from is on every card: the residual stream with its norms, MLA's latents,
   the router. The embedding too: its rows are read as they are, and cut by vocabulary every step would begin with a sum over
   the cards. */

/* clang-format off */
#define TD_STREAM_WEIGHTS \
    TD_WEIGHT(EMBED,      MODEL, "model.embed_tokens.weight", VOCAB, HIDDEN, ENDS, BF16, WHOLE, NONE, STREAM, RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(LM_HEAD,    MODEL, "lm_head.weight", VOCAB, HIDDEN, WHOLE_MODEL, LINEAR, ROWS, NONE, READS(FINAL_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(FINAL_NORM, MODEL, "model.norm.weight", HIDDEN, NONE, ENDS, F32, WHOLE, NONE, GAIN, ONES, NULL, REQUIRED), \
    TD_WEIGHT(INPUT_NORM, LAYER, "model.layers.#.input_layernorm.weight", HIDDEN, NONE, LAYER, F32, WHOLE, NONE, GAIN, ONES, NULL, REQUIRED), \
    TD_WEIGHT(POST_NORM,  LAYER, "model.layers.#.post_attention_layernorm.weight", HIDDEN, NONE, LAYER, F32, WHOLE, NONE, GAIN, ONES, NULL, REQUIRED)

#define TD_MLA_WEIGHTS \
    TD_WEIGHT(Q_A,        LAYER, "model.layers.#.self_attn.q_a_proj.weight", Q_LORA, HIDDEN, LAYER, LINEAR, WHOLE, NONE, READS(INPUT_NORM), RANDOM, td_when_q_lora, REQUIRED), \
    TD_WEIGHT(Q_A_BIAS,   LAYER, "model.layers.#.self_attn.q_a_proj.bias", Q_LORA, NONE, LAYER, F32, WHOLE, NONE, NONE, ZEROS, td_when_q_lora_bias, REQUIRED), \
    TD_WEIGHT(Q_A_NORM,   LAYER, "model.layers.#.self_attn.q_a_layernorm.weight", Q_LORA, NONE, LAYER, F32, WHOLE, NONE, NONE, ONES, td_when_q_lora, REQUIRED), \
    TD_WEIGHT(Q_B,        LAYER, "model.layers.#.self_attn.q_b_proj.weight", MLA_Q, Q_LORA, LAYER, LINEAR, ROWS, MLA_Q, NONE, RANDOM, td_when_q_lora, REQUIRED), \
    TD_WEIGHT(MLA_Q,      LAYER, "model.layers.#.self_attn.q_proj.weight", MLA_Q, HIDDEN, LAYER, LINEAR, ROWS, MLA_Q, READS(INPUT_NORM), RANDOM, td_when_no_q_lora, REQUIRED), \
    TD_WEIGHT(KV_A,       LAYER, "model.layers.#.self_attn.kv_a_proj_with_mqa.weight", KV_A, HIDDEN, LAYER, LINEAR, WHOLE, KV_A, READS(INPUT_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(KV_A_BIAS,  LAYER, "model.layers.#.self_attn.kv_a_proj_with_mqa.bias", KV_A, NONE, LAYER, F32, WHOLE, KV_A, NONE, ZEROS, td_when_attn_bias, REQUIRED), \
    TD_WEIGHT(KV_A_NORM,  LAYER, "model.layers.#.self_attn.kv_a_layernorm.weight", KV_LORA, NONE, LAYER, F32, WHOLE, NONE, NONE, ONES, NULL, REQUIRED), \
    TD_WEIGHT(KV_B,       LAYER, "model.layers.#.self_attn.kv_b_proj.weight", KV_B, KV_LORA, LAYER, LINEAR_BF16, ROWS, NONE, NONE, RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(MLA_O,      LAYER, "model.layers.#.self_attn.o_proj.weight", HIDDEN, MLA_V, LAYER, LINEAR, COLUMNS, NONE, WRITES, RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(MLA_O_BIAS, LAYER, "model.layers.#.self_attn.o_proj.bias", HIDDEN, NONE, LAYER, F32, CARD_0, NONE, STREAM, ZEROS, td_when_attn_bias, REQUIRED)

#define TD_GQA_WEIGHTS \
    TD_WEIGHT(Q,      LAYER, "model.layers.#.self_attn.q_proj.weight", GQA_Q, HIDDEN, LAYER, LINEAR, ROWS, NONE, READS(INPUT_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(K,      LAYER, "model.layers.#.self_attn.k_proj.weight", GQA_KV, HIDDEN, LAYER, LINEAR, ROWS, NONE, READS(INPUT_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(V,      LAYER, "model.layers.#.self_attn.v_proj.weight", GQA_KV, HIDDEN, LAYER, LINEAR, ROWS, NONE, READS(INPUT_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(O,      LAYER, "model.layers.#.self_attn.o_proj.weight", HIDDEN, GQA_Q, LAYER, LINEAR, COLUMNS, NONE, WRITES, RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(Q_BIAS, LAYER, "model.layers.#.self_attn.q_proj.bias", GQA_Q, NONE, LAYER, F32, ROWS, NONE, NONE, ZEROS, td_when_qkv_bias, REQUIRED), \
    TD_WEIGHT(K_BIAS, LAYER, "model.layers.#.self_attn.k_proj.bias", GQA_KV, NONE, LAYER, F32, ROWS, NONE, NONE, ZEROS, td_when_qkv_bias, REQUIRED), \
    TD_WEIGHT(V_BIAS, LAYER, "model.layers.#.self_attn.v_proj.bias", GQA_KV, NONE, LAYER, F32, ROWS, NONE, NONE, ZEROS, td_when_qkv_bias, REQUIRED)

/* Of each head. */
#define TD_HEAD_NORM_WEIGHTS \
    TD_WEIGHT(Q_NORM, LAYER, "model.layers.#.self_attn.q_norm.weight", HEAD, NONE, LAYER, F32, WHOLE, NONE, NONE, ONES, td_when_qk_norm, REQUIRED), \
    TD_WEIGHT(K_NORM, LAYER, "model.layers.#.self_attn.k_norm.weight", HEAD, NONE, LAYER, F32, WHOLE, NONE, NONE, ONES, td_when_qk_norm, REQUIRED)

#define TD_DENSE_WEIGHTS \
    TD_WEIGHT(DENSE_GATE, DENSE, "model.layers.#.mlp.gate_proj.weight", INTER, HIDDEN, LAYER, LINEAR, ROWS, NONE, READS(POST_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(DENSE_UP,   DENSE, "model.layers.#.mlp.up_proj.weight", INTER, HIDDEN, LAYER, LINEAR, ROWS, NONE, READS(POST_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(DENSE_DOWN, DENSE, "model.layers.#.mlp.down_proj.weight", HIDDEN, INTER, LAYER, LINEAR, COLUMNS, NONE, WRITES, RANDOM, NULL, REQUIRED)

#define TD_ROUTER_WEIGHT \
    TD_WEIGHT(ROUTER, MOE, "model.layers.#.mlp.gate.weight", EXPERTS, HIDDEN, LAYER, F32, WHOLE, NONE, READS(POST_NORM), RANDOM, NULL, REQUIRED)

/* DeepSeek-V3's, which is added to the scores for the choice alone. */
#define TD_ROUTER_BIAS \
    TD_WEIGHT(ROUTER_BIAS, MOE, "model.layers.#.mlp.gate.e_score_correction_bias", EXPERTS, NONE, LAYER, F32, WHOLE, NONE, NONE, ZEROS, td_when_route_bias, REQUIRED)

#define TD_SHARED_WEIGHTS(mlp) \
    TD_WEIGHT(SHARED_GATE, MOE, "model.layers.#." mlp ".gate_proj.weight", SHARED_INTER, HIDDEN, LAYER, LINEAR, ROWS, NONE, READS(POST_NORM), RANDOM, td_when_shared, REQUIRED), \
    TD_WEIGHT(SHARED_UP,   MOE, "model.layers.#." mlp ".up_proj.weight", SHARED_INTER, HIDDEN, LAYER, LINEAR, ROWS, NONE, READS(POST_NORM), RANDOM, td_when_shared, REQUIRED), \
    TD_WEIGHT(SHARED_DOWN, MOE, "model.layers.#." mlp ".down_proj.weight", HIDDEN, SHARED_INTER, LAYER, LINEAR, COLUMNS, NONE, WRITES, RANDOM, td_when_shared, REQUIRED)

#define TD_EXPERT_WEIGHTS \
    TD_WEIGHT(EXPERT_GATE, EXPERT, "model.layers.#.mlp.experts.#.gate_proj.weight", MOE_INTER, HIDDEN, EXPERTS, LINEAR, ROWS, NONE, READS(POST_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(EXPERT_UP,   EXPERT, "model.layers.#.mlp.experts.#.up_proj.weight", MOE_INTER, HIDDEN, EXPERTS, LINEAR, ROWS, NONE, READS(POST_NORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(EXPERT_DOWN, EXPERT, "model.layers.#.mlp.experts.#.down_proj.weight", HIDDEN, MOE_INTER, EXPERTS, LINEAR, COLUMNS, NONE, WRITES, RANDOM, NULL, REQUIRED)

/* DeepSeek-V3, arXiv 2412.19437 section 2.2. */
#define TD_MTP_WEIGHTS \
    TD_WEIGHT(MTP_ENORM,   MTP, "model.layers.#.enorm.weight", HIDDEN, NONE, LAYER, F32, WHOLE, NONE, GAIN, ONES, NULL, REQUIRED), \
    TD_WEIGHT(MTP_HNORM,   MTP, "model.layers.#.hnorm.weight", HIDDEN, NONE, LAYER, F32, WHOLE, NONE, NONE, ONES, NULL, REQUIRED), \
    TD_WEIGHT(MTP_EH_PROJ, MTP, "model.layers.#.eh_proj.weight", HIDDEN, TWO_HIDDEN, LAYER, LINEAR, WHOLE, NONE, JOINS(MTP_ENORM), RANDOM, NULL, REQUIRED), \
    TD_WEIGHT(MTP_EMBED,   MTP, "model.layers.#.embed_tokens.weight", VOCAB, HIDDEN, SHARED, BF16, WHOLE, NONE, STREAM, RANDOM, NULL, ROLE(EMBED)), \
    TD_WEIGHT(MTP_NORM,    MTP, "model.layers.#.shared_head.norm.weight", HIDDEN, NONE, LAYER, F32, WHOLE, NONE, GAIN, ONES, NULL, ROLE(FINAL_NORM)), \
    TD_WEIGHT(MTP_HEAD,    MTP, "model.layers.#.shared_head.head.weight", VOCAB, HIDDEN, SHARED_UNLESS_TURNED, LINEAR, ROWS, NONE, READS(MTP_NORM), RANDOM, NULL, ROLE(LM_HEAD)), \
    TD_WEIGHT(MTP_UNTURN,  MTP, "model.layers.#.hidden_proj.weight", HIDDEN, HIDDEN, LAYER, LINEAR, WHOLE, NONE, UNDOES(FINAL_NORM), RANDOM, td_when_mtp_turned, REQUIRED)
/* clang-format on */

#endif
