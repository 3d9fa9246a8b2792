/* The text of many tokens, piece by piece. */
#ifndef TD_SERVER_ANSWER_TOKEN_TEXTS_H
#define TD_SERVER_ANSWER_TOKEN_TEXTS_H

#include "tandem.h"

/**
 * Decode some thousand of n ids, from *at on; *at moves behind them. They end with a whole character, so that the texts,
 * joined, are the text of all.
 * @param text, len as td_tokenizer_decode gives them, whose errors are returned.
 */
TD_NODISCARD td_status td_decode_some(const td_tokenizer *tok, const uint32_t *ids, size_t n, bool skip_special, size_t *at,
                                      char **text, size_t *len);

#endif
