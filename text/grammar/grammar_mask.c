#include "text/grammar/grammar_mask.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define KNOWN_BYTES_MAX ((size_t)8 << 20)
#define WARM_WORK_MAX ((uint64_t)2 << 20) /* as TD_GR_WORK_MAX counts: some tens of milliseconds */
#define WARM_BYTES_MAX (KNOWN_BYTES_MAX / 4 * 3)
#define WARM_STATE_WORK 100 /* the fixed work of a state, besides what its walk looks at */

td_status td_gr_masks_open(td_gr_masks *k, const td_gr_pda *pda, td_vocab_trie *trie) {
    *k = (td_gr_masks){.pda = pda, .trie = td_vocab_trie_hold(trie)};
    k->of_short = calloc(pda->a.n_states, sizeof *k->of_short);
    k->of_long = calloc(pda->a.n_states, sizeof *k->of_long);
    k->plain = calloc(pda->a.n_states, sizeof *k->plain);
    return k->of_short && k->of_long && k->plain ? TD_OK : TD_ENOMEM;
}

static void known_free(td_gr_known *known) {
    if (known) free(known->bits);
    free(known);
}

void td_gr_masks_close(td_gr_masks *k) {
    for (size_t i = 0; k->of_short && k->of_long && i < k->pda->a.n_states; i++) {
        known_free(atomic_load_explicit(&k->of_short[i], memory_order_relaxed));
        known_free(atomic_load_explicit(&k->of_long[i], memory_order_relaxed));
    }
    free(k->of_short);
    free(k->of_long);
    free(k->plain);
    td_vocab_trie_release(k->trie);
    *k = (td_gr_masks){0};
}

td_status td_gr_walk_open(td_gr_walk *w, const td_vocab_trie *trie) {
    *w = (td_gr_walk){.path = malloc((trie->depth + 1) * sizeof *w->path),
                      .alone = malloc(TD_TRIE_WORDS(trie->vocab) * sizeof *w->alone),
                      .claimed = calloc(TD_TRIE_WORDS(trie->vocab), sizeof *w->claimed)};
    return w->path && w->alone && w->claimed ? TD_OK : TD_ENOMEM;
}

void td_gr_walk_close(td_gr_walk *w) {
    free(w->path);
    free(w->exits.at);
    free(w->later.at);
    free(w->alone);
    free(w->claimed);
    *w = (td_gr_walk){0};
}

/* Clean up after a walk that was left in the middle. */
static void reset_walk(const td_gr_masks *k, td_gr_walk *w) {
    memset(w->claimed, 0, TD_TRIE_WORDS(k->trie->vocab) * sizeof *w->claimed);
    w->later.n = 0;
}

/* ---- walks ----------------------------------------------------------------------------------- */

#define OF_SHAPE (1u << 31) /* bit of an exit: it is a node of the shapes; else it is a node of the trie */

#define NESTED_MAX 32
#define REACHED_MAX 1024 /* sets that plain characters lead to */

/* One walk from a set: tokens that go on from it are set in the mask. */
typedef struct {
    const td_trie *t;
    td_gr_matcher *m;
    td_gr_walk    *w;
    uint32_t      *mask;
    size_t         words, n_tokens;
    bool           exits;     /* note where the rule may end with more to come */
    bool           alone;     /* the mask has no other bits of the trie's tokens, so what is set can be undone */
    unsigned       nested;    /* how many mixed shapes this walk is in */
    bool           in_claims; /* some members of the shapes at hand are claimed */
} walking;

static bool add_node(td_gr_list *list, uint32_t node) {
    if (list->n == list->room) {
        size_t    room = list->room ? 2 * list->room : 256;
        uint32_t *at = realloc(list->at, room * sizeof *at);
        if (!at) return false;
        list->at = at;
        list->room = room;
    }
    list->at[list->n++] = node;
    return true;
}

static void set_bits(uint32_t *restrict to, const uint32_t *restrict from, size_t words) {
    for (size_t i = 0; i < words; i += 16)
        for (size_t k = 0; k < 16; k++) to[i + k] |= from[i + k];
}

static void set_ids(uint32_t *mask, const uint32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) mask[ids[i] / 32] |= 1u << ids[i] % 32;
}

static td_status walk_shapes(walking *g, uint32_t begin, uint32_t end);

