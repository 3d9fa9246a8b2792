/*
 * How a model wants its pictures: the settings of its image processor, from preprocessor_config.json, or from the member
 * image_processor of processor_config.json.
 */
#ifndef TD_IMAGE_IMAGE_RULE_H
#define TD_IMAGE_IMAGE_RULE_H

#include "tandem.h"

#define TD_IMAGE_PATCH_MAX 64            /* pixels of a patch's side */
#define TD_IMAGE_CANVAS_MAX (1ull << 26) /* pixels of a picture that is ready for the tower */

/* How the size of a picture is chosen, by the image processor whose rule it is (image/image_size.h has the rules). */
typedef enum {
    TD_IMAGE_QWEN,  /* Qwen2-VL to Qwen3.5: sides in whole blocks of patches, an area within two limits */
    TD_IMAGE_GLM4V, /* GLM-4.1V to 4.6V: the same, and small pictures are made larger first; a picture counts as two frames */
    TD_IMAGE_GLM5,  /* GLM-5.3: keeps the shape, and pads to whole blocks; limits in tokens */
    TD_IMAGE_KIMI,  /* Kimi-K2.5: never larger, keeps the shape, and pads; limits in patches */
} td_image_sizing;

/* A block is merge x merge patches, of which the tower makes one token. */
typedef struct {
    td_image_sizing sizing;
    uint32_t        patch;           /* P: pixels of a patch's side, 1..TD_IMAGE_PATCH_MAX */
    uint32_t        merge;           /* patches of a block's side: 2 */
    uint32_t        frames;          /* T: how often a patch holds its pixels: 2, Kimi 1 */
    uint64_t        min, max;        /* Qwen: pixels; GLM-4V: pixels of two frames; GLM-5: tokens; Kimi: 0, and patches */
    uint32_t        side_max;        /* Kimi: patches of a side; else 0 */
    float           mean[3], std[3]; /* of red, green and blue, where 1 is the byte 255 */
} td_image_rule;

/**
 * Read a rule. What the processor of transformers 5.24 takes for a missing member is taken here.
 * @param text len bytes of either file. Kimi's own file has its settings in media_proc_cfg.
 * @param out  untouched unless TD_OK.
 * @return TD_EFORMAT for text that is no JSON, or members of wrong types; TD_ENOTSUP for an image processor, or a setting of
 *         it, that is not there, named in err; TD_ENOMEM. Thread-safe.
 */
TD_NODISCARD td_status td_image_rule_parse(const char *text, size_t len, td_image_rule *out, td_error *err);

/** Whether a rule is one that td_image_rule_parse can give: ranges, and values that the sizes are computed from. */
bool td_image_rule_is_valid(const td_image_rule *rule);

#endif
