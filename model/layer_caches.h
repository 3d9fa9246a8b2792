/*
 * What the layers of a model keep of the tokens that they have seen: a list for every layer, which its family describes
 * (model/arch/). The rest of the engine asks what may be done with these caches, and never which family it is.
 */
#ifndef TD_MODEL_LAYER_CACHES_H
#define TD_MODEL_LAYER_CACHES_H

#include "model/arch/arch.h"
#include "model/shard.h"

td_layer_caches td_layer_caches_of(const td_model_config *c, uint32_t layer);

/** Bytes of a page of it on a card. */
size_t td_layer_cache_page_bytes(const td_layer_cache *cache, td_npu *d, td_shard s);

/** The same of all caches of some layers. */
uint64_t td_layer_caches_page_bytes(const td_model_config *c, td_layer_range layers, td_npu *d, td_shard s);

/** Heads that are cut over the cards, the same in all layers that have such; 0: each card has all of every cache. */
uint32_t td_layer_caches_cut_heads(const td_model_config *c);

/** What the engine may do with pages. */
typedef struct {
    bool shares_prompts;   /* what one sequence's prompt left in them is what another's with the same tokens would: false
                              where a layer has a state beside them, which they do not carry */
    bool shares_generated; /* the same of generated tokens: false where decoding computes rows in another form than a prompt
                              (MLA's absorbed form) */
} td_page_sharing;

td_page_sharing td_page_sharing_of(const td_model_config *c);

#endif