/* The set `to` has been reached at a node of the trie: its tokens are right. @return whether its subtree is to be walked. */
static td_status arrive(walking *g, uint32_t at, uint32_t to, bool *on) {
    const td_trie_node *node = &g->t->nodes[at];
    size_t              n = node[1].token - node->token;
    set_ids(g->mask, g->t->tokens + node->token, n);
    g->n_tokens += n;
    g->w->path[node->depth] = to;
    bool inner = node->skip > at + 1;
    *on = inner && g->m->sets[to].n;
    return inner && g->exits && g->m->sets[to].exits && !add_node(&g->w->exits, at) ? TD_ENOMEM : TD_OK;
}

/* Walk nodes of the trie; path has the sets of the nodes above them. */
static td_status walk_nodes(walking *g, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end;) {
        const td_trie_node *node = &g->t->nodes[i];
        if (++g->m->work > TD_GR_WORK_MAX) return TD_EINVAL;
        uint32_t to = td_gr_matcher_step(g->m, g->w->path[node->depth - 1], node->byte);
        bool     on = false;
        if (to != TD_GR_DEAD) TD_TRY(arrive(g, i, to, &on));
        i = on ? i + 1 : node->skip;
    }
    return TD_OK;
}

/* Walk what follows a node of the trie, whose set is in path: by its shapes if it has some. */
static td_status walk_below(walking *g, uint32_t at) {
    const td_trie_node *node = &g->t->nodes[at];
    bool                in_claims = g->in_claims;
    if (node->shape == TD_TRIE_NO_SHAPE) return walk_nodes(g, at + 1, node->skip);
    g->in_claims = false;
    td_status st = walk_shapes(g, node->shape + 1, g->t->shapes.nodes[node->shape].skip);
    g->in_claims = in_claims;
    return st;
}

/* Undo what a walk has set for a node of the trie and what follows it. */
static void clear_below(walking *g, uint32_t at) {
    const td_trie *t = g->t;
    uint32_t       end = t->nodes[t->nodes[at].skip].token;
    for (uint32_t k = t->nodes[at].token; k < end; k++) {
        uint32_t *word = &g->mask[t->tokens[k] / 32], bit = 1u << t->tokens[k] % 32;
        g->n_tokens -= *word / bit % 2;
        *word &= ~bit;
    }
    g->m->work += end - t->nodes[at].token;
}

static bool is_claimed(const walking *g, uint32_t at) {
    uint32_t token = g->t->nodes[at].token;
    return g->w->claimed[token / 32] >> token % 32 & 1;
}

/* Mark the tokens of a node and of what follows it as walked elsewhere, or not. */
static void claim(walking *g, uint32_t at, bool claimed) {
    uint32_t begin = g->t->nodes[at].token, end = g->t->nodes[g->t->nodes[at].skip].token;
    for (uint32_t i = begin; i < end;) {
        uint32_t n = 32 - i % 32 < end - i ? 32 - i % 32 : end - i, bits = (uint32_t)(((uint64_t)1 << n) - 1) << i % 32;
        if (claimed)
            g->w->claimed[i / 32] |= bits;
        else
            g->w->claimed[i / 32] &= ~bits;
        i += n;
    }
}

/* Put the members whose bytes do not lead to `usual` into w->later: they are walked for themselves. */
static td_status put_off(walking *g, const td_shape_node *shape, uint32_t usual) {
    const td_shapes *s = &g->t->shapes;
    uint32_t         from = g->w->path[shape->depth - 1];
    for (uint32_t k = shape->group; k < shape[1].group; k++) {
        if (td_gr_matcher_step(g->m, from, s->groups[k].byte) == usual) continue;
        for (uint32_t i = s->groups[k].member; i < s->groups[k + 1].member; i++) {
            if (is_claimed(g, s->members[i])) continue;
            if (++g->m->work > TD_GR_WORK_MAX) return TD_EINVAL;
            claim(g, s->members[i], true);
            if (!add_node(&g->w->later, s->members[i])) return TD_ENOMEM;
        }
    }
    return TD_OK;
}

/* Walk a member of a shape; the set before its last byte is in path. */
static td_status walk_member(walking *g, uint32_t at) {
    const td_trie_node *node = &g->t->nodes[at];
    bool                on = false;
    if (++g->m->work > TD_GR_WORK_MAX) return TD_EINVAL;
    uint32_t to = td_gr_matcher_step(g->m, g->w->path[node->depth - 1], node->byte);
    if (to != TD_GR_DEAD) TD_TRY(arrive(g, at, to, &on));
    return on ? walk_below(g, at) : TD_OK;
}

