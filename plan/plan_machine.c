#include "plan/plan_machine.h"

#include <string.h>

#define BLOCK_S 3e-6  /* a few parallel loops of 0.6 to 0.8 us (docs/performance.md, "tandem bench pool") */
#define STEP_S 3.5e-4 /* sampling 0.08 ms, delivering 0.27 ms (docs/performance.md, "The whole server") */

/* In the order of td_plan_efficiency. */
#define AVX512_SHARES \
    { 0.93, 0.82, 0.55, 0.90, 1.60, 850, 0.95, 0.82, 2 }
#define AVX2_SHARES \
    { 0.95, 0.49, 0.55, 0.75, 1.30, 850, 0.96, 0.82, 1 }
#define DOTPROD_SHARES \
    { 0.93, 0.82, 0.55, 0.75, 1.30, 850, 0.95, 0.82, 0.5 }

/* Medians of the rows that `source` names. Tiers that were not measured take the shares of the nearest one that was. */
static const td_plan_kernels KERNELS[] = {
    {"avx512vnni", "docs/performance.md, \"Xeon with AVX512-VNNI\"", AVX512_SHARES},
    {"avx2", "docs/performance.md, \"EPYC with AVX2 alone\"", AVX2_SHARES},
    {"amx",
     "docs/performance.md, \"Xeon with AMX\"; all but the int8 shares those of avx512vnni",
     {0.93, 0.43, 0.55, 0.90, 1.60, 850, 0.95, 0.42, 10}},
    {"avxvnni", "not measured: those of avx512vnni", AVX512_SHARES},
    {"dotprod", "not measured: those of avx512vnni, attention's those of avx2", DOTPROD_SHARES},
    {"i8mm", "not measured: those of dotprod", DOTPROD_SHARES},
    {"neon", "not measured: those of avx2", AVX2_SHARES},
    {"scalar", "not measured: those of avx2", AVX2_SHARES},
};

const td_plan_efficiency td_plan_card_efficiency = {0.75, 0.50, 0.40, 0.60, 0.40, 0, 0, 0, 0};

const td_plan_kernels *td_plan_kernels_at(size_t i) {
    return i < sizeof KERNELS / sizeof *KERNELS ? &KERNELS[i] : NULL;
}

const td_plan_kernels *td_plan_kernels_find(const char *name) {
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (!strcmp(KERNELS[i].name, name)) return &KERNELS[i];
    return NULL;
}

void td_plan_machine_init(td_plan_machine *m) {
    *m = (td_plan_machine){.kernels = &KERNELS[0],
                           .block_s = BLOCK_S,
                           .step_s = STEP_S,
                           .cpu = KERNELS[0].shares,
                           .card = td_plan_card_efficiency};
}
