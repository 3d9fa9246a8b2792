/*
 * A model on its device and its pools: opened, planned into their memory, loaded. The one way for engine, eval and quantize.
 */
#ifndef TD_MODEL_PLACED_MODEL_H
#define TD_MODEL_PLACED_MODEL_H

#include "core/pool.h"
#include "model/model.h"
#include "model/shard.h"
#include "npu/host/host_npu.h"

typedef struct {
    const char *device; /* of td_npu_open; NULL: "host" */
    td_pool    *expert_pool;
    td_pool *const
        *npu_pools; /* [n_cards] threads of each card's own, where it computes on this machine's cores; NULL: the experts' */
    uint32_t    n_cards;    /* that share the work (tensor parallel); 0 is 1 */
    uint32_t    first_card; /* of those that the process sees */
    td_rows_tap rows_tap;   /* or NULL; host only */
    void       *rows_tap_user;
    td_model_options
             model; /* async_experts and float_rows are not read; halves are for devices that work beside the experts */
    uint64_t available_bytes; /* host memory */
    uint64_t device_bytes; /* free on each card, where it is not the opened device that will serve; 0: what that one has */
    double   fraction;     /* share of each memory that may be used, (0, 1] */
    uint64_t bytes_per_vocab_entry; /* host memory that the caller takes beside the model: for sampling */
    uint64_t max_total_tokens; /* KV capacity in tokens; 0: what fits, up to max_running sequences of the longest length */
    uint32_t max_running;
    uint32_t n_pages; /* KV pages; not 0: these and no others, and no memory is planned */
} td_placement;

typedef struct {
    td_npu       *npus[TD_SHARDS_MAX]; /* [n_npus] the cards */
    uint32_t      n_npus;
    td_model     *model;
    td_model_plan plan;
    uint32_t      n_pages; /* of KV, for td_model_load */
} td_placed_model;

/**
 * Open device and model and plan the memory; td_model_load comes next. The pools are borrowed until close.
 * @return the statuses of td_npu_open and td_model_open; TD_ENOMEM with the largest figure that fits.
 */
TD_NODISCARD td_status td_placed_model_open(const td_placement *p, td_placed_model *out, td_error *err);
void                   td_placed_model_close(td_placed_model *m); /* one that is not open is fine */

/** The KV pages that an open model would get with another max_total_tokens or max_running. @return as open. */
TD_NODISCARD td_status td_placed_model_pages(const td_placement *p, const td_placed_model *m, uint32_t *n_pages,
                                             td_error *err);

#endif