/* Walk all members of a shape, each for itself. */
static td_status walk_members(walking *g, const td_shape_node *shape) {
    const td_shapes *s = &g->t->shapes;
    uint32_t         from = g->w->path[shape->depth - 1];
    for (uint32_t k = shape->group; k < shape[1].group; k++) {
        if (td_gr_matcher_step(g->m, from, s->groups[k].byte) == TD_GR_DEAD) continue;
        for (uint32_t i = s->groups[k].member; i < s->groups[k + 1].member; i++)
            if (!is_claimed(g, s->members[i])) TD_TRY(walk_member(g, s->members[i]));
    }
    return TD_OK;
}

/* The set that at least three of four members of a shape lead to; TD_GR_DEAD when none is that. */
static uint32_t find_usual(walking *g, const td_shape_node *shape) {
    const td_shapes *s = &g->t->shapes;
    uint32_t         from = g->w->path[shape->depth - 1], usual = TD_GR_DEAD, votes = 0, count = 0;
    /* Boyer and Moore's vote (1981), then a count. */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t k = shape->group; k < shape[1].group; k++) {
            uint32_t to = td_gr_matcher_step(g->m, from, s->groups[k].byte);
            uint32_t n = s->groups[k + 1].member - s->groups[k].member;
            if (pass) {
                count += to == usual ? n : 0;
            } else if (to == usual) {
                votes += n;
            } else if (votes >= n) {
                votes -= n;
            } else {
                votes = n - votes;
                usual = to;
            }
        }
    uint32_t all = s->groups[shape[1].group].member - s->groups[shape->group].member;
    g->m->work += shape[1].group - shape->group;
    return count > all / 4 * 3 ? usual : TD_GR_DEAD;
}

static td_status take_shape(walking *g, uint32_t at, uint32_t to, bool *on);

/*
 * Walk a shape whose members do not all lead to one set. If most do, and set bits can be undone, the shape is walked as if
 * all did. Then the bits that this has set for the others are cleared, and the others are walked for themselves. Below the
 * others the walk does not split shapes once more.
 */
static td_status walk_mixed(walking *g, uint32_t at) {
    const td_shape_node *shape = &g->t->shapes.nodes[at];
    td_gr_walk          *w = g->w;
    uint32_t             usual = g->alone && g->nested < NESTED_MAX ? find_usual(g, shape) : TD_GR_DEAD;
    size_t               first = w->later.n;
    bool                 on = false, in_claims = g->in_claims;
    if (usual == TD_GR_DEAD) return walk_members(g, shape);
    g->nested++;
    g->in_claims = true;
    TD_TRY(put_off(g, shape, usual));
    TD_TRY(take_shape(g, at, usual, &on));
    if (on) TD_TRY(walk_shapes(g, at + 1, shape->skip));
    g->in_claims = in_claims;
    for (size_t i = first; i < w->later.n; i++) claim(g, w->later.at[i], false);
    for (size_t i = first, end = w->later.n; i < end; i++) {
        clear_below(g, w->later.at[i]);
        TD_TRY(walk_member(g, w->later.at[i]));
    }
    w->later.n = first;
    g->nested--;
    return TD_OK;
}

/* The rule may end at a shape: note an exit for each of its members that is not claimed. */
static td_status add_exits(walking *g, uint32_t at) {
    const td_shapes     *s = &g->t->shapes;
    const td_shape_node *shape = &s->nodes[at];
    if (!g->in_claims) return add_node(&g->w->exits, at | OF_SHAPE) ? TD_OK : TD_ENOMEM;
    for (uint32_t i = s->groups[shape->group].member; i < s->groups[shape[1].group].member; i++) {
        uint32_t member = s->members[i];
        bool     inner = g->t->nodes[member].skip > member + 1;
        if (inner && !is_claimed(g, member) && !add_node(&g->w->exits, member)) return TD_ENOMEM;
    }
    return TD_OK;
}

