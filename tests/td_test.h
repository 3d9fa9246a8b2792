/*
 * The header that every test in C includes: cmocka, and a list of the program's cases.
 *
 *   TEST(name) { … }                          a case; `state` is cmocka's
 *   TEST_WITH(name, setup, teardown) { … }    a case with functions before and after it; NULL: none
 *   FIRST_TEST(name) { … }                    a case that comes before all others, as it counts the calls of its process
 *   TEST_ROWS(check, TABLE)                   a case a row: check(state) with *state the row, which has a `name`
 *
 *   BEFORE_ALL { … }                          what comes before the first case, and AFTER_ALL { … } behind the last one
 *
 *   OK(td_call(…));                           the call returns TD_OK
 *
 * Cases add themselves, and run in the order of their lines; those of a header stand among the file's. The main of
 * tests/td_test.c runs them; a program that has to do more has a main of its own, which ends with tests_run. Where the
 * environment says TD_TEST_CASES=n, n of them run: drawn by TD_TEST_SEED, or by the time, and the seed is printed. With
 * TD_TEST_FULL=1 all do.
 */
#ifndef TD_TESTS_TD_TEST_H
#define TD_TESTS_TD_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/forms.h"

/** Add a case behind all of the same or a smaller line. What it points to must last until the program ends. */
void tests_add(int line, struct CMUnitTest test);

/** What is called before the first case, or after the last one; assertions may fail in it. */
void tests_before_all(void (*call)(void));
void tests_after_all(void (*call)(void));

/** Run every case. @return main's. */
int tests_run(void);

#define OK(...) assert_int_equal((__VA_ARGS__), TD_OK)

/* line: in the file; cases of smaller lines come before. */
#define TEST_AT(line, name, setup, teardown)                                      \
    static void                              name(void **state);                  \
    __attribute__((constructor)) static void add_##name(void) {                   \
        tests_add(line, (struct CMUnitTest){#name, name, setup, teardown, NULL}); \
    }                                                                             \
    static void name(void **state __attribute__((unused)))
#define TEST_WITH(name, setup, teardown) TEST_AT(__LINE__, name, setup, teardown)
#define TEST(name) TEST_WITH(name, NULL, NULL)
#define FIRST_TEST(name) TEST_AT(__LINE__ - 1000000, name, NULL, NULL)

#define CALLED_BY(tests_call, name)                             \
    static void                              name(void);        \
    __attribute__((constructor)) static void add_##name(void) { \
        tests_call(name);                                       \
    }                                                           \
    static void name(void)
#define BEFORE_ALL CALLED_BY(tests_before_all, before_all)
#define AFTER_ALL CALLED_BY(tests_after_all, after_all)

#define TEST_ROWS(check, TABLE)                                                                                       \
    __attribute__((constructor)) static void add_rows_of_##TABLE(void) {                                              \
        for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)                                                     \
            tests_add(__LINE__, (struct CMUnitTest){TABLE[i].name, check, NULL, NULL, (void *)(uintptr_t)&TABLE[i]}); \
    }

#endif
