#include "text/grammar/grammar_pda.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define SPLICE_MAX 4096 /* a rule with more states is not put in where it is used */
#define CALL_LENGTH 16  /* bytes: a rule whose texts are all shorter is not worth a call */
#define NONE UINT32_MAX

/* ---- which rules use which -------------------------------------------------------------------- */

typedef struct {
    td_gr_builder   *b;
    td_gr_making     making;
    td_gr_automaton *rules;     /* [n_rules] */
    uint8_t         *spliced;   /* [n_rules] */
    uint32_t        *use_begin; /* [n_rules + 1] uses[use_begin[r] ..]: rules in r's tree */
    uint32_t        *uses;
    size_t           n_uses, uses_room;
    uint32_t        *order; /* [n_rules] rules in Tarjan's order: callees come first */
    uint32_t        *low, *number, *stack;
    uint8_t         *on_stack, *recursive;
} compiler;

static void *room_for(td_gr_builder *b, size_t n, size_t item) {
    void *p = calloc(n ? n : 1, item);
    if (!p) td_gr_fail(b, TD_ENOMEM, "out of memory for a grammar");
    return p;
}

static void add_use(compiler *c, uint32_t rule) {
    if (c->n_uses == c->uses_room) {
        size_t    room = c->uses_room ? 2 * c->uses_room : 256;
        uint32_t *uses = realloc(c->uses, room * sizeof *uses);
        if (!uses) {
            td_gr_fail(c->b, TD_ENOMEM, "out of memory for a grammar");
            return;
        }
        c->uses = uses;
        c->uses_room = room;
    }
    c->uses[c->n_uses++] = rule;
}

static void find_uses(compiler *c, uint32_t at, uint32_t *seen, uint32_t stamp) {
    td_gr_builder    *b = c->b;
    const td_gr_node *node = &b->nodes[at];
    if (seen[at] == stamp || b->status != TD_OK) return;
    seen[at] = stamp;
    if (node->kind == TD_GR_RULE)
        add_use(c, node->first);
    else if (node->kind >= TD_GR_SEQ)
        for (uint32_t i = 0; i < node->n; i++)
            if (td_gr_is_child((td_gr_kind)node->kind, i)) find_uses(c, b->links[node->first + i], seen, stamp);
}

static void list_uses(compiler *c) {
    td_gr_builder *b = c->b;
    uint32_t      *seen = room_for(b, b->n_nodes, sizeof *seen);
    for (uint32_t r = 0; r < b->n_rules && b->status == TD_OK; r++) {
        c->use_begin[r] = (uint32_t)c->n_uses;
        if (b->rules[r].body == NONE)
            td_gr_fail(b, TD_EINVAL, "rule '%.100s' is used but not defined", b->rules[r].name);
        else
            find_uses(c, b->rules[r].body, seen, r + 1);
    }
    c->use_begin[b->n_rules] = (uint32_t)c->n_uses;
    free(seen);
}

/* Strongly connected components (Tarjan 1972), without recursion: chains of rules may be long. A rule is recursive when its
   component has others, or when it uses itself. */
static uint32_t order_rules(compiler *c) {
    td_gr_builder *b = c->b;
    uint32_t      *path = room_for(b, b->n_rules, sizeof *path), *next = room_for(b, b->n_rules, sizeof *next);
    uint32_t       n_path = 0, n_stack = 0, count = 0, n_order = 0;
    if (b->status == TD_OK) path[n_path++] = b->root;
    while (n_path) {
        uint32_t r = path[n_path - 1];
        if (c->number[r] == 0) {
            c->number[r] = c->low[r] = ++count;
            c->stack[n_stack++] = r;
            c->on_stack[r] = 1;
            next[r] = c->use_begin[r];
        }
        if (next[r] < c->use_begin[r + 1]) {
            uint32_t u = c->uses[next[r]++];
            if (u == r) c->recursive[r] = 1;
            if (c->number[u] == 0)
                path[n_path++] = u;
            else if (c->on_stack[u] && c->number[u] < c->low[r])
                c->low[r] = c->number[u];
            continue;
        }
        n_path--;
        if (n_path && c->low[r] < c->low[path[n_path - 1]]) c->low[path[n_path - 1]] = c->low[r];
        if (c->low[r] != c->number[r]) continue;
        bool alone = c->stack[n_stack - 1] == r;
        for (uint32_t u = NONE; u != r;) {
            u = c->stack[--n_stack];
            c->on_stack[u] = 0;
            c->recursive[u] |= !alone;
            c->order[n_order++] = u;
        }
    }
    free(path);
    free(next);
    return n_order;
}

