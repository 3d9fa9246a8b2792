#include "cli/meter.h"

#include <stdio.h>
#include <unistd.h>

#include "core/log/log.h"

#define BAR 30
#define REDRAW_S 0.1
#define LOG_S 5.0

void td_meter_open(td_meter *m, const char *command, const char *unit, double unit_size) {
    *m = (td_meter){.command = command, .unit = unit, .unit_size = unit_size, .tty = isatty(STDERR_FILENO)};
}

static double seconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

void td_meter_progress(void *meter, uint64_t done, uint64_t total, const char *what) {
    td_meter *m = meter;
    if (!m->started) {
        clock_gettime(CLOCK_MONOTONIC, &m->start);
        m->started = true;
        m->first = done;
        m->last_s = -1e9;
    }
    double s = seconds_since(&m->start);
    if (done != total && s - m->last_s < (m->tty ? REDRAW_S : LOG_S)) return;
    m->last_s = s;
    double   rate = s > 0 ? (double)(done - m->first) / s : 0;
    unsigned left = rate > 0 ? (unsigned)((double)(total - done) / rate) : 0;
    double   percent = total ? 100.0 * (double)done / (double)total : 100;
    rate /= m->unit_size;
    int digits = rate < 10 ? 1 : 0;
    if (m->tty) {
        char bar[BAR + 1] = "";
        for (int i = 0; i < BAR; i++) bar[i] = i < (int)(percent * BAR / 100) ? '#' : '.';
        fprintf(stderr, "\r[%s] %5.1f %%  %6.*f %s/s  %u:%02u:%02u left  %-40.40s", bar, percent, digits, rate, m->unit,
                left / 3600, left / 60 % 60, left % 60, what);
        if (done == total) fputc('\n', stderr);
    } else {
        td_info("%s: %.1f %%, %.*f %s/s, %u:%02u:%02u left, %s", m->command, percent, digits, rate, m->unit, left / 3600,
                left / 60 % 60, left % 60, what);
    }
}

const char *td_meter_newline(const td_meter *m) {
    return m->tty && m->started ? "\n" : "";
}
