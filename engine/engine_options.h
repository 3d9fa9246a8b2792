/* The engine's options: defaults, checks, and what they mean for the model. */
#ifndef TD_ENGINE_ENGINE_OPTIONS_H
#define TD_ENGINE_ENGINE_OPTIONS_H

#include "model/model.h"
#include "tandem.h"

#define TD_CHUNK_MAX 65536 /* tokens of prefill per step */
#define TD_RUNNING_MAX 4096
#define TD_QUEUED_MAX 1000000

/** Options with every default filled in and every name understood. Numbers only: nothing of the options' strings is kept. */
typedef struct {
    const td_expert_numbers *experts;           /* static, as the name of the quantization */
    bool                     experts_as_stored; /* "auto": the model's own format comes first (model/model.h) */
    const char              *quantization;
    bool                     w8a8, load_dummy;
    uint32_t                 chunk, max_running, max_queued, max_deferred, decode_log_interval;
    uint32_t                 max_out; /* rows of logits at a time */
    uint64_t                 random_seed;
    bool                     log_requests, prefix_cache, mixed_chunk, drafts, draft_always;
} td_engine_plan;

/** @return TD_EINVAL or TD_ENOTSUP with a sentence that names the option. An attention backend that the device lacks gives a
 * warning only. */
TD_NODISCARD td_status td_engine_plan_make(const td_engine_options *o, td_engine_plan *plan, td_error *err);

#endif
