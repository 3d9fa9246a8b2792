/*
 * The tokens of a vocabulary as a trie over their bytes, for walks that try all tokens at once.
 *
 * Nodes are in depth-first order: the nodes up to a node's `skip` begin with its bytes. A walk is a loop that goes to the
 * next node, or to `skip` where the bytes do not match. A plain token has only characters that a JSON string has without
 * escape. A place that takes all plain tokens, as the inside of a JSON string does, has only the rest to try. Long tokens,
 * which are few, are in a trie of their own, so that what is found for short ones can be shared between states
 * (td_gr_find_alike). Special tokens and tokens without bytes are left out. The trie is immutable, and threads share it by
 * reference counts.
 */
#ifndef TD_TEXT_GRAMMAR_VOCAB_TRIE_H
#define TD_TEXT_GRAMMAR_VOCAB_TRIE_H

#include <stdatomic.h>

#include "text/grammar/vocab_shape.h"

#define TD_TRIE_SHORT_MAX 24 /* bytes of a short token */

typedef enum {
    TD_TRIE_SHORT, /* the short tokens */
    TD_TRIE_REST,  /* the short tokens that are not plain: with characters that JSON escapes, or parts of characters */
    TD_TRIE_LONG,  /* the long tokens */
    TD_TRIE_N,
} td_trie_part;

typedef struct {
    td_trie     parts[TD_TRIE_N];
    uint32_t   *plain; /* [TD_TRIE_WORDS(vocab)] bits of the plain tokens, all of which are short */
    uint32_t    depth; /* bytes of the longest token */
    uint32_t    vocab;
    atomic_uint refs; /* acq_rel: the last owner frees */
} td_vocab_trie;

/** Bytes of the longest end of text[n] with which some token begins and goes on; 0: there is none. */
size_t td_vocab_trie_open_end(const td_vocab_trie *t, const char *text, size_t n);

/**
 * The trie of a tokenizer's tokens with ids below vocab; tok is not kept. One reference. Takes about 0.1 s for 150,000
 * tokens.
 * @return TD_ENOMEM.
 */
TD_NODISCARD td_status td_vocab_trie_make(const td_tokenizer *tok, uint32_t vocab, td_vocab_trie **out);
td_vocab_trie         *td_vocab_trie_hold(td_vocab_trie *t);
void                   td_vocab_trie_release(td_vocab_trie *t);

#endif
