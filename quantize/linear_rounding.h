/*
 * Rounds the device tier's linears of one layer to int8, each by the rows that it reads.
 *
 * While the layer runs as it is in the source, the squares and products of each input's columns are summed. Linears that
 * read the same rows share a sum.
 */
#ifndef TD_QUANTIZE_LINEAR_ROUNDING_H
#define TD_QUANTIZE_LINEAR_ROUNDING_H

#include "quantize/quantizer.h"

/** How well the linears of a layer stand for the source's: td_round_error, means over them. */
typedef struct {
    double   nearest, error, worst;
    td_role  worst_role;
    uint32_t n; /* linears; 0: none was rounded by its inputs */
} td_linear_fit;

typedef struct {
    td_quantizer *q;
    uint32_t      layer;
    uint32_t      n_inputs;
    struct {
        size_t k, n_rows;
        float *h; /* [k, k] */
    } inputs[TD_ROLE_COUNT];
    uint32_t       input_of[TD_ROLE_COUNT]; /* 1 + index; 0: the role read nothing yet */
    int8_t        *codes[TD_ROLE_COUNT];    /* once rounded; rows in the order of the files */
    float         *scales[TD_ROLE_COUNT];
    td_tensor_view weights[TD_ROLE_COUNT]; /* I8 over these; data NULL: not rounded here */
    td_status      status;                 /* of the sums */
} td_linear_rounding;

/** Takes no memory yet. @param layer the one whose linears are rounded. */
void td_linear_rounding_open(td_linear_rounding *r, td_quantizer *q, uint32_t layer);
void td_linear_rounding_close(td_linear_rounding *r);

/** m rows x [m, k] that the linears of n roles read. Roles that stay as they are do not matter. Errors come out of
 * td_linears_round. */
void td_linear_rounding_add(td_linear_rounding *r, const td_role *roles, size_t n, const float *x, size_t m, size_t k);

/** Fills r->weights, on the pool. The sums are gone afterwards. */
TD_NODISCARD td_status td_linears_round(td_linear_rounding *r, td_linear_fit *fit);

/** Memory that a layer's linears take at most. */
typedef struct {
    uint64_t sums;  /* from the run that they are added in until td_linears_round is done */
    uint64_t work;  /* of td_linears_round */
    uint64_t codes; /* from there until td_linear_rounding_close */
} td_linear_bytes;

td_linear_bytes td_linears_round_bytes(const td_quantizer *q, uint32_t layer);

#endif
