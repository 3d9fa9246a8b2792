#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *td_status_text(td_status status) {
    switch (status) {
#define TD_STATUS_CASE(name, value, text) \
    case TD_##name: return text;
        TD_STATUS_MAP(TD_STATUS_CASE)
#undef TD_STATUS_CASE
    }
    return "unknown status";
}

/* Keep the sentence to one line, whatever names it quotes. */
static void keep_to_one_line(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
}

td_status td_fail(td_error *err, td_status status, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        keep_to_one_line(err->text);
        err->status = status;
    }
    return status;
}

td_status td_fail_within(td_error *err, const char *fmt, ...) {
    if (!err) return TD_EINVAL;
    char    inner[TD_ERROR_TEXT_MAX];
    va_list ap;
    memcpy(inner, err->text, sizeof inner);
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    keep_to_one_line(err->text);
    size_t n = strlen(err->text);
    for (const char *p = ": "; *p && n + 1 < sizeof err->text;) err->text[n++] = *p++;
    for (const char *p = inner; *p && n + 1 < sizeof err->text;) err->text[n++] = *p++;
    err->text[n] = 0;
    return err->status;
}
