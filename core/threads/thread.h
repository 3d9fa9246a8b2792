/* Starts threads with names and makes sure that they run; tells the cpus that they may use. */
#ifndef TD_CORE_THREADS_THREAD_H
#define TD_CORE_THREADS_THREAD_H

#include <pthread.h>
#include <sched.h>

#include "tandem.h"

/**
 * Start a thread and wait until it runs, so that one that ends before it has begun is an error here and not a hang later.
 * @param name  shown by debuggers, traces and errors; 15 bytes of it.
 * @return TD_ENOMEM when it cannot be started or does not run; then there is nothing to join.
 */
TD_NODISCARD td_status td_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg, td_error *err);

/** The calling thread gives way to others from now on. @param nice added to its niceness, 1 to 19 (setpriority(2), which is
 * a thread's own in Linux). A system that refuses it changes nothing. */
void td_thread_give_way(int nice);

/**
 * The cpus that the thread of the first call could use then (taskset). Later calls give the same, because their threads may
 * be pinned, or inherit that.
 * @return false: the system does not tell.
 */
bool td_thread_cpus(cpu_set_t *out);

#endif
