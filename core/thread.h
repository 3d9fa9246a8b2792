/* Threads with names, and the certainty that they run. */
#ifndef TD_CORE_THREAD_H
#define TD_CORE_THREAD_H

#include <pthread.h>

#include "tandem.h"

/**
 * Start a thread and wait until it runs, so that one that ends before it has begun is an error here and not a hang later.
 * @param name  shown by debuggers, traces and errors; 15 bytes of it.
 * @return TD_ENOMEM when it cannot be started or does not run; then there is nothing to join.
 */
TD_NODISCARD td_status td_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg, td_error *err);

#endif
