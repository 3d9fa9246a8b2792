/*
 * td_quantize: a checkpoint -> a folder that loads without quantising.
 *
 *   tandem_quantize.json      what is being written: source hash and options; written first, compared when a run is continued
 *   model-….safetensors       every tensor but the routed experts', a shard per layer; with w8a8_int8 the linears as I8 with X.weight_scale [n, 1] F32
 *   experts-….tdx             packed routed experts, one file per MoE layer
 *   calibration.json          with a calibration: what each layer's rounding cost
 *   tokenizer files, generation_config.json   copied
 *   config.json               with quantization_config; written last, so a folder that is not complete is no model folder
 *
 * With the output format compressed-tensors, which other engines read: packed routed experts become
 * model-experts-….safetensors, config.json describes both kinds of weights, and the heads and eh_proj stay as stored, as is
 * the custom there.
 *
 * With load_dummy there is only a config.json, and the weights are made up: a folder of that size and shape, for trying out
 * a machine.
 *
 * Rows are quantised by the functions that quantise on load, and rows are stored in the source's order, so both ways give
 * the same bits.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/files/json_text.h"
#include "core/log/log.h"
#include "core/threads/thread.h"
#include "core/threads/thread_layout.h"
#include "engine/model_folder.h"
#include "kernels/kernels.h"
#include "model/arch/arch.h"
#include "model/arch/config_file.h"
#include "model/experts_load.h"
#include "quantize/quantizer.h"

#define TOKENS_DEFAULT 32768
#define WINDOW_DEFAULT 512
#define DUMMY_SOURCE_HASH \
    UINT64_C(0x64756d6d79) /* "dummy": its weights depend on the shape alone, which is compared anyway */

/* ---- opening --------------------------------------------------------------------------------- */

static td_status choose_method(td_quantizer *q) {
    const td_quantize_options *o = q->o;
    const char                *name = o->method ? o->method : o->calibration_path ? "gptq" : "nearest";
    if (!td_quantizer_method_find(name, &q->method))
        return td_fail(q->err, TD_EINVAL, "method is '%.40s', expected nearest, clip or gptq", name);
    if (q->experts->format == TD_EXPERT_FP4G && (o->calibration_path || q->method != TD_ROUND_NEAREST))
        return td_fail(q->err, TD_EINVAL, "experts in %s are rounded to nearest alone: leave out --calibration and --method",
                       q->experts->name);
    if (q->method == TD_ROUND_GPTQ && !o->calibration_path)
        return td_fail(q->err, TD_EINVAL, "the method gptq needs a text: give --calibration");
    if (!o->calibration_path && (o->calibration_tokens || o->calibration_window))
        return td_fail(q->err, TD_EINVAL,
                       "calibration-tokens and calibration-window say how a text is cut: give --calibration");
    if (o->load_dummy && (o->calibration_path || q->method != TD_ROUND_NEAREST))
        return td_fail(q->err, TD_EINVAL, "dummy weights cannot be calibrated: leave out --calibration and --method");
    return TD_OK;
}

static bool is_auto(const td_quantize_options *o) {
    return !strcmp(o->expert_quantization, "auto");
}

static td_status check_options(td_quantizer *q) {
    const td_quantize_options *o = q->o;
    if (!o->model_path || !o->output_path) return td_fail(q->err, TD_EINVAL, "a model path and an output path are needed");
    q->w8a8 = !strcmp(o->quantization, "w8a8_int8");
    if (!q->w8a8 && strcmp(o->quantization, "none"))
        return td_fail(q->err, TD_EINVAL, "quantization is '%.40s', expected w8a8_int8 or none", o->quantization);
    q->compressed_tensors = o->output_format && !strcmp(o->output_format, "compressed-tensors");
    if (o->output_format && !q->compressed_tensors && strcmp(o->output_format, "tandem"))
        return td_fail(q->err, TD_EINVAL, "output_format is '%.40s', expected tandem or compressed-tensors",
                       o->output_format);
    const td_expert_numbers *n = td_expert_numbers_find(is_auto(o) ? "int4" : o->expert_quantization);
    if (!n || n->format == TD_EXPERT_BF16)
        return td_fail(
            q->err, TD_EINVAL,
            "expert_quantization is '%.40s', expected auto, int4, int8, int4-g32, int4-g64, int4-g128, mxfp4 or nvfp4",
            o->expert_quantization);
    q->experts = n;
    TD_TRY(choose_method(q));
    if (o->rotation && strcmp(o->rotation, "auto") && strcmp(o->rotation, "none") && strcmp(o->rotation, "hadamard"))
        return td_fail(q->err, TD_EINVAL, "rotation is '%.40s', expected auto, none or hadamard", o->rotation);
    if (o->load_dummy && o->rotation && !strcmp(o->rotation, "hadamard"))
        return td_fail(q->err, TD_EINVAL, "dummy weights cannot be rotated: leave out --rotation");
    return TD_OK;
}

