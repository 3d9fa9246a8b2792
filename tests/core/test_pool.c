/* A pool runs every item exactly once, shows the items' writes to the caller, and survives many short runs and sleeps. */
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "core/threads/pool.h"
#include "tests/td_test.h"

AT_END_OF(end_pool, td_pool, td_pool_destroy)

#define ITEMS 1000

typedef struct {
    uint32_t count[8][ITEMS]; /* by subpool: written without atomics; one item, one writer */
} tally;

static void count_item(void *ctx, uint32_t item, const td_worker *w) {
    ((tally *)ctx)->count[w->subpool][item]++;
}

static td_pool *make_pool(uint32_t workers, uint32_t subpools) {
    td_worker_place places[16];
    td_pool        *p;
    td_error        err = {0};
    for (uint32_t i = 0; i < workers; i++)
        places[i] = (td_worker_place){.cpu = TD_CPU_ANY, .subpool = i * subpools / workers, .node = 0};
    OK(td_pool_create(places, workers, &p, &err));
    assert_int_equal(td_pool_workers(p), workers);
    assert_int_equal(td_pool_subpools(p), subpools);
    return p;
}

TEST(every_item_runs_once) {
    static const uint32_t shapes[][2] = {{1, 1}, {2, 1}, {4, 1}, {4, 2}, {6, 3}, {8, 8}};
    FREED tally          *t = malloc(sizeof *t);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        AT_END(end_pool) td_pool *p = make_pool(shapes[s][0], shapes[s][1]);
        for (uint32_t n = 0; n <= ITEMS; n = n * 3 + 1) {
            memset(t, 0, sizeof *t);
            td_pool_run(p, count_item, t, n);
            for (uint32_t i = 0; i < ITEMS; i++) {
                uint32_t sum = 0;
                for (uint32_t k = 0; k < 8; k++) sum += t->count[k][i];
                assert_int_equal(sum, i < n);
            }
            memset(t, 0, sizeof *t);
            td_pool_run_each(p, count_item, t, n);
            for (uint32_t k = 0; k < shapes[s][1]; k++)
                for (uint32_t i = 0; i < ITEMS; i++) assert_int_equal(t->count[k][i], i < n);
        }
    }
}

TEST(sleeping_workers_wake) {
    FREED tally              *t = calloc(1, sizeof *t);
    AT_END(end_pool) td_pool *p = make_pool(3, 3);
    for (int round = 0; round < 4; round++) {
        usleep(10000); /* longer than the spin */
        td_pool_run_each(p, count_item, t, 10);
    }
    for (int k = 0; k < 3; k++) assert_int_equal(t->count[k][9], 4);
}

/* A run's number comes round after 256 runs: what a worker's word said then must not count. With 2 items and 3 workers a
   share is empty, so its word is not written in between. */
TEST(numbers_come_round) {
    FREED tally              *t = calloc(1, sizeof *t), *few = calloc(1, sizeof *few);
    AT_END(end_pool) td_pool *p = make_pool(3, 1);
    td_pool_run(p, count_item, t, ITEMS);
    for (uint32_t i = 0; i < 255; i++) td_pool_run(p, count_item, few, 2);
    td_pool_run(p, count_item, t, ITEMS);
    for (uint32_t i = 0; i < ITEMS; i++) assert_int_equal(t->count[0][i], 2);
    assert_int_equal(few->count[0][0], 255);
}

typedef struct {
    _Atomic uint32_t n_begun;
    uint32_t         by_worker[3], first; /* first: who had item 0 */
} uneven;

/* Item 0 ends when all others have begun: someone else must take the rest of that worker's share. */
static void wait_for_others(void *ctx, uint32_t item, const td_worker *w) {
    uneven *u = ctx;
    u->by_worker[w->index]++;
    if (item > 0) {
        atomic_fetch_add(&u->n_begun, 1);
        return;
    }
    u->first = w->index;
    while (atomic_load(&u->n_begun) < ITEMS - 1) usleep(10);
}

TEST(shares_are_taken_over) {
    AT_END(end_pool) td_pool *p = make_pool(3, 1);
    uneven                    u = {0};
    td_pool_run(p, wait_for_others, &u, ITEMS);
    assert_int_equal(u.by_worker[0] + u.by_worker[1] + u.by_worker[2], ITEMS);
    if (u.first == 0) assert_int_equal(u.by_worker[0], 1); /* else worker 0 came late, and another took item 0 too */
}

static void look_at_affinity(void *ctx, uint32_t item, const td_worker *w) {
    (void)item;
    assert_int_equal(sched_getaffinity(0, sizeof(cpu_set_t), (cpu_set_t *)ctx + w->index), 0);
}

/* Whoever creates a pool may be pinned as worker 0 of another: its workers without a core must not crowd there. */
TEST(workers_without_a_core_may_use_all) {
    cpu_set_t all, one, seen[4];
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    uint32_t cpu = 0;
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    AT_END(end_pool) td_pool *pinned, *p;
    td_error                  err = {0};
    OK(td_pool_create(&(td_worker_place){.cpu = cpu}, 1, &pinned, &err));
    td_pool_pin_caller(pinned);
    p = make_pool(4, 4);
    td_pool_run_each(p, look_at_affinity, seen, 1);
    assert_true(CPU_EQUAL(&seen[0], &one));
    for (uint32_t i = 1; i < 4; i++) assert_true(CPU_EQUAL(&seen[i], &all));
    td_pool_pin_caller(p);
    td_pool_run_each(p, look_at_affinity, seen, 1);
    assert_true(CPU_EQUAL(&seen[0], &all));
}

/* A worker that goes on looking on a core that others want takes away the time of what it waits for. */
TEST(only_cores_that_nobody_shares_are_looked_from_for_long) {
    static const struct {
        td_worker_place place;
        bool            is_long;
    } CASES[] = {{{.cpu = 0}, true}, {{.cpu = 0, .shares = true}, false}, {{.cpu = TD_CPU_ANY}, false}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        AT_END(end_pool) td_pool *p;
        td_error                  err = {0};
        OK(td_pool_create(&CASES[i].place, 1, &p, &err));
        td_spin spin = td_pool_spin(p);
        assert_int_equal(spin.held != NULL, CASES[i].is_long);
        assert_int_equal(spin.us > 100, CASES[i].is_long);
    }
}

TEST(other_programs_on_the_cores_make_every_core_a_shared_one) {
    cpu_set_t                 all, seen[2];
    AT_END(end_pool) td_pool *p;
    td_error                  err = {0};
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    setenv("TD_SHARED_CORES", "1", 1);
    OK(td_pool_create((td_worker_place[2]){{.cpu = 0}, {.cpu = 0, .subpool = 1}}, 2, &p, &err));
    unsetenv("TD_SHARED_CORES");
    assert_null(td_pool_spin(p).held);
    td_pool_pin_caller(p);
    td_pool_run_each(p, look_at_affinity, seen, 1);
    for (size_t i = 0; i < 2; i++) assert_true(CPU_EQUAL(&seen[i], &all));
}

TEST(bad_sizes_are_refused) {
    td_pool        *p;
    td_error        err = {0};
    td_worker_place place = {0};
    assert_int_equal(td_pool_create(&place, 0, &p, &err), TD_EINVAL);
    assert_int_equal(td_pool_create(&place, TD_POOL_WORKERS_MAX + 1, &p, &err), TD_EINVAL);
}
