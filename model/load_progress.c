#include "model/load_progress.h"

#include <time.h>

#include "core/log/log.h"

#define LINE_EVERY_S 2.0

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void td_load_progress_start(td_load_progress *p, const char *what, uint64_t total_bytes) {
    double now = now_s();
    *p = (td_load_progress){.what = what, .total = total_bytes, .start_s = now, .last_s = now};
}

void td_load_progress_add(td_load_progress *p, uint64_t bytes) {
    double now = now_s();
    p->done += bytes;
    if (!p->what || now - p->last_s < LINE_EVERY_S || !p->total) return;
    p->last_s = now;
    double rate = (double)p->done / (now - p->start_s),
           left_s = p->done < p->total ? (double)(p->total - p->done) / rate : 0;
    td_info("loading %s: %.0f %%, %.0f MB/s, %.0f s left", p->what, 100.0 * (double)p->done / (double)p->total, rate * 1e-6,
            left_s);
}

void td_load_progress_end(td_load_progress *p) {
    if (p->what) td_info("loaded %s: %.1f MB in %.1f s", p->what, (double)p->total * 1e-6, now_s() - p->start_s);
}
