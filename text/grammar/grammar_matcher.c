#include "text/grammar/grammar_matcher.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define UNKNOWN UINT32_MAX /* no node */
#define NODES_MAX ((size_t)1 << 19)
#define TIDY_SETS 2048 /* td_gr_matcher_tidy forgets when there are more sets */

/* Room for n items in all; false: overflow. */
static bool reserve(td_gr_matcher *m, void *pool, size_t *room, size_t n, size_t item, size_t limit) {
    void **p = pool;
    if (n <= *room) return true;
    size_t more = *room ? 2 * *room : 64;
    while (more < n) more *= 2;
    void *grown = n <= limit ? realloc(*p, more * item) : NULL;
    if (!grown) {
        m->overflow = true;
        return false;
    }
    *p = grown;
    *room = more;
    return true;
}

static size_t mix(uint64_t h) {
    h *= 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 32);
}

/* ---- stacks ---------------------------------------------------------------------------------- */

static bool more_node_slots(td_gr_matcher *m) {
    size_t    n = m->n_node_slots ? 2 * m->n_node_slots : 256;
    uint32_t *slot = calloc(n, sizeof *slot);
    if (!slot) {
        m->overflow = true;
        return false;
    }
    for (size_t i = 0; i < m->n_nodes; i++) {
        size_t at = mix((uint64_t)m->nodes[i].state << 32 | m->nodes[i].below) & (n - 1);
        while (slot[at]) at = (at + 1) & (n - 1);
        slot[at] = (uint32_t)i + 1;
    }
    free(m->node_slot);
    m->node_slot = slot;
    m->n_node_slots = n;
    return true;
}

/* @return the node, or UNKNOWN when a limit is passed. */
static uint32_t stack_of(td_gr_matcher *m, uint32_t state, uint32_t below) {
    if (2 * (m->n_nodes + 1) > m->n_node_slots && !more_node_slots(m)) return UNKNOWN;
    size_t at = mix((uint64_t)state << 32 | below) & (m->n_node_slots - 1);
    for (; m->node_slot[at]; at = (at + 1) & (m->n_node_slots - 1)) {
        const td_gr_stack *s = &m->nodes[m->node_slot[at] - 1];
        if (s->state == state && s->below == below) return m->node_slot[at] - 1;
    }
    uint32_t depth = below >= TD_GR_EXIT ? 0 : m->nodes[below].depth + 1;
    if (depth > TD_GR_STACK_MAX) m->overflow = true;
    if (depth > TD_GR_STACK_MAX || !reserve(m, &m->nodes, &m->nodes_room, m->n_nodes + 1, sizeof *m->nodes, NODES_MAX) ||
        !reserve(m, &m->mark, &m->mark_room, m->nodes_room, sizeof *m->mark, 2 * NODES_MAX))
        return UNKNOWN;
    m->mark[m->n_nodes] = 0;
    m->nodes[m->n_nodes] = (td_gr_stack){state, below, depth};
    m->node_slot[at] = (uint32_t)++m->n_nodes;
    return (uint32_t)m->n_nodes - 1;
}

/* ---- sets ------------------------------------------------------------------------------------ */

static size_t set_hash(const uint32_t *items, size_t n, bool may_end, bool exits) {
    uint64_t h = n << 2 | (unsigned)may_end << 1 | exits;
    for (size_t i = 0; i < n; i++) h = mix(h ^ items[i]);
    return mix(h);
}

static bool more_set_slots(td_gr_matcher *m) {
    size_t    n = m->n_set_slots ? 2 * m->n_set_slots : 64;
    uint32_t *slot = calloc(n, sizeof *slot);
    if (!slot) {
        m->overflow = true;
        return false;
    }
    for (size_t i = 0; i < m->n_sets; i++) {
        const td_gr_set *s = &m->sets[i];
        size_t           at = set_hash(m->items + s->first, s->n, s->may_end, s->exits) & (n - 1);
        while (slot[at]) at = (at + 1) & (n - 1);
        slot[at] = (uint32_t)i + 1;
    }
    free(m->set_slot);
    m->set_slot = slot;
    m->n_set_slots = n;
    return true;
}

