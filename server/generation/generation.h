/*
 * A generation: one API request, its engine requests, and their news: what they produced and was not sent yet. It has n
 * choices (answers) for each prompt; a choice is one engine request.
 *
 * Threads: the engine thread adds news (td_event_fn),
 * text through the choice's parser; a libmicrohttpd thread takes them and writes the answer; the watcher (watcher.h)
 * cancels. `lock` guards the choices' news and the suspended/aborted state. `handles_lock` guards the engine's handles and
 * is never taken in the engine's callback, so calling the engine with it held cannot deadlock. References: one of the HTTP
 * call, or of the job that has taken its place (openai/responses_background.h), one of the watcher's slot, one of each engine
 * request until its last event.
 */
#ifndef TD_SERVER_GENERATION_GENERATION_H
#define TD_SERVER_GENERATION_GENERATION_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/request/api_request.h"

#define TD_LP_NONE UINT32_MAX /* id of the entries that fill up a position with fewer top tokens */

#define TD_GENERATION_ID_MAX (TD_API_NAME_MAX + 16)
#define TD_REQUESTS_ENDED_MAX 32 /* ended generations that are kept for /v1/requests */

/** A generation in /v1/requests: counts and times, and nothing of what was asked or answered. */
typedef struct {
    char        id[TD_GENERATION_ID_MAX];
    const char *finish; /* why it ended, as finish_reason has it: static; NULL: it runs */
    uint32_t    choices, prompt_tokens, cached_tokens, completion_tokens;
    double      age_s;  /* from its arrival until now, or until it ended */
    double      ttft_s; /* from its arrival to its first token; NAN: there is none yet */
    double      tpot_s; /* between two tokens of a choice, on average; NAN: none has two yet */
} td_request_row;

/** The last generations that ended. */
typedef struct {
    td_request_row rows[TD_REQUESTS_ENDED_MAX];
    uint64_t       n; /* ever; row n - 1 is at (n - 1) % TD_REQUESTS_ENDED_MAX */
} td_ended_requests;

/** What the generations of a server share. */
typedef struct {
    td_engine           *engine;
    const td_tokenizer  *tokenizer; /* NULL: there is none */
    td_answer_budget    *answers;
    const char          *model_name;      /* for answers to requests that name no model */
    uint32_t             stream_interval; /* tokens per event of a stream */
    int                  wake_fd;         /* an eventfd: adding 1 has the watcher call td_generation_attend */
    uint64_t             id_seed;
    atomic_uint_fast64_t next_id; /* of generations and of calls of tools; relaxed: a counter */

    pthread_mutex_t   lock;   /* guards what follows */
    pthread_cond_t    fell;   /* n_live fell */
    uint32_t          n_live; /* generations not freed yet */
    td_ended_requests ended;
} td_generations;

/** Who is told that there is something to write, where no connection waits for it. */
typedef struct {
    void (*wake)(
        void *user); /* called under the generation's lock, also by the engine thread; must not block. NULL: nobody */
    void *user;
} td_generation_waiter;

/** A part of an answer that its parser found: bytes of the news' text. */
typedef struct {
    td_answer_event_kind kind;
    uint32_t             call;      /* number of the tool call */
    size_t               from, len; /* CALL_BEGIN: the tool's name, and after it the call's id */
    size_t               id_len;
    size_t               token, token_end; /* it came with the news' tokens token .. token_end - 1 */
} td_delta;

/** News of one choice: what the engine sent since it was last taken. */
struct td_news {
    td_jbuf   text;
    td_delta *deltas; /* [n_deltas], in order; none where no parser divides the text */
    size_t    n_deltas, deltas_room;
    uint32_t *tokens;
    size_t   *text_end; /* [n_tokens] where the text that came with each token ends; NULL where a parser divides it */
    size_t    n_tokens, tokens_room, text_end_room;
    td_token_logprob *lp; /* [n_lp][1 + top_logprobs]: the token itself, then the top ones, TD_LP_NONE padded */
    size_t            n_lp, lp_room;
    td_token_logprob *prompt_lp; /* the same, [n_prompt_lp][1 + td_api_prompt_top] */
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
    td_answer_parser *parser;          /* owned; NULL: the text is not divided */
    uint32_t          n_calls;         /* complete tool calls */
    bool ends_early; /* one tool call was wanted and is there: the engine is to end it, and what comes is dropped */

    /* of the thread that writes the answer */
    bool   opened, closed; /* its opening and its finish were written */
    bool   finish_written; /* its finish went with its last piece */
    bool   prompt_written; /* the ids of its prompt went with a chunk */
    size_t text_chars;     /* characters of the tokens whose logprobs were written: the next text_offset plus lead_chars */
    size_t echo;           /* of the prompt, what is echoed: bytes of a text, or ids */
    size_t lead_chars;     /* characters of the decoded prompt (BOS) that echo's text does not begin with */
};

struct td_generation {
    atomic_uint     refs;
    td_generations *all;
    td_api_request  req;
    char            id[TD_GENERATION_ID_MAX];
    int64_t         created_s;
    uint64_t        begin_ns;  /* of td_trace_now */
    bool            submitted; /* the engine was given it; of the call's thread */

