/* Counters of the engine: written by the engine thread, read by anyone. */
#ifndef TD_ENGINE_ENGINE_STATS_H
#define TD_ENGINE_ENGINE_STATS_H

#include <pthread.h>

#include "model/step_rows.h"

typedef struct {
    pthread_mutex_t lock; /* guards the fields below */
    td_engine_stats s;
    td_engine_step  step;         /* without `seconds` and `where`, which td_engine_get_step fills in */
    double          step_begin_s; /* monotonic clock */
} td_stats;

TD_NODISCARD td_status td_stats_open(td_stats *t, td_error *err);
void                   td_stats_close(td_stats *t);

/** Note that the engine thread enters a phase; TD_STEP_SCHEDULING begins the next step. @param step the step's rows, or NULL
 * if they are as before. */
void td_stats_phase(td_stats *t, td_step_phase phase, const td_step_rows *step);
void td_stats_ended(td_stats *t, td_finish finish, double seconds); /* a request ended, `seconds` after it arrived */
/** The rate of the work between two snapshots. */
td_tier_rate td_tier_rate_of(const td_tier_work *from, const td_tier_work *to, const td_bounds *bounds);
void         td_histogram_observe(td_histogram *h, double seconds);

#endif
