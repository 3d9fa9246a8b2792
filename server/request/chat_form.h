/*
 * The form in which a chat template takes messages, learnt by rendering a small conversation when the server starts.
 *
 * A client sends the arguments of a tool call as a string of JSON, and null as the content beside calls. Templates differ in
 * what they take:
 *
 *   arguments   most want an object: they write its members, or all of it by `tojson`, which would quote a string twice.
 *               Some want the string, which they add to their text
 *   content     some ask whether it is none; others would print "None", or fail at `in`
 *   reasoning   clients send `reasoning_content`; gpt-oss's template reads `thinking`
 *   images      a message's content is then a list of {"type": "text", "text"} and {"type": "image"}. Some write the
 *               marker of an image's place for the latter; others know no lists
 *
 * Only the text that a template makes shows which of these it takes.
 */
#ifndef TD_SERVER_REQUEST_CHAT_FORM_H
#define TD_SERVER_REQUEST_CHAT_FORM_H

#include <jansson.h>

#include "server/request/hidden_text.h"
#include "tandem.h"

/** Texts of special tokens, borrowed. Zero-initialise. */
typedef struct {
    const char *bos, *eos; /* NULL: none */
    const char *image;     /* [image_len] of the token that stands for an image; NULL: the model takes none */
    size_t      image_len;
} td_chat_markers;

/** Bits of a form. Without them, arguments are given as an object and null as null. */
enum { TD_FORM_EMPTY_CONTENT = 1, TD_FORM_STRING_ARGUMENTS = 2 };

/** Borrows all that it points to. Read by many threads. */
typedef struct {
    const td_chat_template *tmpl; /* NULL: the model has none */
    td_chat_markers         markers;
    unsigned                form;           /* the first one that shows a tool call well */
    bool                    reads_thinking; /* it reads reasoning as `thinking` (gpt-oss), not `reasoning_content` */
    bool                    ignores_tools, ignores_effort;
    bool                    ignores_thinking; /* enable_thinking and thinking change nothing */
    bool                    shows_images;     /* by the marker, once for each */
} td_chat_form;

/** A prompt as text. */
typedef struct {
    char  *text; /* [len], malloc'd, terminated */
    size_t len;
    size_t continued;                 /* that many bytes at its end are the beginning of the answer */
    char hidden[TD_HIDDEN_BYTES + 1]; /* stands for each marker of an image that is no place of one; empty: there is none */
} td_chat_text;

/** Learn a template's form. Never fails: if the template renders none of the tries, the form is 0. */
void td_chat_form_learn(td_chat_form *out, const td_chat_template *tmpl, const td_chat_markers *markers);

/**
 * Render a request in the template's form; if that fails, in the other forms that make a difference for these messages.
 * @param request   what td_chat_template_render_value takes; its messages are left in the form that was rendered last, and
 *                  where the model takes images without the marker of an image's place.
 * @param continued a string that the text ends with, behind what the template writes; NULL: none.
 * @return as td_chat_template_render_value, of the first form. TD_EINVAL also if the marker cannot be hidden.
 */
TD_NODISCARD td_status td_chat_form_render(const td_chat_form *f, json_t *request, json_t *continued, td_chat_text *out,
                                           td_error *err);

#endif
