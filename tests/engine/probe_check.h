/* What a plain loop over the fake model gives for a request of a test. */
#ifndef TD_TESTS_PROBE_CHECK_H
#define TD_TESTS_PROBE_CHECK_H

#include "probe_events.h"

/** What the request must have given: everything, or, when it was cancelled, a beginning of it. */
void probe_check(const probe *p, const td_tokenizer *tok, uint64_t kv_tokens, uint32_t context);

#endif