    pthread_mutex_t        lock;
    struct MHD_Connection *connection; /* to resume; NULL once the call has ended, and where there never was one */
    td_generation_waiter   waiter;     /* in place of a connection */
    bool                   suspended;  /* the connection is, or the waiter waits */
    bool                   aborted;    /* the client has gone, or must go: end the connection */
    bool                   dropped;    /* what still comes is not kept */
    bool                   attend;     /* the watcher is to cancel what still runs */
    bool                   ends_some;  /* the watcher is to end the choices whose ends_early is set */
    bool                   ready;      /* there is something to write */
    bool                   has_error;  /* error is the answer */
    td_api_error           error;
    size_t                 unsent;       /* bytes of news not taken yet */
    td_answer_hold         unsent_hold;  /* of a stream's unsent bytes */
    size_t                 n_unfinished; /* choices that still wait for their last event */
    td_choice             *choices;      /* [n_choices], prompt by prompt */
    size_t                 n_choices;

    pthread_mutex_t handles_lock;
    td_request    **handles; /* [n_choices]; an entry is NULL before it is submitted and when it is released */

    /* of the thread that writes the answer */
    uint32_t       slot; /* the watcher's slot; UINT32_MAX: none */
    td_jbuf        out;  /* bytes of the answer not handed to libmicrohttpd yet */
    size_t         out_sent;
    td_answer_hold out_hold;  /* of a stream: what was written into out; else what the answer is made of */
    bool           out_ended; /* the last byte of the answer is in out */
    size_t         out_next;  /* of a stream: the choice to write first, as not all may fit */
    td_writing     writing;   /* of a whole answer */
};

void td_generations_init(td_generations *all, uint32_t stream_interval);
/** No generation may be left. */
void td_generations_free(td_generations *all);

/** Wait until no generation is left, seconds at most. @return whether none is. */
bool td_generations_await_end(td_generations *all, double seconds);

/** A copy of the list of generations that ended. */
td_ended_requests td_generations_ended(td_generations *all);

/**
 * A generation, with one reference, for a parsed and encoded request, which is taken over also on failure. NULL: out of
 * memory.
 */
td_generation *td_generation_new(td_generations *all, td_api_request *req);
void           td_generation_ref(td_generation *g);
void           td_generation_unref(td_generation *g);

/** Submit every choice, or none; err is filled then. */
TD_NODISCARD td_status td_generation_submit(td_generation *g, td_api_error *err);

/** Have the engine end what runs; the client gets what there is, with finish_reason "abort". Any thread but the engine's.
 * @return false if it is not submitted yet, or already cancelled. */
bool td_generation_end_early(td_generation *g);

/** Cancel what runs and release the handles. Any thread but the engine's. Nothing that comes later is kept. */
void td_generation_cancel(td_generation *g);

/** End it now, without waiting for the engine: what is there is the answer, and choices that still run end as aborted. Nothing
 * that comes later is kept. Any thread but the engine's, which is the one that writes the answer. */
void td_generation_cut(td_generation *g);

/** Nobody writes the answer any more, or waits for it: cancel what runs. Any thread but the engine's. */
void td_generation_leave(td_generation *g);

/** Called by the watcher: cancel, or end some choices, where `attend` or `ends_some` asks for it. */
void td_generation_attend(td_generation *g);

/** The client has gone: cancel, and have the connection closed. Any thread but the engine's. */
void td_generation_abort(td_generation *g);

/** Cancel with an error as the answer, as when the server stops. Any thread but the engine's. */
void td_generation_fail(td_generation *g, int http, const char *code, const char *sentence);

/**
 * Suspend the connection, or have the waiter told, unless there is something to write now (for a stream: any news; else: all
 * finished).
 * @return true: there is nothing yet.
 */
bool td_generation_wait(td_generation *g);

/** Move a choice's news to *out (freed with td_news_free) and copy its counters; under the lock. */
void td_choice_take(td_choice *c, td_news *out);
void td_news_free(td_news *n);

/** The prompt that a choice answers. */
static inline const td_api_prompt *td_choice_prompt(const td_choice *c) {
    return &c->generation->req.prompts[c->index / c->generation->req.n];
}

/** Bytes of the prompts and news that a whole answer is made of. When all is finished. */
size_t td_generation_bytes(const td_generation *g);

/** Where a choice stands; under the lock, or when all is finished. */
td_choice_state td_choice_get_state(const td_choice *c);

/** Tokens of all choices; a prompt counts once, however many choices it has. Under the lock, or when all is finished. */
td_usage td_generation_usage(const td_generation *g);

/** The generation as it is now. To be called under its lock, or with the last reference to it. */
td_request_row td_generation_row(const td_generation *g);

/** Wait on a condition, which signals that *count or *hurry changed, until *count is 0, *hurry (hurry may be NULL) is set,
 * or the seconds have passed. Under the lock, which guards both. @return whether *count is 0. */
bool td_await_zero(pthread_cond_t *changed, pthread_mutex_t *lock, const uint32_t *count, const bool *hurry, double seconds);

#endif
