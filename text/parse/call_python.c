/*
 * Calls as a Python list, [name(key=value, …), …], with literals as values (Llama 3.2 and 4). The list is taken where a line
 * begins; it is read once it is complete, and is text unless all of it is calls, by names that the request has tools for.
 */
#include "text/parse/answer_parser.h"
#include "text/parse/python_literal.h"

enum { BEGINNING, NAME, LIST, AFTER };

/* ---- the complete list ---- */

/* key=value, …) as an object. */
static bool take_arguments(td_python_text *s, td_bytes *json) {
    td_bytes_put(json, "{", 1);
    for (bool more = true, first = true; !td_python_take(s, ')'); first = false) {
        const char *key;
        size_t      n = more ? td_python_take_name(s, &key) : 0;
        if (n == 0 || !td_python_take(s, '=')) return false;
        td_bytes_put(json, first ? "\"" : ", \"", first ? 1 : 3);
        td_bytes_put(json, key, n);
        td_bytes_put(json, "\": ", 3);
        if (!td_python_take_value(s, json)) return false;
        more = td_python_take(s, ',');
    }
    td_bytes_put(json, "}", 1);
    return true;
}

/* A call, with its arguments as JSON. */
typedef bool (*call_fn)(td_answer_parser *p, const char *name, size_t n, const td_bytes *arguments);

static bool check_call(td_answer_parser *p, const char *name, size_t n, const td_bytes *arguments) {
    json_t *value = td_parse_json(p, arguments->at, arguments->n);
    json_decref(value);
    return value && td_call_name_known(p, name, n);
}

static bool tell_call(td_answer_parser *p, const char *name, size_t n, const td_bytes *arguments) {
    return td_call_whole(p, name, n, arguments->at, arguments->n);
}

/* @return false where the list is empty, or not all calls. */
static bool each_call(td_answer_parser *p, const char *text, size_t n, call_fn on_call) {
    td_python_text s = {text, text + n, 0};
    td_bytes       arguments = {0};
    size_t         calls = 0;
    bool           good = td_python_take(&s, '['), more = true;
    while (good && !td_python_take(&s, ']')) {
        const char *name;
        size_t      len = more ? td_python_take_name(&s, &name) : 0;
        arguments.n = 0;
        good = len && td_python_take(&s, '(') && take_arguments(&s, &arguments);
        p->failed = p->failed || arguments.failed;
        good = good && !arguments.failed && on_call(p, name, len, &arguments);
        more = td_python_take(&s, ',');
        calls++;
    }
    td_bytes_free(&arguments);
    td_python_skip(&s);
    return good && s.at == s.end && calls > 0;
}

/* ---- the list byte by byte: to its end, or to where it is none ---- */

static void section_open(td_answer_parser *p, int opener) {
    p->at.phase = BEGINNING;
    p->at.from = opener < 0 ? 0 : p->raw.n;
    p->list = (td_list_state){.brackets = opener < 0};
}

/* Report the calls of a complete list. Nothing is added to raw here, so that the calls' bytes stay valid. */
static td_call_verdict list_complete(td_answer_parser *p) {
    const char *list = p->raw.at + p->at.from;
    size_t      n = p->raw.n - p->at.from;
    bool        good = each_call(p, list, n, check_call) && each_call(p, list, n, tell_call);
    p->at.phase = AFTER;
    return good ? TD_CALL_MORE : TD_CALL_NOT;
}

static td_call_verdict list_byte(td_answer_parser *p, char c) {
    td_list_state *l = &p->list;
    if (l->quote) {
        if (c == l->quote && !l->escaped) l->quote = 0;
        l->escaped = c == '\\' && !l->escaped;
        return TD_CALL_MORE;
    }
    if (c == '"' || c == '\'') l->quote = c;
    if (c == '[' || c == '(' || c == '{') l->brackets++;
    if (c == ']' || c == ')' || c == '}') l->brackets--;
    return l->brackets ? TD_CALL_MORE : list_complete(p);
}

static td_call_verdict section_byte(td_answer_parser *p, char c) {
    const char *close = p->at.dialect;
    switch (p->at.phase) {
        case BEGINNING:
            if (td_is_blank(c)) return TD_CALL_MORE;
            if (p->list.brackets == 0) { /* waiting for the list's first bracket, behind <|python_start|> */
                p->list.brackets = c == '[';
                return c == '[' ? TD_CALL_MORE : TD_CALL_NOT;
            }
            p->at.phase = NAME;
            return td_python_name_start(c) ? TD_CALL_MORE : TD_CALL_NOT;
        case NAME:
            if (c == '(') p->at.phase = LIST, p->list.brackets++;
            return c == '(' || td_python_name(c) ? TD_CALL_MORE : TD_CALL_NOT;
        case LIST: return list_byte(p, c);
        default: {
            int found = td_literal_scan_byte(&p->literal, &(td_marker_set){{close}, 1}, c);
            return found == -1 ? TD_CALL_MORE : found == 0 ? TD_CALL_CLOSED : TD_CALL_NOT;
        }
    }
}

static bool section_closing(const td_answer_parser *p) {
    return p->at.phase == AFTER;
}

const td_call_syntax td_syntax_python = {section_open, section_byte, section_closing};
