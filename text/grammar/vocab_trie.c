#include "text/grammar/vocab_trie.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokenizer_utf8.h"

#define NODES_MAX ((size_t)1 << 27) /* each node is a member of some shapes, whose number must stay within 32 bits */

typedef struct {
    const uint8_t *bytes;
    uint32_t       len, id;
} entry;

static int by_bytes(const void *x, const void *y) {
    const entry *a = x, *b = y;
    int          c = memcmp(a->bytes, b->bytes, a->len < b->len ? a->len : b->len);
    if (c) return c;
    return a->len != b->len ? (a->len > b->len) - (a->len < b->len) : (a->id > b->id) - (a->id < b->id);
}

static size_t list_tokens(const td_tokenizer *tok, uint32_t vocab, entry *entries) {
    size_t n = 0;
    for (uint32_t id = 0; id < vocab && id < td_tokenizer_vocab_size(tok); id++) {
        size_t      len;
        bool        special;
        const char *bytes = td_tokenizer_token(tok, id, &len, &special);
        if (bytes && !special && len > 0 && len <= TD_TRIE_DEPTH_MAX)
            entries[n++] = (entry){(const uint8_t *)bytes, (uint32_t)len, id};
    }
    if (n) qsort(entries, n, sizeof *entries, by_bytes);
    return n;
}

static uint32_t common_prefix(const entry *a, const entry *b) {
    uint32_t i = 0;
    while (i < a->len && i < b->len && a->bytes[i] == b->bytes[i]) i++;
    return i;
}

/* Make the nodes, entry by entry: where an entry leaves the path of the one before it, nodes end and new ones follow. */
static void fill(td_trie *t, const entry *entries, size_t n) {
    uint32_t path[TD_TRIE_DEPTH_MAX], depth = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t shared = i ? common_prefix(&entries[i - 1], &entries[i]) : 0;
        while (depth > shared) t->nodes[path[--depth]].skip = t->n_nodes;
        for (; depth < entries[i].len; depth++) {
            path[depth] = t->n_nodes;
            t->nodes[t->n_nodes++] = (td_trie_node){.token = (uint32_t)i,
                                                    .shape = TD_TRIE_NO_SHAPE,
                                                    .depth = (uint16_t)(depth + 1),
                                                    .byte = entries[i].bytes[depth]};
        }
        t->tokens[i] = entries[i].id;
    }
    while (depth > 0) t->nodes[path[--depth]].skip = t->n_nodes;
    t->nodes[t->n_nodes] = (td_trie_node){.token = (uint32_t)n, .skip = t->n_nodes};
    t->n_tokens = (uint32_t)n;
}

static bool make_trie(td_trie *t, const entry *entries, size_t n, uint32_t vocab) {
    size_t n_nodes = 0;
    for (size_t i = 0; i < n; i++) n_nodes += entries[i].len - (i ? common_prefix(&entries[i - 1], &entries[i]) : 0);
    if (n_nodes >= NODES_MAX) return false;
    t->nodes = malloc((n_nodes + 1) * sizeof *t->nodes);
    t->tokens = malloc((n ? n : 1) * sizeof *t->tokens);
    if (!t->nodes || !t->tokens) return false;
    fill(t, entries, n);
    return td_shapes_make(t, vocab);
}

static bool is_plain(const entry *e) {
    for (uint32_t i = 0; i < e->len; i++)
        if (e->bytes[i] < ' ' || e->bytes[i] == '"' || e->bytes[i] == '\\' || e->bytes[i] == 0x7F) return false;
    return td_utf8_valid_prefix((const char *)e->bytes, e->len) == e->len;
}

static bool belongs(const entry *e, td_trie_part part) {
    bool is_short = e->len <= TD_TRIE_SHORT_MAX;
    if (part == TD_TRIE_LONG) return !is_short;
    return is_short && (part == TD_TRIE_SHORT || !is_plain(e));
}

static void trie_free(td_vocab_trie *t) {
    for (int part = 0; part < TD_TRIE_N; part++) {
        td_shapes_free(&t->parts[part].shapes);
        free(t->parts[part].nodes);
        free(t->parts[part].tokens);
    }
    free(t->plain);
    free(t);
}

td_status td_vocab_trie_make(const td_tokenizer *tok, uint32_t vocab, td_vocab_trie **out) {
    size_t         room = vocab ? vocab : 1;
    entry         *entries = malloc(2 * room * sizeof *entries); /* all entries, and behind them those of one part */
    td_vocab_trie *t = calloc(1, sizeof *t);
    size_t         n = entries && t ? list_tokens(tok, vocab, entries) : 0;
    bool           made = entries && t && (t->plain = calloc(TD_TRIE_WORDS(vocab) + 1, sizeof *t->plain));
    for (int part = 0; made && part < TD_TRIE_N; part++) {
        size_t n_part = 0;
        for (size_t i = 0; i < n; i++)
            if (belongs(&entries[i], (td_trie_part)part)) entries[room + n_part++] = entries[i];
        made = make_trie(&t->parts[part], entries + room, n_part, vocab);
    }
    for (size_t i = 0; made && i < n; i++) {
        if (t->depth < entries[i].len) t->depth = entries[i].len;
        if (entries[i].len <= TD_TRIE_SHORT_MAX && is_plain(&entries[i]))
            t->plain[entries[i].id / 32] |= 1u << entries[i].id % 32;
    }
    free(entries);
    *out = NULL;
    if (!made) {
        if (t) trie_free(t);
        return TD_ENOMEM;
    }
    t->vocab = vocab;
    atomic_init(&t->refs, 1);
    *out = t;
    return TD_OK;
}

td_vocab_trie *td_vocab_trie_hold(td_vocab_trie *t) {
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void td_vocab_trie_release(td_vocab_trie *t) {
    if (t && atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1) trie_free(t);
}

/* Whether a token begins with text[n], n > 0, and goes on. */
static bool goes_on(const td_trie *t, const char *text, size_t n) {
    uint32_t node = 0, end = t->n_nodes;
    for (size_t i = 0; i < n; i++) {
        while (node < end && t->nodes[node].byte != (uint8_t)text[i]) node = t->nodes[node].skip;
        if (node >= end) return false;
        end = t->nodes[node].skip;
        node++;
    }
    return node < end;
}

size_t td_vocab_trie_open_end(const td_vocab_trie *t, const char *text, size_t n) {
    for (size_t len = n < t->depth ? n : t->depth; len > 0; len--)
        if (goes_on(&t->parts[TD_TRIE_SHORT], text + n - len, len) || goes_on(&t->parts[TD_TRIE_LONG], text + n - len, len))
            return len;
    return 0;
}
