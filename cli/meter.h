/* Progress on stderr: a bar that is redrawn on a terminal, or a line now and then in a log. */
#ifndef TD_CLI_METER_H
#define TD_CLI_METER_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    const char *command;   /* "quantize": begins the log's lines */
    const char *unit;      /* of the rate, "MB" or "tokens" */
    double      unit_size; /* how much of `done` and `total` makes one unit */

    /* state of the meter */
    bool            tty, started;
    struct timespec start;
    uint64_t        first;  /* `done` when the clock started */
    double          last_s; /* time of the last line */
} td_meter;

void td_meter_open(td_meter *m, const char *command, const char *unit, double unit_size);

/** A progress callback for the library's long calls. @param meter a td_meter. */
void td_meter_progress(void *meter, uint64_t done, uint64_t total, const char *what);

/** What to print before a message: "\n" if a bar stands unfinished in its line, otherwise "". */
const char *td_meter_newline(const td_meter *m);

#endif
