/* The choice of a table. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <string.h>

#include "core/machine/cpu.h"

const td_kernels *td_kernels_for(uint32_t features) {
    const td_kernels *const *t = td_kernels_all;
    while ((*t)->needs & ~features) t++;
    return *t;
}

static const td_kernels *g_here;
static pthread_once_t    g_once = PTHREAD_ONCE_INIT;

static void choose(void) {
    g_here = td_kernels_for(td_cpu_features());
}

const td_kernels *td_kernels_here(void) {
    pthread_once(&g_once, choose);
    return g_here;
}

bool td_kernels_own(const td_kernels *t, const void *member) {
    const td_kernels *const *lesser = td_kernels_all;
    size_t                   at = (size_t)((const char *)member - (const char *)t);
    while (*lesser != t) lesser++;
    for (lesser++; *lesser; lesser++)
        if (!memcmp((const char *)*lesser + at, member, sizeof(void *))) return false;
    return true;
}
