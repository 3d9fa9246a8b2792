/*
 * Python's literals as JSON texts: strings, numbers, True, False and None, lists, tuples, and dicts with strings as keys
 * (docs.python.org/3/reference/lexical_analysis.html#literals; no prefixes, no triple quotes, no sets). JSON's words are
 * taken, too; numbers are those of JSON, and stay as they are written.
 */
#ifndef TD_TEXT_PARSE_PYTHON_LITERAL_H
#define TD_TEXT_PARSE_PYTHON_LITERAL_H

#include <stdbool.h>
#include <stddef.h>

#include "text/parse/byte_buffer.h"

/** A text that is read from at to end; depth is 0 at first. */
typedef struct {
    const char *at, *end;
    unsigned    depth;
} td_python_text;

bool td_python_name_start(char c);
bool td_python_name(char c); /* dots too */

void td_python_skip(td_python_text *s);         /* blanks */
bool td_python_take(td_python_text *s, char c); /* blanks, then c; @return false, and c is not taken, when it is not there */
size_t td_python_take_name(td_python_text *s, const char **name); /* @return its bytes; 0: none */

/** A literal, of at most 64 levels, appended as JSON. Strings are not checked to be UTF-8. @return false: there is none;
 * what was appended is of no use then. */
bool td_python_take_value(td_python_text *s, td_bytes *json);

#endif
