#include "text/grammar/schema_pattern.h"

#include <stdlib.h>
#include <string.h>

#include "core/files/json_text.h"
#include "text/grammar/grammar_matcher.h"
#include "text/grammar/grammar_regex.h"

uint32_t td_schema_quoted(td_gr_builder *b, uint32_t inside) {
    uint32_t quote = td_gr_byte(b, '"', '"');
    return td_gr_pair(b, TD_GR_SEQ, quote, td_gr_pair(b, TD_GR_SEQ, inside, quote));
}

/* Failures in a pattern name it, so that the sender finds it in a large schema. */
uint32_t td_schema_pattern(td_gr_builder *b, const json_t *pattern) {
    if (!json_is_string(pattern)) return td_gr_fail(b, TD_EINVAL, "'pattern' must be a string");
    td_error *err = b->err, cause = {0};
    bool      was_right = b->status == TD_OK;
    b->err = &cause;
    uint32_t node = td_gr_regex_json(b, json_string_value(pattern), json_string_length(pattern));
    b->err = err;
    if (was_right && b->status != TD_OK) {
        td_status st = b->status;
        b->status = TD_OK;
        td_gr_fail(b, st, "'pattern': '%.120s': %.200s", json_string_value(pattern), cause.text);
    }
    return node;
}

/* The pattern as a grammar of its own, which the name's text is tried on. */
bool td_schema_name_matches(td_gr_builder *b, const char *pattern, const char *name) {
    td_gr_builder own;
    td_gr_pda     pda = {0};
    td_gr_matcher m;
    bool          matches = false;
    json_t       *source = json_string(pattern), *text = json_string(name);
    char         *spelled = text ? td_json_dump(text, JSON_ENCODE_ANY) : NULL;
    td_gr_open(&own, b->err);
    own.root = td_gr_rule_new(&own, "pattern");
    if (!source || !spelled) td_gr_fail(&own, TD_ENOMEM, "out of memory for a schema");
    td_gr_define(&own, own.root, td_schema_quoted(&own, source ? td_schema_pattern(&own, source) : 0));
    if (own.status == TD_OK) td_gr_pda_make(&own, &pda);
    if (own.status == TD_OK && td_gr_matcher_open(&m, &pda) == TD_OK) {
        size_t n = strlen(spelled);
        matches = td_gr_matcher_advance(&m, spelled, n) == n && m.sets[m.current].may_end;
        td_gr_matcher_close(&m);
    }
    if (own.status != TD_OK && b->status == TD_OK) b->status = own.status;
    td_gr_pda_free(&pda);
    td_gr_close(&own);
    free(spelled);
    json_decref(source);
    json_decref(text);
    return matches;
}
