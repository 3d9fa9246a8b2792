/* An answer's text, byte by byte, into content, reasoning and tool calls. */
#include "text/parse/answer_parser.h"

#include "core/error.h"
#include "core/files/json_text.h"
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

static void tell_out(td_answer_parser *p) {
    p->failed = p->failed || p->out.failed;
    if (p->out.n) tell(p, p->out_kind, p->out.at, p->out.n, NULL, 0);
    p->out.n = 0;
}

/* Text is collected until another kind comes, or the piece ends. */
static void put_out(td_answer_parser *p, td_answer_event_kind kind, const char *text, size_t n) {
    if (p->out_kind != kind) tell_out(p);
    p->out_kind = kind;
    td_bytes_put(&p->out, text, n);
}

/* ---- sections ---- */

static void enter(td_answer_parser *p, td_section section) {
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
    put_out(p, TD_ANSWER_CONTENT, p->blank.at, p->blank.n);
    p->blank.n = 0;
    p->fresh = false;
    put_out(p, TD_ANSWER_CONTENT, &c, 1);
}

/* The answer has begun with something else than a marker of reasoning. */
static void leave_start(td_answer_parser *p) {
    enter(p, p->first_section);
    for (size_t i = 0; i < p->lead.n; i++) td_section_put(p, p->lead.at[i]);
    p->lead.n = 0;
}

void td_section_put(td_answer_parser *p, char c) {
    if (p->section == TD_SECTION_START) {
        if (td_is_blank(c) && p->lead.n < TD_BLANKS_MAX) {
            td_bytes_put(&p->lead, &c, 1);
            return;
        }
        leave_start(p);
    }
    if (p->section == TD_SECTION_REASONING)
        put_out(p, TD_ANSWER_REASONING, &c, 1);
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
    if (p->section != TD_SECTION_CONTENT) enter(p, TD_SECTION_CONTENT); /* a call ends the reasoning */
    tell_out(p);
    p->begun = true;
    p->n_begun++;
    p->arguments.n = 0;
    p->schema = json_object_get(tool_named(p, name, name_len), "parameters");
    tell(p, TD_ANSWER_CALL_BEGIN, name, name_len, id, id_len);
}

void td_call_arguments(td_answer_parser *p, const char *json, size_t n) {
    td_bytes_put(&p->arguments, json, n);
    put_out(p, TD_ANSWER_CALL_ARGUMENTS, json, n);
}

bool td_call_end(td_answer_parser *p) {
    json_t *arguments = td_parse_json(p, p->arguments.at, p->arguments.n);
    bool    good = json_is_object(arguments);
    json_decref(arguments);
    if (!good) return false;
    tell_out(p);
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
        tell_out(p);
        tell(p, TD_ANSWER_CALL_DROPPED, NULL, 0, NULL, 0);
    }
    p->begun = p->in_call = false;
    for (size_t i = 0; i + 1 < p->raw.n; i++) td_section_put(p, p->raw.at[i]);
    p->raw.n = 0;
}

static void open_calls(td_answer_parser *p, int opener, const char *marker, size_t n) {
    if (p->section == TD_SECTION_START) leave_start(p);
    p->in_call = true;
    p->begun = false;
    p->raw.n = p->literal.n = 0;
    td_bytes_put(&p->raw, marker, n);
    p->at = (td_section_state){.dialect = p->tools->openers[opener < 0 ? 0 : opener].dialect, .from = n};
    p->tools->syntax->open(p, opener);
}

/* ---- bytes ---- */

static bool opens_bare(const td_answer_parser *p, char c) {
    bool content =
        p->section == TD_SECTION_CONTENT || (p->section == TD_SECTION_START && p->first_section == TD_SECTION_CONTENT);
    return p->tools && c == p->tools->bare && c && content && p->scan.n == 0 && p->line_start &&
           !(p->tools->bare_first && (p->seen_text || p->n_begun));
}

static void marker_found(td_answer_parser *p, size_t found) {
    const char *marker = p->markers.at[found];
    if (p->reasoning && marker == p->reasoning->open) {
        p->lead.n = 0;
        enter(p, TD_SECTION_REASONING);
    } else if (p->reasoning && marker == p->reasoning->close) {
        if (p->section == TD_SECTION_START) leave_start(p);
        enter(p, TD_SECTION_CONTENT);
    } else {
        size_t first = p->reasoning && p->markers.at[0] == p->reasoning->close;
        open_calls(p, (int)(found - first), marker, strlen(marker));
    }
}

static void text_byte(td_answer_parser *p, char c) {
    if (opens_bare(p, c)) {
        open_calls(p, -1, &c, 1);
        return;
    }
    char   released[TD_MARKER_BYTES_MAX];
    size_t n;
    int    found = td_marker_scan_byte(&p->scan, &p->markers, c, released, &n);
    for (size_t i = 0; i < n; i++) td_section_put(p, released[i]);
    if (found >= 0) marker_found(p, (size_t)found);
}