/* ---- automata ---------------------------------------------------------------------------------- */

static bool ends_in_one_way(const td_gr_automaton *a) {
    for (size_t i = 0; i < a->n_states; i++)
        if (a->states[i].final && (a->states[i].n_edges || a->states[i].n_calls)) return false;
    return true;
}

/* Whether some text has more than CALL_LENGTH bytes: after so many steps from the start not all have ended. */
static bool has_long_texts(td_gr_builder *b, const td_gr_automaton *a) {
    uint8_t *now = room_for(b, a->n_states, 1), *then = room_for(b, a->n_states, 1);
    bool     any = true;
    if (b->status == TD_OK) now[0] = 1;
    for (int step = 0; step < CALL_LENGTH && any && b->status == TD_OK; step++) {
        any = false;
        memset(then, 0, a->n_states);
        for (size_t i = 0; i < a->n_states; i++)
            for (uint32_t k = 0; now[i] && k < a->states[i].n_edges; k++) {
                then[a->edges[a->states[i].edge + k].to] = 1;
                any = true;
            }
        uint8_t *swap = now;
        now = then;
        then = swap;
    }
    free(now);
    free(then);
    return any;
}

static void make_automata(compiler *c, uint32_t n_order) {
    td_gr_builder *b = c->b;
    c->making = (td_gr_making){.b = b, .rules = c->rules, .spliced = c->spliced, .recursive = c->recursive};
    for (uint32_t i = 0; i < n_order && b->status == TD_OK; i++) {
        uint32_t         r = c->order[i];
        td_gr_automaton *a = &c->rules[r];
        td_gr_automaton_make(&c->making, b->rules[r].body, a);
        if (c->recursive[r] || a->n_states > SPLICE_MAX) continue;
        c->spliced[r] = !(ends_in_one_way(a) && (a->n_calls || has_long_texts(b, a)));
    }
}

/* Put the automata one after another into out; a call's rule becomes the state where that rule starts. */
static void concatenate(compiler *c, uint32_t n_order, td_gr_pda *out) {
    td_gr_builder *b = c->b;
    uint32_t      *start = room_for(b, b->n_rules, sizeof *start), base = 0;
    for (uint32_t i = 0; i < n_order && b->status == TD_OK; i++) {
        if (c->spliced[c->order[i]] && c->order[i] != b->root) continue;
        start[c->order[i]] = base;
        base += (uint32_t)c->rules[c->order[i]].n_states;
    }
    for (uint32_t i = 0; i < n_order && b->status == TD_OK; i++) {
        uint32_t               r = c->order[i];
        const td_gr_automaton *a = &c->rules[r];
        if (c->spliced[r] && r != b->root) continue;
        for (size_t k = 0; k < a->n_states && b->status == TD_OK; k++) {
            const td_gr_state *s = &a->states[k];
            td_gr_add_state(b, &out->a, s->final);
            for (uint32_t e = 0; e < s->n_edges; e++) {
                td_gr_edge edge = a->edges[s->edge + e];
                edge.to += start[r];
                td_gr_add_edge(b, &out->a, edge);
            }
            for (uint32_t e = 0; e < s->n_calls; e++) {
                td_gr_call call = a->calls[s->call + e];
                td_gr_add_call(b, &out->a, (td_gr_call){start[call.rule], call.to + start[r]});
            }
        }
    }
    if (b->status == TD_OK) out->start = start[b->root];
    free(start);
}

