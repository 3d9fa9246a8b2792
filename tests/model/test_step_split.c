/* The halves of a step, checked row by row against the step they came from, on random steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "model/step_split.h"

#define SEED    20261122u
#define MAX_TOK 40
#define STRIDE  3
#define STEPS   2000

static struct {
    uint32_t token[MAX_TOK], pos[MAX_TOK], slot[MAX_TOK], seq_start[MAX_TOK + 1], kv_len[MAX_TOK], table[MAX_TOK * STRIDE];
    uint8_t  absorbed[MAX_TOK];
} arrays;

static uint64_t g_draws;
static uint32_t draw(uint32_t n) { return (uint32_t)(td_rng_u64(SEED, 0, g_draws++) % n); }

/* Sequences of 1 to 2 * mean - 1 rows. */
static td_step random_step(uint32_t n_tok, uint32_t mean) {
    td_step step = {.n_tok = n_tok, .block_stride = STRIDE,
                    .host = {.token = arrays.token, .pos = arrays.pos, .slot = arrays.slot, .seq_start = arrays.seq_start, .kv_len = arrays.kv_len,
                             .absorbed = arrays.absorbed, .block_table = arrays.table}};
    for (uint32_t row = 0; row < n_tok;) {
        uint32_t n = 1 + draw(2 * mean - 1), first = draw(300), s = step.n_seq++;
        if (n > n_tok - row) n = n_tok - row;
        arrays.seq_start[s] = row;
        arrays.kv_len[s] = first + n;
        arrays.absorbed[s] = (uint8_t)draw(2);
        for (uint32_t i = 0; i < STRIDE; i++) arrays.table[s * STRIDE + i] = draw(1000);
        for (uint32_t i = 0; i < n; i++, row++) {
            arrays.token[row] = draw(1000);
            arrays.slot[row] = draw(1000);
            arrays.pos[row] = first + i;
        }
    }
    arrays.seq_start[step.n_seq] = n_tok;
    return step;
}

static uint32_t sequence_of(const td_step *step, uint32_t row) {
    uint32_t s = 0;
    while (step->host.seq_start[s + 1] <= row) s++;
    return s;
}

static void halves_are_the_rows_of_the_step(void **state) {
    (void)state;
    td_step_split split;
    uint32_t      across = 0, between = 0;
    print_message("seed %u\n", SEED);
    assert_int_equal(td_step_split_open(&split, MAX_TOK, NULL), TD_OK);
    for (int i = 0; i < STEPS; i++) {
        uint32_t mean = 1 + draw(MAX_TOK), n_tok = 2 + draw(MAX_TOK - 1);
        td_step  step = random_step(n_tok, mean);
        td_step_split_make(&split, &step);
        const td_step *half = split.half;
        assert_int_equal(half[0].n_tok, (step.n_tok + 1) / 2);
        assert_int_equal(half[0].n_tok + half[1].n_tok, step.n_tok);
        bool shared = half[0].n_seq + half[1].n_seq == step.n_seq + 1;
        *(shared ? &across : &between) += 1;
        assert_true(shared || half[0].n_seq + half[1].n_seq == step.n_seq);
        for (uint32_t row = 0; row < step.n_tok; row++) {
            const td_step *h = &half[row >= half[0].n_tok];
            uint32_t       r = row < half[0].n_tok ? row : row - half[0].n_tok, s = sequence_of(&step, row), q = sequence_of(h, r);
            assert_int_equal(h->host.token[r], step.host.token[row]);
            assert_int_equal(h->host.slot[r], step.host.slot[row]);
            assert_int_equal(h->host.pos[r], step.host.pos[row]);
            assert_int_equal(h->host.absorbed[q], step.host.absorbed[s]);
            assert_memory_equal(h->host.block_table + q * STRIDE, step.host.block_table + s * STRIDE, STRIDE * sizeof(uint32_t));
        }
        for (uint32_t h = 0; h < TD_HALVES; h++) { /* the rule of npu.h: a sequence's keys end with its last row of the step */
            const td_step_arrays *a = &half[h].host;
            assert_int_equal(a->seq_start[0], 0);
            assert_int_equal(a->seq_start[half[h].n_seq], half[h].n_tok);
            for (uint32_t q = 0; q < half[h].n_seq; q++) {
                assert_true(a->seq_start[q] < a->seq_start[q + 1]);
                assert_int_equal(a->kv_len[q], a->pos[a->seq_start[q + 1] - 1] + 1);
            }
        }
    }
    print_message("%u cuts within a sequence, %u between two\n", across, between);
    assert_true(across > STEPS / 10 && between > STEPS / 10);
    td_step_split_close(&split);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(halves_are_the_rows_of_the_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
