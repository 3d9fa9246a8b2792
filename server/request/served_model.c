#include "server/request/served_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "server/request/api_read.h"

#define FORCED_CALLS "json-list" /* the format of the calls that tool_choice forces a model to write */

/* Writes the last part of a path. Of "." and "..", which name no folder, it takes the folder that they are. */
static int folder_name(const char *path, char *out, size_t bytes) {
    char  *real = NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (path[n - 1] == '.' && (n == 1 || path[n - 2] == '/' || path[n - 2] == '.') && (real = realpath(path, NULL)))
        n = strlen(path = real);
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    int len = snprintf(out, bytes, "%.*s", (int)(n - from), path + from);
    free(real);
    return len;
}

/* Names from "a,b", or from the model's path. */
static td_status set_names(td_served_model *m, const char *given, td_error *err) {
    const char *path = m->info.model_path ? m->info.model_path : ".";
    int         len = given ? snprintf(m->name_bytes, sizeof m->name_bytes, "%s", given)
                            : folder_name(path, m->name_bytes, sizeof m->name_bytes);
    if (len < 0 || (size_t)len >= sizeof m->name_bytes)
        return td_fail(err, TD_EINVAL, "the served model name has more than %zu bytes", sizeof m->name_bytes - 1);
    for (char *name = m->name_bytes; name;) {
        char *comma = given ? strchr(name, ',') : NULL;
        if (comma) *comma = 0;
        if (!*name) return td_fail(err, TD_EINVAL, "served-model-name '%.200s' has an empty name", given ? given : path);
        if (m->n_names == TD_MODEL_NAMES_MAX)
            return td_fail(err, TD_EINVAL, "served-model-name has more than %d names", TD_MODEL_NAMES_MAX);
        m->names[m->n_names++] = name;
        name = comma ? comma + 1 : NULL;
    }
    m->name = m->names[0];
    return TD_OK;
}

/* The format that a flag names; NULL: none. "auto" asks the chat template. */
static const char *choose_format(const td_served_model *m, const char *flag, const char *value,
                                 const char *(*of_template)(const char *template_text)) {
    if (!strcmp(value, "none")) return NULL;
    if (strcmp(value, "auto") != 0) return value;
    const char *found = m->chat.tmpl ? of_template(td_chat_template_source(m->chat.tmpl)) : NULL;
    if (found) td_info("--%s %s, by the chat template", flag, found);
    return found;
}

static td_status choose_formats(td_served_model *m, const td_served_model_options *o, td_error *err) {
    m->tool_format = choose_format(m, "tool-call-parser", o->tool_call_parser, td_tool_format_of_template);
    m->reasoning_format = choose_format(m, "reasoning-parser", o->reasoning_parser, td_reasoning_format_of_template);
    m->tools_in_special = td_answer_in_special_tokens(m->tool_format, NULL, m->tokenizer);
    m->reasoning_in_special = td_answer_in_special_tokens(NULL, m->reasoning_format, m->tokenizer);
    td_answer_parser *p;
    TD_TRY(td_answer_parser_new(
        &(td_answer_parser_options){.tool_format = m->tool_format, .reasoning_format = m->reasoning_format}, &p, err));
    td_answer_parser_free(p);
    return TD_OK;
}

/* The texts that the chat template writes for special tokens. */
static td_chat_markers markers_of(const td_served_model *m) {
    td_chat_markers markers = {0};
    bool            special;
    if (!m->tokenizer) return markers;
    markers.bos = td_tokenizer_bos(m->tokenizer);
    markers.eos = td_tokenizer_eos(m->tokenizer);
    if (m->info.image_token != UINT32_MAX)
        markers.image = td_tokenizer_token(m->tokenizer, m->info.image_token, &markers.image_len, &special);
    return markers;
}

td_status td_served_model_open(td_served_model *m, td_engine *engine, const td_served_model_options *o, td_error *err) {
    m->engine = engine;
    td_engine_get_info(engine, &m->info);
    m->tokenizer = td_engine_tokenizer(engine);
    const td_chat_markers markers = markers_of(m);
    td_chat_form_learn(&m->chat, td_engine_chat_template(engine), &markers);
    TD_TRY(set_names(m, o->names, err));
    return choose_formats(m, o, err);
}

td_status td_check_model(const td_served_model *m, const char *name, td_api_error *err) {
    if (!name) return TD_OK;
    for (uint32_t i = 0; i < m->n_names; i++)
        if (!strcmp(name, m->names[i])) return TD_OK;
    td_api_fail(err, 404, "model_not_found", "The model '%.200s' does not exist; this server has '%s'.", name, m->name);
    strcpy(err->param, "model");
    return TD_EINVAL;
}

/* Sets which of the model's formats the answer is parsed by, and encodes the prompts. With a grammar the text is forced
 * calls, or content alone; reasoning may stand before it if its format marks where reasoning ends. */
static td_status encode(const td_served_model *m, td_api_request *r, td_api_error *err) {
    const char *reasoning = r->form == TD_READ_CHAT ? m->reasoning_format : NULL;
    if (r->grammar.is_asked) {
        r->parts.tool_format = r->grammar.forces_call ? FORCED_CALLS : NULL;
        r->parts.reasoning_format = reasoning && td_reasoning_format_ends(reasoning) ? reasoning : NULL;
    } else {
        r->parts.tool_format = r->parts.tools ? m->tool_format : NULL;
        r->parts.reasoning_format = r->parts.separate_reasoning ? reasoning : NULL;
    }
    bool own_calls = r->parts.tool_format && !r->grammar.forces_call;
    r->parts.keeps_special = (own_calls && m->tools_in_special) || (r->parts.reasoning_format && m->reasoning_in_special);
    const td_api_encoding with = td_served_encoding(m);
    return td_api_encode(r, &with, err);
}

/* Compiles the request's grammars, and has the engine get them ready for its vocabulary. */
static td_status prepare_grammars(td_served_model *m, td_api_request *r, td_api_error *err) {
    TD_TRY(td_api_compile_grammar(r, &m->grammars, err));
    for (size_t i = 0; i < (r->each ? r->n_prompts : 1); i++) {
        const td_api_request *own = td_api_of_prompt(r, i);
        td_error              cause = {0};
        td_status st = own->grammar.compiled ? td_engine_prepare_grammar(m->engine, own->grammar.compiled, &cause) : TD_OK;
        if (st != TD_OK) return td_api_from_status(err, st, &cause, own->grammar.param);
    }
    return TD_OK;
}

td_status td_api_prepare(td_api_request *r, td_served_model *m, td_api_error *err) {
    TD_TRY(td_check_model(m, r->model, err));
    if (!td_api_find_grammar(r, &m->grammars)) TD_TRY(prepare_grammars(m, r, err));
    td_api_add_grammar_warnings(r);
    return encode(m, r, err);
}
