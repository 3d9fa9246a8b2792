/*
 * Calls between tags, an argument a tag, with values as plain text.
 *   qwen3_coder:   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
 *   glm45, glm47:  <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>, 4.7 without \n
 *   minimax-m2:    <minimax:tool_call>\n<invoke name="NAME">\n<parameter name="KEY">VALUE</parameter>\n</invoke>\n</…>
 *   deepseekv32:   the same with <｜DSML｜function_calls>, <｜DSML｜invoke …>, and after the key string="true" or "false"
 *   deepseekv4:    the same with <｜DSML｜tool_calls>
 * Sources: the models' chat templates, and DeepSeek-V3.2's and V4's encodings.
 *
 * The arguments are written as a JSON object while they come: a string as its characters arrive, any other value at its
 * closing tag.
 */
#include "text/parse/answer_parser.h"
#include "text/parse/argument_types.h"
#include "text/parse/json_parts.h"

enum { BETWEEN, NAME, MEMBERS, KEY, FLAG, VALUE_OPEN, VALUE, JSON, AFTER_JSON };

static void name_begins(td_answer_parser *p) {
    p->at.phase = NAME;
    p->at.from = p->raw.n;
    p->tag.members = 0;
}

static void section_open(td_answer_parser *p, int opener) {
    const td_tag_dialect *d = p->at.dialect;
    p->at.phase = BETWEEN;
    /* Qwen3-Coder at times leaves out <tool_call>: its <function= opens a section, too. */
    if (!d->call_open || !strcmp(p->tools->openers[opener].marker, d->call_open)) name_begins(p);
}

/* ---- the arguments' JSON ---- */

static void put_escaped(td_answer_parser *p, char c) {
    char text[TD_JSON_ESCAPE_MAX];
    td_call_arguments(p, text, td_json_escape(c, text));
}

static void put_string(td_answer_parser *p, const char *text, size_t n) {
    td_call_arguments(p, "\"", 1);
    for (size_t i = 0; i < n; i++) put_escaped(p, text[i]);
    td_call_arguments(p, "\"", 1);
}

static bool begin_call(td_answer_parser *p) {
    if (p->begun) return true;
    if (p->at.name_len == 0) return false;
    td_call_begin(p, p->raw.at + p->at.name_at, p->at.name_len, NULL, 0);
    return true;
}

/* The call's closing tag is there. */
static td_call_verdict members_end(td_answer_parser *p, const td_tag_dialect *d) {
    size_t members = p->tag.members;
    if (p->at.phase == MEMBERS) td_call_arguments(p, members ? "}" : "{}", members ? 1 : 2);
    if (!td_call_end(p)) return TD_CALL_NOT;
    p->at.phase = BETWEEN;
    return d->section_close ? TD_CALL_MORE : TD_CALL_CLOSED;
}

static void value_begins(td_answer_parser *p, bool as_string) {
    td_tag_state *t = &p->tag;
    p->at.phase = VALUE;
    t->as_string = as_string;
    t->begun = t->newline = false;
    t->value.n = t->end.n = 0;
    td_call_arguments(p, t->members ? ", " : "{", t->members ? 2 : 1);
    t->members++;
    put_string(p, p->raw.at + t->key_at, t->key_len);
    td_call_arguments(p, ": ", 2);
    if (as_string) td_call_arguments(p, "\"", 1);
}

static void value_put(td_answer_parser *p, char c) {
    if (p->tag.as_string)
        put_escaped(p, c);
    else
        td_bytes_put(&p->tag.value, &c, 1);
}

/* @return false when the value cannot be written as JSON. */
static bool value_ends(td_answer_parser *p, const td_tag_dialect *d) {
    td_tag_state *t = &p->tag;
    if (t->as_string) {
        td_call_arguments(p, "\"", 1);
        return true;
    }
    /* DeepSeek has told that it is no string; elsewhere the schema tells. */
    uint32_t types = d->flag_end ? TD_TYPE_OPEN : td_argument_types(p->schema, p->raw.at + t->key_at, t->key_len);
    char    *text = td_argument_json(t->value.n ? t->value.at : "", t->value.n, types);
    if (!text) return false;
    td_call_arguments(p, text, strlen(text));
    free(text);
    return true;
}

static td_call_verdict value_byte(td_answer_parser *p, const td_tag_dialect *d, char c) {
    td_tag_state *t = &p->tag;
    td_marker_set ends = {{d->value_close}, 1};
    char          released[TD_MARKER_BYTES_MAX];
    size_t        n;
    td_marker_set_add(&ends, d->next_param);
    td_marker_set_add(&ends, d->next_close);
    int found = td_marker_scan_byte(&t->end, &ends, c, released, &n);
    for (size_t i = 0; i < n; i++) {
        if (t->newline) value_put(p, '\n');
        t->newline = d->newlines && released[i] == '\n' && t->begun;
        if (!t->newline && !(d->newlines && released[i] == '\n' && !t->begun)) value_put(p, released[i]);
        t->begun = true;
    }
    if (found < 0) return TD_CALL_MORE;
    if (!value_ends(p, d)) return TD_CALL_NOT;
    p->at.phase = found == 1 ? KEY : MEMBERS;
    p->at.from = p->raw.n;
    return found == 2 ? members_end(p, d) : TD_CALL_MORE;
}

/* ---- tags ---- */

