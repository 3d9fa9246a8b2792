/*
 * An HTTP API as a value: how a body becomes a request, and how its answer, the events of a stream and errors are written.
 *
 * What all APIs share knows none of them by name: the request (api_request.h), its way into the engine, and the engine's
 * news. News are what the engine produced since they were last taken (generation.h); a stream divides them into pieces
 * (answer_stream.c). To add an API, add a folder with a td_api in it, and a line to the table of routes (http_request.c).
 *
 * Threads: read runs on any thread, without libmicrohttpd; the writers on the thread that answers, one call at a time.
 */
#ifndef TD_SERVER_API_API_H
#define TD_SERVER_API_API_H

#include <jansson.h>

#include "server/api/api_error.h"
#include "server/api/json_writer.h"
#include "tandem.h"

#define TD_BODY_MAX ((size_t)16 << 20) /* bytes of one request body */

typedef struct td_api_request    td_api_request;
typedef struct td_generation     td_generation;
typedef struct td_choice         td_choice;
typedef struct td_news           td_news;
typedef struct td_response_store td_response_store;

/** What reading a body needs of the server. */
typedef struct {
    const td_engine_info *info;      /* sampling defaults, vocabulary, context */
    td_response_store    *responses; /* what /v1/responses may go on from */
} td_api_context;

typedef struct {
    uint64_t prompt, cached, completion;
    uint64_t reasoning; /* of the completion */
    bool     reasons;   /* reasoning is known */
} td_usage;

/** Where a choice (one of the answers to a prompt) stands, as far as its news were taken. */
typedef struct {
    td_finish   finish;
    uint32_t    n_calls;     /* complete tool calls */
    uint32_t    stop_token;  /* UINT32_MAX: none */
    const char *stop_reason; /* the choice's, which keeps it; NULL: none */
    td_usage    used;
} td_choice_state;

/** One piece of an answer as a stream sends it. Borrowed: valid during the call. */
typedef struct {
    td_answer_event_kind kind; /* content where nothing parses the text */
    uint32_t             call; /* number of the tool call, from 0, dropped ones counted */
    const char          *text; /* of CALL_BEGIN the tool's name; NULL for CALL_END, CALL_DROPPED and tokens without a text */
    size_t               len;
    const char          *id; /* of CALL_BEGIN: the call's id */
    size_t               id_len;
    const td_news       *with; /* tokens and log-probabilities that came with it; NULL: none that the request asks for */
    bool                 ends; /* the choice is finished and has no further piece or token */
} td_piece;

/** What is being written of an answer, and how far (answer_parts.h). */
typedef struct {
    td_choice      *choice;
    td_choice_state state;
    const td_news  *news;     /* the choice's: all of them, or those of a stream's event */
    unsigned        stage;    /* which of the answer's lists of parts */
    size_t          part;     /* which of the list's */
    size_t          list, at; /* of the part, for itself: 0 at its beginning */
    size_t          full;     /* b->len from which on a writer stops; SIZE_MAX: it writes all of its part */
} td_writing;

typedef struct td_api {
    const char        *id_prefix;  /* of ids that the client did not choose */
    const td_api_name *names;      /* ended by {0}; NULL: the common ones */
    bool               internal;   /* the server's own request: not listed, and /abort_request does not end it */
    bool               long_texts; /* a short body may stand for a long text: read it on a thread for those */

    /** Make a request, still without its prompt's ids, from a body: an object, taken over also on failure. Errors name the
     * API's own fields. */
    td_status (*read)(json_t *body, const td_api_context *with, td_api_request *r, td_api_error *err);
    /* Say in the words of this API's clients that prompt_tokens, with the length asked for, do not fit the context; NULL:
     * OpenAI's. Sets err->param and err->message. prompt_tokens are the fewest there can be, where nobody counted. */
    void (*say_too_long)(const td_api_request *r, size_t prompt_tokens, uint32_t context, td_api_error *err);
    void (*free_own)(void *own); /* r->own: what the API keeps with a request; NULL: nothing */

    td_error_writer write_error;
    /* Write on the whole answer of a finished generation. @return false: the next call goes on, and b was taken by then. */
    bool (*write_answer)(td_generation *g, td_jbuf *b);
    size_t (*own_bytes)(const void *own); /* of a whole answer that r->own has in place of news; NULL: none */

    /* The parts of a stream, in this order; NULL: there is no such part. b is NULL if write_answer passed NULL to
     * td_write_pieces. */
    void (*begin)(td_generation *g, td_jbuf *b); /* at once, before any news */
    bool gathers;                                /* a piece has all that has come, and not --stream-interval tokens */
    /* a choice's first news have come */
    void (*open)(td_choice *c, const td_choice_state *st, const td_news *n, td_jbuf *b);
    void (*piece)(td_choice *c, const td_choice_state *st, const td_piece *p, td_jbuf *b);
    void (*finish)(td_choice *c, const td_choice_state *st, td_jbuf *b); /* a choice is finished */
    void (*end)(td_generation *g, td_jbuf *b);                           /* all choices are finished */
    void (*fail)(td_generation *g, td_jbuf *b);                          /* in place of end: writes g->error */
} td_api;

#endif
