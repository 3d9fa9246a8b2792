#include "text/parse/json_parts.h"

#include <stdlib.h>
#include <string.h>

#include "core/files/json_text.h"

size_t td_json_escape(char c, char out[TD_JSON_ESCAPE_MAX]) {
    static const char SHORT[] = "btnvfr"; /* of 8 to 13; JSON has no \v */
    unsigned char     byte = (unsigned char)c;
    if (byte >= 0x20 && c != '"' && c != '\\') {
        out[0] = c;
        return 1;
    }
    if (byte < 0x20 && (byte < 8 || byte > 13 || byte == 11)) return (size_t)sprintf(out, "\\u%04x", byte);
    out[0] = '\\';
    out[1] = byte < 0x20 ? SHORT[byte - 8] : c;
    return 2;
}

static size_t digits(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && text[i] >= '0' && text[i] <= '9') i++;
    return i;
}

bool td_json_is_number(const char *text, size_t n) {
    size_t at = n && text[0] == '-', k = digits(text + at, n - at);
    if (k == 0 || (k > 1 && text[at] == '0')) return false;
    at += k;
    if (at < n && text[at] == '.') {
        k = digits(text + at + 1, n - at - 1);
        if (k == 0) return false;
        at += 1 + k;
    }
    if (at < n && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (at < n && (text[at] == '+' || text[at] == '-')) at++;
        k = digits(text + at, n - at);
        if (k == 0) return false;
        at += k;
    }
    return at == n;
}

/* Make 0 of every number outside of strings; blanks take the room that is left. */
static void zero_numbers(char *text, size_t n) {
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        if (text[i] == '"') in_string = !in_string;
        if (in_string && text[i] == '\\') i++; /* an escaped quote does not end the string */
        while (!in_string && i + k < n && text[i + k] && strchr("-+.0123456789eE", text[i + k])) k++;
        if (k == 0 || !td_json_is_number(text + i, k)) continue;
        memset(text + i, ' ', k);
        text[i] = '0';
        i += k - 1;
    }
}

td_status td_json_load_shape(const char *text, size_t n, size_t flags, json_t **out) {
    json_error_t why;
    td_status    st = td_json_load(text, n, flags, out, &why);
    if (st != TD_EFORMAT || json_error_code(&why) != json_error_numeric_overflow) return st;
    char *copy = malloc(n);
    if (!copy) return TD_ENOMEM;
    memcpy(copy, text, n);
    zero_numbers(copy, n);
    st = td_json_load(copy, n, flags, out, &why);
    free(copy);
    return st;
}
