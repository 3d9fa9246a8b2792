/*
 * A request: what was asked, how far it is, and who holds it.
 *
 * DESIGN. The submitter and the engine hold one reference each. What was asked is fixed when td_request_create returns; how
 * far it is belongs to the engine thread; only `cancelled` is written by others. A request keeps the waker alive, so that
 * td_request_cancel works whenever the submitter calls it, even after the engine is gone.
 *
 * tokens[0 .. n_prompt) is the prompt, tokens[n_prompt .. n_tokens) what was generated; the KV of tokens[0 .. n_computed) is
 * in `pages`. Each step computes some of the tokens that are left; when none is left, the last one's logits give the next
 * token, unless the answer is complete with what is there. A retracted request loses its pages and goes on with n_computed
 * == 0: nothing else about it changes.
 *
 * Tokens come one by one from the sampler, and several at a time where the answer's form leaves no choice (jump-ahead). The
 * client is told of the latter, tokens[n_told .. n_tokens), when what belongs to them is computed: the prompt's KV, and with
 * log-probabilities the logits of the row before each. `form` stands behind the last token.
 *
 * keys[0 .. n_tokens) are what the prefix cache knows the tokens by: the tokens themselves, but an image's key for each of the
 * image's tokens (engine/images/image_cache.h).
 *
 * With drafting, `draft` is what the MTP (multi-token prediction) layer takes for the next token. A step computes it as one
 * row more, and tokens[n_tokens] holds it meanwhile. It becomes a token of the request if the row in front of it gives the
 * same.
 */
#ifndef TD_ENGINE_REQUESTS_REQUEST_H
#define TD_ENGINE_REQUESTS_REQUEST_H

#include <stdatomic.h>

#include "engine/images/request_images.h"
#include "engine/kv/request_state.h"
#include "engine/kv/request_windows.h"
#include "engine/requests/answer_form.h"
#include "engine/requests/stream_text.h"
#include "engine/requests/waker.h"
#include "text/tokenizer/detok.h"

#define TD_STOP_IDS_MAX 256
#define TD_BIAS_MAX 4096
#define TD_NO_DRAFT UINT32_MAX

struct td_request {
    atomic_uint refs;      /* acq_rel: the last owner sees what the others wrote */
    atomic_bool cancelled; /* relaxed: the waker's lock orders it with the engine's next look */
    td_waker   *waker;     /* a reference */
    td_request *next;      /* in the inbox, then in the waiting list */

    /* what was asked */
    uint64_t    number;                           /* order of arrival, from 1 */
    uint32_t    n_prompt, max_tokens, min_tokens; /* max_tokens: what the context and the KV capacity allow, at most */
    td_sampling sampling;                         /* bias arrays are copies */
    uint64_t    seed;
    uint32_t   *stop_ids; /* [n_stop_ids] EOS included unless ignored */
    uint32_t    n_stop_ids;
    bool        include_stop, logprobs, prompt_logprobs;
    uint32_t    n_top_logprobs;
    int32_t     priority;
    td_event_fn on_event;
    void       *user;

    /* how far it is: engine thread */
    uint32_t             *tokens; /* [n_prompt + max_tokens] */
    uint32_t             *keys;   /* [n_prompt + max_tokens]; without images the same array as tokens */
    td_request_images     images;
    uint32_t              n_tokens, n_computed;
    uint32_t              n_told;               /* tokens that the client has, the prompt's among them */
    uint32_t              draft;                /* for tokens[n_tokens]; or TD_NO_DRAFT */
    uint32_t              n_layer;              /* the MTP layer's KV of tokens[0 .. n_layer) is there: a draft needs all */
    uint32_t             *pages;                /* [capacity for all tokens] */
    uint32_t              n_pages, n_published; /* of the pages, the first n_published are in the prefix cache */
    td_request_state      state;                /* of recurrent layers */
    td_request_windows    windows;              /* of layers with a window; table: as pages */
    bool                  publishes;            /* false: the cache was flushed since the request was admitted */
    bool                  looked_up;            /* the page store was asked for its pages since it ran last */
    uint32_t              n_cached;             /* prompt tokens that the prefix cache spared when it was first admitted */
    td_detok             *detok;                /* NULL without a tokenizer */
    td_stream_text        text;
    td_answer_form       *form;     /* NULL: any text will do */
    bool                  jumps;    /* tokens that leave no choice are taken at once */
    bool                  complete; /* tokens taken this way end the answer */
    td_position_logprobs *jumped;   /* with logprobs: [n_jumped] of tokens[jumped_from ..), the ones taken last */
    uint32_t              jumped_from, n_jumped;
    td_position_logprobs *prompt_positions; /* [n_prompt] from admission until they are sent */
    bool                  prompt_positions_sent, started;
    bool                  retracted;                             /* ran before and waits again */
    bool                  failed_before;                         /* its last step failed, and it began again */
    double                submit_s, first_token_s, last_token_s; /* monotonic clock */
};

/** What a request must fit. */
typedef struct {
    const td_tokenizer *tokenizer; /* NULL: events carry no text */
    uint32_t            vocab, context_length;
    uint32_t            image_token; /* that stands for images; UINT32_MAX: there are none */
    uint64_t            kv_tokens;   /* capacity of the KV cache */
    const uint32_t     *eos_ids;
    uint32_t            n_eos;
} td_request_limits;

/** Check and copy a request; one reference, the submitter's. @param waker held. number and seed are given when it is
 * queued. */
TD_NODISCARD td_status td_request_create(const td_request_params *p, const td_request_limits *limits, td_waker *waker,
                                         td_request **out, td_error *err);

void td_request_hold(td_request *r); /* one reference more */

static inline uint32_t td_request_generated(const td_request *r) {
    return r->n_tokens - r->n_prompt;
}

/** Put a token behind the others. */
static inline void td_request_append(td_request *r, uint32_t token) {
    r->tokens[r->n_tokens] = r->keys[r->n_tokens] = token;
    r->n_tokens++;
}

/** Whether the prompt is computed and the answer begun: what is left to compute are generated tokens, mostly one. */
static inline bool td_request_generates(const td_request *r) {
    return r->n_tokens > r->n_prompt && r->n_computed >= r->n_prompt;
}

/** The first row whose logits are still needed: those before it may come from the prefix cache. */
static inline uint32_t td_request_first_needed(const td_request *r) {
    return (r->logprobs ? r->n_told : r->n_tokens) - 1;
}

/**
 * Take the tokens that the form leaves no choice of, as many as fit; `complete` is set when they end the answer.
 * @return TD_ENOMEM; TD_EINVAL when the text has too many readings in the grammar.
 */
TD_NODISCARD td_status td_request_jump(td_request *r);

/** Whether id ends the request. */
bool td_request_stops_at(const td_request *r, uint32_t id);

/** Order of service: higher priority first, then earlier arrival. */
static inline bool td_request_before(const td_request *a, const td_request *b) {
    return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
}

#endif
