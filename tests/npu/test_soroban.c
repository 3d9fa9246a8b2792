/*
 * A third backend is a folder, a line in a list and sources for CMake: that of tests/npu/soroban is in this program's list,
 * and flags, --device auto, the thread layout and the doctor know it. The doctor's checks are the contract's: memory, link,
 * streams, hand-overs, captures, each block against the host device, sums over cards. test_soroban_blocks and
 * test_soroban_attention are the host device's tests of blocks, on it.
 */

#include "cli/device_flag.h"
#include "doctor/doctor.h"
#include "tests/td_test.h"

TEST(names) {
    td_npu  *npu;
    td_error err = {0};
    assert_ptr_equal(td_backend_find("suanpan"), td_backend_find("soroban"));
    assert_int_equal(td_npu_open("soroban", &(td_npu_config){.act_dtype = TD_DT_BF16, .card = 2}, &npu, &err), TD_EINVAL);
    assert_string_equal(err.text, "there is no soroban 2: there are 2");
    assert_int_equal(td_npu_open("abacus", &(td_npu_config){.act_dtype = TD_DT_BF16}, &npu, &err), TD_EINVAL);
    assert_string_equal(err.text, "there is no device \"abacus\"; this build has \"host\", \"soroban\"");
    assert_string_equal(td_engine_device_name(2), "soroban");
    assert_string_equal(td_engine_device_name(3), "suanpan");
    assert_null(td_engine_device_name(4));
}

TEST(flags) {
    static const char *const CHOICES[] = {"auto", "host", "cpu=host", "soroban", "suanpan=soroban"};
    const td_device_flag    *f = &td_device_flag_texts;
    td_device_flag_fill();
    for (size_t i = 0; i < sizeof CHOICES / sizeof *CHOICES; i++) assert_string_equal(f->choices[i], CHOICES[i]);
    assert_null(f->choices[5]);
    assert_non_null(strstr(f->help,
                           "host is the CPU, soroban is an abacus (tests/npu/soroban). auto is soroban where there is "
                           "such a card, else host."));
    assert_string_equal(f->refusal, "is not supported yet; this build serves with --device host or soroban");
}

TEST(placement) {
    td_thread_wishes wishes = {0};
    char             why[TD_ERROR_TEXT_MAX];
    assert_string_equal(td_npu_auto(why, sizeof why), "soroban");
    assert_string_equal(why, "2 Wooden cards, 2 of 13 rods or more");
    td_npu_wish("suanpan", 1, 1, &wishes);
    assert_true(wishes.card && wishes.near_card);
    assert_int_equal(wishes.card_node, 1);
    assert_int_equal(wishes.npu_threads, 0);
}

static void count_row(void *user, const td_doctor_row *r) {
    uint32_t *count = user;
    if (r->outcome != TD_DOCTOR_OK) fail_msg("%s, %s: %g of %g; %s", r->part, r->what, r->value, r->bound, r->found);
    ++*count;
}

TEST(the_contract) {
    uint32_t rows = 0;
    td_error err = {0};
    if (td_doctor_visit("soroban", 0, 60, count_row, &rows, &err) != TD_OK) fail_msg("%s", err.text);
    assert_true(rows > 30);
}