/* The set `to` has been reached at a shape. */
static td_status take_shape(walking *g, uint32_t at, uint32_t to, bool *on) {
    const td_shape_node *shape = &g->t->shapes.nodes[at];
    size_t               n = shape[1].token - shape->token;
    if (shape->bits != TD_SHAPE_NO_BITS)
        set_bits(g->mask, g->t->shapes.bits + shape->bits, g->words);
    else
        set_ids(g->mask, g->t->shapes.ids + shape->token, n);
    g->n_tokens += n;
    g->w->path[shape->depth] = to;
    bool inner = shape->skip > at + 1;
    *on = inner && g->m->sets[to].n;
    return inner && g->exits && g->m->sets[to].exits ? add_exits(g, at) : TD_OK;
}

/* Walk nodes of the shapes. Recursion is bounded by the depth of nodes that have shapes of their own, and by NESTED_MAX. */
static td_status walk_shapes(walking *g, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end;) {
        const td_shape_node *shape = &g->t->shapes.nodes[i];
        bool                 on = false;
        if (++g->m->work > TD_GR_WORK_MAX) return TD_EINVAL;
        uint32_t to = td_gr_matcher_step_kind(g->m, g->w->path[shape->depth - 1], shape->kind);
        if (to == TD_GR_MIXED)
            TD_TRY(walk_mixed(g, i));
        else if (to != TD_GR_DEAD)
            TD_TRY(take_shape(g, i, to, &on));
        i = on ? i + 1 : shape->skip;
    }
    return TD_OK;
}

static td_status walk_all(walking *g, uint32_t set) {
    g->w->path[0] = set;
    return walk_shapes(g, 1, g->t->shapes.nodes[0].skip);
}

/* Walk what follows an exit, from a set. */
static td_status walk_exit(walking *g, uint32_t exit, uint32_t set) {
    uint32_t at = exit & ~OF_SHAPE;
    if (!(exit & OF_SHAPE)) {
        g->w->path[g->t->nodes[at].depth] = set;
        return walk_below(g, at);
    }
    g->w->path[g->t->shapes.nodes[at].depth] = set;
    return walk_shapes(g, at + 1, g->t->shapes.nodes[at].skip);
}

/* ---- a state by itself ----------------------------------------------------------------------- */

/* Some sets, each once. */
typedef struct {
    uint32_t at[64], n;
} some_sets;

static bool add_set(some_sets *f, uint32_t set) {
    for (uint32_t i = 0; i < f->n; i++)
        if (f->at[i] == set) return true;
    if (f->n == sizeof f->at / sizeof *f->at) return false;
    f->at[f->n++] = set;
    return true;
}

/* The sets that some bytes lead to. @return false: a byte leads nowhere, or they are many. */
static bool step_bytes(td_gr_matcher *m, const some_sets *f, const uint8_t *bytes, size_t n, some_sets *to) {
    for (uint32_t i = 0; i < f->n; i++)
        for (size_t k = 0; k < n; k++) {
            uint32_t set = td_gr_matcher_step(m, f->at[i], bytes[k]);
            if (m->sets[set].n == 0 || !add_set(to, set)) return false;
        }
    return true;
}

/* Likewise for all bytes of a kind. */
static bool step_kind(td_gr_matcher *m, const some_sets *f, uint8_t kind, some_sets *to) {
    const td_gr_pda *pda = m->pda;
    for (uint32_t i = 0; i < f->n; i++) {
        uint32_t set = td_gr_matcher_step_kind(m, f->at[i], kind);
        if (set == TD_GR_MIXED) {
            some_sets one;
            one.at[0] = f->at[i];
            one.n = 1;
            size_t first = pda->kind_begin[kind], n = pda->kind_begin[kind + 1] - first;
            if (!step_bytes(m, &one, pda->kind_bytes + first, n, to)) return false;
        } else if (m->sets[set].n == 0 || !add_set(to, set)) {
            return false;
        }
    }
    return true;
}

/* Add the sets that the plain characters of more than one byte lead to. `leads` lists them by the kind of the first byte,
 * what the second one may be, and how many bytes follow. */
