/*
 * A generation: one API request, its prompts x n engine requests, and what they produced and was not sent yet.
 *
 * Threads: the engine thread adds news (td_event_fn), text through the choice's parser; a libmicrohttpd thread takes them
 * and writes the answer; the watcher cancels. `lock` guards the choices' news and the suspended/aborted state.
 * `handles_lock` guards the engine's handles and is never taken in the engine's callback, so calling the engine with it held
 * cannot deadlock. References: one of the HTTP call, one of the watcher's slot, one of each engine request until its last
 * event.
 */
#ifndef TD_SERVER_GENERATION_GENERATION_H
#define TD_SERVER_GENERATION_GENERATION_H

#include "server/request/api_request.h"
#include "server/server_state.h"

#define TD_LP_NONE UINT32_MAX /* id of an entry that a position has not */

/** A part of an answer as its parser told it: bytes of the news' text. */
typedef struct {
    td_answer_event_kind kind;
    uint32_t             call;      /* number of the tool call */
    size_t               from, len; /* CALL_BEGIN: the tool's name, and after it the call's id */
    size_t               id_len;
    size_t               token, token_end; /* which of the news' tokens it began with; the one after those it ended with */
} td_delta;

/** News of one choice: what the engine sent since it was last taken. */
struct td_news {
    td_jbuf   text;
    td_delta *deltas; /* [n_deltas], in order; none where the text is as it is */
    size_t    n_deltas, deltas_room;
    uint32_t *tokens;
    size_t   *text_end; /* [n_tokens] where the text that came with each token ends; NULL where a parser divides it */
    size_t    n_tokens, tokens_room, text_end_room;
    td_token_logprob *lp; /* [n_lp][1 + top_logprobs]: the token itself, then the top ones, TD_LP_NONE padded */
    size_t            n_lp, lp_room;
    td_token_logprob *prompt_lp; /* the same, [n_prompt_lp] */
    size_t            n_prompt_lp, prompt_lp_room;
};

struct td_choice {
    td_generation *generation;
    uint32_t       index;

    /* guarded by the generation's lock */
    td_news           news;
    bool              started; /* an event has come */
    td_finish         finish;
    char             *stop_reason; /* owned; NULL: none */
    uint32_t          stop_token;  /* UINT32_MAX: none */
    uint32_t          prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    double            first_s, last_s; /* from arrival to its first token, and to its last one so far */
    td_answer_parser *parser;          /* owned; NULL: the text is as it is */
    uint32_t          n_calls;         /* complete tool calls */
    bool              ends_early;      /* a call was enough: the engine is to end it, and what still comes is not wanted */

    /* of the thread that writes the answer */
    bool opened, closed; /* its opening and its finish were written */
    size_t
        text_chars; /* characters of the tokens whose logprobs were written: text_offset of the next one, plus lead_chars */
    size_t lead_chars; /* characters of the decoded prompt (BOS) that echo's text does not begin with */
};

struct td_generation {
    atomic_uint    refs;
    td_server     *server;
    td_api_request req;
    char           id[TD_API_NAME_MAX + 16];
    int64_t        created_s;
    uint64_t       begin_ns;  /* of td_trace_now */
    bool           submitted; /* the engine has had it; of the call's thread */

    pthread_mutex_t        lock;
    struct MHD_Connection *connection; /* to resume; NULL once the call has ended */
    bool                   suspended;
    bool                   aborted;   /* the client has gone, or must go: end the connection */
    bool                   dropped;   /* nothing of what still comes is wanted */
    bool                   attend;    /* the watcher is to cancel what still runs */
    bool                   ends_some; /* the watcher is to end the choices that end early */
    bool                   ready;     /* there is something to write */
    bool                   has_error; /* error is the answer */
    td_api_error           error;
    size_t                 unsent;       /* bytes of news not taken yet */
    size_t                 n_unfinished; /* choices that still wait for their last event */
    td_choice             *choices;      /* [n_choices], prompt by prompt */
    size_t                 n_choices;

    pthread_mutex_t handles_lock;
    td_request    **handles; /* [n_choices]; NULL: not submitted or released */

    /* of the thread that writes the answer */
    uint32_t slot; /* the watcher's; UINT32_MAX: none */
    td_jbuf  out;  /* stream bytes not handed to libmicrohttpd yet */
    size_t   out_sent;
    bool     out_ended; /* the last byte of the stream is in out */
    size_t   out_next;  /* the choice that is written first, when there was no room for all */
};

/** A generation for a parsed and encoded request, which it takes over (also on failure). NULL: out of memory. One reference.
 */
td_generation *td_generation_new(td_server *s, td_api_request *req);
void           td_generation_unref(td_generation *g);

/** Submit every choice, or none; err is filled then. */
TD_NODISCARD td_status td_generation_submit(td_generation *g, td_api_error *err);

/** Have the engine end what runs; the client gets what there is, with finish_reason "abort". Any thread but the engine's.
 * @return whether the engine has had it: not before it is submitted, and not once it is cancelled. */
bool td_generation_end_early(td_generation *g);

/** Cancel what runs and release the handles. Any thread but the engine's. Nothing that comes later is kept. */
void td_generation_cancel(td_generation *g);

/** The watcher's part: cancel, or end some choices, if asked for. */
void td_generation_attend(td_generation *g);

/** The client has gone: cancel, and have the connection closed. Any thread but the engine's. */
void td_generation_abort(td_generation *g);

/** Cancel with an error as the answer (the server stops). Any thread but the engine's. */
void td_generation_fail(td_generation *g, int http, const char *code, const char *sentence);

/**
 * Suspend the connection unless there is something to write (for a stream: any news; else: all finished).
 * @return true when it was suspended.
 */
bool td_generation_wait(td_generation *g);

/** Move a choice's news to *out (freed with td_news_free) and copy its counters; under the lock. */
void td_choice_take(td_choice *c, td_news *out);
void td_news_free(td_news *n);

/** Where a choice stands; under the lock, or when all is finished. */
td_choice_state td_choice_get_state(const td_choice *c);

/** Tokens of all choices; a prompt counts once, however many it has. Under the lock, or when all is finished. */
td_usage td_generation_usage(const td_generation *g);

/** Bytes of one token; none where the tokenizer has none. answer_tokens.c. */
const char *td_token_bytes(const td_generation *g, uint32_t id, size_t *len, bool *special);

/** NaN, which no position before predicts, is null. */
void td_write_logprob(td_jbuf *b, float logprob);

/**
 * Hand a choice's news to its API's piece, with b: `step` tokens a piece at most, and with each the tokens that came since
 * the one before. Tokens that are left over are a piece without a text.
 */
void td_write_pieces(td_choice *c, const td_choice_state *at, const td_news *news, size_t step, td_jbuf *b);

/** Append a stream's events for all news to g->out, as its API writes them; sets out_ended with the last. answer_stream.c.
 */
void td_write_stream(td_generation *g);

#endif
