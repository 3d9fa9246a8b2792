/*
 * On a machine with several NUMA nodes, memory, workers, shards and scratch lie on the nodes that the layout gives them, by
 * the system's own account. It needs two or more nodes with cores, and exits with 77 if there are fewer; boot_guest.py runs
 * it in an emulated machine that has them.
 */

#include <numa.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "core/memory/mem.h"
#include "core/memory/page_nodes.h"
#include "core/threads/thread_layout.h"
#include "cpu_experts/expert_state.h"
#include "kernels/kernels.h"
#include "npu/host/host_npu.h"
#include "tests/cpu_experts/expert_fixture.h"
#include "tests/cpu_experts/load_views.h"
#include "tests/td_test.h"

#define SKIPPED 77
#define SEED 2718u
#define MANY_BYTES ((size_t)64 << 20)
#define FULL_BYTES ((long long)2 << 30) /* a node with less than this free is filled up */

static td_topology       topo;
static td_node_bandwidth bandwidth;
static td_thread_layout  layout;
static cpu_set_t         all_cpus;

static void make_layout(td_thread_wishes w) {
    td_error err = {0};
    if (td_thread_layout_of(&topo, &bandwidth, &w, &layout, &err) != TD_OK) fail_msg("%s", err.text);
}

static td_pool *open_pool(const td_worker_place *places, uint32_t n) {
    td_error err = {0};
    td_pool *pool;
    if (td_pool_create(places, n, &pool, &err) != TD_OK) fail_msg("%s", err.text);
    td_pool_pin_caller(pool);
    return pool;
}

static void close_pool(td_pool *pool) {
    td_pool_destroy(pool);
    assert_int_equal(pthread_setaffinity_np(pthread_self(), sizeof all_cpus, &all_cpus), 0);
}

static void all_pages_are_on(const void *p, size_t bytes, uint32_t node) {
    size_t n_known, n_on = td_pages_on_node(p, bytes, node, &n_known);
    assert_true(n_known > 0);
    assert_int_equal(n_on, n_known);
}

/* Every node with cores has its part, and no other node has any. */
static void pages_are_spread(const void *p, size_t bytes) {
    for (uint32_t i = 0; i < topo.n_nodes; i++) {
        size_t n_known, n_on = td_pages_on_node(p, bytes, topo.nodes[i].os_index, &n_known);
        if (topo.nodes[i].n_cores && topo.nodes[i].memory_bytes)
            assert_true(n_on >= n_known / topo.machine.n_nodes / 2);
        else
            assert_int_equal(n_on, 0);
    }
}

/* ---- tests ------------------------------------------------------------------------------------- */

TEST(every_pair_of_nodes_is_measured) {
    td_error err = {0};
    if (td_node_bandwidth_measure(&topo, td_kernels_here()->read, 1, &bandwidth, &err) != TD_OK) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < topo.n_nodes; i++)
        for (uint32_t j = 0; j < topo.n_nodes; j++) {
            bool known = topo.nodes[i].n_cores && topo.nodes[j].memory_bytes;
            assert_true(known ? bandwidth.read[i][j] > 1e6 : bandwidth.read[i][j] == 0);
        }
}

TEST(memory_lies_where_it_was_asked_for) {
    void *p;
    for (uint32_t i = 0; i < topo.n_nodes; i++) {
        if (!topo.nodes[i].memory_bytes) continue;
        OK(td_mem_map(MANY_BYTES / 8, topo.nodes[i].os_index, &p, NULL));
        memset(p, 1, MANY_BYTES / 8);
        all_pages_are_on(p, MANY_BYTES / 8, topo.nodes[i].os_index);
        td_mem_unmap(p, MANY_BYTES / 8);
    }
    OK(td_mem_map(MANY_BYTES, TD_NODE_SPREAD, &p, NULL));
    memset(p, 1, MANY_BYTES);
    pages_are_spread(p, MANY_BYTES);
    td_mem_unmap(p, MANY_BYTES);
}

