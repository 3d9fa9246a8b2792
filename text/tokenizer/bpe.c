/* Byte-pair merging: the merge table, the scan for short words, the heap for long ones. */
#include "text/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#define FREE UINT64_MAX /* no pair: ids stay below TD_TOKENIZER_IDS_MAX */
#define NO_RANK UINT32_MAX
#define NO_NODE UINT32_MAX
#define SHORT_WORD 40 /* parts; above it the heap is faster */

td_status td_ids_reserve(td_ids *ids, size_t n) {
    if (ids->room - ids->n >= n) return TD_OK;
    if (n > SIZE_MAX / 8 - ids->n) return TD_ENOMEM;
    size_t room = ids->n + n + ids->n / 2 + 64;
    if (room > SIZE_MAX / sizeof *ids->v) return TD_ENOMEM;
    uint32_t *v = realloc(ids->v, room * sizeof *v);
    if (!v) return TD_ENOMEM;
    ids->v = v;
    ids->room = room;
    return TD_OK;
}

static inline uint64_t pair_of(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

/* The slot that holds pair, or the free one where it would go. */
static inline td_bpe_merge *slot_of(const td_bpe *bpe, uint64_t pair) {
    size_t mask = ((size_t)1 << bpe->bits) - 1;
    size_t i = (size_t)((pair * 0x9E3779B97F4A7C15u) >> (64 - bpe->bits)); /* 2^64 / golden ratio */
    while (bpe->slots[i].pair != pair && bpe->slots[i].pair != FREE) i = (i + 1) & mask;
    return &bpe->slots[i];
}

td_status td_bpe_reserve(td_bpe *bpe, size_t n) {
    unsigned bits = 4;
    while (((size_t)1 << bits) / 2 < n)
        if (++bits > 40) return TD_ENOMEM;
    if (bpe->slots && bits <= bpe->bits) return TD_OK;
    td_bpe grown = {.bits = bits};
    if (((size_t)1 << bits) > SIZE_MAX / sizeof *grown.slots) return TD_ENOMEM;
    grown.slots = malloc(((size_t)1 << bits) * sizeof *grown.slots);
    if (!grown.slots) return TD_ENOMEM;
    for (size_t i = 0; i < (size_t)1 << bits; i++) grown.slots[i].pair = FREE;
    if (bpe->slots)
        for (size_t i = 0; i < (size_t)1 << bpe->bits; i++)
            if (bpe->slots[i].pair != FREE) *slot_of(&grown, bpe->slots[i].pair) = bpe->slots[i];
    free(bpe->slots);
    bpe->slots = grown.slots;
    bpe->bits = bits;
    return TD_OK;
}

td_status td_bpe_add(td_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id) {
    td_status st = td_bpe_reserve(bpe, bpe->n + 1);
    if (st != TD_OK) return st;
    td_bpe_merge *slot = slot_of(bpe, pair_of(left, right));
    bpe->n += slot->pair == FREE;
    *slot = (td_bpe_merge){.pair = pair_of(left, right), .rank = rank, .id = id};
    return TD_OK;
}

void td_bpe_free(td_bpe *bpe) {
    free(bpe->slots);
    *bpe = (td_bpe){0};
}

/* ids[0, n) are a word's parts; merges in place and returns how many are left. */
static size_t merge_short(const td_bpe *bpe, uint32_t *ids, size_t n) {
    uint32_t rank[SHORT_WORD], merged[SHORT_WORD]; /* of the pair (i, i + 1) */
    for (size_t i = 0; i + 1 < n; i++) {
        const td_bpe_merge *m = slot_of(bpe, pair_of(ids[i], ids[i + 1]));
        rank[i] = m->pair == FREE ? NO_RANK : m->rank;
        merged[i] = m->id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        ids[best] = merged[best];
        n--;
        size_t tail = n - best - 1; /* parts after the merged one */
        memmove(ids + best + 1, ids + best + 2, tail * sizeof *ids);
        memmove(rank + best, rank + best + 1, tail * sizeof *rank);
        memmove(merged + best, merged + best + 1, tail * sizeof *merged);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const td_bpe_merge *m = slot_of(bpe, pair_of(ids[i], ids[i + 1]));
            rank[i] = m->pair == FREE ? NO_RANK : m->rank;
            merged[i] = m->id;
        }
    }
    return n;
}

