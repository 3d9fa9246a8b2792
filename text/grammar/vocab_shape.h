/*
 * A trie's tokens by the shapes of their bytes: "the", "fox" and "two" are all three small letters.
 *
 * DESIGN. Most places of a grammar treat the bytes of a kind (small letters, digits, the lead bytes of Chinese) alike, so a
 * walk need not tell them apart: a trie over kinds has some fifty times fewer nodes than the one over bytes. A node knows
 * the nodes of the trie over bytes that have its shape, its members, for places that do tell some bytes of the kind apart: a
 * walk goes on from those that are right. So that it soon finds kinds again, each node of the trie over bytes that many
 * tokens begin with has shapes of its own, of what may follow.
 */
#ifndef TD_TEXT_GRAMMAR_VOCAB_SHAPE_H
#define TD_TEXT_GRAMMAR_VOCAB_SHAPE_H

#include "tandem.h"

/* Words of a set of tokens: whole cache lines. */
#define TD_TRIE_WORDS(vocab) (((size_t)(vocab) + 511) / 512 * 16)

/* Small letters, capitals, digits; each of the signs that grammars tell from others; other controls, other ASCII; UTF-8:
   lead bytes by what may follow them, those of Chinese by what is one, continuations; what is in no UTF-8. */
#define TD_BYTE_KINDS 24

extern const uint8_t TD_BYTE_KIND[256];

typedef struct {
    uint32_t skip;  /* the first node behind its subtree */
    uint32_t group; /* its members by their bytes: groups[group ..) up to the next node's */
    uint32_t token; /* its tokens: ids[token ..) up to the next node's */
    uint32_t bits;  /* where they are many: their bits begin at bits[bits]; else TD_SHAPE_NO_BITS */
    uint16_t depth; /* bytes, from the beginning of the token */
    uint8_t  kind;
} td_shape_node;

#define TD_SHAPE_NO_BITS UINT32_MAX

/* Members with the same last byte. */
typedef struct {
    uint32_t member; /* members[member ..) up to the next group's */
    uint8_t  byte;
} td_shape_group;

/**
 * One tree after another, each in depth-first order: first that of whole tokens, then those of the nodes that have one. A
 * tree begins with its root, which has no kind.
 */
typedef struct {
    td_shape_node  *nodes;   /* [n_nodes + 1] */
    td_shape_group *groups;  /* [n_groups + 1] */
    uint32_t       *members; /* nodes of the trie */
    uint32_t       *ids;
    uint32_t       *bits; /* TD_TRIE_WORDS(vocab) each */
    uint32_t        n_nodes, n_groups;
} td_shapes;

typedef struct {
    uint32_t skip;  /* the first node behind its subtree */
    uint32_t token; /* its tokens: tokens[token ..) up to the next node's */
    uint32_t shape; /* the tree of shapes that may follow it, or TD_TRIE_NO_SHAPE */
    uint16_t depth; /* bytes, from 1 */
    uint8_t  byte;
} td_trie_node;

#define TD_TRIE_NO_SHAPE UINT32_MAX

#define TD_TRIE_DEPTH_MAX 4096 /* tokens with more bytes are left out */

/** Nodes over bytes, in depth-first order, and their shapes. */
typedef struct {
    td_trie_node *nodes;  /* [n_nodes + 1]; the last one only ends the one before */
    uint32_t     *tokens; /* [n_tokens] ids, in order of their bytes */
    uint32_t      n_nodes, n_tokens;
    td_shapes     shapes;
} td_trie;

/** The shapes of t->nodes, to t->shapes; also says in t's nodes where theirs are. @return false: memory is short.
 * td_shapes_free either way. */
bool td_shapes_make(td_trie *t, uint32_t vocab);
void td_shapes_free(td_shapes *s);

#endif
