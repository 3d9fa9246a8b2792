#include "quantize/calibration_text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/json_text.h"
#include "eval/scored_text.h"
#include "model/json_file.h"

#define TEXT_BYTES_MAX ((size_t)1 << 30)

/* The documents' tokens so far. */
typedef struct {
    const char             *path;
    td_tokenizer           *tok;
    td_chat_template       *tmpl; /* NULL: none was needed yet */
    uint32_t               *ids;
    size_t                  n, room;
    td_error               *err;
} stream;

static td_status add_document(stream *s, const char *text, size_t len, bool special) {
    uint32_t *ids = NULL;
    size_t    n = 0;
    td_status st = td_tokenizer_encode(s->tok, text, len, special, false, &ids, &n);
    if (st != TD_OK) return td_fail(s->err, st, "%s cannot be tokenised: %s", s->path, td_status_text(st));
    if (s->n + n > s->room) {
        size_t    room = 2 * (s->n + n);
        uint32_t *more = realloc(s->ids, room * sizeof *more);
        if (more) {
            s->ids = more;
            s->room = room;
        } else {
            st = td_fail(s->err, TD_ENOMEM, "out of memory for the tokens of %s", s->path);
        }
    }
    if (st == TD_OK && n) memcpy(s->ids + s->n, ids, n * sizeof *ids);
    if (st == TD_OK) s->n += n;
    free(ids);
    return st;
}

static td_status add_chat(stream *s, const char *line, size_t len, size_t number) {
    const char *source = td_tokenizer_chat_template(s->tok);
    char       *text = NULL;
    size_t      text_len = 0;
    if (!source) return td_fail(s->err, TD_ENOTSUP, "%s, line %zu: it has \"messages\", but the model has no chat template", s->path, number);
    if (!s->tmpl && td_chat_template_compile(source, strlen(source), &s->tmpl, s->err) != TD_OK) return td_fail_within(s->err, "the model's chat template");
    td_status st = td_chat_template_render(s->tmpl, line, len, td_tokenizer_bos(s->tok), td_tokenizer_eos(s->tok), &text, &text_len, s->err);
    if (st != TD_OK) return td_fail_within(s->err, "%s, line %zu", s->path, number);
    st = add_document(s, text, text_len, true);
    free(text);
    return st;
}

static td_status add_line(stream *s, const char *line, size_t len, size_t number) {
    json_error_t why;
    json_t      *object;
    td_status    st = td_json_load(line, len, JSON_ALLOW_NUL, &object, &why);
    if (st != TD_OK) return td_fail(s->err, st, "%s, line %zu: %s", s->path, number, why.text);
    const json_t *text = json_object_get(object, "text");
    if (json_is_string(text))
        st = add_document(s, json_string_value(text), json_string_length(text), false);
    else if (json_is_array(json_object_get(object, "messages")))
        st = add_chat(s, line, len, number);
    else
        st = td_fail(s->err, TD_EFORMAT, "%s, line %zu: it is not an object with a string \"text\" or an array \"messages\"", s->path, number);
    json_decref(object);
    return st;
}

static td_status add_lines(stream *s, const char *text, size_t len) {
    size_t number = 1;
    for (const char *p = text, *end = text + len; p < end; number++) {
        const char *line_end = memchr(p, '\n', (size_t)(end - p));
        size_t      n = (size_t)((line_end ? line_end : end) - p), blank = 0;
        while (blank < n && strchr(" \t\r", p[blank])) blank++;
        if (blank < n) TD_TRY(add_line(s, p, n, number));
        p += n + (line_end != NULL);
    }
    return TD_OK;
}

static td_status check_utf8(const char *path, const char *text, size_t len, td_error *err) {
    size_t line = 1;
    for (size_t at = 0; at < len;) {
        utf8proc_int32_t  c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(len - at), &c);
        if (n < 0) return td_fail(err, TD_EFORMAT, "%s, line %zu: it is not UTF-8", path, line);
        line += c == '\n';
        at += (size_t)n;
    }
    return TD_OK;
}

static td_status read_documents(stream *s, const char *path) {
    char  *text;
    size_t len, n = strlen(path);
    TD_TRY(td_file_read(path, TEXT_BYTES_MAX, &text, &len, s->err));
    td_status st = len ? check_utf8(path, text, len, s->err) : td_fail(s->err, TD_EINVAL, "%s is empty", path);
    if (st == TD_OK) st = n > 6 && !strcmp(path + n - 6, ".jsonl") ? add_lines(s, text, len) : add_document(s, text, len, false);
    free(text);
    return st;
}

static td_status cut(const stream *s, uint64_t tokens, uint32_t window, uint32_t vocab, td_calibration_text *out) {
    uint32_t prefix[TD_TEXT_PREFIX_MAX], n_prefix;
    TD_TRY(td_text_prefix(s->tok, prefix, &n_prefix, s->err));
    if (window < n_prefix + 2) return td_fail(s->err, TD_EINVAL, "calibration windows of %u tokens are too short", window);
    if (tokens < window) return td_fail(s->err, TD_EINVAL, "calibration-tokens %llu is less than one window of %u", (unsigned long long)tokens, window);
    size_t step = window - n_prefix, whole = s->n / step, wanted = tokens / window, n = whole < wanted ? whole : wanted;
    if (!n) return td_fail(s->err, TD_EINVAL, "%s has %zu tokens: too short for a window of %u", s->path, s->n, window);
    *out = (td_calibration_text){.window = window, .n_windows = (uint32_t)n, .ids = malloc(n * window * sizeof *out->ids)};
    if (!out->ids) return td_fail(s->err, TD_ENOMEM, "out of memory for the calibration's tokens");
    for (size_t i = 0; i < n; i++) {
        uint32_t *to = out->ids + i * window;
        memcpy(to, prefix, n_prefix * sizeof *to);
        memcpy(to + n_prefix, s->ids + i * whole / n * step, step * sizeof *to);
    }
    for (size_t i = 0; i < n * window; i++)
        if (out->ids[i] >= vocab) return td_fail(s->err, TD_EINVAL, "%s: the tokenizer gives id %u, but the model's vocabulary is %u", s->path, out->ids[i], vocab);
    out->hash = XXH3_64bits_withSeed(out->ids, n * window * sizeof *out->ids, window);
    return TD_OK;
}

td_status td_calibration_text_read(const char *path, const char *dir, uint64_t tokens, uint32_t window, uint32_t vocab, td_calibration_text *out,
                                   td_error *err) {
    stream s = {.path = path, .err = err};
    *out = (td_calibration_text){0};
    td_status st = td_tokenizer_open(dir, &s.tok, err);
    if (st == TD_OK) st = read_documents(&s, path);
    if (st == TD_OK) st = cut(&s, tokens, window, vocab, out);
    if (st != TD_OK) td_calibration_text_free(out);
    td_chat_template_free(s.tmpl);
    td_tokenizer_close(s.tok);
    free(s.ids);
    return st;
}

void td_calibration_text_free(td_calibration_text *t) {
    free(t->ids);
    *t = (td_calibration_text){0};
}
