/* The decoders of the types of files, which image/decode.c chooses from. */
#ifndef TD_IMAGE_DECODE_FORMATS_H
#define TD_IMAGE_DECODE_FORMATS_H

#include "image/picture.h"

/**
 * As td_picture_decode, for a file whose first bytes are the type's.
 * @param out         the picture as it is stored; the caller frees it whatever comes back.
 * @param orientation what the file's EXIF data say, 1 to 8.
 */
typedef td_status td_decoder(const uint8_t *bytes, size_t n, uint64_t max_pixels, td_picture *out, uint32_t *orientation,
                             td_error *err);

td_decoder td_decode_jpeg, td_decode_png, td_decode_webp;

#endif