/* Nothing is killed, and it is noticed. */
TEST(memory_beyond_a_node_lies_elsewhere) {
    for (uint32_t i = 0; i < topo.n_nodes; i++) {
        long long free_bytes, size = topo.nodes[i].n_cores ? numa_node_size64((int)topo.nodes[i].os_index, &free_bytes) : -1;
        if (size < 0 || free_bytes > FULL_BYTES) continue;
        size_t bytes = td_round_up((size_t)free_bytes + (MANY_BYTES >> 1), td_page_bytes()), n_known;
        void  *p;
        OK(td_mem_map(bytes, topo.nodes[i].os_index, &p, NULL));
        memset(p, 1, bytes);
        size_t n_on = td_pages_on_node(p, bytes, topo.nodes[i].os_index, &n_known);
        td_mem_unmap(p, bytes);
        print_message("%zu MiB asked for on node %u with %lld MiB free: %zu of %zu sampled pages are there\n", bytes >> 20,
                      topo.nodes[i].os_index, free_bytes >> 20, n_on, n_known);
        assert_true(n_on > n_known / 2 && n_on < n_known);
        return;
    }
    print_message("no node is small enough to fill\n");
}

typedef struct {
    _Atomic uint32_t n_right[TD_POOL_SUBPOOLS_MAX], n_wrong; /* relaxed: counts, read after the run */
} whereabouts;

static void look_around(void *ctx, uint32_t item, const td_worker *w) {
    whereabouts *at = ctx;
    (void)item;
    usleep(2000); /* so that every worker gets some */
    int cpu = sched_getcpu();
    if (numa_node_of_cpu(cpu) == (int)topo.nodes[layout.home[w->subpool]].os_index &&
        (uint32_t)cpu == layout.experts[w->index].cpu)
        atomic_fetch_add_explicit(&at->n_right[w->subpool], 1, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&at->n_wrong, 1, memory_order_relaxed);
}

TEST(workers_run_on_their_nodes) {
    whereabouts at = {0};
    make_layout((td_thread_wishes){0});
    assert_int_equal(layout.n_subpools, topo.machine.n_nodes);
    td_pool *pool = open_pool(layout.experts, layout.n_experts);
    td_pool_run_each(pool, look_around, &at, 64);
    close_pool(pool);
    assert_int_equal(atomic_load_explicit(&at.n_wrong, memory_order_relaxed), 0);
    for (uint32_t s = 0; s < layout.n_subpools; s++)
        assert_int_equal(atomic_load_explicit(&at.n_right[s], memory_order_relaxed), 64);
}

enum { N_EXPERTS = 8, HIDDEN = 512, INTER = 768, TOP_K = 3, N_TOK = 40 };

/* From the weights, and kept in a file; or from that file. */
static td_experts *open_store(td_pool *pool, const fixture_weights *w, const char *file) {
    td_experts_config c = WITH(td_experts_config, .n_layers = 1, .n_experts = N_EXPERTS, .hidden = HIDDEN, .inter = INTER,
                               .top_k = TOP_K, .format = TD_EXPERT_INT4C, .act_dtype = TD_DT_F32, .max_tok = N_TOK);
    td_experts       *x = NULL;
    td_error          err = {0};
    td_status         st = td_experts_create(&c, pool, &x, &err);
    if (st == TD_OK) st = w ? load_views(x, 0, w->experts, &err) : td_experts_load_file(x, 0, file, 1, &err);
    if (st == TD_OK && w) st = td_experts_save_file(x, 0, file, 1, &err);
    if (st != TD_OK) fail_msg("%s", err.text);
    return x;
}

static void run_ffn(td_experts *x, const fixture_tokens *t, float *y) {
    td_experts_ffn(x, 0,
                   &WITH(td_ffn_args, .n_tok = t->n_tok, .top_k = t->top_k, .x = t->x, .ids = t->ids, .weights = t->weights,
                         .n_immediate = t->top_k, .y = y));
}

