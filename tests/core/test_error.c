/* Errors: their sentences, which are cut, terminated, and of one line. */
#include "core/error.h"
#include "tests/td_test.h"

TEST(fail_fills_the_sentence) {
    td_error err = {0};
    assert_int_equal(td_fail(&err, TD_EFORMAT, "%s is short", "a.bin"), TD_EFORMAT);
    assert_string_equal(err.text, "a.bin is short");
    assert_int_equal(td_fail_within(&err, "shard %d", 3), TD_EFORMAT);
    assert_string_equal(err.text, "shard 3: a.bin is short");
    assert_int_equal(td_fail(NULL, TD_EIO, "nobody listens"), TD_EIO);
}

TEST(a_long_sentence_is_cut_and_terminated) {
    char long_text[2 * TD_ERROR_TEXT_MAX];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    td_error err = {0};
    td_fail(&err, TD_EINVAL, "%s", long_text);
    assert_int_equal(strlen(err.text), TD_ERROR_TEXT_MAX - 1);
    td_fail_within(&err, "%s", long_text);
    assert_int_equal(strlen(err.text), TD_ERROR_TEXT_MAX - 1);
}

TEST(a_sentence_is_one_line) {
    td_error err = {0};
    td_fail(&err, TD_EFORMAT, "tensor '%s'", "a\nb\x1b[2J");
    assert_string_equal(err.text, "tensor 'a b [2J'");
    td_fail_within(&err, "%s", "x\ty");
    assert_string_equal(err.text, "x y: tensor 'a b [2J'");
}

TEST(every_status_has_a_text) {
    assert_string_equal(td_status_text(TD_OK), "ok");
    assert_string_equal(td_status_text((td_status)-999), "unknown status");
}
