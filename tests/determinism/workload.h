/*
 * A random workload: requests of mixed lengths, shared prefixes and sampling, all drawn from one seed, so that the same
 * requests can be made again for every way of running them.
 */
#ifndef TD_TESTS_WORKLOAD_H
#define TD_TESTS_WORKLOAD_H

#include "probe_events.h"

#define WORKLOAD_REQUESTS 32
#define WORKLOAD_PROMPT_MAX 300
#define WORKLOAD_TOKENS_MAX 300 /* to generate */

/*
 * Pages of KV for a run that must retract, whatever the seed: three are enough for every request alone. Requests 12-15 grow
 * from one page to three, and two of them run at a time. When the first has three, the second has two; or else it began so
 * late that the third has two when the second has three.
 */
#define WORKLOAD_PAGES_TIGHT 4

/** How the requests meet. */
typedef enum {
    RUN_TOGETHER,     /* all are queued at once */
    RUN_ONE_BY_ONE,   /* each when the one before has ended */
    RUN_STAGGERED,    /* each when an earlier one has produced some tokens: they join and leave at all times */
    RUN_AMONG_OTHERS, /* all at once into an engine that is busy with other requests, some of which are cancelled: pages are
                         used in disorder */
    RUN_AGAIN,        /* together, then once more on the same engine: the second answers count */
} run_kind;

typedef struct {
    uint64_t seed;
    uint32_t vocab;
    bool     priorities; /* random ones, the same for four requests in a row; else all equal */
} workload;

/** Request i of n <= WORKLOAD_REQUESTS. Everything but its priority depends on (seed, vocab, i) only. */
probe *workload_request(const workload *w, uint32_t i);

/** Whether no earlier request begins like request i: a cold cache has nothing of it. */
bool workload_is_first(uint32_t i);

/** Run requests 0 .. n - 1 and wait for all; probes[i] holds what came of request i. */
void workload_run(const workload *w, td_engine *e, run_kind kind, probe **probes, uint32_t n);
void workload_free(probe **probes, uint32_t n);

/** Tokens, text, finish and log-probabilities, bit for bit. Fails the test with the first difference. */
void workload_check_same(const probe *want, const probe *got, uint32_t i);

#endif