static void call_byte(td_answer_parser *p, char c) {
    td_bytes_put(&p->raw, &c, 1);
    if (p->raw.failed) return;
    td_call_verdict verdict = p->raw.n > TD_CALL_BYTES_MAX ? TD_CALL_NOT : p->tools->syntax->byte(p, c);
    if (verdict == TD_CALL_CLOSED) p->in_call = false;
    if (verdict != TD_CALL_NOT) return;
    td_call_give_back(p);
    text_byte(p, c);
}

static td_status status(td_answer_parser *p) {
    tell_out(p);
    p->failed =
        p->failed || p->raw.failed || p->arguments.failed || p->lead.failed || p->blank.failed || p->tag.value.failed;
    return p->failed ? TD_ENOMEM : TD_OK;
}

static bool is_harmony(const td_answer_parser *p) {
    return (p->tools && !p->tools->syntax) || (p->reasoning && !p->reasoning->close);
}

td_status td_answer_parser_feed(td_answer_parser *p, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (is_harmony(p))
            td_harmony_byte(p, text[i]);
        else if (p->in_call)
            call_byte(p, text[i]);
        else
            text_byte(p, text[i]);
    }
    return status(p);
}

td_status td_answer_parser_end(td_answer_parser *p) {
    if (is_harmony(p)) td_harmony_end(p);
    if (p->in_call && p->tools->syntax->closing(p)) p->in_call = false;
    if (p->in_call) {
        td_bytes_put(&p->raw, "", 1); /* a byte too many, since all but the last is given back */
        td_call_give_back(p);
    }
    for (size_t i = 0; i < p->scan.n; i++) td_section_put(p, p->scan.held[i]);
    p->scan.n = 0;
    if (p->section == TD_SECTION_START) leave_start(p);
    if (p->n_calls == 0) put_out(p, TD_ANSWER_CONTENT, p->blank.at, p->blank.n);
    p->blank.n = 0;
    return status(p);
}

bool td_answer_parser_reasons(const td_answer_parser *p) {
    if (is_harmony(p)) return p->harmony.reasoning;
    return p->section == TD_SECTION_REASONING ||
           (p->section == TD_SECTION_START && p->first_section == TD_SECTION_REASONING);
}

/* ---- life ---- */

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

static td_status choose_formats(td_answer_parser *p, const td_answer_parser_options *o, td_error *err) {
    p->tools = o->tool_format ? td_tool_format_find(o->tool_format) : NULL;
    p->reasoning = o->reasoning_format ? td_reasoning_format_find(o->reasoning_format) : NULL;
    if (o->tool_format && !p->tools) return td_fail(err, TD_EINVAL, "there is no tool-call format '%.40s'", o->tool_format);
    if (o->reasoning_format && !p->reasoning)
        return td_fail(err, TD_EINVAL, "there is no reasoning format '%.40s'", o->reasoning_format);
    if (p->tools && p->reasoning && !p->tools->syntax != !p->reasoning->close)
        return td_fail(err, TD_EINVAL,
                       "the format gpt-oss goes with no other: not with tool calls as '%s' and reasoning as '%s'",
                       o->tool_format, o->reasoning_format);
    return TD_OK;
}

td_status td_answer_parser_new(const td_answer_parser_options *o, td_answer_parser **out, td_error *err) {
    *out = NULL;
    td_answer_parser *p = calloc(1, sizeof *p);
    if (!p) return td_fail(err, TD_ENOMEM, "out of memory");
    p->on_event = o->on_event;
    p->user = o->user;
    p->tool_list = o->tools;
    p->fresh = p->line_start = true;
    td_status st = choose_formats(p, o, err);
    if (st != TD_OK) {
        td_answer_parser_free(p);
        return st;
    }
    bool open =
        p->reasoning && (o->start == TD_REASONING_OPEN || (o->start == TD_REASONING_BY_FORMAT && p->reasoning->starts_open));
    p->first_section = open ? TD_SECTION_REASONING : TD_SECTION_CONTENT;
    if (is_harmony(p))
        td_harmony_open(p);
    else
        enter(p, p->reasoning && o->start != TD_REASONING_CLOSED ? TD_SECTION_START : TD_SECTION_CONTENT);
    *out = p;
    return TD_OK;
}

void td_answer_parser_free(td_answer_parser *p) {
    if (!p) return;
    td_bytes_free(&p->lead);
    td_bytes_free(&p->blank);
    td_bytes_free(&p->out);
    td_bytes_free(&p->raw);
    td_bytes_free(&p->arguments);
    td_bytes_free(&p->tag.value);
    free(p);
}
