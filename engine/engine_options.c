#include "engine/engine_options.h"

#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "engine/model_folder.h"
#include "engine/step/scheduler.h"
#include "model/shard.h"

#define CHUNK_DEFAULT 8192
#define STEP_MS_DEFAULT 500 /* docs/server.md, "Steps cut by time" */
#define RUNNING_DEFAULT 32
#define QUEUED_DEFAULT 1024 /* the most choices that one request of the HTTP API may have */
#define OUT_MAX 64
#define SNAPSHOTS_GIB_MAX 4096
#define IMAGE_TOKENS_DEFAULT 4096 /* a picture of 2048 x 2048, where a token is 32 x 32 */
#define IMAGE_TOKENS_MAX 65536
#define IMAGE_CACHE_GIB_MAX 4096
#define PATCHES_A_TOKEN (TD_VISION_MERGE * TD_VISION_MERGE)
#define DEFERRED_DEFAULT 1 /* +0.36 % perplexity on the demo model; 2 costs +1.70 % (docs/quantisation.md) */

void td_engine_options_init(td_engine_options *o) {
    *o = (td_engine_options){
        .load_format = "auto",
        .device = "host",
        .tensor_parallel_size = 1,
        .quantization = "auto",
        .expert_quantization = "auto",
        .kv_cache_dtype = "auto",
        .expert_memory = "keep",
        .mem_fraction_static = 0.9,
        .state_snapshots_gib = 1,
        .max_image_tokens = IMAGE_TOKENS_DEFAULT,
        .image_cache_gib = 1,
        .page_size = TD_KV_PAGE,
        .chunked_prefill_size = CHUNK_DEFAULT,
        .max_prefill_tokens = 16384,
        .max_step_ms = STEP_MS_DEFAULT,
        .random_seed = 0,
        .decode_log_interval = 40,
    };
}

const char *td_engine_device_name(size_t i) {
    for (const td_backend *const *b = td_backends; *b; b++) {
        const char *const *alias = (*b)->aliases;
        if (i-- == 0) return (*b)->name;
        for (; alias && *alias; alias++)
            if (i-- == 0) return *alias;
    }
    return NULL;
}

static bool is(const char *value, const char *name) {
    return !strcmp(value ? value : "auto", name);
}

/* The first of the names (NULL-terminated) that value equals, or -1. */
static int one_of(const char *value, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (is(value, names[i])) return i;
    return -1;
}

static td_status resolve_formats(const td_engine_options *o, td_engine_config *config, td_error *err) {
    static const char *const load_formats[] = {"auto", "safetensors", "dummy", NULL};
    static const char *const quantizations[] = {"auto", "none", "w8a8_int8", NULL};
    static const char *const kv_dtypes[] = {"auto", "bf16", "f32", "int8", NULL};

    if (one_of(o->load_format, load_formats) < 0)
        return td_fail(err, TD_ENOTSUP, "load-format %s is not supported: use auto, safetensors or dummy", o->load_format);
    if (one_of(o->quantization, quantizations) < 0)
        return td_fail(err, TD_ENOTSUP, "quantization %s is not supported: use auto, none or w8a8_int8", o->quantization);
    if (one_of(o->kv_cache_dtype, kv_dtypes) < 0)
        return td_fail(err, TD_ENOTSUP, "kv-cache-dtype %s is not supported: use auto, bf16, f32 or int8",
                       o->kv_cache_dtype);

    td_model_spec *m = &config->model;
    m->load_dummy = is(o->load_format, "dummy");
    m->w8a8 = !is(o->quantization, "none");
    m->experts_as_stored = is(o->expert_quantization, "auto");
    config->quantization = m->w8a8 ? "w8a8_int8" : "none";
    const char              *for_floats = m->w8a8 ? "int4" : "none";
    const td_expert_numbers *experts = td_expert_numbers_find(m->experts_as_stored ? for_floats : o->expert_quantization);
    if (!experts)
        return td_fail(err, TD_ENOTSUP,
                       "expert-quantization %s is not supported: use auto, none, int4, int8, int4-g32, int4-g64, int4-g128, "
                       "mxfp4 or nvfp4",
                       o->expert_quantization);

    m->experts.format = experts->format;
    m->experts.groups = experts->groups;
    m->experts.copy_files = o->copy_weights;

    /* The cache has the type of the activations, or with bf16 8 bits. */
    const char *kv = m->w8a8 ? "bf16" : "f32";
    m->kv_int8 = m->w8a8 && is(o->kv_cache_dtype, "int8");
    if (!m->kv_int8 && !is(o->kv_cache_dtype, "auto") && !is(o->kv_cache_dtype, kv))
        return td_fail(err, TD_ENOTSUP, "kv-cache-dtype %s is not supported with quantization %s, whose cache is %s",
                       o->kv_cache_dtype, config->quantization, m->w8a8 ? "bf16 or int8" : kv);
    return TD_OK;
}

