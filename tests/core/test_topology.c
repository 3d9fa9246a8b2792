/* Thread plans on machines that hwloc makes up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/topology.h"

static td_thread_plan plan;
static td_machine     machine;

static void the_real_machine_has_a_core_and_memory(void **state) {
    (void)state;
    td_error err = {0};
    unsetenv("HWLOC_SYNTHETIC");
    assert_int_equal(td_topology_plan(0, 0, 0, &plan, &machine, &err), TD_OK);
    assert_true(machine.n_cores >= 1 && machine.n_nodes >= 1);
    assert_true(machine.memory_bytes > 0 && machine.available_bytes <= machine.memory_bytes);
    assert_int_equal(plan.n_experts, machine.n_cores);
}

static void subpools_follow_numa_nodes(void **state) {
    (void)state;
    td_error err = {0};
    setenv("HWLOC_SYNTHETIC", "numa:4 core:8 pu:2", 1);
    assert_int_equal(td_topology_plan(0, 0, 4, &plan, &machine, &err), TD_OK);
    assert_int_equal(machine.n_nodes, 4);
    assert_int_equal(machine.n_cores, 32);
    assert_int_equal(machine.n_cpus, 64);
    assert_int_equal(plan.n_experts, 28);
    assert_int_equal(plan.n_subpools, 4);
    assert_int_equal(plan.n_npu, 4);
    uint32_t per[4] = {0};
    for (uint32_t i = 0; i < plan.n_experts; i++) {
        assert_true(plan.experts[i].cpu == TD_CPU_ANY); /* a made-up machine is never bound to */
        per[plan.experts[i].subpool]++;
    }
    for (int s = 0; s < 4; s++) assert_int_equal(per[s], 7);
}

static void a_subpool_without_a_thread_is_refused(void **state) {
    (void)state;
    td_error err = {0};
    setenv("HWLOC_SYNTHETIC", "numa:1 core:2 pu:1", 1);
    assert_int_equal(td_topology_plan(1, 2, 0, &plan, &machine, &err), TD_EINVAL);
    assert_int_equal(td_topology_plan(4, 2, 1, &plan, &machine, &err), TD_OK); /* more threads than cores is allowed */
    assert_int_equal(plan.n_experts, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_machine_has_a_core_and_memory),
        cmocka_unit_test(subpools_follow_numa_nodes),
        cmocka_unit_test(a_subpool_without_a_thread_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
