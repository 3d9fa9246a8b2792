/*
 * The matcher follows a text through a grammar, byte by byte, by all stacks that the bytes allow.
 *
 * DESIGN. A stack is a state with the stack to return to below it. Each stack is stored once, as a node (hash-consing).
 * What a text allows is a set of nodes; each set is stored once, too, and named by a number. A byte leads from a set to a
 * set. This step is found once and then remembered, so the matcher is a deterministic automaton that is made as it is
 * needed. To go back, a caller keeps the number of a set.
 *
 * What is remembered grows; td_gr_matcher_tidy drops all but the current set. Depth of stacks, stacks of a set, and sets
 * between two tidyings have limits; what would pass them does not match, and `overflow` says so.
 *
 * One thread at a time per matcher. The grammar must outlive it.
 */
#ifndef TD_TEXT_GRAMMAR_MATCHER_H
#define TD_TEXT_GRAMMAR_MATCHER_H

#include "text/grammar/grammar_pda.h"
#include "text/grammar/vocab_shape.h"

#define TD_GR_STACK_MAX 1024             /* depth of a stack: rules called inside of each other */
#define TD_GR_SET_MAX 512                /* stacks in a set */
#define TD_GR_SETS_MAX ((size_t)1 << 14) /* sets between two tidyings */
#define TD_GR_WORK_MAX \
    ((uint64_t)4 << 20)         /* stacks and nodes of a trie that a mask, or a byte, looks at: some tens of milliseconds */
#define TD_GR_DEAD 0u           /* the set of no stacks: the text does not match */
#define TD_GR_BOTTOM UINT32_MAX /* below the root rule: the text may end */
#define TD_GR_EXIT (UINT32_MAX - 1) /* below a state that is looked at alone: what it returns to is not known */

typedef struct {
    uint32_t state, below; /* below: a node, TD_GR_BOTTOM or TD_GR_EXIT */
    uint32_t depth;
} td_gr_stack;

typedef struct {
    uint32_t first, n; /* nodes: items[first ..], ascending; all of them have a byte to read */
    bool     may_end;  /* the text may end here */
    bool     exits;    /* TD_GR_EXIT is reached */
} td_gr_set;

typedef struct {
    const td_gr_pda *pda;
    uint32_t         current; /* set */
    bool             overflow;
    uint64_t         work; /* done for this mask or byte; TD_GR_WORK_MAX at most */

    td_gr_stack *nodes;
    td_gr_set   *sets;
    uint32_t    *items, *next;         /* next: [sets][classes] set, or TD_GR_UNKNOWN */
    uint32_t    *next_kind;            /* [sets][TD_BYTE_KINDS] set, TD_GR_UNKNOWN or TD_GR_MIXED */
    uint32_t    *node_slot, *set_slot; /* open addressing; number + 1 */
    size_t       n_nodes, n_sets, n_items;
    size_t       nodes_room, sets_room, items_room, n_node_slots, n_set_slots;
    uint32_t    *list; /* nodes that are being collected */
    uint32_t    *mark; /* [nodes] stamp */
    size_t       n_list, list_room, mark_room;
    uint32_t     stamp;
} td_gr_matcher;

/** Open a matcher at the beginning of the text. @return TD_ENOMEM; call td_gr_matcher_close either way. */
TD_NODISCARD td_status td_gr_matcher_open(td_gr_matcher *m, const td_gr_pda *pda);
void                   td_gr_matcher_close(td_gr_matcher *m);

/** Open m where src is, with no remembered steps. @return TD_ENOMEM. */
TD_NODISCARD td_status td_gr_matcher_copy(td_gr_matcher *m, const td_gr_matcher *src);

/** Forget remembered steps if they are many. Numbers of sets other than m->current lose their meaning. @return TD_ENOMEM:
 * nothing changed. */
TD_NODISCARD td_status td_gr_matcher_tidy(td_gr_matcher *m);

#define TD_GR_UNKNOWN UINT32_MAX
#define TD_GR_MIXED (UINT32_MAX - 1) /* the bytes of a kind do not all lead to one set */

/** The part of td_gr_matcher_step that finds a step which is not known yet. */
uint32_t td_gr_matcher_find_step(td_gr_matcher *m, uint32_t set, uint8_t byte);

/** The set that a byte leads to; TD_GR_DEAD also when a limit is passed or memory is short (overflow). */
static inline uint32_t td_gr_matcher_step(td_gr_matcher *m, uint32_t set, uint8_t byte) {
    uint32_t to = m->next[(size_t)set * m->pda->n_classes + m->pda->byte_class[byte]];
    return to != TD_GR_UNKNOWN ? to : td_gr_matcher_find_step(m, set, byte);
}

/** The part of td_gr_matcher_step_kind that finds a step which is not known yet. */
uint32_t td_gr_matcher_find_kind(td_gr_matcher *m, uint32_t set, uint8_t kind);

/** The set that all bytes of a kind (TD_BYTE_KIND) lead to, or TD_GR_MIXED. */
static inline uint32_t td_gr_matcher_step_kind(td_gr_matcher *m, uint32_t set, uint8_t kind) {
    uint32_t to = m->next_kind[(size_t)set * TD_BYTE_KINDS + kind];
    return to != TD_GR_UNKNOWN ? to : td_gr_matcher_find_kind(m, set, kind);
}

/** The set of these stacks and of what can be reached from them without a byte. */
uint32_t td_gr_matcher_set_of(td_gr_matcher *m, const uint32_t *nodes, size_t n);

/** The set of a single state above TD_GR_EXIT; what it calls is left out. */
uint32_t td_gr_matcher_state_alone(td_gr_matcher *m, uint32_t state);

static inline bool td_gr_matcher_alive(const td_gr_matcher *m, uint32_t set) {
    return m->sets[set].n > 0 || m->sets[set].may_end;
}

/**
 * Advance by the longest prefix of bytes that a text of the grammar can begin with.
 * @return its length; n: all of it.
 */
size_t td_gr_matcher_advance(td_gr_matcher *m, const char *bytes, size_t n);

/**
 * The bytes that must follow whatever the text is, at most room of them; m stays where it is. @param ends set if the text
 * is complete behind them. @return how many; 0 where there is a choice, or the text may end.
 */
size_t td_gr_matcher_forced(td_gr_matcher *m, char *bytes, size_t room, bool *ends);

#endif
