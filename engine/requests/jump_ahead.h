/*
 * Jump-ahead: the tokens of a text that leaves no choice, so that no step is spent on choosing them.
 *
 * Where a grammar leaves one continuation, its bytes are encoded on their own. Not all of these tokens are taken. The text
 * that follows is not known yet, and a token of the vocabulary may begin with the last of these bytes and end in that text.
 * The longest end of the bytes with which some token begins and goes on is the open end. Tokens that end before it are
 * taken; the model chooses from there on. Bytes that complete the text have no open end. (llguidance forwards tokens in this
 * way, too. SGLang's jump-forward, arXiv 2312.07104 section 4, encodes the whole text anew instead.)
 *
 * What comes out is a function of the grammar, the text so far and the vocabulary.
 */
#ifndef TD_ENGINE_REQUESTS_JUMP_AHEAD_H
#define TD_ENGINE_REQUESTS_JUMP_AHEAD_H

#include "text/grammar/grammar.h"

#define TD_JUMP_BYTES_MAX 1024 /* of forced text that one call looks at */

typedef struct {
    const td_tokenizer  *tokenizer;
    const td_vocab_trie *trie;     /* of tokenizer */
    const uint32_t      *stop_ids; /* [n_stop_ids] are never taken: they end a request */
    size_t               n_stop_ids;
} td_jump_vocabulary;

/**
 * Take what is forced at p, and move p behind it.
 * @param tokens [room] receives them. @param n how many; 0 where there is a choice. @return TD_ENOMEM; TD_EINVAL when the
 * text has too many readings to follow.
 */
TD_NODISCARD td_status td_jump_ahead(td_grammar_place *p, const td_jump_vocabulary *v, uint32_t *tokens, uint32_t room,
                                     uint32_t *n);

#endif
