#include "server/api/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void fill(td_api_error *err, int http, const char *code, const char *param, const char *fmt, va_list ap) {
    *err = (td_api_error){.http = http, .code = code};
    snprintf(err->param, sizeof err->param, "%s", param ? param : "");
    vsnprintf(err->message, sizeof err->message, fmt, ap);
}

td_status td_api_bad(td_api_error *err, const char *param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(err, 400, NULL, param, fmt, ap);
    va_end(ap);
    return TD_EINVAL;
}

td_status td_api_fail(td_api_error *err, int http, const char *code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill(err, http, code, NULL, fmt, ap);
    va_end(ap);
    return TD_EINVAL;
}

td_status td_api_no_memory(td_api_error *err) {
    return td_api_fail(err, 500, "internal_error", "Out of memory.");
}

td_status td_api_from_status(td_api_error *err, td_status status, const td_error *cause, const char *param) {
    const char *text = cause && cause->text[0] ? cause->text : td_status_text(status);
    switch (status) {
        case TD_EINVAL:
        case TD_ENOTSUP: return td_api_bad(err, param, "%s", text);
        case TD_EBUSY: return td_api_fail(err, 503, "queue_full", "%s", text);
        case TD_ESHUTDOWN: return td_api_fail(err, 503, "shutting_down", "%s", text);
        case TD_ELOST: return td_api_fail(err, 503, "device_lost", "%s", text);
        default: return td_api_fail(err, 500, "internal_error", "%s", text);
    }
}

static const char *error_type(int http) {
    switch (http) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 404: return "not_found_error";
        case 429: return "rate_limit_error";
        default: return http >= 500 ? "server_error" : "invalid_request_error";
    }
}

void td_api_error_write(td_jbuf *b, const td_api_error *err) {
    td_jw_open(b, '{');
    td_jw_key(b, "error");
    td_jw_open(b, '{');
    td_jw_member_str(b, "message", err->message);
    td_jw_member_str(b, "type", error_type(err->http));
    td_jw_member_str(b, "param", err->param[0] ? err->param : NULL);
    td_jw_member_str(b, "code", err->code);
    td_jw_close(b, '}');
    td_jw_close(b, '}');
}

/* Whether text begins with the name, and the name ends where the text or a word of the path ends. */
static bool begins_with(const char *text, const char *name) {
    size_t n = strlen(name);
    return !strncmp(text, name, n) && (text[n] == 0 || text[n] == '.' || text[n] == '[');
}

/* Put `to` in place of the n bytes at `at`, which are of a text of size bytes; left as it is where there is no room. */
static void replace(char *text, size_t size, char *at, size_t n, const char *to) {
    size_t len = strlen(text), m = strlen(to);
    if (len - n + m >= size) return;
    memmove(at + m, at + n, len - (size_t)(at - text) - n + 1);
    memcpy(at, to, m);
}

void td_api_rename_error(const td_api_name *names, td_api_error *err) {
    for (const td_api_name *name = names; name && name->common; name++) {
        if (!begins_with(err->param, name->common)) continue;
        char quoted[TD_API_PARAM_MAX];
        replace(err->param, sizeof err->param, err->param, strlen(name->common), name->here);
        snprintf(quoted, sizeof quoted, "'%s'", name->common);
        char *at = strstr(err->message, quoted);
        if (at) replace(err->message, sizeof err->message, at + 1, strlen(name->common), name->here);
        return;
    }
}
