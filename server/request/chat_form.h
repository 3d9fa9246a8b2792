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
 *
 * Only the text that a template makes shows which of these it takes.
 */
#ifndef TD_SERVER_REQUEST_CHAT_FORM_H
#define TD_SERVER_REQUEST_CHAT_FORM_H

#include <jansson.h>

#include "tandem.h"

/** Bits of a form. Without them, arguments are given as an object and null as null. */
enum { TD_FORM_EMPTY_CONTENT = 1, TD_FORM_STRING_ARGUMENTS = 2 };

/** Borrows all that it points to. Read by many threads. */
typedef struct {
    const td_chat_template *tmpl; /* NULL: the model has none */
    const char             *bos, *eos;
    unsigned                form;           /* the first one that shows a tool call well */
    bool                    reads_thinking; /* it reads reasoning as `thinking` (gpt-oss), not `reasoning_content` */
    bool                    ignores_tools, ignores_effort;
    bool                    ignores_thinking; /* enable_thinking and thinking change nothing */
} td_chat_form;

/** Learn a template's form. Never fails: if the template renders none of the tries, the form is 0. */
void td_chat_form_learn(td_chat_form *out, const td_chat_template *tmpl, const char *bos, const char *eos);

/**
 * Render a request in the template's form; if that fails, in the other forms that make a difference for these messages.
 * @param request  what td_chat_template_render_value takes; its messages are left in the form that was rendered last.
 * @param text     malloc'd, terminated, *len bytes.
 * @return as td_chat_template_render_value, of the first form.
 */
TD_NODISCARD td_status td_chat_form_render(const td_chat_form *f, json_t *request, char **text, size_t *len, td_error *err);

#endif
