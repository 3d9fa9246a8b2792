/*
 * Picture files to RGB: JPEG, PNG and WebP. The type is what the first bytes say. The pixels are those of Pillow 13's
 * `Image.open(file)`, oriented by ImageOps.exif_transpose, laid over white where there is alpha, and converted to RGB.
 *
 *   - Colour profiles, gamma and XMP are not looked at, as Pillow does not.
 *   - Of 16 bits a channel the higher 8 are taken. Pillow does so for colours; grey it clips at 255, which is not copied.
 *   - Of an animation the first picture is taken.
 *   - A damaged or truncated file is refused, also where a library would fill up what is missing.
 *
 * Libraries: libjpeg-turbo, libpng, libwebp. Files come from strangers, so nothing here runs in the process that serves
 * (image/image_worker.h).
 */
#ifndef TD_IMAGE_DECODE_H
#define TD_IMAGE_DECODE_H

#include "image/picture.h"

/**
 * Decode a file.
 * @param bytes      n bytes, the caller's.
 * @param max_pixels the most that height * width may be; a larger picture is refused before anything is allocated for it.
 * @param out        the caller's (td_picture_free). Untouched unless TD_OK.
 * @return TD_ENOTSUP for another type of file, and then err names it where it is a known one; TD_EFORMAT for a damaged
 *         file; TD_ELIMIT; TD_ENOMEM. Thread-safe.
 */
TD_NODISCARD td_status td_picture_decode(const uint8_t *bytes, size_t n, uint64_t max_pixels, td_picture *out,
                                         td_error *err);

#endif
