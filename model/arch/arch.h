/*
 * Families of models. All that the rest of the engine knows of a family is a td_arch: how its config.json is read, the table
 * of its weights, the rows that its layers cache, and a layer's forward pass. Each family is a file of this folder, and a
 * line in families.h.
 */
#ifndef TD_MODEL_ARCH_ARCH_H
#define TD_MODEL_ARCH_ARCH_H

#include "model/arch/config_reader.h"
#include "model/arch/weight_roles.h"
#include "npu/npu.h"

/** How often a weight occurs. */
typedef enum {
    TD_SCOPE_MODEL,     /* once */
    TD_SCOPE_LAYER,     /* in every layer */
    TD_SCOPE_TRUNK,     /* in every layer but the multi-token-prediction layers */
    TD_SCOPE_ATTENTION, /* in layers with attention */
    TD_SCOPE_DELTA,     /* in layers of a gated DeltaNet or Kimi delta attention */
    TD_SCOPE_DENSE,     /* in layers without experts */
    TD_SCOPE_MOE,       /* in layers with experts */
    TD_SCOPE_EXPERT,
    TD_SCOPE_COMPRESSED, /* in layers with compressed rows */
    TD_SCOPE_INDEXED,    /* in layers with an indexer, of tokens or of compressed rows */
    TD_SCOPE_SCORED,     /* in layers whose experts are chosen by their scores */
    TD_SCOPE_BY_TOKEN,   /* in layers whose experts are chosen by the token */
    TD_SCOPE_MTP,
} td_weight_scope;

/** A size that a shape is made of; names are those of td_model_config. */
typedef enum {
    TD_DIM_NONE, /* as columns: the weight is a vector */
    TD_DIM_ONE,
    TD_DIM_HIDDEN,
    TD_DIM_TWO_HIDDEN,
    TD_DIM_VOCAB,
    TD_DIM_Q_LORA,
    TD_DIM_KV_LORA,
    TD_DIM_MLA_Q,      /* heads * (nope + rope) */
    TD_DIM_KV_A,       /* kv_lora + rope */
    TD_DIM_KV_B,       /* heads * (nope + v) */
    TD_DIM_MLA_V,      /* heads * v */
    TD_DIM_GQA_Q,      /* heads * head_dim */
    TD_DIM_GQA_Q_GATE, /* the same twice: queries and gates */
    TD_DIM_GQA_KV,
    TD_DIM_HEAD,
    TD_DIM_HEADS,
    TD_DIM_INTER,
    TD_DIM_MOE_INTER,
    TD_DIM_SHARED_INTER,
    TD_DIM_EXPERTS,
    TD_DIM_DELTA_QKV,    /* key heads * (2 * key dim + value heads of each * value dim) */
    TD_DIM_DELTA_QKVZ,   /* the same and DELTA_V */
    TD_DIM_DELTA_K,      /* key heads * key dim */
    TD_DIM_DELTA_V,      /* value heads * value dim */
    TD_DIM_DELTA_LOW,    /* the rank of decays and gates */
    TD_DIM_DELTA_DIM,    /* of a value head */
    TD_DIM_DELTA_HEADS,  /* value heads */
    TD_DIM_DELTA_HEADS2, /* twice as many */
    TD_DIM_DELTA_CONV,   /* inputs of the convolution */
    TD_DIM_THREE,
    TD_DIM_TOP_K,      /* experts of a token */
    TD_DIM_STREAMS,    /* residual streams */
    TD_DIM_MIX,        /* outputs of a mixture: streams * (2 + streams) */
    TD_DIM_WIDTH,      /* streams * hidden */
    TD_DIM_O_LOW,      /* o_groups * o_lora */
    TD_DIM_O_GROUP,    /* heads / o_groups * head_dim */
    TD_DIM_RATIO,      /* tokens of a compressed row of the layer */
    TD_DIM_COMPRESSED, /* head_dim, twice where they overlap */
    TD_DIM_INDEX_Q,    /* index_heads * index_dim */
    TD_DIM_INDEX_HEADS,
    TD_DIM_INDEX_DIM,
    TD_DIM_INDEX_POOL,       /* tokens of an index key */
    TD_DIM_INDEX_COMPRESSED, /* index_dim, twice where compressed rows overlap */
} td_weight_dim;

/** How the device tier keeps a weight. "In floats" is --quantization none. */
typedef enum {
    TD_KEEP_LINEAR,      /* int8, or the checkpoint's groups; in floats bf16, or f32 where the checkpoint has codes */
    TD_KEEP_LINEAR_BF16, /* the same in floats, and never int8 */
    TD_KEEP_BF16,
    TD_KEEP_F32,
} td_weight_keep;

/** In which order a checkpoint has the rows of a weight, if not in that of the model. In one that rotates interleaved pairs,
 * `rope` rows of every block are pairs; the model has them as halves. */
typedef enum {
    TD_ORDER_SAME,
    TD_ORDER_MLA_Q,     /* pairs: a block is a head's nope + rope rows, and these are the last */
    TD_ORDER_KV_A,      /* pairs: the block is all kv_lora + rope rows, and these are the last */
    TD_ORDER_INDEX,     /* pairs: a block is the index_dim rows of a head or key, and these are the first */
    TD_ORDER_DELTA_QKV, /* q of all key heads, k of all, v of all; the model has q, k and v of one key head after the other */
} td_weight_order;

