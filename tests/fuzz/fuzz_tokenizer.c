/*
 * Fuzz target: hostile tokenizer files. The input is up to three parts with a zero byte between them: tokenizer.json (or,
 * when it does not start with '{', tiktoken.model), tokenizer_config.json, and a text. What loads has to encode the text and
 * decode it again, and the streaming detokeniser has to agree.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/detok.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_utf8.h"

#define CHECK(condition)           \
    do {                           \
        if (!(condition)) abort(); \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const td_tokenizer *tok, const char *text, size_t len, bool parse_special) {
    uint32_t *ids = NULL;
    size_t    n = 0, decoded_len = 0, at = 0;
    char     *decoded = NULL;
    if (td_tokenizer_encode(tok, text, len, parse_special, !parse_special, &ids, &n) != TD_OK) return;
    for (size_t i = 0; i < n; i++) CHECK(ids[i] < td_tokenizer_vocab_size(tok));
    CHECK(td_tokenizer_decode(tok, ids, n, false, &decoded, &decoded_len) == TD_OK);
    CHECK(td_utf8_valid_prefix(decoded, decoded_len) == decoded_len);
    td_detok   *d = NULL;
    const char *piece = NULL;
    size_t      piece_len = 0;
    CHECK(td_detok_create(tok, false, &d) == TD_OK);
    for (size_t i = 0; i <= n; i++) {
        if (i < n)
            CHECK(td_detok_push(d, ids[i], &piece, &piece_len) == TD_OK);
        else
            td_detok_flush(d, &piece, &piece_len);
        CHECK(piece_len <= decoded_len - at && !memcmp(decoded + at, piece, piece_len));
        at += piece_len;
    }
    CHECK(at == decoded_len);
    td_detok_free(d);
    free(decoded);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char DEFAULT_TEXT[] = "Hello  world's 123 <|user|>e\xCC\x81\xE4\xB8\xAD\xF0\x9F\x98\x80 \xFF\n\n the the";
    const char       *part[3] = {NULL};
    size_t            len[3] = {0};
    const char       *p = (const char *)data, *end = p + size;
    for (int i = 0; i < 3 && p < end; i++) {
        const char *zero = i < 2 ? memchr(p, 0, (size_t)(end - p)) : NULL;
        part[i] = p;
        len[i] = (size_t)((zero ? zero : end) - p);
        p = zero ? zero + 1 : end;
    }
    bool               json = len[0] && part[0][0] == '{';
    td_tokenizer_files files = {.tokenizer_json = json ? part[0] : NULL,
                                .tokenizer_json_len = json ? len[0] : 0,
                                .tiktoken_model = json ? NULL : part[0],
                                .tiktoken_model_len = json ? 0 : len[0],
                                .tokenizer_config = part[1],
                                .tokenizer_config_len = len[1]};
    td_tokenizer      *tok = NULL;
    td_error           err = {0};
    td_status          st = td_tokenizer_load(&files, &tok, &err);
    CHECK((st == TD_OK) == (tok != NULL));
    CHECK(st == TD_OK || (err.status == st && err.text[0]));
    if (st != TD_OK) return 0;
    round_trip(tok, part[2] ? part[2] : DEFAULT_TEXT, part[2] ? len[2] : sizeof DEFAULT_TEXT - 1, true);
    round_trip(tok, DEFAULT_TEXT, sizeof DEFAULT_TEXT - 1, false);
    td_tokenizer_close(tok);
    return 0;
}
