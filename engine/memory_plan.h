/* How many pages of KV a machine holds beside the weights. Pure arithmetic. */
#ifndef TD_ENGINE_MEMORY_PLAN_H
#define TD_ENGINE_MEMORY_PLAN_H

#include "tandem.h"

typedef struct {
    uint64_t available_bytes;   /* of the machine or its cgroup, before the weights are loaded */
    double   fraction;          /* share of it that may be used, (0, 1] */
    uint64_t weight_bytes;      /* both tiers */
    uint64_t scratch_bytes;     /* working memory, sampling included */
    uint64_t kv_bytes_per_page; /* all layers; > 0 */
    uint64_t max_total_tokens;  /* wanted capacity; 0: what fits, up to max_running sequences of context_length */
    uint32_t context_length, max_running;
} td_memory_plan_input;

/** @return TD_ENOMEM when the weights and one page do not fit, or max_total_tokens does not: err names the largest that
 * does. */
TD_NODISCARD td_status td_memory_plan(const td_memory_plan_input *in, uint32_t *n_pages, td_error *err);

#endif
