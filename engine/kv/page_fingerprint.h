/*
 * What the bits of a KV page depend on besides its tokens, as a hash: two engines with the same fingerprint compute the same
 * pages (docs/determinism.md).
 *
 * Two things are hashed. The first is the names of what is known to matter: Tandem's version, compiler, instruction-set
 * tier, device, cards, quantisation, deferral, overrides of the configuration, samples of the checkpoint. The second is the
 * KV of a probe: a page of fixed tokens goes through the model, and every bit that it leaves in the cache is hashed. What
 * the names miss (another calibration, another library, a kernel that rounds differently) shows in the probe.
 */
#ifndef TD_ENGINE_KV_PAGE_FINGERPRINT_H
#define TD_ENGINE_KV_PAGE_FINGERPRINT_H

#include "engine/engine_options.h"
#include "model/model.h"

/**
 * After td_model_load and td_model_prepare_page_copies, before the first step: uses KV page 0, which holds nothing.
 * @param source_hash td_model_source_hash before the load.
 */
TD_NODISCARD td_status td_page_fingerprint_take(const td_engine_config *config, td_model *m, uint64_t source_hash,
                                                td_page_key *out, td_error *err);

#endif
