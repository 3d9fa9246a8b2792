/*
 * Regular expressions of the kind that JSON Schema, Python and the other engines' `regex` fields share: literals, `.` (not
 * newline), classes, escapes, groups, alternatives, greedy and lazy quantifiers, ^ and $ at the ends. \d \w \s are ASCII's.
 * Lookaround, backreferences, \b, flags, possessive quantifiers and \p{…} are refused by name.
 */
#ifndef TD_TEXT_GRAMMAR_REGEX_H
#define TD_TEXT_GRAMMAR_REGEX_H

#include "text/grammar/grammar_ast.h"

/** The regex matches the whole text, which is UTF-8. @return a node; failures are in b->status. */
uint32_t td_gr_regex(td_gr_builder *b, const char *regex, size_t len);

/** The regex matches somewhere in the value of a JSON string, as JSON Schema's `pattern`. @return a node: what is between
 * the quotes. */
uint32_t td_gr_regex_json(td_gr_builder *b, const char *regex, size_t len);

#endif