TEST(shards_and_scratch_lie_on_their_nodes) {
    static float    y[2][N_TOK * HIDDEN], alone[N_TOK * HIDDEN];
    char            dir[] = "/tmp/tandem-numa-XXXXXX", file[64], other[64];
    fixture_weights w = fixture_weights_new(SEED, N_EXPERTS, HIDDEN, INTER);
    fixture_tokens  t = fixture_tokens_new(SEED, N_TOK, TOP_K, N_EXPERTS, HIDDEN);
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/many.tdx", dir);
    snprintf(other, sizeof other, "%s/one.tdx", dir);

    make_layout((td_thread_wishes){0});
    td_pool    *pool = open_pool(layout.experts, layout.n_experts);
    td_experts *x;
    for (int from_file = 0; from_file < 2; from_file++) {
        x = open_store(pool, from_file ? NULL : &w, file);
        run_ffn(x, &t, y[from_file]);
        for (uint32_t s = 0; s < layout.n_subpools; s++)
            all_pages_are_on(expert_shard_data(x, 0, s), x->layout.shard[s].bytes, topo.nodes[layout.home[s]].os_index);
        for (uint32_t i = 0; i < layout.n_experts; i++)
            all_pages_are_on(expert_worker_scratch(x, i), x->scratch.worker_bytes, layout.experts[i].node);
        td_experts_destroy(x);
    }
    close_pool(pool);

    td_worker_place one = {.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    pool = open_pool(&one, 1);
    x = open_store(pool, &w, other);
    run_ffn(x, &t, alone);
    td_experts_destroy(x);
    close_pool(pool);
    assert_memory_equal(y[0], alone, sizeof alone);
    assert_memory_equal(y[1], alone, sizeof alone);

    unlink(file);
    unlink(other);
    assert_int_equal(rmdir(dir), 0);
    fixture_tokens_free(&t);
    fixture_weights_free(&w);
}

static void check_device_memory(td_pool *pool, bool own_threads, uint32_t node) {
    td_npu  *npu;
    void    *p;
    td_error err = {0};
    if (td_npu_open("host",
                    &(td_npu_config){.act_dtype = TD_DT_BF16,
                                     .host = &(td_host_npu_config){.pool = pool, .own_threads = own_threads}},
                    &npu, &err) != TD_OK)
        fail_msg("%s", err.text);
    OK(npu->ops->alloc(npu, MANY_BYTES, &p, &err));
    memset(p, 1, MANY_BYTES);
    if (node == TD_NODE_SPREAD)
        pages_are_spread(p, MANY_BYTES);
    else
        all_pages_are_on(p, MANY_BYTES, node);
    npu->ops->free(npu, p, MANY_BYTES);
    npu->ops->close(npu);
}

TEST(device_memory_lies_with_its_threads) {
    make_layout((td_thread_wishes){0});
    td_pool *pool = open_pool(layout.experts, layout.n_experts);
    check_device_memory(pool, false, TD_NODE_SPREAD);
    close_pool(pool);
    make_layout((td_thread_wishes){.cpuinfer = 1, .npu_threads = 1});
    assert_true(layout.npu[0].node < TD_NODE_SPREAD);
    pool = open_pool(layout.npu, 1);
    check_device_memory(pool, true, layout.npu[0].node);
    close_pool(pool);
}

int main(void) {
    td_error err = {0};
    if (numa_available() < 0 || td_topology_read(&topo, &err) != TD_OK || !topo.is_real || topo.machine.n_nodes < 2) {
        printf("skipped: this machine has no two NUMA nodes with cores\n");
        return SKIPPED;
    }
    if (sched_getaffinity(0, sizeof all_cpus, &all_cpus)) return 1;
    return tests_run();
}
