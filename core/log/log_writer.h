/*
 * A thread that writes log lines to standard error, so that no other thread waits for a slow reader. Between td_log and this
 * thread is a ring of bytes. A line that finds no room is dropped and counted.
 */
#ifndef TD_CORE_LOG_LOG_WRITER_H
#define TD_CORE_LOG_LOG_WRITER_H

#include "tandem.h"

#define TD_LOG_RING_BYTES ((size_t)256 << 10)

/** Start the thread, once in a process; it goes on until the process ends. Before that, the thread that logs a line writes
 * it. */
TD_NODISCARD td_status td_log_writer_start(td_error *err);

/**
 * Hand over a line, or drop it. Never waits for a reader.
 * @param lost  receives how many lines were dropped and not reported yet.
 * @return false: there is no writer, write it yourself.
 */
TD_NODISCARD bool td_log_writer_put(const char *line, size_t n, uint64_t *lost);

/** Wait until all is written, at most timeout_s. @return false: nobody reads. */
bool td_log_writer_flush(double timeout_s);

uint64_t td_log_writer_dropped(void); /* lines, since the start */

#endif
