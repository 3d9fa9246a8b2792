#include "server/request/chat_form.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"

#define FORMS 4

/* ---- messages in several forms ---- */

/* A member of a message with two values: `plain` in a form without `bit`, `other` in a form with it. */
typedef struct {
    json_t     *holder;
    const char *key;
    json_t     *plain, *other; /* owned */
    unsigned    bit;
} variant;

typedef struct {
    variant *at;
    size_t   n, room;
    unsigned bits; /* of all */
} variants;

/* Takes plain, also on failure. */
static td_status add_variant(variants *all, json_t *holder, const char *key, json_t *plain, json_t *other, unsigned bit) {
    if (all->n == all->room) {
        size_t   room = all->room ? 2 * all->room : 16;
        variant *at = realloc(all->at, room * sizeof *at);
        if (!at) {
            json_decref(plain);
            return TD_ENOMEM;
        }
        all->at = at;
        all->room = room;
    }
    all->at[all->n++] = (variant){holder, key, plain, json_incref(other), bit};
    all->bits |= bit;
    return TD_OK;
}

static void free_variants(variants *all) {
    for (size_t i = 0; i < all->n; i++) {
        json_decref(all->at[i].plain);
        json_decref(all->at[i].other);
    }
    free(all->at);
}

/* Replaces values of keys that are there: jansson needs no memory for that. */
static void choose(const variants *all, unsigned form) {
    for (size_t i = 0; i < all->n; i++) {
        const variant *v = &all->at[i];
        json_object_set(v->holder, v->key, form & v->bit ? v->other : v->plain);
    }
}

/* Arguments that the client sent as an object: the other value is their JSON, as a model writes it. */
static td_status collect_object(variants *all, json_t *function, json_t *object) {
    char   *text = td_json_dump(object, 0);
    json_t *string = text ? json_string(text) : NULL;
    free(text);
    if (!string) return TD_ENOMEM;
    td_status st = add_variant(all, function, "arguments", json_incref(object), string, TD_FORM_STRING_ARGUMENTS);
    json_decref(string);
    return st;
}

/* Arguments of a call as a string and as an object. A string that holds no object stays; an empty one means no arguments. */
static td_status collect_call(variants *all, json_t *call) {
    json_t      *function = json_object_get(call, "function"), *text = json_object_get(function, "arguments"), *object;
    json_error_t why;
    if (json_is_object(text)) return collect_object(all, function, text);
    if (!json_is_string(text)) return TD_OK;
    bool      empty = json_string_length(text) == 0;
    td_status st = td_json_load(empty ? "{}" : json_string_value(text), empty ? 2 : json_string_length(text),
                                JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &object, &why);
    if (st == TD_EFORMAT) return TD_OK;
    if (st != TD_OK) return st;
    if (json_is_object(object)) return add_variant(all, function, "arguments", object, text, TD_FORM_STRING_ARGUMENTS);
    json_decref(object);
    return TD_OK;
}

static td_status collect(variants *all, json_t *request) {
    const json_t *messages = json_object_get(request, "messages");
    json_t       *empty = json_string("");
    td_status     st = empty ? TD_OK : TD_ENOMEM;
    for (size_t i = 0; i < json_array_size(messages) && st == TD_OK; i++) {
        json_t       *m = json_array_get(messages, i);
        const json_t *calls = json_object_get(m, "tool_calls");
        if (json_is_null(json_object_get(m, "content")))
            st = add_variant(all, m, "content", json_null(), empty, TD_FORM_EMPTY_CONTENT);
        for (size_t k = 0; k < json_array_size(calls) && st == TD_OK; k++) st = collect_call(all, json_array_get(calls, k));
    }
    json_decref(empty);
    return st;
}

/* Give the reasoning before a call the name that the template reads. gpt-oss's template refuses it beside a content. */
static td_status name_thinking(json_t *request) {
    size_t  i;
    json_t *m;
    json_array_foreach(json_object_get(request, "messages"), i, m) {
        json_t *reasoning = json_object_get(m, "reasoning_content");
        bool    bare = json_string_length(json_object_get(m, "content")) == 0;
        if (!json_is_string(reasoning) || !bare || !json_object_get(m, "tool_calls") || json_object_get(m, "thinking"))
            continue;
        if (json_object_set(m, "thinking", reasoning) != 0) return TD_ENOMEM;
    }
    return TD_OK;
}

/* Render the request, whose variants these are, in one form. */
static td_status render_in(const td_chat_form *f, unsigned form, const variants *all, const json_t *request, char **text,
                           size_t *len, td_error *err) {
    choose(all, form);
    return td_chat_template_render_value(f->tmpl, request, f->bos, f->eos, text, len, err);
}

