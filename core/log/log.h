/*
 * Log lines on stderr, as text ("2026-01-02T03:04:05.678Z info  message") or as one JSON object a line. Thread-safe. A line
 * is one write, or is handed to the log's thread if there is one (core/log/log_writer.h). Control characters in it become
 * '?', so that nothing in a message can forge a line.
 *
 * A line may name its figures. TD_FIGURE("running", "%u") stands in place of "%u", prints the same text, and is also a
 * member in JSON:
 *   td_info("decode: " TD_FIGURE("running", "%u") " running", 3);
 *     text  2026-01-02T03:04:05.678Z info  decode: 3 running
 *     json  {"ts":"2026-01-02T03:04:05.678Z","level":"info","msg":"decode: 3 running","running":3}
 * A figure that prints as a JSON number is a number, any other a string. Figures are marked by bytes in the format, so a
 * line with figures must not print text from outside (a path, a request's fields). A line without figures may.
 */
#ifndef TD_CORE_LOG_LOG_H
#define TD_CORE_LOG_LOG_H

#include "tandem.h"

typedef enum { TD_LOG_DEBUG, TD_LOG_INFO, TD_LOG_WARNING, TD_LOG_ERROR } td_log_level;
typedef enum { TD_LOG_TEXT, TD_LOG_JSON } td_log_format;

#define TD_FIGURE(name, conversion) "\001" name "\002" conversion "\003"

void td_log_set_level(td_log_level level);    /* default INFO; call before threads start */
void td_log_set_format(td_log_format format); /* default TEXT; likewise */
void td_log(td_log_level level, const char *fmt, ...) TD_PRINTF(2, 3);

#define td_debug(...) td_log(TD_LOG_DEBUG, __VA_ARGS__)
#define td_info(...) td_log(TD_LOG_INFO, __VA_ARGS__)
#define td_warn(...) td_log(TD_LOG_WARNING, __VA_ARGS__)
#define td_err(...) td_log(TD_LOG_ERROR, __VA_ARGS__)

#endif
