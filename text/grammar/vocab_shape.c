#include <stdlib.h>
#include <string.h>

#include "text/grammar/vocab_shape.h"

#define OWN_TOKENS_MIN 64   /* a node over bytes has a tree of its own if so many tokens begin with it */
#define OWN_DEPTH_MAX 8     /* and it is no deeper, so that each token is in few trees */
#define BITS_TOKENS_MIN 512 /* a shape with so many tokens keeps them as bits */

const uint8_t TD_BYTE_KIND[256] = {
    8,  8,  8,  8,  8,  8,  8,  8,  8,  7,  6,  8,  8,  8,  8,  8,  /* tab, line feed, other controls */
    8,  8,  8,  8,  8,  8,  8,  8,  8,  8,  8,  8,  8,  8,  8,  8,  /* */
    3,  9,  4,  9,  9,  9,  9,  9,  9,  9,  9,  9,  23, 9,  23, 9,  /* space, quote; the comma and the full stop */
    2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  9,  9,  9,  9,  9,  9,  /* digits */
    9,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  /* capitals */
    1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  9,  5,  9,  9,  22, /* backslash; underscore */
    9,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  /* small letters */
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  9,  9,  9,  9,  8,  /* */
    10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, /* continuations */
    10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, /* */
    10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, /* */
    10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, /* */
    11, 11, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, /* no UTF-8; characters of two bytes */
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, /* */
    13, 18, 18, 18, 14, 15, 15, 15, 15, 16, 18, 18, 18, 17, 18, 18, /* of three; 14 to 16: Chinese ones (U+4E00 to U+9FFF) */
    19, 20, 20, 20, 21, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, /* of four */
};

void td_shapes_free(td_shapes *s) {
    free(s->nodes);
    free(s->groups);
    free(s->members);
    free(s->ids);
    free(s->bits);
    *s = (td_shapes){0};
}

/* ---- trees ------------------------------------------------------------------------------------ */

/* A tree's node while the tree is made, in order of its first member. */
typedef struct {
    uint32_t child[TD_BYTE_KINDS]; /* 0: none, since the root is no child */
    uint32_t n_members, n_tokens;
    uint32_t place; /* in td_shapes.nodes */
    uint16_t depth;
    uint8_t  kind;
} draft;

typedef struct {
    td_trie  *t;
    draft    *drafts;
    uint32_t *draft_of; /* [n_nodes] the draft of each node of the trie, in the tree at hand */
    uint32_t *path;     /* [TD_TRIE_DEPTH_MAX + 1] */
    uint32_t *sorted;   /* members of one shape */
    size_t    n_drafts, drafts_room, nodes_room, groups_room, members_room, ids_room, sorted_room;
    size_t    n_members, n_ids;
} maker;

static bool grow(void *pool, size_t *room, size_t n, size_t item) {
    void **p = pool;
    if (n <= *room) return true;
    size_t more = *room ? *room + *room / 2 : 1024;
    if (more < n) more = n;
    void *grown = realloc(*p, more * item);
    if (!grown) return false;
    *p = grown;
    *room = more;
    return true;
}

static uint32_t tokens_of(const td_trie *t, uint32_t node) {
    return t->nodes[node + 1].token - t->nodes[node].token;
}

/* One draft for each shape of nodes[begin .. end), which lie below depth `base`. */
static bool draft_tree(maker *m, uint32_t begin, uint32_t end, uint16_t base) {
    m->n_drafts = 0;
    if (!grow(&m->drafts, &m->drafts_room, 1, sizeof *m->drafts)) return false;
    m->drafts[m->n_drafts++] = (draft){.depth = base};
    m->path[base] = 0;
    for (uint32_t i = begin; i < end; i++) {
        const td_trie_node *node = &m->t->nodes[i];
        uint8_t             kind = TD_BYTE_KIND[node->byte];
        uint32_t            parent = m->path[node->depth - 1], at = m->drafts[parent].child[kind];
        if (!at) {
            if (!grow(&m->drafts, &m->drafts_room, m->n_drafts + 1, sizeof *m->drafts)) return false;
            at = m->drafts[parent].child[kind] = (uint32_t)m->n_drafts;
            m->drafts[m->n_drafts++] = (draft){.depth = node->depth, .kind = kind};
        }
        m->path[node->depth] = m->draft_of[i] = at;
        m->drafts[at].n_members++;
        m->drafts[at].n_tokens += tokens_of(m->t, i);
    }
    return true;
}

/* Append the drafts' nodes in depth-first order, with room for their members and ids. */
static void order_tree(maker *m) {
    td_shapes *s = &m->t->shapes;
    uint32_t   at = 0, first = s->n_nodes;
    for (bool down = true;;) {
        draft *d = &m->drafts[at];
        if (down) {
            d->place = s->n_nodes++;
            s->nodes[d->place] = (td_shape_node){.group = (uint32_t)m->n_members, /* where its members begin, as yet */
                                                 .token = (uint32_t)m->n_ids,
                                                 .bits = TD_SHAPE_NO_BITS,
                                                 .depth = d->depth,
                                                 .kind = d->kind};
            m->n_members += d->n_members;
            m->n_ids += d->n_tokens;
            m->path[d->depth] = at;
        }
        /* to the first child; from a last child, to the next of its parent */
        unsigned kind = down ? 0 : m->drafts[m->path[d->depth + 1]].kind + 1u;
        while (kind < TD_BYTE_KINDS && !d->child[kind]) kind++;
        down = kind < TD_BYTE_KINDS;
        if (down) {
            at = d->child[kind];
            continue;
        }
        s->nodes[d->place].skip = s->n_nodes;
        if (d->place == first) return;
        at = m->path[d->depth - 1];
    }
}

