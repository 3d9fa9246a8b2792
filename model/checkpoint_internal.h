/* What checkpoint.c (files) and checkpoint_roles.c (weights by role, dummy weights) share. */
#ifndef TD_MODEL_CHECKPOINT_INTERNAL_H
#define TD_MODEL_CHECKPOINT_INTERNAL_H

#include <stdatomic.h>

#include "model/checkpoint.h"

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
    td_bf16         *dummy_values; /* [TD_DUMMY_VALUES] random; every dummy tensor is a stretch of it, repeated; NULL: not a dummy */
    uint64_t         dummy_seed;
    _Atomic uint64_t source_hash; /* 0: not computed yet; relaxed, every thread computes the same */
};

const name_slot *td_checkpoint_slot(const td_checkpoint *c, const char *name); /* NULL: no such tensor */

#endif
