/*
 * What a family says of its vision encoder, one line an operation: verbs over buffers with a row for each patch, or for each
 * token, which is four patches side by side. model/vision.c turns them into blocks of the device.
 */
#ifndef TD_MODEL_ARCH_VISION_ENCODER_H
#define TD_MODEL_ARCH_VISION_ENCODER_H

#include "model/arch/vision_config.h"
#include "npu/npu.h"

typedef struct td_vision_pass td_vision_pass; /* an encoder that is being described */

/** Buffers by what lies in them. */
typedef enum {
    TD_VISION_NONE,
    TD_VISION_PIXELS,    /* of each patch; gone once U is written */
    TD_VISION_POSITIONS, /* what the table has for the place of each; gone once A is written */
    TD_VISION_X,         /* the residual stream */
    TD_VISION_H,         /* normed */
    TD_VISION_A,         /* what a sublayer gives */
    TD_VISION_U,         /* within an MLP */
    TD_VISION_FEATURES,  /* and behind it those of each tap: rows of tokens, as wide as the language model's */
} td_vision_buffer;

/** Rows that an operation goes over. */
typedef enum { TD_VISION_PATCHES, TD_VISION_TOKENS } td_vision_rows;

/* Weights are called by a name, in which # stands for the number, with ".weight" and ".bias" behind it. */

/** out = activation(W in + b), W [n, k]. */
void td_vision_linear(td_vision_pass *p, td_vision_rows rows, const char *name, uint32_t number, td_vision_buffer in,
                      td_vision_buffer out, uint32_t n, uint32_t k, td_activation activation);
/** x += add; h = layer norm of x, over `width` values. */
void td_vision_norm(td_vision_pass *p, td_vision_rows rows, const char *name, uint32_t number, td_vision_buffer add,
                    uint32_t width);
/** a = attention of all patches to all, of h: name.qkv and name.proj. */
void td_vision_attend(td_vision_pass *p, const char *name, uint32_t number);
/** x += add */
void td_vision_add(td_vision_pass *p, td_vision_buffer add);

#endif
