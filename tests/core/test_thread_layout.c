/*
 * Thread layouts on machines that hwloc makes up. For wishes from a table and random ones, every layout must keep the same
 * rules. Then come single decisions that follow from a bandwidth matrix. TD_TEST_SEED=n draws other wishes.
 */
#include <math.h>

#include "core/math/rng.h"
#include "core/memory/mem.h"
#include "core/threads/thread_layout.h"
#include "tests/td_test.h"

#define RANDOM_WISHES 200
#define CPUS 1024

static td_topology       topo;
static td_node_bandwidth bandwidth;
static td_thread_layout  layout;

static const struct {
    const char *name, *synthetic;
    uint32_t    n_nodes, n_cores, n_cpus, l3_per_node, clusters_per_l3;
} MACHINES[] = {
    {"one node without an L3", "numa:1 core:2 pu:1", 1, 2, 2, 1, 2},
    {"one node, SMT", "numa:1 l3:1 core:16 pu:2", 1, 16, 32, 1, 16},
    {"two nodes", "package:2 numa:1 l3:1 core:8 pu:1", 2, 16, 16, 1, 8},
    {"two nodes, SMT", "package:2 numa:1 l3:1 core:24 pu:2", 2, 48, 96, 1, 24},
    {"four nodes", "package:2 numa:2 l3:1 core:16 pu:2", 4, 64, 128, 1, 16},
    {"eight nodes", "package:8 numa:1 l3:2 core:4 pu:1", 8, 64, 64, 2, 4},
    {"Kunpeng 920 of 64 cores, two sockets", "package:2 numa:2 l3:1 group:8 core:4 pu:1", 4, 128, 128, 1, 8},
    {"Kunpeng 920 of 48 cores, two sockets", "package:2 numa:2 l3:1 group:6 core:4 pu:1", 4, 96, 96, 1, 6},
    {"Kunpeng 920 whose firmware does not tell of its L3", "package:2 numa:2 group:6 core:4 pu:1", 4, 96, 96, 1, 6},
    {"Neoverse N1, a mesh: no L3, an L2 to each core", "package:2 numa:1 l2:80 core:1 pu:1", 2, 160, 160, 1, 80},
    {"EPYC, two sockets, NPS1", "package:2 numa:1 l3:12 core:8 pu:2", 2, 192, 384, 12, 8},
    {"EPYC, two sockets, NPS4", "package:2 numa:4 l3:3 core:8 pu:2", 8, 192, 384, 3, 8},
    {"E-cores in clusters that share an L2", "numa:1 l3:1 l2:6 core:4 pu:1", 1, 24, 24, 1, 6},
};
#define N_MACHINES (sizeof MACHINES / sizeof MACHINES[0])

static void read_machine(size_t i) {
    td_error err = {0};
    setenv("HWLOC_SYNTHETIC", MACHINES[i].synthetic, 1);
    if (td_topology_read(&topo, &err) != TD_OK) fail_msg("%s: %s", MACHINES[i].name, err.text);
    unsetenv("HWLOC_SYNTHETIC");
    topo.machine.cpu_time = INFINITY; /* whatever this machine's cgroup leaves */
    memset(&bandwidth, 0, sizeof bandwidth);
}

/* ---- what every layout must keep ----------------------------------------------------------------- */

static const td_core *core_by_cpu[CPUS];
static uint32_t       on_node[TD_NODES_MAX], on_l3[CPUS], on_cluster[CPUS]; /* pinned experts */

static const td_core *core_of(uint32_t cpu) {
    if (cpu >= CPUS || !core_by_cpu[cpu]) fail_msg("cpu %u is no core's first hardware thread", cpu);
    return core_by_cpu[cpu];
}

static void count_experts(void) {
    memset(core_by_cpu, 0, sizeof core_by_cpu);
    memset(on_node, 0, sizeof on_node);
    memset(on_l3, 0, sizeof on_l3);
    memset(on_cluster, 0, sizeof on_cluster);
    for (uint32_t i = 0; i < topo.n_cores; i++) core_by_cpu[topo.cores[i].cpu] = &topo.cores[i];
    for (uint32_t i = 0; i < layout.n_experts; i++) {
        if (layout.experts[i].cpu == TD_CPU_ANY) continue;
        const td_core *c = core_of(layout.experts[i].cpu);
        on_node[c->node]++;
        on_l3[c->l3]++;
        on_cluster[c->cluster]++;
    }
}

