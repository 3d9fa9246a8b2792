/* What the readers of all formats build a tokenizer with. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "core/log/log.h"
#include "text/tokenizer/tokenizer_impl.h"

td_status td_tokenizer_parse(const char *text, size_t len, const char *what, json_t **out, td_error *err) {
    json_error_t e;
    td_status    st = td_json_load(text, len, JSON_REJECT_DUPLICATES, out, &e);
    if (st == TD_OK) return st;
    if (st == TD_ENOMEM) return td_fail(err, st, "out of memory for %s", what);
    return td_fail(err, TD_EFORMAT, "%s is not valid JSON: %s (line %d)", what, e.text, e.line);
}

td_status td_tokenizer_id(const json_t *value, const char *what, uint32_t *id, td_error *err) {
    if (!json_is_integer(value)) return td_fail(err, TD_EFORMAT, "%s: an id is missing or not an integer", what);
    json_int_t v = json_integer_value(value);
    if (v < 0 || v >= TD_TOKENIZER_IDS_MAX)
        return td_fail(err, TD_EFORMAT, "%s: id %lld is outside [0, %u)", what, (long long)v, TD_TOKENIZER_IDS_MAX);
    *id = (uint32_t)v;
    return TD_OK;
}

td_status td_tokenizer_bind_bytes(td_tokenizer *tok, td_error *err) {
    unsigned missing = 0;
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b;
        if (td_vocab_find(&tok->vocab, &c, 1, &tok->bpe.byte_id[b])) continue;
        if (b >= ' ' && b <= '~')
            return td_fail(err, TD_EFORMAT, "the vocabulary has no token for the byte 0x%02X: not a byte-level vocabulary",
                           b);
        tok->bpe.byte_id[b] = TD_BPE_NO_BYTE;
        missing++;
    }
    if (missing) td_warn("the vocabulary has no tokens for %u of the 256 bytes: text loses them", missing);
    return TD_OK;
}

/* Give the token its id in the vocabulary; fine when it stands there with the same text. */
static td_status place(td_tokenizer *tok, const td_added_token *t, td_error *err) {
    td_vocab *v = &tok->vocab;
    if (t->len > TD_TOKENIZER_TOKEN_MAX) return td_fail(err, TD_EFORMAT, "added token %u is too long", t->id);
    if (td_vocab_resize(v, (size_t)t->id + 1) != TD_OK) return td_fail(err, TD_ENOMEM, "added tokens: out of memory");
    td_token *token = &v->tokens[t->id];
    if (!token->present) {
        td_status st = td_vocab_set(v, t->id, t->text, t->len, false);
        if (st != TD_OK) return td_fail(err, st, "added tokens: out of memory");
    } else if (token->len != t->len || memcmp(td_vocab_bytes(v, t->id), t->text, t->len) != 0) {
        return td_fail(err, TD_EFORMAT, "added token '%.60s' has the id %u of another token", t->text, t->id);
    }
    token->special |= t->special;
    return TD_OK;
}

td_status td_tokenizer_add(td_tokenizer *tok, td_added_token t, td_error *err) {
    td_status st = t.len ? place(tok, &t, err) : TD_OK;
    if (st == TD_OK && t.len && t.normalized) {
        char  *normal = NULL;
        size_t len = 0;
        st = td_norm_apply(&tok->norm, t.text, t.len, &normal, &len);
        if (st != TD_OK) st = td_fail(err, st, "added token %u cannot be normalized", t.id);
        if (normal) {
            free(t.text);
            t.text = normal;
            t.len = len;
        }
    }
    if (st != TD_OK || t.len == 0) {
        free(t.text);
        return st;
    }
    st = td_added_add(&tok->added, t);
    return st == TD_OK ? st : td_fail(err, st, "added tokens: out of memory");
}

td_status td_tokenizer_add_token(td_tokenizer *tok, uint32_t id, const json_t *spec, td_error *err) {
    const json_t *content = json_object_get(spec, "content"), *normalized = json_object_get(spec, "normalized");
    if (!json_is_string(content)) return td_fail(err, TD_EFORMAT, "added token %u has no content", id);
    td_added_token t = {.id = id,
                        .len = json_string_length(content),
                        .special = json_is_true(json_object_get(spec, "special")),
                        .single_word = json_is_true(json_object_get(spec, "single_word")),
                        .lstrip = json_is_true(json_object_get(spec, "lstrip")),
                        .rstrip = json_is_true(json_object_get(spec, "rstrip"))};
    t.normalized = normalized ? json_is_true(normalized) : !t.special;
    t.text = strdup(json_string_value(content));
    if (!t.text) return td_fail(err, TD_ENOMEM, "added tokens: out of memory");
    return td_tokenizer_add(tok, t, err);
}
