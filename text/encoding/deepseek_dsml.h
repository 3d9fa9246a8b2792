/*
 * What the encodings of DeepSeek-V3.2 and V4 share: a chat's messages, and tools, calls and forms as DSML writes them.
 * Sources: encoding_dsv32.py and encoding_dsv4.py of the published checkpoints.
 */
#ifndef TD_TEXT_ENCODING_DEEPSEEK_DSML_H
#define TD_TEXT_ENCODING_DEEPSEEK_DSML_H

#include "text/jinja/jinja_eval.h"

#define DSML_BEGIN "<｜begin▁of▁sentence｜>"
#define DSML_END "<｜end▁of▁sentence｜>"
#define DSML_USER "<｜User｜>"
#define DSML_ASSISTANT "<｜Assistant｜>"
#define DSML_THINK "<think>"
#define DSML_THOUGHT "</think>"

typedef enum { DSML_SYSTEM, DSML_DEVELOPER, DSML_FROM_USER, DSML_FROM_ASSISTANT, DSML_TOOL, DSML_REMINDER } dsml_role;

typedef struct {
    dsml_role      role;
    const jj_dict *dict;
    size_t         index; /* in the request's messages, for sentences */
} dsml_message;

typedef struct {
    jj_render     *r;
    jj_state      *s;
    const jj_list *tools; /* of the request; NULL: none */
    bool           opens; /* add_generation_prompt: the text ends where an answer begins */
    bool           thinks;
    bool           results_ask; /* a result of a tool is a user's message */
    size_t         n;
    dsml_message  *at; /* [n], n > 0 */
    size_t turn;       /* of `at`, where the turn begins: behind the last message of a user or developer; 0: there is none */
} dsml_chat;

/** Leave the rendering with a sentence of at most 255 bytes, which names the field. */
_Noreturn void td_dsml_refuse(jj_state *s, const char *fmt, ...) TD_PRINTF(2, 3);

/** Read the request's variables. Fails with a sentence for what is no list of messages with known roles.
 * @param c  has `results_ask`, and in `thinks` whether a chat thinks that says neither `thinking` nor `enable_thinking`. */
void td_dsml_read(dsml_chat *c, jj_render *r);

/** Whether a user or a developer wrote the message. */
bool td_dsml_asks(const dsml_chat *c, const dsml_message *m);

/** A variable or member; NULL where it is missing or none. */
const jj_value *td_dsml_member(jj_state *s, const jj_dict *d, const char *name);
/** A member that is true in Python's sense. */
bool td_dsml_is_set(jj_state *s, const jj_dict *d, const char *name);

void td_dsml_puts(dsml_chat *c, const char *text);
/** A member of a message that is a text, or nothing where it is missing. @return whether it had a byte. Fails for another type. */
bool td_dsml_put_text(dsml_chat *c, const dsml_message *m, const char *name);
/** The message's reasoning: `reasoning_content`, or `reasoning`. @return whether it had a byte. */
bool td_dsml_put_reasoning(dsml_chat *c, const dsml_message *m);
/** The functions of tools as JSON, a line each, between two texts; nothing for no tools.
 * @param of the message whose tools these are; NULL: the request's. */
void td_dsml_put_tools(dsml_chat *c, const dsml_message *of, const jj_list *tools, const char *before, const char *after);
/** The message's own tools; NULL: none. */
const jj_list *td_dsml_tools(dsml_chat *c, const dsml_message *m);
/** The message's calls; NULL: none. */
const jj_list *td_dsml_calls(dsml_chat *c, const dsml_message *m);
/** Its calls as a block of this name; nothing where it has none. */
void td_dsml_put_calls(dsml_chat *c, const dsml_message *m, const char *block);
/** The form that the message asks the answer to have: its response_format, if any. */
void td_dsml_put_response_format(dsml_chat *c, const dsml_message *m);

/** The encodings (chat_encoding.h). */
void td_deepseek_v32_render(jj_render *r);
void td_deepseek_v4_render(jj_render *r);

#endif
