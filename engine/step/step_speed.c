#include "engine/step/step_speed.h"

#include <math.h>

#include "engine/step/time_average.h"

#define PLAIN_WEIGHT (1.0 / 16) /* least weight of the newest step */
#define UNIT_WEIGHT (1.0 / 4)   /* few steps make a prompt, and each has more context than the one before */
#define ROUNDING 1e-6           /* rows that arithmetic may lose */

double td_prompt_work(uint32_t pos, uint32_t n) {
    return n * (1 + (pos + 0.5 * n) / TD_CONTEXT_TWICE);
}

/* n * first + n * n / (2 * TD_CONTEXT_TWICE) = work, solved for n */
uint32_t td_prompt_rows(uint32_t pos, double work) {
    double first = 1 + (double)pos / TD_CONTEXT_TWICE;
    double n = TD_CONTEXT_TWICE * (sqrt(first * first + 2 * work / TD_CONTEXT_TWICE) - first) + ROUNDING;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

double td_step_speed_fits(const td_step_speed *s, uint32_t pos, bool streams) {
    double least = td_prompt_work(pos, s->least_rows);
    if (s->max_s <= 0) return (double)INFINITY;
    if (!s->n_unit) return least;
    double most = (s->max_s - (streams ? s->plain_s : 0)) / s->unit_s;
    return most > least ? most : least;
}

bool td_step_speed_has_room(const td_step_speed *s, double work, bool streams) {
    if (s->max_s <= 0) return true;
    if (!s->n_unit) return work <= td_prompt_work(0, s->least_rows);
    return (streams ? s->plain_s : 0) + s->unit_s * work <= s->max_s;
}

void td_step_speed_observe(td_step_speed *s, uint32_t n_rows, double work, bool streams, double seconds) {
    if (seconds <= 0) return;
    if (!n_rows) {
        td_average_follow_time(&s->plain_s, s->n_plain++, seconds, PLAIN_WEIGHT);
        return;
    }
    if (n_rows < s->least_rows) return;
    double plain = streams ? fmin(s->plain_s, seconds / 2) : 0; /* an average may be above a step that took little */
    td_average_follow_time(&s->unit_s, s->n_unit++, (seconds - plain) / work, UNIT_WEIGHT);
}
