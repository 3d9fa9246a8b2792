/* vision_config of a config.json as plain numbers: the encoder that makes rows of the residual stream from a picture. */
#ifndef TD_MODEL_ARCH_VISION_CONFIG_H
#define TD_MODEL_ARCH_VISION_CONFIG_H

#include <stdint.h>

#define TD_VISION_TAPS_MAX 8
#define TD_VISION_MERGE 2 /* a token is a square of so many patches each way */
#define TD_VISION_WHY_BYTES 200
#define TD_VISION_FRAMES 2 /* equal ones, of which a patch of a picture is made */

typedef struct {
    uint32_t depth; /* layers; 0: the model has no encoder that is served */
    char     why_not
        [TD_VISION_WHY_BYTES]; /* why one that config.json has is not; "": it has none, or the family's is not there */
    uint32_t token;            /* of a prompt, that stands for rows of pictures */
    uint32_t hidden, heads, inter;
    uint32_t patch;                    /* pixels of a patch each way */
    uint32_t side;                     /* of the table of positions */
    uint32_t n_taps;                   /* features that decoder layers 0 .. n_taps - 1 add */
    uint32_t taps[TD_VISION_TAPS_MAX]; /* [n_taps] the layers whose outputs they are made from */
} td_vision_config;

/** Values of a patch: channels, frames, and pixels, in this order. */
static inline uint32_t td_vision_patch_values(const td_vision_config *v) {
    return 3 * TD_VISION_FRAMES * v->patch * v->patch;
}

#endif
