/* The engine's options resolved: defaults, checks, names understood. */
#ifndef TD_ENGINE_ENGINE_OPTIONS_H
#define TD_ENGINE_ENGINE_OPTIONS_H

#include "model/model.h"
#include "tandem.h"

#define TD_CHUNK_MAX 65536 /* tokens of prefill per step */
#define TD_RUNNING_MAX 4096
#define TD_QUEUED_MAX 1000000

/** What the options ask for, with every default filled in and every name understood. */
typedef struct {
    td_model_spec model;        /* borrows the options' strings, which are not read after td_engine_open */
    const char   *quantization; /* name of the device tier's number format; static */
    uint32_t      chunk;        /* prompt tokens of a step, at most; model.max_tok = chunk + model.max_running */
    uint32_t      max_step_ms;  /* of a step that is not alone; 0: no limit */
    uint32_t      max_queued, decode_log_interval;
    uint64_t      random_seed;
    uint64_t      image_cache_bytes; /* for features of images */
    bool          log_requests, prefix_cache, mixed_chunk, drafts, draft_always;
} td_engine_config;

/** Resolve the options. Opens no device and reads no file.
 * @param o borrowed for as long as the strings in config->model are read (model/model_spec.h).
 * @return TD_EINVAL or TD_ENOTSUP with a sentence that names the option. An attention backend that the device lacks gives a
 * warning only. */
TD_NODISCARD td_status td_engine_resolve(const td_engine_options *o, td_engine_config *config, td_error *err);

#endif
