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

/* Hide the marker of an image's place in a request, its variants and the text behind it. */
static td_status hide_marker(td_hidden_text *h, json_t *request, const variants *all, json_t **continued, td_error *err) {
    td_hidden_look(h, request);
    td_hidden_look(h, *continued);
    for (size_t i = 0; i < all->n; i++) {
        td_hidden_look(h, all->at[i].plain);
        td_hidden_look(h, all->at[i].other);
    }
    if (!h->occurs) return TD_OK;
    TD_TRY(td_hidden_choose(h, err));
    td_status st = td_hidden_replace(h, &request);
    if (st == TD_OK && *continued) st = td_hidden_replace(h, continued);
    for (size_t i = 0; i < all->n && st == TD_OK; i++) {
        st = td_hidden_replace(h, &all->at[i].plain);
        if (st == TD_OK) st = td_hidden_replace(h, &all->at[i].other);
    }
    return st == TD_OK ? st : td_fail(err, st, "out of memory");
}

/* Render the request, whose variants these are, in one form. */
static td_status render_in(const td_chat_form *f, unsigned form, const variants *all, const json_t *request, char **text,
                           size_t *len, td_error *err) {
    choose(all, form);
    return td_chat_template_render_value(f->tmpl, request, f->markers.bos, f->markers.eos, text, len, err);
}

/* Render in the learnt form; if that fails, in those others that make a difference. */
static td_status render_in_some(const td_chat_form *f, const variants *all, const json_t *request, char **text, size_t *len,
                                td_error *err) {
    td_error  other = {0};
    td_status st = render_in(f, f->form, all, request, text, len, err);
    for (unsigned k = 1; k < FORMS && st != TD_OK && st != TD_ENOMEM; k++) {
        if (k & ~all->bits) continue; /* the same as one that was tried */
        if (render_in(f, f->form ^ k, all, request, text, len, &other) == TD_OK) st = TD_OK;
    }
    return st;
}

static td_status append(td_chat_text *to, const json_t *string) {
    to->continued = json_string_length(string);
    if (!string) return TD_OK;
    char *longer = realloc(to->text, to->len + to->continued + 1);
    if (!longer) return TD_ENOMEM;
    memcpy(longer + to->len, json_string_value(string), to->continued + 1);
    to->text = longer;
    to->len += to->continued;
    return TD_OK;
}

td_status td_chat_form_render(const td_chat_form *f, json_t *request, json_t *continued, td_chat_text *out, td_error *err) {
    variants       all = {0};
    td_hidden_text hidden = {.marker = f->markers.image, .marker_len = f->markers.image_len};
    json_t        *behind = json_incref(continued);
    td_status      st = f->reads_thinking ? name_thinking(request) : TD_OK;
    *out = (td_chat_text){0};
    if (st == TD_OK) st = collect(&all, request);
    if (st != TD_OK) td_fail(err, st, "out of memory");
    if (st == TD_OK && hidden.marker) st = hide_marker(&hidden, request, &all, &behind, err);
    if (st == TD_OK) st = render_in_some(f, &all, request, &out->text, &out->len, err);
    if (st == TD_OK && append(out, behind) != TD_OK) {
        free(out->text);
        st = td_fail(err, TD_ENOMEM, "out of memory");
    }
    memcpy(out->hidden, hidden.stands, sizeof out->hidden);
    free_variants(&all);
    json_decref(behind);
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
#define IMAGE "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Go\"},{\"type\":\"image\"}]}"
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

/* Whether it writes the marker of an image's place once for an image, and not without one. */
static bool shows_image(const td_chat_form *f, const char *with, const char *without) {
    const td_chat_markers *m = &f->markers;
    char                  *a = try_form(f, with, f->form), *b = try_form(f, without, f->form);
    const char            *at = a && b ? memmem(a, strlen(a), m->image, m->image_len) : NULL;
    bool                   once = at && !memmem(at + 1, strlen(at + 1), m->image, m->image_len);
    once = once && !memmem(b, strlen(b), m->image, m->image_len);
    free(a);
    free(b);
    return once;
}

void td_chat_form_learn(td_chat_form *out, const td_chat_template *tmpl, const td_chat_markers *markers) {
    *out = (td_chat_form){.tmpl = tmpl, .markers = *markers};
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
    out->shows_images = markers->image && shows_image(out, REQUEST(IMAGE, ""), REQUEST(USER, ""));
    out->ignores_thinking = same_text(out, REQUEST(USER, THINKING("true")), REQUEST(USER, THINKING("false")));
}
