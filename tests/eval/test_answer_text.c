/* Answers found in texts: numbers, patterns, and what has none. */

#include "eval/answer_text.h"
#include "tests/td_test.h"

typedef struct {
    const char *rule, *text, *answer; /* answer NULL: none */
} example;

static const example EXAMPLES[] = {
    {"last-number", "She makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18", "18"},
    {"last-number", "The answer is $70,000.", "70000"},
    {"last-number", "1,234,567.50 dollars", "1234567.5"},
    {"last-number", "it was 3.0", "3"},
    {"last-number", "0.50", "0.5"},
    {"last-number", "007", "7"},
    {"last-number", "0", "0"},
    {"last-number", "-0.0", "0"},
    {"last-number", "minus: -12", "-12"},
    {"last-number", "a range of 3-5", "5"},
    {"last-number", "x-5", "5"},
    {"last-number", "-5", "-5"},
    {"last-number", "first 1, then 2, end", "2"},
    {"last-number", "4.", "4"},
    {"last-number", "no number here", NULL},
    {"last-number", "", NULL},
    {"whole", "  the answer \n", "the answer"},
    {"whole", " \n\t", NULL},
    {"regex:#### (\\S+)", "#### 5\n#### 6 and more", "6"},
    {"regex:\\d+", "7 or 8", "8"},
    {"regex:answer is (yes|no)", "the answer is maybe", NULL},
    {"regex:(x)?y", "y", "y"},
    {"regex:a*", "bbb", NULL},                                      /* an empty match is no answer */
    {"regex:(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", NULL}, /* a search that would not end */
    {"regex:é(.)", "éüéß", "ß"},
    {"regex:x", "\xff\xfe", NULL}, /* not UTF-8 */
};

TEST(answers_are_found) {
    for (size_t i = 0; i < sizeof EXAMPLES / sizeof *EXAMPLES; i++) {
        const example                              *x = &EXAMPLES[i];
        AT_END(td_answer_rule_close) td_answer_rule rule;
        td_error                                    err = {0};
        FREED char                                 *answer;
        if (td_answer_rule_open(&rule, x->rule, &err) != TD_OK) fail_msg("%s: %s", x->rule, err.text);
        FREED char *text = malloc(strlen(x->text)); /* not terminated: what reads on is noticed */
        if (*x->text) memcpy(text, x->text, strlen(x->text));
        OK(td_answer_find(&rule, text, strlen(x->text), &answer));
        if (!answer != !x->answer || (answer && strcmp(answer, x->answer)))
            fail_msg("%s of '%s' is '%s', not '%s'", x->rule, x->text, answer ? answer : "none",
                     x->answer ? x->answer : "none");
    }
}

TEST(rules_are_refused) {
    const char *const rules[] = {"", "first-number", "regex", "regex:(", "regex:[z-a]"};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        AT_END(td_answer_rule_close) td_answer_rule rule;
        td_error                                    err = {0};
        assert_int_equal(td_answer_rule_open(&rule, rules[i], &err), TD_EINVAL);
        assert_true(strlen(err.text) > 10);
    }
}