static bool step_plain_utf8(td_gr_matcher *m, const some_sets *from, some_sets *to) {
    static const struct {
        uint8_t first, n, from, to;
    } leads[] = {{0xC2, 1, 0, 0}, {0xE0, 2, 0xA0, 0xBF}, {0xE1, 2, 0, 0},       {0xE4, 2, 0, 0}, {0xE5, 2, 0, 0},
                 {0xE9, 2, 0, 0}, {0xED, 2, 0x80, 0x9F}, {0xF0, 3, 0x90, 0xBF}, {0xF1, 3, 0, 0}, {0xF4, 3, 0x80, 0x8F}};
    some_sets parts[2];
    for (size_t l = 0; l < sizeof leads / sizeof *leads; l++) {
        uint8_t second[64];
        size_t  n_second = 0;
        for (unsigned byte = leads[l].from; leads[l].from && byte <= leads[l].to; byte++) second[n_second++] = (uint8_t)byte;
        for (unsigned k = 0, n = leads[l].n; k <= n; k++) { /* alternately from one part to the other, and at last to `to` */
            const some_sets *now = k ? &parts[(k + 1) % 2] : from;
            some_sets       *next = k == n ? to : &parts[k % 2];
            if (k < n) next->n = 0;
            bool took = k == 1 && n_second ? step_bytes(m, now, second, n_second, next)
                                           : step_kind(m, now, TD_BYTE_KIND[k ? 0x80 : leads[l].first], next);
            if (!took) return false;
        }
    }
    return true;
}

/* Add the sets that plain characters lead to from one set. */
static bool step_plain(td_gr_matcher *m, uint32_t set, some_sets *to) {
    some_sets from = {.n = 0};
    bool      done[TD_BYTE_KINDS] = {false};
    add_set(&from, set);
    for (unsigned byte = ' '; byte <= '~'; byte++) {
        uint8_t kind = TD_BYTE_KIND[byte];
        if (byte == '"' || byte == '\\' || done[kind]) continue;
        done[kind] = true;
        if (!step_kind(m, &from, kind, to)) return false;
    }
    return step_plain_utf8(m, &from, to);
}

/* All plain characters lead from these sets to these sets, so each of them takes all plain texts. */
static void note_plain(td_gr_masks *k, const td_gr_matcher *m, const uint32_t *sets, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const td_gr_set *set = &m->sets[sets[i]];
        if (set->n == 1) /* a set of one stack stands for the state on its top */
            atomic_store_explicit(&k->plain[m->nodes[m->items[set->first]].state], true, memory_order_relaxed);
    }
}

/* Whether every text of up to TD_TRIE_SHORT_MAX plain characters can go on from a state, whose set is given. False also if
 * finding out takes many sets. */
static bool takes_plain(td_gr_masks *k, td_gr_matcher *m, uint32_t state, uint32_t set) {
    uint32_t reached[REACHED_MAX], n_reached = 1, done = 0;
    uint8_t  seen[TD_GR_SETS_MAX / 8] = {0};
    if (atomic_load_explicit(&k->plain[state], memory_order_relaxed)) return true;
    reached[0] = set;
    seen[set / 8] = (uint8_t)(1u << set % 8);
    for (int chars = 0; chars < TD_TRIE_SHORT_MAX && done < n_reached; chars++)
        for (uint32_t n = n_reached; done < n; done++) {
            some_sets to = {.n = 0};
            if (!step_plain(m, reached[done], &to)) return false;
            for (uint32_t i = 0; i < to.n; i++) {
                if (seen[to.at[i] / 8] >> to.at[i] % 8 & 1) continue;
                if (n_reached == REACHED_MAX) return false;
                seen[to.at[i] / 8] |= (uint8_t)(1u << to.at[i] % 8);
                reached[n_reached++] = to.at[i];
            }
        }
    if (done == n_reached) note_plain(k, m, reached, n_reached);
    return true;
}

/* Pack what is known of a state. Few ids are kept as a list, many as bits. */
static td_gr_known *known_of(const uint32_t *mask, size_t words, size_t n_ids, const uint32_t *exits, size_t n_exits,
                             size_t *bytes) {
    bool         dense = n_ids > words;
    size_t       n_list = dense ? 0 : n_ids;
    td_gr_known *known = malloc(sizeof *known + (n_list + n_exits) * sizeof(uint32_t));
    uint32_t    *bits = dense ? malloc(words * sizeof *bits) : NULL;
    if (!known || (dense && !bits)) {
        free(known);
        free(bits);
        return NULL;
    }
    *known = (td_gr_known){.bits = bits, .n_ids = (uint32_t)n_list, .n_exits = (uint32_t)n_exits};
    if (dense) memcpy(bits, mask, words * sizeof *bits);
    size_t at = 0;
    for (size_t i = 0; !dense && i < words; i++)
        for (uint32_t word = mask[i]; word; word &= word - 1)
            known->ids_and_exits[at++] = (uint32_t)(i * 32) + (uint32_t)__builtin_ctz(word);
    if (n_exits) memcpy(known->ids_and_exits + n_list, exits, n_exits * sizeof *exits);
    *bytes = sizeof *known + (n_list + n_exits) * sizeof(uint32_t) + (dense ? words * sizeof *bits : 0);
    return known;
}

