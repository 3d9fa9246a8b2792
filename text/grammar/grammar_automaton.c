#include "text/grammar/grammar_automaton.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_MAX ((uint64_t)24 << 20)   /* takes two or three tenths of a second */
#define SET_ITEMS_MAX ((size_t)16 << 20) /* states in all subsets */
#define PRODUCT_RULES_MAX 32             /* rules in rules, in an operand of a product */
#define DEAD UINT32_MAX

static bool spend(td_gr_making *m, uint64_t steps) {
    m->steps += steps;
    if (m->steps > STEPS_MAX) td_gr_fail(m->b, TD_EINVAL, "the grammar's automaton is too large to be made");
    return m->b->status == TD_OK;
}

/* Room for one more item. */
static bool grow(td_gr_builder *b, void **pool, size_t *room, size_t n, size_t item, size_t limit) {
    if (b->status != TD_OK) return false;
    if (n < *room) return true;
    size_t more = *room ? 2 * *room : 64;
    void  *p = n < limit ? realloc(*pool, more * item) : NULL;
    if (!p) {
        if (n < limit)
            td_gr_fail(b, TD_ENOMEM, "out of memory for a grammar");
        else
            td_gr_fail(b, TD_EINVAL, "the grammar's automaton is too large");
        return false;
    }
    *pool = p;
    *room = more;
    return true;
}

/* ---- deterministic automata ------------------------------------------------------------------ */

void td_gr_automaton_free(td_gr_automaton *a) {
    free(a->states);
    free(a->edges);
    free(a->calls);
    *a = (td_gr_automaton){0};
}

uint32_t td_gr_add_state(td_gr_builder *b, td_gr_automaton *a, bool final) {
    if (!grow(b, (void **)&a->states, &a->states_room, a->n_states, sizeof *a->states, TD_GR_STATES_MAX)) return 0;
    a->states[a->n_states] = (td_gr_state){.edge = (uint32_t)a->n_edges, .call = (uint32_t)a->n_calls, .final = final};
    return (uint32_t)a->n_states++;
}

void td_gr_add_edge(td_gr_builder *b, td_gr_automaton *a, td_gr_edge edge) {
    if (!grow(b, (void **)&a->edges, &a->edges_room, a->n_edges, sizeof *a->edges, (size_t)8 * TD_GR_STATES_MAX)) return;
    td_gr_state *s = &a->states[a->n_states - 1];
    td_gr_edge  *last = s->n_edges ? &a->edges[a->n_edges - 1] : NULL;
    if (last && last->to == edge.to && last->hi + 1 == edge.lo) {
        last->hi = edge.hi;
        return;
    }
    a->edges[a->n_edges++] = edge;
    s->n_edges++;
}

void td_gr_add_call(td_gr_builder *b, td_gr_automaton *a, td_gr_call call) {
    if (!grow(b, (void **)&a->calls, &a->calls_room, a->n_calls, sizeof *a->calls, (size_t)8 * TD_GR_STATES_MAX)) return;
    a->calls[a->n_calls++] = call;
    a->states[a->n_states - 1].n_calls++;
}

/* ---- product: BOTH and MINUS ------------------------------------------------------------------ */

typedef struct {
    uint64_t *pairs; /* [n] (x, y) of a product's state; y DEAD: the second automaton does not match any more */
    uint32_t *slot;  /* [n_slots] state + 1 */
    size_t    n, room, n_slots;
} pair_table;

