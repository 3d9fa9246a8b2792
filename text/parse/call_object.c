/*
 * Calls as JSON objects, {"name": …, "arguments": {…}}.
 *   hermes, qwen25: <tool_call>\n{…}\n</tool_call>, one for each call (Qwen's and Hermes' chat templates)
 *   llama3: <|python_tag|>{…}; {…}, or the object alone as the whole answer, with "parameters" (Llama's prompt format)
 *
 * Where the name comes before the arguments, they are told while they come; else once the object is complete. Arguments that
 * are a string with an object in it count as the object.
 */
#include "text/parse/answer_parser.h"

enum { WAITS, IN_OBJECT, AFTER };

/* ---- one object ---- */

void td_call_object_open(td_answer_parser *p, bool bare) {
    p->object = (td_object_state){.at = p->raw.n, .bare = bare};
}

static bool slice_is(const td_answer_parser *p, size_t at, size_t n, const char *word) {
    return n == strlen(word) && memcmp(p->raw.at + at, word, n) == 0;
}

static bool is_arguments(const td_answer_parser *p, size_t at, size_t n) {
    return slice_is(p, at, n, "arguments") || slice_is(p, at, n, "parameters");
}

/* Whether a member may be one of a call. Without a marker, an object with any other member is an answer in JSON. */
static bool key_belongs(const td_answer_parser *p) {
    const td_object_state *o = &p->object;
    return is_arguments(p, o->key_at, o->key_len) || slice_is(p, o->key_at, o->key_len, "name") ||
           slice_is(p, o->key_at, o->key_len, "type") || slice_is(p, o->key_at, o->key_len, "id");
}

/* A string of the outermost object has ended with this byte. */
static bool string_ended(td_answer_parser *p) {
    td_object_state *o = &p->object;
    size_t           n = p->raw.n - 1 - o->string_at;
    if (!o->in_value) {
        o->key_at = o->string_at;
        o->key_len = n;
        return !o->bare || key_belongs(p);
    }
    if (!slice_is(p, o->key_at, o->key_len, "name")) return true;
    o->name_at = o->string_at;
    o->name_len = n;
    o->has_name = n && !memchr(p->raw.at + o->name_at, '\\', n); /* a name with escapes waits for the whole object */
    return !o->bare || td_call_name_known(p, p->raw.at + o->name_at, n);
}

/* The arguments of a complete object, as they are written; false: it is no call. */
static bool arguments_of(td_answer_parser *p, const json_t *call, const char **text, size_t *n) {
    const td_object_state *o = &p->object;
    json_t                *given = json_object_get(call, "arguments");
    if (!given) given = json_object_get(call, "parameters");
    if (json_is_object(given)) {
        *text = p->raw.at + o->arguments_at;
        *n = o->arguments_len;
        return o->arguments_len > 0; /* 0: the member's name is spelled with escapes */
    }
    if (json_is_string(given)) {
        *text = json_string_value(given);
        *n = json_string_length(given);
        json_t *inner = td_parse_json(p, *text, *n);
        bool    is_object = json_is_object(inner);
        json_decref(inner);
        return is_object;
    }
    *text = "{}";
    *n = 2;
    return !o->bare && (!given || json_is_null(given));
}

static td_call_verdict object_complete(td_answer_parser *p) {
    td_object_state *o = &p->object;
    json_t          *call = td_parse_json(p, p->raw.at + o->at, p->raw.n - o->at);
    const json_t    *name = json_object_get(call, "name");
    size_t           n = json_string_length(name);
    bool             good = json_is_object(call) && n;
    if (good && p->begun) {
        good = td_call_end(p);
    } else if (good) {
        const char *arguments;
        size_t      n_arguments;
        good = arguments_of(p, call, &arguments, &n_arguments) &&
               (!o->bare || td_call_name_known(p, json_string_value(name), n)) &&
               td_call_whole(p, json_string_value(name), n, arguments, n_arguments);
    }
    json_decref(call);
    return good ? TD_CALL_CLOSED : TD_CALL_NOT;
}

