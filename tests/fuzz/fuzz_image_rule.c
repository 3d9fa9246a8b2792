/* Fuzz target: eight bytes as the sides of a picture, and any text as preprocessor_config.json. Refused with a sentence, or a
   rule whose sizes keep what resizing and patches build on. */
#include <assert.h>
#include <string.h>

#include "image/image_size.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_size(const td_image_rule *rule, uint32_t height, uint32_t width) {
    const uint32_t block = rule->patch * rule->merge;
    td_image_size  z;
    td_error       err = {0};
    td_status      s = td_image_size_of(rule, height, width, &z, &err);
    if (s != TD_OK) {
        assert(err.status == s && err.text[0]);
        return;
    }
    assert(z.content_height >= 1 && z.content_width >= 1);
    assert(z.content_height <= z.canvas_height && z.content_width <= z.canvas_width);
    assert(z.canvas_height % block == 0 && z.canvas_width % block == 0);
    assert((uint64_t)z.canvas_height * z.canvas_width <= TD_IMAGE_CANVAS_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint32_t      sides[2];
    td_image_rule rule;
    td_error      err = {0};
    if (size < sizeof sides) return 0;
    memcpy(sides, data, sizeof sides);
    td_status s = td_image_rule_parse((const char *)data + sizeof sides, size - sizeof sides, &rule, &err);
    if (s != TD_OK) {
        assert(err.status == s && err.text[0]);
        return 0;
    }
    assert(td_image_rule_is_valid(&rule));
    check_size(&rule, sides[0], sides[1]);
    for (uint32_t shift = 4; shift < 32; shift += 7) check_size(&rule, (sides[0] >> shift) + 1, (sides[1] >> shift) + 1);
    return 0;
}
