#include "model/rotation.h"

#include <assert.h>

#include "core/error.h"

#define SIGN_SEED 0x726f74617465 /* "rotate" */

td_status td_rotation_open(td_hadamard *h, const td_model_config *c, td_error *err) {
    if (c->n_mtp_layers > 1)
        return td_fail(err, TD_ENOTSUP, "a model with %u multi-token-prediction layers cannot be rotated", c->n_mtp_layers);
    return td_hadamard_open(h, c->hidden, SIGN_SEED, err);
}

td_role td_rotation_gain_role(td_role role) {
    switch (role) {
        case TD_ROLE_LM_HEAD:
        case TD_ROLE_MTP_UNTURN: return TD_ROLE_FINAL_NORM;
        case TD_ROLE_MTP_HEAD: return TD_ROLE_MTP_NORM;
        case TD_ROLE_MTP_EH_PROJ: return TD_ROLE_MTP_ENORM;
        case TD_ROLE_Q_A:
        case TD_ROLE_MLA_Q:
        case TD_ROLE_KV_A:
        case TD_ROLE_Q:
        case TD_ROLE_K:
        case TD_ROLE_V: return TD_ROLE_INPUT_NORM;
        case TD_ROLE_DENSE_GATE:
        case TD_ROLE_DENSE_UP:
        case TD_ROLE_ROUTER:
        case TD_ROLE_SHARED_GATE:
        case TD_ROLE_SHARED_UP:
        case TD_ROLE_SHARED_OUT_GATE:
        case TD_ROLE_EXPERT_GATE:
        case TD_ROLE_EXPERT_UP: return TD_ROLE_POST_NORM;
        default: return TD_ROLE_COUNT;
    }
}

static bool is_gain(td_role role) {
    return role == TD_ROLE_INPUT_NORM || role == TD_ROLE_POST_NORM || role == TD_ROLE_FINAL_NORM ||
           role == TD_ROLE_MTP_ENORM || role == TD_ROLE_MTP_NORM;
}

static bool writes_stream(td_role role) {
    return role == TD_ROLE_MLA_O || role == TD_ROLE_O || role == TD_ROLE_DENSE_DOWN || role == TD_ROLE_SHARED_DOWN ||
           role == TD_ROLE_EXPERT_DOWN;
}

bool td_rotation_touches(td_role role) {
    return is_gain(role) || writes_stream(role) || role == TD_ROLE_EMBED || role == TD_ROLE_MTP_EMBED ||
           role == TD_ROLE_MLA_O_BIAS || td_rotation_gain_role(role) != TD_ROLE_COUNT;
}

/* Columns 0 .. h->k - 1 of w [n, k], which read the stream behind a norm of that gain, or none. */
static void turn_columns(const td_hadamard *h, const float *gain, float *w, size_t n, size_t k) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; gain && j < h->k; j++) w[i * k + j] *= gain[j];
        td_hadamard_rows(h, w + i * k, 1);
    }
}

void td_rotation_apply(const td_hadamard *h, td_role role, const float *gain, float *w, size_t n, size_t k) {
    if (!td_rotation_touches(role)) return;
    if (is_gain(role)) {
        for (size_t i = 0; i < n * k; i++) w[i] = 1;
    } else if (writes_stream(role)) {
        assert(n == h->k);
        td_hadamard_columns(h, w, k);
    } else {
        bool joins = role == TD_ROLE_MTP_EH_PROJ; /* [embedding | hidden state], into the stream */
        assert(k == (joins ? 2 * h->k : h->k) && !gain == (td_rotation_gain_role(role) == TD_ROLE_COUNT));
        turn_columns(h, gain, w, n, k);
        if (joins) td_hadamard_columns(h, w, k);
    }
}
