/* Two JSON schemas as one that accepts what both accept. */
#ifndef TD_TEXT_GRAMMAR_SCHEMA_MERGE_H
#define TD_TEXT_GRAMMAR_SCHEMA_MERGE_H

#include <jansson.h>

#include "text/grammar/grammar_ast.h"

/** A document whose schemas are merged. */
typedef struct {
    td_gr_builder *b;    /* failures are reported to it */
    json_t        *root; /* borrowed: where references point to */
    json_t        *made; /* array: owns the schemas that merging made */
    unsigned       count;
} td_schema_merger;

/** What a reference within the document points to, borrowed; NULL with the failure reported. */
json_t *td_schema_resolve(td_schema_merger *m, const char *reference);

/**
 * The schema that accepts what x and y both accept. It has no $ref and no allOf at its top; conditions on members and items
 * become an allOf below. Borrowed from m; NULL, with the failure reported, if two keywords cannot be combined.
 */
json_t *td_schema_merge(td_schema_merger *m, json_t *x, json_t *y);

/** Whether a keyword does not change which texts are accepted. */
bool td_schema_is_annotation(const char *keyword);

#endif
