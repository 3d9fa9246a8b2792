/*
 * What the layers of a model keep of the tokens that they have seen: a list for every layer, which its family describes
 * (model/arch/). The rest of the engine asks what may be done with these caches, and never which family it is.
 */
#ifndef TD_MODEL_LAYER_CACHES_H
#define TD_MODEL_LAYER_CACHES_H

#include "model/arch/arch.h"
#include "model/model_spec.h"

td_layer_caches td_layer_caches_of(const td_model_config *c, uint32_t layer);

/** Bytes of a page or slot of the cache on each card, by the spec's numbers and cards. */
size_t td_layer_cache_unit_bytes(const td_layer_cache *cache, const td_model_spec *s, td_npu *d);

/** Bytes of a page or slot of all such caches of some layers, on each card. */
uint64_t td_layer_caches_unit_bytes(const td_model_config *c, td_layer_range layers, td_cache_per per,
                                    const td_model_spec *s, td_npu *d);

/** Whether td_model_spec.kv_int8 may be: no layer keeps rows in the type of activations, for which 8 bits are not there.
 * States of recurrent layers stay as they are, and an indexer's keys have numbers of their own. */
bool td_layer_caches_take_int8(const td_model_config *c, td_layer_range layers);

/** Whether some layers keep a recurrent state: a prefix can be continued only where the state at its end is kept. */
bool td_layer_caches_recurrent(const td_model_config *c, td_layer_range layers);

/** The longest window of caches whose pages behind it can be given back, in tokens; 0: no layer has one. */
uint32_t td_layer_caches_window(const td_model_config *c, td_layer_range layers);

/** Number of heads that are cut over the cards, the same in all layers with such caches; 0: each card has all of every
 * cache. */
uint32_t td_layer_caches_cut_heads(const td_model_config *c, td_cache_per per);

/** From this position on a generated token's rows have the bits that a prompt with the same tokens would leave; UINT32_MAX:
 * nowhere. Decoding computes MLA in another form than a prompt does, but for rows that choose their keys: those have one. */
uint32_t td_layer_caches_one_form_from(const td_model_config *c);

#endif
