/*
 * Which tokens of a vocabulary may come next.
 *
 * DESIGN. The top of a stack is a state in some rule (grammar_matcher.h), and a token's bytes may run past the end of that
 * rule. So two things are found once for each state, for all requests of the grammar. The first is the tokens that are right
 * whatever is below on the stack: they end before or just where the rule ends. The second is the state's exits: the nodes of
 * the trie (vocab_trie.h: all tokens by their bytes) at which the rule may end with bytes to come. Only what is below the
 * exits depends on the stack, and is walked for the stack at hand (Dong et al. 2024, XGrammar, arXiv 2411.15100, split
 * tokens the same way). The mask is the union over the stacks.
 */
#ifndef TD_TEXT_GRAMMAR_MASK_H
#define TD_TEXT_GRAMMAR_MASK_H

#include <stdatomic.h>

#include "text/grammar/grammar_matcher.h"
#include "text/grammar/vocab_trie.h"

/* What is known of a state: its right tokens and its exits. */
typedef struct {
    uint32_t    *bits;           /* [words] tokens that are right; NULL: they are in ids */
    td_trie_part part;           /* the part of the trie that exits are in; TD_TRIE_REST: all plain tokens are right */
    uint32_t     n_ids, n_exits; /* ids and exits follow the structure */
    uint32_t     ids_and_exits[];
} td_gr_known;

/** For one grammar and one vocabulary; threads share it. */
typedef struct {
    const td_gr_pda        *pda;
    td_vocab_trie          *trie;     /* a reference */
    _Atomic(td_gr_known *) *of_short; /* [states] stored at the state's alike; release: published whole; acquire: read */
    _Atomic(td_gr_known *) *of_long;  /* [states] of the long tokens, stored at alike if alike_always, else at the state */
    atomic_bool            *plain;    /* [states] relaxed: all texts of plain characters are known to go on from it */
    atomic_size_t           bytes;    /* size of all that is known; beyond a limit nothing more is kept */
    atomic_bool             warm;     /* relaxed: td_gr_masks_warm was called; one thread does the work, nobody waits */
} td_gr_masks;

/** @return TD_ENOMEM; call td_gr_masks_close either way. */
TD_NODISCARD td_status td_gr_masks_open(td_gr_masks *k, const td_gr_pda *pda, td_vocab_trie *trie);
void                   td_gr_masks_close(td_gr_masks *k);

/* Nodes of the trie, or of its shapes. */
typedef struct {
    uint32_t *at;
    size_t    n, room;
} td_gr_list;

/** Working memory of one matcher's masks. Zero-initialise; td_gr_walk_close. */
typedef struct {
    uint32_t  *path; /* [depth of the trie + 1] sets */
    td_gr_list exits, later;
    uint32_t  *alone;   /* [words] the tokens of one walk */
    uint32_t  *claimed; /* [words] bits by place in the trie's order of tokens: walked later; 0 between walks */
} td_gr_walk;

TD_NODISCARD td_status td_gr_walk_open(td_gr_walk          *w,
                                       const td_vocab_trie *trie); /* @return TD_ENOMEM; call td_gr_walk_close either way */
void                   td_gr_walk_close(td_gr_walk *w);

/**
 * Find what is known of the states, those near the beginning first, until a limit of work or memory is reached: at most some
 * tens of milliseconds. Only the first call does. @return TD_ENOMEM.
 */
TD_NODISCARD td_status td_gr_masks_warm(td_gr_masks *k, td_gr_walk *w);

/**
 * mask[TD_TRIE_WORDS(vocab)]: bit i is set when the text may go on with the bytes of token i. Special tokens are not.
 * @return TD_ENOMEM; TD_EINVAL when a limit of the matcher was passed.
 */
TD_NODISCARD td_status td_gr_mask(td_gr_masks *k, td_gr_matcher *m, td_gr_walk *w, uint32_t *mask);

#endif
