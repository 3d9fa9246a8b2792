/* What checkpoint.c (files) and checkpoint_roles.c (weights by role, dummy weights) share. */
#ifndef TD_MODEL_CHECKPOINT_INTERNAL_H
#define TD_MODEL_CHECKPOINT_INTERNAL_H

#include <stdatomic.h>

#include "model/checkpoint.h"
#include "model/rotation.h"

typedef struct {
    const td_safetensors_entry *entry; /* NULL: free */
    uint32_t                    file;
} name_slot;

struct td_checkpoint {
    char            *dir;
    td_safetensors **files; /* in the order of their names */
    size_t           n_files;
    name_slot       *table; /* [table_mask + 1], open addressing by name; NULL for dummy weights */
    size_t           table_mask;
    td_bf16 *dummy_values; /* [TD_DUMMY_VALUES] random; every dummy tensor is a stretch of it, repeated; NULL: not a dummy */
    uint64_t dummy_seed;
    struct json_t        *modelslim; /* quant_model_description.json; NULL: none */
    td_hadamard           rotation;  /* of the residual stream; k 0: none */
    const td_tensor_view *replaced;  /* [TD_ROLE_COUNT] of replaced_layer, or NULL */
    uint32_t              replaced_layer;
    _Atomic uint64_t      source_hash; /* 0: not computed yet; relaxed, every thread computes the same */
};

const name_slot *td_checkpoint_slot(const td_checkpoint *c, const char *name); /* NULL: no such tensor */

/** Aligned memory that lives until the scratch is reset; NULL with err set when there is none. */
void *td_scratch_take(td_scratch *s, size_t bytes, td_error *err);

/** "[12, 34]"; returns text. */
const char *td_shape_text(char *text, size_t size, const size_t *shape, uint32_t rank);

#endif
