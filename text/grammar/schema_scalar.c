/* Strings and numbers of a JSON schema. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/json_text.h"
#include "text/grammar/grammar_class.h"
#include "text/grammar/grammar_regex.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/schema_pattern.h"

/* ---- strings ---- */

#define PATH "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define HEX "[0-9a-fA-F]{1,4}"

static const struct {
    const char *name, *regex;
} FORMATS[] = {
    {"date", "^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])$"},
    {"time", "^([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)$"},
    {"date-time",
     "^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])T([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3])"
     ":[0-5]\\d)$"},
    {"duration",
     "^P((\\d+Y)?(\\d+M)?\\d+D|(\\d+Y)?\\d+M|\\d+Y|((\\d+Y)?(\\d+M)?(\\d+D)?)T((\\d+H)?(\\d+M)?\\d+S|(\\d+H)?\\d+M|\\d+H)|"
     "\\d+W)$"},
    {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)$"},
    {"ipv6",
     "^((" HEX ":){7}" HEX "|(" HEX ":){1,7}:|:(:" HEX "){1,7}|(" HEX ":){1,6}:" HEX "|(" HEX ":){1,4}(:" HEX "){1,3}|::)$"},
    {"email", "^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\\.)+[A-Za-z]{2,}$"},
    {"hostname", "^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$"},
    {"uri",
     "^[A-Za-z][A-Za-z0-9+.-]*:(//([A-Za-z0-9._~-]+@)?[A-Za-z0-9._~-]+(:[0-9]{1,5})?(/" PATH "*)*|/?" PATH "+(/" PATH "*)*)"
     "([?](" PATH "|[/?])*)?(#(" PATH "|[/?])*)?$"},
    {"json-pointer", "^(/([^~/]|~[01])*)*$"},
};

static uint32_t format_node(td_schema_compiler *c, const json_t *format) {
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (!strcmp(name, FORMATS[i].name)) return td_gr_regex_json(c->b, FORMATS[i].regex, strlen(FORMATS[i].regex));
    if (!name) return td_gr_fail(c->b, TD_EINVAL, "'format' must be a string");
    td_gr_warn(c->b, "'format': '%.60s'", name);
    return UINT32_MAX;
}

/* Both conditions; UINT32_MAX: none. */
static uint32_t both(td_gr_builder *b, uint32_t x, uint32_t y) {
    return x == UINT32_MAX ? y : y == UINT32_MAX ? x : td_gr_pair(b, TD_GR_BOTH, x, y);
}

/* The inside of a string by pattern, format and lengths; UINT32_MAX: any. */
static uint32_t conditions(td_schema_compiler *c, const json_t *schema) {
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format"), *more;
    uint32_t      min = 0, max = TD_GR_NO_MAX, body = pattern ? td_schema_pattern(c->b, pattern) : UINT32_MAX;
    size_t        i;
    if (format) body = both(c->b, body, format_node(c, format));
    if (!td_schema_read_count(c, schema, "minLength", &min) || !td_schema_read_count(c, schema, "maxLength", &max)) return 0;
    if (min > max) return td_gr_never(c->b);
    if (min > 0 || max != TD_GR_NO_MAX)
        body = both(c->b, body, td_gr_repeat(c->b, td_gr_use(c->b, c->json.character), min, max));
    json_array_foreach(json_object_get(schema, "+string"), i, more) body = both(c->b, body, conditions(c, more));
    return body;
}

/* Strings that a schema of -string accepts, spelled in any way: by conditions, or by enum. */
static uint32_t excluded(td_schema_compiler *c, const json_t *schema) {
    const json_t *values = json_object_get(schema, "enum"), *value;
    td_gr_items   list = {0};
    size_t        i;
    if (!values) {
        uint32_t body = conditions(c, schema);
        return body == UINT32_MAX ? td_gr_use(c->b, c->json.string) : td_schema_quoted(c->b, body);
    }
    json_array_foreach(values, i, value)
        td_gr_add(c->b, &list, td_gr_json_text(c->b, json_string_value(value), json_string_length(value)));
    uint32_t node = td_gr_of(c->b, TD_GR_ALT, &list);
    td_gr_items_free(&list);
    return node;
}

