#include "eval/scored_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "core/plural.h"

#define TEXT_BYTES_MAX ((size_t)1 << 32)

static td_status read_whole(const char *path, char **text, size_t *len, td_error *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return td_fail(err, TD_EIO, "cannot open %s: %s", path, strerror(errno));
    size_t    room = (size_t)1 << 20;
    td_status st = TD_OK;
    *text = malloc(room);
    *len = 0;
    while (*text && !feof(f) && !ferror(f)) {
        *len += fread(*text + *len, 1, room - *len, f);
        if (*len < room) continue;
        char *more = room < TEXT_BYTES_MAX ? realloc(*text, room * 2) : NULL;
        if (!more) break;
        *text = more;
        room *= 2;
    }
    if (ferror(f))
        st = td_fail(err, TD_EIO, "cannot read %s: %s", path, strerror(errno));
    else if (!feof(f))
        st = td_fail(err, TD_ENOMEM, "%s is too large for this machine's memory", path);
    fclose(f);
    return st;
}

td_status td_text_prefix(const td_tokenizer *tok, uint32_t prefix[TD_TEXT_PREFIX_MAX], uint32_t *n_prefix, td_error *err) {
    uint32_t *plain = NULL, *whole = NULL;
    size_t    n_plain = 0, n = 0, at = 0;
    td_status st = td_tokenizer_encode(tok, "a", 1, false, false, &plain, &n_plain);
    if (st == TD_OK) st = td_tokenizer_encode(tok, "a", 1, false, true, &whole, &n);
    if (st != TD_OK) {
        st = td_fail(err, st, "the tokenizer: %s", td_status_text(st));
    } else {
        while (at + n_plain <= n && memcmp(whole + at, plain, n_plain * sizeof *plain)) at++;
        if (at + n_plain > n || at > TD_TEXT_PREFIX_MAX)
            st = td_fail(err, TD_ENOTSUP,
                         "the tokenizer's special tokens are not a short prefix: there is no protocol for that");
        else
            memcpy(prefix, whole, (*n_prefix = (uint32_t)at) * sizeof *whole);
    }
    free(plain);
    free(whole);
    return st;
}

static td_status add_window(td_scored_text *t, uint64_t *room, const td_text_window *w, td_error *err) {
    if (t->n_windows == *room) {
        *room = *room ? *room * 2 : 256;
        td_text_window *more = realloc(t->windows, *room * sizeof *more);
        if (!more) return td_fail(err, TD_ENOMEM, "out of memory for the text's windows");
        t->windows = more;
    }
    t->windows[t->n_windows++] = *w;
    t->n_scored += w->n - w->first_scored;
    t->n_fed += td_window_rows(t, w);
    return TD_OK;
}

static td_status cut_windows(td_scored_text *t, uint64_t *room, uint64_t begin, uint64_t end, td_error *err) {
    uint64_t done = begin; /* scored up to here */
    for (uint64_t b = begin; b < end; b += t->protocol.stride) {
        uint64_t       e = end - b < t->protocol.window ? end : b + t->protocol.window, first = done - b;
        td_text_window w = {.begin = b, .n = (uint32_t)(e - b), .first_scored = (uint32_t)first};
        if (!t->n_prefix && w.first_scored == 0) w.first_scored = 1; /* nothing stands before it */
        if (w.first_scored < w.n) TD_TRY(add_window(t, room, &w, err));
        done = e;
        if (e == end) break;
    }
    return TD_OK;
}

static bool is_blank(const char *s, size_t n) {
    while (n && memchr(" \t\r", *s, 3)) s++, n--;
    return n == 0;
}

td_status td_text_each_line(const char *path, const char *text, size_t len, td_take_text_line take, void *user,
                            td_error *err) {
    td_status st = TD_OK;
    bool      stop = false;
    size_t    number = 1;
    for (const char *p = text, *end = text + len; st == TD_OK && !stop && p < end; number++) {
        const char  *line_end = memchr(p, '\n', (size_t)(end - p));
        td_text_line line = {.text = p, .len = (size_t)((line_end ? line_end : end) - p), .number = number};
        json_error_t why;
        json_t      *object;
        p += line.len + (line_end != NULL);
        if (is_blank(line.text, line.len)) continue;
        st = td_json_load(line.text, line.len, JSON_ALLOW_NUL, &object, &why);
        if (st != TD_OK) return td_fail(err, st, "%s, line %zu: %s", path, number, why.text);
        line.object = object;
        st = take(user, &line, &stop, err);
        json_decref(object);
    }
    return st;
}

