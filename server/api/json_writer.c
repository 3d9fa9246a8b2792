/* Growing buffers and JSON appended to them. */
#include "server/api/json_writer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_MIN 512
#define ROOM_DOUBLED ((size_t)1 << 20) /* a larger buffer grows by less */

void td_jbuf_free(td_jbuf *b) {
    free(b->data);
    td_answer_hold_set(&b->hold, 0);
    *b = (td_jbuf){.hold = b->hold};
}

size_t td_jbuf_take(const td_jbuf *b, size_t *taken, char *to, size_t max) {
    size_t n = b->len - *taken < max ? b->len - *taken : max;
    if (n) memcpy(to, b->data + *taken, n);
    *taken += n;
    return n;
}

void td_jbuf_taken(td_jbuf *b) {
    if (b->len) b->before = b->data[b->len - 1];
    b->len = 0;
}

/* The room to have for `need` bytes: twice the old one, or a quarter more where that would be much. */
static size_t grown(size_t room, size_t need) {
    size_t more = room < ROOM_MIN ? ROOM_MIN : room < ROOM_DOUBLED ? room : room / 4;
    return need - room < more ? room + more : need;
}

static bool reserve(td_jbuf *b, size_t n) {
    size_t need;
    if (b->failed) return false;
    if (__builtin_add_overflow(b->len, n, &need)) {
        b->failed = true;
        return false;
    }
    if (need <= b->room) return true;
    size_t room = grown(b->room, need);
    if (!td_answer_hold_set(&b->hold, room)) {
        room = need;
        if (!td_answer_hold_set(&b->hold, room)) b->refused = room;
    }
    char *p = b->refused ? NULL : realloc(b->data, room);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->room = room;
    return true;
}

void td_jbuf_put(td_jbuf *b, const void *bytes, size_t n) {
    if (n == 0 || !reserve(b, n)) return;
    memcpy(b->data + b->len, bytes, n);
    b->len += n;
}

void td_jbuf_puts(td_jbuf *b, const char *s) {
    td_jbuf_put(b, s, strlen(s));
}

void td_jbuf_printf(td_jbuf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) b->failed = true;
    if (n > 0 && reserve(b, (size_t)n + 1)) { /* vsnprintf wants room for the terminator */
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

/* Put a comma, except at the start, behind an opening bracket, a key, or text that ends in a blank ("data: "). */
static void comma(td_jbuf *b) {
    char last = b->len ? b->data[b->len - 1] : b->before;
    if (last != 0 && last != '{' && last != '[' && last != ':' && last != ' ' && last != '\n') td_jbuf_put(b, ",", 1);
}

void td_jw_open(td_jbuf *b, char bracket) {
    comma(b);
    td_jbuf_put(b, &bracket, 1);
}

void td_jw_close(td_jbuf *b, char bracket) {
    td_jbuf_put(b, &bracket, 1);
}

/* Bytes of the UTF-8 character at s (n > 0), 0 where there is none (Unicode 14, table 3-7: no overlong forms, no
 * surrogates). */
static size_t utf8_len(const unsigned char *s, size_t n) {
    unsigned char low = 0x80, high = 0xbf;
    size_t        len;
    if (s[0] < 0x80) return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        len = 2;
    else if (s[0] >= 0xe0 && s[0] <= 0xef)
        len = 3;
    else if (s[0] >= 0xf0 && s[0] <= 0xf4)
        len = 4;
    else
        return 0;
    if (s[0] == 0xe0) low = 0xa0;
    if (s[0] == 0xed) high = 0x9f;
    if (s[0] == 0xf0) low = 0x90;
    if (s[0] == 0xf4) high = 0x8f;
    if (n < len || s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < len; i++)
        if (s[i] < 0x80 || s[i] > 0xbf) return 0;
    return len;
}

bool td_jw_is_utf8(const char *s, size_t n) {
    for (size_t i = 0, len; i < n; i += len) {
        len = utf8_len((const unsigned char *)s + i, n - i);
        if (len == 0) return false;
    }
    return true;
}

void td_jw_chars(td_jbuf *b, const char *s, size_t n) {
    static const char hex[] = "0123456789abcdef";
    if (n == 0) return; /* s may be NULL then */
    size_t from = 0;
    for (size_t i = 0, len; i < n; i += len) {
        unsigned char c = (unsigned char)s[i];
        len = utf8_len((const unsigned char *)s + i, n - i);
        if (len == 0) { /* not UTF-8, as a URL or a cut sentence may be */
            td_jbuf_put(b, s + from, i - from);
            td_jbuf_puts(b, "\\ufffd");
            from = i + 1;
            len = 1;
            continue;
        }
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        td_jbuf_put(b, s + from, i - from);
        from = i + 1;
        switch (c) {
            case '"': td_jbuf_put(b, "\\\"", 2); break;
            case '\\': td_jbuf_put(b, "\\\\", 2); break;
            case '\n': td_jbuf_put(b, "\\n", 2); break;
            case '\r': td_jbuf_put(b, "\\r", 2); break;
            case '\t': td_jbuf_put(b, "\\t", 2); break;
            default: {
                char u[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
                td_jbuf_put(b, u, sizeof u);
            }
        }
    }
    td_jbuf_put(b, s + from, n - from);
}

void td_jw_text(td_jbuf *b, const char *s, size_t n) {
    comma(b);
    td_jbuf_put(b, "\"", 1);
    td_jw_chars(b, s, n);
    td_jbuf_put(b, "\"", 1);
}

void td_jw_key(td_jbuf *b, const char *key) {
    td_jw_text(b, key, strlen(key));
    td_jbuf_put(b, ":", 1);
}

void td_jw_str(td_jbuf *b, const char *s) {
    if (s)
        td_jw_text(b, s, strlen(s));
    else
        td_jw_null(b);
}

void td_jw_int(td_jbuf *b, int64_t v) {
    comma(b);
    td_jbuf_printf(b, "%lld", (long long)v);
}

void td_jw_real(td_jbuf *b, double v, int digits) {
    if (!isfinite(v)) {
        td_jw_null(b);
        return;
    }
    comma(b);
    td_jbuf_printf(b, "%.*g", digits, v);
}

void td_jw_raw(td_jbuf *b, const char *json, size_t n) {
    comma(b);
    td_jbuf_put(b, json, n);
}

void td_jw_bool(td_jbuf *b, bool v) {
    td_jw_raw(b, v ? "true" : "false", v ? 4 : 5);
}
void td_jw_null(td_jbuf *b) {
    td_jw_raw(b, "null", 4);
}

void td_jw_member_str(td_jbuf *b, const char *key, const char *s) {
    td_jw_key(b, key);
    td_jw_str(b, s);
}

void td_jw_member_int(td_jbuf *b, const char *key, int64_t v) {
    td_jw_key(b, key);
    td_jw_int(b, v);
}

void td_jw_member_bool(td_jbuf *b, const char *key, bool v) {
    td_jw_key(b, key);
    td_jw_bool(b, v);
}

void td_jw_member_null(td_jbuf *b, const char *key) {
    td_jw_key(b, key);
    td_jw_null(b);
}
