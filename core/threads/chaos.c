#include "core/threads/chaos.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/math/rng.h"

/* Which of the calls that ask are to fail. */
typedef struct {
    const char      *variable;
    uint64_t         first, n; /* first 0: none */
    bool             told;     /* the environment variable is set */
    _Atomic uint64_t asked;
} failures;

static _Atomic bool     g_on;
static bool             g_seeded;
static uint64_t         g_seed = 1;
static _Atomic uint64_t g_count;
static failures         g_ops = {.variable = "TD_CHAOS_FAIL_OP"}, g_device = {.variable = "TD_CHAOS_FAIL_DEVICE"};
static uint64_t         g_residency;
static pthread_once_t   g_once = PTHREAD_ONCE_INIT;

static void read_failures(failures *f) {
    const char *s = getenv(f->variable);
    char       *end;
    if (!s) return;
    f->told = true;
    f->first = strtoull(s, &end, 10);
    f->n = *end == ',' ? strtoull(end + 1, NULL, 10) : 1;
}

static void tell_calls(void) {
    fprintf(stderr, "%s: %llu calls\n", g_device.variable, (unsigned long long)atomic_load(&g_device.asked));
}

static void init(void) {
    const char *s = getenv("TD_CHAOS_SEED");
    if (s && *s) {
        g_seed = strtoull(s, NULL, 10);
        g_seeded = true;
        atomic_store_explicit(&g_on, true, memory_order_relaxed);
    }
    const char *residency = getenv("TD_CHAOS_RESIDENCY");
    if (residency) g_residency = strtoull(residency, NULL, 10);
    read_failures(&g_ops);
    read_failures(&g_device);
    if (g_device.told && !g_device.first) atexit(tell_calls);
}

bool td_chaos_on(void) {
    pthread_once(&g_once, init);
    return atomic_load_explicit(&g_on, memory_order_relaxed);
}

bool td_chaos_seeded(void) {
    pthread_once(&g_once, init);
    return g_seeded;
}

uint64_t td_chaos_residency(void) {
    pthread_once(&g_once, init);
    return g_residency;
}

static uint64_t draw_next(void) {
    return td_rng_u64(g_seed, 0, atomic_fetch_add_explicit(&g_count, 1, memory_order_relaxed));
}

bool td_chaos_cuts(void) {
    return td_chaos_seeded() && (draw_next() & 7) == 0;
}

void td_chaos_delay(void) {
    if (!td_chaos_on()) return;
    uint64_t draw = draw_next();
    if (draw & 3) return; /* only a quarter of the points is delayed, which changes the order more than delaying all */
    struct timespec t = {.tv_nsec = (long)(draw >> 8) % (TD_CHAOS_MAX_US * 1000L)};
    if (t.tv_nsec < 0) t.tv_nsec = -t.tv_nsec;
    nanosleep(&t, NULL);
}

void td_chaos_start(void) {
    pthread_once(&g_once, init);
    atomic_store_explicit(&g_on, true, memory_order_relaxed);
}

static bool fails(failures *f) {
    pthread_once(&g_once, init);
    if (!f->told) return false;
    uint64_t n = 1 + atomic_fetch_add_explicit(&f->asked, 1, memory_order_relaxed);
    return f->first && n >= f->first && n - f->first < f->n;
}

bool td_chaos_op_fails(void) {
    return fails(&g_ops);
}
bool td_chaos_device_fails(void) {
    return fails(&g_device);
}
