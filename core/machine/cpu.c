#include "core/machine/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log/log.h"

static uint32_t       g_features;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

static void warn_of_unknown_tier(const char *mask) {
    char   names[128] = "";
    size_t at = 0;
    for (const td_cpu_tier *t = td_cpu_tiers; t->name && at < sizeof names; t++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", t->name);
    td_warn("TD_CPU_MASK=%s is not a tier of this build (%s); it is left out of account", mask, names);
}

static void init(void) {
    g_features = td_cpu_detect();
    const char *mask = getenv("TD_CPU_MASK");
    if (!mask || !*mask) return;
    const td_cpu_tier *t = td_cpu_tiers;
    while (t->name && strcmp(mask, t->name) != 0) t++;
    if (!t->name) {
        warn_of_unknown_tier(mask);
        return;
    }
    bool lacks = t->own & ~g_features;
    g_features &= t->kept;
    if (lacks)
        td_warn("TD_CPU_MASK=%s: this processor has no such instructions; %s is the best it has up to there", mask,
                td_cpu_tier_name(g_features));
}

uint32_t td_cpu_features(void) {
    pthread_once(&g_once, init);
    return g_features;
}

const char *td_cpu_tier_name(uint32_t features) {
    const char *best = NULL;
    for (const td_cpu_tier *t = td_cpu_tiers; t->name; t++)
        if (!(t->own & ~features)) best = t->name;
    return best;
}
