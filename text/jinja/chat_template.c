/*
 * Chat templates: compile once, render many requests at once. The body is a tree of statements, or a model's own encoding.
 *
 * The variables of a rendering are those of transformers' apply_chat_template: the request's members and those of its
 * chat_template_kwargs; bos_token and eos_token; and tools, documents (None) and add_generation_prompt (False) where the
 * request has none.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "text/encoding/chat_encoding.h"
#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_exec.h"
#include "text/jinja/jinja_parse.h"
#include "text/jinja/jinja_utf8.h"

struct td_chat_template {
    jj_arena                arena; /* owns the tree */
    jj_stmt                *body;
    char                   *source;   /* as given; NULL beside an encoding */
    const td_chat_encoding *encoding; /* in place of the tree; NULL: none */
};

static const jj_environment ENVIRONMENT = {.filters = {TD_JJ_FILTERS, TD_JJ_LIST_FILTERS},
                                           .tests = TD_JJ_TESTS,
                                           .functions = TD_JJ_FUNCTIONS,
                                           .methods = {[JJ_STR] = TD_JJ_STR_METHODS,
                                                       [JJ_LIST] = TD_JJ_LIST_METHODS,
                                                       [JJ_TUPLE] = TD_JJ_TUPLE_METHODS,
                                                       [JJ_RANGE] = TD_JJ_TUPLE_METHODS,
                                                       [JJ_DICT] = TD_JJ_DICT_METHODS,
                                                       [JJ_LOOP] = TD_JJ_LOOP_METHODS}};

/* The state of a compilation or rendering; NULL: out of memory. */
static jj_state *new_state(td_error *err) {
    jj_state *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->err = err;
    s->env = &ENVIRONMENT;
    td_jj_allow(s, JJ_STEPS_MAX, JJ_TEXT_BYTES_MAX);
    return s;
}

/* The one place where a compilation that fails lands. */
static td_status compile(jj_state *s, const char *source, size_t len, jj_stmt **body) {
    if (setjmp(s->fail)) return s->status;
    td_jj_parse(s, source, len, body);
    return TD_OK;
}

td_status td_chat_template_compile(const char *source, size_t len, td_chat_template **out, td_error *err) {
    *out = NULL;
    if (len > JJ_SOURCE_BYTES_MAX) return td_fail(err, TD_EFORMAT, "the chat template is larger than 4 MiB");
    if (!td_jj_utf8_valid(source, len)) return td_fail(err, TD_EFORMAT, "the chat template is not valid UTF-8");
    td_chat_template *t = calloc(1, sizeof *t);
    jj_state         *s = new_state(err);
    if (!t || !s) {
        free(t);
        free(s);
        return td_fail(err, TD_ENOMEM, "out of memory");
    }
    td_status status = compile(s, source, len, &t->body);
    t->arena = s->arena;
    free(s);
    t->source = strndup(source, len);
    if (status == TD_OK && !t->source) status = td_fail(err, TD_ENOMEM, "out of memory");
    if (status != TD_OK) {
        td_chat_template_free(t);
        return status;
    }
    *out = t;
    return TD_OK;
}

td_status td_chat_template_of_model(const char *model_type, td_chat_template **out, td_error *err) {
    const td_chat_encoding *encoding = td_chat_encoding_find(model_type);
    *out = NULL;
    if (!encoding) return td_fail(err, TD_ENOTFOUND, "models of type '%.64s' have no encoding of chats", model_type);
    *out = calloc(1, sizeof **out);
    if (!*out) return td_fail(err, TD_ENOMEM, "out of memory");
    (*out)->encoding = encoding;
    return TD_OK;
}

void td_chat_template_free(td_chat_template *t) {
    if (!t) return;
    td_jj_arena_free(&t->arena);
    free(t->source);
    free(t);
}

const char *td_chat_template_source(const td_chat_template *t) {
    return t->encoding ? t->encoding->words : t->source;
}

/* ---- the request ---- */

/* Strings stay jansson's: the document outlives the rendering. */
static jj_value value_of_json(jj_state *s, const json_t *json, unsigned depth) {
    if (depth > JJ_JSON_DEPTH_MAX)
        td_jj_fail(s, TD_EINVAL, "the request is nested deeper than %u levels", JJ_JSON_DEPTH_MAX);
    s->given_bytes += 16 + json_string_length(json);
    switch (json_typeof(json)) {
        case JSON_NULL: return JJ_NONE_VALUE;
        case JSON_TRUE: return jj_bool(true);
        case JSON_FALSE: return jj_bool(false);
        case JSON_INTEGER: return jj_int(json_integer_value(json));
        case JSON_REAL: return jj_float(json_real_value(json));
        case JSON_STRING: return td_jj_str(s, json_string_value(json), json_string_length(json));
        case JSON_ARRAY: {
            jj_value list = td_jj_list(s, JJ_LIST);
            for (size_t k = 0; k < json_array_size(json); k++)
                td_jj_append(s, list.u.list, value_of_json(s, json_array_get(json, k), depth + 1));
            return list;
        }
        case JSON_OBJECT: {
            jj_value dict = td_jj_dict(s, JJ_DICT);
            json_t  *object = (json_t *)json; /* jansson's iterators take no const */
            for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
                jj_value key = td_jj_str(s, json_object_iter_key(it), json_object_iter_key_len(it));
                td_jj_dict_add(s, dict.u.dict, key, value_of_json(s, json_object_iter_value(it), depth + 1));
            }
            return dict;
        }
    }
    return JJ_NONE_VALUE;
}

