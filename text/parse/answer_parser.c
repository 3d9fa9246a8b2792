/* An answer's text, byte by byte, into content, reasoning and tool calls. */
#include "text/parse/answer_parser.h"

#include "core/error.h"

static void open_calls(td_answer_parser *p, int opener, const char *marker, size_t n) {
    if (p->section == TD_SECTION_START) td_section_leave_start(p);
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
        td_section_enter(p, TD_SECTION_REASONING);
    } else if (p->reasoning && marker == p->reasoning->close) {
        if (p->section == TD_SECTION_START) td_section_leave_start(p);
        td_section_enter(p, TD_SECTION_CONTENT);
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
    td_answer_flush(p);
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
    if (p->section == TD_SECTION_START) td_section_leave_start(p);
    if (p->n_calls == 0) td_answer_put(p, TD_ANSWER_CONTENT, p->blank.at, p->blank.n);
    p->blank.n = 0;
    return status(p);
}

bool td_answer_parser_reasons(const td_answer_parser *p) {
    if (is_harmony(p)) return p->harmony.reasoning;
    return p->section == TD_SECTION_REASONING ||
           (p->section == TD_SECTION_START && p->first_section == TD_SECTION_REASONING);
}

/* ---- life ---- */

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
        td_section_enter(p, p->reasoning && o->start != TD_REASONING_CLOSED ? TD_SECTION_START : TD_SECTION_CONTENT);
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
