/* What the parts of the compiler of JSON schemas share. */
#include "text/grammar/schema_compiler.h"

#include <math.h>

#include "text/grammar/grammar_class.h"
#include "text/grammar/schema_keywords.h"

uint32_t td_schema_compile_both(td_schema_compiler *c, json_t *x, json_t *y) {
    if (json_is_true(x) || json_is_false(y)) return c->compile(c, y);
    if (json_is_true(y) || json_is_false(x)) return c->compile(c, x);
    json_t *both = td_schema_keep(&c->merger, td_schema_both(x, y));
    return both ? c->compile(c, both) : 0;
}

uint32_t td_schema_as_rule(td_schema_compiler *c, const char *what, uint32_t body) {
    uint32_t rule = td_gr_rule_new(c->b, what);
    td_gr_define(c->b, rule, body);
    return td_gr_use(c->b, rule);
}

bool td_schema_read_count(td_schema_compiler *c, const json_t *schema, const char *key, uint32_t *to) {
    const json_t *v = json_object_get(schema, key);
    double        x = json_number_value(v);
    if (!v) return c->b->status == TD_OK;
    if (!json_is_number(v) || x < 0 || x != floor(x))
        td_gr_fail(c->b, TD_EINVAL, "'%s' must be a whole number of at least 0", key);
    else if (x > TD_GR_COUNT_MAX)
        td_gr_fail(c->b, TD_ENOTSUP, "'%s': %g is more than %u", key, x, TD_GR_COUNT_MAX);
    else
        *to = (uint32_t)x;
    return c->b->status == TD_OK;
}

unsigned td_schema_types(td_schema_compiler *c, const json_t *schema) {
    const json_t *v = json_object_get(schema, "type");
    unsigned      types = 0;
    if (!v) return TD_SCHEMA_ALL;
    for (size_t i = 0; i < (json_is_array(v) ? json_array_size(v) : 1); i++) {
        const json_t *name = json_is_array(v) ? json_array_get(v, i) : v;
        unsigned      bit = td_schema_type_bit(name);
        if (!bit)
            td_gr_fail(c->b, TD_EINVAL, "'type': '%.60s' is not a type",
                       json_is_string(name) ? json_string_value(name) : "(not a string)");
        types |= bit;
    }
    return types & TD_SCHEMA_NUMBER ? types & ~(unsigned)TD_SCHEMA_INTEGER : types;
}