/** How one expert's weight lies in a tensor that has those of all experts, one after the other. */
typedef enum {
    TD_STACK_NONE,    /* there is no such tensor: each expert has its own */
    TD_STACK_COLUMNS, /* its rows are columns there */
    TD_STACK_EVEN,    /* the same where rows of two weights alternate, as those of gate and up; this is the first weight */
    TD_STACK_ODD,     /* this is the second weight */
    TD_STACK_ROWS,    /* its rows are rows */
    TD_STACK_FIRST,   /* the same of two weights, as gate and up; this is the first weight */
    TD_STACK_SECOND,  /* this is the second weight */
    /* The same three, or transposed: files have either, and their shapes say which. */
    TD_STACK_SHAPED,
    TD_STACK_SHAPED_FIRST,
    TD_STACK_SHAPED_SECOND,
} td_weight_stack;

/** A row of a family's table; weight_table.h says how one is written. */
typedef struct {
    const char *name; /* in full; # stands for the layer, a second # for the expert; NULL: the family has no such weight */
    td_weight_scope    scope;
    td_weight_dim      rows, columns;
    td_place           place; /* ignored with scope EXPERT, which is TD_PLACE_EXPERTS */
    td_weight_keep     keep;
    td_split           split;
    td_weight_order    order;
    td_rotation_effect rotation;
    td_filling         filling;
    bool               plus_one;   /* the weight is one more than what the checkpoint has */
    bool               is_experts; /* its values are numbers of experts, stored as integers */
    td_weight_stack    stack;      /* if not NONE, `within`, or else `name`, has no # for the expert */
    const char        *within;     /* the tensor of all experts, read where an expert has none of its own; or NULL */
    bool (*when)(const td_model_config *c); /* NULL: always */
    struct {
        bool    exists;
        td_role role;
    } fallback; /* the weight that stands in if the checkpoint lacks this one; without it the weight is required */
} td_weight_rule;

#define TD_CACHES_MAX 5 /* of a layer */

/** What has a share of a cache of its own. */
typedef enum {
    TD_PER_TOKEN,  /* pages of TD_KV_PAGE tokens */
    TD_PER_WINDOW, /* likewise, of which a sequence gives those back that its window has passed */
    TD_PER_STATE,  /* slots of recurrent states: of sequences that run, and of prefixes that are kept */
    TD_PER_OPEN,   /* slots of open blocks, one for each sequence that runs */
} td_cache_per;

/** What a layer caches: pages or slots that have `heads` rows of `values` numbers for every token, state or open block. */
typedef struct {
    td_cache_per per;
    td_kv_rows   kind;   /* what the rows are, and so how a device stores them */
    uint32_t     heads;  /* rows of a token, state or block, on all cards together */
    uint32_t     values; /* of a row */
    uint32_t     window; /* the last tokens that are read; 0: all */
    uint32_t     tokens; /* of a row, which divide a page; 0: 1 */
    td_split     split;  /* ROWS: each card has a share of the heads; WHOLE: each card has all */
} td_layer_cache;

typedef struct {
    td_layer_cache cache[TD_CACHES_MAX];
    uint32_t       n;
} td_layer_caches;

typedef struct td_layer       td_layer;       /* model/layer_verbs.h */
typedef struct td_vision_pass td_vision_pass; /* model/arch/vision_encoder.h */

typedef struct td_arch {
    const char *name; /* in `architectures` of config.json */
    /** Of a model with more than text, how its language model's weights are called; else both are NULL. With one of them,
     * read_config gets text_config. */
    const char *prefix; /* before all names ("language_model.") */
    const char *body;   /* in the place of "model." ("model.language_model."), and the head is called as ever */
    /** Before the names of the multi-token-prediction layers ("mtp."), and what stands there before a layer's number, from 0
     * ("layers." of "mtp.layers.0.", or ""). NULL: they are the layers behind the last one. */
    const char *mtp, *mtp_layer;
    void (*read_config)(td_config_reader *r, td_model_config *c);
    /** The same of vision_config, where config.json has one; NULL: pictures are not served. */
    void (*read_vision)(td_config_reader *r, td_model_config *c);
    /** The encoder's forward pass, in the verbs of vision_encoder.h. @param out the width of the language model. */
    void (*encoder)(td_vision_pass *p, const td_vision_config *c, uint32_t out);
    const char           *encoder_prefix; /* how the names of its weights begin */
    const td_weight_rule *weights;        /* [TD_ROLE_COUNT] */
    td_layer_caches (*caches)(const td_model_config *c, uint32_t layer);
    void (*layer)(td_layer *l); /* a layer's forward pass, in the verbs of model/layer_verbs.h */
} td_arch;

/** Whether the model has more than text, and text_config in its config.json. */
static inline bool td_arch_has_more(const td_arch *a) {
    return a->prefix || a->body;
}

/* ---- what several families have ------------------------------------------------------------------ */

/** Caches of a layer with grouped-query attention: K, then V (arch.c). */
td_layer_caches td_gqa_caches(const td_model_config *c, uint32_t layer);
/** Caches of a layer with multi-head latent attention (arch.c): the latent, then the rotated key where there is one. Then of an
 * indexer its key, and the open block where a key stands for several tokens. */
td_layer_caches td_mla_caches(const td_model_config *c, uint32_t layer);

/** Caches of a layer of a gated DeltaNet or Kimi delta attention (arch.c): the state at the beginning of a block of tokens, and
 * the block's rows, both by key heads. */
td_layer_caches td_delta_caches(const td_model_config *c);

/** Sizes of a layer's indexer of tokens (arch.c); heads 0: it has none. Weights and buffers of out stay as they are. */
void td_index_sizes_of(const td_model_config *c, uint32_t layer, td_index_desc *out);

/** Sizes of a layer's sparse attention (arch.c); weights and buffers of out stay as they are. */
void td_sparse_sizes_of(const td_model_config *c, uint32_t layer, td_sparse_desc *out);

/** DeepSeek-V3's layer (deepseek.c), which GLM-4.7-Flash has too. */
void td_deepseek_layer(td_layer *l);

#endif
