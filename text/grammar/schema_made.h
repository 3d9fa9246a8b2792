/* The schemas that are made of a document's: merged, negated, put together. */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_MADE_H
#define TD_TEXT_GRAMMAR_SCHEMA_MADE_H

#include <jansson.h>

#include "text/grammar/grammar_ast.h"

/** A document whose schemas are merged. */
typedef struct {
    td_gr_builder *b;    /* failures are reported to it */
    json_t        *root; /* borrowed: where references point to */
    json_t        *made; /* array: owns the schemas that merging made */
    unsigned       count;
} td_schema_merger;

/** Take over a schema that was made, NULL for lack of memory; borrowed from m then. */
json_t *td_schema_keep(td_schema_merger *m, json_t *made);

/** {"allOf": [x, y]}, a new reference. */
json_t *td_schema_both(json_t *x, json_t *y);

#endif
