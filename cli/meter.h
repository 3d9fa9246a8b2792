/* Progress on stderr: a bar that is drawn anew on a terminal, a line now and then in a log. */
#ifndef TD_CLI_METER_H
#define TD_CLI_METER_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    const char *command;   /* "quantize": begins the log's lines */
    const char *unit;      /* of the rate, "MB" or "tokens" */
    double      unit_size; /* what one of them is in the numbers given */

    /* the meter's own */
    bool            tty, started;
    struct timespec start;
    uint64_t        first;  /* done when the clock started */
    double          last_s; /* of the last line */
} td_meter;

void td_meter_open(td_meter *m, const char *command, const char *unit, double unit_size);

/** The progress callback of the library's long calls. @param meter a td_meter. */
void td_meter_progress(void *meter, uint64_t done, uint64_t total, const char *what);

/** What goes before a message while a bar may stand unfinished: "\n" or "". */
const char *td_meter_newline(const td_meter *m);

#endif
