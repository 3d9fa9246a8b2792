/*
 * A model whose residual stream is rotated: x' = x R, with R orthonormal. It computes the same function (SliceGPT, arXiv
 * 2401.15024 section 3; QuaRot, arXiv 2404.00456 section 3.1). Its weights and activations lack the outliers that the one
 * scale of a row would have to span.
 *
 *   embedding                       E' = E R
 *   reads the stream behind a norm  W' = W diag(g) R, and the norm's gain g becomes 1
 *   writes into the stream          W' = R^T W, b' = b R
 *
 * An RMS norm commutes with R once its gain is gone, so this is exact but for the rounding of the new weights. R is a
 * Hadamard matrix with random signs (quant/hadamard.h), the same for every model of a hidden size. A tied head becomes a
 * matrix of its own, because the last norm's gain is in it.
 *
 * An MTP layer (n_layers; DeepSeek-V3, arXiv 2412.19437 section 2.2) is rotated like the others, with two additions:
 *
 *   logits = head norm_m(…)                     The shared head has taken over the last norm's gain, not norm_m's: so the layer has a head of
 *                                               its own, W diag(g_m) R. (Rotating rows by a matrix in front of the shared head would need
 *                                               g_m / g, which a zero in g forbids, and a head without a norm.)
 *   eh_proj [norm_e(E) | norm_h(norm_f(x))]     norm_h divides by the length of g_f * x, which no gain or rotation commutes with: so a
 *                                               linear U = diag(g_f) R takes norm_f(x R), whose gain is gone, back to g_f * norm(x), and norm_h
 *                                               and its half of eh_proj stay as they are. The elements of a row of U are one number with
 *                                               two signs: int8 holds them exactly.
 *
 * The costs are a head on the device, and one linear [hidden, hidden] in the layer. A folder whose checkpoint has U is a
 * rotated model's.
 */
#ifndef TD_MODEL_CHECKPOINT_ROTATION_H
#define TD_MODEL_CHECKPOINT_ROTATION_H

#include "model/arch/tensor_rules.h"
#include "quant/hadamard.h"

/** R for the model. @return TD_ENOTSUP, with a sentence, for a model that cannot be rotated; TD_ENOMEM. */
TD_NODISCARD td_status td_rotation_open(td_hadamard *h, const td_model_config *c, td_error *err);

/**
 * Rotate a weight, in place, as its family's table says (td_rotation_effect). U is made of the identity.
 * @param h     from td_rotation_open.
 * @param gain  [hidden] of effect->norm, or NULL where that is none.
 * @param w     [n, k] f32; of rank 1, n is 1.
 * Thread-safe.
 */
void td_rotation_apply(const td_hadamard *h, const td_rotation_effect *effect, const float *gain, float *w, size_t n,
                       size_t k);

#endif
