/* Where an answer is: in its reasoning, its content or a call; and the events that this gives. */
#include "core/error.h"
#include "core/files/json_text.h"
#include "text/parse/answer_parser.h"
#include "text/parse/json_parts.h"

struct td_tool_list {
    json_t *list;
};

/* ---- events ---- */

static void tell(td_answer_parser *p, td_answer_event_kind kind, const char *text, size_t len, const char *id,
                 size_t id_len) {
    uint32_t call = p->n_begun ? p->n_begun - 1 : 0;
    if (p->failed) return;
    p->on_event(p->user,
                &(td_answer_event){.kind = kind, .call = call, .text = text, .len = len, .id = id, .id_len = id_len});
}

void td_answer_flush(td_answer_parser *p) {
    p->failed = p->failed || p->out.failed;
    if (p->out.n) tell(p, p->out_kind, p->out.at, p->out.n, NULL, 0);
    p->out.n = 0;
}

/* Text is collected until another kind comes, or the piece ends. */
void td_answer_put(td_answer_parser *p, td_answer_event_kind kind, const char *text, size_t n) {
    if (p->out_kind != kind) td_answer_flush(p);
    p->out_kind = kind;
    td_bytes_put(&p->out, text, n);
}

/* ---- sections ---- */

void td_section_enter(td_answer_parser *p, td_section section) {
    td_section     shown = section == TD_SECTION_START ? p->first_section : section;
    td_marker_set *set = &p->markers;
    p->section = section;
    set->n = 0;
    /* The order numbers the markers: the end of reasoning is 0, if it can come; its beginning is last. */
    td_marker_set_add(set, shown == TD_SECTION_REASONING ? p->reasoning->close : NULL);
    for (size_t i = 0; p->tools && p->tools->openers[i].marker; i++) td_marker_set_add(set, p->tools->openers[i].marker);
    td_marker_set_add(set, section == TD_SECTION_START && p->reasoning ? p->reasoning->open : NULL);
}

static void put_content(td_answer_parser *p, char c) {
    bool blank = td_is_blank(c);
    if (p->n_calls && p->tools->ends_answer) return;
    p->line_start = c == '\n' || (blank && p->line_start);
    p->seen_text = p->seen_text || !blank;
    if (blank && p->fresh && p->tools && p->blank.n < TD_BLANKS_MAX) {
        td_bytes_put(&p->blank, &c, 1);
        return;
    }
    td_answer_put(p, TD_ANSWER_CONTENT, p->blank.at, p->blank.n);
    p->blank.n = 0;
    p->fresh = false;
    td_answer_put(p, TD_ANSWER_CONTENT, &c, 1);
}

/* The answer has begun with something else than a marker of reasoning. */
void td_section_leave_start(td_answer_parser *p) {
    td_section_enter(p, p->first_section);
    for (size_t i = 0; i < p->lead.n; i++) td_section_put(p, p->lead.at[i]);
    p->lead.n = 0;
}

void td_section_put(td_answer_parser *p, char c) {
    if (p->section == TD_SECTION_START) {
        if (td_is_blank(c) && p->lead.n < TD_BLANKS_MAX) {
            td_bytes_put(&p->lead, &c, 1);
            return;
        }
        td_section_leave_start(p);
    }
    if (p->section == TD_SECTION_REASONING)
        td_answer_put(p, TD_ANSWER_REASONING, &c, 1);
    else
        put_content(p, c);
}

/* ---- calls ---- */

json_t *td_parse_json(td_answer_parser *p, const char *text, size_t n) {
    json_t *out;
    p->failed = td_json_load_shape(text, n, JSON_ALLOW_NUL, &out) == TD_ENOMEM || p->failed;
    return out;
}

void td_trim(const char *at, size_t *from, size_t *n) {
    while (*n && td_is_blank(at[*from])) ++*from, --*n;
    while (*n && td_is_blank(at[*from + *n - 1])) --*n;
}

/* The function of a tool, given as OpenAI's {"type", "function"} or as the function alone. */
static json_t *tool_named(const td_answer_parser *p, const char *name, size_t n) {
    size_t  i;
    json_t *tool;
    if (!p->tool_list) return NULL;
    json_array_foreach(p->tool_list->list, i, tool) {
        json_t       *wrapped = json_object_get(tool, "function"), *function = wrapped ? wrapped : tool;
        const json_t *its = json_object_get(function, "name");
        if (json_string_length(its) == n && n && memcmp(json_string_value(its), name, n) == 0) return function;
    }
    return NULL;
}

bool td_call_name_known(const td_answer_parser *p, const char *name, size_t n) {
    return !p->tool_list || tool_named(p, name, n);
}

void td_call_begin(td_answer_parser *p, const char *name, size_t name_len, const char *id, size_t id_len) {
    if (p->section != TD_SECTION_CONTENT) td_section_enter(p, TD_SECTION_CONTENT); /* a call ends the reasoning */
    td_answer_flush(p);
    p->begun = true;
    p->n_begun++;
    p->arguments.n = 0;
    p->schema = json_object_get(tool_named(p, name, name_len), "parameters");
    tell(p, TD_ANSWER_CALL_BEGIN, name, name_len, id, id_len);
}

void td_call_arguments(td_answer_parser *p, const char *json, size_t n) {
    td_bytes_put(&p->arguments, json, n);
    td_answer_put(p, TD_ANSWER_CALL_ARGUMENTS, json, n);
}

bool td_call_end(td_answer_parser *p) {
    json_t *arguments = td_parse_json(p, p->arguments.at, p->arguments.n);
    bool    good = json_is_object(arguments);
    json_decref(arguments);
    if (!good) return false;
    td_answer_flush(p);
    tell(p, TD_ANSWER_CALL_END, NULL, 0, NULL, 0);
    p->n_calls++;
    p->at.calls++;
    p->begun = false;
    p->raw.n = p->blank.n = 0; /* blanks before the call were between calls */
    p->fresh = true;
    return true;
}

bool td_call_whole(td_answer_parser *p, const char *name, size_t name_len, const char *arguments, size_t n) {
    td_call_begin(p, name, name_len, NULL, 0);
    td_call_arguments(p, arguments, n);
    return td_call_end(p);
}

void td_call_give_back(td_answer_parser *p) {
    if (p->begun) {
        td_answer_flush(p);
        tell(p, TD_ANSWER_CALL_DROPPED, NULL, 0, NULL, 0);
    }
    p->begun = p->in_call = false;
    for (size_t i = 0; i + 1 < p->raw.n; i++) td_section_put(p, p->raw.at[i]);
    p->raw.n = 0;
}

/* ---- tools ---- */

td_status td_tool_list_new(const char *json, size_t len, td_tool_list **out, td_error *err) {
    json_error_t  why;
    td_tool_list *tools = calloc(1, sizeof *tools);
    td_status     st = tools ? td_json_load(json, len, JSON_ALLOW_NUL, &tools->list, &why) : TD_ENOMEM;
    *out = NULL;
    if (st == TD_OK && json_is_array(tools->list)) {
        *out = tools;
        return TD_OK;
    }
    td_tool_list_free(tools);
    if (st == TD_ENOMEM) return td_fail(err, st, "out of memory");
    if (st == TD_OK) return td_fail(err, TD_EINVAL, "the tools are no list");
    return td_fail(err, TD_EINVAL, "the tools are not valid JSON: %s", why.text);
}

void td_tool_list_free(td_tool_list *tools) {
    if (tools) json_decref(tools->list);
    free(tools);
}
