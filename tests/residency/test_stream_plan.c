/* How many experts of a layer a step streams, and from which step on, by given speeds. */
#include "residency/stream_plan.h"

#include <math.h>

#include "tests/td_test.h"

/* 64 experts, of which a row chooses 8. Link: 0.1 ms an expert; card: 0.01 us a pair; CPU: 5 us a pair, 0.2 ms an expert. */
static const td_stream_shape  SHAPE = {.n_layers = 20, .n_experts = 64, .top_k = 8, .n_resident = 8, .n_most = 56};
static const td_stream_speeds SPEEDS = {.upload = 1e-4, .card_row = 1e-8, .cpu_row = 5e-6, .cpu_read = 2e-4};

static void assert_seconds(double got, double want) {
    assert_true(fabs(got - want) < 1e-9);
}

TEST(the_slowest_of_three_counts) {
    /* All on the card: the link, and the first layer's uploads over all layers. */
    assert_seconds(td_stream_time(&SHAPE, &SPEEDS, 4096, 56), 56 * 1e-4 * 21 / 20);
    /* None: the CPU has 7 of 8 pairs; of few rows it reads what they chose. */
    assert_seconds(td_stream_time(&SHAPE, &SPEEDS, 4096, 0), 4096 * 7 * 5e-6);
    assert_seconds(td_stream_time(&SHAPE, &SPEEDS, 1, 0), 7 * 2e-4);
    td_stream_speeds slow_card = SPEEDS;
    slow_card.card_row = 1e-6;
    assert_seconds(td_stream_time(&SHAPE, &slow_card, 4096, 56), 4096 * 8 * 1e-6);
}

TEST(long_steps_stream_all_and_short_ones_a_part) {
    assert_int_equal(td_stream_share(&SHAPE, &SPEEDS, 1 << 16), 56);
    assert_int_equal(td_stream_share(&SHAPE, &SPEEDS, 8192), 55); /* the CPU has time for one */
    const uint32_t part = td_stream_share(&SHAPE, &SPEEDS, 300);
    assert_in_range(part, 30, 55);
    for (uint32_t n = 0; n <= 56; n++) /* no other share is faster */
        assert_true(td_stream_time(&SHAPE, &SPEEDS, 300, n) >= td_stream_time(&SHAPE, &SPEEDS, 300, part));
}

TEST(a_card_that_is_slower_than_the_CPU_gets_nothing) {
    td_stream_speeds slow = SPEEDS;
    slow.card_row = 5e-5;
    assert_int_equal(td_stream_share(&SHAPE, &slow, 8192), 0);
    assert_int_equal(td_stream_crossover(&SHAPE, &slow, 8192), 0);
}

TEST(the_crossover_is_where_streaming_begins) {
    td_stream_speeds slow_link = SPEEDS;
    slow_link.upload = 1e-2;
    const uint32_t from = td_stream_crossover(&SHAPE, &slow_link, 8192);
    assert_in_range(from, 100, 8191);
    assert_int_equal(td_stream_share(&SHAPE, &slow_link, from - 1), 0);
    assert_true(td_stream_share(&SHAPE, &slow_link, from) > 0);
    assert_int_equal(td_stream_crossover(&SHAPE, &slow_link, from - 1), 0);
    assert_int_equal(td_stream_crossover(&SHAPE, &slow_link, 16), 0);
}

TEST(steps_without_prompts_are_not_streamed) {
    td_stream_speeds slow_cpu = SPEEDS;
    slow_cpu.cpu_read = 1;
    assert_int_equal(td_stream_share(&SHAPE, &slow_cpu, TD_STREAM_ROWS * 64 / 8 - 1), 0);
    assert_int_equal(td_stream_crossover(&SHAPE, &slow_cpu, 8192), TD_STREAM_ROWS * 64 / 8);
}

TEST(without_room_or_experts_nothing_is_streamed) {
    td_stream_shape none = SHAPE;
    none.n_most = 0;
    assert_int_equal(td_stream_share(&none, &SPEEDS, 8192), 0);
}
