/* Names that a folder written by td_quantize and its readers share. td_quantize itself is in tandem.h. */
#ifndef TD_MODEL_QUANTIZE_H
#define TD_MODEL_QUANTIZE_H

#include <stdio.h>

#include "tandem.h"

/** Packed experts of the index-th MoE layer (0 is the first layer that has experts; MTP layers come last), in `dir`. Cut when too long. */
static inline void td_expert_file_path(char *out, size_t size, const char *dir, uint32_t index) {
    snprintf(out, size, "%s/experts-%05u.tdx", dir, index);
}

#endif
