/*
 * Memory that answers hold until their clients have taken them: one budget for all of them. Without it clients that read
 * nothing would fill the machine, since a request of megabytes can have an answer ten times its size.
 *
 * The first TD_ANSWER_FREE bytes of an answer do not count, so that ordinary answers never wait for room: the limit of
 * connections bounds these.
 */
#ifndef TD_SERVER_API_ANSWER_BUDGET_H
#define TD_SERVER_API_ANSWER_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define TD_ANSWER_FREE ((size_t)64 << 10)

typedef struct {
    size_t        max;     /* bytes */
    atomic_size_t used;    /* bytes of all holds; relaxed: a count. Above max only by td_answer_hold_force. */
    atomic_size_t refused; /* answers that found no room; relaxed: a count */
} td_answer_budget;

/** What one answer holds; of one thread at a time. */
typedef struct {
    td_answer_budget *budget; /* NULL: nothing is counted */
    size_t            bytes;  /* counted so far */
} td_answer_hold;

/** Hold so many bytes from now on. @return false: there is no room for more, and nothing changed. */
bool td_answer_hold_set(td_answer_hold *h, size_t bytes);
/** The same, also beyond the budget: for bytes that exist already. */
void td_answer_hold_force(td_answer_hold *h, size_t bytes);
/** Whether so many bytes fit a budget that nobody else uses. */
bool td_answer_hold_could(const td_answer_hold *h, size_t bytes);

#endif