/* Find what is known of a state. */
static td_status find_known(td_gr_masks *k, td_gr_matcher *m, td_gr_walk *w, uint32_t state, bool of_long, td_gr_known **out,
                            size_t *bytes) {
    size_t   words = TD_TRIE_WORDS(k->trie->vocab);
    uint32_t set = td_gr_matcher_state_alone(m, state);
    if (set == TD_GR_DEAD) return TD_ENOMEM;
    bool           plain = !of_long && takes_plain(k, m, state, set);
    td_trie_part   part = of_long ? TD_TRIE_LONG : plain ? TD_TRIE_REST : TD_TRIE_SHORT;
    const td_trie *t = &k->trie->parts[part];
    walking g = {.t = t, .m = m, .w = w, .mask = w->alone, .words = words, .exits = k->pda->returns[state], .alone = true};
    if (plain) {
        memcpy(w->alone, k->trie->plain, words * sizeof *w->alone);
        g.n_tokens = k->trie->parts[TD_TRIE_SHORT].n_tokens - t->n_tokens;
    } else {
        memset(w->alone, 0, words * sizeof *w->alone);
    }
    w->exits.n = 0;
    TD_TRY(walk_all(&g, set));
    *out = known_of(w->alone, words, g.n_tokens, w->exits.at, w->exits.n, bytes);
    if (!*out) return TD_ENOMEM;
    (*out)->part = part;
    return TD_OK;
}

/* The state with which this one shares what is known. */
static uint32_t key_of(const td_gr_pda *p, uint32_t state, bool of_long) {
    return of_long && !p->alike_always ? state : p->alike[state];
}

/* What is known of a state, found now if need be. @param own set if it is not kept, and is the caller's to free. */
static td_status know(td_gr_masks *k, td_gr_matcher *m, td_gr_walk *w, uint32_t state, bool of_long, td_gr_known **out,
                      bool *own) {
    _Atomic(td_gr_known *) *place = (of_long ? k->of_long : k->of_short) + key_of(k->pda, state, of_long);
    td_gr_known            *known = atomic_load_explicit(place, memory_order_acquire), *other = NULL;
    size_t                  bytes = 0;
    *own = false;
    *out = known;
    if (known) return TD_OK;
    TD_TRY(find_known(k, m, w, state, of_long, &known, &bytes));
    *out = known;
    *own = true;
    if (m->overflow) return TD_OK;
    if (atomic_fetch_add_explicit(&k->bytes, bytes, memory_order_relaxed) + bytes <= KNOWN_BYTES_MAX) {
        *own = !atomic_compare_exchange_strong_explicit(place, &other, known, memory_order_release, memory_order_acquire);
        if (!*own) return TD_OK;
    }
    atomic_fetch_sub_explicit(&k->bytes, bytes, memory_order_relaxed); /* the room is used up, or another thread was first */
    return TD_OK;
}

/* Find and keep what is known of one state. @param full set if there is no room for more. */
static td_status warm_state(td_gr_masks *k, td_gr_matcher *m, td_gr_walk *w, uint32_t state, uint64_t *work, bool *full) {
    for (int of_long = 0; of_long < 2 && !*full; of_long++) {
        td_gr_known *known;
        bool         own = false;
        m->work = 0;
        td_status st = know(k, m, w, state, of_long, &known, &own);
        *work += m->work + WARM_STATE_WORK;
        if (st == TD_OK && own) known_free(known);
        if (st == TD_ENOMEM) return st;
        *full = own && !m->overflow;
        if (st == TD_OK && !m->overflow) continue;
        reset_walk(k, w); /* a limit was passed, so what m remembers is not to be relied on */
        td_gr_matcher_close(m);
        TD_TRY(td_gr_matcher_open(m, k->pda));
    }
    return td_gr_matcher_tidy(m);
}

