/* The negation of a JSON schema. */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_NOT_H
#define TD_TEXT_GRAMMAR_SCHEMA_NOT_H

#include "text/grammar/schema_made.h"

/** A schema, not flat, that accepts what this one does not. Borrowed from m; NULL with the failure reported: it names the
 * keyword that cannot be negated. */
json_t *td_schema_not(td_schema_merger *m, json_t *schema, unsigned depth);

#endif