td_status td_chat_form_render(const td_chat_form *f, json_t *request, char **text, size_t *len, td_error *err) {
    variants  all = {0};
    td_error  other = {0};
    td_status st = f->reads_thinking ? name_thinking(request) : TD_OK;
    if (st == TD_OK) st = collect(&all, request);
    st = st == TD_OK ? render_in(f, f->form, &all, request, text, len, err) : td_fail(err, st, "out of memory");
    bool done = st == TD_OK || st == TD_ENOMEM;
    for (unsigned k = 1; k < FORMS && !done; k++) {
        if (k & ~all.bits) continue; /* the same as one that was tried */
        done = render_in(f, f->form ^ k, &all, request, text, len, &other) == TD_OK;
        if (done) st = TD_OK;
    }
    free_variants(&all);
    return st;
}

/* ---- learning ---- */

#define USER "{\"role\":\"user\",\"content\":\"Go\"}"
/* Nine letters and digits: Mistral's templates refuse other ids. */
#define CALL_AFTER(thought)                                                                     \
    "{\"role\":\"assistant\",\"content\":null" thought                                          \
    ",\"tool_calls\":[{\"id\":\"call12345\",\"type\":\"function\","                             \
    "\"function\":{\"name\":\"tdname\",\"arguments\":\"{\\\"tdkey\\\": \\\"tdvalue\\\"}\"}}]}," \
    "{\"role\":\"tool\",\"tool_call_id\":\"call12345\",\"name\":\"tdname\",\"content\":\"Done\"}"
#define CALL CALL_AFTER("")
#define TOOL                                                                                                              \
    "{\"type\":\"function\",\"function\":{\"name\":\"tdname\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{}}}}"
#define THINKING(on) ",\"chat_template_kwargs\":{\"enable_thinking\":" on ",\"thinking\":" on "}"
#define REQUEST(messages, more) "{\"messages\":[" messages "]" more ",\"add_generation_prompt\":true}"

/* The text of a request in one form; NULL: the template does not render it. */
static char *try_form(const td_chat_form *f, const char *request, unsigned form) {
    json_t      *doc;
    json_error_t why;
    variants     all = {0};
    char        *text = NULL;
    size_t       len;
    if (td_json_load(request, strlen(request), 0, &doc, &why) != TD_OK) return NULL;
    if (collect(&all, doc) != TD_OK || render_in(f, form, &all, doc, &text, &len, NULL) != TD_OK) text = NULL;
    free_variants(&all);
    json_decref(doc);
    return text;
}

static size_t count(const char *text, const char *word) {
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, word)); p += strlen(word)) n++;
    return n;
}

/* Whether the text shows the call well: no dict as Python prints it, no JSON within JSON, and no None that is missing in
 * `without`. */
static bool shows_call(const char *text, const char *without) {
    return strstr(text, "tdname") && strstr(text, "tdkey") && strstr(text, "tdvalue") && !strstr(text, "'tdkey'") &&
           !strstr(text, "\\\"tdkey") && count(text, "None") <= count(without, "None");
}

/* Whether the template makes the same text of both. If it refuses one, requests will be told so. */
static bool same_text(const td_chat_form *f, const char *request, const char *other) {
    char *a = try_form(f, request, 0), *b = try_form(f, other, 0);
    bool  same = a && b && !strcmp(a, b);
    free(a);
    free(b);
    return same;
}

static bool shows_thought(const td_chat_form *f, const char *request) {
    char *text = try_form(f, request, f->form);
    bool  shows = text && strstr(text, "tdthought");
    free(text);
    return shows;
}

void td_chat_form_learn(td_chat_form *out, const td_chat_template *tmpl, const char *bos, const char *eos) {
    *out = (td_chat_form){.tmpl = tmpl, .bos = bos, .eos = eos};
    if (!tmpl) return;
    char *without = try_form(out, REQUEST(USER, ""), 0);
    bool  found = !without;
    /* In the order of the bits: an object before a string, null before an empty text. */
    for (unsigned form = 0; form < FORMS && !found; form++) {
        char *text = try_form(out, REQUEST(USER "," CALL, ""), form);
        found = text && shows_call(text, without);
        if (found) out->form = form;
        free(text);
    }
    free(without);
    out->reads_thinking = !shows_thought(out, REQUEST(USER "," CALL_AFTER(",\"reasoning_content\":\"tdthought\""), "")) &&
                          shows_thought(out, REQUEST(USER "," CALL_AFTER(",\"thinking\":\"tdthought\""), ""));
    out->ignores_tools = same_text(out, REQUEST(USER, ""), REQUEST(USER, ",\"tools\":[" TOOL "]"));
    out->ignores_effort =
        same_text(out, REQUEST(USER, ",\"reasoning_effort\":\"low\""), REQUEST(USER, ",\"reasoning_effort\":\"high\""));
    out->ignores_thinking = same_text(out, REQUEST(USER, THINKING("true")), REQUEST(USER, THINKING("false")));
}
