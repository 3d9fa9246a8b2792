#include "model/arch/families.h"

#include <stdio.h>
#include <string.h>

#define ADDRESS(NAME) &TD_ARCH_##NAME,
static const td_arch *const ARCHS[] = {TD_FAMILIES(ADDRESS)};
#define N_ARCHS (sizeof ARCHS / sizeof *ARCHS)

const td_arch *td_arch_find(const char *name) {
    for (size_t i = 0; i < N_ARCHS; i++)
        if (!strcmp(name, ARCHS[i]->name)) return ARCHS[i];
    return NULL;
}

const char *td_arch_names(char *text, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < N_ARCHS && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i == 0 ? "" : i + 1 < N_ARCHS ? ", " : " and ", ARCHS[i]->name);
    return text;
}