static td_call_verdict name_byte(td_answer_parser *p, const td_tag_dialect *d, char c) {
    size_t from = p->at.from, n = p->raw.n - from;
    if (n > TD_CALL_NAME_MAX) return TD_CALL_NOT;
    if (d->name_end) {
        if (c == '\n') return TD_CALL_NOT;
        if (!td_bytes_end_with(&p->raw, from, d->name_end)) return TD_CALL_MORE;
        n -= strlen(d->name_end);
    } else {
        bool apart = n > 1 && td_is_blank(p->raw.at[p->raw.n - 2]); /* blanks end the name, too */
        if (c != '\n' && c != '<') {
            if (!td_is_blank(c) && apart) td_trim(p->raw.at, &from, &n);
            return (c && strchr("{}[]()\"'`,;", c)) || (apart && n > 1) ? TD_CALL_NOT : TD_CALL_MORE;
        }
        n--;
    }
    td_trim(p->raw.at, &from, &n);
    if (n == 0) return c == '\n' ? TD_CALL_MORE : TD_CALL_NOT;
    p->at.name_at = from;
    p->at.name_len = n;
    p->at.phase = MEMBERS;
    p->literal.n = 0;
    if (c == '<' && !d->name_end) p->literal.held[p->literal.n++] = c;
    return TD_CALL_MORE;
}

static td_call_verdict members_byte(td_answer_parser *p, const td_tag_dialect *d, char c) {
    td_marker_set set = {{d->param_open, d->call_close}, 2};
    if (d->json && p->tag.members == 0 && p->literal.n == 0 && c == '{') {
        if (!begin_call(p)) return TD_CALL_NOT;
        p->at.phase = JSON;
        p->arguments_scan = (td_json_scan){0};
    }
    if (p->at.phase == JSON) {
        /* The arguments must not end the call: its closing tag does. */
        td_json_verdict verdict = td_json_scan_byte(&p->arguments_scan, c);
        if (verdict == TD_JSON_BAD) return TD_CALL_NOT;
        td_call_arguments(p, &c, 1);
        if (verdict == TD_JSON_ENDS) p->at.phase = AFTER_JSON;
        return TD_CALL_MORE;
    }
    switch (td_literal_scan_byte(&p->literal, &set, c)) {
        case -1: return TD_CALL_MORE;
        case 0:
            if (p->at.phase == AFTER_JSON || !begin_call(p)) return TD_CALL_NOT;
            p->at.phase = KEY;
            p->at.from = p->raw.n;
            return TD_CALL_MORE;
        case 1: return begin_call(p) ? members_end(p, d) : TD_CALL_NOT;
        default: return TD_CALL_NOT;
    }
}

static td_call_verdict key_byte(td_answer_parser *p, const td_tag_dialect *d, char c) {
    size_t from = p->at.from, n = p->raw.n - from;
    if (c == '\n' || n > TD_CALL_NAME_MAX) return TD_CALL_NOT;
    bool flagless = d->flag_end && td_bytes_end_with(&p->raw, from, d->flag_end);
    if (!flagless && !td_bytes_end_with(&p->raw, from, d->key_end)) return TD_CALL_MORE;
    n -= strlen(flagless ? d->flag_end : d->key_end);
    td_trim(p->raw.at, &from, &n);
    if (n == 0) return TD_CALL_NOT;
    p->tag.key_at = from;
    p->tag.key_len = n;
    p->at.from = p->raw.n;
    p->literal.n = 0;
    if (flagless)
        value_begins(p, false);
    else if (d->flag_end)
        p->at.phase = FLAG;
    else if (d->value_open)
        p->at.phase = VALUE_OPEN;
    else
        value_begins(p, td_argument_types(p->schema, p->raw.at + from, n) == TD_TYPE_STRING);
    return TD_CALL_MORE;
}

static td_call_verdict flag_byte(td_answer_parser *p, const td_tag_dialect *d) {
    size_t n = p->raw.n - p->at.from, end = strlen(d->flag_end);
    if (!td_bytes_end_with(&p->raw, p->at.from, d->flag_end)) return n > 16 ? TD_CALL_NOT : TD_CALL_MORE;
    bool is_true = n - end == 4 && !memcmp(p->raw.at + p->at.from, "true", 4),
         is_false = n - end == 5 && !memcmp(p->raw.at + p->at.from, "false", 5);
    if (!is_true && !is_false) return TD_CALL_NOT;
    value_begins(p, is_true);
    return TD_CALL_MORE;
}

static td_call_verdict section_byte(td_answer_parser *p, char c) {
    const td_tag_dialect *d = p->at.dialect;
    td_marker_set         set = {{NULL}, 0};
    switch (p->at.phase) {
        case BETWEEN:
            td_marker_set_add(&set, d->section_close);
            td_marker_set_add(&set, d->call_open);
            switch (td_literal_scan_byte(&p->literal, &set, c)) {
                case -1: return TD_CALL_MORE;
                case 0: return p->at.calls ? TD_CALL_CLOSED : TD_CALL_NOT;
                case 1: name_begins(p); return TD_CALL_MORE;
                default: return TD_CALL_NOT;
            }
        case NAME: return name_byte(p, d, c);
        case KEY: return key_byte(p, d, c);
        case FLAG: return flag_byte(p, d);
        case VALUE_OPEN:
            set = (td_marker_set){{d->value_open}, 1};
            switch (td_literal_scan_byte(&p->literal, &set, c)) {
                case -1: return TD_CALL_MORE;
                case 0:
                    value_begins(p,
                                 td_argument_types(p->schema, p->raw.at + p->tag.key_at, p->tag.key_len) == TD_TYPE_STRING);
                    return TD_CALL_MORE;
                default: return TD_CALL_NOT;
            }
        case VALUE: return value_byte(p, d, c);
        default: return members_byte(p, d, c);
    }
}

static bool section_closing(const td_answer_parser *p) {
    const td_tag_dialect *d = p->at.dialect;
    return p->at.phase == BETWEEN && p->at.calls && d->section_close &&
           !strncmp(d->section_close, p->literal.held, p->literal.n);
}

const td_call_syntax td_syntax_tags = {section_open, section_byte, section_closing};