/* ---- states that lead somewhere ------------------------------------------------------------------ */

/* The predecessors of each state: they have to be looked at again when the state turns out to be good. A call precedes both
   the start of its rule and the state that it returns to. */
typedef struct {
    uint32_t *begin; /* [n_states + 1] */
    uint32_t *from;
} predecessors;

static bool find_predecessors(td_gr_builder *b, const td_gr_automaton *a, predecessors *p) {
    p->begin = room_for(b, a->n_states + 2, sizeof *p->begin);
    p->from = room_for(b, a->n_edges + 2 * a->n_calls, sizeof *p->from);
    if (b->status != TD_OK) return false;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < a->n_states; i++) {
            const td_gr_state *s = &a->states[i];
            for (uint32_t k = 0; k < s->n_edges + 2 * s->n_calls; k++) {
                uint32_t          c = (k - s->n_edges) / 2;
                const td_gr_call *call = k < s->n_edges ? NULL : &a->calls[s->call + c];
                uint32_t          to = !call ? a->edges[s->edge + k].to : (k - s->n_edges) % 2 ? call->rule : call->to;
                if (pass == 0)
                    p->begin[to + 2]++;
                else
                    p->from[p->begin[to + 1]++] = i;
            }
        }
        for (size_t i = 0; pass == 0 && i < a->n_states; i++) p->begin[i + 2] += p->begin[i + 1];
    }
    return true;
}

static bool leads_on(const td_gr_automaton *a, const uint8_t *good, uint32_t state, bool by_bytes) {
    const td_gr_state *s = &a->states[state];
    for (uint32_t k = 0; by_bytes && k < s->n_edges; k++)
        if (good[a->edges[s->edge + k].to]) return true;
    for (uint32_t k = 0; k < s->n_calls; k++)
        if (good[a->calls[s->call + k].rule] && good[a->calls[s->call + k].to]) return true;
    return false;
}

/* Mark the states from which their rule's end can be reached; by_bytes false: without reading a byte. */
static uint8_t *find_good(td_gr_builder *b, const td_gr_automaton *a, const predecessors *p, bool by_bytes) {
    uint8_t  *good = room_for(b, a->n_states, 1);
    uint32_t *list = room_for(b, a->n_states, sizeof *list);
    size_t    n = 0;
    if (b->status == TD_OK)
        for (uint32_t i = 0; i < a->n_states; i++)
            if (a->states[i].final) good[list[n++] = i] = 1;
    while (n) {
        uint32_t state = list[--n];
        for (uint32_t k = p->begin[state]; k < p->begin[state + 1]; k++) {
            uint32_t from = p->from[k];
            if (good[from] || !leads_on(a, good, from, by_bytes)) continue;
            good[from] = 1;
            list[n++] = from;
        }
    }
    free(list);
    return good;
}

/* Append a state to the list of reached ones, once; number[state] is its place there, from 1. */
static void reach(uint32_t *number, uint32_t *list, size_t *n, uint32_t state) {
    if (number[state]) return;
    list[*n] = state;
    number[state] = (uint32_t)++ * n;
}

/* Keep the good states that the start reaches. */
static void trim(td_gr_builder *b, td_gr_pda *p, const uint8_t *good) {
    const td_gr_automaton *a = &p->a;
    uint32_t              *number = room_for(b, a->n_states, sizeof *number), *list = room_for(b, a->n_states, sizeof *list);
    td_gr_automaton        out = {0};
    size_t                 n = 0;
    if (b->status == TD_OK && !good[p->start]) td_gr_fail(b, TD_EINVAL, "no text matches the grammar");
    if (b->status == TD_OK) reach(number, list, &n, p->start);
    for (size_t i = 0; i < n && b->status == TD_OK; i++) {
        const td_gr_state *s = &a->states[list[i]];
        td_gr_add_state(b, &out, s->final);
        for (uint32_t k = 0; k < s->n_edges; k++) {
            td_gr_edge e = a->edges[s->edge + k];
            if (!good[e.to]) continue;
            reach(number, list, &n, e.to);
            td_gr_add_edge(b, &out, (td_gr_edge){e.lo, e.hi, number[e.to] - 1});
        }
        for (uint32_t k = 0; k < s->n_calls; k++) {
            td_gr_call c = a->calls[s->call + k];
            if (!good[c.rule] || !good[c.to]) continue;
            reach(number, list, &n, c.rule);
            reach(number, list, &n, c.to);
            td_gr_add_call(b, &out, (td_gr_call){number[c.rule] - 1, number[c.to] - 1});
        }
    }
    free(number);
    free(list);
    td_gr_automaton_free(&p->a);
    p->a = out;
    p->start = 0;
}

