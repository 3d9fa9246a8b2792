/* OpenAI's /v1/chat/completions and /v1/completions. Their bodies are the two forms of a request (api_request.h). */
#ifndef TD_SERVER_OPENAI_COMPLETIONS_H
#define TD_SERVER_OPENAI_COMPLETIONS_H

#include "server/answer/answer_stream.h"

extern const td_api td_api_chat, td_api_completion;

/** Write {token, logprob, bytes, top_logprobs} for each of n positions, as entries of a list. @param lp [n][1 +
 * top_logprobs]. */
void td_write_token_logprobs(td_jbuf *b, const td_generation *g, const td_token_logprob *lp, size_t n);

/** "logprobs" of a chat's tokens, or null. */
void td_write_chat_logprobs(td_jbuf *b, const td_generation *g, const td_news *news);

/** "logprobs" of a completion: the prompt's positions (echo), then the generated ones. */
void td_write_completion_logprobs(td_jbuf *b, td_choice *c, const td_news *news);

/** The member "prompt_logprobs" with the log-probabilities of a finished choice's prompt; nothing where they were not asked
 * for. */
void td_write_prompt_logprobs(td_jbuf *b, const td_choice *c);

/** Append the prompt's text as echo shows it, and set the choice's lead_chars. */
void td_write_echo(td_jbuf *text, td_choice *c);

/** The "message" of a finished chat choice; completions_message.c. */
void td_write_message(td_jbuf *b, const td_choice *c, const td_news *news);

/** The members of a "delta" for a piece that has text. */
void td_write_delta(td_jbuf *b, const td_piece *p);

#endif