static uint32_t string_body(td_schema_compiler *c, const json_t *schema) {
    td_gr_builder *b = c->b;
    const json_t  *others = json_object_get(schema, "-string"), *other;
    uint32_t       body = conditions(c, schema), node;
    size_t         i;
    if (!others) return body == UINT32_MAX ? td_gr_use(b, c->json.string) : td_schema_quoted(b, body);
    td_gr_class all = {0};
    td_gr_class_add(b, &all, 0, TD_GR_CHAR_MAX);
    /* Spelled as what is taken out, so that none of it is left in another spelling. */
    node = td_schema_quoted(b, td_gr_repeat(b, td_gr_class_json(b, &all), 0, TD_GR_NO_MAX));
    td_gr_class_free(&all);
    if (body != UINT32_MAX) node = td_gr_pair(b, TD_GR_BOTH, node, td_schema_quoted(b, body));
    json_array_foreach(others, i, other) node = td_gr_pair(b, TD_GR_MINUS, node, excluded(c, other));
    return node;
}

/* Strings with the same conditions share a rule. */
uint32_t td_schema_string(td_schema_compiler *c, json_t *schema) {
    static const char *const keys[] = {"pattern", "format", "minLength", "maxLength", "+string", "-string"};
    td_gr_builder           *b = c->b;
    json_t                  *own = json_object();
    int                      bad = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(schema, keys[i]);
        if (value) bad |= json_object_set(own, keys[i], value);
    }
    bool  is_free = json_object_size(own) == 0;
    char *name = bad ? NULL : td_json_dump(own, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(own);
    if (!name) return td_gr_fail(b, TD_ENOMEM, "out of memory for a schema");
    size_t   before = b->n_rules;
    uint32_t rule = is_free ? c->json.string : td_gr_rule_named(b, name, strlen(name));
    free(name);
    if (b->status == TD_OK && rule == before) td_gr_define(b, rule, string_body(c, schema));
    return td_gr_use(b, rule);
}

/* ---- numbers ---- */

/* An end of an interval; a stricter one replaces what is there. */
static void read_bound(td_schema_compiler *c, const json_t *schema, const char *key, bool lower, bool open, bool whole,
                       td_gr_bound *to) {
    const json_t *v = json_object_get(schema, key);
    td_gr_bound   bound = {.is_given = true, .is_open = open};
    if (!v) return;
    if (!json_is_number(v)) {
        td_gr_fail(c->b, TD_EINVAL, "'%s' must be a number", key);
        return;
    }
    double  x = json_number_value(v);
    json_t *rounded =
        whole && x != floor(x) && fabs(x) < 9e18 ? json_integer((json_int_t)(lower ? ceil(x) : floor(x))) : NULL;
    if (rounded) bound.is_open = false;
    if (!td_gr_decimal_of(rounded ? rounded : v, &bound.at))
        td_gr_fail(c->b, TD_ENOTSUP, "'%s': %g is not supported: it is above 9e18, or has more than %d decimals", key, x,
                   TD_GR_FRACTION_MAX);
    json_decref(rounded);
    int than = to->is_given ? td_gr_decimal_compare(&bound.at, &to->at) : lower ? 1 : -1;
    if (than == 0)
        to->is_open = to->is_open || bound.is_open;
    else if ((than > 0) == lower)
        *to = bound;
}

/* In draft 4 exclusiveMinimum is a switch of minimum. */
uint32_t td_schema_number(td_schema_compiler *c, json_t *schema, bool whole) {
    td_gr_bound   min = {0}, max = {0};
    td_gr_decimal step;
    const json_t *low = json_object_get(schema, "exclusiveMinimum"), *high = json_object_get(schema, "exclusiveMaximum");
    const json_t *of = json_object_get(schema, "multipleOf");
    read_bound(c, schema, "minimum", true, json_is_true(low), whole, &min);
    read_bound(c, schema, "maximum", false, json_is_true(high), whole, &max);
    if (!json_is_boolean(low)) read_bound(c, schema, "exclusiveMinimum", true, true, whole, &min);
    if (!json_is_boolean(high)) read_bound(c, schema, "exclusiveMaximum", false, true, whole, &max);
    bool     bounded = min.is_given || max.is_given;
    uint32_t node = bounded ? td_gr_json_interval(&c->json, &min, &max, !whole)
                    : whole ? td_gr_json_integer(&c->json)
                            : td_gr_use(c->b, c->json.number);
    if (!of) return node;
    if (!json_is_number(of) || json_number_value(of) <= 0)
        return td_gr_fail(c->b, TD_EINVAL, "'multipleOf' must be a number above 0");
    if (!td_gr_decimal_of(of, &step))
        return td_gr_fail(c->b, TD_ENOTSUP, "'multipleOf': %g is not supported", json_number_value(of));
    uint32_t multiple = td_gr_json_multiple(&c->json, &step, !whole);
    return bounded ? td_gr_pair(c->b, TD_GR_BOTH, node, multiple) : multiple;
}
