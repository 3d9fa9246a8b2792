#include "eval/task_items.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"

#define CHOICES_MAX 64

/* ---- items ----------------------------------------------------------------------------------- */

static td_eval_kind kind_of(const json_t *item) {
    if (json_object_get(item, "choices")) return TD_EVAL_CHOICE;
    return json_object_get(item, "answer") ? TD_EVAL_MATCH : TD_EVAL_COMPLETE;
}

size_t td_task_right_choice(const json_t *item) {
    const json_t *answer = json_object_get(item, "answer"), *choices = json_object_get(item, "choices");
    size_t        n = json_array_size(choices);
    if (json_is_integer(answer)) {
        json_int_t i = json_integer_value(answer);
        return i >= 0 && (size_t)i < n ? (size_t)i : n;
    }
    const char *text = json_string_value(answer);
    for (size_t i = 0; text && i < n; i++)
        if (!strcmp(text, json_string_value(json_array_get(choices, i)))) return i;
    return text && text[0] >= 'A' && text[0] <= 'Z' && !text[1] && (size_t)(text[0] - 'A') < n ? (size_t)(text[0] - 'A') : n;
}

static td_status check_item(const json_t *item, td_eval_kind kind, const char *path, size_t line, td_error *err) {
    const json_t *choices = json_object_get(item, "choices");
    size_t        n = json_array_size(choices);
    switch (kind) {
        case TD_EVAL_CHOICE:
            if (n < 2 || n > CHOICES_MAX)
                return td_fail(err, TD_EFORMAT, "%s, line %zu: \"choices\" must be a list of 2 to %d texts", path, line,
                               CHOICES_MAX);
            for (size_t i = 0; i < n; i++)
                if (!json_string_length(json_array_get(choices, i)))
                    return td_fail(err, TD_EFORMAT, "%s, line %zu: choice %zu is not a text", path, line, i);
            if (td_task_right_choice(item) == n)
                return td_fail(
                    err, TD_EFORMAT,
                    "%s, line %zu: \"answer\" must be the number of a choice from 0, its letter from A, or its text", path,
                    line);
            return TD_OK;
        case TD_EVAL_MATCH:
            if (!json_string_length(json_object_get(item, "answer")))
                return td_fail(err, TD_EFORMAT, "%s, line %zu: it has no text \"answer\"", path, line);
            return TD_OK;
        default: return TD_OK;
    }
}

static td_status add_line(td_task *t, size_t *room, const char *path, size_t number, const char *line, size_t len,
                          td_error *err) {
    json_error_t why;
    json_t      *item;
    td_status    st = td_json_load(line, len, 0, &item, &why);
    if (st != TD_OK) return td_fail(err, st, "%s, line %zu: %s", path, number, why.text);
    if (!json_is_object(item)) {
        st = td_fail(err, TD_EFORMAT, "%s, line %zu: it is not an object", path, number);
    } else {
        if (t->kind == TD_EVAL_AUTO) t->kind = kind_of(item);
        st = check_item(item, t->kind, path, number, err);
    }
    if (st == TD_OK && t->n == *room) {
        *room = *room ? *room * 2 : 256;
        json_t **more = realloc(t->items, *room * sizeof *more);
        if (more)
            t->items = more;
        else
            st = td_fail(err, TD_ENOMEM, "out of memory for the task");
    }
    if (st == TD_OK)
        t->items[t->n++] = item;
    else
        json_decref(item);
    return st;
}

td_status td_task_read(td_task *t, const char *path, td_eval_kind kind, td_error *err) {
    *t = (td_task){.kind = kind};
    FILE *f = fopen(path, "rb");
    if (!f) return td_fail(err, TD_EIO, "cannot open %s: %s", path, strerror(errno));
    char     *line = NULL;
    size_t    room = 0, items_room = 0, number = 1;
    td_status st = TD_OK;
    for (ssize_t n; st == TD_OK && (n = getline(&line, &room, f)) >= 0; number++) {
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        st = add_line(t, &items_room, path, number, line, (size_t)n, err);
    }
    if (st == TD_OK && ferror(f)) st = td_fail(err, TD_EIO, "cannot read %s: %s", path, strerror(errno));
    if (st == TD_OK && !t->n) st = td_fail(err, TD_EINVAL, "%s has no items", path);
    free(line);
    fclose(f);
    if (st != TD_OK) td_task_close(t);
    return st;
}

void td_task_close(td_task *t) {
    for (size_t i = 0; i < t->n; i++) json_decref(t->items[i]);
    free(t->items);
    *t = (td_task){0};
}

const char *td_task_answer(const td_task *t, size_t index) {
    const json_t *item = t->items[index];
    if (t->kind != TD_EVAL_CHOICE) return json_string_value(json_object_get(item, "answer"));
    return json_string_value(json_array_get(json_object_get(item, "choices"), td_task_right_choice(item)));
}

/* ---- prompts --------------------------------------------------------------------------------- */

td_status td_task_prompt(const char *pattern, const json_t *item, char **out, td_error *err) {
    size_t size;
    FILE  *f = open_memstream(out, &size);
    if (!f) return td_fail(err, TD_ENOMEM, "out of memory for a prompt");
    td_status st = TD_OK;
    for (const char *p = pattern; *p && st == TD_OK;) {
        char   name[64];
        size_t n = *p == '{' ? strspn(p + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") : 0;
        if (!n || n >= sizeof name || p[1 + n] != '}') {
            fputc(*p++, f);
            continue;
        }
        memcpy(name, p + 1, n);
        name[n] = 0;
        const json_t *value = json_object_get(item, name);
        if (json_is_string(value))
            fwrite(json_string_value(value), 1, json_string_length(value), f);
        else
            st = td_fail(err, TD_EINVAL, "the prompt needs a text \"%s\", which the item does not have", name);
        p += n + 2;
    }
    bool failed = ferror(f);
    if ((fclose(f) != 0 || failed) && st == TD_OK) st = td_fail(err, TD_ENOMEM, "out of memory for a prompt");
    if (st != TD_OK) {
        free(*out);
        *out = NULL;
    }
    return st;
}
