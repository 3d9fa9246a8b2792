/*
 * Fuzz target: a byte for the kind, a grammar's source, NUL, a text. A source is refused with a sentence, or compiled; then
 * the text is followed, and the mask of a made-up vocabulary behind it allows exactly what the matcher takes (a sample).
 * Nothing may crash, leak or hang.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
    if (!condition) abort();
}

/*
 * Tokens of a made-up vocabulary, which is all that the trie needs of a tokenizer. There are tokens of one byte. There are
 * all words of two small letters, of two after an "a", and of two after a space and a letter, so that shapes have many
 * tokens and nodes have shapes of their own. There are short and long runs, and texts that grammars often name.
 */
static const char *const LONGER[] = {
    "\",\"", "\": ",  "}}",   "[[",      "1,", "12", "\\\"",  " \"",   "é",  "一二", "一龥", "true",
    "]}",    "abc d", "\n\n", "{\"a\":", "Ab", "A1", "\xC3x", "\\u00", "e5", "a é",  "x{1,"};
#define RUNS 60 /* of letters, and as many of spaces */
#define WORDS (3 * 676)
#define N_LONGER ((uint32_t)(sizeof LONGER / sizeof *LONGER))
#define VOCAB (256 + WORDS + 2 * RUNS + N_LONGER)

size_t td_tokenizer_vocab_size(const td_tokenizer *tok) {
    (void)tok;
    return VOCAB;
}

static const char *write_token(char *out, uint32_t id, size_t *len) {
    if (id < 256) {
        out[0] = (char)id;
        *len = 1;
    } else if ((id -= 256) < WORDS) {
        size_t before = id / 676 > 0;
        out[0] = id / 676 == 1 ? 'a' : ' ';
        out[before] = (char)('a' + id / 26 % 26);
        out[before + 1] = (char)('a' + id % 26);
        *len = before + 2;
    } else if ((id -= WORDS) < 2 * RUNS) {
        *len = 2 + id % RUNS;
        memset(out, id < RUNS ? 'b' : ' ', *len);
    } else {
        *len = strlen(LONGER[id - 2 * RUNS]);
        memcpy(out, LONGER[id - 2 * RUNS], *len);
    }
    return out;
}

const char *td_tokenizer_token(const td_tokenizer *tok, uint32_t id, size_t *len, bool *special) {
    static char tokens[VOCAB][RUNS + 2];
    (void)tok;
    *special = false;
    return id < VOCAB ? write_token(tokens[id], id, len) : NULL;
}

static void check_mask(td_grammar *g, td_vocab_trie *trie, const char *text, size_t len) {
    td_grammar_place *p;
    uint32_t         *mask;
    char              whole[256 + RUNS + 2];
    if (len > 256) return;
    require(td_grammar_place_open(g, trie, &p, NULL) == TD_OK);
    td_status st = td_grammar_place_advance(p, text, len);
    if (st == TD_OK) st = td_grammar_place_mask(p, &mask);
    memcpy(whole, text, len);
    for (uint32_t id = (uint32_t)len % 9; st == TD_OK && id < VOCAB; id += 9) { /* a sample */
        size_t      n, at;
        bool        special, accepted;
        const char *bytes = td_tokenizer_token(NULL, id, &n, &special);
        memcpy(whole + len, bytes, n);
        if (td_grammar_check(g, whole, len + n, &accepted, &at) != TD_OK) break;
        require((mask[id / 32] >> id % 32 & 1) == (at == len + n));
    }
    td_grammar_place_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static td_vocab_trie *trie;
    if (!trie) require(td_vocab_trie_make(NULL, VOCAB, &trie) == TD_OK);
    if (size == 0) return 0;
    const char *source = (const char *)data + 1, *nul = memchr(source, 0, size - 1);
    size_t      source_len = nul ? (size_t)(nul - source) : size - 1, text_len = nul ? size - 2 - source_len : 0, at;
    const char *text = nul ? nul + 1 : "";
    bool        accepted;
    td_error    err = {0};
    td_grammar *g;
    td_status   st = td_grammar_compile((td_grammar_kind)(data[0] % 5), source, source_len, &g, &err);
    if (st != TD_OK) {
        require(err.text[0] && err.status == st && !g);
        return 0;
    }
    if (td_grammar_check(g, text, text_len, &accepted, &at) == TD_OK) {
        require(at <= text_len && (!accepted || at == text_len));
        check_mask(g, trie, text, at);
    }
    td_grammar_release(g);
    return 0;
}
