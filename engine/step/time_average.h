/* Averages of what steps took: they follow the machine, and what holds one step up does not decide for hundreds. */
#ifndef TD_ENGINE_STEP_TIME_AVERAGE_H
#define TD_ENGINE_STEP_TIME_AVERAGE_H

#include <stdint.h>

#define TD_TIME_OUTLIER 2 /* times an average */

/** Take a value into an average of n_before values: with weight 1 / (n_before + 1), but least_weight at least. */
static inline void td_average_follow(double *average, uint32_t n_before, double value, double least_weight) {
    double weight = 1.0 / (n_before + 1);
    *average += (value - *average) * (weight > least_weight ? weight : least_weight);
}

/** The same for times, without outliers such as a first touch of memory or another process. A time of more than
 * TD_TIME_OUTLIER averages counts as so many; one as far below the average shows that this came from outliers, and starts it
 * anew. */
static inline void td_average_follow_time(double *average, uint32_t n_before, double seconds, double least_weight) {
    if (n_before && seconds > TD_TIME_OUTLIER * *average) seconds = TD_TIME_OUTLIER * *average;
    if (n_before && TD_TIME_OUTLIER * seconds < *average) *average = seconds;
    td_average_follow(average, n_before, seconds, least_weight);
}

#endif
