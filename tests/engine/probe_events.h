/* A request of a test: collects its events. */
#ifndef TD_TESTS_PROBE_EVENTS_H
#define TD_TESTS_PROBE_EVENTS_H

#include <pthread.h>

#include "tandem.h"

/** An engine on the demo model with two threads in one subpool, which logs no steps. */
td_engine_options engine_options(uint64_t kv_tokens, uint32_t chunk, uint32_t max_running);
/** Fails the test when it does not open. */
td_engine *engine_open(const td_engine_options *o);

typedef struct {
    td_request_params params;
    uint32_t         *prompt;
    td_grammar       *grammar; /* released with the probe; NULL: the request has none, or the test keeps it */
    td_request       *request;

    pthread_mutex_t       lock; /* guards all below until done */
    pthread_cond_t        changed;
    uint32_t             *tokens;
    td_position_logprobs *logprobs; /* of tokens */
    td_position_logprobs *prompt_logprobs;
    size_t                n_tokens, n_logprobs, n_prompt_logprobs, n_events, prompt_logprobs_event;
    char                 *text;
    size_t                text_len;
    bool                  half_character; /* an event's text was not whole characters */
    td_finish             finish;
    int                   n_finish;
    uint32_t              end_number; /* order in which probes ended */
    char                  stop_reason[64];
    uint32_t              stop_token;
    td_error              error;
    td_event              last; /* numbers only */
} probe;

probe *probe_new(const uint32_t *prompt, size_t n_prompt, uint32_t max_tokens); /* greedy; change params before submitting */
void   probe_submit(td_engine *e, probe *p);                                    /* must be accepted */
void   probe_wait(probe *p);                                                    /* for its last event */
void   probe_wait_tokens(probe *p, size_t n);                                   /* for n tokens, or its last event */
void   probe_free(probe *p);

#endif