td_call_verdict td_call_object_byte(td_answer_parser *p, char c) {
    td_object_state *o = &p->object;
    bool             was_string = o->scan.in_string, outermost = o->scan.depth == 1;
    td_json_verdict  verdict = td_json_scan_byte(&o->scan, c);
    if (verdict == TD_JSON_BAD) return TD_CALL_NOT;
    if (verdict == TD_JSON_ENDS) return object_complete(p);
    if (o->streams) {
        td_call_arguments(p, &c, 1);
        o->streams = o->scan.depth > 1;
        return TD_CALL_MORE;
    }
    if (o->in_arguments && o->scan.depth == 1) {
        o->arguments_len = p->raw.n - o->arguments_at;
        o->in_arguments = false;
    }
    if (!outermost) return TD_CALL_MORE;
    if (!was_string && o->scan.in_string) {
        o->string_at = p->raw.n;
    } else if (was_string) {
        return o->scan.in_string || string_ended(p) ? TD_CALL_MORE : TD_CALL_NOT;
    } else if (c == ':' || c == ',') {
        o->in_value = c == ':';
    } else if (c == '{' && o->in_value && is_arguments(p, o->key_at, o->key_len) && o->has_name && !p->begun) {
        td_call_begin(p, p->raw.at + o->name_at, o->name_len, NULL, 0);
        td_call_arguments(p, &c, 1);
        o->streams = true;
    } else if (c == '{' && o->in_value && is_arguments(p, o->key_at, o->key_len)) {
        o->arguments_at = p->raw.n - 1;
        o->in_arguments = true;
    }
    return TD_CALL_MORE;
}

td_call_verdict td_call_json_arguments(td_answer_parser *p, td_json_scan *scan, char c) {
    td_json_verdict verdict = td_json_scan_byte(scan, c);
    if (verdict == TD_JSON_BAD) return TD_CALL_NOT;
    td_call_arguments(p, &c, 1);
    if (verdict == TD_JSON_MORE) return TD_CALL_MORE;
    return td_call_end(p) ? TD_CALL_CLOSED : TD_CALL_NOT;
}

/* ---- sections ---- */

static void section_open(td_answer_parser *p, int opener) {
    bool bare = opener < 0;
    p->at.phase = bare ? IN_OBJECT : WAITS;
    if (!bare) return;
    p->raw.n = 0; /* raw has to end before the object's '{' */
    td_call_object_open(p, true);
    td_bytes_put(&p->raw, "{", 1);
    (void)td_call_object_byte(p, '{');
}

static td_call_verdict section_byte(td_answer_parser *p, char c) {
    const char *close = p->at.dialect; /* what ends a section; NULL: ';' separates calls, and nothing ends them */
    if (p->at.phase == WAITS) {
        if (td_is_blank(c)) return TD_CALL_MORE;
        if (c != '{') return TD_CALL_NOT;
        p->raw.n--;
        td_call_object_open(p, false);
        p->raw.n++;
        p->at.phase = IN_OBJECT;
    }
    if (p->at.phase == IN_OBJECT) {
        td_call_verdict verdict = td_call_object_byte(p, c);
        if (verdict != TD_CALL_CLOSED) return verdict;
        p->at.phase = AFTER;
        return TD_CALL_MORE;
    }
    if (!close) {
        if (c == ';') p->at.phase = WAITS;
        return c == ';' || td_is_blank(c) ? TD_CALL_MORE : TD_CALL_NOT;
    }
    int found = td_literal_scan_byte(&p->literal, &(td_marker_set){{close}, 1}, c);
    return found == -1 ? TD_CALL_MORE : found == 0 ? TD_CALL_CLOSED : TD_CALL_NOT;
}

static bool section_closing(const td_answer_parser *p) {
    return p->at.phase == AFTER;
}

const td_call_syntax td_syntax_object = {section_open, section_byte, section_closing};
