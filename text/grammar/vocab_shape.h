/*
 * A trie's tokens by shape: the kinds of their bytes. "the", "fox" and "two" have one shape, three small letters.
 *
 * DESIGN. Most places of a grammar treat the bytes of a kind (small letters, digits, the lead bytes of Chinese) alike, so a
 * walk need not tell them apart. A trie over kinds has some fifty times fewer nodes than the trie over bytes. Some places do
 * tell bytes of a kind apart. For these, a node over kinds lists its members: the nodes over bytes that have its shape. A
 * walk goes on from the members that are right. To get back to kinds soon, each node over bytes that many tokens begin with
 * has a tree of the shapes that may follow it.
 */
#ifndef TD_TEXT_GRAMMAR_VOCAB_SHAPE_H
#define TD_TEXT_GRAMMAR_VOCAB_SHAPE_H

#include "tandem.h"

/* Words of a set of tokens: whole cache lines. */
#define TD_TRIE_WORDS(vocab) (((size_t)(vocab) + 511) / 512 * 16)

/* The kinds: small letters, capitals, digits; each of the signs that grammars treat on its own; other controls, other ASCII.
   In UTF-8: lead bytes by what may follow them, those of Chinese apart; continuation bytes; bytes that never occur. */
#define TD_BYTE_KINDS 24

extern const uint8_t TD_BYTE_KIND[256];

typedef struct {
    uint32_t skip;  /* the first node behind its subtree */
    uint32_t group; /* its members by their last byte: groups[group ..) up to the next node's */
    uint32_t token; /* its tokens: ids[token ..) up to the next node's */
    uint32_t bits;  /* if it has many tokens: where their bits begin in bits; else TD_SHAPE_NO_BITS */
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
 * The trees over kinds, one after another, each in depth-first order: first the tree of whole tokens, then those of the
 * nodes over bytes that have one. A tree begins with its root, which has no kind.
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

/** Make t->shapes, and set `shape` in t's nodes. @return false: memory is short; call td_shapes_free either way. */
bool td_shapes_make(td_trie *t, uint32_t vocab);
void td_shapes_free(td_shapes *s);

#endif