static void cores_are_used_once(void) {
    static bool used[CPUS];
    uint32_t    n_unpinned = 0;
    memset(used, 0, sizeof used);
    for (uint32_t i = 0; i < layout.n_experts + layout.n_npu; i++) {
        uint32_t cpu = i < layout.n_experts ? layout.experts[i].cpu : layout.npu[i - layout.n_experts].cpu;
        n_unpinned += cpu == TD_CPU_ANY;
        if (cpu == TD_CPU_ANY) continue;
        core_of(cpu);
        assert_false(used[cpu]);
        used[cpu] = true;
    }
    uint32_t all = layout.n_experts + layout.n_npu;
    assert_int_equal(n_unpinned, all > topo.n_cores ? all - topo.n_cores : 0);
    assert_int_equal(n_unpinned, layout.n_unpinned);
}

static uint32_t cores_left(uint32_t node) {
    return topo.nodes[node].n_cores - on_node[node];
}

static void subpools_are_even_and_at_home(void) {
    uint32_t size[TD_POOL_SUBPOOLS_MAX] = {0}, at_home[TD_POOL_SUBPOOLS_MAX] = {0}, away[TD_POOL_SUBPOOLS_MAX] = {0};
    for (uint32_t i = 0; i < layout.n_experts; i++) {
        const td_worker_place *w = &layout.experts[i];
        assert_true(w->subpool < layout.n_subpools && (i == 0 || w->subpool - layout.experts[i - 1].subpool <= 1));
        assert_int_equal(w->node, layout.experts[i == 0 || layout.experts[i - 1].subpool != w->subpool ? i : i - 1].node);
        size[w->subpool]++;
        if (w->cpu == TD_CPU_ANY) continue;
        bool local = core_of(w->cpu)->node == layout.home[w->subpool];
        at_home[w->subpool] += local;
        away[w->subpool] += !local;
    }
    uint32_t first = 0;
    for (uint32_t s = 0; s < layout.n_subpools; first += size[s++]) {
        uint32_t home = layout.home[s];
        assert_true(size[s] - layout.n_experts / layout.n_subpools <= 1);
        if (away[s]) assert_int_equal(cores_left(home), 0);
        assert_int_equal(layout.experts[first].node,
                         away[s] && away[s] >= at_home[s] ? TD_NODE_SPREAD : topo.nodes[home].os_index);
    }
}

/* Of the cores of a node, workers take one of each L3 in turn, and of an L3 one of each cluster: all L3s and clusters are of
 * one size here. */
static void workers_go_round(void) {
    for (uint32_t i = 0; i < topo.n_cores; i++)
        for (uint32_t k = topo.nodes[topo.cores[i].node].first_core; k < i; k++) {
            const td_core *a = &topo.cores[k], *b = &topo.cores[i];
            assert_true(on_l3[a->l3] <= on_l3[b->l3] + 1 && on_l3[b->l3] <= on_l3[a->l3] + 1);
            if (a->l3 != b->l3) continue;
            assert_true(on_cluster[a->cluster] <= on_cluster[b->cluster] + 1 &&
                        on_cluster[b->cluster] <= on_cluster[a->cluster] + 1);
        }
}

static void the_device_is_together(void) {
    uint32_t n_pinned = 0, n_nodes = 0, most = 0;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < layout.n_npu; i++) {
        assert_int_equal(layout.npu[i].node, layout.npu[0].node);
        assert_int_equal(layout.npu[i].subpool, 0);
        if (layout.npu[i].cpu == TD_CPU_ANY) continue;
        uint64_t bit = UINT64_C(1) << core_of(layout.npu[i].cpu)->node;
        n_pinned++;
        n_nodes += !(seen & bit);
        seen |= bit;
    }
    for (uint32_t i = 0; i < topo.n_nodes; i++)
        if (cores_left(i) > most) most = cores_left(i);
    if (n_pinned <= most) assert_true(n_nodes <= 1);
    if (n_pinned && n_nodes == 1)
        assert_int_equal(layout.npu[0].node, topo.nodes[core_of(layout.npu[0].cpu)->node].os_index);
    if (n_nodes > 1) assert_int_equal(layout.npu[0].node, TD_NODE_SPREAD);
}

