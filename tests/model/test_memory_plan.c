/* The memory plan: what fits, what is capped, and sentences that name the largest figure. */

#include "model/memory_plan.h"
#include "tests/td_test.h"

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

/* 16 GiB, half of it usable; 5 GiB weights, 1 GiB scratch: 2 GiB are left, 256 pages of 8 MiB, 32768 tokens. */
static td_memory_plan_input machine(void) {
    return WITH(td_memory_plan_input, .available_bytes = 16 * GIB, .fraction = 0.5, .weight_bytes = 5 * GIB,
                .scratch_bytes = GIB, .kv_bytes_per_page = 8 * MIB, .context_length = 131072, .max_running = 32);
}

TEST(takes_what_fits) {
    td_memory_plan_input in = machine();
    td_memory_shares     shares;
    OK(td_memory_plan(&in, &shares, NULL));
    assert_int_equal(shares.n_pages, 256);
}

TEST(takes_no_more_than_is_useful) {
    td_memory_plan_input in = machine();
    td_memory_shares     shares;
    in.context_length = 1000;
    in.max_running = 3;
    OK(td_memory_plan(&in, &shares, NULL));
    assert_int_equal(shares.n_pages, 3 * 8);
}

/* Experts that move get what KV leaves: 2 GiB for 256 pages or for 64 slots of 32 MiB. */
TEST(slots_beside_kv) {
    td_memory_plan_input in = machine();
    td_memory_shares     shares;
    in.slot_bytes = 32 * MIB;
    in.slots_least = 4;
    in.slots_most = 60;
    in.context_length = 128 * 128 - 1; /* half of the pages hold one sequence */
    OK(td_memory_plan(&in, &shares, NULL));
    assert_int_equal(shares.n_pages, 128);
    assert_int_equal(shares.n_slots, 32);
    in.context_length = 128 * 128; /* they do not */
    OK(td_memory_plan(&in, &shares, NULL));
    assert_int_equal(shares.n_pages, 256);
    assert_int_equal(shares.n_slots, 0);
    in.max_total_tokens = 1024;
    OK(td_memory_plan(&in, &shares, NULL));
    assert_int_equal(shares.n_pages, 8);
    assert_int_equal(shares.n_slots, 60); /* 62 would fit */
    in.max_total_tokens = 128 * 240;      /* 4 slots are left */
    OK(td_memory_plan(&in, &shares, NULL));
    assert_int_equal(shares.n_slots, 4);
    in.max_total_tokens = 128 * 241;
    OK(td_memory_plan(&in, &shares, NULL));
    assert_int_equal(shares.n_slots, 0);
}

TEST(exact_limit) {
    td_memory_plan_input in = machine();
    td_memory_shares     shares;
    td_error             err = {0};
    in.max_total_tokens = 32768;
    OK(td_memory_plan(&in, &shares, &err));
    assert_int_equal(shares.n_pages, 256);
    in.max_total_tokens = 32769;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "max-total-tokens 32769"));
    assert_non_null(strstr(err.text, "the largest is 32768"));
    in.max_total_tokens = 1;
    OK(td_memory_plan(&in, &shares, &err));
    assert_int_equal(shares.n_pages, 1);
    in.max_total_tokens = UINT64_MAX;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
}

TEST(weights_that_do_not_fit) {
    td_memory_plan_input in = machine();
    td_memory_shares     shares;
    td_error             err = {0};
    in.weight_bytes = 7 * GIB;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "the weights take 7.00 GiB"));
    in.weight_bytes = UINT64_MAX;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    in = machine();
    in.weight_bytes = 7 * GIB - 8 * MIB;
    OK(td_memory_plan(&in, &shares, &err));
    assert_int_equal(shares.n_pages, 1);
}

/* The device's memory and the host's are planned apart: 24 GiB of experts beside a device of 16. */
TEST(two_memories) {
    td_memory_plan_input in = machine();
    td_host_budget       host = {.available_bytes = 64 * GIB, .weight_bytes = 24 * GIB, .scratch_bytes = 8 * GIB};
    td_memory_shares     shares;
    td_error             err = {0};
    in.host = &host;
    OK(td_memory_plan(&in, &shares, &err)); /* half of 64 GiB, to the byte */
    assert_int_equal(shares.n_pages, 256);
    host.scratch_bytes++;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text,
                           "host memory: the experts take 24.00 GiB and pinned and working memory 8.00 GiB, but only 32.00 "
                           "GiB of the 64.00 GiB"));
    assert_non_null(strstr(err.text, "64.00 GiB or more"));
    host.scratch_bytes = 0;
    in.weight_bytes = 8 * GIB;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "device memory: the weights take 8.00 GiB"));
    assert_null(strstr(err.text, "other processes"));
    in.taken_bytes = 60 * GIB;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "the 16.00 GiB available (other processes have 60.00 GiB of the device) may be used"));
    in = machine();
    in.host = &host;
    in.max_total_tokens = 40000;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "device memory: max-total-tokens 40000 does not fit"));
    assert_non_null(strstr(err.text, "the largest is 32768"));
    host.weight_bytes = UINT64_MAX;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
}

/* Experts that leave host memory for a slot: as many slots as it needs come before KV. The host may use 20 GiB; of the
 * device 2 GiB are left, for 256 pages or 64 slots. */
TEST(slots_that_host_memory_needs) {
    td_memory_plan_input in = machine();
    td_host_budget       host = {
              .available_bytes = 40 * GIB, .weight_bytes = 20 * GIB + 320 * MIB, .saved_bytes = 32 * MIB, .scratch_bytes = 0};
    td_memory_shares shares;
    td_error         err = {0};
    in.host = &host;
    in.slot_bytes = 32 * MIB;
    in.slots_least = 4;
    in.slots_most = 60;
    OK(td_memory_plan(&in, &shares, &err)); /* one sequence takes all that the ten leave */
    assert_int_equal(shares.n_slots, 10);
    assert_int_equal(shares.n_pages, 256 - 40);
    in.context_length = 1000;
    in.max_running = 1;
    OK(td_memory_plan(&in, &shares, &err));
    assert_int_equal(shares.n_slots, 60);
    host.weight_bytes = 20 * GIB + 1;
    in.context_length = 131072;
    OK(td_memory_plan(&in, &shares, &err));
    assert_int_equal(shares.n_slots, 4); /* fewer are no use */
    host.weight_bytes = 20 * GIB + 60 * 32 * MIB + 1;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "host memory: the experts take 20.00 GiB"));
    host.weight_bytes = 20 * GIB + 60 * 32 * MIB;
    OK(td_memory_plan(&in, &shares, &err));
    assert_int_equal(shares.n_slots, 60);
    in.weight_bytes += 256 * MIB;
    assert_int_equal(td_memory_plan(&in, &shares, &err), TD_ENOMEM);
    assert_non_null(strstr(err.text, "device memory: the weights take 7.12 GiB"));
}
