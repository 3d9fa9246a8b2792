/*
 * The JSON type of a call's argument that a model wrote as plain text, by its tool's JSON schema.
 *
 * The keywords type, enum and const count, also within anyOf, oneOf and allOf. All others, $ref too, leave the type open.
 */
#ifndef TD_TEXT_PARSE_ARGUMENT_TYPES_H
#define TD_TEXT_PARSE_ARGUMENT_TYPES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TD_TYPE_STRING = 1,
    TD_TYPE_NUMBER = 2, /* integers too */
    TD_TYPE_BOOLEAN = 4,
    TD_TYPE_NULL = 8,
    TD_TYPE_ARRAY = 16,
    TD_TYPE_OBJECT = 32,
    TD_TYPE_OPEN = 63, /* any */
};

/** The types that an argument may have. @param parameters a tool's "parameters", or NULL. */
uint32_t td_argument_types(const json_t *parameters, const char *key, size_t key_len);

/**
 * A value of one of these types from text, as JSON. A text that is JSON of such a type stays as it is. If the types are not
 * open, a literal in Python counts, too. Anything else is a string.
 * @return a malloc'd text; NULL: memory is short, or the text is not UTF-8.
 */
char *td_argument_json(const char *text, size_t n, uint32_t types);

#endif
