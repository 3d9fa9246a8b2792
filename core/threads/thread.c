#include "core/threads/thread.h"

#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"

#define NAME_BYTES 16    /* the kernel's limit, with the terminator */
#define LOOK_EVERY_MS 20 /* look so often for a thread that has ended without having begun */

/* On the starter's stack: the thread may not touch it after running was posted. */
typedef struct {
    void *(*run)(void *);
    void *arg;
    char  name[NAME_BYTES];
    sem_t running;
} start;

static void *begin(void *arg) {
    start *s = arg;
    void *(*run)(void *) = s->run;
    void *run_arg = s->arg;
    pthread_setname_np(pthread_self(), s->name);
    sem_post(&s->running);
    return run(run_arg);
}

/* @return false when the thread has ended, and then it has been joined. */
static bool await_start(start *s, pthread_t thread) {
    for (;;) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += LOOK_EVERY_MS * 1000000L;
        if (t.tv_nsec >= 1000000000) {
            t.tv_nsec -= 1000000000;
            t.tv_sec++;
        }
        if (sem_timedwait(&s->running, &t) == 0) return true; /* sem_clockwait is unknown to ThreadSanitizer of gcc 12 */
        if (pthread_tryjoin_np(thread, NULL) == 0) return false;
    }
}

td_status td_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *arg, td_error *err) {
    start s = {.run = run, .arg = arg};
    snprintf(s.name, sizeof s.name, "%s", name);
    sem_init(&s.running, 0, 0);
    int       e = pthread_create(out, NULL, begin, &s);
    td_status st = TD_OK;
    if (e)
        st = td_fail(err, TD_ENOMEM, "the thread '%s' cannot be started: %s", s.name, strerror(e));
    else if (!await_start(&s, *out))
        st = td_fail(err, TD_ENOMEM, "the thread '%s' ended before it began", s.name);
    sem_destroy(&s.running);
    return st;
}

void td_thread_give_way(int nice) {
    const id_t self = (id_t)gettid();
    (void)setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + nice);
}

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static bool           g_known;
static cpu_set_t      g_cpus;

static void read_cpus(void) {
    g_known = pthread_getaffinity_np(pthread_self(), sizeof g_cpus, &g_cpus) == 0;
}

bool td_thread_cpus(cpu_set_t *out) {
    pthread_once(&g_once, read_cpus);
    *out = g_cpus;
    return g_known;
}
