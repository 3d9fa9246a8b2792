/* The keywords of JSON Schema, and what is made of each. */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_KEYWORDS_H
#define TD_TEXT_GRAMMAR_SCHEMA_KEYWORDS_H

#include <jansson.h>
#include <stdbool.h>

/** Types of values, as bits. NUMBER has the integers, too. */
enum {
    TD_SCHEMA_NULL = 1,
    TD_SCHEMA_BOOLEAN = 2,
    TD_SCHEMA_OBJECT = 4,
    TD_SCHEMA_ARRAY = 8,
    TD_SCHEMA_NUMBER = 16,
    TD_SCHEMA_INTEGER = 32,
    TD_SCHEMA_STRING = 64,
    TD_SCHEMA_ALL = 95
};

typedef enum {
    TD_KEYWORD_CONDITION,  /* decides which texts are accepted */
    TD_KEYWORD_ANNOTATION, /* does not */
    TD_KEYWORD_UNKNOWN     /* of no draft: no condition, either; the sender is told */
} td_keyword_use;

/** Where the value of a keyword has schemas. */
typedef enum {
    TD_HOLDS_NONE,
    TD_HOLDS_SCHEMA, /* the value is one; of `items` it may be a list of them */
    TD_HOLDS_LIST,   /* a list of them */
    TD_HOLDS_MAP     /* an object whose members are schemas; of `dependencies` some may be lists of strings */
} td_keyword_schemas;

typedef struct {
    const char        *name;
    td_keyword_use     use;
    td_keyword_schemas holds;
    unsigned           types; /* of a condition: types of the values that it is about; 0: all */
} td_keyword;

/** The keyword of this name; of use TD_KEYWORD_UNKNOWN if there is none. */
const td_keyword *td_keyword_of(const char *name);

/** The bit of a type's name; 0: it is none. */
unsigned td_schema_type_bit(const json_t *name);
/** A type's name, by the number of its bit; NULL after the last. */
const char *td_schema_type_name(unsigned bit_number);
/** Whether a value is of one of these types. */
bool td_schema_is_of(const json_t *value, unsigned types);

#endif
