/*
 * Chat encodings: what turns a chat into a prompt for model generations whose authors publish code in place of a template.
 *
 * DESIGN. An encoding is a chat template whose body is a function in C. It sees the variables that a template would see
 * (docs/templates.md), works on the template's values in the rendering's arena, and fails as a template fails, with
 * td_jj_raise. So the limits of a rendering hold for it, and nothing outside of chat_template.c knows the difference.
 */
#ifndef TD_TEXT_ENCODING_CHAT_ENCODING_H
#define TD_TEXT_ENCODING_CHAT_ENCODING_H

#include "text/jinja/jinja_eval.h"

typedef struct {
    const char *model_type; /* of config.json */
    const char *words; /* a text with the markers of its calls and reasoning: the formats of answers are known by them */
    void (*render)(jj_render *r);
} td_chat_encoding;

/** @return NULL: models of this type have none. */
const td_chat_encoding *td_chat_encoding_find(const char *model_type);

#endif
