/*
 * The values of a config.json, each checked against a range before it is used in arithmetic. The ranges are wide for real
 * models and narrow enough that products of any three sizes fit 64 bits.
 *
 * A reader's first error sticks, so that values can be read one after the other; after an error every value is its default.
 */
#ifndef TD_MODEL_ARCH_CONFIG_READER_H
#define TD_MODEL_ARCH_CONFIG_READER_H

#include <jansson.h>

#include "model/arch/model_config.h"

#define TD_CONFIG_DIM_MAX (1u << 20) /* hidden and intermediate sizes */
#define TD_CONFIG_HEADS_MAX 1024u
#define TD_CONFIG_HEAD_DIM_MAX 1024u
#define TD_CONFIG_LORA_MAX (1u << 16)
#define TD_CONFIG_VOCAB_MAX (1u << 24)
#define TD_CONFIG_POSITION_MAX (1u << 26)

typedef struct {
    const json_t *object;
    const char   *prefix; /* "" or "rope_scaling.": goes before the key in sentences */
    td_error     *err;
    td_status     status;
} td_config_reader;

/** Set the error; the first one stays. */
void td_config_refuse(td_config_reader *r, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);
/** TD_ENOTSUP when the key is there and has another text than `only`. */
void td_config_only_text(td_config_reader *r, const td_model_config *c, const char *key, const char *only);
/** TD_ENOTSUP when the key is false. @param what the sentence's "X is not supported". */
void td_config_refuse_false(td_config_reader *r, const char *key, const char *what);
/** TD_ENOTSUP when the key is true. @param what the sentence's "X is not supported". */
void td_config_refuse_true(td_config_reader *r, const char *key, const char *what);

const json_t *td_config_get(td_config_reader *r, const char *key); /* NULL when absent or null, or after an error */
bool          td_config_has(const td_config_reader *r, const char *key);
uint32_t      td_config_u32(td_config_reader *r, const char *key, uint32_t absent, uint32_t min, uint32_t max);
uint32_t      td_config_u32_alias(td_config_reader *r, const char *key, const char *alias, uint32_t absent, uint32_t min,
                                  uint32_t max);
double        td_config_number(td_config_reader *r, const char *key, double absent, double min, double max);
bool          td_config_bool(td_config_reader *r, const char *key, bool absent);
const char   *td_config_text(td_config_reader *r, const char *key, const char *absent); /* borrowed from the JSON */

/* ---- what several families have ---------------------------------------------------------------- */

/** What transformers' configuration class has where config.json has no such key. kv_heads 0: as many as heads. */
typedef struct {
    uint32_t vocab, hidden, inter, layers, heads, kv_heads, max_position;
} td_config_defaults;

/** Sizes, eps and activation. */
void td_config_sizes(td_config_reader *r, td_model_config *c, const td_config_defaults *d);

/** The same; an indexer of sparse attention is refused. */
void td_config_common(td_config_reader *r, td_model_config *c, const td_config_defaults *d);

/** head_dim of grouped-query attention; checks that the heads are whole groups. @param head_dim if the key is absent; 0:
 * hidden_size / heads. */
void td_config_gqa(td_config_reader *r, td_model_config *c, uint32_t head_dim);

/** Multi-head latent attention's sizes where config.json has no such key. */
typedef struct {
    uint32_t q_lora, kv_lora, nope, rope, v;
} td_config_mla_defaults;

/** Sizes of multi-head latent attention, and attention_bias. q_lora_rank null: q is not compressed. Where the default of rope is 0
 * the key may be 0, too. */
void td_config_mla(td_config_reader *r, td_model_config *c, const td_config_mla_defaults *d);

/** DeepSeek-V3's router without its groups: sigmoid, noaux_tc, a bias for the choice; another scoring_func or topk_method is
 * refused. */
void td_config_sigmoid_router(td_config_reader *r, td_model_config *c);

/** n_group and topk_group of that router; the arguments are the values of absent keys. */
void td_config_router_groups(td_config_reader *r, td_model_config *c, uint32_t n_group, uint32_t topk_group);

/** Refuse a top_k, or groups, that cannot be chosen from the experts. */
void td_config_check_experts(td_config_reader *r, const td_model_config *c);

/** n_mtp_layers, from that key. @param absent what it is without the key. */
void td_config_mtp_layers(td_config_reader *r, td_model_config *c, const char *key, uint32_t absent);

/** Which layers have experts, from Qwen's decoder_sparse_step and mlp_only_layers. */
void td_config_sparse_layers(td_config_reader *r, td_model_config *c);

/** Which layers have experts: by mlp_layer_types, as transformers 5 writes it, or else by first_k_dense_replace, as published
 * config.json have it. A multi-token-prediction layer has them. @param absent first_k_dense_replace without the key. */
void td_config_dense_layers(td_config_reader *r, td_model_config *c, uint32_t absent);

/** The one name of attention that most families have, then NULL. */
extern const char *const td_config_full_attention[];

/** Which layers are a DeltaNet or KDA, from layer_types: linear_attention, or else a name of attention. @param attention these
 * names, then NULL. @return false: the key is absent. */
bool td_config_delta_layers(td_config_reader *r, td_model_config *c, const char *const *attention);

/** Which layers have an indexer of their own: from indexer_types, or index_topk_pattern, or index_topk_freq and
 * index_skip_topk_offset. A multi-token-prediction layer has one. */
void td_config_indexed_layers(td_config_reader *r, td_model_config *c);

/** Residual streams of hyper-connections: hc_mult and what their mixtures are made with. */
void td_config_streams(td_config_reader *r, td_model_config *c);

/** Refuse sliding windows: all of layer_types must be full_attention, and use_sliding_window false. */
void td_config_refuse_sliding_window(td_config_reader *r);

/**
 * `rope_scaling` of the published configs, or `rope_parameters` as transformers 5 writes it, which also holds rope_theta;
 * with both the former has the type. rope_theta is c->rope.theta where the key is absent, or 10000 where that is 0.
 * @param dim   values of a head that could be rotated.
 * @param part  partial_rotary_factor where the key is absent; 0: the family rotates all of them, and any other value than 1
 *              is refused.
 */
void td_config_rope(td_config_reader *r, td_model_config *c, uint32_t dim, double part);

/** c->rope.axes, from mrope_section where the type of rope is: pairs that turn by time, rows and columns of images, as many as
 * rope turns. Other than interleaved pairs are refused. @param section where the key is absent. Call td_config_rope first. */
void td_config_rope_axes(td_config_reader *r, td_model_config *c, const uint32_t section[3]);

#endif
