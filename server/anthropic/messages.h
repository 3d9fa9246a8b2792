/*
 * Anthropic's Messages API: a body becomes the body of a chat, so that messages, tools and sampling fields have one reader;
 * the answer's parts become content blocks.
 */
#ifndef TD_SERVER_ANTHROPIC_MESSAGES_H
#define TD_SERVER_ANTHROPIC_MESSAGES_H

#include "server/answer/answer_parts.h"
#include "server/answer/answer_stream.h"

extern const td_api td_api_messages;

/** What the body says of the answer, and where a stream of it stands. */
typedef struct {
    bool omits_thinking; /* thinking.display is "omitted": blocks of thinking have no text */

    /* of the thread that writes the answer */
    bool                 whole; /* the answer is written whole, not as events */
    bool                 is_open;
    td_answer_event_kind open;            /* the kind of the block that is open: content or reasoning */
    td_jbuf              id, name, input; /* of the tool call that is held back until it is complete */
    int64_t              n_blocks;        /* blocks of a stream begun so far */
} td_messages_state;

/** Which fields a body must have. */
typedef enum { TD_MESSAGES_ANSWER, TD_MESSAGES_COUNT } td_messages_purpose;

/**
 * Make the body of a chat from the body of a message. Errors name the message's fields.
 * @param chat receives a new value, the caller's also on failure; NULL: none.
 */
TD_NODISCARD td_status td_messages_to_chat(json_t *body, td_messages_purpose purpose, td_messages_state *state,
                                           json_t **chat, td_api_request *r, td_api_error *err);

/** The part of td_messages_to_chat for "system" and "messages": adds "messages" and what follows from it to the chat. */
TD_NODISCARD td_status td_messages_convert_turns(const json_t *body, json_t *chat, td_api_request *r, td_api_error *err);

/** The part of td_messages_to_chat for "tools" and "tool_choice". @param forced set if the answer must be a call. */
TD_NODISCARD td_status td_messages_convert_tools(const json_t *body, json_t *chat, bool *forced, td_api_error *err);

#endif
