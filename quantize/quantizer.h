/*
 * td_quantize from the inside: what the files of this folder share.
 *
 *   quantize         options, the source, the order in which things are written
 *   output_folder    whose the folder is: its marker, its lock, what a killed run left
 *   device_tensors   every tensor but the routed experts', a safetensors shard per layer
 *   expert_files     the routed experts, a packed file per MoE layer
 *   small_files      tokenizer files, and config.json at the end
 *
 * Every file has its final name only when it is whole and on disk; what is there under a final name and fits is kept.
 */
#ifndef TD_QUANTIZE_QUANTIZER_H
#define TD_QUANTIZE_QUANTIZER_H

#include <limits.h>

#include "cpu_experts/cpu_experts.h"
#include "model/checkpoint.h"
#include "model/safetensors_writer.h"

typedef struct td_device_tensors td_device_tensors;

typedef struct {
    const td_quantize_options *o;
    td_error                  *err;
    td_model_config            config;
    td_checkpoint             *source;
    bool                       w8a8;
    const td_expert_numbers   *experts;
    uint64_t                   hash; /* of the source */
    char                       hash_text[17];
    int                        lock_fd; /* -1: none */
    td_pool                   *pool;
    uint32_t                   n_subpools;
    td_device_tensors         *tensors;
    uint64_t                   done_bytes, total_bytes; /* of input */
} td_quantizer;

static inline uint32_t td_quantizer_layers(const td_quantizer *q) { return q->config.n_layers + q->config.n_mtp_layers; }

/** More input is done. @param what a label for people. */
void td_quantizer_progress(td_quantizer *q, uint64_t bytes, const char *what);

/* ---- output_folder.c ------------------------------------------------------------------------- */

TD_NODISCARD td_status td_output_path(const td_quantizer *q, char path[PATH_MAX], const char *name);

/**
 * A new or empty folder gets the marker; one with the same marker is continued; another run's is emptied with force; anything else is left
 * alone. Takes the lock (q->lock_fd): one run at a time, until the process or the caller closes it.
 */
TD_NODISCARD td_status td_output_claim(td_quantizer *q);

/* ---- device_tensors.c ------------------------------------------------------------------------ */

/** Lay out all shards: number 0 has the tensors of the whole model, 1 + l those of layer l. Adds their bytes to q->total_bytes. */
TD_NODISCARD td_status td_device_tensors_plan(td_quantizer *q);
void                   td_device_tensors_free(td_device_tensors *t); /* NULL is fine */
TD_NODISCARD td_status td_device_tensors_write(td_quantizer *q, uint32_t shard);
/** model.safetensors.index.json */
TD_NODISCARD td_status td_device_tensors_index(td_quantizer *q);

/* ---- expert_files.c -------------------------------------------------------------------------- */

/** Bytes of a layer's routed experts in the source; 0: it has none. */
uint64_t               td_expert_source_bytes(const td_quantizer *q, uint32_t layer);
/** Round to nearest and pack the experts of a layer of the model; nothing to do in a dense one. */
TD_NODISCARD td_status td_expert_file_write(td_quantizer *q, uint32_t layer);

/* ---- small_files.c --------------------------------------------------------------------------- */

TD_NODISCARD td_status td_small_files_copy(td_quantizer *q);
TD_NODISCARD td_status td_output_config_write(td_quantizer *q);

#endif
