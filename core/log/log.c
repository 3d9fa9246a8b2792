#include "core/log/log.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/log/log_writer.h"

#define MESSAGE_MAX 2048                  /* bytes of a message with its marks; what is longer is cut */
#define LINE_MAX (12 * MESSAGE_MAX + 256) /* a byte of a message takes at most 6 in JSON, and a figure is there twice */
#define NAME_MARK '\001'
#define VALUE_MARK '\002'
#define END_MARK '\003'

static td_log_level  g_level = TD_LOG_INFO;
static td_log_format g_format = TD_LOG_TEXT;

void td_log_set_level(td_log_level level) {
    g_level = level;
}
void td_log_set_format(td_log_format format) {
    g_format = format;
}

typedef struct {
    char   text[LINE_MAX];
    size_t n;
} line;

static void put(line *l, const char *s, size_t n) {
    assert(n < sizeof l->text - l->n);
    memcpy(l->text + l->n, s, n);
    l->n += n;
}

static void puts_to(line *l, const char *s) {
    put(l, s, strlen(s));
}

/* Length of the well-formed UTF-8 character at s (RFC 3629), 0 for anything else. */
static size_t utf8_len(const unsigned char *s, size_t n) {
    size_t   len = s[0] < 0x80                   ? 1
                   : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                   : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                   : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                 : 0;
    uint32_t c = len > 1 ? s[0] & (0x7fu >> len) : s[0];
    if (len > n) return 0;
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    bool overlong = (len == 3 && c < 0x800) || (len == 4 && c < 0x10000), surrogate = c >= 0xd800 && c < 0xe000;
    return overlong || surrogate || c > 0x10ffff ? 0 : len;
}

static void put_escaped(line *l, const char *s, size_t n) {
    for (size_t i = 0, len; i < n; i += len ? len : 1) {
        len = utf8_len((const unsigned char *)s + i, n - i);
        if (len == 0) {
            puts_to(l, "\\ufffd");
        } else if (s[i] == '"' || s[i] == '\\') {
            puts_to(l, "\\");
            put(l, s + i, 1);
        } else {
            put(l, s + i, len);
        }
    }
}

static bool is_digits(const char **p, const char *end) {
    const char *from = *p;
    while (*p < end && **p >= '0' && **p <= '9') (*p)++;
    return *p > from;
}

/* -?(0|[1-9][0-9]*)(.[0-9]+)?(e[+-]?[0-9]+)? */
static bool is_json_number(const char *p, const char *end) {
    if (p < end && *p == '-') p++;
    const char *whole = p;
    if (!is_digits(&p, end) || (*whole == '0' && p - whole > 1)) return false;
    if (p < end && *p == '.' && (p++, !is_digits(&p, end))) return false;
    if (p < end && *p == 'e') {
        if (++p < end && (*p == '+' || *p == '-')) p++;
        if (!is_digits(&p, end)) return false;
    }
    return p == end;
}

/* Put a figure as a JSON member, unless the message was cut inside it. */
static void put_member(line *l, const char *name, const char *value, const char *end) {
    puts_to(l, ",\"");
    put_escaped(l, name, (size_t)(value - 1 - name));
    puts_to(l, "\":");
    bool number = is_json_number(value, end);
    if (!number) puts_to(l, "\"");
    put_escaped(l, value, (size_t)(end - value));
    if (!number) puts_to(l, "\"");
}

/* Bytes of a character at p that would change how a terminal or viewer shows the rest; 0 for any other. These are control
 * characters, U+0080 to U+009F among them, line separators, and the marks that turn the direction of text (Unicode 9). */
static size_t unshown_len(const char *p) {
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < ' ' || s[0] == 0x7f) return 1;
    if (s[0] == 0xc2) return s[1] >= 0x80 && s[1] < 0xa0 ? 2 : 0;
    if (s[0] != 0xe2) return 0;
    bool general = s[1] == 0x80 && ((s[2] >= 0x8e && s[2] <= 0x8f) || (s[2] >= 0xa8 && s[2] <= 0xae));
    bool isolates = s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9;
    return general || isolates ? 3 : 0;
}

/* The message as people read it: without marks and names, and with '?' for each character of unshown_len. */
static size_t plain_text(const char *marked, bool has_figures, char *out) {
    size_t n = 0;
    for (const char *p = marked; *p; p++) {
        if (has_figures && *p == NAME_MARK) {
            const char *value = strchr(p, VALUE_MARK);
            if (!value) break; /* cut within the name */
            p = value;
        } else if (!has_figures || *p != END_MARK) {
            size_t len = unshown_len(p);
            out[n++] = len ? '?' : *p;
            p += len ? len - 1 : 0;
        }
    }
    return n;
}

static void put_figures(line *l, const char *marked) {
    for (const char *name = marked; (name = strchr(name, NAME_MARK));) {
        const char *value = strchr(++name, VALUE_MARK), *end = value ? strchr(value, END_MARK) : NULL;
        if (!end) return;
        put_member(l, name, value + 1, end);
        name = end;
    }
}

void td_log(td_log_level level, const char *fmt, ...) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    if (level < g_level) return;

    char    marked[MESSAGE_MAX], message[MESSAGE_MAX], time[64];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(marked, sizeof marked, fmt, ap) < 0) marked[0] = 0;
    va_end(ap);
    bool   has_figures = strchr(fmt, NAME_MARK) != NULL;
    size_t n = plain_text(marked, has_figures, message);

    struct timespec now;
    struct tm       utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t at = strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(time + at, sizeof time - at, ".%03ldZ", now.tv_nsec / 1000000);

    line l;
    l.n = 0;
    if (g_format == TD_LOG_TEXT) {
        l.n = (size_t)snprintf(l.text, sizeof l.text, "%s %-5s ", time, names[level]);
        put(&l, message, n);
    } else {
        l.n = (size_t)snprintf(l.text, sizeof l.text, "{\"ts\":\"%s\",\"level\":\"%s\",\"msg\":\"", time, names[level]);
        put_escaped(&l, message, n);
        puts_to(&l, "\"");
        if (has_figures) put_figures(&l, marked);
        puts_to(&l, "}");
    }
    puts_to(&l, "\n");
    uint64_t lost;
    if (td_log_writer_put(l.text, l.n, &lost)) {
        if (lost)
            td_warn(TD_FIGURE("dropped", "%llu") " log lines before this one were dropped: nobody read standard error",
                    (unsigned long long)lost);
    } else if (write(STDERR_FILENO, l.text, l.n) < 0) {
        return; /* a log line that cannot be written has nowhere to be reported */
    }
}
