/*
 * OpenAI's /v1/responses. An answer is a list of items (reasoning, message, calls of tools), and so is a conversation. The
 * server can keep conversations (responses_store.h).
 *
 * A body becomes the JSON of a chat (responses_read.c, responses_input.c). The pieces of an answer become items, which emit
 * their events as they grow (responses_items.c); the object around them is written by responses_answer.c.
 */
#ifndef TD_SERVER_OPENAI_RESPONSES_H
#define TD_SERVER_OPENAI_RESPONSES_H

#include "server/answer/answer_parts.h"
#include "server/answer/answer_stream.h"
#include "server/openai/responses_store.h"

#define TD_RESPONSE_ID_PREFIX "resp_"

extern const td_api td_api_response;

typedef enum {
    TD_ITEM_REASONING,
    TD_ITEM_MESSAGE,
    TD_ITEM_CALL,        /* of a function */
    TD_ITEM_CUSTOM_CALL, /* of a custom tool, whose input is a text */
} td_item_kind;

/** Log-probabilities of tokens, one behind the other. */
typedef struct {
    td_token_logprob *at; /* [room][1 + top_logprobs]; owned */
    size_t            n, room, bytes;
} td_positions;

/** Where a response is in its life. */
typedef struct {
    const char         *status;
    const char         *incomplete;  /* why it is incomplete; NULL: it is not */
    const td_api_error *error;       /* NULL: none */
    bool                ended;       /* the answer has ended, so there is a usage */
    int64_t             completed_s; /* when it was completed; 0: it is not */
} td_response_stage;

/** An item of an answer. */
typedef struct {
    td_item_kind kind;
    const char  *status;        /* "in_progress", "completed", "incomplete" */
    td_jbuf      text;          /* of a call: its arguments, or its input */
    td_jbuf      name, call_id; /* of a call */
    td_positions logprobs;      /* of a message */
} td_response_item;

/** What this API keeps with a request, and then with its answer. */
typedef struct {
    td_response_store  *store;
    td_stored_response *previous;   /* a reference; NULL: none */
    bool                stores;     /* the response is to be kept */
    bool                background; /* it goes on without a connection (responses_background.h) */
    json_t             *input;      /* the request's items with the members that clients may leave out; owned */
    json_t             *custom;     /* the names of the request's custom tools, a list; owned */
    char               *echo;       /* [echo_len] members of the response that repeat the request, with commas; owned */
    size_t              echo_len;
    td_response_stage   stage; /* that is written */
    td_response_item   *items; /* [n_items] of the answer so far */
    size_t              n_items, items_room;
    td_positions        pending;  /* of tokens whose text has not come yet */
    bool                failed;   /* memory was short: items are missing */
    uint64_t            sequence; /* number of the stream's next event */
} td_response;

/* ---- reading ---- */

TD_NODISCARD td_status td_response_read(json_t *body, const td_api_context *with, td_api_request *r, td_api_error *err);
void                   td_response_free(void *own);

/** The "input" of a body as a list of whole items, a new reference; items of kinds that are not supported are refused. */
TD_NODISCARD td_status td_response_read_input(const json_t *input, td_response_store *store, json_t **items,
                                              td_api_error *err);

/** Turns items into the messages of a chat. Zero-initialise all but messages, a list. */
typedef struct {
    json_t *messages; /* new messages go to its end */
    json_t *turn;     /* the assistant's message that is put together; NULL: none */
    json_t *names;    /* {call_id: name of the function}; owned */
} td_item_reader;

/** Append whole items. @param param what errors call the list. */
TD_NODISCARD td_status td_item_reader_add(td_item_reader *to, const json_t *items, const char *param, td_api_error *err);
/** The last item was added; frees what the reader owns. */
TD_NODISCARD td_status td_item_reader_end(td_item_reader *to, td_api_error *err);

/** Append to a list the items of the conversation up to this response, in order: those of requests and those of answers. */
TD_NODISCARD td_status td_response_history(const td_stored_response *last, json_t *items, td_api_error *err);

/* ---- answers ---- */

/** Add a piece of the answer to its items; of a stream (b not NULL) the events are appended to b. */
void td_response_add_piece(td_choice *c, const td_piece *p, td_jbuf *b);

/** Close the items when the answer has ended; as incomplete if it was cut. */
void td_response_close_items(td_generation *g, bool cut, td_jbuf *b);

/** Bytes that a whole answer is made of: its items, and what it repeats of the request. */
size_t td_response_bytes(const void *own);

/** Write on the items in their list, which is open, and close it (td_part_fn). */
bool td_response_write_items(td_jbuf *b, td_writing *w);

/** The answer has ended, whole: make its items of the news, and keep the response if it is to be kept. */
void td_response_end(td_generation *g);

/** Append the response as it is now: queued, or in progress. By whoever may write the answer. */
void td_response_write_now(td_generation *g, td_jbuf *b);

/** Keep a response that is no stream, and has failed, with its error. */
void td_response_keep_failed(td_generation *g);

typedef struct td_kept_answer td_kept_answer;
void td_kept_answer_free(td_kept_answer *a); /* a call's answer with a kept response; NULL: nothing */

/** Begin and end an event of a stream; members may be added in between. */
void td_response_begin_event(td_response *own, const char *type, td_jbuf *b);
void td_response_end_event(td_jbuf *b);

/** The id of an item: its kind's prefix, the response's digits, and its number. */
void        td_response_item_id(const char *response_id, const char *prefix, const char *number, char *id, size_t size);
const char *td_response_item_prefix(const char *type);

#endif
