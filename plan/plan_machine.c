#include "plan/plan_machine.h"

#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "core/error.h"
#include "core/thread_plan.h"
#include "kernels/kernels.h"
#include "kernels/machine/roofline.h"

#define MEASURE_BYTES ((size_t)1 << 30) /* read over all nodes: beyond any L3 */
#define MEASURE_ROUNDS 7
#define BLOCK_S 3e-6  /* docs/performance.md, "tandem bench pool": a loop is 0.6 to 0.8 us, and a block has a few */
#define STEP_S 3.5e-4 /* docs/performance.md, "The whole server": sampling 0.08 ms, delivering 0.27 ms */

/* In the order of td_plan_efficiency. */
#define AVX512_SHARES \
    { 0.93, 0.78, 0.55, 0.90, 1.60, 850, 0.95, 0.77 }
#define AVX2_SHARES \
    { 0.95, 0.47, 0.55, 0.75, 1.30, 850, 0.96, 0.77 }

/* Medians of the rows named; the tiers that were not measured take those of the nearest that was. */
static const td_plan_kernels KERNELS[] = {
    {"avx512vnni", "docs/performance.md, \"Xeon with AVX512-VNNI\"", AVX512_SHARES},
    {"avx2", "docs/performance.md, \"EPYC with AVX2 alone\"", AVX2_SHARES},
    {"amx",
     "docs/performance.md, \"Xeon with AMX\": a prototype's shares of the tiles' peak; the present kernels were not "
     "measured",
     {0.93, 0.41, 0.55, 0.90, 1.60, 850, 0.95, 0.57}},
    {"avxvnni", "not measured: those of avx512vnni", AVX512_SHARES},
    {"dotprod",
     "not measured: those of avx512vnni, attention's those of avx2",
     {0.93, 0.78, 0.55, 0.75, 1.30, 850, 0.95, 0.77}},
    {"neon", "not measured: those of avx2", AVX2_SHARES},
    {"scalar", "not measured: those of avx2", AVX2_SHARES},
};

const td_plan_efficiency td_plan_card_efficiency = {0.75, 0.50, 0.40, 0.60, 0.40, 0, 0, 0};

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

/* ---- this machine ------------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* All nodes together, each with an equal share of the work; medians, since what runs beside moves single rounds. */
static td_status measure_pool(td_pool *pool, size_t bytes, td_plan_node *sum, td_error *err) {
    double (*const what[3])(td_roofline *) = {td_roofline_read, td_roofline_int8, td_roofline_f32};
    double       x[3][MEASURE_ROUNDS];
    td_roofline *r;
    td_pool_pin_caller(pool);
    TD_TRY(td_roofline_open(pool, bytes, &r, err));
    for (int round = 0; round < MEASURE_ROUNDS; round++)
        for (int i = 0; i < 3; i++) x[i][round] = what[i](r);
    td_roofline_close(r);
    for (int i = 0; i < 3; i++) qsort(x[i], MEASURE_ROUNDS, sizeof **x, by_size);
    sum->read_bytes_per_s = x[0][MEASURE_ROUNDS / 2];
    sum->int8_ops_per_s = x[1][MEASURE_ROUNDS / 2];
    sum->float_ops_per_s = x[2][MEASURE_ROUNDS / 2];
    return TD_OK;
}

static uint32_t cores_of(const td_thread_plan *p, uint32_t subpool) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_experts; i++) n += p->experts[i].subpool == subpool;
    return n;
}

static td_status measure_planned(const td_thread_plan *p, const td_machine *machine, td_plan_machine *out, td_error *err) {
    td_pool     *pool;
    td_plan_node sum = {0};
    size_t       bytes = MEASURE_BYTES < machine->available_bytes / 8 ? MEASURE_BYTES : machine->available_bytes / 8;
    TD_TRY(td_pool_create(p->experts, p->n_experts, &pool, err));
    td_status st = measure_pool(pool, bytes, &sum, err);
    td_pool_destroy(pool);
    out->n_nodes = p->n_subpools;
    for (uint32_t i = 0; i < out->n_nodes; i++)
        out->node[i] = (td_plan_node){.cores = cores_of(p, i),
                                      .memory_bytes = (double)machine->available_bytes / out->n_nodes,
                                      .read_bytes_per_s = sum.read_bytes_per_s / out->n_nodes,
                                      .int8_ops_per_s = sum.int8_ops_per_s / out->n_nodes,
                                      .float_ops_per_s = sum.float_ops_per_s / out->n_nodes};
    return st;
}

td_status td_plan_machine_measure(td_plan_machine *out, td_error *err) {
    td_machine      machine;
    const char     *tier = td_cpu_tier_name(td_cpu_features());
    td_thread_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return td_fail(err, TD_ENOMEM, "out of memory for the thread plan");
    td_plan_machine_init(out);
    out->measured = true;
    if (td_plan_kernels_find(tier)) out->kernels = td_plan_kernels_find(tier);
    out->cpu = out->kernels->shares;
    td_status st = td_topology_plan(td_kernels_here()->read, 0, 0, 0, plan, &machine, err);
    if (st == TD_OK) {
        snprintf(out->name, sizeof out->name, "%s", machine.cpu[0] ? machine.cpu : "this machine");
        st = measure_planned(plan, &machine, out, err);
    }
    free(plan);
    return st;
}
