/*
 * The news of a generation, as its API writes them: events of a stream, or the pieces of a whole answer. Used by the thread
 * that writes the answer.
 */
#ifndef TD_SERVER_ANSWER_ANSWER_STREAM_H
#define TD_SERVER_ANSWER_ANSWER_STREAM_H

#include "server/generation/generation.h"

/** Bytes of one token; none where the tokenizer has none. */
const char *td_token_bytes(const td_generation *g, uint32_t id, size_t *len, bool *special);

/** NaN, which no position before predicts, is null. */
void td_write_logprob(td_jbuf *b, float logprob);

/**
 * Hand a choice's news to its API's piece, with b: `step` tokens a piece at most, and with each the tokens that came since
 * the one before. Tokens that are left over are a piece without a text.
 */
void td_write_pieces(td_choice *c, const td_choice_state *at, const td_news *news, size_t step, td_jbuf *b);

/** Append a stream's events for all news to g->out, as its API writes them; sets out_ended with the last. */
void td_write_stream(td_generation *g);

#endif
