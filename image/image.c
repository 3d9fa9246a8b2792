#include "image/image.h"

#include <stdlib.h>

void td_image_free(td_image *image) {
    if (!image) return;
    free(image->rgb);
    *image = (td_image){0};
}
