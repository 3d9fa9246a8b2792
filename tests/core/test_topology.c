/* The machine that the tests run on, whatever it is: its topology is read, restricted and measured, and a layout is made.
 * test_thread_layout.c tests layouts. */

#include <sched.h>

#include "core/memory/mem.h"
#include "core/memory/page_nodes.h"
#include "core/threads/thread_layout.h"
#include "kernels/kernels.h"
#include "tests/td_test.h"

static td_topology       topo;
static td_node_bandwidth bandwidth;
static td_thread_layout  layout;
static td_machine        machine;

TEST(this_machine_has_cores_and_memory) {
    td_error err = {0};
    OK(td_thread_layout_here(td_kernels_here()->read, &(td_thread_wishes){0}, &layout, &machine, &err));
    assert_true(machine.n_cores >= 1 && machine.n_cpus >= machine.n_cores && machine.n_nodes >= 1);
    assert_true(machine.memory_bytes > 0 && machine.available_bytes <= machine.memory_bytes);
    assert_int_equal(layout.n_experts, machine.n_cores);
    assert_int_equal(layout.n_unpinned, 0);
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (uint32_t i = 0; i < layout.n_experts; i++) assert_true(CPU_ISSET(layout.experts[i].cpu, &allowed));
}

TEST(every_node_reads_itself) {
    td_error  err = {0};
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    OK(td_topology_read(&topo, &err));
    assert_true(topo.is_real);
    OK(td_node_bandwidth_measure(&topo, td_kernels_here()->read, 0.02, &bandwidth, &err));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    for (uint32_t i = 0; i < topo.n_nodes; i++)
        if (topo.nodes[i].n_cores && topo.nodes[i].memory_bytes) assert_true(bandwidth.read[i][i] > 1e6);
}

TEST(a_made_up_machine_is_neither_measured_nor_bound_to) {
    td_error err = {0};
    setenv("HWLOC_SYNTHETIC", "numa:2 core:4 pu:1", 1);
    OK(td_topology_read(&topo, &err));
    assert_int_equal(td_node_bandwidth_measure(&topo, td_kernels_here()->read, 0.02, &bandwidth, &err), TD_EINVAL);
    OK(td_thread_layout_here(td_kernels_here()->read, &(td_thread_wishes){.npu_threads = 2}, &layout, &machine, &err));
    unsetenv("HWLOC_SYNTHETIC");
    assert_int_equal(layout.n_subpools, 2);
    for (uint32_t i = 0; i < layout.n_experts; i++)
        assert_true(layout.experts[i].cpu == TD_CPU_ANY && layout.experts[i].node == TD_NODE_ANY);
    for (uint32_t i = 0; i < layout.n_npu; i++)
        assert_true(layout.npu[i].cpu == TD_CPU_ANY && layout.npu[i].node == TD_NODE_ANY);
}

/* Wherever it is asked to be, memory is there and zero. */
TEST(memory_is_there_on_any_node) {
    static const uint32_t NODES[] = {0, 1, 63, 1023, 1024, TD_NODE_SPREAD, TD_NODE_ANY};
    for (size_t i = 0; i < sizeof NODES / sizeof *NODES; i++) {
        void  *p;
        size_t n_known, bytes = 64 * td_page_bytes();
        OK(td_mem_map(bytes, NODES[i], &p, NULL));
        td_pages_on_node(p, bytes, 0, &n_known);
        assert_int_equal(n_known, 0); /* nothing touched yet */
        for (size_t k = 0; k < bytes; k++) assert_int_equal(((char *)p)[k], 0);
        memset(p, 1, bytes);
        size_t n_on = 0;
        for (uint32_t node = 0; node < topo.n_nodes; node++)
            n_on += td_pages_on_node(p, bytes, topo.nodes[node].os_index, &n_known);
        if (n_known) { /* a kernel that tells */
            assert_int_equal(n_known, 64);
            assert_int_equal(n_on, 64);
        }
        td_mem_unmap(p, bytes);
    }
}

int main(void) {
    unsetenv("HWLOC_SYNTHETIC");
    return tests_run();
}
