/* Log lines while a model loads: "loading experts: 40 %, 812 MB/s", at most one every two seconds. */
#ifndef TD_MODEL_LOAD_PROGRESS_H
#define TD_MODEL_LOAD_PROGRESS_H

#include <stdint.h>

typedef struct {
    const char *what; /* static; NULL: nothing is logged */
    uint64_t    total, done;
    double      start_s, last_s;
} td_load_progress;

void td_load_progress_start(td_load_progress *p, const char *what, uint64_t total_bytes);
void td_load_progress_add(td_load_progress *p, uint64_t bytes);
void td_load_progress_end(td_load_progress *p);

#endif
