/* How many rows of a ticket are computed at a time, against the time that they are told to take. */
#include "bridge/row_pace.h"
#include "tests/td_test.h"

#include <math.h>

/* Rows that take 1000 ns each. */
static uint32_t rows(uint32_t left, double left_ns, double part_ns) {
    return td_rows_in_time(&(td_row_time){.row_ns = 1000, .left_ns = left_ns, .part_ns = part_ns}, left);
}

TEST(as_many_as_end_with_the_piece) {
    assert_int_equal(rows(4000, 2000e3, 0), 2000);
    assert_int_equal(rows(4000, 9000e3, 0), 4000);
    assert_int_equal(rows(4000, (double)INFINITY, 0), 4000);
}

TEST(none_where_too_few_fit) {
    assert_int_equal(rows(4000, 127.9e3, 0), 0);
    assert_int_equal(rows(4000, 128e3, 0), 128);
    assert_int_equal(rows(4000, 0, 0), 0);
    assert_int_equal(rows(100, 99e3, 0), 0);
    assert_int_equal(rows(100, 100e3, 0), 100); /* the last ones may be fewer */
    assert_int_equal(rows(4000, 100e3, 500e3), 0);
}

TEST(nothing_is_known) {
    assert_int_equal(td_rows_in_time(&(td_row_time){.left_ns = 1, .part_ns = 1}, 4000), 4000);
    assert_int_equal(td_rows_in_time(&(td_row_time){.left_ns = 0, .part_ns = 1}, 4000), 0);
}

/* Whoever is waited for looks up after each part: it takes part_ns, or up to twice that, whatever is left. */
TEST(parts_while_somebody_may_come) {
    for (uint32_t left = 1; left < 10000; left += 7) {
        const uint32_t n = rows(left, (double)INFINITY, 500e3);
        assert_true(n <= left && n < 1000);
        assert_true(n >= 500 || n == left);
    }
    assert_int_equal(rows(4000, 1200e3, 500e3), 600); /* the same beside a piece's end: two parts of what fits */
    assert_int_equal(rows(4000, 700e3, 500e3), 700);
}

/* A ticket in parts is computed in equal ones, so that none is small at the end. */
TEST(parts_are_alike) {
    uint32_t shortest = 4001, longest = 0;
    for (uint32_t left = 4001, n; left; left -= n) {
        n = rows(left, (double)INFINITY, 300e3);
        if (n < shortest) shortest = n;
        if (n > longest) longest = n;
    }
    assert_true(shortest >= 300 && longest - shortest <= 1);
}

/* On a slow machine, or with large experts, a part is longer than it is asked to be. */
TEST(a_part_has_enough_rows) {
    assert_int_equal(rows(4000, (double)INFINITY, 10e3), 267); /* 15 of them */
    assert_int_equal(rows(255, (double)INFINITY, 10e3), 255);
}
