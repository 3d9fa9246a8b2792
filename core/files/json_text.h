/*
 * JSON texts into jansson's trees and back, also when memory is short.
 *
 * Jansson (2.14) does not survive short memory by itself. Its lexer ignores that a string could not grow, loses characters,
 * and then writes beyond the end of a buffer; its encoder leaves out the key of a member. So the first call replaces
 * jansson's allocation functions for the process, by malloc and free that note failures. A parse has a reserve: once an
 * allocation has failed, everything it needs comes from the reserve, and it gets no more text, so that it ends soon and in
 * order.
 */
#ifndef TD_CORE_FILES_JSON_TEXT_H
#define TD_CORE_FILES_JSON_TEXT_H

#include <jansson.h>

#include "tandem.h"

/**
 * @param flags jansson's JSON_*.
 * @param out   a new reference; NULL on failure.
 * @param why   filled unless TD_OK.
 * @return TD_OK; TD_EFORMAT for a text that is not JSON; TD_ENOMEM. Thread-safe; the first call must come before other
 * threads use jansson.
 */
TD_NODISCARD td_status td_json_load(const char *text, size_t len, size_t flags, json_t **out, json_error_t *why);

/** json_dumps: a malloc'd text; NULL when memory is short (or root is NULL). A real is written with the fewest digits that
 * give it again, 0.1 as 0.1, unless flags have a JSON_REAL_PRECISION. Thread-safe as td_json_load is. */
char *td_json_dump(const json_t *root, size_t flags);

/** A name from outside as a JSON string for people to read: if it is not UTF-8, its bytes beyond ASCII become '?'. @return
 * NULL when memory is short. */
json_t *td_json_name(const char *name);

#endif
