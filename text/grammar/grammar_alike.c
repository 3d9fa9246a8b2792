/*
 * Finds the states of a compiled grammar that short texts do not tell apart.
 *
 * A counted repetition has a state for each count; far from its end these states take the same texts of a few bytes. So
 * masks of tokens that are no longer need be found only once for all of them.
 */
#include "text/grammar/grammar_pda.h"

#include <stdlib.h>
#include <string.h>

#include "text/grammar/vocab_trie.h"

#define EDGES_MAX ((size_t)1 << 18) /* takes some hundredths of a second */

typedef struct {
    const td_gr_pda *p;
    uint32_t        *class_of, *next; /* [states] the classes' numbers, and those of the next round */
    uint32_t        *slot;            /* [n_slots] place of a class's signature + 1, open addressing */
    size_t           n_slots;
    uint32_t        *words; /* signatures: length, class before the round, and edges */
    size_t           n_words;
    uint32_t         n_classes;
} refining;

/* The class that a state starts in: which states the empty text tells apart. A state with calls is alone in its class. The
 * end of a rule that nothing follows allows no further byte, so it makes no difference. */
static uint32_t first_class(const td_gr_pda *p, uint32_t state) {
    const td_gr_state *s = &p->a.states[state];
    bool               ends = s->final && p->returns[state];
    if (s->n_calls) return 8 + state;
    return (uint32_t)ends << 2 | (uint32_t)(s->n_edges > 0) << 1 | p->returns[state];
}

/* A state's signature, behind the others: its edges by the classes that they lead to. @return its length. */
static size_t sign(refining *r, uint32_t state) {
    const td_gr_state *s = &r->p->a.states[state];
    uint32_t          *words = r->words + r->n_words;
    size_t             n = 2;
    unsigned           end = 0;
    words[1] = r->class_of[state];
    for (uint32_t k = 0; k < s->n_edges; k++) {
        td_gr_edge e = r->p->a.edges[s->edge + k];
        uint32_t   to = r->class_of[e.to];
        if (n > 2 && words[n - 1] == to && e.lo == end) {
            words[n - 2] = (words[n - 2] & 0xFF00) | e.hi;
        } else {
            words[n++] = (uint32_t)e.lo << 8 | e.hi;
            words[n++] = to;
        }
        end = e.hi + 1u;
    }
    words[0] = (uint32_t)n;
    return n;
}

static size_t hash(const uint32_t *words, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = (h ^ words[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return (size_t)h;
}

/* Refine the classes by one more byte. A class's number is that of its first state + 1. */
static void refine(refining *r) {
    uint32_t n_states = (uint32_t)r->p->a.n_states;
    memset(r->slot, 0, r->n_slots * sizeof *r->slot);
    r->n_words = r->n_classes = 0;
    for (uint32_t state = 0; state < n_states; state++) {
        const uint32_t *words = r->words + r->n_words;
        size_t          n = sign(r, state), at = hash(words, n) & (r->n_slots - 1);
        for (; r->slot[at]; at = (at + 1) & (r->n_slots - 1)) {
            const uint32_t *other = r->words + r->slot[at] - 1;
            if (other[0] == n && memcmp(other, words, n * sizeof *words) == 0) break;
        }
        if (!r->slot[at]) {
            r->slot[at] = (uint32_t)r->n_words + 1;
            r->words[r->n_words + n] = state;
            r->n_words += n + 1;
            r->n_classes++;
        }
        const uint32_t *found = r->words + r->slot[at] - 1;
        r->next[state] = found[found[0]];
    }
    uint32_t *swap = r->class_of;
    r->class_of = r->next;
    r->next = swap;
}

void td_gr_find_alike(td_gr_builder *b, td_gr_pda *p) {
    size_t   n = p->a.n_states;
    refining r = {.p = p, .n_slots = 64};
    while (r.n_slots < 2 * n) r.n_slots *= 2;
    r.class_of = calloc(n, sizeof *r.class_of);
    r.next = calloc(n, sizeof *r.next);
    bool few = p->a.n_edges <= EDGES_MAX;
    r.slot = few ? calloc(r.n_slots, sizeof *r.slot) : NULL;
    r.words = few ? calloc(3 * n + 2 * p->a.n_edges + 3, sizeof *r.words) : NULL;
    if (!r.class_of || !r.next || (few && (!r.slot || !r.words))) td_gr_fail(b, TD_ENOMEM, "out of memory for a grammar");
    for (uint32_t i = 0; b->status == TD_OK && i < n; i++) r.class_of[i] = few ? first_class(p, i) : i;
    uint32_t before = 0;
    for (int round = 0; b->status == TD_OK && few && round < TD_TRIE_SHORT_MAX; round++) {
        refine(&r);
        p->alike_always = r.n_classes == before; /* further rounds would tell no more states apart */
        if (p->alike_always) break;
        before = r.n_classes;
    }
    p->alike = r.class_of;
    free(r.next);
    free(r.slot);
    free(r.words);
}
