/* Patterns of a JSON schema: which strings match one. */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_PATTERN_H
#define TD_TEXT_GRAMMAR_SCHEMA_PATTERN_H

#include <jansson.h>

#include "text/grammar/grammar_ast.h"

/** The node of the insides of the JSON strings that match. */
uint32_t td_schema_pattern(td_gr_builder *b, const json_t *pattern);

/** The node of JSON strings with this inside. */
uint32_t td_schema_quoted(td_gr_builder *b, uint32_t inside);

/** Whether a pattern matches somewhere in a name. */
bool td_schema_name_matches(td_gr_builder *b, const char *pattern, const char *name);

#endif
