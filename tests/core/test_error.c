#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"

static void fail_fills_the_sentence(void **state) {
    (void)state;
    td_error err = {0};
    assert_int_equal(td_fail(&err, TD_EFORMAT, "%s is short", "a.bin"), TD_EFORMAT);
    assert_string_equal(err.text, "a.bin is short");
    assert_int_equal(td_fail_within(&err, "shard %d", 3), TD_EFORMAT);
    assert_string_equal(err.text, "shard 3: a.bin is short");
    assert_int_equal(td_fail(NULL, TD_EIO, "nobody listens"), TD_EIO);
}

static void a_long_sentence_is_cut_and_terminated(void **state) {
    (void)state;
    char long_text[2 * TD_ERROR_TEXT_MAX];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    td_error err = {0};
    td_fail(&err, TD_EINVAL, "%s", long_text);
    assert_int_equal(strlen(err.text), TD_ERROR_TEXT_MAX - 1);
    td_fail_within(&err, "%s", long_text);
    assert_int_equal(strlen(err.text), TD_ERROR_TEXT_MAX - 1);
}

static void a_sentence_is_one_line(void **state) {
    (void)state;
    td_error err = {0};
    td_fail(&err, TD_EFORMAT, "tensor '%s'", "a\nb\x1b[2J");
    assert_string_equal(err.text, "tensor 'a b [2J'");
    td_fail_within(&err, "%s", "x\ty");
    assert_string_equal(err.text, "x y: tensor 'a b [2J'");
}

static void every_status_has_a_text(void **state) {
    (void)state;
    assert_string_equal(td_status_text(TD_OK), "ok");
    assert_string_equal(td_status_text((td_status)-999), "unknown status");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_fills_the_sentence),
        cmocka_unit_test(a_long_sentence_is_cut_and_terminated),
        cmocka_unit_test(a_sentence_is_one_line),
        cmocka_unit_test(every_status_has_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
