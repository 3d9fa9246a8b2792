/*
 * Calls between special tokens, with JSON arguments as they stand.
 *   deepseekv3:    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{…}\n```<｜tool▁call▁end｜>
 *   deepseekv31:   <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
 *   kimi_k2:       <|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{…}<|tool_call_end|>
 * Sources: the chat templates of DeepSeek V3, R1 and V3.1 and of Kimi K2, and Kimi's tool_call_guidance.md.
 */
#include "text/parse/answer_parser.h"

enum { BETWEEN, KIND, NAME, WAITS, ARGUMENTS, AFTER };

static void section_open(td_answer_parser *p, int opener) {
    (void)opener;
    p->at.phase = BETWEEN;
}

static void name_begins(td_answer_parser *p, const td_token_dialect *d, bool kind) {
    p->at.phase = kind && d->kind_end ? KIND : NAME;
    p->at.from = p->raw.n;
}

/* NAME, or functions.NAME:INDEX, which is the call's id too. */
static bool begin_call(td_answer_parser *p, const td_token_dialect *d) {
    const char *at = p->raw.at + p->at.name_at, *name = at;
    size_t      n = p->at.name_len, name_len = n;
    if (d->has_id) {
        while (name_len && at[name_len - 1] >= '0' && at[name_len - 1] <= '9') name_len--;
        if (name_len && at[name_len - 1] == ':')
            name_len--;
        else
            name_len = n; /* an id without an index is taken as a name */
        if (name_len > 10 && !memcmp(at, "functions.", 10)) name += 10, name_len -= 10;
    }
    if (name_len == 0) return false;
    td_call_begin(p, name, name_len, d->has_id ? at : NULL, d->has_id ? n : 0);
    return true;
}

static td_call_verdict name_byte(td_answer_parser *p, const td_token_dialect *d) {
    const char *end = d->name_end ? d->name_end : "\n";
    if (p->raw.n - p->at.from > TD_CALL_NAME_MAX) return TD_CALL_NOT;
    if (!td_bytes_end_with(&p->raw, p->at.from, end)) return TD_CALL_MORE;
    p->at.name_at = p->at.from;
    p->at.name_len = p->raw.n - p->at.from - strlen(end);
    td_trim(p->raw.at, &p->at.name_at, &p->at.name_len);
    p->at.phase = WAITS;
    return p->at.name_len ? TD_CALL_MORE : TD_CALL_NOT;
}

/* Wait for the arguments' '{', with or without a fence before it. */
static td_call_verdict wait_byte(td_answer_parser *p, const td_token_dialect *d, char c) {
    if (p->literal.n == 0 && c == '{') {
        if (!begin_call(p, d)) return TD_CALL_NOT;
        p->at.phase = ARGUMENTS;
        p->arguments_scan = (td_json_scan){0};
        return td_call_json_arguments(p, &p->arguments_scan, c);
    }
    if (!d->fence) return td_is_blank(c) ? TD_CALL_MORE : TD_CALL_NOT;
    td_marker_set fence = {{"```json"}, 1};
    return td_literal_scan_byte(&p->literal, &fence, c) == -2 ? TD_CALL_NOT : TD_CALL_MORE;
}

static td_call_verdict section_byte(td_answer_parser *p, char c) {
    const td_token_dialect *d = p->at.dialect;
    td_call_verdict         verdict;
    td_marker_set           set = {{NULL}, 0};
    switch (p->at.phase) {
        case BETWEEN:
            td_marker_set_add(&set, d->call_open);
            td_marker_set_add(&set, d->section_close);
            switch (td_literal_scan_byte(&p->literal, &set, c)) {
                case -1: return TD_CALL_MORE;
                case 0: name_begins(p, d, true); return TD_CALL_MORE;
                case 1: return p->at.calls ? TD_CALL_CLOSED : TD_CALL_NOT;
                default: return TD_CALL_NOT;
            }
        case KIND:
            if (td_bytes_end_with(&p->raw, p->at.from, d->kind_end)) name_begins(p, d, false);
            return p->raw.n - p->at.from > TD_CALL_NAME_MAX ? TD_CALL_NOT : TD_CALL_MORE;
        case NAME: return name_byte(p, d);
        case WAITS: return wait_byte(p, d, c);
        case ARGUMENTS:
            verdict = td_call_json_arguments(p, &p->arguments_scan, c);
            if (verdict != TD_CALL_CLOSED) return verdict;
            p->at.phase = AFTER;
            return TD_CALL_MORE;
        default:
            td_marker_set_add(&set, d->call_close);
            td_marker_set_add(&set, d->section_close);
            td_marker_set_add(&set, d->fence);
            switch (td_literal_scan_byte(&p->literal, &set, c)) {
                case -1:
                case 2: return TD_CALL_MORE;
                case 0: p->at.phase = BETWEEN; return TD_CALL_MORE;
                case 1: return TD_CALL_CLOSED;
                default: return TD_CALL_NOT;
            }
    }
}

static bool section_closing(const td_answer_parser *p) {
    const td_token_dialect *d = p->at.dialect;
    if (p->at.phase == AFTER) return true;
    return p->at.phase == BETWEEN && p->at.calls && !strncmp(d->section_close, p->literal.held, p->literal.n);
}

const td_call_syntax td_syntax_tokens = {section_open, section_byte, section_closing};
