/*
 * JSON Schema (draft 2020-12, and what drafts 4 to 2019-09 write differently) as a grammar of the JSON texts that it
 * accepts.
 *
 * Members come in the order of `properties`, those that are only in `required` and additional ones after them. oneOf is
 * anyOf. What cannot be said by a grammar is refused by the keyword's name. Three things are ignored, and the builder is
 * warned: keywords and formats that no draft knows, and uniqueItems of values that cannot be listed.
 * docs/structured-output.md has the list.
 */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_H
#define TD_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar/grammar_ast.h"

/** Define rules for a schema and set b->root. Failures are in b->status. */
void td_gr_schema(td_gr_builder *b, const char *text, size_t len);

/** Likewise for a grammar of any JSON object. */
void td_gr_any_object(td_gr_builder *b);

/** Likewise for a grammar whose texts are the strings of a JSON array. */
void td_gr_choices(td_gr_builder *b, const char *text, size_t len);

#endif
