/*
 * What the parts of the compiler of JSON schemas share.
 *
 * DESIGN. Of these files each calls those in lines above its own, and in its line those before it:
 *
 *   schema_keywords schema_refs schema_made schema_pattern         what schemas are made of
 *   schema_not schema_merge                                        schemas out of schemas
 *   schema_compiler                                                what the next line shares
 *   schema_scalar schema_object schema_array                       values of one type
 *   grammar_schema                                                 any schema, and the whole document
 *
 * Members and items have schemas of any kind. So the recursion enters by td_schema_compiler.compile: grammar_schema.c sets
 * it, and objects, arrays and td_schema_compile_both call it.
 */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_COMPILER_H
#define TD_TEXT_GRAMMAR_SCHEMA_COMPILER_H

#include "text/grammar/grammar_json.h"
#include "text/grammar/schema_made.h"

/** A rule whose schema is compiled when all before it are. */
typedef struct {
    uint32_t rule;
    json_t  *schema; /* borrowed */
} td_schema_pending;

typedef struct td_schema_compiler {
    td_gr_builder     *b;
    td_gr_json         json;
    td_schema_merger   merger;
    td_schema_pending *later;
    size_t             n_later, later_room;
    size_t             named; /* bytes of schemas that became names of rules */
    unsigned           depth;

    /** The node of the texts that a schema accepts. */
    uint32_t (*compile)(struct td_schema_compiler *c, json_t *schema);
} td_schema_compiler;

/** The node of the texts that both schemas accept. */
uint32_t td_schema_compile_both(td_schema_compiler *c, json_t *x, json_t *y);

/** A rule of its own: its automaton is made once, however often it is used. Returns the node that uses it. */
uint32_t td_schema_as_rule(td_schema_compiler *c, const char *what, uint32_t body);

/** The types that a schema allows, as bits. */
unsigned td_schema_types(td_schema_compiler *c, const json_t *schema);

/** Read a count, a whole number of at least 0, if it is there. @return false with the failure reported. */
bool td_schema_read_count(td_schema_compiler *c, const json_t *schema, const char *key, uint32_t *to);

/* Values of one type that meet a flat schema: schema_scalar.c, schema_object.c, schema_array.c. */
uint32_t td_schema_string(td_schema_compiler *c, json_t *schema);
uint32_t td_schema_number(td_schema_compiler *c, json_t *schema, bool whole);
uint32_t td_schema_object(td_schema_compiler *c, json_t *schema);
uint32_t td_schema_array(td_schema_compiler *c, json_t *schema);

#endif
