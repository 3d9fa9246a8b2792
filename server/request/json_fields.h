/*
 * What readers of requests ask of JSON: a body as an object, and whether a field's value is of the kind that it has to be.
 * Pure functions; any thread.
 */
#ifndef TD_SERVER_REQUEST_JSON_FIELDS_H
#define TD_SERVER_REQUEST_JSON_FIELDS_H

#include <jansson.h>

#include "server/api/api_error.h"

/** Parse a JSON object, the caller's; NULL with err filled when it is none, or memory is short. Strings may hold U+0000,
 * because a vocabulary of bytes has it too. */
json_t *td_api_load(const char *body, size_t len, td_api_error *err);

/** Whether v is given: it is there, and not null. */
static inline bool td_api_is_set(const json_t *v) {
    return v && !json_is_null(v);
}

/** Whether v is there and neither null, false, 0 nor empty. */
bool td_api_is_on(const json_t *v);

/** Whether v is a string without a NUL in it, so that C code sees all of it. */
bool td_api_is_c_string(const json_t *v);

/** Whether v is a whole number, as an integer or as 3.0; *to receives it. */
bool td_api_integer(const json_t *v, json_int_t *to);

/** The field of this name as true or false; *to is left as it is where the field is not given. */
TD_NODISCARD td_status td_api_read_bool(const json_t *root, const char *name, bool *to, td_api_error *err);

/** A JSON array of at most n_max token ids, each below vocab_size, into a malloc'd array, the caller's. */
TD_NODISCARD td_status td_api_parse_ids(const json_t *array, const char *param, size_t n_max, uint32_t vocab_size,
                                        uint32_t **ids, size_t *n_ids, td_api_error *err);

#endif
