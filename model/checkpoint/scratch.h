/* Memory for what is computed from a checkpoint's bytes: many blocks that are freed together. */
#ifndef TD_MODEL_CHECKPOINT_SCRATCH_H
#define TD_MODEL_CHECKPOINT_SCRATCH_H

#include <stddef.h>

#include "tandem.h"

/** Zero-initialise; blocks live until reset. One thread at a time. */
typedef struct {
    void **blocks;
    size_t n, room;
} td_scratch;

void td_scratch_reset(td_scratch *s); /* frees everything; the scratch can be used again */

/** Aligned memory that lives until the scratch is reset; NULL with err set when there is none. */
void *td_scratch_take(td_scratch *s, size_t bytes, td_error *err);

#endif
