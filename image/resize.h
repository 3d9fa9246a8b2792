/*
 * Resizing as Pillow's Image.resize(size, BICUBIC) does it, bit for bit (Pillow 12, src/libImaging/Resample.c).
 *
 * Along an axis of `in` pixels that gets `out`: scale = in / out, g = max(scale, 1), support = 2 g. Output x has its centre
 * at c = (x + 0.5) scale. It is a sum over the pixels from max(0, int(c - support + 0.5)) to min(in, int(c + support + 0.5)),
 * less one. Pixel i has the weight k((i - c + 0.5) / g), divided by the sum of all, where (Keys 1981, with a = -0.5)
 *   k(x) = (1.5 x - 2.5) x^2 + 1                for |x| < 1
 *          ((-0.5 x + 2.5) x - 4) x + 2         for |x| < 2
 * A weight is then rounded to a multiple of 2^-22, and the sum to a byte. Rows are resized first and kept as bytes, then
 * columns; an axis that keeps its length is left alone.
 *
 * So do Pillow to 12 and torchvision, which rounds weights more roughly, and models were trained with those. Pillow 12 takes
 * the columns first of pictures more than 100 times as high as wide, Pillow 13.0 of many that get less high: both give
 * other bytes, and are not followed.
 */
#ifndef TD_IMAGE_RESIZE_H
#define TD_IMAGE_RESIZE_H

#include "image/picture.h"

/**
 * Resize a picture.
 * @param height, width the new size, 1 or more. height x the larger width must fit into memory: the caller limits both.
 * @return TD_ENOMEM, and the picture is as it was. Thread-safe for different pictures.
 */
TD_NODISCARD td_status td_picture_resize(td_picture *p, uint32_t height, uint32_t width, td_error *err);

#endif