static uint32_t find_pair(td_gr_making *m, pair_table *t, uint32_t x, uint32_t y) {
    uint64_t key = (uint64_t)x << 32 | y;
    if (2 * (t->n + 1) > t->n_slots) {
        size_t    n_slots = t->n_slots ? 2 * t->n_slots : 256;
        uint32_t *slot = calloc(n_slots, sizeof *slot);
        if (!slot) return td_gr_fail(m->b, TD_ENOMEM, "out of memory for a grammar");
        for (size_t i = 0; i < t->n; i++) {
            size_t at = t->pairs[i] * 0x9E3779B97F4A7C15u >> 20 & (n_slots - 1);
            while (slot[at]) at = (at + 1) & (n_slots - 1);
            slot[at] = (uint32_t)i + 1;
        }
        free(t->slot);
        t->slot = slot;
        t->n_slots = n_slots;
    }
    size_t at = key * 0x9E3779B97F4A7C15u >> 20 & (t->n_slots - 1);
    for (; t->slot[at]; at = (at + 1) & (t->n_slots - 1))
        if (t->pairs[t->slot[at] - 1] == key) return t->slot[at] - 1;
    if (!grow(m->b, (void **)&t->pairs, &t->room, t->n, sizeof *t->pairs, TD_GR_STATES_MAX)) return 0;
    t->pairs[t->n] = key;
    t->slot[at] = (uint32_t)++t->n;
    return (uint32_t)t->n - 1;
}

/* Add an edge of x together with state sy of y: cut into pieces where y goes to different states or does not match. */
static void add_products(td_gr_making *m, pair_table *t, bool minus, td_gr_edge edge, const td_gr_automaton *y, uint32_t sy,
                         td_gr_automaton *out) {
    const td_gr_edge *other = sy == DEAD ? NULL : y->edges + y->states[sy].edge;
    const td_gr_edge *end = sy == DEAD ? NULL : other + y->states[sy].n_edges;
    for (unsigned lo = edge.lo, hi; lo <= edge.hi && spend(m, 4); lo = hi + 1) {
        for (; other < end && other->hi < lo; other++) spend(m, 1);
        bool both = other < end && other->lo <= lo;
        hi = both ? other->hi : other < end ? other->lo - 1u : 255u;
        if (hi > edge.hi) hi = edge.hi;
        if (!both && !minus) continue;
        uint32_t to = find_pair(m, t, edge.to, both ? other->to : DEAD);
        td_gr_add_edge(m->b, out, (td_gr_edge){(uint8_t)lo, (uint8_t)hi, to});
    }
}

static void product(td_gr_making *m, bool minus, const td_gr_automaton *x, const td_gr_automaton *y, td_gr_automaton *out) {
    pair_table t = {0};
    if (x->n_calls || y->n_calls) {
        td_gr_fail(m->b, TD_ENOTSUP, "two conditions on one value cannot be combined where one of them calls itself");
        return;
    }
    find_pair(m, &t, 0, 0);
    for (size_t i = 0; i < t.n && m->b->status == TD_OK; i++) {
        uint32_t sx = (uint32_t)(t.pairs[i] >> 32), sy = (uint32_t)t.pairs[i];
        bool     in_y = sy != DEAD && y->states[sy].final;
        td_gr_add_state(m->b, out, x->states[sx].final && in_y != minus);
        for (uint32_t k = 0; k < x->states[sx].n_edges; k++)
            add_products(m, &t, minus, x->edges[x->states[sx].edge + k], y, sy, out);
    }
    free(t.pairs);
    free(t.slot);
}

/* ---- Thompson's automaton ---------------------------------------------------------------------- */

#define LABEL_EMPTY UINT32_MAX
#define LABEL_CALL (1u << 31) /* | rule; else lo << 8 | hi */

typedef struct {
    uint32_t label, to, next; /* next: the same state's next edge; 0: none */
} nfa_edge;

typedef struct {
    td_gr_making *m;
    uint32_t     *first; /* [n_states] edge, 0: none */
    nfa_edge     *edges; /* edge 0 is not used */
    size_t        n_states, n_edges, states_room, edges_room;
} nfa;

static uint32_t nfa_state(nfa *n) {
    if (!spend(n->m, 1) ||
        !grow(n->m->b, (void **)&n->first, &n->states_room, n->n_states, sizeof *n->first, (size_t)4 * TD_GR_STATES_MAX))
        return 0;
    n->first[n->n_states] = 0;
    return (uint32_t)n->n_states++;
}

static void nfa_link(nfa *n, uint32_t from, uint32_t label, uint32_t to) {
    if (n->n_edges == 0) n->n_edges = 1;
    if (!spend(n->m, 1) ||
        !grow(n->m->b, (void **)&n->edges, &n->edges_room, n->n_edges, sizeof *n->edges, (size_t)16 * TD_GR_STATES_MAX))
        return;
    n->edges[n->n_edges] = (nfa_edge){label, to, n->first[from]};
    n->first[from] = (uint32_t)n->n_edges++;
}

