/* The answer within a text: what an exact-match task compares. */
#ifndef TD_EVAL_ANSWER_TEXT_H
#define TD_EVAL_ANSWER_TEXT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tandem_tools.h"

typedef enum { TD_ANSWER_LAST_NUMBER, TD_ANSWER_WHOLE, TD_ANSWER_REGEX } td_answer_kind;

typedef struct {
    td_answer_kind kind;
    pcre2_code    *regex;
} td_answer_rule;

/**
 * @param spec "last-number": the last number, without thousands separators and needless zeros; "whole": all but the white
 * space around it;
 *             "regex:PATTERN" (PCRE2, UTF-8): the first group of the last match, or the match where the pattern has no group.
 * @return TD_EINVAL for another spec or a pattern that does not compile.
 */
TD_NODISCARD td_status td_answer_rule_open(td_answer_rule *r, const char *spec, td_error *err);
void                   td_answer_rule_close(td_answer_rule *r);

/** @param answer malloc'd; NULL when the text has none. @return TD_ENOMEM, or TD_OK. */
TD_NODISCARD td_status td_answer_find(const td_answer_rule *r, const char *text, size_t len, char **answer);

#endif
