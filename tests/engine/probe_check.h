/* The answer that a plain loop over the fake model gives for a request of a test. */
#ifndef TD_TESTS_PROBE_CHECK_H
#define TD_TESTS_PROBE_CHECK_H

#include "probe_events.h"
#include "tests/forms.h"

/** What the request must have given: everything, or, when it was cancelled, a beginning of it. */
void probe_check(const probe *p, const td_tokenizer *tok, uint64_t kv_tokens, uint32_t context);

/** Wait for the last event, check, free. */
void probe_finish(td_engine *e, probe *p);

/** The counters of an engine all of whose requests have ended: nothing runs, waits or holds pages, and whoever has the last
 * event sees that. */
td_engine_stats idle_stats(td_engine *e);

/** All requests must have ended, and the fake model have nothing to complain about. */
void close_engine(td_engine *e);
AT_END_OF(end_engine, td_engine, close_engine)

#endif
