/*
 * td_quantize from the inside: what the files of this folder share.
 *
 *   quantize         options, the source, the order in which things are written
 *   output_folder    whose the folder is: its marker, its lock, what a killed run left
 *   device_tensors   every tensor but the routed experts', a safetensors shard per layer
 *   expert_files     the routed experts, a packed file per MoE layer
 *   calibration      layer by layer with the activations of a text; its parts are calibration_text, hidden_states, layer_run,
 *                    linear_rounding, expert_rounding
 *   expert_shards    with compressed-tensors: those files as safetensors shards, which replace them
 *   small_files      tokenizer files, and config.json at the end
 *
 * Every file has its final name only when it is whole and on disk; what is there under a final name and fits is kept.
 */
#ifndef TD_QUANTIZE_QUANTIZER_H
#define TD_QUANTIZE_QUANTIZER_H

#include <limits.h>
#include <pthread.h>

#include "cpu_experts/cpu_experts.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/rotation.h"
#include "model/checkpoint/safetensors_writer.h"
#include "quant/matrix_round.h"
#include "quantize/calibration_text.h"
#include "tandem_tools.h"

typedef struct td_device_tensors td_device_tensors;

/* A layer's packed file on its way to the disk, by a thread of its own, while the next layer is rounded. */
typedef struct {
    pthread_t   thread;
    td_experts *store; /* NULL: nothing is under way */
    char        path[PATH_MAX];
    uint64_t    source_hash;
    td_status   status;
    td_error    err;
} td_expert_saving;

typedef struct {
    pthread_mutex_t lock;
    uint64_t        done_bytes, total_bytes; /* of input */
} td_quantizer_meter;

typedef struct {
    const td_quantize_options *o;
    td_error                  *err;
    td_model_config            config;
    td_checkpoint             *source;
    bool                       w8a8, compressed_tensors;
    bool                       rotated; /* source gives the weights of the rotated model */
    const td_expert_numbers   *experts;
    td_expert_numbers          chosen; /* what `experts` points to if nobody chose a format */
    uint64_t                   hash;   /* of the source */
    char                       hash_text[17];
    int                        lock_fd; /* -1: none */
    td_round_method            method;
    td_blas                    blas;            /* open where there is a text */
    uint64_t                   config_hash;     /* of config.json's values, where there is a text */
    td_calibration_text        text;            /* no windows: there is none */
    uint64_t                   available_bytes; /* of memory, at the start */
    td_pool                   *pool;
    uint32_t                   n_subpools;
    td_device_tensors         *tensors;
    td_quantizer_meter        *meter;
    td_expert_saving           saving;
} td_quantizer;

static inline uint32_t td_quantizer_layers(const td_quantizer *q) {
    return q->config.n_layers + q->config.n_mtp_layers;
}

const char *td_quantizer_method(const td_quantizer *q);                       /* its name; static */
bool        td_quantizer_method_find(const char *name, td_round_method *out); /* false: there is none of that name */

/** Whether a weight becomes int8 in the output: the device tier's linears, but with compressed_tensors not those that other
 * engines expect as they are. */
static inline bool td_quantizer_makes_int8(const td_quantizer *q, td_role role, const td_tensor_spec *spec) {
    bool kept =
        q->compressed_tensors && (role == TD_ROLE_LM_HEAD || role == TD_ROLE_MTP_HEAD || role == TD_ROLE_MTP_EH_PROJ);
    return q->w8a8 && spec->format == TD_WEIGHT_W8A8 && !kept;
}

/** More input is done. Thread-safe. @param what a label for people. */
void td_quantizer_progress(td_quantizer *q, uint64_t bytes, const char *what);

/** The path of a file in the output folder. */
TD_NODISCARD td_status td_output_path(const td_quantizer *q, char path[PATH_MAX], const char *name);
TD_NODISCARD td_status td_source_path(const td_quantizer *q, char path[PATH_MAX],
                                      const char *name); /* the same in the model's folder */
