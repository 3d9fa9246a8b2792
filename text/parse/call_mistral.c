/*
 * Mistral's calls, after [TOOL_CALLS]:
 *   [{"name": …, "arguments": {…}}, …]   the models of 2024 (tokenizer versions 3 and 7)
 *   NAME[ARGS]{…} or NAME{…}             since 2025 (versions 11 and 13), with [TOOL_CALLS] before each
 * [CALL_ID]ID may stand between the name and [ARGS]. The first form without a marker is json-list, of forced calls.
 */
#include "text/parse/answer_parser.h"

enum { WAITS, LIST, IN_OBJECT, AFTER_OBJECT, NAME, ARGUMENTS };

static const char ID_MARK[] = "[CALL_ID]", ARGUMENTS_MARK[] = "[ARGS]";

static void section_open(td_answer_parser *p, int opener) {
    p->at.phase = opener < 0 ? LIST : WAITS;
}

static bool name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_-.:/", c));
}

/* What stands before the arguments: NAME, NAME[ARGS] or NAME[CALL_ID]ID[ARGS]. */
static bool header(td_answer_parser *p) {
    const char *at = p->raw.at + p->at.from, *id = NULL;
    size_t      n = p->raw.n - 1 - p->at.from, name = 0, id_len = 0, k;
    while (name < n && name_byte(at[name])) name++;
    k = name;
    if (n - k >= sizeof ID_MARK - 1 && !memcmp(at + k, ID_MARK, sizeof ID_MARK - 1)) {
        id = at + (k += sizeof ID_MARK - 1);
        while (k < n && name_byte(at[k])) k++;
        id_len = (size_t)(at + k - id);
    }
    if (n - k >= sizeof ARGUMENTS_MARK - 1 && !memcmp(at + k, ARGUMENTS_MARK, sizeof ARGUMENTS_MARK - 1))
        k += sizeof ARGUMENTS_MARK - 1;
    while (k < n && td_is_blank(at[k])) k++;
    if (name == 0 || k != n) return false;
    td_call_begin(p, at, name, id_len ? id : NULL, id_len);
    return true;
}

static td_call_verdict begin_object(td_answer_parser *p, char c) {
    p->raw.n--;
    td_call_object_open(p, false);
    p->raw.n++;
    p->at.phase = IN_OBJECT;
    return td_call_object_byte(p, c);
}

static td_call_verdict section_byte(td_answer_parser *p, char c) {
    td_call_verdict verdict;
    switch (p->at.phase) {
        case WAITS:
            if (td_is_blank(c)) return TD_CALL_MORE;
            p->at.phase = c == '[' ? LIST : NAME;
            p->at.from = p->raw.n - 1;
            return c == '[' || name_byte(c) ? TD_CALL_MORE : TD_CALL_NOT;
        case LIST:
            if (td_is_blank(c)) return TD_CALL_MORE;
            return c == '{' ? begin_object(p, c) : TD_CALL_NOT;
        case IN_OBJECT:
            verdict = td_call_object_byte(p, c);
            if (verdict != TD_CALL_CLOSED) return verdict;
            p->at.phase = AFTER_OBJECT;
            return TD_CALL_MORE;
        case AFTER_OBJECT:
            if (c == ',') p->at.phase = LIST;
            return c == ']' ? TD_CALL_CLOSED : c == ',' || td_is_blank(c) ? TD_CALL_MORE : TD_CALL_NOT;
        case NAME:
            if (c != '{') {
                bool in_name = name_byte(c) || c == '[' || c == ']' || td_is_blank(c);
                return in_name && p->raw.n < TD_CALL_NAME_MAX ? TD_CALL_MORE : TD_CALL_NOT;
            }
            if (!header(p)) return TD_CALL_NOT;
            p->at.phase = ARGUMENTS;
            p->arguments_scan = (td_json_scan){0};
            return td_call_json_arguments(p, &p->arguments_scan, c);
        default: return td_call_json_arguments(p, &p->arguments_scan, c);
    }
}

static bool section_closing(const td_answer_parser *p) {
    return p->at.phase == AFTER_OBJECT;
}

const td_call_syntax td_syntax_mistral = {section_open, section_byte, section_closing};
