/*
 * A model's life on an Ascend card with one failure in it. Each call of the runtime that can fail, and each operation on a
 * stream, fails in turn (a sample of them; all with TD_TEST_FULL=1). The failure is reported, and everything that was taken
 * is given back, which the stand-in checks when the card is closed. Nothing hangs, and a pass that is run again gives the
 * numbers of a life without a failure. Each life is a process.
 */
#include "fault_life.h"
#include "tests/td_test.h"

#define SAMPLE 24 /* lives of each kind and model */

static life_case      CASES[] = {{.device = "npu", .folder = "deepseek_v3_yarn"}, {.device = "npu", .folder = "qwen2_moe"}};
static const uint32_t EXPERTS[] = {16, 8}; /* of their layers; TD_TEST_DEVICE_EXPERTS=1 has them on the card */

static void try_all(const life_case *c, const char *variable, int n, const life *want) {
    int sample = c->device_experts || c->n_cards > 1 ? SAMPLE / 3 : SAMPLE;
    int told = 0, lives = 0, step = getenv("TD_TEST_FULL") || n <= sample ? 1 : n / sample;
    for (int i = 1; i <= n; i += step, lives++) {
        life l = live_with(c, variable, i, NULL);
        if (l.opened != TD_OK && l.opened != TD_EDEVICE && l.opened != TD_ENOMEM)
            fail_msg("%s=%d: the start ends with %d: %s", variable, i, l.opened, l.said);
        if (l.opened != TD_OK && !l.said[0]) fail_msg("%s=%d: the start ends without a sentence", variable, i);
        if (l.opened == TD_OK && l.passes == 2) assert_memory_equal(l.logits, want->logits, sizeof l.logits);
        if (l.opened == TD_OK && l.passes < 2) fail_msg("%s=%d: a pass that is run again fails again", variable, i);
        if (l.lost) fail_msg("%s=%d: what fails once is taken for a lost card", variable, i);
        told += l.opened != TD_OK || l.ran != TD_OK;
    }
    print_message("    %s, %s: %d lives of %d, %d of them told of a failure\n", c->folder, variable, lives, n, told);
    assert_true(told * 10 >= lives * 7); /* what goes wrong at the end is told to nobody */
}

TEST(every_call_fails_once) {
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int  n = 0;
        life want = live_with(&CASES[i], "TD_STANDIN_FAIL", 0, &n);
        OK(want.opened);
        assert_int_equal(want.passes, 2);
        assert_true(n > 50);
        try_all(&CASES[i], "TD_STANDIN_FAIL", n, &want);
    }
}

/* Kernels and copies of both passes; there are some thirty a layer. */
TEST(every_operation_fails_once) {
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        life want = live_with(&CASES[i], "TD_STANDIN_DELAY_US", 1, NULL);
        int  n = 1;
        assert_int_equal(want.passes, 2);
        for (int most = 4096; most; most /= 2) { /* the last one that is told */
            life l = live_with(&CASES[i], "TD_STANDIN_FAIL_OP", n + most, NULL);
            if (l.opened != TD_OK || l.ran != TD_OK) n += most;
        }
        assert_true(n > 50);
        try_all(&CASES[i], "TD_STANDIN_FAIL_OP", n, &want);
    }
}

/* A filter of cmocka, as "every_operation*". */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        CASES[i].n_cards = getenv("TD_TEST_CARDS") ? (uint32_t)atoi(getenv("TD_TEST_CARDS")) : 1;
        CASES[i].device_experts = getenv("TD_TEST_DEVICE_EXPERTS") ? EXPERTS[i] : 0;
    }
    setenv("ASCEND_HOME_PATH", TD_ASCEND_STANDIN, 1);
    setenv("TD_STANDIN_DELAY_US", "5", 0);
    return tests_run();
}
