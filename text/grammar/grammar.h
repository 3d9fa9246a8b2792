/* A compiled grammar with its masks for a vocabulary, and the place of one text in it. */
#ifndef TD_TEXT_GRAMMAR_GRAMMAR_H
#define TD_TEXT_GRAMMAR_GRAMMAR_H

#include "text/grammar/grammar_mask.h"

/**
 * The place of one request's text in a grammar. Holds references of the grammar and the vocabulary. One thread at a time;
 * several places of one grammar may be used by several threads.
 */
typedef struct td_grammar_place td_grammar_place;

/**
 * Open a place at the beginning of the text. A grammar's first place decides for which vocabulary its masks are kept, and
 * finds what masks can share, which takes up to some tens of milliseconds.
 * @return TD_ENOMEM; TD_EINVAL when the first place had another vocabulary.
 */
TD_NODISCARD td_status td_grammar_place_open(td_grammar *g, td_vocab_trie *trie, td_grammar_place **out, td_error *err);
void                   td_grammar_place_close(td_grammar_place *p); /* p may be NULL */

/**
 * The tokens that may come next: bit i % 32 of (*mask)[i / 32], of the trie's vocabulary, without special tokens. Owned by
 * p, valid until p is used again. @return TD_ENOMEM; TD_EINVAL when the text has too many readings to follow.
 */
TD_NODISCARD td_status td_grammar_place_mask(td_grammar_place *p, uint32_t **mask);

/** Nodes of the vocabulary's trie and stacks that the last mask has looked at. */
uint64_t td_grammar_place_work(const td_grammar_place *p);

/** Go on by the bytes of a token. @return TD_EINVAL when they cannot come next; p is then behind none or some of them. */
TD_NODISCARD td_status td_grammar_place_advance(td_grammar_place *p, const char *bytes, size_t n);

/** Back to the beginning of the text. @return TD_ENOMEM. */
TD_NODISCARD td_status td_grammar_place_rewind(td_grammar_place *p);

/**
 * The bytes that must follow, whatever the text will be: at most room of them, none where the text may end. p stays where
 * it is. @param ends set if nothing can follow these bytes. @return how many.
 */
size_t td_grammar_place_forced(td_grammar_place *p, char *bytes, size_t room, bool *ends);

bool td_grammar_place_may_end(const td_grammar_place *p);  /* the text is of the language */
bool td_grammar_place_must_end(const td_grammar_place *p); /* and nothing can follow it */

#endif
