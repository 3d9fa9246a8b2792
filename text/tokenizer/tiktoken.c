/*
 * tiktoken.model of the Kimi models: lines of "base64-of-bytes rank", where the rank is also the id. The pattern and the
 * place of the special tokens are copied from the tokenization_kimi.py that Moonshot AI publishes with them.
 *
 * tiktoken merges the adjacent parts whose joined bytes are the token of lowest rank. As parts are always tokens themselves,
 * that is a table of merges with one entry for each way to cut a token into two tokens, all with the rank of the whole.
 */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "text/tokenizer/tokenizer_impl.h"
#include "text/tokenizer/tokenizer_utf8.h"

#define SPECIAL_TOKENS 256   /* ids after the ranks; those that tokenizer_config.json does not name are reserved */
#define CHUNK_CHARS 400000   /* long text is cut every so many characters */
#define RUN_CHARS 25000      /* runs with no white space, or of nothing else, are cut every so many characters */
#define TOKEN_BYTES_MAX 1024 /* bounds the cuts of a token, each of which is hashed */

#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define PATTERN                                                                                                          \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" SUFFIX \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Python's str.isspace: White_Space and the four separators of ASCII. */
static bool is_python_space(uint32_t c) {
    return td_is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

size_t td_tiktoken_slice(const char *s, size_t len, size_t *n_chars) {
    bool   in_space = false;
    size_t run = 0;
    for (const char *p = s; p < s + len;) {
        const char *start = p;
        bool        space = is_python_space(td_utf8_next(&p));
        run = run > 0 && space == in_space ? run + 1 : 1;
        in_space = space;
        if (start > s && (run > RUN_CHARS || *n_chars % CHUNK_CHARS == 0)) return (size_t)(start - s);
        ++*n_chars;
    }
    return len;
}

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

/* Decode n characters of padded base64 (RFC 4648) into out; SIZE_MAX when they are not that. */
static size_t base64_decode(const char *s, size_t n, char *out) {
    size_t padding = n && s[n - 1] == '=' ? (n > 1 && s[n - 2] == '=' ? 2 : 1) : 0;
    size_t len = 0;
    if (n == 0 || n % 4 != 0) return SIZE_MAX;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t group = 0;
        for (size_t k = i; k < i + 4; k++) {
            int v = k >= n - padding ? 0 : base64_value(s[k]);
            if (v < 0) return SIZE_MAX;
            group = group << 6 | (uint32_t)v;
        }
        size_t bytes = i + 4 == n ? 3 - padding : 3;
        for (size_t k = 0; k < bytes; k++) out[len++] = (char)(group >> (16 - 8 * k));
    }
    return len;
}

/* One line without its newline. */
static td_status read_line(td_tokenizer *tok, const char *s, size_t n, size_t number, td_error *err) {
    char        bytes[TOKEN_BYTES_MAX + 3];
    const char *space = memchr(s, ' ', n);
    size_t      encoded = space ? (size_t)(space - s) : n;
    uint64_t    rank = 0;
    size_t      digits = 0;
    for (size_t i = encoded + 1; i < n && s[i] >= '0' && s[i] <= '9' && rank < TD_TOKENIZER_IDS_MAX; i++, digits++)
        rank = rank * 10 + (uint64_t)(s[i] - '0');
    if (digits == 0 || encoded + 1 + digits != n || rank >= TD_TOKENIZER_IDS_MAX || encoded > TOKEN_BYTES_MAX / 3 * 4)
        return td_fail(err, TD_EFORMAT, "tiktoken.model: line %zu is not a base64 token and its rank", number);
    size_t len = base64_decode(s, encoded, bytes);
    if (len == SIZE_MAX || len == 0) return td_fail(err, TD_EFORMAT, "tiktoken.model: line %zu is not valid base64", number);
    if (rank >= tok->vocab.n) {
        size_t room = (size_t)rank + 1 + tok->vocab.n / 2; /* grow in steps */
        if (room > TD_TOKENIZER_IDS_MAX) room = TD_TOKENIZER_IDS_MAX;
        if (td_vocab_resize(&tok->vocab, room) != TD_OK) return td_fail(err, TD_ENOMEM, "tiktoken.model: out of memory");
    }
    td_status st = td_vocab_set(&tok->vocab, (uint32_t)rank, bytes, len, true);
    if (st == TD_EFORMAT)
        return td_fail(err, st, "tiktoken.model: line %zu repeats the rank %llu", number, (unsigned long long)rank);
    return st == TD_OK ? st : td_fail(err, st, "tiktoken.model: out of memory");
}