/* Fill in members and ids of the drafts; their counts become what is still to come. */
static void fill_tree(maker *m, uint32_t begin, uint32_t end) {
    td_shapes *s = &m->t->shapes;
    for (uint32_t i = begin; i < end; i++) {
        draft               *d = &m->drafts[m->draft_of[i]];
        const td_shape_node *node = &s->nodes[d->place];
        s->members[node[1].group - d->n_members--] = i;
        for (uint32_t k = 0; k < tokens_of(m->t, i); k++)
            s->ids[node[1].token - d->n_tokens--] = m->t->tokens[m->t->nodes[i].token + k];
    }
}

/* Sort members[begin .. end) by their bytes. @return false: memory is short. */
static bool group_members(maker *m, uint32_t begin, uint32_t end) {
    td_shapes *s = &m->t->shapes;
    uint32_t   at[257] = {0};
    if (!grow(&m->sorted, &m->sorted_room, end - begin, sizeof *m->sorted)) return false;
    for (uint32_t i = begin; i < end; i++) at[m->t->nodes[s->members[i]].byte + 1]++;
    for (unsigned byte = 0; byte < 256; byte++) {
        if (at[byte + 1]) {
            if (!grow(&s->groups, &m->groups_room, s->n_groups + 2, sizeof *s->groups)) return false;
            s->groups[s->n_groups++] = (td_shape_group){begin + at[byte], (uint8_t)byte};
        }
        at[byte + 1] += at[byte];
    }
    for (uint32_t i = begin; i < end; i++) m->sorted[at[m->t->nodes[s->members[i]].byte]++] = s->members[i];
    memcpy(s->members + begin, m->sorted, (end - begin) * sizeof *m->sorted);
    return true;
}

/* Add the tree of what follows a node; with begin 0 and base 0 the tree of all tokens. */
static bool add_tree(maker *m, uint32_t begin, uint32_t end, uint16_t base) {
    td_shapes *s = &m->t->shapes;
    uint32_t   n_tokens = m->t->nodes[end].token - m->t->nodes[begin].token, first = s->n_nodes;
    if (!draft_tree(m, begin, end, base) ||
        !grow(&s->nodes, &m->nodes_room, s->n_nodes + m->n_drafts + 1, sizeof *s->nodes) ||
        !grow(&s->members, &m->members_room, m->n_members + (end - begin), sizeof *s->members) ||
        !grow(&s->ids, &m->ids_room, m->n_ids + n_tokens, sizeof *s->ids))
        return false;
    order_tree(m);
    s->nodes[s->n_nodes] = (td_shape_node){.group = (uint32_t)m->n_members, .token = (uint32_t)m->n_ids, .skip = s->n_nodes};
    fill_tree(m, begin, end);
    for (uint32_t i = first; i < s->n_nodes; i++) {
        uint32_t from = s->nodes[i].group, to = s->nodes[i + 1].group;
        s->nodes[i].group = s->n_groups;
        if (from < to && !group_members(m, from, to)) return false;
    }
    s->nodes[s->n_nodes].group = s->n_groups;
    if (s->groups) s->groups[s->n_groups] = (td_shape_group){.member = (uint32_t)m->n_members};
    return true;
}

static bool add_trees(maker *m) {
    td_trie *t = m->t;
    if (!add_tree(m, 0, t->n_nodes, 0)) return false;
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        td_trie_node *node = &t->nodes[i];
        if (node->depth > OWN_DEPTH_MAX || node->skip == i + 1 || t->nodes[node->skip].token - node->token < OWN_TOKENS_MIN)
            continue;
        node->shape = t->shapes.n_nodes;
        if (!add_tree(m, i + 1, node->skip, node->depth)) return false;
    }
    return true;
}

/* ---- tokens of a shape as bits ----------------------------------------------------------------- */

static bool make_bits(td_shapes *s, uint32_t vocab) {
    size_t words = TD_TRIE_WORDS(vocab), n = 0;
    for (uint32_t i = 0; i < s->n_nodes; i++) n += s->nodes[i + 1].token - s->nodes[i].token >= BITS_TOKENS_MIN;
    s->bits = aligned_alloc(64, (n ? n : 1) * words * sizeof *s->bits + 64);
    if (!s->bits || n * words >= TD_SHAPE_NO_BITS) return false;
    memset(s->bits, 0, n * words * sizeof *s->bits);
    for (uint32_t i = 0, at = 0; i < s->n_nodes; i++) {
        td_shape_node *node = &s->nodes[i];
        if (node[1].token - node->token < BITS_TOKENS_MIN) continue;
        node->bits = at;
        for (uint32_t k = node->token; k < node[1].token; k++) s->bits[at + s->ids[k] / 32] |= 1u << s->ids[k] % 32;
        at += (uint32_t)words;
    }
    return true;
}

bool td_shapes_make(td_trie *t, uint32_t vocab) {
    maker m = {.t = t,
               .draft_of = malloc((t->n_nodes + 1) * sizeof *m.draft_of),
               .path = malloc((TD_TRIE_DEPTH_MAX + 1) * sizeof *m.path)};
    t->shapes = (td_shapes){0};
    bool made = m.draft_of && m.path && add_trees(&m) && make_bits(&t->shapes, vocab);
    free(m.drafts);
    free(m.draft_of);
    free(m.path);
    free(m.sorted);
    return made;
}
