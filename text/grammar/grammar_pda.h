/*
 * A compiled grammar (a pushdown automaton): for each rule an automaton over bytes, with calls of other rules. Immutable, so
 * threads may share it.
 *
 * A rule that is not recursive is put in where it is used, so that what follows it is known without a stack. Large rules
 * that can end in one way only (a JSON string ends with its quote) stay calls. Their states, and what is known about them
 * for a vocabulary, are then shared by all places that use them.
 *
 * States that no text reaches, or from which no text can be completed, have been taken out.
 */
#ifndef TD_TEXT_GRAMMAR_PDA_H
#define TD_TEXT_GRAMMAR_PDA_H

#include "text/grammar/grammar_automaton.h"
#include "text/grammar/vocab_shape.h"

typedef struct {
    td_gr_automaton a;            /* of all rules; a call's `rule` is the state where that rule starts */
    uint32_t        start;        /* state of the root rule */
    uint8_t        *returns;      /* [states] whether the state's rule is called: something may follow its end */
    uint32_t       *alike;        /* [states] td_gr_find_alike */
    bool            alike_always; /* likewise */
    uint32_t        n_classes;
    uint8_t         byte_class[256]; /* bytes of a class are alike in every state; classes ascend with the bytes */
    uint8_t         kind_bytes[256];
    /** kind_bytes[kind_begin[k] .. kind_begin[k + 1]): one byte of each class with bytes of kind k. */
    uint16_t kind_begin[TD_BYTE_KINDS + 1];
} td_gr_pda;

/** Compile the builder's rules, from b->root on. Failures are in b->status; call td_gr_pda_free either way. */
void td_gr_pda_make(td_gr_builder *b, td_gr_pda *out);
void td_gr_pda_free(td_gr_pda *p);

/* ---- grammar_alike.c ---- */

/**
 * Fill p->alike and p->alike_always. Two states are alike if the same texts of up to TD_TRIE_SHORT_MAX bytes go on from
 * them, and end the rule where something may follow it. p->alike has for each state the first one that it is like.
 * p->alike_always: longer texts do not tell them apart, either. Moore's rounds of refinement (1956), one for each byte. In
 * a grammar with very many edges each state is like itself only. Needs p->returns; failures are in b->status.
 */
void td_gr_find_alike(td_gr_builder *b, td_gr_pda *p);

#endif
