#include "text/grammar/schema_merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define MERGES_MAX 20000
#define DEPTH_MAX 64 /* of references to references, and allOf in allOf */

bool td_schema_is_annotation(const char *keyword) {
    static const char *const names[] = {
        "$schema",     "$id",      "id",          "$comment",        "$anchor",          "$defs",
        "definitions", "title",    "description", "default",         "examples",         "example",
        "deprecated",  "readOnly", "writeOnly",   "contentEncoding", "contentMediaType", "discriminator"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(keyword, names[i])) return true;
    return strncmp(keyword, "x-", 2) == 0;
}

/* ---- references ------------------------------------------------------------------------------- */

/* Read one step of a JSON pointer (RFC 6901) into `name`, unescaped, %XX too, since it is in a URI. @return what is behind
 * it. */
static const char *pointer_step(const char *at, char *name, size_t room) {
    size_t n = 0;
    for (; *at && *at != '/'; at++) {
        char     c = *at;
        unsigned hex;
        if (c == '~' && (at[1] == '0' || at[1] == '1'))
            c = *++at == '0' ? '~' : '/';
        else if (c == '%' && sscanf(at + 1, "%2x", &hex) == 1 && hex && at[1] && at[2])
            c = (char)hex, at += 2;
        if (n + 1 < room) name[n++] = c;
    }
    name[n] = 0;
    return at;
}

json_t *td_schema_resolve(td_schema_merger *m, const char *reference) {
    json_t     *at = m->root;
    const char *p = reference + 1;
    char        name[512];
    if (reference[0] != '#' || (*p && *p != '/')) {
        td_gr_fail(m->b, TD_ENOTSUP, "'$ref': '%.100s' is not supported; only '#' and '#/…' are", reference);
        return NULL;
    }
    while (*p && at) {
        p = pointer_step(p + 1, name, sizeof name);
        char *end;
        long  i = strtol(name, &end, 10);
        at = json_is_array(at) ? (*name && !*end && i >= 0 ? json_array_get(at, (size_t)i) : NULL)
                               : json_object_get(at, name);
    }
    if (!at) td_gr_fail(m->b, TD_EINVAL, "'$ref': '%.100s' points to nothing", reference);
    return at;
}

/* ---- keywords --------------------------------------------------------------------------------- */

static json_t *keep(td_schema_merger *m, json_t *made) {
    if (++m->count > MERGES_MAX)
        td_gr_fail(m->b, TD_EINVAL, "the schema combines others too often");
    else if (made && json_array_append(m->made, made) == 0) {
        json_decref(made);
        return made;
    } else {
        td_gr_fail(m->b, TD_ENOMEM, "out of memory for a schema");
    }
    json_decref(made);
    return NULL;
}

static bool put(td_schema_merger *m, json_t *to, const char *key, json_t *value) { /* takes value */
    if (value && json_object_set_new(to, key, value) == 0) return true;
    td_gr_fail(m->b, TD_ENOMEM, "out of memory for a schema");
    return false;
}

static json_t *both_of(json_t *x, json_t *y) {
    return json_pack("{s:[O,O]}", "allOf", x, y);
}

static bool has_type(const json_t *types, const char *name) {
    if (json_is_string(types)) return !strcmp(json_string_value(types), name);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *s = json_string_value(json_array_get(types, i));
        if (s && !strcmp(s, name)) return true;
    }
    return false;
}

/* `made`, or NULL if memory was short for a part of it. */
static json_t *whole(json_t *made, int bad) {
    if (!bad) return made;
    json_decref(made);
    return NULL;
}

static json_t *common_types(const json_t *x, const json_t *y) {
    static const char *const names[] = {"null", "boolean", "object", "array", "number", "string"};
    json_t                  *out = json_array();
    int                      bad = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (has_type(x, names[i]) && has_type(y, names[i])) bad |= json_array_append_new(out, json_string(names[i]));
    bool x_whole = has_type(x, "integer") || has_type(x, "number"),
         y_whole = has_type(y, "integer") || has_type(y, "number");
    if (x_whole && y_whole && !has_type(out, "number")) bad |= json_array_append_new(out, json_string("integer"));
    return whole(out, bad);
}

static bool contains(const json_t *list, const json_t *value) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), value)) return true;
    return false;
}

/* Members of both lists, or of either. */
static json_t *combine_lists(const json_t *x, const json_t *y, bool either) {
    json_t *out = json_array();
    int     bad = 0;
    for (size_t i = 0; i < json_array_size(x); i++)
        if (either || contains(y, json_array_get(x, i))) bad |= json_array_append(out, json_array_get(x, i));
    for (size_t i = 0; either && i < json_array_size(y); i++)
        if (!contains(x, json_array_get(y, i))) bad |= json_array_append(out, json_array_get(y, i));
    return whole(out, bad);
}

/* What additionalProperties says of a member that only the other schema names. */
static json_t *member_of_other(json_t *additional, json_t *schema) {
    if (!additional || json_is_true(additional)) return json_incref(schema);
    return json_is_false(additional) ? json_false() : both_of(additional, schema);
}

static bool merge_properties(td_schema_merger *m, json_t *to, json_t *x, json_t *y) {
    json_t     *px = json_object_get(x, "properties"), *py = json_object_get(y, "properties"), *value;
    json_t     *ax = json_object_get(x, "additionalProperties"), *ay = json_object_get(y, "additionalProperties");
    const char *key = NULL;
    if (!px && !py) return true;
    json_t *out = json_object();
    int     bad = 0;
    json_object_foreach(px, key, value) {
        json_t *other = json_object_get(py, key);
        bad |= json_object_set_new(out, key, other ? both_of(value, other) : member_of_other(ay, value));
    }
    json_object_foreach(py, key, value) {
        if (!json_object_get(px, key)) bad |= json_object_set_new(out, key, member_of_other(ax, value));
    }
    return put(m, to, "properties", whole(out, bad));
}

