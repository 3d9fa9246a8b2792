#include "quantize/calibration_text.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/plural.h"
#include "eval/scored_text.h"
#include "text/tokenizer/tokenizer_utf8.h"

#define TEXT_BYTES_MAX ((size_t)1 << 30)

/* The documents' tokens so far. */
typedef struct {
    const char       *path;
    td_tokenizer     *tok;
    td_chat_template *tmpl; /* NULL: none was needed yet */
    uint32_t         *ids;
    size_t            n, room;
    td_error         *err;
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
    if (!source)
        return td_fail(s->err, TD_ENOTSUP, "%s, line %zu: it has \"messages\", but the model has no chat template", s->path,
                       number);
    if (!s->tmpl && td_chat_template_compile(source, strlen(source), &s->tmpl, s->err) != TD_OK)
        return td_fail_within(s->err, "the model's chat template");
    td_status st = td_chat_template_render(s->tmpl, line, len, td_tokenizer_bos(s->tok), td_tokenizer_eos(s->tok), &text,
                                           &text_len, s->err);
    if (st != TD_OK) return td_fail_within(s->err, "%s, line %zu", s->path, number);
    st = add_document(s, text, text_len, true);
    free(text);
    return st;
}

/* Templates render what they do not find as nothing: a chat in other fields would calibrate for empty turns. */
static bool is_chat(const json_t *messages) {
    const json_t *m;
    size_t        i;
    json_array_foreach(messages, i,
                       m) if (!json_is_string(json_object_get(m, "role")) ||
                              (!json_object_get(m, "content") && !json_object_get(m, "tool_calls"))) return false;
    return json_array_size(messages) > 0;
}

static td_status add_line(void *user, const td_text_line *line, bool *stop, td_error *err) {
    stream       *s = user;
    const json_t *text = json_object_get(line->object, "text");
    (void)stop; /* windows are taken from all of it */
    if (json_is_string(text)) return add_document(s, json_string_value(text), json_string_length(text), false);
    const json_t *messages = json_object_get(line->object, "messages");
    if (json_is_array(messages) && !is_chat(messages))
        return td_fail(err, TD_EFORMAT, "%s, line %zu: \"messages\" must be a list of objects with \"role\" and \"content\"",
                       s->path, line->number);
    if (json_is_array(messages)) return add_chat(s, line->text, line->len, line->number);
    return td_fail(err, TD_EFORMAT, "%s, line %zu: it is not an object with a string \"text\" or an array \"messages\"",
                   s->path, line->number);
}

static td_status check_utf8(const char *path, const char *text, size_t len, td_error *err) {
    size_t valid = td_utf8_valid_prefix(text, len), line = 1;
    if (valid == len) return TD_OK;
    for (size_t i = 0; i < valid; i++) line += text[i] == '\n';
    return td_fail(err, TD_EFORMAT, "%s, line %zu: it is not UTF-8", path, line);
}

static td_status read_documents(stream *s, const char *path) {
    char  *text;
    size_t len, n = strlen(path);
    TD_TRY(td_file_read(path, TEXT_BYTES_MAX, &text, &len, s->err));
    td_status st = len ? check_utf8(path, text, len, s->err) : td_fail(s->err, TD_EINVAL, "%s is empty", path);
    if (st == TD_OK)
        st = n > 6 && !strcmp(path + n - 6, ".jsonl") ? td_text_each_line(path, text, len, add_line, s, s->err)
                                                      : add_document(s, text, len, false);
    free(text);
    return st;
}

static td_status cut(const stream *s, uint64_t tokens, uint32_t window, uint32_t vocab, td_calibration_text *out) {
    uint32_t prefix[TD_TEXT_PREFIX_MAX], n_prefix;
    TD_TRY(td_text_prefix(s->tok, prefix, &n_prefix, s->err));
    if (window < n_prefix + 2) return td_fail(s->err, TD_EINVAL, "calibration windows of %u tokens are too short", window);
    if (tokens < window)
        return td_fail(s->err, TD_EINVAL, "calibration-tokens %llu is less than one window of %u",
                       (unsigned long long)tokens, window);
    size_t step = window - n_prefix, whole = s->n / step, wanted = tokens / window, n = whole < wanted ? whole : wanted;
    if (!n)
        return td_fail(s->err, TD_EINVAL, "%s has %zu token%s: too short for a window of %u", s->path, s->n, td_plural(s->n),
                       window);
    *out = (td_calibration_text){.window = window, .n_windows = (uint32_t)n, .ids = malloc(n * window * sizeof *out->ids)};
    if (!out->ids) return td_fail(s->err, TD_ENOMEM, "out of memory for the calibration's tokens");
    for (size_t i = 0; i < n; i++) {
        uint32_t *to = out->ids + i * window;
        memcpy(to, prefix, n_prefix * sizeof *to);
        memcpy(to + n_prefix, s->ids + i * whole / n * step, step * sizeof *to);
    }
    for (size_t i = 0; i < n * window; i++)
        if (out->ids[i] >= vocab)
            return td_fail(s->err, TD_EINVAL, "%s: the tokenizer gives id %u, but the model's vocabulary is %u", s->path,
                           out->ids[i], vocab);
    out->hash = XXH3_64bits_withSeed(out->ids, n * window * sizeof *out->ids, window);
    return TD_OK;
}

td_status td_calibration_text_read(const char *path, const char *dir, uint64_t tokens, uint32_t window, uint32_t vocab,
                                   td_calibration_text *out, td_error *err) {
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
