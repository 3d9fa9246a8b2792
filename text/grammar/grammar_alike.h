/*
 * States of a compiled grammar that short texts do not tell apart.
 *
 * A counted repetition has a state for each count; far from its end they take the same texts of a few bytes. What is found
 * for tokens that are no longer than that need be found once.
 */
#ifndef TD_TEXT_GRAMMAR_ALIKE_H
#define TD_TEXT_GRAMMAR_ALIKE_H

#include "text/grammar/grammar_pda.h"

/**
 * p->alike: for each state the first one from which the same texts of up to TD_TRIE_SHORT_MAX bytes go on, and end the rule
 * where something may follow it; p->alike_always: longer texts tell none of them apart, either. Moore's rounds of refinement
 * (1956), one for each byte. A grammar with very many edges is left as it is: each state is like itself only. Needs
 * p->returns; failures are in b->status.
 */
void td_gr_find_alike(td_gr_builder *b, td_gr_pda *p);

#endif