static td_status resolve_images(const td_engine_options *o, td_engine_config *config, td_error *err) {
    if (o->max_image_tokens > IMAGE_TOKENS_MAX)
        return td_fail(err, TD_EINVAL, "max-image-tokens %u is more than %d", o->max_image_tokens, IMAGE_TOKENS_MAX);
    if (!(o->image_cache_gib >= 0 && o->image_cache_gib <= IMAGE_CACHE_GIB_MAX))
        return td_fail(err, TD_EINVAL, "image-cache-gib %g is outside 0 .. %d", o->image_cache_gib, IMAGE_CACHE_GIB_MAX);
    config->model.max_patches = o->max_image_tokens * PATCHES_A_TOKEN;
    config->image_cache_bytes = (uint64_t)(o->image_cache_gib * (1 << 30));
    return TD_OK;
}

static td_status resolve_sizes(const td_engine_options *o, td_engine_config *config, td_error *err) {
    if (!(o->mem_fraction_static > 0 && o->mem_fraction_static <= 1))
        return td_fail(err, TD_EINVAL, "mem-fraction-static %g is outside (0, 1]", o->mem_fraction_static);
    if (o->page_size != TD_KV_PAGE)
        return td_fail(err, TD_ENOTSUP, "page-size %u is not supported: pages hold %d tokens", o->page_size, TD_KV_PAGE);

    config->chunk = o->chunked_prefill_size ? o->chunked_prefill_size : o->max_prefill_tokens;
    if (o->max_prefill_tokens && config->chunk > o->max_prefill_tokens) config->chunk = o->max_prefill_tokens;
    if (config->chunk == 0 || config->chunk > TD_CHUNK_MAX)
        return td_fail(err, TD_EINVAL,
                       "chunked-prefill-size %u with max-prefill-tokens %u: a step takes 1 to %d prompt tokens",
                       o->chunked_prefill_size, o->max_prefill_tokens, TD_CHUNK_MAX);
    uint32_t max_running = o->max_running_requests ? o->max_running_requests : RUNNING_DEFAULT;
    if (max_running > TD_RUNNING_MAX)
        return td_fail(err, TD_EINVAL, "max-running-requests %u is more than %d", max_running, TD_RUNNING_MAX);
    config->max_step_ms = o->max_step_ms;
    config->max_queued = o->max_queued_requests ? o->max_queued_requests : QUEUED_DEFAULT;
    if (config->max_queued > TD_QUEUED_MAX)
        return td_fail(err, TD_EINVAL, "max-queued-requests %u is more than %d", config->max_queued, TD_QUEUED_MAX);

    if (o->speculative_algorithm && strcmp(o->speculative_algorithm, "NEXTN"))
        return td_fail(err, TD_ENOTSUP, "speculative-algorithm %s is not supported: use NEXTN", o->speculative_algorithm);
    if (o->speculative_always && !o->speculative_algorithm)
        return td_fail(err, TD_EINVAL, "speculative-always needs speculative-algorithm");
    config->drafts = o->speculative_algorithm != NULL;
    config->draft_always = o->speculative_always;

    if (o->max_deferred_experts_per_token && !o->enable_defer)
        return td_fail(err, TD_EINVAL, "max-deferred-experts-per-token %u needs enable-defer",
                       o->max_deferred_experts_per_token);
    config->decode_log_interval = o->decode_log_interval;
    config->random_seed = o->random_seed;
    config->log_requests = o->log_requests;
    config->prefix_cache = !o->disable_radix_cache;
    if (!(o->state_snapshots_gib >= 0 && o->state_snapshots_gib <= SNAPSHOTS_GIB_MAX))
        return td_fail(err, TD_EINVAL, "state-snapshots-gib %g is outside 0 .. %d", o->state_snapshots_gib,
                       SNAPSHOTS_GIB_MAX);
    config->mixed_chunk = !o->disable_mixed_chunk;

    td_model_spec *m = &config->model;
    uint32_t n_out = config->drafts ? 2 * max_running : max_running; /* with drafts, two rows of a sequence are wanted */
    m->max_running = max_running;
    m->state_slots = m->open_slots = max_running;
    m->snapshot_bytes = config->prefix_cache ? (uint64_t)(o->state_snapshots_gib * (1 << 30)) : 0;
    m->max_tok = config->chunk + max_running;
    m->max_seq = td_scheduler_max_seq(max_running);
    m->max_out = n_out < OUT_MAX ? n_out : OUT_MAX;
    m->context_length = o->context_length;
    m->max_total_tokens = o->max_total_tokens;
    m->fraction = o->mem_fraction_static;
    m->gives_windows = !o->page_store; /* a store's pages have the rows of all layers */
    m->without_mtp = !config->drafts;
    m->in_pieces = config->max_step_ms > 0;
    m->overlap_min_tok = o->disable_two_chunk_overlap ? 0 : TD_OVERLAP_AUTO;
    if (o->enable_defer)
        m->experts.max_deferred = o->max_deferred_experts_per_token ? o->max_deferred_experts_per_token : DEFERRED_DEFAULT;
    return TD_OK;
}

