/*
 * Writes what the engine reported of a generation (its news, generation.h) as its API wants it: events of a stream, or the
 * pieces of a whole answer. Used by the thread that writes the answer.
 */
#ifndef TD_SERVER_ANSWER_ANSWER_STREAM_H
#define TD_SERVER_ANSWER_ANSWER_STREAM_H

#include "server/generation/generation.h"

/** The bytes of a token; *len is 0 if the tokenizer does not have it. */
const char *td_token_bytes(const td_generation *g, uint32_t id, size_t *len, bool *special);

/** Write a log-probability. NaN becomes null: no position before predicts that token. */
void td_write_logprob(td_jbuf *b, float logprob);

/**
 * Divide a choice's news into pieces of at most `step` tokens and hand each, with b, to its API's `piece`. A piece brings
 * the tokens that came since the one before. Tokens that are left over are a piece without a text.
 */
void td_write_pieces(td_choice *c, const td_choice_state *at, const td_news *news, size_t step, td_jbuf *b);

/** Append a stream's events for all news to g->out, as its API writes them; sets out_ended with the last. */
void td_write_stream(td_generation *g);

#endif
