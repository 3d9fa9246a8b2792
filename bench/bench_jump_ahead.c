/*
 * Steps of an answer with jump-ahead. usage: bench_jump_ahead TOKENIZER_DIR SCHEMA_FILE ANSWER_FILE
 *
 * Follows an answer whose model, wherever it has a choice, takes the token that the tokenizer would cut from the rest.
 * Prints one row of CSV: the answer's tokens, the steps that they take (the first is the prompt's), and the tokens that the
 * tokenizer makes of the whole text. Each of the last would be a step without jump-ahead.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/requests/jump_ahead.h"

static void fail(const char *what, const char *why) {
    fprintf(stderr, "bench_jump_ahead: %s: %s\n", what, why);
    exit(1);
}

static char *read_file(const char *path, size_t *len) {
    static const size_t room = (size_t)1 << 20;
    char               *text = malloc(room);
    FILE               *f = fopen(path, "rb");
    if (!f || !text) fail(path, "cannot be read");
    *len = fread(text, 1, room, f);
    fclose(f);
    return text;
}

int main(int argc, char **argv) {
    td_tokenizer     *tok;
    td_vocab_trie    *trie;
    td_grammar       *g;
    td_grammar_place *p;
    td_error          err = {0};
    size_t            source_len, text_len, at = 0, n_whole = 0, len;
    uint32_t         *ids, jumped[1024], n_jumped, n_tokens = 0, n_steps = 0;
    bool              special;
    if (argc != 4) fail("usage", "bench_jump_ahead TOKENIZER_DIR SCHEMA_FILE ANSWER_FILE");
    char *source = read_file(argv[2], &source_len), *text = read_file(argv[3], &text_len);
    while (text_len && text[text_len - 1] == '\n') text_len--;
    if (td_tokenizer_open(argv[1], &tok, &err) != TD_OK) fail(argv[1], err.text);
    if (td_vocab_trie_make(tok, (uint32_t)td_tokenizer_vocab_size(tok), &trie) != TD_OK) fail(argv[1], "out of memory");
    if (td_grammar_compile(TD_GRAMMAR_JSON_SCHEMA, source, source_len, &g, &err) != TD_OK) fail(argv[2], err.text);
    if (td_grammar_place_open(g, trie, &p, &err) != TD_OK) fail(argv[2], err.text);
    const td_jump_vocabulary v = {.tokenizer = tok, .trie = trie};
    for (;;) {
        if (td_jump_ahead(p, &v, jumped, sizeof jumped / sizeof *jumped, &n_jumped) != TD_OK)
            fail(argv[3], "cannot be followed");
        for (uint32_t i = 0; i < n_jumped; i++) {
            (void)td_tokenizer_token(tok, jumped[i], &len, &special);
            at += len;
        }
        n_tokens += n_jumped;
        if (at >= text_len) break;
        size_t n;
        if (td_tokenizer_encode(tok, text + at, text_len - at, false, false, &ids, &n) != TD_OK)
            fail(argv[3], "out of memory");
        if (!n_whole) n_whole = n + n_tokens;
        const char *bytes = td_tokenizer_token(tok, ids[0], &len, &special);
        if (td_grammar_place_advance(p, bytes, len) != TD_OK) fail(argv[3], "it is not of the schema's language");
        free(ids);
        at += len;
        n_tokens++;
        n_steps++;
    }
    printf("tokens,steps,steps_without\n%u,%u,%zu\n", n_tokens, n_steps ? n_steps : 1, n_whole);
    td_grammar_place_close(p);
    td_grammar_release(g);
    td_vocab_trie_release(trie);
    td_tokenizer_close(tok);
    free(source);
    free(text);
    return 0;
}
