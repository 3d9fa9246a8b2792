/*
 * Families of models. All that the rest of the engine knows of a family is a td_arch: how its config.json is read, the table
 * of its weights, the rows that its layers cache, and a layer's forward pass. Each is a file of this folder, and a line in
 * families.h.
 */
#ifndef TD_MODEL_ARCH_ARCH_H
#define TD_MODEL_ARCH_ARCH_H

#include "model/arch/config_reader.h"
#include "model/arch/weight_roles.h"
#include "npu/npu.h"

/** How often a weight occurs. */
typedef enum {
    TD_SCOPE_MODEL, /* once */
    TD_SCOPE_LAYER, /* in every layer */
    TD_SCOPE_DENSE, /* in layers without experts */
    TD_SCOPE_MOE,   /* in layers with experts */
    TD_SCOPE_EXPERT,
    TD_SCOPE_MTP,
} td_weight_scope;

/** A size that a shape is made of; names are those of td_model_config. */
typedef enum {
    TD_DIM_NONE, /* of columns: the weight is a vector */
    TD_DIM_ONE,
    TD_DIM_HIDDEN,
    TD_DIM_TWO_HIDDEN,
    TD_DIM_VOCAB,
    TD_DIM_Q_LORA,
    TD_DIM_KV_LORA,
    TD_DIM_MLA_Q, /* heads * (nope + rope) */
    TD_DIM_KV_A,  /* kv_lora + rope */
    TD_DIM_KV_B,  /* heads * (nope + v) */
    TD_DIM_MLA_V, /* heads * v */
    TD_DIM_GQA_Q, /* heads * head_dim */
    TD_DIM_GQA_KV,
    TD_DIM_HEAD,
    TD_DIM_HEADS,
    TD_DIM_INTER,
    TD_DIM_MOE_INTER,
    TD_DIM_SHARED_INTER,
    TD_DIM_EXPERTS,
} td_weight_dim;

/** How the device tier keeps a weight. "In floats" is --quantization none. */
typedef enum {
    TD_KEEP_LINEAR,      /* int8, or the checkpoint's groups; in floats bf16, or f32 where the checkpoint has codes */
    TD_KEEP_LINEAR_BF16, /* the same in floats, and never int8 */
    TD_KEEP_BF16,
    TD_KEEP_F32,
} td_weight_keep;

/** How a checkpoint that rotates interleaved pairs stores the rows: the last `rope` of every block are pairs. */
typedef enum {
    TD_PAIRS_NONE,
    TD_PAIRS_MLA_Q, /* of every head's nope + rope */
    TD_PAIRS_KV_A,  /* of kv_lora + rope */
} td_weight_pairs;

/** How one expert's weight lies in a tensor that has those of all experts. */
typedef enum {
    TD_STACK_NONE, /* it does not: each expert has a tensor */
    TD_STACK_ROWS, /* its rows follow each other */
    TD_STACK_EVEN, /* rows of two weights take turns, as gate and up: the first one's */
    TD_STACK_ODD,  /* the second one's */
} td_weight_stack;

/** A row of a family's table; weight_table.h says how one is written. */
typedef struct {
    const char *name; /* whole, # stands for the layer, the second # for the expert; NULL: the family has no such weight */
    td_weight_scope    scope;
    td_weight_dim      rows, columns;
    td_place           place; /* of scope EXPERT: TD_PLACE_EXPERTS, whatever this says */
    td_weight_keep     keep;
    td_split           split;
    td_weight_pairs    pairs;
    td_rotation_effect rotation;
    td_filling         filling;
    td_weight_stack    stack;               /* not NONE: the name has no expert */
    bool (*when)(const td_model_config *c); /* NULL: always */
    struct {
        bool    exists;
        td_role role;
    } fallback; /* what stands in where the checkpoint has none; the weight is required where nothing does */
} td_weight_rule;

#define TD_CACHES_MAX 4 /* of a layer */

/** A cache: pages that have `heads` rows of `values` for every token. */
typedef struct {
    td_kv_rows kind;   /* what the rows are, and so how a device stores them */
    uint32_t   heads;  /* rows of a token, on all cards */
    uint32_t   values; /* of a row */
    uint32_t   window; /* the last tokens that are read; 0: all */
    td_split   split;  /* ROWS: a card has its share of the heads; WHOLE: each has all */
} td_layer_cache;

typedef struct {
    td_layer_cache cache[TD_CACHES_MAX];
    uint32_t       n;
} td_layer_caches;

typedef struct td_layer td_layer; /* model/layer_verbs.h */

typedef struct td_arch {
    const char *name;   /* in `architectures` of config.json */
    const char *prefix; /* of a model with more than text: of the language model's weights, "language_model."; its keys are
                           those of text_config, which read_config gets. Else NULL */
    void (*read_config)(td_config_reader *r, td_model_config *c);
    const td_weight_rule *weights; /* [TD_ROLE_COUNT] */
    td_layer_caches (*caches)(const td_model_config *c, uint32_t layer);
    void (*layer)(td_layer *l); /* says what a layer does, with the verbs of model/layer_verbs.h */
} td_arch;

/* ---- what several families have ------------------------------------------------------------------ */

/** Caches of a layer with grouped-query attention: K, then V (arch.c). */
td_layer_caches td_gqa_caches(const td_model_config *c, uint32_t layer);
/** Caches of a layer with multi-head latent attention: the latent, then the rotated key (arch.c). */
td_layer_caches td_mla_caches(const td_model_config *c, uint32_t layer);

/** DeepSeek-V3's layer (deepseek.c), which GLM-4.7-Flash has too. */
void td_deepseek_layer(td_layer *l);

#endif