/* Put a whole automaton between two states. */
static void splice(nfa *n, const td_gr_automaton *a, uint32_t from, uint32_t to) {
    uint32_t base = (uint32_t)n->n_states;
    for (size_t i = 0; i < a->n_states; i++) nfa_state(n);
    if (n->m->b->status != TD_OK) return;
    nfa_link(n, from, LABEL_EMPTY, base);
    for (uint32_t i = 0; i < a->n_states; i++) {
        const td_gr_state *s = &a->states[i];
        for (uint32_t k = 0; k < s->n_edges; k++) {
            td_gr_edge e = a->edges[s->edge + k];
            nfa_link(n, base + i, (uint32_t)e.lo << 8 | e.hi, base + e.to);
        }
        for (uint32_t k = 0; k < s->n_calls; k++)
            nfa_link(n, base + i, LABEL_CALL | a->calls[s->call + k].rule, base + a->calls[s->call + k].to);
        if (s->final) nfa_link(n, base + i, LABEL_EMPTY, to);
    }
}

static void nfa_add(nfa *n, uint32_t node, uint32_t from, uint32_t to);

static void nfa_repeat(nfa *n, const td_gr_node *node, uint32_t from, uint32_t to) {
    uint32_t child = n->m->b->links[node->first];
    for (uint32_t i = 0; i < node->min && n->m->b->status == TD_OK; i++) {
        uint32_t next = nfa_state(n);
        nfa_add(n, child, from, next);
        from = next;
    }
    if (node->max == TD_GR_NO_MAX) {
        uint32_t loop = nfa_state(n), back = nfa_state(n);
        nfa_link(n, from, LABEL_EMPTY, loop);
        nfa_add(n, child, loop, back);
        nfa_link(n, back, LABEL_EMPTY, loop);
        nfa_link(n, loop, LABEL_EMPTY, to);
        return;
    }
    for (uint32_t i = node->min; i < node->max && n->m->b->status == TD_OK; i++) {
        uint32_t next = nfa_state(n);
        nfa_link(n, from, LABEL_EMPTY, to);
        nfa_add(n, child, from, next);
        from = next;
    }
    nfa_link(n, from, LABEL_EMPTY, to);
}

/*
 * The states of a list. Each item has three: `none`, if no item has come before it; `some`, if one has; `next`, if a
 * separator has come, too. Items that may be left out are skipped from none to none and from next to next, so a separator
 * is read once, whatever follows it. The list may end at `some` where all items that follow may be left out.
 */
static void nfa_list(nfa *n, const td_gr_node *node, uint32_t from, uint32_t to) {
    const uint32_t first = node->first, count = node->n; /* the pool may move */
    td_gr_builder *b = n->m->b;
    uint32_t       none = from, some = 0, next = 0, separator = b->links[first], needed = 0;
    for (uint32_t i = 1; i + 1 < count; i += 2)
        if (!b->links[first + i + 1]) needed = i; /* the last item that must be there */
    for (uint32_t i = 1; i + 1 < count && b->status == TD_OK; i += 2) {
        uint32_t item = b->links[first + i], flags = b->links[first + i + 1];
        uint32_t none_after = nfa_state(n), some_after = nfa_state(n), next_after = nfa_state(n);
        nfa_add(n, item, none, some_after);
        if (i > 1) nfa_add(n, item, next, some_after);
        if (flags) nfa_link(n, none, LABEL_EMPTY, none_after);
        if (flags && i > 1) nfa_link(n, next, LABEL_EMPTY, next_after);
        if (i > 1) nfa_add(n, separator, some, next);
        if (flags & TD_GR_ITEM_MANY) {
            uint32_t again = nfa_state(n);
            nfa_add(n, separator, some_after, again);
            nfa_add(n, item, again, some_after);
        }
        if (i >= needed) nfa_link(n, some_after, LABEL_EMPTY, to);
        none = none_after;
        some = some_after;
        next = next_after;
    }
    if (!needed) nfa_link(n, none, LABEL_EMPTY, to);
}

