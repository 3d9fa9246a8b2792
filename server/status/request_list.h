/*
 * Requests for people to look at: those that run, and the last ones that ended. Nothing is kept of what was asked or
 * answered but counts and times.
 */
#ifndef TD_SERVER_STATUS_REQUEST_LIST_H
#define TD_SERVER_STATUS_REQUEST_LIST_H

#include <microhttpd.h>

#include "server/request/api_request.h"

#define TD_REQUESTS_ENDED_MAX 32  /* kept */
#define TD_REQUESTS_SHOWN_MAX 256 /* running ones in an answer */

typedef struct {
    char        id[TD_API_NAME_MAX + 16];
    const char *finish; /* why it ended, as finish_reason has it: static; NULL: it runs */
    uint32_t    choices, prompt_tokens, cached_tokens, completion_tokens;
    double      age_s;  /* from its arrival until now, or until it ended */
    double      ttft_s; /* from its arrival to its first token; NAN: there is none yet */
    double      tpot_s; /* between two tokens of a choice, on average; NAN: none has two yet */
} td_request_row;

/** The last ones that ended. Zero-initialise; under the server's lock. */
typedef struct {
    td_request_row rows[TD_REQUESTS_ENDED_MAX];
    uint64_t       n; /* ever; row n - 1 is at (n - 1) % TD_REQUESTS_ENDED_MAX */
} td_ended_requests;

/** A generation that nobody refers to any more; left out when the engine never had it. */
void td_ended_requests_add(td_ended_requests *e, const td_generation *g);

#endif
