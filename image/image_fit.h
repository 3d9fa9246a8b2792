/* A decoded picture made ready for a model: resized and padded. */
#ifndef TD_IMAGE_IMAGE_FIT_H
#define TD_IMAGE_IMAGE_FIT_H

#include "image/image_rule.h"
#include "image/picture.h"

/**
 * Resize a picture as the rule says, and pad it with zeros below and to the right.
 * @param p the canvas afterwards; after an error it may be anything that td_picture_free takes.
 * @return the errors of td_image_size_of; TD_ENOMEM. Thread-safe for different pictures.
 */
TD_NODISCARD td_status td_picture_fit(td_picture *p, const td_image_rule *rule, td_error *err);

#endif