static void nfa_graph(nfa *n, const td_gr_node *node, uint32_t from, uint32_t to) {
    uint32_t base = (uint32_t)n->n_states;
    for (uint32_t i = 0; i < node->min; i++) nfa_state(n);
    nfa_link(n, from, LABEL_EMPTY, base);
    for (uint32_t i = 0; i < node->n && n->m->b->status == TD_OK; i += 3) {
        const uint32_t *edge = n->m->b->links + node->first + i;
        nfa_add(n, edge[0], base + edge[1], base + edge[2]);
    }
    nfa_link(n, base + 1, LABEL_EMPTY, to);
}

static void nfa_rule(nfa *n, uint32_t rule, uint32_t from, uint32_t to) {
    td_gr_making *m = n->m;
    if (rule < m->b->n_rules && m->in_products && !m->recursive[rule]) {
        if (++m->in_rules > PRODUCT_RULES_MAX) td_gr_fail(m->b, TD_EINVAL, "a condition uses too many rules in rules");
        nfa_add(n, m->b->rules[rule].body, from, to);
        m->in_rules--;
    } else if (rule < m->b->n_rules && m->spliced && m->spliced[rule])
        splice(n, &m->rules[rule], from, to);
    else
        nfa_link(n, from, LABEL_CALL | rule, to);
}

static void nfa_add(nfa *n, uint32_t at, uint32_t from, uint32_t to) {
    td_gr_builder   *b = n->m->b;
    const td_gr_node node = b->nodes[at];
    if (!spend(n->m, 1)) return;
    switch ((td_gr_kind)node.kind) {
        case TD_GR_NEVER: break;
        case TD_GR_EMPTY: nfa_link(n, from, LABEL_EMPTY, to); break;
        case TD_GR_BYTE: nfa_link(n, from, (uint32_t)node.lo << 8 | node.hi, to); break;
        case TD_GR_BYTES:
            for (uint32_t i = 0; i < node.n; i++) {
                uint8_t  byte = (uint8_t)b->bytes[node.first + i];
                uint32_t next = i + 1 < node.n ? nfa_state(n) : to;
                nfa_link(n, from, (uint32_t)byte << 8 | byte, next);
                from = next;
            }
            break;
        case TD_GR_SEQ:
            for (uint32_t i = 0; i < node.n; i++) {
                uint32_t next = i + 1 < node.n ? nfa_state(n) : to;
                nfa_add(n, b->links[node.first + i], from, next);
                from = next;
            }
            break;
        case TD_GR_ALT:
            /* States of its own: nothing may come back to where an alternative begins. */
            for (uint32_t i = 0; i < node.n; i++) {
                uint32_t begin = nfa_state(n);
                nfa_link(n, from, LABEL_EMPTY, begin);
                nfa_add(n, b->links[node.first + i], begin, to);
            }
            break;
        case TD_GR_REPEAT: nfa_repeat(n, &node, from, to); break;
        case TD_GR_LIST: nfa_list(n, &node, from, to); break;
        case TD_GR_GRAPH: nfa_graph(n, &node, from, to); break;
        case TD_GR_RULE: nfa_rule(n, node.first, from, to); break;
        case TD_GR_BOTH:
        case TD_GR_MINUS: {
            td_gr_automaton x = {0}, y = {0}, both = {0};
            n->m->in_products++;
            td_gr_automaton_make(n->m, b->links[node.first], &x);
            td_gr_automaton_make(n->m, b->links[node.first + 1], &y);
            n->m->in_products--;
            if (b->status == TD_OK) product(n->m, node.kind == TD_GR_MINUS, &x, &y, &both);
            if (b->status == TD_OK) splice(n, &both, from, to);
            td_gr_automaton_free(&x);
            td_gr_automaton_free(&y);
            td_gr_automaton_free(&both);
            break;
        }
    }
}

/* ---- subset construction ----------------------------------------------------------------------- */

