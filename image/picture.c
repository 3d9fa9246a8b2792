#include "image/picture.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

td_status td_picture_room(uint64_t height, uint64_t width, uint32_t channels, uint64_t max_pixels, uint8_t **out,
                          td_error *err) {
    if (!height || !width) return td_fail(err, TD_EFORMAT, "the picture has no pixels");
    if (height > max_pixels / width)
        return td_fail(err, TD_ELIMIT, "the picture has %" PRIu64 " x %" PRIu64 " pixels; at most %" PRIu64 " are taken",
                       width, height, max_pixels);
    *out = malloc(height * width * channels);
    return *out ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the picture's pixels");
}

void td_picture_over_white(uint8_t *pixels, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint8_t *from = pixels + 4 * i;
        uint8_t       *to = pixels + 3 * i; /* never ahead of what is still to be read */
        uint32_t       alpha = from[3];
        for (int c = 0; c < 3; c++) to[c] = (uint8_t)((from[c] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
}

/* An orientation as what is done with the stored picture: first the diagonal, then the sides. */
typedef struct {
    bool transposed;  /* rows become columns */
    bool right_left;  /* then columns are in the other order */
    bool upside_down; /* and rows */
} orientation;

static const orientation ORIENTATIONS[9] = {
    [2] = {false, true, false}, [3] = {false, true, true}, [4] = {false, false, true}, [5] = {true, false, false},
    [6] = {true, true, false},  [7] = {true, true, true},  [8] = {true, false, true},
};

td_status td_picture_orient(td_picture *p, uint32_t number, td_error *err) {
    if (number < 2 || number > 8) return TD_OK;
    const orientation t = ORIENTATIONS[number];
    const uint32_t    height = t.transposed ? p->width : p->height, width = t.transposed ? p->height : p->width;
    uint8_t          *oriented = malloc((size_t)height * width * 3);
    if (!oriented) return td_fail(err, TD_ENOMEM, "out of memory for the picture's pixels");
    for (size_t y = 0; y < height; y++) {
        for (size_t x = 0; x < width; x++) {
            size_t row = t.upside_down ? height - 1 - y : y, column = t.right_left ? width - 1 - x : x;
            size_t from = t.transposed ? column * p->width + row : row * p->width + column;
            memcpy(oriented + 3 * (y * width + x), p->rgb + 3 * from, 3);
        }
    }
    free(p->rgb);
    *p = (td_picture){oriented, height, width};
    return TD_OK;
}

void td_picture_free(td_picture *p) {
    if (!p) return;
    free(p->rgb);
    *p = (td_picture){0};
}