/* ---- left recursion ------------------------------------------------------------------------------ */

/*
 * Refuse a rule that calls itself before it has read a byte: the stack would grow without end. A rule calls another one at
 * once if it does so from its start, or from where it is when callees that may be empty have returned. These calls must
 * have no cycle. Kahn's algorithm takes away the rules that no rule calls at once; what is left is on a cycle, or called
 * from one.
 */
static void refuse_left_recursion(td_gr_builder *b, const td_gr_pda *p, const uint8_t *nullable) {
    const td_gr_automaton *a = &p->a;
    size_t                 n = a->n_states, n_first = 0, n_list = 0;
    uint32_t              *first = room_for(b, a->n_calls, sizeof *first); /* starts that are called at once, rule by rule */
    uint32_t *begin = room_for(b, n + 1, sizeof *begin), *end = room_for(b, n + 1, sizeof *end); /* of a start, in first */
    uint32_t *callers = room_for(b, n, sizeof *callers), *list = room_for(b, n, sizeof *list);
    uint8_t  *seen = room_for(b, n, 1), *is_start = room_for(b, n, 1);
    bool      done = b->status == TD_OK;
    for (size_t i = 0; done && i < a->n_calls; i++) is_start[a->calls[i].rule] = 1;
    for (uint32_t r = 0; done && r < n; r++) {
        if (!is_start[r]) continue;
        begin[r] = (uint32_t)n_first;
        n_list = 0;
        list[n_list++] = r;
        seen[r] = 1;
        for (size_t i = 0; i < n_list; i++)
            for (uint32_t k = 0; k < a->states[list[i]].n_calls; k++) {
                td_gr_call call = a->calls[a->states[list[i]].call + k];
                first[n_first++] = call.rule;
                callers[call.rule]++;
                if (!nullable[call.rule] || seen[call.to]) continue;
                seen[call.to] = 1;
                list[n_list++] = call.to;
            }
        end[r] = (uint32_t)n_first;
    }
    n_list = 0;
    for (uint32_t r = 0; done && r < n; r++)
        if (is_start[r] && callers[r] == 0) list[n_list++] = r;
    for (size_t i = 0; i < n_list; i++) {
        is_start[list[i]] = 0;
        for (uint32_t k = begin[list[i]]; k < end[list[i]]; k++)
            if (--callers[first[k]] == 0) list[n_list++] = first[k];
    }
    if (done && memchr(is_start, 1, n))
        td_gr_fail(b, TD_ENOTSUP, "a rule of the grammar can begin with itself; left recursion is not supported");
    free(first);
    free(begin);
    free(end);
    free(callers);
    free(list);
    free(seen);
    free(is_start);
}

/* ---- all of it ------------------------------------------------------------------------------------ */

static void classify_bytes(td_gr_pda *p) {
    bool begins[257] = {[0] = true};
    for (size_t i = 0; i < p->a.n_edges; i++) begins[p->a.edges[i].lo] = begins[p->a.edges[i].hi + 1] = true;
    for (unsigned byte = 0; byte < 256; byte++) {
        p->n_classes += begins[byte];
        p->byte_class[byte] = (uint8_t)(p->n_classes - 1);
    }
    uint16_t n = 0;
    for (unsigned kind = 0; kind < TD_BYTE_KINDS; kind++) {
        p->kind_begin[kind] = n;
        for (unsigned byte = 0, last = UINT_MAX; byte < 256; byte++) {
            if (TD_BYTE_KIND[byte] != kind || p->byte_class[byte] == last) continue;
            last = p->byte_class[byte];
            p->kind_bytes[n++] = (uint8_t)byte;
        }
    }
    p->kind_begin[TD_BYTE_KINDS] = n;
}