typedef struct {
    nfa       n;
    uint32_t  accept;
    uint32_t *items; /* the subsets, one after another; ascending */
    size_t    n_items, items_room;
    size_t   *begin; /* [n_sets + 1] */
    size_t    n_sets, begin_room;
    uint32_t *slot; /* [n_slots] set + 1 */
    size_t    n_slots;
    uint32_t *seen; /* [n.n_states] */
    uint32_t  stamp;
    uint32_t *stack; /* [n.n_states] */
    nfa_edge *edges; /* of the set that is being done */
    size_t    n_edges, edges_room;
    nfa_edge *parts; /* the same, cut at every boundary */
    size_t    n_parts, parts_room;
} subsets;

static int by_number(const void *x, const void *y) {
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

/* Append the states that `state` reaches without a byte and that do something: have other edges, or accept. */
static void close_over(subsets *s, uint32_t state) {
    size_t depth = 0;
    if (s->seen[state] == s->stamp) return;
    s->seen[state] = s->stamp;
    s->stack[depth++] = state;
    while (depth) {
        uint32_t at = s->stack[--depth];
        bool     does = at == s->accept;
        for (uint32_t e = s->n.first[at]; e; e = s->n.edges[e].next) {
            uint32_t to = s->n.edges[e].to;
            if (!spend(s->n.m, 1)) return;
            if (s->n.edges[e].label != LABEL_EMPTY) {
                does = true;
            } else if (s->seen[to] != s->stamp) {
                s->seen[to] = s->stamp;
                s->stack[depth++] = to;
            }
        }
        if (!does) continue;
        if (!grow(s->n.m->b, (void **)&s->items, &s->items_room, s->n_items, sizeof *s->items, SET_ITEMS_MAX)) return;
        s->items[s->n_items++] = at;
    }
}

static size_t set_hash(const uint32_t *items, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = (h ^ items[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return (size_t)h;
}

static bool more_slots(subsets *s) {
    size_t    n_slots = s->n_slots ? 2 * s->n_slots : 256;
    uint32_t *slot = calloc(n_slots, sizeof *slot);
    if (!slot) {
        td_gr_fail(s->n.m->b, TD_ENOMEM, "out of memory for a grammar");
        return false;
    }
    for (size_t i = 0; i < s->n_sets; i++) {
        size_t at = set_hash(s->items + s->begin[i], s->begin[i + 1] - s->begin[i]) & (n_slots - 1);
        while (slot[at]) at = (at + 1) & (n_slots - 1);
        slot[at] = (uint32_t)i + 1;
    }
    free(s->slot);
    s->slot = slot;
    s->n_slots = n_slots;
    return true;
}

/* The number of the set whose items stand behind the last set: that of an equal set, or a new one. DEAD: it is empty. */
static uint32_t intern_set(subsets *s) {
    td_gr_making *m = s->n.m;
    size_t        from = s->begin[s->n_sets], n = s->n_items - from;
    if (n == 0 || !spend(m, 4 * n)) return DEAD;
    qsort(s->items + from, n, sizeof *s->items, by_number);
    if (2 * (s->n_sets + 1) > s->n_slots && !more_slots(s)) return DEAD;
    size_t at = set_hash(s->items + from, n) & (s->n_slots - 1);
    for (; s->slot[at]; at = (at + 1) & (s->n_slots - 1)) {
        size_t set = s->slot[at] - 1, begin = s->begin[set];
        if (s->begin[set + 1] - begin == n && memcmp(s->items + begin, s->items + from, n * sizeof *s->items) == 0) {
            s->n_items = from;
            return (uint32_t)set;
        }
    }
    if (!grow(m->b, (void **)&s->begin, &s->begin_room, s->n_sets + 1, sizeof *s->begin, TD_GR_STATES_MAX)) return DEAD;
    s->begin[++s->n_sets] = s->n_items;
    s->slot[at] = (uint32_t)s->n_sets;
    return (uint32_t)s->n_sets - 1;
}

static int by_label(const void *x, const void *y) {
    const nfa_edge *a = x, *b = y;
    return a->label != b->label ? (a->label > b->label) - (a->label < b->label) : (a->to > b->to) - (a->to < b->to);
}

/* The edges of a set, byte spans cut so that two are equal or disjoint, sorted by label. */
static void cut_edges(subsets *s, size_t set) {
    td_gr_builder *b = s->n.m->b;
    bool           cut[257] = {false};
    s->n_edges = s->n_parts = 0;
    for (size_t i = s->begin[set]; i < s->begin[set + 1]; i++)
        for (uint32_t e = s->n.first[s->items[i]]; e && spend(s->n.m, 1); e = s->n.edges[e].next) {
            nfa_edge edge = s->n.edges[e];
            if (edge.label == LABEL_EMPTY) continue;
            if (!grow(b, (void **)&s->edges, &s->edges_room, s->n_edges, sizeof *s->edges, SET_ITEMS_MAX)) return;
            s->edges[s->n_edges++] = edge;
            if (edge.label & LABEL_CALL) continue;
            cut[edge.label >> 8] = cut[(edge.label & 0xFF) + 1] = true;
        }
    for (size_t i = 0; i < s->n_edges; i++) {
        nfa_edge edge = s->edges[i];
        unsigned lo = edge.label >> 8, hi = edge.label & 0xFF;
        bool     call = edge.label & LABEL_CALL;
        for (unsigned from = call ? 0 : lo; from <= (call ? 0 : hi); from++) {
            unsigned to = from;
            while (!call && to < hi && !cut[to + 1]) to++;
            if (!spend(s->n.m, 4) ||
                !grow(b, (void **)&s->parts, &s->parts_room, s->n_parts, sizeof *s->parts, SET_ITEMS_MAX))
                return;
            s->parts[s->n_parts++] = (nfa_edge){call ? edge.label : from << 8 | to, edge.to, 0};
            from = to;
        }
    }
    if (s->n_parts) qsort(s->parts, s->n_parts, sizeof *s->parts, by_label);
}

static void do_set(subsets *s, size_t set, td_gr_automaton *out) {
    td_gr_builder *b = s->n.m->b;
    bool           final = false;
    for (size_t i = s->begin[set]; i < s->begin[set + 1]; i++) final |= s->items[i] == s->accept;
    td_gr_add_state(b, out, final);
    cut_edges(s, set);
    for (size_t i = 0, end; i < s->n_parts && b->status == TD_OK; i = end) {
        uint32_t label = s->parts[i].label;
        s->stamp++;
        for (end = i; end < s->n_parts && s->parts[end].label == label; end++) close_over(s, s->parts[end].to);
        uint32_t to = intern_set(s);
        if (to == DEAD) continue;
        if (label & LABEL_CALL)
            td_gr_add_call(b, out, (td_gr_call){label & ~LABEL_CALL, to});
        else
            td_gr_add_edge(b, out, (td_gr_edge){(uint8_t)(label >> 8), (uint8_t)label, to});
    }
}

void td_gr_automaton_make(td_gr_making *m, uint32_t node, td_gr_automaton *out) {
    subsets  s = {.n = {.m = m}};
    uint32_t start = nfa_state(&s.n);
    s.accept = nfa_state(&s.n);
    nfa_add(&s.n, node, start, s.accept);
    if (m->b->status == TD_OK) {
        s.seen = calloc(s.n.n_states, sizeof *s.seen);
        s.stack = calloc(s.n.n_states, sizeof *s.stack);
        s.begin = calloc(2, sizeof *s.begin);
        s.begin_room = 2;
        if (!s.seen || !s.stack || !s.begin) td_gr_fail(m->b, TD_ENOMEM, "out of memory for a grammar");
    }
    if (m->b->status == TD_OK) {
        s.stamp = 1;
        close_over(&s, start);
        if (intern_set(&s) == DEAD) td_gr_add_state(m->b, out, false); /* it matches nothing */
        for (size_t set = 0; set < s.n_sets && m->b->status == TD_OK; set++) do_set(&s, set, out);
    }
    free(s.n.first);
    free(s.n.edges);
    free(s.items);
    free(s.begin);
    free(s.slot);
    free(s.seen);
    free(s.stack);
    free(s.edges);
    free(s.parts);
}
