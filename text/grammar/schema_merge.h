/*
 * JSON schemas put together, so that what is left is easily said by a grammar.
 *
 * A schema is flat if it has neither $ref nor any keyword that combines schemas, but at most one anyOf. What stands beside
 * the anyOf holds for each of its branches. Merging makes three keywords that no draft has:
 *
 *   +string   a list of schemas with pattern or format that a string has to meet, too
 *   -string   a list of schemas of strings that it must not meet
 *   +negated  conditions on members or items come from a negation, so these do not count as evaluated
 */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_MERGE_H
#define TD_TEXT_GRAMMAR_SCHEMA_MERGE_H

#include "text/grammar/schema_made.h"

/**
 * The flat schema that accepts what x and y both accept. Borrowed from m; NULL, with the failure reported, if a keyword is
 * malformed or cannot be combined. oneOf is anyOf. Where a negation has conditions on members beside unevaluatedProperties
 * the result may be stricter, never less strict.
 */
json_t *td_schema_merge(td_schema_merger *m, json_t *x, json_t *y);

/** Whether flattening would change a schema. */
bool td_schema_is_combined(const json_t *schema);

#endif