/* Warm the states that most others are like first: that saves most. */
static td_status warm_states(td_gr_masks *k, td_gr_matcher *m, td_gr_walk *w) {
    const td_gr_pda *p = k->pda;
    uint64_t         work = 0;
    bool             full = false;
    for (int alone = 0; alone < 2; alone++)
        for (uint32_t state = 0; state < p->a.n_states && work < WARM_WORK_MAX; state++) {
            full |= atomic_load_explicit(&k->bytes, memory_order_relaxed) > WARM_BYTES_MAX;
            if (full) return TD_OK;
            if (p->a.states[state].n_edges && (alone || p->alike[state] != state))
                TD_TRY(warm_state(k, m, w, alone ? state : p->alike[state], &work, &full));
        }
    return TD_OK;
}

td_status td_gr_masks_warm(td_gr_masks *k, td_gr_walk *w) {
    td_gr_matcher m;
    if (atomic_exchange_explicit(&k->warm, true, memory_order_relaxed)) return TD_OK;
    td_status st = td_gr_matcher_open(&m, k->pda);
    if (st == TD_OK) st = warm_states(k, &m, w);
    td_gr_matcher_close(&m);
    return st;
}

/* ---- the mask -------------------------------------------------------------------------------- */

/* Add what stacks with tops that are alike allow: what is known of their tops, and, behind the exits, what the stacks below
 * allow. */
static td_status add_stacks(td_gr_masks *k, td_gr_matcher *m, td_gr_walk *w, const uint32_t *nodes, size_t n, bool of_long,
                            uint32_t *mask) {
    bool         own;
    td_gr_known *known;
    td_status    st = know(k, m, w, m->nodes[nodes[0]].state, of_long, &known, &own);
    if (st != TD_OK) return st;
    size_t   words = TD_TRIE_WORDS(k->trie->vocab), n_below = 0;
    uint32_t below[TD_GR_SET_MAX];
    if (known->bits) set_bits(mask, known->bits, words);
    set_ids(mask, known->ids_and_exits, known->n_ids);
    for (size_t i = 0; i < n && known->n_exits; i++)
        if (m->nodes[nodes[i]].below != TD_GR_BOTTOM) below[n_below++] = m->nodes[nodes[i]].below;
    uint32_t set = n_below ? td_gr_matcher_set_of(m, below, n_below) : TD_GR_DEAD;
    if (m->sets[set].n) {
        walking g = {.t = &k->trie->parts[known->part], .m = m, .w = w, .mask = mask, .words = words};
        for (uint32_t i = 0; i < known->n_exits && st == TD_OK; i++)
            st = walk_exit(&g, known->ids_and_exits[known->n_ids + i], set);
    }
    if (own) known_free(known);
    return st;
}

static int by_value(const void *x, const void *y) {
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

/* Add what the current stacks allow of the short tokens, or of the long ones. */
static td_status add_all(td_gr_masks *k, td_gr_matcher *m, td_gr_walk *w, bool of_long, uint32_t *mask) {
    const td_gr_set *set = &m->sets[m->current];
    uint64_t         tops[TD_GR_SET_MAX]; /* state, or the one that it is like; node */
    uint32_t         nodes[TD_GR_SET_MAX], n = set->n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t node = m->items[set->first + i], state = m->nodes[node].state;
        tops[i] = (uint64_t)key_of(k->pda, state, of_long) << 32 | node;
    }
    if (n > 1) qsort(tops, n, sizeof *tops, by_value);
    for (uint32_t i = 0; i < n; i++) nodes[i] = (uint32_t)tops[i];
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && tops[end] >> 32 == tops[i] >> 32;) end++;
        TD_TRY(add_stacks(k, m, w, nodes + i, end - i, of_long, mask));
    }
    return TD_OK;
}

td_status td_gr_mask(td_gr_masks *k, td_gr_matcher *m, td_gr_walk *w, uint32_t *mask) {
    TD_TRY(td_gr_matcher_tidy(m));
    m->work = 0;
    memset(mask, 0, TD_TRIE_WORDS(k->trie->vocab) * sizeof *mask);
    td_status st = add_all(k, m, w, false, mask);
    if (st == TD_OK) st = add_all(k, m, w, true, mask);
    if (st != TD_OK) reset_walk(k, w);
    return st == TD_OK && m->overflow ? TD_EINVAL : st;
}