/* Merge a keyword that both schemas have, with different values. */
static bool merge_keyword(td_schema_merger *m, json_t *to, const char *key, json_t *x, json_t *y) {
    static const char *const lower[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    static const char *const upper[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    for (size_t i = 0; i < sizeof lower / sizeof *lower; i++) {
        bool is_lower = !strcmp(key, lower[i]), is_upper = !strcmp(key, upper[i]);
        if ((is_lower || is_upper) && json_is_number(x) && json_is_number(y))
            return put(m, to, key, json_incref((json_number_value(x) > json_number_value(y)) == is_lower ? x : y));
    }
    if (!strcmp(key, "type")) return put(m, to, key, common_types(x, y));
    if (!strcmp(key, "required")) return put(m, to, key, combine_lists(x, y, true));
    if (!strcmp(key, "enum")) return put(m, to, key, combine_lists(x, y, false));
    if (!strcmp(key, "additionalProperties") || !strcmp(key, "items")) return put(m, to, key, both_of(x, y));
    td_gr_fail(m->b, TD_ENOTSUP, "'%.60s': two of them cannot be combined", key);
    return false;
}

/* Which items `items` is about depends on the keywords beside it: those of two schemas can be joined only where both have
 * nothing else. */
static bool refuse_items(td_schema_merger *m, const json_t *x, const json_t *y) {
    static const char *const names[] = {"items", "prefixItems", "additionalItems"};
    const char              *in_x = NULL, *in_y = NULL;
    bool                     simple = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *vx = json_object_get(x, names[i]), *vy = json_object_get(y, names[i]);
        simple = simple && (i == 0 ? !json_is_array(vx) && !json_is_array(vy) : !vx && !vy);
        in_x = vx ? names[i] : in_x;
        in_y = vy ? names[i] : in_y;
    }
    if (simple || !in_x || !in_y) return false;
    td_gr_fail(m->b, TD_ENOTSUP, "'%s' and '%s' of schemas that are combined are not supported", in_x, in_y);
    return true;
}

static json_t *merge_plain(td_schema_merger *m, json_t *x, json_t *y) {
    if (refuse_items(m, x, y)) return NULL;
    json_t     *out = json_object(), *value;
    const char *key = NULL;
    bool        done = out != NULL;
    json_object_foreach(x, key, value) {
        if (!td_schema_is_annotation(key) && !json_object_get(y, key)) done = done && put(m, out, key, json_incref(value));
    }
    json_object_foreach(y, key, value) {
        json_t *other = json_object_get(x, key);
        if (td_schema_is_annotation(key)) continue;
        if (!other || json_equal(other, value))
            done = done && put(m, out, key, json_incref(value));
        else if (strcmp(key, "properties") != 0)
            done = done && merge_keyword(m, out, key, other, value);
    }
    done = done && merge_properties(m, out, x, y);
    if (done) return keep(m, out);
    if (!out) td_gr_fail(m->b, TD_ENOMEM, "out of memory for a schema");
    json_decref(out);
    return NULL;
}

/* ---- schemas ---------------------------------------------------------------------------------- */

static json_t *without(td_schema_merger *m, const json_t *schema, const char *key) {
    json_t *copy = json_copy((json_t *)schema);
    if (copy) json_object_del(copy, key);
    return keep(m, copy);
}

static json_t *merge(td_schema_merger *m, json_t *x, json_t *y, unsigned depth);

/* A schema with its $ref and allOf put in. */
static json_t *flatten(td_schema_merger *m, json_t *schema, unsigned depth) {
    json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    if (m->b->status != TD_OK || !schema) return NULL;
    if (depth > DEPTH_MAX) {
        td_gr_fail(m->b, TD_ENOTSUP, "'%s': it refers to itself, or is nested more than %d deep", ref ? "$ref" : "allOf",
                   DEPTH_MAX);
        return NULL;
    }
    if (ref) {
        json_t *target = json_is_string(ref) ? td_schema_resolve(m, json_string_value(ref)) : NULL;
        if (!target) td_gr_fail(m->b, TD_EINVAL, "'$ref' must be a string");
        json_t *rest = target ? without(m, schema, "$ref") : NULL;
        return rest ? merge(m, target, rest, depth + 1) : NULL;
    }
    if (all) {
        json_t *out = without(m, schema, "allOf");
        if (!json_is_array(all)) td_gr_fail(m->b, TD_EINVAL, "'allOf' must be a list of schemas");
        for (size_t i = 0; out && i < json_array_size(all); i++) out = merge(m, out, json_array_get(all, i), depth + 1);
        return out;
    }
    return schema;
}

static json_t *merge(td_schema_merger *m, json_t *x, json_t *y, unsigned depth) {
    x = flatten(m, x, depth);
    y = flatten(m, y, depth);
    if (!x || !y || m->b->status != TD_OK) return NULL;
    if (json_is_false(x) || json_is_true(y)) return x;
    if (json_is_false(y) || json_is_true(x)) return y;
    if (!json_is_object(x) || !json_is_object(y)) {
        td_gr_fail(m->b, TD_EINVAL, "a schema must be an object, true or false");
        return NULL;
    }
    return merge_plain(m, x, y);
}

json_t *td_schema_merge(td_schema_merger *m, json_t *x, json_t *y) {
    return merge(m, x, y, 0);
}
