/* What parts of a block will take, against what they were told to have taken. */
#include "model/piece_pace.h"
#include "tests/td_test.h"

#define ROWS 100

/* A block of n parts that take so long each. */
static void run_block(td_piece_pace *p, const double *seconds, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        td_piece_pace_note(p, &(td_block_part){.i = i, .n = n}, ROWS, seconds[i]);
        sum += seconds[i];
    }
    td_piece_pace_note_block(p, ROWS, sum);
}

static double foreseen(const td_piece_pace *p, uint32_t i, uint32_t n, uint32_t n_tok) {
    return td_piece_pace_foreseen(p, &(td_block_part){.i = i, .n = n}, n_tok);
}

TEST(nothing_is_known) {
    td_piece_pace p = {0};
    for (uint32_t i = 0; i < 4; i++) assert_true(foreseen(&p, i, 4, ROWS) == 0);
    assert_int_equal(td_piece_pace_parts(&p, ROWS, 0.1, 8), 1);
}

/* Heads that are fewer than parts: most parts between the ends are empty, and none of them is taken for the next. */
TEST(empty_parts) {
    td_piece_pace p = {0};
    const double  block[8] = {0.5, 0, 0, 2, 0, 0, 2, 1};
    run_block(&p, block, 8);
    for (uint32_t i = 0; i < 8; i++) {
        double want = i == 0 ? 0.5 : i == 7 ? 1 : 2;
        assert_true(foreseen(&p, i, 8, ROWS) == want);
        td_piece_pace_note(&p, &(td_block_part){.i = i, .n = 8}, ROWS, block[i]);
    }
}

/* What a block takes follows the last one: longer parts at once, shorter ones with the next block. */
TEST(middles_follow) {
    td_piece_pace p = {0};
    const double  two[4] = {0, 2, 2, 0}, three[4] = {0, 3, 1, 0}, one[4] = {0, 1, 1, 0}, whole[1] = {4};
    run_block(&p, two, 4);
    run_block(&p, three, 4);
    assert_true(foreseen(&p, 2, 4, ROWS) == 3);
    run_block(&p, one, 4);
    run_block(&p, whole, 1); /* it has no part between */
    assert_true(foreseen(&p, 1, 4, ROWS) == 1);
}

/* First and last parts of more rows take longer, those of fewer rows no less; a block's parts have about the time asked for. */
TEST(rows) {
    td_piece_pace p = {0};
    run_block(&p, (const double[3]){1, 6, 3}, 3);
    assert_true(foreseen(&p, 0, 3, 2 * ROWS) == 2 && foreseen(&p, 2, 3, 3 * ROWS) == 9);
    td_piece_pace_note(&p, &(td_block_part){.i = 0, .n = 3}, 2 * ROWS, 1); /* a block of twice the rows begins */
    assert_true(foreseen(&p, 1, 3, 2 * ROWS) == 12);
    run_block(&p, (const double[3]){1, 6, 3}, 3);
    assert_true(foreseen(&p, 0, 3, ROWS / 2) == 1 && foreseen(&p, 2, 3, ROWS / 2) == 3);
    assert_int_equal(td_piece_pace_parts(&p, ROWS, 2.5, 64), 5); /* 10 seconds, and room for what is more */
    assert_int_equal(td_piece_pace_parts(&p, ROWS / 2, 2.5, 64), 3);
    assert_int_equal(td_piece_pace_parts(&p, 64 * ROWS, 2.5, 64), 64);
    assert_int_equal(td_piece_pace_parts(&p, 3, 0.001, 64), 3); /* a row each */
}