/* Where nobody asked for more threads, a card has cores left; else expert threads know that they share theirs. */
static void cores_that_are_left(const td_thread_wishes *w) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < topo.n_nodes; i++) n += cores_left(i);
    for (uint32_t i = 0; i < layout.n_npu; i++) n -= layout.npu[i].cpu != TD_CPU_ANY;
    assert_int_equal(layout.n_left, n);
    if (w->card && !w->cpuinfer && topo.n_cores >= 4 && topo.n_cores - w->npu_threads >= 3) assert_true(n >= 1);
    const bool shares = layout.n_unpinned > 0 || (w->card && n == 0);
    for (uint32_t i = 0; i < layout.n_experts; i++) assert_int_equal(layout.experts[i].shares, shares);
    for (uint32_t i = 0; i < layout.n_npu; i++) assert_int_equal(layout.npu[i].shares, shares);
}

static void check_wish(const char *machine, td_thread_wishes w) {
    td_error err = {0};
    uint32_t of_card = !w.card                ? 0
                       : topo.n_cores / 4 < 2 ? topo.n_cores / 4
                                              : 2,
             apart = w.npu_threads + of_card,
             threads = w.cpuinfer             ? w.cpuinfer
                       : topo.n_cores > apart ? topo.n_cores - apart
                                              : 1;
    td_status st = td_thread_layout_of(&topo, &bandwidth, &w, &layout, &err);
    if (w.subpool_count > threads) {
        assert_int_equal(st, TD_EINVAL);
        assert_non_null(strstr(err.text, "every subpool needs a thread"));
        return;
    }
    if (st != TD_OK) fail_msg("%s, %u %u %u: %s", machine, w.cpuinfer, w.subpool_count, w.npu_threads, err.text);
    assert_int_equal(layout.n_experts, threads);
    assert_int_equal(layout.n_npu, w.npu_threads);
    if (w.subpool_count) assert_int_equal(layout.n_subpools, w.subpool_count);
    count_experts();
    cores_that_are_left(&w);
    cores_are_used_once();
    subpools_are_even_and_at_home();
    workers_go_round();
    the_device_is_together();
}

TEST(every_layout_keeps_its_promises) {
    static const uint32_t CPUINFER[] = {0, 1, 2, 3, 7, 8, 16, 48, 200}, SUBPOOLS[] = {0, 1, 2, 3, 4, 8, 16},
                          NPU[] = {0, 1, 2, 5, 8, 24};
    const char *text = getenv("TD_TEST_SEED");
    uint64_t    seed = text ? strtoull(text, NULL, 10) : 4711;
    print_message("TD_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (size_t m = 0; m < N_MACHINES; m++) {
        print_message("%s: HWLOC_SYNTHETIC=\"%s\"\n", MACHINES[m].name, MACHINES[m].synthetic);
        read_machine(m);
        for (size_t a = 0; a < sizeof CPUINFER / sizeof *CPUINFER; a++)
            for (size_t b = 0; b < sizeof SUBPOOLS / sizeof *SUBPOOLS; b++)
                for (size_t c = 0; c < sizeof NPU / sizeof *NPU; c++)
                    check_wish(
                        MACHINES[m].name,
                        (td_thread_wishes){.cpuinfer = CPUINFER[a], .subpool_count = SUBPOOLS[b], .npu_threads = NPU[c]});
        for (uint64_t i = 0; i < RANDOM_WISHES; i++) { /* with a random matrix too */
            for (uint32_t j = 0; j < topo.n_nodes * topo.n_nodes; j++)
                bandwidth.read[j / topo.n_nodes][j % topo.n_nodes] =
                    1e9 + 1e11 * td_rng_uniform(seed, m * RANDOM_WISHES + i, 3 + j);
            uint64_t r[3];
            for (uint64_t j = 0; j < 3; j++) r[j] = td_rng_u64(seed, m * RANDOM_WISHES + i, j);
            check_wish(MACHINES[m].name, (td_thread_wishes){.cpuinfer = (uint32_t)(r[0] % (topo.n_cores + 4)),
                                                            .subpool_count = (uint32_t)(r[1] % 10),
                                                            .npu_threads = (uint32_t)(r[2] % topo.n_cores),
                                                            .card = r[0] >> 62 & 1,
                                                            .near_card = r[0] >> 63,
                                                            .card_node = (uint32_t)((r[1] >> 32) % (topo.n_nodes + 1))});
        }
    }
}

