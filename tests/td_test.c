#include "tests/td_test.h"

#include <fnmatch.h>
#include <time.h>

#include "core/math/rng.h"

#define TESTS_MAX 512

static struct CMUnitTest g_tests[TESTS_MAX];
static int               g_lines[TESTS_MAX];
static size_t            g_n_tests;

/* By line: compilers may call constructors in any order. */
void tests_add(int line, struct CMUnitTest test) {
    size_t at = g_n_tests;
    if (g_n_tests == TESTS_MAX) abort();
    for (; at > 0 && g_lines[at - 1] > line; at--) {
        g_tests[at] = g_tests[at - 1];
        g_lines[at] = g_lines[at - 1];
    }
    g_tests[at] = test;
    g_lines[at] = line;
    g_n_tests++;
}

static void (*g_before_all)(void);
static void (*g_after_all)(void);

void tests_before_all(void (*call)(void)) {
    g_before_all = call;
}
void tests_after_all(void (*call)(void)) {
    g_after_all = call;
}

static int before_all(void **state) {
    (void)state;
    if (g_before_all) g_before_all();
    return 0;
}
static int after_all(void **state) {
    (void)state;
    if (g_after_all) g_after_all();
    return 0;
}

/* Leave n of the cases, drawn by a seed, in their order; FIRST_TEST's stay, too. */
static void draw_cases(size_t n) {
    const char *told = getenv("TD_TEST_SEED");
    uint64_t    seed = told ? strtoull(told, NULL, 10) : (uint64_t)time(NULL);
    size_t      first = 0, kept;
    while (first < g_n_tests && g_lines[first] < 0) first++;
    kept = first;
    printf("%zu of %zu cases, drawn by TD_TEST_SEED=%llu\n", n, g_n_tests - first, (unsigned long long)seed);
    for (size_t i = first; i < g_n_tests; i++) /* each with the chance that n are left in the end */
        if (td_rng_u64(seed, 0, i) % (g_n_tests - i) < n - (kept - first)) g_tests[kept++] = g_tests[i];
    g_n_tests = kept;
}

int tests_run(void) {
    const char *sample = getenv("TD_TEST_CASES");
    if (g_n_tests == 0) {
        fprintf(stderr, "this program has no case\n");
        return 1;
    }
    if (sample && !getenv("TD_TEST_FULL")) draw_cases((size_t)atoi(sample));
    return _cmocka_run_group_tests("tests", g_tests, g_n_tests, before_all, after_all);
}

/* The first argument, where there is one, is a pattern of the cases that run. */
__attribute__((weak)) int main(int argc, char **argv) {
    size_t n = 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; argc > 1 && i < g_n_tests; i++) n += fnmatch(argv[1], g_tests[i].name, 0) == 0;
    if (argc > 1 && n == 0) {
        fprintf(stderr, "no case of this program is called %s\n", argv[1]);
        return 1;
    }
    return tests_run();
}