/* A text on its way to windows. */
typedef struct {
    const char         *path;
    const td_tokenizer *tok;
    td_scored_text     *out;
    uint64_t            room; /* of out->windows */
    XXH3_state_t       *hash;
} reading;

static td_status add_document(reading *r, const char *text, size_t len, td_error *err) {
    td_scored_text *t = r->out;
    uint32_t       *ids = NULL;
    size_t          n = 0;
    td_status       st = td_tokenizer_encode(r->tok, text, len, false, false, &ids, &n);
    if (st != TD_OK) return td_fail(err, st, "the text cannot be tokenised: %s", td_status_text(st));
    uint64_t  left = t->protocol.limit ? t->protocol.limit - t->n_ids : UINT64_MAX, size = n < left ? n : left;
    uint32_t *more = realloc(t->ids, (t->n_ids + size + 1) * sizeof *more);
    if (more) {
        t->ids = more;
        if (size) memcpy(more + t->n_ids, ids, size * sizeof *ids);
        XXH3_64bits_update(r->hash, &size, sizeof size);
        if (size) XXH3_64bits_update(r->hash, ids, size * sizeof *ids);
        st = cut_windows(t, &r->room, t->n_ids, t->n_ids + size, err);
        t->n_ids += size;
        t->n_documents++;
    } else {
        st = td_fail(err, TD_ENOMEM, "out of memory for the text's tokens");
    }
    free(ids);
    return st;
}

static td_status add_line(void *user, const td_text_line *line, bool *full, td_error *err) {
    reading      *r = user;
    const json_t *text = json_object_get(line->object, "text");
    if (!json_is_string(text))
        return td_fail(err, TD_EFORMAT, "%s, line %zu: it is not an object with a string \"text\"", r->path, line->number);
    TD_TRY(add_document(r, json_string_value(text), json_string_length(text), err));
    *full = r->out->protocol.limit && r->out->n_ids == r->out->protocol.limit;
    return TD_OK;
}

td_status td_scored_text_open(const char *path, const td_tokenizer *tok, const td_text_protocol *p, td_scored_text *out,
                              td_error *err) {
    *out = (td_scored_text){.protocol = *p};
    if (p->window < 2) return td_fail(err, TD_EINVAL, "window %u: at least 2 tokens are needed", p->window);
    if (p->stride < 1 || p->stride > p->window)
        return td_fail(err, TD_EINVAL, "stride %u is outside [1, %u], the window", p->stride, p->window);
    char     *text = NULL;
    size_t    len = 0, n_name = strlen(path);
    bool      lines = n_name > 6 && !strcmp(path + n_name - 6, ".jsonl");
    reading   r = {.path = path, .tok = tok, .out = out, .hash = XXH3_createState()};
    td_status st = r.hash ? read_whole(path, &text, &len, err) : td_fail(err, TD_ENOMEM, "out of memory for the text");
    if (st == TD_OK) st = td_text_prefix(tok, out->prefix, &out->n_prefix, err);
    if (st == TD_OK) {
        XXH3_64bits_reset(r.hash);
        XXH3_64bits_update(r.hash, out->prefix, out->n_prefix * sizeof *out->prefix);
        st = lines ? td_text_each_line(path, text, len, add_line, &r, err) : add_document(&r, text, len, err);
        out->hash = XXH3_64bits_digest(r.hash);
    }
    if (st == TD_OK && !out->n_scored)
        st = td_fail(err, TD_EINVAL, "%s has %llu token%s in %llu document%s: none of them can be scored", path,
                     (unsigned long long)out->n_ids, td_plural(out->n_ids), (unsigned long long)out->n_documents,
                     td_plural(out->n_documents));
    XXH3_freeState(r.hash);
    free(text);
    if (st != TD_OK) td_scored_text_close(out);
    return st;
}

void td_scored_text_close(td_scored_text *t) {
    free(t->ids);
    free(t->windows);
    *t = (td_scored_text){0};
}

td_status td_scored_text_check_ids(const td_scored_text *t, uint32_t vocab, td_error *err) {
    for (uint64_t i = 0; i < t->n_ids; i++)
        if (t->ids[i] >= vocab)
            return td_fail(err, TD_EINVAL, "token %llu of the text has id %u, but the model's vocabulary is %u",
                           (unsigned long long)i, t->ids[i], vocab);
    for (uint32_t i = 0; i < t->n_prefix; i++)
        if (t->prefix[i] >= vocab)
            return td_fail(err, TD_EINVAL, "the tokenizer begins texts with id %u, but the model's vocabulary is %u",
                           t->prefix[i], vocab);
    return TD_OK;
}
