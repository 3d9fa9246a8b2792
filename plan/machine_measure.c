/* Measures this machine: all its cores together, divided into one node for each subpool of threads that the engine would
 * make. */
#include <stdlib.h>

#include "core/error.h"
#include "core/machine/cpu.h"
#include "core/threads/thread_layout.h"
#include "kernels/kernels.h"
#include "kernels/machine/roofline.h"
#include "plan/plan_machine.h"

#define MEASURE_BYTES ((size_t)1 << 30) /* read by all nodes together: more than any L3 holds */
#define MEASURE_ROUNDS 7

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Measures all nodes together, each with an equal share of the work. Takes medians, because other processes disturb single
 * rounds. */
static td_status measure_pool(td_pool *pool, size_t bytes, td_plan_node *sum, double *spread, td_error *err) {
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
    *spread = (x[0][MEASURE_ROUNDS - 1] - x[0][0]) / x[0][MEASURE_ROUNDS / 2];
    sum->int8_ops_per_s = x[1][MEASURE_ROUNDS / 2];
    sum->float_ops_per_s = x[2][MEASURE_ROUNDS / 2];
    return TD_OK;
}

static uint32_t cores_of(const td_thread_layout *p, uint32_t subpool) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_experts; i++) n += p->experts[i].subpool == subpool;
    return n;
}

static td_status measure_planned(const td_thread_layout *p, const td_machine *machine, td_plan_machine *out, td_error *err) {
    td_pool     *pool;
    td_plan_node sum = {0};
    size_t       bytes = MEASURE_BYTES < machine->available_bytes / 8 ? MEASURE_BYTES : machine->available_bytes / 8;
    TD_TRY(td_pool_create(p->experts, p->n_experts, &pool, err));
    td_status st = measure_pool(pool, bytes, &sum, &out->spread, err);
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
    td_machine        machine;
    const char       *tier = td_cpu_tier_name(td_cpu_features());
    td_thread_layout *layout = calloc(1, sizeof *layout);
    if (!layout) return td_fail(err, TD_ENOMEM, "out of memory for the thread layout");
    td_plan_machine_init(out);
    out->measured = true;
    if (td_plan_kernels_find(tier)) out->kernels = td_plan_kernels_find(tier);
    out->cpu = out->kernels->shares;
    td_status st = td_thread_layout_here(td_kernels_here()->read, &(td_thread_wishes){0}, layout, &machine, err);
    if (st == TD_OK) {
        snprintf(out->name, sizeof out->name, "%s", machine.cpu[0] ? machine.cpu : "this machine");
        st = measure_planned(layout, &machine, out, err);
    }
    free(layout);
    return st;
}
