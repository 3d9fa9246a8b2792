/*
 * SGLang's native /generate. A body becomes the body of a completion. The answer is one object, or a list of them; each
 * event of a stream has all that its choice has said so far.
 */
#ifndef TD_SERVER_SGLANG_GENERATE_H
#define TD_SERVER_SGLANG_GENERATE_H

#include "server/answer/answer_parts.h"
#include "server/answer/answer_stream.h"

extern const td_api td_api_generate;

/** What a choice of a stream has said so far: text, and arrays as td_news has them. */
typedef struct {
    td_jbuf text;
    td_jbuf tokens;        /* uint32_t */
    td_jbuf lp, prompt_lp; /* td_token_logprob */
} td_generate_told;

/** What the body says of the answer, and where a stream of it stands. */
typedef struct {
    bool     is_list;       /* the answer is a list: several prompts, a list of one, or several choices */
    bool     logprob_texts; /* tokens have their text beside their id */
    size_t   logprob_start; /* the prompt's position that logprobs begin with; SIZE_MAX: none of the prompt's */
    uint64_t begun_ns;      /* monotonic */

    /* of the thread that writes the answer */
    td_generate_told *told; /* [n_told] one for each choice; NULL until the stream begins */
    size_t            n_told;
} td_generate_state;

/** Read a body into the request and *state. */
TD_NODISCARD td_status td_generate_read(json_t *body, const td_api_context *with, td_generate_state *state,
                                        td_api_request *r, td_api_error *err);

#endif