static uint32_t find_set(td_gr_matcher *m, const uint32_t *items, size_t n, bool may_end, bool exits) {
    if (2 * (m->n_sets + 1) > m->n_set_slots && !more_set_slots(m)) return TD_GR_DEAD;
    size_t at = set_hash(items, n, may_end, exits) & (m->n_set_slots - 1), classes = m->pda->n_classes;
    for (; m->set_slot[at]; at = (at + 1) & (m->n_set_slots - 1)) {
        const td_gr_set *s = &m->sets[m->set_slot[at] - 1];
        if (s->n == n && s->may_end == may_end && s->exits == exits &&
            (n == 0 || memcmp(m->items + s->first, items, n * sizeof *items) == 0))
            return m->set_slot[at] - 1;
    }
    size_t before = m->sets_room;
    if (!reserve(m, &m->items, &m->items_room, m->n_items + n, sizeof *m->items, TD_GR_SETS_MAX * 64) ||
        !reserve(m, &m->sets, &m->sets_room, m->n_sets + 1, sizeof *m->sets, TD_GR_SETS_MAX))
        return TD_GR_DEAD;
    if (m->sets_room != before) {
        uint32_t *next = realloc(m->next, m->sets_room * classes * sizeof *next);
        if (next) m->next = next;
        uint32_t *next_kind = realloc(m->next_kind, m->sets_room * TD_BYTE_KINDS * sizeof *next_kind);
        if (next_kind) m->next_kind = next_kind;
        if (!next || !next_kind) {
            m->sets_room = before;
            m->overflow = true;
            return TD_GR_DEAD;
        }
    }
    if (n) memcpy(m->items + m->n_items, items, n * sizeof *items);
    m->sets[m->n_sets] = (td_gr_set){(uint32_t)m->n_items, (uint32_t)n, may_end, exits};
    memset(m->next + m->n_sets * classes, 0xFF, classes * sizeof *m->next); /* TD_GR_UNKNOWN */
    memset(m->next_kind + m->n_sets * TD_BYTE_KINDS, 0xFF, TD_BYTE_KINDS * sizeof *m->next_kind);
    m->n_items += n;
    m->set_slot[at] = (uint32_t)++m->n_sets;
    return (uint32_t)m->n_sets - 1;
}

static void collect(td_gr_matcher *m, uint32_t node) {
    if (node == UNKNOWN || m->mark[node] == m->stamp) return;
    m->mark[node] = m->stamp;
    if (reserve(m, &m->list, &m->list_room, m->n_list + 1, sizeof *m->list, TD_GR_SET_MAX)) m->list[m->n_list++] = node;
}

