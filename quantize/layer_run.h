/*
 * Runs one layer of the model over the calibration's tokens: as it is in the source, or as it was written.
 */
#ifndef TD_QUANTIZE_LAYER_RUN_H
#define TD_QUANTIZE_LAYER_RUN_H

#include "quantize/hidden_states.h"
#include "quantize/linear_rounding.h"

typedef enum {
    TD_LAYER_SOURCE,  /* bf16 weights, f32 arithmetic */
    TD_LAYER_WRITTEN, /* the output's numbers, experts from its packed file */
} td_layer_numbers;

/** What a run shows of its layer; members may be NULL. */
typedef struct {
    float              *expert_x;       /* [tokens, hidden] what router and routed experts read */
    uint16_t           *expert_ids;     /* [tokens, top_k] */
    float              *expert_weights; /* [tokens, top_k] */
    float              *out;            /* [out_tokens, hidden] the residual stream behind the layer, of the first tokens */
    uint64_t            out_tokens;
    td_linear_rounding *linears; /* what the device tier's linears read is added to it */
} td_layer_seen;

/**
 * @param layer an MTP layer reads the stream behind the main model, and is fed the next tokens.
 * @param next  NULL, or where the residual stream behind the layer goes.
 */
TD_NODISCARD td_status td_layer_run(td_quantizer *q, uint32_t layer, td_layer_numbers numbers, const td_hidden_states *in,
                                    td_layer_seen *seen, td_hidden_writer *next);

/** Bytes that a run takes, weights, scratch and rows: the larger of the two numbers. @return TD_ENOMEM and the statuses of
 * td_model_open. */
TD_NODISCARD td_status td_layer_run_bytes(td_quantizer *q, uint32_t layer, uint64_t *bytes);

#endif