static td_status read_ranks(td_tokenizer *tok, const char *text, size_t len, size_t *n_ranks, td_error *err) {
    size_t number = 0;
    for (size_t at = 0; at < len;) {
        const char *newline = memchr(text + at, '\n', len - at);
        size_t      n = newline ? (size_t)(newline - (text + at)) : len - at;
        number++;
        if (n > 0) {
            TD_TRY(read_line(tok, text + at, n, number, err));
            ++*n_ranks;
        }
        at += n + 1;
    }
    if (*n_ranks == 0) return td_fail(err, TD_EFORMAT, "tiktoken.model is empty");
    for (size_t rank = 0; rank < *n_ranks; rank++)
        if (!tok->vocab.tokens[rank].present) return td_fail(err, TD_EFORMAT, "tiktoken.model: rank %zu is missing", rank);
    tok->vocab.n = *n_ranks; /* ids are dense: what resize added in advance is unused */
    return TD_OK;
}

static td_status derive_merges(td_tokenizer *tok, td_error *err) {
    const td_vocab *v = &tok->vocab;
    for (uint32_t id = 0; id < v->n; id++) {
        const char *bytes = td_vocab_bytes(v, id);
        size_t      len = v->tokens[id].len;
        for (size_t cut = 1; cut < len; cut++) {
            uint32_t left, right;
            if (!td_vocab_find(v, bytes, cut, &left) || !td_vocab_find(v, bytes + cut, len - cut, &right)) continue;
            if (td_bpe_add(&tok->bpe, left, right, id, id) != TD_OK)
                return td_fail(err, TD_ENOMEM, "tiktoken.model: out of memory");
        }
    }
    return TD_OK;
}

static td_status add_special(td_tokenizer *tok, uint32_t first, const json_t *config, td_error *err) {
    const json_t *named = json_object_get(config, "added_tokens_decoder");
    for (uint32_t id = first; id < first + SPECIAL_TOKENS; id++) {
        char key[16];
        snprintf(key, sizeof key, "%u", id);
        const json_t *spec = json_object_get(named, key);
        if (spec) {
            TD_TRY(td_tokenizer_add_token(tok, id, spec, err));
            continue;
        }
        td_added_token reserved = {.id = id, .special = true};
        int            len = asprintf(&reserved.text, "<|reserved_token_%u|>", id);
        if (len < 0) return td_fail(err, TD_ENOMEM, "tiktoken.model: out of memory");
        reserved.len = (size_t)len;
        TD_TRY(td_tokenizer_add(tok, reserved, err));
    }
    return TD_OK;
}

td_status td_tokenizer_read_tiktoken(td_tokenizer *tok, const char *text, size_t len, const json_t *config, td_error *err) {
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    size_t   n_ranks = 0;
    uint32_t twice = 0;
    if (!class || strcmp(class, "TikTokenTokenizer") != 0)
        return td_fail(err, TD_ENOTSUP,
                       "tiktoken.model with tokenizer_class '%.40s' is not supported: only Kimi's TikTokenTokenizer is",
                       class ? class : "");
    TD_TRY(read_ranks(tok, text, len, &n_ranks, err));
    if (n_ranks > TD_TOKENIZER_IDS_MAX - SPECIAL_TOKENS)
        return td_fail(err, TD_EFORMAT, "tiktoken.model has too many ranks");
    td_status st = td_vocab_index(&tok->vocab, &twice);
    if (st == TD_EFORMAT) return td_fail(err, st, "tiktoken.model: the token of rank %u stands there twice", twice);
    if (st != TD_OK || td_bpe_reserve(&tok->bpe, n_ranks) != TD_OK)
        return td_fail(err, TD_ENOMEM, "tiktoken.model: out of memory");
    TD_TRY(td_tokenizer_bind_bytes(tok, err));
    TD_TRY(derive_merges(tok, err));
    TD_TRY(add_special(tok, (uint32_t)n_ranks, config, err));
    TD_TRY(td_pretok_add_split(&tok->pretok, PATTERN, err));
    tok->whole_words = tok->slices = true;
    return TD_OK;
}
