/* Rows of a chunk by the experts that they chose, and the exact sums of what the experts give: for both blocks of
 * experts. */
#ifndef TD_NPU_HOST_HOST_CHOSEN_H
#define TD_NPU_HOST_HOST_CHOSEN_H

#include "npu/host/host_device.h"

/** A row of the chunk that chose an expert. */
typedef struct {
    uint32_t row;
    float    weight;
} td_host_chosen;

typedef struct {
    size_t          rows, top_k, n_experts, hidden;
    size_t          first_choice, end_choice; /* of each row: only those count */
    const uint16_t *slot_of; /* as of resident experts: only they count, and those elsewhere do not; NULL: no id is marked */
    const uint16_t *ids;     /* [rows, top_k] */
    const float    *weights; /* [rows, top_k] */
    uint32_t       *first;   /* [n_experts + 1] out: where each expert's rows begin in list */
    td_host_chosen *list;    /* [rows * top_k] out: by expert, and of one expert by row */
    int32_t        *sums;    /* [rows, td_exact_words(hidden)] */
} td_host_choice;

/** List the rows and begin their sums. @return TD_EINVAL for ids that are no expert's, or twice in a row. */
TD_NODISCARD td_status td_host_choice_list(const td_host_choice *c);

/** Add what an expert gives for its rows, times their weights. @param outputs [its rows, hidden]. */
void td_host_choice_add(td_host_npu *d, const td_host_choice *c, size_t expert, const float *outputs);

#endif
