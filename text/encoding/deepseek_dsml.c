/* Messages, tools and calls of DeepSeek-V3.2 and V4. */
#include "text/encoding/deepseek_dsml.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/jinja_compare.h"
#include "text/jinja/jinja_json.h"

void td_dsml_refuse(jj_state *s, const char *fmt, ...) {
    char    text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    td_jj_raise(s, text, strlen(text));
}

/* ---- reading ---- */

const jj_value *td_dsml_member(jj_state *s, const jj_dict *d, const char *name) {
    const jj_value *v = td_jj_dict_get_str(s, d, &(jj_str){name, strlen(name), 0});
    return v && v->kind != JJ_NONE ? v : NULL;
}

bool td_dsml_is_set(jj_state *s, const jj_dict *d, const char *name) {
    const jj_value *v = td_dsml_member(s, d, name);
    return v && td_jj_truth(v);
}

static const jj_list *list_of(const jj_value *v) {
    return v && v->kind == JJ_LIST ? v->u.list : NULL;
}

static dsml_role role_of(jj_state *s, const jj_dict *d, size_t index) {
    static const char *const ROLES[] = {"system", "developer", "user", "assistant", "tool", "latest_reminder"};
    const jj_value          *v = td_dsml_member(s, d, "role");
    for (size_t k = 0; v && v->kind == JJ_STR && k < sizeof ROLES / sizeof *ROLES; k++)
        if (td_jj_str_is(v->u.s, ROLES[k])) return (dsml_role)k;
    td_dsml_refuse(s, "messages[%zu].role is not one of system, developer, user, assistant, tool and latest_reminder",
                   index);
}

static bool thinks(jj_state *s, const jj_dict *vars, bool by_default) {
    if (!td_dsml_member(s, vars, "thinking") && !td_dsml_member(s, vars, "enable_thinking")) return by_default;
    return td_dsml_is_set(s, vars, "thinking") || td_dsml_is_set(s, vars, "enable_thinking");
}

bool td_dsml_asks(const dsml_chat *c, const dsml_message *m) {
    return m->role == DSML_FROM_USER || m->role == DSML_DEVELOPER || (c->results_ask && m->role == DSML_TOOL);
}

void td_dsml_read(dsml_chat *c, jj_render *r) {
    jj_state      *s = r->s;
    const jj_list *messages = list_of(td_dsml_member(s, r->vars, "messages"));
    const jj_list *tools = list_of(td_dsml_member(s, r->vars, "tools"));
    if (!messages || messages->n == 0) td_dsml_refuse(s, "messages is not a list of at least one message");
    c->r = r;
    c->s = s;
    c->tools = tools && tools->n ? tools : NULL;
    c->opens = td_dsml_is_set(s, r->vars, "add_generation_prompt");
    c->thinks = thinks(s, r->vars, c->thinks);
    c->n = messages->n;
    c->at = td_jj_calloc(s, c->n, sizeof *c->at);
    for (size_t i = 0; i < c->n; i++) {
        if (messages->at[i].kind != JJ_DICT) td_dsml_refuse(s, "messages[%zu] is not an object", i);
        const jj_dict *d = messages->at[i].u.dict;
        c->at[i] = (dsml_message){role_of(s, d, i), d, i};
    }
    c->turn = c->n;
    while (c->turn && !td_dsml_asks(c, &c->at[c->turn - 1])) c->turn--;
}

const jj_list *td_dsml_tools(dsml_chat *c, const dsml_message *m) {
    const jj_value *v = td_dsml_member(c->s, m->dict, "tools");
    const jj_list  *tools = list_of(v);
    if (v && !tools) td_dsml_refuse(c->s, "messages[%zu].tools is not a list", m->index);
    return tools && tools->n ? tools : NULL;
}

const jj_list *td_dsml_calls(dsml_chat *c, const dsml_message *m) {
    const jj_value *v = td_dsml_member(c->s, m->dict, "tool_calls");
    const jj_list  *calls = list_of(v);
    if (v && !calls) td_dsml_refuse(c->s, "messages[%zu].tool_calls is not a list", m->index);
    return calls && calls->n ? calls : NULL;
}

/* ---- writing ---- */

static void put_str(dsml_chat *c, const jj_str *text) {
    td_jj_put(c->s, c->r->out, text->p, text->n);
}

void td_dsml_puts(dsml_chat *c, const char *text) {
    td_jj_puts(c->s, c->r->out, text);
}

