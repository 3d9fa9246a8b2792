/*
 * JSON as a grammar: values of each type, fixed values, numbers in a range.
 *
 * Between tokens there may be one space, or a line break with up to TD_GR_INDENT_MAX spaces or tabs after it: behind `{`,
 * `[` and `,`, and before `}` and `]`. Behind `:` there may be one space. Elsewhere there is none, so that a text cannot
 * grow by white space.
 */
#ifndef TD_TEXT_GRAMMAR_JSON_H
#define TD_TEXT_GRAMMAR_JSON_H

#include <string.h>

#include <jansson.h>

#include "text/grammar/grammar_ast.h"

/* Short names for what texts are made of. */
static inline uint32_t td_gr_word(td_gr_builder *b, const char *s) {
    return td_gr_text(b, s, strlen(s));
}
static inline uint32_t td_gr_seq(td_gr_builder *b, uint32_t x, uint32_t y) {
    return td_gr_pair(b, TD_GR_SEQ, x, y);
}
static inline uint32_t td_gr_alt(td_gr_builder *b, uint32_t x, uint32_t y) {
    return td_gr_pair(b, TD_GR_ALT, x, y);
}
static inline uint32_t td_gr_digits(td_gr_builder *b, uint32_t min, uint32_t max) {
    return td_gr_repeat(b, td_gr_byte(b, '0', '9'), min, max);
}

#define TD_GR_INDENT_MAX 20

/** The parts of JSON that a grammar makes once. */
typedef struct {
    td_gr_builder *b;
    uint32_t       space;                              /* node: white space */
    uint32_t       comma;                              /* node: a comma and white space */
    uint32_t       character;                          /* rule: one character of a string */
    uint32_t       string, number, object, array, any; /* rules */
} td_gr_json;

void td_gr_json_open(td_gr_json *j, td_gr_builder *b);

/** `"key": value`. @param key a node: the key with its quotes. */
uint32_t td_gr_json_member(td_gr_json *j, uint32_t key, uint32_t value);
/** `open`, white space, what is inside, white space, `close`. */
uint32_t td_gr_json_bracket(td_gr_json *j, char open, uint32_t inside, char close);

/** Exactly this value. Numbers in their shortest form; members in the value's order. */
uint32_t td_gr_json_value(td_gr_json *j, const json_t *value);

/* ---- grammar_number.c ---- */

#define TD_GR_FRACTION_MAX 20 /* digits */

/** A decimal number. */
typedef struct {
    bool     negative;
    uint64_t whole;
    char     fraction[TD_GR_FRACTION_MAX + 1]; /* digits behind the point, the last one not 0; empty: an integer */
} td_gr_decimal;

/** @return false: it is above 9e18 in size, or has more digits than are kept. */
bool td_gr_decimal_of(const json_t *number, td_gr_decimal *out);
int  td_gr_decimal_compare(const td_gr_decimal *x, const td_gr_decimal *y); /* below, equal to or above 0 */

/** An end of an interval of numbers; an open end does not belong to it. */
typedef struct {
    bool          is_given, is_open;
    td_gr_decimal at;
} td_gr_bound;

/** Integers, or decimals without exponent where `fraction`, of an interval. Its ends are integers without `fraction`. */
uint32_t td_gr_json_interval(td_gr_json *j, const td_gr_bound *min, const td_gr_bound *max, bool fraction);
uint32_t td_gr_json_integer(td_gr_json *j); /* any */

/** Multiples of a number above 0, without exponent; integers, or decimals where `fraction`. Fails for many digits. */
uint32_t td_gr_json_multiple(td_gr_json *j, const td_gr_decimal *of, bool fraction);

#endif