TEST(machines_are_read_as_they_are) {
    for (size_t m = 0; m < N_MACHINES; m++) {
        read_machine(m);
        print_message("%s\n", MACHINES[m].name);
        assert_false(topo.is_real);
        assert_int_equal(topo.n_nodes, MACHINES[m].n_nodes);
        assert_int_equal(topo.machine.n_nodes, MACHINES[m].n_nodes);
        assert_int_equal(topo.n_cores, MACHINES[m].n_cores);
        assert_int_equal(topo.machine.n_cpus, MACHINES[m].n_cpus);
        for (uint32_t i = 0; i < topo.n_nodes; i++) {
            const td_numa_node *node = &topo.nodes[i];
            uint32_t            per_node = MACHINES[m].n_cores / MACHINES[m].n_nodes, n_clusters = 0;
            assert_int_equal(node->n_cores, per_node);
            assert_int_equal(node->n_l3, MACHINES[m].l3_per_node);
            assert_true(node->memory_bytes > 0);
            for (uint32_t k = node->first_core; k < node->first_core + node->n_cores; k++) {
                uint32_t before = node->first_core;
                while (before < k && topo.cores[before].cluster != topo.cores[k].cluster) before++;
                n_clusters += before == k;
                assert_int_equal(topo.cores[k].node, i);
            }
            assert_int_equal(n_clusters, MACHINES[m].clusters_per_l3 * MACHINES[m].l3_per_node);
        }
    }
}

/* ---- single decisions -------------------------------------------------------------------------- */

/* Nodes of so many cores each, node i with cpus 10 i, 10 i + 1, ...; every node reads itself at `local` and others at
 * `remote` GB/s. */
static void make_machine(const uint32_t *n_cores, uint32_t n_nodes, double local, double remote) {
    memset(&topo, 0, sizeof topo);
    topo.machine.cpu_time = INFINITY;
    topo.n_nodes = n_nodes;
    for (uint32_t i = 0; i < n_nodes; i++) {
        topo.nodes[i] = (td_numa_node){
            .os_index = i, .n_cores = n_cores[i], .first_core = topo.n_cores, .n_l3 = 1, .memory_bytes = 1 << 30};
        for (uint32_t k = 0; k < n_cores[i]; k++)
            topo.cores[topo.n_cores++] = (td_core){.cpu = 10 * i + k, .node = i, .l3 = i, .cluster = 10 * i + k};
        for (uint32_t j = 0; j < n_nodes; j++) bandwidth.read[i][j] = i == j ? local : remote;
    }
}

static void make_plan(td_thread_wishes w) {
    td_error err = {0};
    if (td_thread_layout_of(&topo, &bandwidth, &w, &layout, &err) != TD_OK) fail_msg("%s", err.text);
}

static void two_homes_are(uint32_t a, uint32_t b) {
    assert_int_equal(layout.n_subpools, 2);
    assert_int_equal(layout.home[0], a);
    assert_int_equal(layout.home[1], b);
}

TEST(fewer_subpools_choose_fast_and_near_nodes) {
    make_machine((uint32_t[]){4, 4, 4, 4}, 4, 100, 30);
    make_plan((td_thread_wishes){.cpuinfer = 8, .subpool_count = 2});
    two_homes_are(0, 1);                              /* nothing tells them apart */
    bandwidth.read[0][2] = bandwidth.read[2][0] = 70; /* firmware would say so or not: 2 is 0's neighbour */
    make_plan((td_thread_wishes){.cpuinfer = 8, .subpool_count = 2});
    two_homes_are(0, 2);
    bandwidth.read[1][1] = bandwidth.read[3][3] = 140; /* more channels are in use there */
    make_plan((td_thread_wishes){.cpuinfer = 8, .subpool_count = 2});
    two_homes_are(1, 3);
    bandwidth.read[1][1] = bandwidth.read[3][3] = 104; /* noise */
    make_plan((td_thread_wishes){.cpuinfer = 8, .subpool_count = 2});
    two_homes_are(0, 2);
    memset(&bandwidth, 0, sizeof bandwidth); /* nothing is known: a cgroup left one core of node 0 */
    topo.nodes[0].n_cores = 1;
    make_plan((td_thread_wishes){.cpuinfer = 8, .subpool_count = 2});
    two_homes_are(1, 2);
}