static int by_number(const void *x, const void *y) {
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

/* The set of the nodes in m->list and of what they reach without a byte: callees, and callers where a rule may end. Nodes
   that have no byte to read are left out of the set. */
static uint32_t close_set(td_gr_matcher *m) {
    const td_gr_automaton *a = &m->pda->a;
    bool                   may_end = false, exits = false;
    size_t                 n = 0;
    for (size_t i = 0; i < m->n_list; i++) {
        td_gr_stack        top = m->nodes[m->list[i]];
        const td_gr_state *s = &a->states[top.state];
        for (uint32_t k = 0; k < s->n_calls; k++) {
            td_gr_call         call = a->calls[s->call + k];
            const td_gr_state *after = &a->states[call.to];
            bool               last = after->final && !after->n_edges && !after->n_calls; /* a tail call needs no frame */
            uint32_t           below = last ? top.below : stack_of(m, call.to, top.below);
            if (last || below != UNKNOWN) collect(m, stack_of(m, call.rule, below));
        }
        if (!s->final) continue;
        if (top.below == TD_GR_BOTTOM)
            may_end = true;
        else if (top.below == TD_GR_EXIT)
            exits = true;
        else
            collect(m, top.below);
    }
    for (size_t i = 0; i < m->n_list; i++)
        if (a->states[m->nodes[m->list[i]].state].n_edges) m->list[n++] = m->list[i];
    if ((m->work += m->n_list) > TD_GR_WORK_MAX) m->overflow = true;
    m->n_list = 0;
    if (m->work > TD_GR_WORK_MAX) return TD_GR_DEAD;
    if (n > 1) qsort(m->list, n, sizeof *m->list, by_number);
    return find_set(m, m->list, n, may_end, exits);
}

static void begin_list(td_gr_matcher *m) {
    m->n_list = 0;
    if (++m->stamp != 0) return;
    memset(m->mark, 0, m->mark_room * sizeof *m->mark);
    m->stamp = 1;
}

uint32_t td_gr_matcher_set_of(td_gr_matcher *m, const uint32_t *nodes, size_t n) {
    begin_list(m);
    for (size_t i = 0; i < n; i++) collect(m, nodes[i]);
    return close_set(m);
}

uint32_t td_gr_matcher_state_alone(td_gr_matcher *m, uint32_t state) {
    uint32_t node = stack_of(m, state, TD_GR_EXIT);
    return node == UNKNOWN ? TD_GR_DEAD : find_set(m, &node, 1, false, false);
}

static uint32_t find_step(td_gr_matcher *m, uint32_t set, uint8_t byte) {
    const td_gr_automaton *a = &m->pda->a;
    begin_list(m);
    for (uint32_t i = 0; i < m->sets[set].n; i++) {
        td_gr_stack        top = m->nodes[m->items[m->sets[set].first + i]];
        const td_gr_state *s = &a->states[top.state];
        for (uint32_t lo = 0, hi = s->n_edges; lo < hi;) {
            uint32_t         mid = lo + (hi - lo) / 2;
            const td_gr_edge e = a->edges[s->edge + mid];
            if (byte < e.lo) {
                hi = mid;
            } else if (byte > e.hi) {
                lo = mid + 1;
            } else {
                collect(m, stack_of(m, e.to, top.below));
                break;
            }
        }
    }
    return m->n_list ? close_set(m) : TD_GR_DEAD;
}

uint32_t td_gr_matcher_find_step(td_gr_matcher *m, uint32_t set, uint8_t byte) {
    uint32_t to = find_step(m, set, byte);
    m->next[(size_t)set * m->pda->n_classes + m->pda->byte_class[byte]] = to;
    return to;
}

uint32_t td_gr_matcher_find_kind(td_gr_matcher *m, uint32_t set, uint8_t kind) {
    const td_gr_pda *pda = m->pda;
    uint32_t         to = TD_GR_MIXED;
    for (uint32_t k = pda->kind_begin[kind]; k < pda->kind_begin[kind + 1]; k++) {
        uint32_t one = td_gr_matcher_step(m, set, pda->kind_bytes[k]);
        if (k == pda->kind_begin[kind]) to = one;
        if (one == to) continue;
        to = TD_GR_MIXED;
        break;
    }
    m->next_kind[(size_t)set * TD_BYTE_KINDS + kind] = to;
    return to;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* The dead set is number 0. */
static td_status open_empty(td_gr_matcher *m, const td_gr_pda *pda) {
    *m = (td_gr_matcher){.pda = pda};
    find_set(m, NULL, 0, false, false);
    return m->overflow ? TD_ENOMEM : TD_OK;
}

td_status td_gr_matcher_open(td_gr_matcher *m, const td_gr_pda *pda) {
    TD_TRY(open_empty(m, pda));
    uint32_t node = stack_of(m, pda->start, TD_GR_BOTTOM);
    if (node != UNKNOWN) m->current = td_gr_matcher_set_of(m, &node, 1);
    return node == UNKNOWN || m->overflow ? TD_ENOMEM : TD_OK;
}

void td_gr_matcher_close(td_gr_matcher *m) {
    free(m->nodes);
    free(m->sets);
    free(m->items);
    free(m->next);
    free(m->next_kind);
    free(m->node_slot);
    free(m->set_slot);
    free(m->list);
    free(m->mark);
    *m = (td_gr_matcher){0};
}

/* The same stack in another matcher. */
static uint32_t copy_stack(td_gr_matcher *m, const td_gr_matcher *src, uint32_t node) {
    uint32_t states[TD_GR_STACK_MAX + 2], n = 0, below = node;
    for (; below < TD_GR_EXIT; below = src->nodes[below].below) states[n++] = src->nodes[below].state;
    while (n-- > 0) {
        uint32_t next = stack_of(m, states[n], below);
        if (next == UNKNOWN) return UNKNOWN;
        below = next;
    }
    return below;
}

td_status td_gr_matcher_copy(td_gr_matcher *m, const td_gr_matcher *src) {
    TD_TRY(open_empty(m, src->pda));
    const td_gr_set *set = &src->sets[src->current];
    begin_list(m);
    for (uint32_t i = 0; i < set->n; i++) collect(m, copy_stack(m, src, src->items[set->first + i]));
    size_t n = m->n_list;
    m->n_list = 0;
    if (n > 1) qsort(m->list, n, sizeof *m->list, by_number);
    m->current = find_set(m, m->list, n, set->may_end, set->exits);
    return m->overflow ? TD_ENOMEM : TD_OK;
}

td_status td_gr_matcher_tidy(td_gr_matcher *m) {
    td_gr_matcher fresh;
    if (m->n_sets <= TIDY_SETS) return TD_OK;
    td_status st = td_gr_matcher_copy(&fresh, m);
    if (st != TD_OK) {
        td_gr_matcher_close(&fresh);
        return st;
    }
    td_gr_matcher_close(m);
    *m = fresh;
    return TD_OK;
}

size_t td_gr_matcher_advance(td_gr_matcher *m, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        m->work = 0;
        uint32_t to = td_gr_matcher_step(m, m->current, (uint8_t)bytes[i]);
        if (!td_gr_matcher_alive(m, to)) return i;
        m->current = to;
        if (td_gr_matcher_tidy(m) != TD_OK) m->overflow = true;
    }
    return n;
}

/* The only byte that can come next, or -1. */
static int only_byte(td_gr_matcher *m, uint32_t set) {
    const td_gr_automaton *a = &m->pda->a;
    int                    only = -1;
    if (m->sets[set].may_end) return -1;
    for (uint32_t i = 0; i < m->sets[set].n; i++) {
        const td_gr_state *s = &a->states[m->nodes[m->items[m->sets[set].first + i]].state];
        for (uint32_t k = 0; k < s->n_edges; k++) {
            td_gr_edge e = a->edges[s->edge + k];
            if (e.lo != e.hi || (only >= 0 && only != e.lo)) return -1;
            only = e.lo;
        }
    }
    return only;
}

size_t td_gr_matcher_forced(td_gr_matcher *m, char *bytes, size_t room, bool *ends) {
    size_t   n = 0;
    uint32_t set = m->current;
    for (int byte; n < room && (byte = only_byte(m, set)) >= 0; n++) {
        m->work = 0;
        uint32_t to = td_gr_matcher_step(m, set, (uint8_t)byte);
        if (!td_gr_matcher_alive(m, to)) break;
        set = to;
        bytes[n] = (char)byte;
    }
    *ends = m->sets[set].may_end && m->sets[set].n == 0;
    return n;
}
