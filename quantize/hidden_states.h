/*
 * The residual stream of all calibration tokens before a layer, in a file of the output folder. It is a safetensors file
 * with one tensor, [tokens, hidden] of the activations' type, and is either whole or absent. It is made by the layer before,
 * and removed when the file behind the layer is there.
 */
#ifndef TD_QUANTIZE_HIDDEN_STATES_H
#define TD_QUANTIZE_HIDDEN_STATES_H

#include "quantize/quantizer.h"

typedef struct {
    td_safetensors *file;
    td_dtype        dtype;
    const char     *rows; /* [tokens, hidden], mapped */
} td_hidden_states;

typedef struct {
    td_safetensors_writer *file;
    td_safetensors_item    item;
} td_hidden_writer;

static inline td_dtype td_hidden_dtype(const td_quantizer *q) {
    return q->w8a8 ? TD_DT_BF16 : TD_DT_F32;
}

/** @return TD_ENOTFOUND; TD_EFORMAT when it is not of this calibration. */
TD_NODISCARD td_status td_hidden_open(const td_quantizer *q, uint32_t layer, td_hidden_states *out);
void                   td_hidden_close(td_hidden_states *h);

/** Write those in front of `layer`. Whatever has not been committed is gone with close. */
TD_NODISCARD td_status td_hidden_create(const td_quantizer *q, uint32_t layer, td_hidden_writer *out);
TD_NODISCARD td_status td_hidden_append(const td_quantizer *q, td_hidden_writer *w, uint64_t first, uint64_t n,
                                        const void *rows);
TD_NODISCARD td_status td_hidden_commit(const td_quantizer *q, td_hidden_writer *w);
void                   td_hidden_writer_close(td_hidden_writer *w);

/** Remove the file in front of a layer, if there is one. */
void td_hidden_remove(const td_quantizer *q, uint32_t layer);

#endif
