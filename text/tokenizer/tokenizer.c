/* Encoding and decoding. */
#include "text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/tokenizer_impl.h"
#include "text/tokenizer/tokenizer_utf8.h"

typedef struct {
    const td_tokenizer   *tok;
    td_tokenizer_scratch *scratch;
    bool                  parse_special;
    td_ids               *out;
} encoder;

static td_status append(td_ids *ids, uint32_t id) {
    td_status st = td_ids_reserve(ids, 1);
    if (st == TD_OK) ids->v[ids->n++] = id;
    return st;
}

static td_status on_word(void *user, const char *word, size_t len) {
    encoder            *e = user;
    const td_tokenizer *tok = e->tok;
    uint32_t            id;
    if (tok->whole_words && td_vocab_find(&tok->vocab, word, len, &id)) return append(e->out, id);
    return td_tokenizer_scratch_word(e->scratch, tok->serial, &tok->bpe, word, len, e->out);
}

/* A piece of normalized text, or an added token found in it. */
static td_status on_normalized(void *user, const td_added_token *token, const char *s, size_t len) {
    encoder *e = user;
    if (token) return append(e->out, token->id);
    return td_pretok_run(&e->tok->pretok, e->scratch, s, len, on_word, e);
}

/* A piece of the text as given, or an added token found in it. */
static td_status on_raw(void *user, const td_added_token *token, const char *s, size_t len) {
    encoder *e = user;
    if (token) return append(e->out, token->id);
    char     *normal = NULL;
    size_t    normal_len = 0;
    td_status st = td_norm_apply(&e->tok->norm, s, len, &normal, &normal_len);
    if (st == TD_OK)
        st = td_added_split(&e->tok->added, true, e->parse_special, normal ? normal : s, normal_len, on_normalized, e);
    free(normal);
    return st;
}

static td_status encode_valid(encoder *e, const char *s, size_t len, size_t *n_chars) {
    for (size_t at = 0, slice; at < len; at += slice) {
        slice = e->tok->slices ? td_tiktoken_slice(s + at, len - at, n_chars) : len;
        td_status st = td_added_split(&e->tok->added, false, e->parse_special, s + at, slice, on_raw, e);
        if (st != TD_OK) return st;
    }
    return TD_OK;
}

static td_status encode(encoder *e, const char *text, size_t len) {
    size_t n_chars = 0;
    for (size_t at = 0; at < len;) {
        size_t    valid = td_utf8_valid_prefix(text + at, len - at);
        td_status st = valid ? encode_valid(e, text + at, valid, &n_chars) : td_bpe_word(&e->tok->bpe, text + at, 1, e->out);
        if (st != TD_OK) return st;
        at += valid ? valid : 1;
    }
    return TD_OK;
}

static td_status append_all(td_ids *to, const td_ids *from) {
    td_status st = td_ids_reserve(to, from->n);
    if (st != TD_OK || from->n == 0) return st;
    memcpy(to->v + to->n, from->v, from->n * sizeof *to->v);
    to->n += from->n;
    return TD_OK;
}

td_status td_tokenizer_encode(const td_tokenizer *tok, const char *text, size_t text_len, bool parse_special,
                              bool add_special, uint32_t **ids, size_t *n_ids) {
    td_ids  out = {0};
    encoder e = {.tok = tok, .scratch = td_tokenizer_scratch_get(), .parse_special = parse_special, .out = &out};
    *ids = NULL;
    *n_ids = 0;
    td_status st = e.scratch ? td_ids_reserve(&out, text_len / 4 + 8) : TD_ENOMEM;
    if (st == TD_OK && add_special) st = append_all(&out, &tok->prefix);
    if (st == TD_OK) {
        td_encode_work_begin(&e.scratch->work, text_len);
        st = encode(&e, text, text_len);
    }
    if (st == TD_OK && add_special) st = append_all(&out, &tok->suffix);
    if (st != TD_OK || out.n == 0) {
        free(out.v);
        return st;
    }
    *ids = out.v;
    *n_ids = out.n;
    return TD_OK;
}

td_status td_tokenizer_decode(const td_tokenizer *tok, const uint32_t *ids, size_t n_ids, bool skip_special, char **text,
                              size_t *text_len) {
    size_t total = 0;
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] >= tok->vocab.n || !tok->vocab.tokens[ids[i]].present) return TD_EINVAL;
        total += tok->vocab.tokens[ids[i]].len;
        if (total > SIZE_MAX / 4) return TD_ENOMEM;
    }
    char *out = malloc(TD_UTF8_STREAM_ROOM(total) + 4);
    if (!out) return TD_ENOMEM;
    td_utf8_stream utf8 = {0};
    size_t         n = 0;
    for (size_t i = 0; i < n_ids; i++) {
        const td_token *t = &tok->vocab.tokens[ids[i]];
        if (!(skip_special && t->special)) n += td_utf8_stream_push(&utf8, tok->vocab.bytes + t->offset, t->len, out + n);
    }
    n += td_utf8_stream_finish(&utf8, out + n);
    out[n] = 0;
    char *fitted = realloc(out, n + 1);
    *text = fitted ? fitted : out;
    *text_len = n;
    return TD_OK;
}

size_t td_tokenizer_vocab_size(const td_tokenizer *tok) {
    return tok->vocab.n;
}

const char *td_tokenizer_chat_template(const td_tokenizer *tok) {
    return tok->chat_template;
}
const char *td_tokenizer_bos(const td_tokenizer *tok) {
    return tok->bos;
}
const char *td_tokenizer_eos(const td_tokenizer *tok) {
    return tok->eos;
}

uint32_t td_tokenizer_find(const td_tokenizer *tok, const char *text, size_t len) {
    const td_vocab *v = &tok->vocab;
    uint32_t        id;
    for (size_t i = 0; i < tok->added.n; i++) {
        id = tok->added.v[i].id; /* found by its bytes, since what is looked for in text may be normalized */
        if (v->tokens[id].len == len && !memcmp(td_vocab_bytes(v, id), text, len)) return id;
    }
    return td_vocab_find(v, text, len, &id) ? id : TD_NO_TOKEN;
}

const char *td_tokenizer_token(const td_tokenizer *tok, uint32_t id, size_t *len, bool *special) {
    if (id >= tok->vocab.n || !tok->vocab.tokens[id].present) return NULL;
    *len = tok->vocab.tokens[id].len;
    *special = tok->vocab.tokens[id].special;
    return td_vocab_bytes(&tok->vocab, id);
}

/* Whether some bytes of a text may be in no token. */
static bool loses_bytes(const td_tokenizer *tok) {
    for (size_t i = 0; i < tok->pretok.n; i++)
        if (tok->pretok.stages[i].behaviour == TD_SPLIT_REMOVED) return true;
    for (size_t i = 0; i < tok->added.n; i++)
        if (tok->added.v[i].lstrip || tok->added.v[i].rstrip) return true;
    for (size_t i = 0; i < 256; i++)
        if (tok->bpe.byte_id[i] == TD_BPE_NO_BYTE) return true;
    return false;
}

size_t td_tokenizer_tokens_min(const td_tokenizer *tok, size_t len) {
    size_t longest = tok->vocab.token_len_max * (tok->norm.n ? TD_NORM_SHRINKS_MAX : 1);
    return loses_bytes(tok) ? 0 : len / longest;
}

size_t td_tokenizer_token_len_max(const td_tokenizer *tok) {
    return tok->vocab.token_len_max;
}
