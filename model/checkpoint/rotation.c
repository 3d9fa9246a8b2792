#include "model/checkpoint/rotation.h"

#include <assert.h>

#include "core/error.h"

#define SIGN_SEED 0x726f74617465 /* "rotate" */

td_status td_rotation_open(td_hadamard *h, const td_model_config *c, td_error *err) {
    if (c->n_mtp_layers > 1)
        return td_fail(err, TD_ENOTSUP, "a model with %u multi-token-prediction layers cannot be rotated", c->n_mtp_layers);
    if (c->expert_bias) return td_fail(err, TD_ENOTSUP, "a model whose experts have biases cannot be rotated");
    if (td_model_streams(c) > 1) return td_fail(err, TD_ENOTSUP, "a model with several residual streams cannot be rotated");
    return td_hadamard_open(h, c->hidden, SIGN_SEED, err);
}

/* Rotate columns 0 .. h->k - 1 of w [n, k], which read the stream behind a norm of that gain; NULL: without a norm. */
static void rotate_columns(const td_hadamard *h, const float *gain, float *w, size_t n, size_t k) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; gain && j < h->k; j++) w[i * k + j] *= gain[j];
        td_hadamard_rows(h, w + i * k, 1);
    }
}

void td_rotation_apply(const td_hadamard *h, const td_rotation_effect *effect, const float *gain, float *w, size_t n,
                       size_t k) {
    switch (effect->kind) {
        case TD_ROTATION_NONE: break;
        case TD_ROTATION_GAIN:
            for (size_t i = 0; i < n * k; i++) w[i] = 1;
            break;
        case TD_ROTATION_WRITES:
            assert(n == h->k);
            td_hadamard_columns(h, w, k);
            break;
        case TD_ROTATION_READS:
        case TD_ROTATION_UNDOES:
            assert(k == h->k && !gain == (effect->norm == TD_ROLE_COUNT));
            rotate_columns(h, gain, w, n, k);
            break;
        case TD_ROTATION_JOINS: /* columns: [embedding | hidden state]; rows: the stream */
            assert(k == 2 * h->k && n == h->k && gain);
            rotate_columns(h, gain, w, n, k);
            td_hadamard_columns(h, w, k);
            break;
    }
}
