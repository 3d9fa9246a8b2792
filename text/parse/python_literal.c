#include "text/parse/python_literal.h"

#include "text/parse/json_parts.h"
#include "text/parse/marker_scan.h"

#define DEPTH_MAX 64

bool td_python_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool td_python_name(char c) {
    return td_python_name_start(c) || (c >= '0' && c <= '9') || c == '.';
}

void td_python_skip(td_python_text *s) {
    while (s->at < s->end && td_is_blank(*s->at)) s->at++;
}

bool td_python_take(td_python_text *s, char c) {
    td_python_skip(s);
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

size_t td_python_take_name(td_python_text *s, const char **name) {
    td_python_skip(s);
    *name = s->at;
    if (s->at == s->end || !td_python_name_start(*s->at)) return 0;
    while (s->at < s->end && td_python_name(*s->at)) s->at++;
    return (size_t)(s->at - *name);
}

static void put_word(td_bytes *json, const char *text) {
    td_bytes_put(json, text, strlen(text));
}

static void put_byte(td_bytes *json, char c) {
    char text[TD_JSON_ESCAPE_MAX];
    td_bytes_put(json, text, td_json_escape(c, text));
}

static void put_character(td_bytes *json, uint32_t c) {
    char                  text[4] = {(char)c};
    size_t                n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint32_t LEAD[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; n > 1 && i-- > 0; c >>= 6) text[i] = (char)(i ? 0x80 | (c & 0x3f) : LEAD[n] | c);
    for (size_t i = 0; i < n; i++) put_byte(json, text[i]);
}

/* What follows a backslash. Python's \x, \u and \U give a character; an unknown escape stays as it is. */
static bool take_escape(td_python_text *s, td_bytes *json) {
    static const char FROM[] = "\\'\"nrtbf0", TO[] = "\\'\"\n\r\t\b\f";
    if (s->at == s->end) return false;
    char        c = *s->at++;
    const char *known = c ? strchr(FROM, c) : NULL;
    size_t      digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (known) {
        put_byte(json, TO[known - FROM]);
    } else if (digits && (size_t)(s->end - s->at) >= digits) {
        char hex[9] = {0}, *end;
        memcpy(hex, s->at, digits);
        unsigned long code = strtoul(hex, &end, 16);
        if (*end || hex[0] == '-' || hex[0] == '+' || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
        s->at += digits;
        put_character(json, (uint32_t)code);
    } else if (c != '\n') {
        put_byte(json, '\\');
        put_byte(json, c);
    }
    return true;
}

static bool take_string(td_python_text *s, td_bytes *json) {
    char quote = *s->at++;
    put_word(json, "\"");
    while (s->at < s->end && *s->at != quote) {
        if (*s->at != '\\')
            put_byte(json, *s->at++);
        else if (s->at++, !take_escape(s, json))
            return false;
    }
    put_word(json, "\"");
    return s->at < s->end && *s->at++ == quote;
}

static bool take_sequence(td_python_text *s, char close, td_bytes *json) {
    s->at++;
    put_word(json, "[");
    for (bool more = true, first = true; !td_python_take(s, close); first = false) {
        if (!more) return false;
        if (!first) put_word(json, ", ");
        if (!td_python_take_value(s, json)) return false;
        more = td_python_take(s, ',');
    }
    put_word(json, "]");
    return true;
}

static bool take_dict(td_python_text *s, td_bytes *json) {
    s->at++;
    put_word(json, "{");
    for (bool more = true, first = true; !td_python_take(s, '}'); first = false) {
        if (!more) return false;
        if (!first) put_word(json, ", ");
        td_python_skip(s);
        if (s->at == s->end || (*s->at != '"' && *s->at != '\'') || !take_string(s, json)) return false;
        put_word(json, ": ");
        if (!td_python_take(s, ':') || !td_python_take_value(s, json)) return false;
        more = td_python_take(s, ',');
    }
    put_word(json, "}");
    return true;
}

/* True, False, None, as JSON writes them too; or a number. */
static bool take_word(td_python_text *s, td_bytes *json) {
    static const char *const WORDS[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const char              *from = s->at;
    while (s->at < s->end && (td_python_name(*s->at) || *s->at == '-' || *s->at == '+')) s->at++;
    size_t n = (size_t)(s->at - from);
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        if (n != strlen(WORDS[i][0]) || memcmp(from, WORDS[i][0], n) != 0) continue;
        put_word(json, WORDS[i][1]);
        return true;
    }
    td_bytes_put(json, from, n);
    return td_json_is_number(from, n);
}

bool td_python_take_value(td_python_text *s, td_bytes *json) {
    td_python_skip(s);
    if (s->at == s->end || s->depth == DEPTH_MAX) return false;
    s->depth++;
    char c = *s->at;
    bool good = c == '"' || c == '\'' ? take_string(s, json)
                : c == '['            ? take_sequence(s, ']', json)
                : c == '('            ? take_sequence(s, ')', json)
                : c == '{'            ? take_dict(s, json)
                                      : take_word(s, json);
    s->depth--;
    return good;
}