TEST(the_cards_node_comes_first) {
    make_machine((uint32_t[]){4, 4, 4, 4}, 4, 100, 30);
    make_plan((td_thread_wishes){.near_card = true, .card_node = 2});
    static const uint32_t ALL[] = {2, 0, 1, 3};
    for (uint32_t s = 0; s < 4; s++) assert_int_equal(layout.home[s], ALL[s]);
    assert_int_equal(layout.experts[0].cpu, 20);
    assert_int_equal(layout.experts[0].node, 2);
    bandwidth.read[0][0] = bandwidth.read[1][1] = 140; /* faster nodes do not keep it out */
    make_plan((td_thread_wishes){.cpuinfer = 4, .subpool_count = 1, .near_card = true, .card_node = 3});
    assert_int_equal(layout.home[0], 3);
    make_plan((td_thread_wishes){.cpuinfer = 8, .subpool_count = 2, .near_card = true, .card_node = 3});
    two_homes_are(3, 0);
    make_plan((td_thread_wishes){.cpuinfer = 8, .subpool_count = 2, .near_card = true, .card_node = 9}); /* there is none */
    two_homes_are(0, 1);
    topo.nodes[3].n_cores = 0; /* memory alone is no home */
    make_plan((td_thread_wishes){.near_card = true, .card_node = 3});
    assert_int_equal(layout.n_subpools, 3);
    assert_int_equal(layout.home[0], 0);
}

TEST(a_subpool_that_overflows_takes_near_cores) {
    make_machine((uint32_t[]){4, 4, 4, 4}, 4, 100, 30);
    bandwidth.read[2][0] = 60;
    bandwidth.read[0][2] = 90; /* the other direction is of no interest */
    bandwidth.read[3][0] = 40;
    make_plan((td_thread_wishes){.cpuinfer = 10, .subpool_count = 1});
    static const uint32_t WANT[] = {0, 1, 2, 3, 20, 21, 22, 23, 30, 31};
    for (size_t i = 0; i < 10; i++) assert_int_equal(layout.experts[i].cpu, WANT[i]);
    assert_int_equal(layout.experts[0].node, TD_NODE_SPREAD);
    make_plan((td_thread_wishes){.cpuinfer = 6, .subpool_count = 1});
    assert_int_equal(layout.experts[5].cpu, 21);
    assert_int_equal(layout.experts[5].node, 0);
}

TEST(an_uneven_machine_uses_every_core) {
    make_machine((uint32_t[]){4, 8}, 2, 100, 30);
    make_plan((td_thread_wishes){0});
    assert_int_equal(layout.n_experts, 12);
    assert_int_equal(layout.n_unpinned, 0);
    static const uint32_t WANT[] = {0, 1, 2, 3, 16, 17, 10, 11, 12, 13, 14, 15};
    for (size_t i = 0; i < 12; i++) {
        assert_int_equal(layout.experts[i].cpu, WANT[i]);
        assert_int_equal(layout.experts[i].node, i < 6 ? 0 : 1);
    }
}

TEST(memory_without_cores_is_no_home) {
    make_machine((uint32_t[]){4, 4, 0, 0}, 4, 100, 60);
    make_plan((td_thread_wishes){.npu_threads = 2});
    two_homes_are(0, 1);
    for (uint32_t i = 0; i < layout.n_experts; i++) assert_true(layout.experts[i].node < 2);
    assert_true(layout.npu[0].node == TD_NODE_SPREAD || layout.npu[0].node < 2);
}

TEST(cores_without_memory_work_for_their_neighbours) {
    make_machine((uint32_t[]){4, 4, 4}, 3, 100, 30);
    topo.nodes[2].memory_bytes = 0;
    for (uint32_t i = 0; i < 3; i++) bandwidth.read[i][2] = 0;
    bandwidth.read[2][1] = 50;
    make_plan((td_thread_wishes){0});
    two_homes_are(0, 1);
    assert_int_equal(layout.n_unpinned, 0);
    assert_int_equal(layout.experts[4].cpu, 20);
    assert_int_equal(layout.experts[6 + 4].cpu, 22);
    for (uint32_t i = 0; i < 12; i++) assert_int_equal(layout.experts[i].node, i / 6);
    make_plan((td_thread_wishes){.cpuinfer = 8,
                                 .npu_threads = 4}); /* the device gets those cores, and memory that they read fast */
    assert_int_equal(layout.npu[0].cpu, 20);
    assert_int_equal(layout.npu[0].node, 1);
    topo.nodes[0].memory_bytes = topo.nodes[1].memory_bytes = 0; /* the system tells nothing about memory */
    make_plan((td_thread_wishes){0});
    assert_int_equal(layout.n_subpools, 3);
}