static td_status rotate(td_quantizer *q, td_error *err) {
    if (q->compressed_tensors && q->config.n_mtp_layers)
        return td_fail(err, TD_ENOTSUP,
                       "other engines cannot run a rotated multi-token-prediction layer, which has one linear more");
    TD_TRY(td_checkpoint_rotate(q->source, &q->config, err));
    td_checkpoint_look_at_mtp(q->source, &q->config);
    q->rotated = true;
    return TD_OK;
}

/* Whether to rotate if nobody says so: with gptq, and if floats become int8 experts. Rounding to 4 bits by nearest or by
 * clip loses more on a rotated model, whose rows no longer have columns that matter little (docs/quantisation.md). Integers
 * that are stored already are best kept as they are. */
static bool auto_rotates(const td_quantizer *q) {
    td_quant_method stored = q->config.quant.method;
    if (q->method == TD_ROUND_GPTQ) return true;
    return q->experts->format == TD_EXPERT_INT8C && (stored == TD_QUANT_NONE || stored == TD_QUANT_FP8) &&
           !q->compressed_tensors && !q->o->load_dummy;
}

static td_status choose_rotation(td_quantizer *q) {
    const char *wish = q->o->rotation ? q->o->rotation : "auto";
    if (!strcmp(wish, "hadamard")) {
        TD_TRY(rotate(q, q->err));
    } else if (!strcmp(wish, "auto") && auto_rotates(q)) {
        td_error  why;
        td_status s = rotate(q, &why);
        if (s != TD_OK && s != TD_ENOTSUP) return td_fail(q->err, s, "%s", why.text);
        if (s != TD_OK) td_info("no rotation: %s", why.text);
    }
    return TD_OK;
}

/* Choose the experts' format if nobody does: one that holds the source's codes exactly, or else what they are rounded to.
   Methods other than nearest, a calibration, and compressed-tensors as output (which lacks some formats) always round. */
static td_status choose_expert_format(td_quantizer *q) {
    td_expert_numbers n;
    td_stored_experts stored;
    TD_TRY(td_checkpoint_expert_numbers(q->source, &q->config, &n, &stored, q->err));
    if (stored != TD_EXPERTS_NOT_CODED) q->chosen = n, q->experts = &q->chosen;
    return TD_OK;
}

/* Refuse biases of experts where they have no place: in rounding layer by layer, and in the format for other engines. */
static td_status check_expert_bias(const td_quantizer *q) {
    if (!q->config.expert_bias) return TD_OK;
    if (q->method != TD_ROUND_NEAREST)
        return td_fail(q->err, TD_ENOTSUP,
                       "%s: the experts of this model have biases, and are rounded by the method nearest alone",
                       q->o->model_path);
    if (q->compressed_tensors)
        return td_fail(q->err, TD_ENOTSUP,
                       "%s: the experts of this model have biases, which output_format compressed-tensors has no place for",
                       q->o->model_path);
    return TD_OK;
}

/* Refuse what other engines could not read: they expect experts by the names that most families have, and a vision encoder
 * in the same folder. */
static td_status check_shared(const td_quantizer *q) {
    const td_arch *a = q->config.arch;
    if (td_arch_has_more(a) || !strstr(a->weights[TD_ROLE_EXPERT_GATE].name, ".mlp.experts."))
        return td_fail(q->err, TD_ENOTSUP, "output_format compressed-tensors of %s is not supported yet, only tandem",
                       q->config.arch_name);
    return TD_OK;
}

