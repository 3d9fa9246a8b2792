#include "core/chaos.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "core/rng.h"

static bool             g_on;
static uint64_t         g_seed;
static _Atomic uint64_t g_count;
static uint64_t         g_fail_first, g_fail_count; /* first 0: none fails */
static _Atomic uint64_t g_ops;
static pthread_once_t   g_once = PTHREAD_ONCE_INIT;

static void init(void) {
    const char *s = getenv("TD_CHAOS_SEED");
    g_on = s && *s;
    if (g_on) g_seed = strtoull(s, NULL, 10);

    const char *op = getenv("TD_CHAOS_FAIL_OP");
    char       *end;
    if (!op) return;
    g_fail_first = strtoull(op, &end, 10);
    g_fail_count = *end == ',' ? strtoull(end + 1, NULL, 10) : 1;
}

bool td_chaos_on(void) {
    pthread_once(&g_once, init);
    return g_on;
}

void td_chaos_delay(void) {
    if (!td_chaos_on()) return;
    uint64_t draw = td_rng_u64(g_seed, 0, atomic_fetch_add_explicit(&g_count, 1, memory_order_relaxed));
    if (draw & 3) return; /* a quarter of the points is delayed: order changes more than when all are */
    struct timespec t = {.tv_nsec = (long)(draw >> 8) % (TD_CHAOS_MAX_US * 1000L)};
    if (t.tv_nsec < 0) t.tv_nsec = -t.tv_nsec;
    nanosleep(&t, NULL);
}

bool td_chaos_op_fails(void) {
    pthread_once(&g_once, init);
    if (!g_fail_first) return false;
    uint64_t n = 1 + atomic_fetch_add_explicit(&g_ops, 1, memory_order_relaxed);
    return n >= g_fail_first && n - g_fail_first < g_fail_count;
}
