/*
 * Rounds the routed experts of one layer to integers, each by the inputs that it gets.
 *
 * An expert's rows are the tokens that the router sent to it, each times its router weight, which is its share of the
 * output. Gate and up are rounded as one matrix, by the Hessian of these rows. Down is rounded by the Hessian of silu(gate
 * x) * (up x), with gate and up as they were rounded, so that it corrects for their errors. Before that, if scales are one
 * a row, columns of down are scaled against rows of up, which changes no code of up (quant/column_scale.h).
 *
 * A Hessian of fewer rows than columns says nothing about most directions, and error feedback would put the errors there.
 * So an expert that saw fewer tokens than its matrices have columns borrows the missing rows: evenly spaced tokens of the
 * layer, which count a quarter of its own.
 */
#ifndef TD_QUANTIZE_EXPERT_ROUNDING_H
#define TD_QUANTIZE_EXPERT_ROUNDING_H

#include "quantize/quantizer.h"

/** What the layer's experts read, of all calibration tokens. */
typedef struct {
    uint32_t        n_tok; /* 0: nothing is known, and the method is not gptq; clip then goes by the weights alone */
    const float    *x;     /* [n_tok, hidden] */
    const uint16_t *ids;   /* [n_tok, top_k] */
    const float    *weights;
    void (*done)(void *user, uint32_t n_experts); /* progress, now and then, on the caller's thread; may be NULL */
    void *user;
} td_expert_inputs;

enum { TD_FIT_GATE_UP, TD_FIT_DOWN, TD_FITS };

/** How well an expert's matrices stand for the source's: error(W, Q) / error(W, 0) of quant/matrix_round.h. */
typedef struct {
    double   nearest[TD_FITS], error[TD_FITS]; /* of rounding to nearest, and of what was written */
    uint32_t tokens, borrowed;
} td_expert_fit;

/** Codes of a layer. */
typedef struct {
    td_expert_codes *experts; /* [n_experts] */
    td_expert_fit   *fits;    /* [n_experts] all 0 without inputs */
    int8_t          *codes;
    float           *scales;
} td_rounded_experts;

TD_NODISCARD td_status td_experts_round(td_quantizer *q, uint32_t layer, const td_expert_inputs *in,
                                        td_rounded_experts *out);
void                   td_rounded_experts_free(td_rounded_experts *r);

/** Memory that td_experts_round takes besides its result's codes and scales, and those. */
void td_experts_round_bytes(const td_quantizer *q, uint64_t *work, uint64_t *result);

#endif
