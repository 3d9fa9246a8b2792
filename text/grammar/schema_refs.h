/* The references of a JSON schema, in one form. */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_REFS_H
#define TD_TEXT_GRAMMAR_SCHEMA_REFS_H

#include <jansson.h>

#include "text/grammar/grammar_ast.h"

/**
 * Turn each $ref that points into the document into `#` with a JSON pointer (RFC 6901) from the root. It may point by $id,
 * relative to the $id around it (RFC 3986), or by $anchor. A $dynamicRef becomes a $ref where the document has one
 * $dynamicAnchor of its name. Those that point elsewhere stay as they are. Failures are in b->status.
 */
void td_schema_link(td_gr_builder *b, json_t *root);

/** What a reference `#` or `#/…` points to, borrowed; NULL with the failure reported, also for other references. */
json_t *td_schema_resolve(td_gr_builder *b, json_t *root, const char *reference);

#endif
