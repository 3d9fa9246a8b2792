/* Added tokens: the tries and the leftmost-longest pass. */
#include "text/tokenizer/tokenizer_added.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "text/tokenizer/tokenizer_utf8.h"

static td_status new_node(td_added_trie *trie, uint8_t byte, uint32_t *out) {
    if (trie->n + 1 >= trie->room) {
        size_t room = trie->room * 2 + 256;
        if (room > UINT32_MAX) return TD_ENOMEM;
        td_added_node *grown = realloc(trie->nodes, room * sizeof *grown);
        if (!grown) return TD_ENOMEM;
        trie->nodes = grown;
        trie->room = room;
    }
    if (trie->n == 0) trie->n = 1;
    trie->nodes[trie->n] = (td_added_node){.byte = byte};
    *out = (uint32_t)trie->n++;
    return TD_OK;
}

static uint32_t child_of(const td_added_trie *trie, uint32_t node, uint8_t byte) {
    uint32_t c = trie->nodes[node].child;
    while (c && trie->nodes[c].byte != byte) c = trie->nodes[c].sibling;
    return c;
}

static td_status insert(td_added_trie *trie, const char *s, size_t len, uint32_t token) {
    uint32_t node = trie->first[(uint8_t)s[0]];
    if (!node) {
        td_status st = new_node(trie, (uint8_t)s[0], &node);
        if (st != TD_OK) return st;
        trie->first[(uint8_t)s[0]] = node;
    }
    for (size_t i = 1; i < len; i++) {
        uint32_t child = child_of(trie, node, (uint8_t)s[i]);
        if (!child) {
            td_status st = new_node(trie, (uint8_t)s[i], &child);
            if (st != TD_OK) return st;
            trie->nodes[child].sibling = trie->nodes[node].child;
            trie->nodes[node].child = child;
        }
        node = child;
    }
    trie->nodes[node].token = token;
    return TD_OK;
}

td_status td_added_add(td_added *a, td_added_token t) {
    if (a->n == a->room) {
        size_t          room = a->room * 2 + 64;
        td_added_token *grown = realloc(a->v, room * sizeof *grown);
        if (!grown) {
            free(t.text);
            return TD_ENOMEM;
        }
        a->v = grown;
        a->room = room;
    }
    a->v[a->n++] = t;
    if (t.len == 0) return TD_OK; /* nothing to look for */
    return insert(t.normalized ? &a->normalized : &a->raw, t.text, t.len, (uint32_t)a->n);
}

void td_added_free(td_added *a) {
    for (size_t i = 0; i < a->n; i++) free(a->v[i].text);
    free(a->v);
    free(a->raw.nodes);
    free(a->normalized.nodes);
    *a = (td_added){0};
}

/* A word character of UTS 18, annex C: Alphabetic, Mark, Decimal_Number, Connector_Punctuation, Join_Control. */
static bool is_word(uint32_t c) {
    if (c == 0x200C || c == 0x200D) return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_PC: return true;
        case UTF8PROC_CATEGORY_SO: /* the Other_Alphabetic symbols: letters in circles and squares */
            return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
                   (c >= 0x1F170 && c <= 0x1F189);
        default: return false;
    }
}

/* The start of the character that ends before s[at]; at > 0. */
static size_t previous(const char *s, size_t at) {
    do at--;
    while (at > 0 && ((uint8_t)s[at] & 0xC0) == 0x80);
    return at;
}

static uint32_t character_at(const char *s, size_t at) {
    const char *p = s + at;
    return td_utf8_next(&p);
}

static bool touches_a_word(const char *s, size_t len, size_t start, size_t end) {
    return (start > 0 && is_word(character_at(s, previous(s, start)))) || (end < len && is_word(character_at(s, end)));
}

/* The longest token at s[at], or NULL. */
static const td_added_token *match_at(const td_added *a, const td_added_trie *trie, const char *s, size_t len, size_t at) {
    uint32_t best = 0;
    uint32_t node = trie->first[(uint8_t)s[at]];
    while (node) {
        if (trie->nodes[node].token) best = trie->nodes[node].token;
        if (++at == len) break;
        node = child_of(trie, node, (uint8_t)s[at]);
    }
    return best ? &a->v[best - 1] : NULL;
}

td_status td_added_split(const td_added *a, bool normalized, bool parse_special, const char *s, size_t len, td_added_fn fn,
                         void *user) {
    const td_added_trie *trie = normalized ? &a->normalized : &a->raw;
    size_t               done = 0; /* s[0, done) has been passed on */
    for (size_t at = 0; trie->n && at < len;) {
        if (!trie->first[(uint8_t)s[at]]) {
            at++;
            continue;
        }
        const td_added_token *t = match_at(a, trie, s, len, at);
        if (!t) {
            at++;
            continue;
        }
        size_t start = at, end = at + t->len;
        at = end; /* a rejected match is passed over whole */
        if ((t->special && !parse_special) || (t->single_word && touches_a_word(s, len, start, end))) continue;
        if (t->lstrip)
            while (start > done && td_is_white_space(character_at(s, previous(s, start)))) start = previous(s, start);
        if (t->rstrip)
            for (const char *p = s + end; end < len && td_is_white_space(td_utf8_next(&p)); end = (size_t)(p - s)) {
            }
        td_status st = start > done ? fn(user, NULL, s + done, start - done) : TD_OK;
        if (st == TD_OK) st = fn(user, t, s + start, end - start);
        if (st != TD_OK) return st;
        done = end;
    }
    return done < len ? fn(user, NULL, s + done, len - done) : TD_OK;
}
