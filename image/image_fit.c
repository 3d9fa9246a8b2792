#include "image/image_fit.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "image/image_size.h"
#include "image/resize.h"

static td_status pad(td_picture *p, uint32_t height, uint32_t width, td_error *err) {
    if (height == p->height && width == p->width) return TD_OK;
    uint8_t *canvas = calloc((size_t)height * width, 3);
    if (!canvas) return td_fail(err, TD_ENOMEM, "out of memory for the picture's pixels");
    for (size_t y = 0; y < p->height; y++) memcpy(canvas + y * width * 3, p->rgb + y * p->width * 3, (size_t)p->width * 3);
    free(p->rgb);
    *p = (td_picture){canvas, height, width};
    return TD_OK;
}

td_status td_picture_fit(td_picture *p, const td_image_rule *rule, td_error *err) {
    td_image_size size;
    TD_TRY(td_image_size_of(rule, p->height, p->width, &size, err));
    TD_TRY(td_picture_resize(p, size.content_height, size.content_width, err));
    return pad(p, size.canvas_height, size.canvas_width, err);
}
