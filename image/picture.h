/* A decoded picture: three bytes a pixel. */
#ifndef TD_IMAGE_PICTURE_H
#define TD_IMAGE_PICTURE_H

#include "tandem.h"

/** Zero-initialise before use. */
typedef struct {
    uint8_t *rgb; /* [height, width, 3], red first; malloc'd */
    uint32_t height, width;
} td_picture;

/**
 * Check a size that a file tells, and allocate for it.
 * @param channels   bytes a pixel, 1..4.
 * @param max_pixels the most that height * width may be.
 * @param out        malloc'd, [height, width, channels], not initialised; the caller's.
 * @return TD_EFORMAT for a side of 0; TD_ELIMIT, and then nothing was allocated; TD_ENOMEM.
 */
TD_NODISCARD td_status td_picture_room(uint64_t height, uint64_t width, uint32_t channels, uint64_t max_pixels,
                                       uint8_t **out, td_error *err);

/**
 * Lay pixels over white, in place: [n, 4] bytes of red, green, blue and alpha become [n, 3].
 *   c' = (c * a + 255 * (255 - a) + 127) / 255, rounded down
 * which is what Pillow's alpha_composite over white gives, for all 65,536 pairs.
 */
void td_picture_over_white(uint8_t *pixels, size_t n);

/**
 * Rotate and mirror a picture as its EXIF orientation says (CIPA DC-008, "Orientation": 1 to 8).
 * @param orientation 1, and every value beyond 8: it stays as it is.
 * @return TD_ENOMEM, and the picture is as it was.
 */
TD_NODISCARD td_status td_picture_orient(td_picture *p, uint32_t orientation, td_error *err);

/** Free the pixels. NULL and a zeroed picture are fine. */
void td_picture_free(td_picture *p);

#endif
