/*
 * The size that a picture gets before it goes into the tower. Computed as the image processors of transformers 5.24 do, in
 * double precision, with f = patch * merge pixels of a block's side; rint rounds halves to even.
 *
 *   Qwen    H = rint(h / f) f, W alike.
 *           H W > max: b = sqrt(h w / max), H = max(f, floor(h / b / f) f), W alike.
 *           H W < min: b = sqrt(min / (h w)), H = ceil(h b / f) f, W alike.
 *   GLM-4V  h < f or w < f: s = max(f / h, f / w), h = int(h s), w = int(w s). Then as Qwen with 2 h w and 2 H W.
 *           In both a side of more than 200 times the other is refused.
 *   GLM-5   H = ceil(h / f) f, W alike, with area = f f.
 *           H W < min area: s = sqrt(min area / (h w)), H = ceil(ceil(h s) / f) f, W alike.
 *           H W > max area: the largest c in [1, h] of a search by halves whose c x max(1, floor(w c / h)), in whole blocks,
 *           fits. s = min(H / h, W / w), at most 1 unless h w < min area; content floor(h s) x floor(w s), padded to H x W.
 *   Kimi    s = min(1, sqrt(max / (max(1, floor(h / P)) max(1, floor(w / P)))), side_max P / h, side_max P / w);
 *           content min(max(1, int(h s)), side_max P), the width alike, padded to whole blocks.
 */
#ifndef TD_IMAGE_IMAGE_SIZE_H
#define TD_IMAGE_IMAGE_SIZE_H

#include "image/image_rule.h"

/* Pixels. The content is the picture resized; the canvas is that with rows and columns of zeros below and to the right. */
typedef struct {
    uint32_t content_height, content_width;
    uint32_t canvas_height, canvas_width; /* multiples of patch * merge */
} td_image_size;

/**
 * The size for a picture of height x width pixels.
 * @param rule valid (td_image_rule_is_valid).
 * @return TD_EINVAL for a side of 0; TD_ENOTSUP for a shape that the rule refuses; TD_ELIMIT for a canvas of more than
 *         TD_IMAGE_CANVAS_MAX. Thread-safe.
 */
TD_NODISCARD td_status td_image_size_of(const td_image_rule *rule, uint32_t height, uint32_t width, td_image_size *out,
                                        td_error *err);

#endif
