/*
 * From a rule's tree to a deterministic automaton over bytes and calls of other rules.
 *
 * Thompson's construction, then subset construction (Hopcroft, Motwani, Ullman: Introduction to Automata Theory, 2.3
 * and 2.5). A call is a symbol like a byte. TD_GR_BOTH and TD_GR_MINUS come from the product of two automata. Every
 * elementary step is counted against a budget, so that a tree whose automaton explodes is refused soon.
 */
#ifndef TD_TEXT_GRAMMAR_AUTOMATON_H
#define TD_TEXT_GRAMMAR_AUTOMATON_H

#include "text/grammar/grammar_ast.h"

#define TD_GR_STATES_MAX ((uint32_t)1 << 19) /* of all rules together */

typedef struct {
    uint8_t  lo, hi; /* a byte of lo..hi */
    uint32_t to;
} td_gr_edge;

typedef struct {
    uint32_t rule, to; /* what the rule matches leads to this state */
} td_gr_call;

typedef struct {
    uint32_t edge, n_edges; /* edges[edge ..], ascending and disjoint */
    uint32_t call, n_calls; /* calls[call ..], by rule, each once */
    bool     final;
} td_gr_state;

/** Starts in state 0. Zero-initialise; td_gr_automaton_free. */
typedef struct {
    td_gr_state *states;
    td_gr_edge  *edges;
    td_gr_call  *calls;
    size_t       n_states, n_edges, n_calls;
    size_t       states_room, edges_room, calls_room;
} td_gr_automaton;

/** What is shared by the automata of a grammar while they are made. */
typedef struct {
    td_gr_builder         *b;
    const td_gr_automaton *rules; /* [b->n_rules] those that are done */
    /** [b->n_rules] 1: the rule's automaton is done, and is put in wherever the rule is used, instead of a call. */
    const uint8_t *spliced;
    const uint8_t *recursive;   /* [b->n_rules] 1: the rule uses itself */
    unsigned       in_products; /* operands of BOTH and MINUS around the node at hand: they have no calls */
    unsigned       in_rules;    /* rules around it that were put in where such an operand uses them */
    uint64_t       steps;       /* steps of the budget used so far */
} td_gr_making;

/** The automaton of a tree; failures are in m->b->status. */
void td_gr_automaton_make(td_gr_making *m, uint32_t node, td_gr_automaton *out);
void td_gr_automaton_free(td_gr_automaton *a);

/** Append to an automaton; failures are reported to the builder. @return the state's number. */
uint32_t td_gr_add_state(td_gr_builder *b, td_gr_automaton *a, bool final);
void     td_gr_add_edge(td_gr_builder *b, td_gr_automaton *a, td_gr_edge edge); /* of the last state */
void     td_gr_add_call(td_gr_builder *b, td_gr_automaton *a, td_gr_call call); /* of the last state */

#endif
