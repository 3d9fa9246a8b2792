/*
 * How many rows of prompts a step may have, by the time that the steps before it took.
 *
 * DESIGN. Who reads a stream, or waits for a short prompt, waits for the step that is under way. So a step that is not alone
 * has as many prompt rows as fit a time. What a step takes is estimated as
 *
 *   plain + unit * work      plain  seconds of a step without prompts, where streams share the step
 *                            unit   seconds of a unit of work
 *                            work   of n rows from position p on: n * (1 + (p + n / 2) / TD_CONTEXT_TWICE)
 *
 * A unit is a row without context; a row behind TD_CONTEXT_TWICE tokens is two. Both times are averages that follow the
 * machine (time_average.h). So `unit` has what the work leaves out: weights that a step reads however many rows it has, and
 * attention that costs more or less. From step to step rows and context change little, and so the estimate is right where it
 * is used. Steps of fewer than `least_rows` prompt rows do not tell it: their rows cost more.
 *
 * Fewer rows than `least_rows` would leave the experts' kernels far from their bound. So this is the least whatever it
 * takes, and what a step has before anything is measured. The clock is the caller's: the same times give the same rows.
 */
#ifndef TD_ENGINE_STEP_STEP_SPEED_H
#define TD_ENGINE_STEP_STEP_SPEED_H

#include <stdbool.h>
#include <stdint.h>

#define TD_CONTEXT_TWICE 8192 /* tokens; 6,000 to 16,000 by the arithmetic of the models that are served */

typedef struct {
    double   max_s;      /* of a step; 0: no limit */
    uint32_t least_rows; /* 1 at least */
    double   plain_s, unit_s;
    uint32_t n_plain, n_unit; /* steps in each average */
} td_step_speed;

/** The work of n prompt rows from position pos on, in units. */
double td_prompt_work(uint32_t pos, uint32_t n);

/** The most rows from position pos on that have no more work. @param work 0 .. INFINITY. */
uint32_t td_prompt_rows(uint32_t pos, double work);

/**
 * The prompt work that fits a step.
 * @param pos     where the step's first prompt goes on.
 * @param streams whether generating requests share the step.
 * @return at least that of least_rows from pos on; INFINITY without a limit.
 */
double td_step_speed_fits(const td_step_speed *s, uint32_t pos, bool streams);

/** Whether so much prompt work is expected to fit. Before anything is measured, that of least_rows without
 * context does. */
bool td_step_speed_has_room(const td_step_speed *s, double work, bool streams);

/** A step has run. @param n_rows its prompt rows. @param work theirs. @param streams as above. */
void td_step_speed_observe(td_step_speed *s, uint32_t n_rows, double work, bool streams, double seconds);

#endif
