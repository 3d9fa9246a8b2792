/* Fuzz target: any bytes as a picture's file. Refused with a sentence, or a picture within the limit, every byte of which is
   set, and which can be made ready for a model. */
#include <assert.h>
#include <stdlib.h>

#include "image/decode.h"
#include "image/image_fit.h"

#define PIXELS_MAX (1 << 16)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const td_image_rule RULE = {
        .sizing = TD_IMAGE_GLM5, .patch = 2, .merge = 2, .frames = 2, .min = 2, .max = 40, .std = {1, 1, 1}};
    td_picture p = {0};
    td_error   err = {0};
    td_status  s = td_picture_decode(data, size, PIXELS_MAX, &p, &err);
    if (s != TD_OK) {
        assert(err.status == s && err.text[0] && !p.rgb);
        return 0;
    }
    assert(p.height && p.width && (uint64_t)p.height * p.width <= PIXELS_MAX);
    uint64_t sum = 0; /* each byte is looked at */
    for (size_t i = 0; i < (size_t)p.height * p.width * 3; i++) sum += p.rgb[i];
    assert(sum <= 255ull * 3 * PIXELS_MAX);
    s = td_picture_fit(&p, &RULE, &err);
    assert(s == TD_OK && p.height % 4 == 0 && p.width % 4 == 0 && p.height * p.width <= 40 * 16);
    td_picture_free(&p);
    return 0;
}
