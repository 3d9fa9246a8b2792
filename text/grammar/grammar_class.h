/* Sets of characters, and how they are written as bytes: in UTF-8, or inside a JSON string. */
#ifndef TD_TEXT_GRAMMAR_CLASS_H
#define TD_TEXT_GRAMMAR_CLASS_H

#include "text/grammar/grammar_ast.h"

#define TD_GR_CHAR_MAX 0x10FFFFu

typedef struct {
    uint32_t lo, hi;
} td_gr_span;

/** Spans of code points. Zero-initialise; td_gr_class_free. Functions that need memory report to the builder. */
typedef struct {
    td_gr_span *at;
    size_t      n, room;
} td_gr_class;

void td_gr_class_add(td_gr_builder *b, td_gr_class *c, uint32_t lo, uint32_t hi);
void td_gr_class_sort(td_gr_class *c); /* ascending, disjoint, not adjacent; what follows needs it */
void td_gr_class_negate(td_gr_builder *b, td_gr_class *c);
void td_gr_class_free(td_gr_class *c);

/** One character of the class, in UTF-8. Surrogates are no characters. */
uint32_t td_gr_class_utf8(td_gr_builder *b, const td_gr_class *c);

/**
 * One character of the class as a JSON string may spell it. There are three ways: as it is, except quote, backslash and
 * controls; by an escape of two characters (\n, \"); and by \uXXXX for a control, DEL or what is not ASCII. Characters
 * beyond U+FFFF are spelled as a pair of \uXXXX only if the class has all of them.
 */
uint32_t td_gr_class_json(td_gr_builder *b, const td_gr_class *c);

/** Any character of a JSON string in any spelling. Surrogates in pairs only. */
uint32_t td_gr_json_char(td_gr_builder *b);

/** A JSON string with this value (valid UTF-8), quotes included, spelled as td_gr_class_json spells each character. */
uint32_t td_gr_json_text(td_gr_builder *b, const char *text, size_t len);

/** A text that is being read; all of it is valid UTF-8. */
typedef struct {
    const char *start, *at, *end;
    const char *what; /* "regex", for messages */
} td_gr_reader;

/** Refuses a text that is too long, not UTF-8 or with a NUL. */
bool td_gr_read_open(td_gr_builder *b, td_gr_reader *r, const char *what, const char *text, size_t len);
/** Record what is wrong at this place; returns node 0. */
uint32_t td_gr_read_fail(td_gr_builder *b, const td_gr_reader *r, const char *fmt, ...) TD_PRINTF(3, 4);
bool     td_gr_take(td_gr_reader *r, const char *token); /* if it comes next */
uint32_t td_gr_take_char(td_gr_reader *r);               /* there is one */

/**
 * Read an escape after its backslash: \n \t \r \f \v \a \e \0 \xHH \uHHHH \UHHHHHHHH \x{…} \u{…}, or an escaped sign. A
 * class, \d \w \s \D \W \S (ASCII), is added to c. Refuses other letters, and classes where c is NULL.
 * @return the character; UINT32_MAX for a class.
 */
uint32_t td_gr_read_escape(td_gr_builder *b, td_gr_reader *r, td_gr_class *c);

/** Read a class after its "[": spans, escapes and negation up to "]". c is sorted then. */
void td_gr_read_class(td_gr_builder *b, td_gr_reader *r, td_gr_class *c);

/**
 * Read a quantifier, if one comes next: * + ? {n} {n,} {,m} {n,m}.
 * @return whether there was one. Fails for counts above TD_GR_COUNT_MAX.
 */
bool td_gr_read_quantifier(td_gr_builder *b, td_gr_reader *r, uint32_t *min, uint32_t *max);

#define TD_GR_COUNT_MAX 65536u

#endif