TEST(the_device_prefers_a_node_of_its_own) {
    make_machine((uint32_t[]){4, 4, 4}, 3, 100, 30);
    make_plan((td_thread_wishes){.cpuinfer = 6, .subpool_count = 2, .npu_threads = 4});
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(layout.npu[i].cpu, 20 + i);
        assert_int_equal(layout.npu[i].node, 2);
    }
    make_plan((td_thread_wishes){.npu_threads = 6}); /* two on each */
    assert_int_equal(layout.npu[0].node, TD_NODE_SPREAD);
    assert_int_equal(layout.n_unpinned, 0);
}

/* Dies of clusters of four cores, each cluster with a part of the L3's tags: few threads take one core of each, on every
 * die. */
TEST(few_threads_of_a_kunpeng_take_different_clusters) {
    size_t m = 0;
    while (strcmp(MACHINES[m].name, "Kunpeng 920 of 48 cores, two sockets") != 0) m++;
    read_machine(m);
    make_plan((td_thread_wishes){.cpuinfer = 24 + 4});
    assert_int_equal(layout.n_subpools, 4);
    assert_int_equal(layout.n_unpinned, 0);
    for (uint32_t i = 0; i < layout.n_experts;
         i++) { /* seven on each die: a core of all six clusters, and the next of the first */
        assert_int_equal(layout.experts[i].subpool, i / 7);
        assert_int_equal(layout.experts[i].cpu, 24 * (i / 7) + (i % 7 < 6 ? 4 * (i % 7) : 1));
        assert_int_equal(layout.experts[i].node, topo.nodes[layout.home[i / 7]].os_index);
    }
    make_plan((td_thread_wishes){.npu_threads = 8}); /* two of each die: no die is left to the device alone */
    assert_int_equal(layout.n_experts, 88);
    assert_int_equal(layout.n_unpinned, 0);
    assert_int_equal(layout.npu[0].node, TD_NODE_SPREAD);
}

TEST(the_default_follows_the_time_that_is_left) {
    static const struct {
        double   time;
        uint32_t wish, npu, experts;
    } CASES[] = {{INFINITY, 0, 0, 8}, {8, 0, 0, 8}, {3.5, 0, 0, 4}, {3.5, 0, 1, 3},
                 {0.5, 0, 0, 1},      {2, 0, 4, 1}, {2, 6, 0, 6}};
    make_machine((uint32_t[]){4, 4}, 2, 100, 30);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        topo.machine.cpu_time = CASES[i].time;
        make_plan((td_thread_wishes){.cpuinfer = CASES[i].wish, .npu_threads = CASES[i].npu});
        assert_int_equal(layout.n_experts, CASES[i].experts);
        assert_int_equal(layout.n_subpools, CASES[i].experts > 1 ? 2 : 1);
    }
}

TEST(too_much_is_refused_in_a_sentence) {
    static const struct {
        td_thread_wishes w;
        const char      *said;
    } CASES[] = {
        {{.cpuinfer = 1, .subpool_count = 2}, "cpuinfer 1 is less than subpool-count 2: every subpool needs a thread"},
        {{.cpuinfer = TD_POOL_WORKERS_MAX + 1}, "at most 1024 threads per tier"},
        {{.npu_threads = TD_POOL_WORKERS_MAX + 1}, "at most 1024 threads per tier"},
        {{.cpuinfer = 128, .subpool_count = TD_POOL_SUBPOOLS_MAX + 1}, "subpool-count 65 is more than 64"},
    };
    make_machine((uint32_t[]){4, 4}, 2, 100, 30);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        td_error err = {0};
        assert_int_equal(td_thread_layout_of(&topo, &bandwidth, &CASES[i].w, &layout, &err), TD_EINVAL);
        assert_string_equal(err.text, CASES[i].said);
    }
}
