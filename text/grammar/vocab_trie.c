#include "text/grammar/vocab_trie.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokenizer_utf8.h"

#define NODES_MAX ((size_t)1 << 27) /* each is a member of some shapes, too: their number stays within 32 bits */

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

/* Entry by entry: the nodes that leave its predecessor's path end, new ones follow. */
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
    size_t chars = 0;
    for (uint32_t i = 0; i < e->len; i++) {
        if (e->bytes[i] < ' ' || e->bytes[i] == '"' || e->bytes[i] == '\\' || e->bytes[i] == 0x7F) return false;
        chars += (e->bytes[i] & 0xC0) != 0x80;
    }
    return chars <= TD_TRIE_PLAIN_MAX && td_utf8_valid_prefix((const char *)e->bytes, e->len) == e->len;
}

static void trie_free(td_vocab_trie *t) {
    for (int i = 0; i < 2; i++) {
        td_trie *trie = i ? &t->rest : &t->all;
        td_shapes_free(&trie->shapes);
        free(trie->nodes);
        free(trie->tokens);
    }
    free(t->plain);
    free(t);
}

td_status td_vocab_trie_make(const td_tokenizer *tok, uint32_t vocab, td_vocab_trie **out) {
    entry         *entries = malloc((vocab ? vocab : 1) * sizeof *entries);
    td_vocab_trie *t = calloc(1, sizeof *t);
    size_t         n = entries && t ? list_tokens(tok, vocab, entries) : 0, n_rest = 0;
    bool           made =
        entries && t && (t->plain = calloc(TD_TRIE_WORDS(vocab) + 1, sizeof *t->plain)) && make_trie(&t->all, entries, n, vocab);
    for (size_t i = 0; made && i < n; i++) {
        if (t->depth < entries[i].len) t->depth = entries[i].len;
        if (is_plain(&entries[i]))
            t->plain[entries[i].id / 32] |= 1u << entries[i].id % 32;
        else
            entries[n_rest++] = entries[i];
    }
    made = made && make_trie(&t->rest, entries, n_rest, vocab);
    free(entries);
    *out = NULL;
    if (!made) {
        if (t) trie_free(t);
        return TD_ENOMEM;
    }
    atomic_init(&t->refs, 1);
    t->vocab = vocab;
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