typedef struct {
    uint32_t id;
    uint32_t prev, next; /* neighbours among the parts that are left; NO_NODE at the ends */
    uint32_t gone;       /* merged into the part before it */
} node;

/* A merge that was possible when it was pushed; stale when its two parts have changed since. */
typedef struct {
    uint64_t key; /* rank << 32 | position: the order of merging */
    uint64_t pair;
    uint32_t id;
} candidate;

typedef struct {
    node      *nodes;
    candidate *heap; /* binary heap on key */
    size_t     n;
} long_word;

static void heap_push(long_word *w, candidate c) {
    size_t i = w->n++;
    for (; i > 0 && w->heap[(i - 1) / 2].key > c.key; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static candidate heap_pop(long_word *w) {
    candidate top = w->heap[0], last = w->heap[--w->n];
    size_t    i = 0;
    for (size_t child; (child = 2 * i + 1) < w->n; i = child) {
        if (child + 1 < w->n && w->heap[child + 1].key < w->heap[child].key) child++;
        if (w->heap[child].key >= last.key) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

static void push_pair(const td_bpe *bpe, long_word *w, uint32_t left) {
    uint32_t right = w->nodes[left].next;
    if (right == NO_NODE) return;
    const td_bpe_merge *m = slot_of(bpe, pair_of(w->nodes[left].id, w->nodes[right].id));
    if (m->pair != FREE) heap_push(w, (candidate){.key = pair_of(m->rank, left), .pair = m->pair, .id = m->id});
}

/* ids[0, n) as in merge_short. */
static td_status merge_long(const td_bpe *bpe, uint32_t *ids, size_t n, size_t *left) {
    /* n - 1 pairs to start with, and each of at most n - 1 merges takes one candidate off and pushes at most two. */
    long_word w = {.nodes = malloc(n * sizeof *w.nodes), .heap = malloc(2 * n * sizeof *w.heap)};
    if (!w.nodes || !w.heap) {
        free(w.nodes);
        free(w.heap);
        return TD_ENOMEM;
    }
    for (size_t i = 0; i < n; i++)
        w.nodes[i] =
            (node){.id = ids[i], .prev = i ? (uint32_t)i - 1 : NO_NODE, .next = i + 1 < n ? (uint32_t)i + 1 : NO_NODE};
    for (size_t i = 0; i < n; i++) push_pair(bpe, &w, (uint32_t)i);
    while (w.n) {
        candidate c = heap_pop(&w);
        uint32_t  at = (uint32_t)c.key, right = w.nodes[at].next;
        if (w.nodes[at].gone || right == NO_NODE || pair_of(w.nodes[at].id, w.nodes[right].id) != c.pair) continue;
        w.nodes[at].id = c.id;
        w.nodes[at].next = w.nodes[right].next;
        w.nodes[right].gone = 1;
        if (w.nodes[at].next != NO_NODE) w.nodes[w.nodes[at].next].prev = at;
        push_pair(bpe, &w, at);
        if (w.nodes[at].prev != NO_NODE) push_pair(bpe, &w, w.nodes[at].prev);
    }
    *left = 0;
    for (uint32_t i = 0; i != NO_NODE; i = w.nodes[i].next) ids[(*left)++] = w.nodes[i].id;
    free(w.nodes);
    free(w.heap);
    return TD_OK;
}

td_status td_bpe_word(const td_bpe *bpe, const char *word, size_t len, td_ids *out) {
    if (len == 0) return TD_OK;
    if (len >= NO_NODE || len > SIZE_MAX / (2 * sizeof(candidate))) return TD_EINVAL;
    td_status st = td_ids_reserve(out, len);
    if (st != TD_OK) return st;
    uint32_t *ids = out->v + out->n;
    size_t    n = 0;
    for (size_t i = 0; i < len; i++)
        if (bpe->byte_id[(uint8_t)word[i]] != TD_BPE_NO_BYTE) ids[n++] = bpe->byte_id[(uint8_t)word[i]];
    if (n > SHORT_WORD)
        st = merge_long(bpe, ids, n, &n);
    else
        n = merge_short(bpe, ids, n);
    if (st == TD_OK) out->n += n;
    return st;
}
