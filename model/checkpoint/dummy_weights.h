/* Random weights for a model of any size: a tensor for every role, the same for the same seed. */
#ifndef TD_MODEL_CHECKPOINT_DUMMY_WEIGHTS_H
#define TD_MODEL_CHECKPOINT_DUMMY_WEIGHTS_H

#include "model/arch/tensor_rules.h"
#include "model/checkpoint/scratch.h"

typedef struct td_dummy_weights td_dummy_weights;

/** Weights as the family's table fills them: linears uniform with deviation 0.02, norms 1, biases 0. */
TD_NODISCARD td_status td_dummy_weights_open(uint64_t seed, td_dummy_weights **out, td_error *err);
void                   td_dummy_weights_close(td_dummy_weights *d); /* NULL is fine */

/** @param scratch holds the bytes. @return TD_ENOMEM. Thread-safe. */
TD_NODISCARD td_status td_dummy_weights_make(const td_dummy_weights *d, const td_tensor_spec *spec, td_scratch *scratch,
                                             td_tensor_view *out, td_error *err);

#endif
