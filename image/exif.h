/* The orientation that a camera writes into a picture's EXIF data. */
#ifndef TD_IMAGE_EXIF_H
#define TD_IMAGE_EXIF_H

#include <stddef.h>
#include <stdint.h>

/**
 * The orientation in EXIF data: tag 0x0112 of the first directory (CIPA DC-008; TIFF 6.0, section 2).
 * @param exif n bytes of a TIFF header and what follows, with or without "Exif\0\0" before them.
 * @return 1 to 8; 1 where there is none, or where the data are damaged: a picture is not refused for what a camera wrote
 *         beside it.
 */
uint32_t td_exif_orientation(const uint8_t *exif, size_t n);

#endif