static void set_variable(jj_state *s, jj_dict *vars, const char *name, jj_value v, bool keep) {
    jj_value key = td_jj_str(s, name, strlen(name));
    if (keep && td_jj_dict_get(s, vars, &key)) return;
    td_jj_dict_set(s, vars, key, v);
}

static jj_dict *variables(jj_state *s, const json_t *request, const char *bos, const char *eos) {
    static const char KWARGS[] = "chat_template_kwargs";
    jj_dict          *vars = td_jj_dict(s, JJ_DICT).u.dict;
    if (bos) set_variable(s, vars, "bos_token", td_jj_str(s, bos, strlen(bos)), false);
    if (eos) set_variable(s, vars, "eos_token", td_jj_str(s, eos, strlen(eos)), false);
    jj_value given = value_of_json(s, request, 0);
    for (size_t k = 0; k < given.u.dict->n; k++) td_jj_dict_set(s, vars, given.u.dict->at[k].key, given.u.dict->at[k].value);
    const jj_value *more = td_jj_dict_get_str(s, vars, &(jj_str){KWARGS, sizeof KWARGS - 1, 0});
    if (more && more->kind == JJ_DICT) {
        const jj_dict *d = more->u.dict;
        for (size_t k = 0; k < d->n; k++) td_jj_dict_set(s, vars, d->at[k].key, d->at[k].value);
    } else if (more && more->kind != JJ_NONE) {
        td_jj_fail(s, TD_EINVAL, "chat_template_kwargs is not an object");
    }
    set_variable(s, vars, "tools", JJ_NONE_VALUE, true);
    set_variable(s, vars, "documents", JJ_NONE_VALUE, true);
    set_variable(s, vars, "add_generation_prompt", jj_bool(false), true);
    return vars;
}

/* Short requests have less work done for them: a template that works without end costs a client that asks little. */
static void allow_by_request(jj_state *s) {
    uint64_t steps = JJ_STEPS_LEAST + JJ_STEPS_EACH * (uint64_t)s->given_bytes;
    size_t   text = JJ_TEXT_BYTES_LEAST + JJ_TEXT_BYTES_EACH * s->given_bytes;
    td_jj_allow(s, steps < JJ_STEPS_MAX ? steps : JJ_STEPS_MAX, text < JJ_TEXT_BYTES_MAX ? text : JJ_TEXT_BYTES_MAX);
}

/* The one place where a rendering that fails lands. */
static td_status render(jj_state *s, const td_chat_template *t, const json_t *request, const char *bos, const char *eos,
                        jj_buf *text) {
    if (setjmp(s->fail)) return s->status;
    jj_render r = {.s = s, .vars = variables(s, request, bos, eos), .out = text};
    allow_by_request(s);
    if (t->encoding)
        t->encoding->render(&r);
    else
        td_jj_render(&r, t->body);
    return TD_OK;
}

static td_status take_text(const jj_buf *text, char **out, size_t *out_len, td_error *err) {
    *out = malloc(text->n + 1);
    if (!*out) return td_fail(err, TD_ENOMEM, "out of memory");
    if (text->n) memcpy(*out, text->p, text->n);
    (*out)[text->n] = 0;
    *out_len = text->n;
    return TD_OK;
}

td_status td_chat_template_render_value(const td_chat_template *t, const json_t *request, const char *bos, const char *eos,
                                        char **text, size_t *text_len, td_error *err) {
    *text = NULL;
    *text_len = 0;
    if ((bos && !td_jj_utf8_valid(bos, strlen(bos))) || (eos && !td_jj_utf8_valid(eos, strlen(eos))))
        return td_fail(err, TD_EINVAL, "bos_token or eos_token is not valid UTF-8");
    if (!json_is_object(request)) return td_fail(err, TD_EINVAL, "the chat request is not an object");
    jj_state *s = new_state(err);
    if (!s) return td_fail(err, TD_ENOMEM, "out of memory");
    jj_buf    out = {0};
    td_status status = render(s, t, request, bos, eos, &out);
    if (status == TD_OK) status = take_text(&out, text, text_len, err);
    td_jj_arena_free(&s->arena);
    free(s);
    return status;
}

td_status td_chat_template_render(const td_chat_template *t, const char *request_json, size_t request_len, const char *bos,
                                  const char *eos, char **text, size_t *text_len, td_error *err) {
    json_error_t problem;
    json_t      *request;
    *text = NULL;
    *text_len = 0;
    td_status status = td_json_load(request_json, request_len, JSON_ALLOW_NUL, &request, &problem);
    if (status == TD_EFORMAT) return td_fail(err, TD_EINVAL, "the chat request is not valid JSON: %s", problem.text);
    if (status != TD_OK) return td_fail(err, status, "out of memory");
    status = td_chat_template_render_value(t, request, bos, eos, text, text_len, err);
    json_decref(request);
    return status;
}
