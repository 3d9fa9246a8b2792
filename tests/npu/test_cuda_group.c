/*
 * Several NVIDIA cards as one, on the stand-in. Sums are in the order of the cards on two and four of them, whatever each
 * adds: eager and captured, in one shot and in two, in pieces, by peer access and through pinned memory. A card may not come
 * to a sum; some cards cannot form a group; every call of a group's life fails once.
 */
#define CLUSTER_DEVICE "cuda"
#define WIDTH 1024
#define ROWS 1050 /* more than a place has room for; two shots on four cards, and one for the rows behind it */

#include "card_cluster.h"
#include "tests/standins/cuda/use_cuda_standin.h"

/* The same through the host's memory: where no card reaches another's, and where there is not room for all to. */
TEST(without_peer_access) {
    static const char *const PEERS[] = {"0", "1"};
    for (uint32_t i = 0; i < 2; i++) {
        cluster  x;
        td_error err = {0};
        setenv("TD_STANDIN_PEERS", PEERS[i], 1);
        if (open_cards(&x, 3, &err) != TD_OK) fail_msg("%s", err.text);
        for (uint32_t c = 0; c < 3; c++) {
            if (prepare(&x.cards[c], x.group, 2, i == 1, &err) != TD_OK) fail_msg("%s", err.text);
            x.cards[c].captured = true;
        }
        OK(sum_all(&x));
        expect_sums(&x, 2);
        for (uint32_t c = 0; c < 3; c++) give_back(&x.cards[c]);
        close_cards(&x);
        unsetenv("TD_STANDIN_PEERS");
    }
}

/* Words of exact sums are added as integers, with a carry from one half to the other. */
TEST(exact_sums) {
    for (uint32_t n = 2; n <= CARDS_MAX; n += 2) {
        cluster  x;
        td_error err = {0};
        if (open_cards(&x, n, &err) != TD_OK) fail_msg("%s", err.text);
        for (uint32_t c = 0; c < n; c++) {
            x.cards[c].captured = x.cards[c].exact = true;
            if (prepare(&x.cards[c], x.group, 1, true, &err) != TD_OK) fail_msg("%s", err.text);
        }
        OK(sum_all(&x));
        for (size_t at = 0; at < N / 2; at++) {
            uint32_t want = 0;
            for (uint32_t c = 0; c < n; c++) want += ((const uint32_t *)(const void *)x.cards[c].parts[0])[at];
            for (uint32_t c = 0; c < n; c++) assert_int_equal(((const uint32_t *)(const void *)x.cards[c].got)[at], want);
        }
        for (uint32_t c = 0; c < n; c++) give_back(&x.cards[c]);
        close_cards(&x);
    }
}

TEST(what_is_no_group) {
    AT_END(close_cards) cluster x;
    td_error                    err = {0};
    td_npu_group               *g;
    td_npu_block               *b;
    OK(open_cards(&x, 2, &err));
    const td_npu_ops *ops = x.cards[0].ops;
    td_npu           *cards[] = {x.cards[0].npu, x.cards[1].npu};
    assert_int_equal(ops->group_create(cards, 2, &g, &err), TD_EINVAL);
    assert_string_equal(err.text, "CUDA card 0 is in another group");
    assert_int_equal(ops->group_create((td_npu *[]){cards[1], cards[1]}, 2, &g, &err), TD_EINVAL);
    assert_string_equal(err.text, "card 1 is in the group twice");
    assert_int_equal(ops->group_create(cards, 1, &g, &err), TD_EINVAL);
    assert_string_equal(err.text, "a group has 2 to 8 cards, not 1");
    td_block_desc desc = {.kind = TD_BLOCK_ALL_REDUCE, .max_tok = 1, .all_reduce = {.width = 12, .group = x.group}};
    assert_int_equal(ops->block_create(cards[0], &desc, &b, &err), TD_ENOTSUP);
    assert_string_equal(err.text, "cards sum rows of 8 to 1048576 values in steps of 8, not of 12");
    desc.all_reduce = (td_all_reduce_desc){.width = 16, .out = &x};
    assert_int_equal(ops->block_create(cards[0], &desc, &b, &err), TD_EINVAL);
}

FIRST_TEST(every_call_fails_once) {
    char said[8192];
    OK(cluster_failure(0, said, sizeof said));
    char *count = strstr(said, "stand-in: ");
    assert_non_null(count);
    int n = atoi(count + strlen("stand-in: ")), failed = 0, lives = 0, step = getenv("TD_TEST_FULL") ? 1 : n / 20;
    for (int i = 1; i <= n; i += step, lives++) {
        td_status st = cluster_failure(i, said, sizeof said);
        if (st != TD_EDEVICE && st != TD_ENOMEM && st != TD_OK) fail_msg("call %d: %d: %s", i, (int)st, said);
        if (st != TD_OK && !strstr(said, "CUDA")) fail_msg("call %d is told without a sentence: %s", i, said);
        failed += st != TD_OK;
    }
    print_message("%d calls, %d of %d lives told of a failure\n", n, failed, lives);
    assert_true(failed > lives / 2);
}

int main(void) {
    setenv("TD_STANDIN_DEVICES", "4", 1);
    use_cuda_standin("30", "calls"); /* nothing to measure: no bell is rung here */
    return tests_run();
}