/* As Python's json.dumps(v, ensure_ascii=False). */
static void put_json(dsml_chat *c, const jj_value *v) {
    put_str(c, td_jj_tojson(c->s, v, &(jj_args){0}).u.s);
}

bool td_dsml_put_text(dsml_chat *c, const dsml_message *m, const char *name) {
    const jj_value *v = td_dsml_member(c->s, m->dict, name);
    if (!v) return false;
    if (v->kind != JJ_STR) td_dsml_refuse(c->s, "messages[%zu].%s is not a text", m->index, name);
    put_str(c, v->u.s);
    return v->u.s->n > 0;
}

bool td_dsml_put_reasoning(dsml_chat *c, const dsml_message *m) {
    return td_dsml_put_text(c, m, "reasoning_content") || td_dsml_put_text(c, m, "reasoning");
}

/* The function of a tool or of a call, {"type": "function", "function": {"name", …}}; NULL: it has none with a name. */
static const jj_value *function_of(dsml_chat *c, const jj_value *holder, const jj_str **name) {
    const jj_value *f = holder->kind == JJ_DICT ? td_dsml_member(c->s, holder->u.dict, "function") : NULL;
    const jj_value *named = f && f->kind == JJ_DICT ? td_dsml_member(c->s, f->u.dict, "name") : NULL;
    if (!named || named->kind != JJ_STR) return NULL;
    *name = named->u.s;
    return f;
}

void td_dsml_put_tools(dsml_chat *c, const dsml_message *of, const jj_list *tools, const char *before, const char *after) {
    const jj_str *name;
    if (!tools) return;
    td_dsml_puts(c, before);
    for (size_t k = 0; k < tools->n; k++) {
        const jj_value *f = function_of(c, &tools->at[k], &name);
        if (!f && of) td_dsml_refuse(c->s, "messages[%zu].tools[%zu].function has no name", of->index, k);
        if (!f) td_dsml_refuse(c->s, "tools[%zu].function has no name", k);
        if (k) td_dsml_puts(c, "\n");
        put_json(c, f);
    }
    td_dsml_puts(c, after);
}

static void put_argument(dsml_chat *c, const jj_item *argument) {
    bool is_text = argument->value.kind == JJ_STR;
    td_dsml_puts(c, "<｜DSML｜parameter name=\"");
    put_str(c, argument->key.u.s);
    td_dsml_puts(c, is_text ? "\" string=\"true\">" : "\" string=\"false\">");
    if (is_text)
        put_str(c, argument->value.u.s);
    else
        put_json(c, &argument->value);
    td_dsml_puts(c, "</｜DSML｜parameter>");
}

static void put_call(dsml_chat *c, const dsml_message *m, const jj_value *call, size_t k) {
    const jj_str   *name;
    const jj_value *f = function_of(c, call, &name);
    if (!f) td_dsml_refuse(c->s, "messages[%zu].tool_calls[%zu].function has no name", m->index, k);
    const jj_value *arguments = td_dsml_member(c->s, f->u.dict, "arguments");
    if (arguments && arguments->kind != JJ_DICT)
        td_dsml_refuse(c->s, "messages[%zu].tool_calls[%zu].function.arguments is not a JSON object", m->index, k);
    td_dsml_puts(c, "<｜DSML｜invoke name=\"");
    put_str(c, name);
    td_dsml_puts(c, "\">\n");
    for (size_t i = 0; arguments && i < arguments->u.dict->n; i++) {
        if (i) td_dsml_puts(c, "\n");
        put_argument(c, &arguments->u.dict->at[i]);
    }
    td_dsml_puts(c, "\n</｜DSML｜invoke>\n");
}

void td_dsml_put_calls(dsml_chat *c, const dsml_message *m, const char *block) {
    const jj_list *calls = td_dsml_calls(c, m);
    if (!calls) return;
    td_jj_printf(c->s, c->r->out, "\n\n<｜DSML｜%s>\n", block);
    for (size_t k = 0; k < calls->n; k++) put_call(c, m, &calls->at[k], k);
    td_jj_printf(c->s, c->r->out, "</｜DSML｜%s>", block);
}

void td_dsml_put_response_format(dsml_chat *c, const dsml_message *m) {
    if (!td_dsml_is_set(c->s, m->dict, "response_format")) return;
    td_dsml_puts(c, "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
    put_json(c, td_dsml_member(c->s, m->dict, "response_format"));
}
