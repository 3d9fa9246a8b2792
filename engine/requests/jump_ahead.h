/*
 * Jump-ahead: the tokens of a text that leaves no choice, so that no step is spent on choosing them.
 *
 * Where a grammar leaves one continuation, its bytes are encoded by themselves, and of these tokens the ones are taken that
 * end before its open end: the longest end of the bytes that some token of the vocabulary begins with and goes on. Such a
 * token may be how the text is written together with what follows, which is not known yet, so the model chooses from there
 * on. Bytes with which the text is complete have no open end. (Taking whole tokens, and leaving the last ones to the model,
 * is how llguidance forwards tokens; SGLang's jump-forward, arXiv 2312.07104 section 4, encodes the whole text anew
 * instead.)
 *
 * What comes out is a function of the grammar, the text so far and the vocabulary.
 */
#ifndef TD_ENGINE_REQUESTS_JUMP_AHEAD_H
#define TD_ENGINE_REQUESTS_JUMP_AHEAD_H

#include "text/grammar/grammar.h"

#define TD_JUMP_BYTES_MAX 1024 /* of a text that is looked at at once */

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