/** Bytes of a layer's routed experts in the source; 0: it has none. */
uint64_t td_expert_source_bytes(const td_quantizer *q, uint32_t layer);
/** A store of one layer, its layer 0, and its file. */
td_experts_config td_expert_file_shape(const td_quantizer *q, uint32_t layer, char path[PATH_MAX]);

/* ---- output_folder.c ------------------------------------------------------------------------- */

/**
 * A new or empty folder gets the marker; one with the same marker is continued; another run's is emptied with force;
 * anything else is left alone. Takes the lock (q->lock_fd): one run at a time, until the process or the caller closes it.
 */
TD_NODISCARD td_status td_output_claim(td_quantizer *q);

/* ---- device_tensors.c ------------------------------------------------------------------------ */

/**
 * Lay out all shards: number 0 has the tensors of the whole model, 1 + l those of layer l. Adds their bytes to the meter.
 */
TD_NODISCARD td_status td_device_tensors_choose(td_quantizer *q);
void                   td_device_tensors_free(td_device_tensors *t); /* NULL is fine */
/** @param rounded [TD_ROLE_COUNT] int8 linears that are rounded already, rows in the order of the files; data NULL: to
 * nearest. NULL: none is. */
TD_NODISCARD td_status td_device_tensors_write(td_quantizer *q, uint32_t shard, const td_tensor_view *rounded);
/** Whether the shard is there and whole. */
TD_NODISCARD td_status td_device_tensors_is_done(td_quantizer *q, uint32_t shard, bool *done);
/** Bytes of its tensors in the source. */
uint64_t td_device_tensors_bytes(const td_quantizer *q, uint32_t shard);
/** model.safetensors.index.json */
TD_NODISCARD td_status td_device_tensors_index(td_quantizer *q);

/* ---- expert_files.c -------------------------------------------------------------------------- */

/** Whether the layer's packed file is there and whole, or what was made of it. */
bool td_expert_file_is_done(td_quantizer *q, uint32_t layer);
/**
 * Round and pack the experts of a layer of the model without knowing what they read; nothing to do in a dense one, or where
 * it is done. The file is written by another thread: it is there, and a failure is told, when the next call for a layer that
 * is to be written, or td_expert_file_finish, has returned.
 */
TD_NODISCARD td_status td_expert_file_write(td_quantizer *q, uint32_t layer);
/** Wait for the file that is being written, if one is. @param err may be NULL. */
TD_NODISCARD td_status td_expert_file_finish(td_quantizer *q, td_error *err);
/** Pack experts that are rounded; the file is there then. @param experts [n_experts] */
TD_NODISCARD td_status td_expert_file_write_codes(td_quantizer *q, uint32_t layer, const td_expert_codes *experts);

/* ---- calibration.c --------------------------------------------------------------------------- */

/** All shards and expert files of a calibrated folder, and its report. Continues where a run was interrupted. */
TD_NODISCARD td_status td_calibrate(td_quantizer *q);

/* ---- expert_shards.c: nothing to do without compressed_tensors ------------------------------- */

struct json_t;

/** @return TD_ENOTSUP for formats and shapes that compressed-tensors does not have. */
TD_NODISCARD td_status td_expert_shards_check(const td_quantizer *q);
/** Whether the shard of a layer is there, so that its packed file is not needed any more. */
bool td_expert_shard_is_done(td_quantizer *q, uint32_t layer);
/** From the packed files of all layers, which are removed then. */
TD_NODISCARD td_status td_expert_shards_write(td_quantizer *q);
/** Add names of all tensors, and which shard has them, to the index's map. */
TD_NODISCARD td_status td_expert_shards_list(td_quantizer *q, struct json_t *map, uint64_t *bytes);

/* ---- small_files.c --------------------------------------------------------------------------- */

#define TD_SMALL_FILE_MAX ((size_t)256 << 20) /* of config.json and what comes with it */

/** Whether a file of that name comes with the weights. */
bool                   td_is_small_file(const char *name);
TD_NODISCARD td_status td_small_files_copy(td_quantizer *q);
TD_NODISCARD td_status td_output_config_write(td_quantizer *q);

#endif
