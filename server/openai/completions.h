/* OpenAI's /v1/chat/completions and /v1/completions. Their bodies are the two forms of a request (api_request.h). */
#ifndef TD_SERVER_OPENAI_COMPLETIONS_H
#define TD_SERVER_OPENAI_COMPLETIONS_H

#include "server/answer/answer_parts.h"
#include "server/answer/answer_stream.h"

extern const td_api td_api_chat, td_api_completion;

/** Write {token, logprob, bytes, top_logprobs} for each of n positions, as entries of a list. @param lp [n][1 +
 * top_logprobs]. */
void td_write_token_logprobs(td_jbuf *b, const td_generation *g, const td_token_logprob *lp, size_t n);

/* Parts of an answer (td_part_fn): */

/** "logprobs" of a chat's tokens, or null. */
bool td_write_chat_logprobs(td_jbuf *b, td_writing *w);

/** "logprobs" of a completion: the prompt's positions (echo), then the generated ones. */
bool td_write_completion_logprobs(td_jbuf *b, td_writing *w);

/** "prompt_logprobs" of a finished choice's prompt; nothing where they were not asked for. */
bool td_write_prompt_logprobs(td_jbuf *b, td_writing *w);

/** "text" of a completion: the prompt if it is echoed, then what was generated. */
bool td_write_completion_text(td_jbuf *b, td_writing *w);

/** The members of a finished chat choice's "message" that have texts; completions_message.c. */
bool td_write_content(td_jbuf *b, td_writing *w);
bool td_write_reasoning(td_jbuf *b, td_writing *w);
bool td_write_calls(td_jbuf *b, td_writing *w);

/** The members of a "delta" for a piece that has text. */
void td_write_delta(td_jbuf *b, const td_piece *p);

#endif
