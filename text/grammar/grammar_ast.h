/*
 * A grammar as it was read: rules, each a tree over bytes. JSON Schema, regexes and EBNF are all turned into this.
 *
 * DESIGN. Nodes live in one pool and are named by index; a node may be used in several places. Every constructor returns a
 * node, always. After the first failure (too many nodes, too deep, out of memory) the builder's status says so, and each
 * further call returns node 0, which matches nothing. Callers check the status once, at the end. Depth is checked when a
 * node is made, so that code that walks trees may recurse.
 */
#ifndef TD_TEXT_GRAMMAR_AST_H
#define TD_TEXT_GRAMMAR_AST_H

#include "tandem.h"

#define TD_GR_NODES_MAX ((uint32_t)1 << 20)
#define TD_GR_RULES_MAX ((uint32_t)1 << 16)
#define TD_GR_DEPTH_MAX 400

typedef enum {
    TD_GR_NEVER,  /* no text */
    TD_GR_EMPTY,  /* the empty text */
    TD_GR_BYTE,   /* one byte of lo..hi */
    TD_GR_BYTES,  /* a fixed text: bytes[first .. first + n) */
    TD_GR_SEQ,    /* children one after another */
    TD_GR_ALT,    /* one of the children */
    TD_GR_REPEAT, /* the child, min to max times */
    TD_GR_LIST,   /* children: separator, then pairs (item, TD_GR_ITEM_* flags): some of the items, in order, separated */
    TD_GR_GRAPH,  /* children: triples (node, from, to); paths from state 0 to state 1, of `min` states */
    TD_GR_RULE,   /* what rule `first` matches */
    TD_GR_BOTH,   /* texts that both children match; neither uses a rule that uses itself */
    TD_GR_MINUS,  /* texts that the first child matches and the second does not; likewise */
} td_gr_kind;

/** Whether the i-th link of a parent is a node. */
static inline bool td_gr_is_child(td_gr_kind kind, size_t i) {
    return kind == TD_GR_LIST    ? i % 2 == 1 || i == 0
           : kind == TD_GR_GRAPH ? i % 3 == 0
                                 : kind >= TD_GR_SEQ && kind != TD_GR_RULE;
}

#define TD_GR_ITEM_OPTIONAL 1u /* flag of a list's item: it may be left out */
#define TD_GR_ITEM_MANY 2u     /* flag of the last item: it may come any number of times, also none */
#define TD_GR_NO_MAX UINT32_MAX

typedef struct {
    uint8_t  kind, lo, hi;
    uint16_t depth;
    uint32_t first, n; /* children: links[first .. first + n), or as the kind says */
    uint32_t min, max;
} td_gr_node;

typedef struct {
    char    *name;
    uint32_t body; /* UINT32_MAX: not defined yet */
} td_gr_rule;

/** td_gr_open zeroes it. */
typedef struct {
    td_gr_node *nodes;
    uint32_t   *links;
    char       *bytes;
    td_gr_rule *rules;
    size_t      n_nodes, n_links, n_bytes, n_rules;
    size_t      nodes_room, links_room, bytes_room, rules_room;
    uint32_t   *name_index; /* rule number + 1 by hash of the name, open addressing */
    size_t      name_slots;
    uint32_t    root; /* a rule */
    td_status   status;
    td_error   *err;      /* filled with the first failure; may be NULL */
    char       *warnings; /* what td_gr_warn was told, once each, with ", " between; owned; NULL: nothing */
} td_gr_builder;

/** A list of nodes that is put together before its parent is made. Zero-initialise; td_gr_items_free. */
typedef struct {
    uint32_t *at;
    size_t    n, room;
} td_gr_items;

void td_gr_open(td_gr_builder *b, td_error *err);
void td_gr_close(td_gr_builder *b);

/** Record a failure (the first one counts); returns node 0. */
uint32_t td_gr_fail(td_gr_builder *b, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);

/** Note that a part of the source has no effect. */
void td_gr_warn(td_gr_builder *b, const char *fmt, ...) TD_PRINTF(2, 3);

uint32_t td_gr_empty(td_gr_builder *b);
uint32_t td_gr_never(td_gr_builder *b);
uint32_t td_gr_byte(td_gr_builder *b, uint8_t lo, uint8_t hi);
uint32_t td_gr_text(td_gr_builder *b, const char *text, size_t len);
uint32_t td_gr_repeat(td_gr_builder *b, uint32_t child, uint32_t min, uint32_t max);
uint32_t td_gr_optional(td_gr_builder *b, uint32_t child);
uint32_t td_gr_use(td_gr_builder *b, uint32_t rule);
uint32_t td_gr_pair(td_gr_builder *b, td_gr_kind kind, uint32_t x, uint32_t y); /* SEQ, ALT, BOTH or MINUS of two */

void td_gr_add(td_gr_builder *b, td_gr_items *list, uint32_t node);
/** A SEQ, ALT or LIST node of the nodes in list, which is emptied. */
uint32_t td_gr_of(td_gr_builder *b, td_gr_kind kind, td_gr_items *list);
void     td_gr_items_free(td_gr_items *list);

/** Append an edge of a graph to a list. A node 0 leads nowhere; td_gr_empty is a step without text. */
void td_gr_add_edge_of(td_gr_builder *b, td_gr_items *list, uint32_t node, uint32_t from, uint32_t to);
/** The GRAPH node of these edges, which begins in state 0 and ends in state 1. The list is emptied. */
uint32_t td_gr_graph(td_gr_builder *b, uint32_t n_states, td_gr_items *list);

/** Number of the rule of this name, made when there is none. len bytes, without NUL. */
uint32_t td_gr_rule_named(td_gr_builder *b, const char *name, size_t len);
/** A rule without a name of its own; `what` is for messages. */
uint32_t td_gr_rule_new(td_gr_builder *b, const char *what);
void     td_gr_define(td_gr_builder *b, uint32_t rule, uint32_t body);

#endif
