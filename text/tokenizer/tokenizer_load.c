/* Loading a tokenizer: the files of a folder, what all formats share, and the structure's life. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "core/log/log.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_impl.h"

#define FILE_BYTES_MAX ((off_t)256 << 20) /* the largest tokenizer.json in use has 33 MB */

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

static td_status read_all(td_tokenizer *tok, const td_tokenizer_files *f, td_error *err) {
    json_t   *config = NULL;
    td_status st = TD_OK;
    if (f->tokenizer_config)
        TD_TRY(td_tokenizer_parse(f->tokenizer_config, f->tokenizer_config_len, "tokenizer_config.json", &config, err));
    if (f->tokenizer_json)
        st = td_tokenizer_read_json(tok, f->tokenizer_json, f->tokenizer_json_len, err);
    else if (f->tiktoken_model && config)
        st = td_tokenizer_read_tiktoken(tok, f->tiktoken_model, f->tiktoken_model_len, config, err);
    else
        st = td_fail(err, TD_ENOTFOUND, "there is no tokenizer.json, nor tiktoken.model with tokenizer_config.json");
    if (st == TD_OK && config) st = td_tokenizer_read_config(tok, config, err);
    json_decref(config);
    if (st == TD_OK && f->chat_template) {
        free(tok->chat_template);
        tok->chat_template = strndup(f->chat_template, f->chat_template_len);
        if (!tok->chat_template) st = td_fail(err, TD_ENOMEM, "chat_template.jinja: out of memory");
    }
    return st;
}

td_status td_tokenizer_load(const td_tokenizer_files *files, td_tokenizer **out, td_error *err) {
    static _Atomic uint64_t serials;
    td_error                own = {0};
    td_tokenizer           *tok = calloc(1, sizeof *tok);
    if (!err) err = &own;
    if (!tok) return td_fail(err, TD_ENOMEM, "tokenizer: out of memory");
    tok->serial = 1 + atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed); /* unique is all it has to be */
    td_status st = read_all(tok, files, err);
    if (st != TD_OK) {
        td_tokenizer_close(tok);
        return st;
    }
    *out = tok;
    return TD_OK;
}

void td_tokenizer_close(td_tokenizer *tok) {
    if (!tok) return;
    td_vocab_free(&tok->vocab);
    td_bpe_free(&tok->bpe);
    td_pretok_free(&tok->pretok);
    td_added_free(&tok->added);
    free(tok->prefix.v);
    free(tok->suffix.v);
    free(tok->chat_template);
    free(tok->bos);
    free(tok->eos);
    free(tok);
}

/* The whole of dir/name in *text (malloc'd, terminated); NULL when there is no such file. */
static td_status read_file(const char *dir, const char *name, char **text, size_t *len, td_error *err) {
    char path[4096];
    *text = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return td_fail(err, TD_EINVAL, "the path of %s is too long", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO's opening would wait */
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return TD_OK;
    if (fd < 0) return td_fail(err, TD_EIO, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    td_status   status = TD_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        status = td_fail(err, TD_EIO, "%s is not a regular file", path);
    } else if (st.st_size > FILE_BYTES_MAX) {
        status = td_fail(err, TD_EFORMAT, "%s is larger than %lld MiB", path, (long long)(FILE_BYTES_MAX >> 20));
    } else if (!(*text = malloc((size_t)st.st_size + 1))) {
        status = td_fail(err, TD_ENOMEM, "%s: out of memory", path);
    } else {
        size_t  n = 0;
        ssize_t got = 0;
        while (n < (size_t)st.st_size &&
               ((got = read(fd, *text + n, (size_t)st.st_size - n)) > 0 || (got < 0 && errno == EINTR)))
            n += got > 0 ? (size_t)got : 0;
        if (got < 0) status = td_fail(err, TD_EIO, "cannot read %s: %s", path, strerror(errno));
        (*text)[n] = 0;
        *len = n;
    }
    close(fd);
    return status;
}

td_status td_tokenizer_open(const char *dir, td_tokenizer **out, td_error *err) {
    char                    *text[4] = {NULL};
    size_t                   len[4] = {0};
    static const char *const NAMES[4] = {"tokenizer.json", "tiktoken.model", "tokenizer_config.json", "chat_template.jinja"};
    td_error                 own = {0};
    td_status                st = TD_OK;
    if (!err) err = &own;
    for (int i = 0; i < 4 && st == TD_OK; i++)
        if (i != 1 || !text[0]) st = read_file(dir, NAMES[i], &text[i], &len[i], err);
    if (st == TD_OK) {
        td_tokenizer_files files = {text[0], len[0], text[1], len[1], text[2], len[2], text[3], len[3]};
        st = td_tokenizer_load(&files, out, err);
        if (st != TD_OK) td_fail_within(err, "%s", dir);
    }
    for (int i = 0; i < 4; i++) free(text[i]);
    return st;
}