static void put(uint8_t *seen, uint32_t *list, size_t *n, uint32_t state) {
    if (!seen[state]) list[(*n)++] = state;
    seen[state] = 1;
}

/* Fill p->returns: the states that the starts of called rules reach within their rules. */
static void find_returns(td_gr_builder *b, td_gr_pda *p) {
    const td_gr_automaton *a = &p->a;
    uint32_t              *list = room_for(b, a->n_states, sizeof *list);
    size_t                 n = 0;
    p->returns = room_for(b, a->n_states, 1);
    for (size_t i = 0; b->status == TD_OK && i < a->n_calls; i++) put(p->returns, list, &n, a->calls[i].rule);
    for (size_t i = 0; i < n; i++) {
        const td_gr_state *s = &a->states[list[i]];
        for (uint32_t k = 0; k < s->n_edges; k++) put(p->returns, list, &n, a->edges[s->edge + k].to);
        for (uint32_t k = 0; k < s->n_calls; k++) put(p->returns, list, &n, a->calls[s->call + k].to);
    }
    free(list);
}

static void finish(td_gr_builder *b, td_gr_pda *out) {
    predecessors p = {0};
    uint8_t     *good = NULL, *nullable = NULL;
    if (find_predecessors(b, &out->a, &p)) good = find_good(b, &out->a, &p, true);
    if (b->status == TD_OK) trim(b, out, good);
    free(p.begin);
    free(p.from);
    p = (predecessors){0};
    if (b->status == TD_OK && find_predecessors(b, &out->a, &p)) nullable = find_good(b, &out->a, &p, false);
    if (b->status == TD_OK) refuse_left_recursion(b, out, nullable);
    if (b->status == TD_OK) find_returns(b, out);
    if (b->status == TD_OK) td_gr_find_alike(b, out);
    if (b->status == TD_OK) classify_bytes(out);
    free(p.begin);
    free(p.from);
    free(good);
    free(nullable);
}

void td_gr_pda_make(td_gr_builder *b, td_gr_pda *out) {
    compiler c = {.b = b};
    size_t   n = b->n_rules;
    *out = (td_gr_pda){0};
    c.rules = room_for(b, n, sizeof *c.rules);
    c.spliced = room_for(b, n, 1);
    c.use_begin = room_for(b, n + 1, sizeof *c.use_begin);
    c.order = room_for(b, n, sizeof *c.order);
    c.low = room_for(b, n, sizeof *c.low);
    c.number = room_for(b, n, sizeof *c.number);
    c.stack = room_for(b, n, sizeof *c.stack);
    c.on_stack = room_for(b, n, 1);
    c.recursive = room_for(b, n, 1);
    if (b->status == TD_OK) list_uses(&c);
    if (b->status == TD_OK) {
        uint32_t n_order = order_rules(&c);
        make_automata(&c, n_order);
        if (b->status == TD_OK) concatenate(&c, n_order, out);
    }
    if (b->status == TD_OK) finish(b, out);
    for (size_t i = 0; c.rules && i < n; i++) td_gr_automaton_free(&c.rules[i]);
    free(c.rules);
    free(c.spliced);
    free(c.use_begin);
    free(c.uses);
    free(c.order);
    free(c.low);
    free(c.number);
    free(c.stack);
    free(c.on_stack);
    free(c.recursive);
}

void td_gr_pda_free(td_gr_pda *p) {
    td_gr_automaton_free(&p->a);
    free(p->returns);
    free(p->alike);
    *p = (td_gr_pda){0};
}
