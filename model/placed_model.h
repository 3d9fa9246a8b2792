/*
 * Places a model: opens the device and the model, and plans their memory. Engine, eval and quantize all do it this way.
 */
#ifndef TD_MODEL_PLACED_MODEL_H
#define TD_MODEL_PLACED_MODEL_H

#include "core/threads/pool.h"
#include "model/model.h"
#include "model/shard.h"
#include "npu/host/host_npu.h"

/** The threads and the memory of the machine that a model may use. The last four are not read if spec.n_pages is set. */
typedef struct {
    td_pool        *expert_pool;
    td_pool *const *npu_pools;       /* [n_cards] threads of each card that computes on this machine's cores; NULL: the card
                                        shares the threads of expert_pool */
    uint64_t        available_bytes; /* host memory */
    uint64_t        device_bytes; /* memory of a card that another device stands for (tandem plan); 0: ask the opened card */
    uint64_t        image_cache_bytes;     /* host memory that the caller takes beside a model that takes images: features */
    uint64_t        bytes_per_vocab_entry; /* host memory that the caller takes beside the model: for sampling */
} td_model_room;

typedef struct {
    td_npu          *npus[TD_SHARDS_MAX]; /* [n_npus] the opened cards */
    uint32_t         n_npus;
    td_model        *model;
    td_model_memory  memory;
    td_memory_shares shares; /* its KV pages are for td_model_load */
} td_placed_model;

/**
 * Open device and model, and plan the memory; td_model_load comes next.
 * @param spec  copied by the model; model/model_spec.h says how long what it points to is read.
 * @param room  not kept; its pools are borrowed until close.
 * @param probe copied; NULL while serving.
 * @return the statuses of td_npu_open and td_model_open; TD_ENOMEM with the largest figure that fits.
 */
TD_NODISCARD td_status td_placed_model_open(const td_model_spec *spec, const td_model_room *room,
                                            const td_model_probe *probe, td_placed_model *out, td_error *err);
void                   td_placed_model_close(td_placed_model *m); /* one that is not open is fine */

/** What an open model would get with the spec's fraction, max_total_tokens and max_running. @return as open. */
TD_NODISCARD td_status td_placed_model_shares(const td_model_spec *spec, const td_model_room *room, const td_placed_model *m,
                                              td_memory_shares *out, td_error *err);

/** Host memory that the caller takes for images: their features, and the pixels of one. 0: the model takes none. */
uint64_t td_placed_model_image_bytes(const td_model_room *room, const td_placed_model *m);

#endif
