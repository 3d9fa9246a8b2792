/* JSON as text: arguments stay as the model wrote them, with numbers of any size. */
#ifndef TD_TEXT_PARSE_JSON_PARTS_H
#define TD_TEXT_PARSE_JSON_PARTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "tandem.h"

#define TD_JSON_ESCAPE_MAX 8

/** A byte of a string as JSON writes it between quotes. @return the bytes put into out. */
size_t td_json_escape(char c, char out[TD_JSON_ESCAPE_MAX]);

/** Whether the text is a number (RFC 8259, section 6); it may have any number of digits. */
bool td_json_is_number(const char *text, size_t n);

/** td_json_load that accepts numbers of any size: if the text has one that jansson cannot hold, all its numbers are read as
 * 0. */
TD_NODISCARD td_status td_json_load_shape(const char *text, size_t n, size_t flags, json_t **out);

#endif
