#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

static td_log_level g_level = TD_LOG_INFO;

void td_log_set_level(td_log_level level) { g_level = level; }

void td_log(td_log_level level, const char *fmt, ...) {
    static const char *const names[] = {"debug", "info ", "warn ", "error"};
    if (level < g_level) return;

    struct timespec now;
    struct tm       utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    char   line[LINE_MAX_BYTES];
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s ", now.tv_nsec / 1000000, names[level]);

    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m > 0) n += (size_t)m < sizeof line - n - 1 ? (size_t)m : sizeof line - n - 2;
    line[n++] = '\n';
    /* A log line that cannot be written has nowhere to be reported. */
    if (write(STDERR_FILENO, line, n) < 0) return;
}