static td_status resolve_device(const td_engine_options *o, td_model_spec *m, td_error *err) {
    if (o->tensor_parallel_size > TD_SHARDS_MAX)
        return td_fail(err, TD_EINVAL, "tensor-parallel-size %u is more than %d", o->tensor_parallel_size, TD_SHARDS_MAX);
    if (o->device) m->device = o->device;
    if (o->tensor_parallel_size) m->n_cards = o->tensor_parallel_size;
    m->first_card = o->base_gpu_id;
    m->device_experts = o->num_gpu_experts;
    m->stream_experts = o->stream_experts;
    m->drop_experts = is(o->expert_memory, "drop");
    if (o->expert_memory && !m->drop_experts && !is(o->expert_memory, "keep"))
        return td_fail(err, TD_ENOTSUP, "expert-memory %s is not supported: use keep or drop", o->expert_memory);
    if (o->attention_backend && strcmp(o->attention_backend, m->device))
        td_warn("attention backend %s does not exist on device %s: using the device's own", o->attention_backend, m->device);
    return TD_OK;
}

td_status td_engine_resolve(const td_engine_options *o, td_engine_config *config, td_error *err) {
    *config = (td_engine_config){.model = td_model_spec_of(o->model_path, 0)};
    config->model.cpu_weight_path = o->cpu_weight_path;
    config->model.override_json = o->model_override_json;
    if (!o->model_path || !*o->model_path) return td_fail(err, TD_EINVAL, "model-path is missing");
    TD_TRY(resolve_formats(o, config, err));
    TD_TRY(resolve_sizes(o, config, err));
    TD_TRY(resolve_images(o, config, err));
    TD_TRY(td_model_folder_check(o->model_path, !config->model.load_dummy, err));
    return resolve_device(o, &config->model, err);
}
