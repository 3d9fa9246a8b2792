/* Log lines on stderr: "2026-01-02T03:04:05.678Z info  message". Thread-safe; a line is one write. */
#ifndef TD_CORE_LOG_H
#define TD_CORE_LOG_H

#include "tandem.h"

typedef enum { TD_LOG_DEBUG, TD_LOG_INFO, TD_LOG_WARNING, TD_LOG_ERROR } td_log_level;

void td_log_set_level(td_log_level level); /* default INFO; call before threads start */
void td_log(td_log_level level, const char *fmt, ...) TD_PRINTF(2, 3);

#define td_debug(...) td_log(TD_LOG_DEBUG, __VA_ARGS__)
#define td_info(...)  td_log(TD_LOG_INFO, __VA_ARGS__)
#define td_warn(...)  td_log(TD_LOG_WARNING, __VA_ARGS__)
#define td_err(...)   td_log(TD_LOG_ERROR, __VA_ARGS__)

#endif