static td_status open_source(td_quantizer *q) {
    TD_TRY(td_model_folder_check(q->o->model_path, !q->o->load_dummy, q->err));
    TD_TRY(td_model_config_read(q->o->model_path, NULL, &q->config, q->err));
    if (td_model_streams(&q->config) > 1 && q->o->calibration_path)
        return td_fail(q->err, TD_ENOTSUP,
                       "%s has several residual streams, and its layers are not calibrated one by one yet: leave out "
                       "--calibration",
                       q->config.arch_name);
    TD_TRY(q->o->load_dummy ? td_checkpoint_open_dummy(0, &q->source, q->err)
                            : td_checkpoint_open(q->o->model_path, &q->source, q->err));
    td_checkpoint_look_at_mtp(q->source, &q->config);
    td_checkpoint_log_unread(q->source, &q->config, NULL);
    TD_TRY(check_expert_bias(q));
    if (td_quant_config_has_int8(&q->config.quant) && !td_checkpoint_has_experts(q->source, &q->config))
        return td_fail(q->err, TD_EINVAL, "%s is quantised already, and has its experts in packed files", q->o->model_path);
    TD_TRY(td_checkpoint_check_all(q->source, &q->config, true, q->err));
    if (q->compressed_tensors) TD_TRY(check_shared(q));
    if (is_auto(q->o) && q->method == TD_ROUND_NEAREST && !q->o->calibration_path && !q->compressed_tensors)
        TD_TRY(choose_expert_format(q));
    TD_TRY(td_expert_shards_check(q));
    TD_TRY(choose_rotation(q));
    q->hash = q->o->load_dummy ? DUMMY_SOURCE_HASH : td_checkpoint_source_hash(q->source);
    snprintf(q->hash_text, sizeof q->hash_text, "%016" PRIx64, q->hash);
    return TD_OK;
}

