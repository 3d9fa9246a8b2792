/* The events of a response in the background, as the answer to a request. */
#ifndef TD_SERVER_OPENAI_RESPONSES_EVENTS_H
#define TD_SERVER_OPENAI_RESPONSES_EVENTS_H

#include "server/answer/answer.h"
#include "server/openai/responses_background.h"

/** Answer with a stream of a job's events, those that will come too. @param after the number of the event behind which it
 * begins; NULL: from the beginning. */
enum MHD_Result td_answer_events(td_call *c, td_background_job *job, const uint64_t *after);

#endif
