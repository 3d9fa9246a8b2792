/* Fuzz target: eight bytes as two sizes, of 1 to 512 a side and not more than 16,384 pixels, and the rest as pixels, over and
   over. Resizing reads and writes nothing beyond, keeps a picture of one colour, and one that keeps its size. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "image/resize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(uint32_t height, uint32_t width, uint32_t to_height, uint32_t to_width, const uint8_t *pixels, size_t n) {
    td_picture   p = {malloc((size_t)height * width * 3), height, width};
    const size_t bytes = (size_t)height * width * 3;
    assert(p.rgb);
    for (size_t i = 0; i < bytes; i++) p.rgb[i] = pixels[i % n];
    td_status s = td_picture_resize(&p, to_height, to_width, NULL);
    assert(s == TD_OK && p.height == to_height && p.width == to_width);
    for (size_t i = 0; i < (size_t)to_height * to_width * 3; i++)
        if (n == 1) assert(p.rgb[i] == pixels[0]);
    if (height == to_height && width == to_width)
        for (size_t i = 0; i < bytes; i++) assert(p.rgb[i] == pixels[i % n]);
    td_picture_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint16_t side[4];
    if (size < sizeof side + 1) return 0;
    memcpy(side, data, sizeof side);
    for (int i = 0; i < 4; i++) side[i] = (uint16_t)(side[i] % 512 + 1);
    if (side[0] * side[1] > 16384 || side[2] * side[3] > 16384) return 0;
    check(side[0], side[1], side[2], side[3], data + sizeof side, size - sizeof side);
    check(side[0], side[1], side[2], side[3], data + sizeof side, 1);
    return 0;
}