/* The source's hash says nothing of config.json, on which a calibration depends. */
static td_status hash_config(td_quantizer *q) {
    char    path[PATH_MAX];
    json_t *config;
    TD_TRY(td_source_path(q, path, "config.json"));
    TD_TRY(td_json_read(path, TD_SMALL_FILE_MAX, &config, q->err));
    char *text = td_json_dump(config, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(config);
    if (!text) return td_fail(q->err, TD_ENOMEM, "out of memory");
    q->config_hash = XXH3_64bits(text, strlen(text));
    free(text);
    return TD_OK;
}

/* The library before the pool's threads start: it reads the environment. */
static td_status open_calibration(td_quantizer *q) {
    const td_quantize_options *o = q->o;
    uint32_t                   window = o->calibration_window ? o->calibration_window : WINDOW_DEFAULT;
    if (!o->calibration_path) return TD_OK;
    if (window > q->config.max_position)
        return td_fail(q->err, TD_EINVAL,
                       "calibration windows of %u tokens are longer than the model's context of %u: choose a smaller "
                       "calibration-window",
                       window, q->config.max_position);
    TD_TRY(hash_config(q));
    TD_TRY(td_blas_open(&q->blas, q->err));
    return td_calibration_text_read(o->calibration_path, o->model_path,
                                    o->calibration_tokens ? o->calibration_tokens : TOKENS_DEFAULT, window, q->config.vocab,
                                    &q->text, q->err);
}

static td_status start_pool(td_quantizer *q) {
    td_thread_layout *layout = malloc(sizeof *layout);
    td_machine        machine;
    if (!layout) return td_fail(q->err, TD_ENOMEM, "out of memory");
    td_status s = td_thread_layout_here(td_kernels_here()->read,
                                        &(td_thread_wishes){.cpuinfer = q->o->threads, .subpool_count = q->o->subpool_count},
                                        layout, &machine, q->err);
    if (s == TD_OK) {
        q->n_subpools = layout->n_subpools;
        q->available_bytes = machine.available_bytes;
        s = td_pool_create(layout->experts, layout->n_experts, &q->pool, q->err);
    }
    free(layout);
    return s;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* The device tier's shards, on a thread of their own beside the experts' files, so that neither waits while the other rounds
   or the disk writes. One thread rounds about as fast as a disk takes it. */
typedef struct {
    td_quantizer q; /* the same task, with a pool of one worker and an error of its own */
    td_error     err;
    td_status    status;
    pthread_t    thread;
    atomic_bool  stop; /* relaxed, as failed: the thread is joined before its status is read */
    atomic_bool  failed;
} device_side;

static td_status write_shards(td_quantizer *q, const atomic_bool *stop) {
    for (uint32_t shard = 0; shard <= td_quantizer_layers(q) && !atomic_load_explicit(stop, memory_order_relaxed); shard++)
        TD_TRY(td_device_tensors_write(q, shard, NULL));
    return TD_OK;
}

static void *write_device_side(void *arg) {
    device_side *d = arg;
    d->status = write_shards(&d->q, &d->stop);
    if (d->status != TD_OK) atomic_store_explicit(&d->failed, true, memory_order_relaxed);
    return NULL;
}

static td_status write_experts(td_quantizer *q, const device_side *d) {
    td_status s = TD_OK;
    for (uint32_t layer = 0;
         s == TD_OK && layer < td_quantizer_layers(q) && !atomic_load_explicit(&d->failed, memory_order_relaxed); layer++) {
        s = td_expert_file_write(q, layer);
        td_checkpoint_files_release_all(td_checkpoint_get_files(q->source));
    }
    td_status saved = td_expert_file_finish(q, s == TD_OK ? q->err : NULL);
    return s != TD_OK ? s : saved;
}

static td_status write_layers(td_quantizer *q) {
    atomic_bool never = false;
    if (td_model_config_moe_layers(&q->config) == 0) return write_shards(q, &never);
    device_side    *d = calloc(1, sizeof *d);
    td_worker_place place = {.cpu = TD_CPU_ANY};
    if (!d) return td_fail(q->err, TD_ENOMEM, "out of memory");
    d->q = *q;
    d->q.err = &d->err;
    td_status s = td_pool_create(&place, 1, &d->q.pool, q->err);
    if (s == TD_OK) {
        s = td_thread_start(&d->thread, "device tensors", write_device_side, d, q->err);
        if (s == TD_OK) {
            s = write_experts(q, d);
            atomic_store_explicit(&d->stop, s != TD_OK, memory_order_relaxed);
            pthread_join(d->thread, NULL);
            if (s == TD_OK && d->status != TD_OK) s = td_fail(q->err, d->status, "%s", d->err.text);
        }
        td_pool_destroy(d->q.pool);
    }
    free(d);
    return s;
}

static td_status run(td_quantizer *q) {
    TD_TRY(check_options(q));
    TD_TRY(open_source(q));
    TD_TRY(open_calibration(q));
    TD_TRY(start_pool(q));
    TD_TRY(td_output_claim(q));
    TD_TRY(td_device_tensors_choose(q));
    for (uint32_t layer = 0; layer < td_quantizer_layers(q); layer++)
        q->meter->total_bytes += td_expert_source_bytes(q, layer) * (1 + q->compressed_tensors);
    td_quantizer_progress(q, 0, "starting");
    TD_TRY(q->text.n_windows ? td_calibrate(q) : write_layers(q));
    TD_TRY(td_expert_shards_write(q));
    TD_TRY(td_device_tensors_index(q));
    TD_TRY(td_small_files_copy(q));
    return td_output_config_write(q);
}

td_status td_quantize(const td_quantize_options *o, td_error *err) {
    td_quantizer_meter meter = {.lock = PTHREAD_MUTEX_INITIALIZER};
    td_quantizer       q = {.o = o, .err = err, .lock_fd = -1, .meter = &meter};
    td_status          s = run(&q);
    if (q.lock_fd >= 0) close(q.lock_fd);
    td_pool_destroy(q.pool);
    td_checkpoint_close(q.source);
    td_device_tensors_free(q.tensors);
    td_calibration_text_free(&q.text);
    return s;
}
