#include "text/grammar/schema_refs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema_keywords.h"

#define URI_MAX 1024
#define DEPTH_MAX 128 /* schemas in schemas */

/* A name for a place in the document: a URI without fragment (`name` NULL), or one with an anchor. */
typedef struct {
    char *uri, *name, *pointer; /* owned */
    bool  is_dynamic;
} target;

typedef struct {
    td_gr_builder *b;
    target        *targets;
    size_t         n, room;
    bool           rewrites; /* the second walk: all targets are known */
} linker;

/* The resource around a schema: the nearest schema with an $id, or the root. */
typedef struct {
    const char *uri, *pointer;
} resource;

/* ---- URIs ---- */

static bool has_scheme(const char *uri) {
    size_t n = strspn(uri, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
    return n > 0 && uri[n] == ':';
}

/* Where the path of a URI with an authority begins; where there is none, its end. */
static size_t path_of(const char *uri) {
    const char *authority = strstr(uri, "://"), *path = authority ? strchr(authority + 3, '/') : NULL;
    return path ? (size_t)(path - uri) : strlen(uri);
}

/* Take out "." and ".." from a path, which begins at `from`. */
static void remove_dots(char *uri, size_t from) {
    char *out = uri + from;
    for (const char *at = uri + from; *at;) {
        size_t n = 1 + strcspn(at + 1, "/"); /* a segment with its slash before it */
        if (n == 3 && !strncmp(at, "/..", 3)) {
            while (out > uri + from && *--out != '/') {
            }
        } else if (n != 2 || strncmp(at, "/.", 2) != 0) {
            memmove(out, at, n);
            out += n;
        }
        at += n;
    }
    *out = 0;
}

/* A reference without its fragment, against a base. @return false: it is too long. */
static bool join(const char *base, const char *reference, size_t len, char out[URI_MAX]) {
    char   given[URI_MAX];
    size_t keep = 0;
    if (len >= sizeof given) return false;
    memcpy(given, reference, len);
    given[len] = 0;
    if (len == 0)
        keep = strlen(base);
    else if (!has_scheme(given) && given[0] == '/')
        keep = path_of(base);
    else if (!has_scheme(given) && strchr(base, '/'))
        keep = (size_t)(strrchr(base, '/') - base) + 1;
    if (snprintf(out, URI_MAX, "%.*s%s", (int)keep, base, given) >= URI_MAX) return false;
    if (len && out[path_of(out)]) remove_dots(out, path_of(out));
    return true;
}

/* ---- targets ---- */

static void add_target(linker *l, const char *uri, const char *name, const char *pointer, bool is_dynamic) {
    if (l->n == l->room) {
        size_t  room = l->room ? 2 * l->room : 16;
        target *more = realloc(l->targets, room * sizeof *more);
        if (!more) {
            td_gr_fail(l->b, TD_ENOMEM, "out of memory for a schema");
            return;
        }
        l->targets = more;
        l->room = room;
    }
    l->targets[l->n++] = (target){strdup(uri), name ? strdup(name) : NULL, strdup(pointer), is_dynamic};
}

static const target *find_target(const linker *l, const char *uri, const char *name, size_t *n_dynamic) {
    const target *found = NULL;
    *n_dynamic = 0;
    for (size_t i = 0; i < l->n; i++) {
        const target *t = &l->targets[i];
        if (!t->uri || !t->pointer || (name != NULL) != (t->name != NULL)) continue;
        if (name && strcmp(t->name, name) != 0) continue;
        *n_dynamic += t->is_dynamic;
        if (!found && !strcmp(t->uri, uri)) found = t;
    }
    return found;
}

/* ---- the walk ---- */

static void walk(linker *l, json_t *schema, const char *pointer, resource in, unsigned depth);

/* Put the reference `key` of a schema into the form of a pointer from the root. */
static void rewrite(linker *l, json_t *schema, const char *key, resource in) {
    const char *reference = json_string_value(json_object_get(schema, key));
    char        uri[URI_MAX];
    size_t      n_dynamic, at = reference ? strcspn(reference, "#") : 0;
    bool        is_dynamic = !strcmp(key, "$dynamicRef");
    if (!reference || (is_dynamic && json_object_get(schema, "$ref")) || !join(in.uri, reference, at, uri)) return;
    const char   *fragment = reference[at] ? reference + at + 1 : "";
    bool          named = *fragment && *fragment != '/';
    const target *to = find_target(l, uri, named ? fragment : NULL, &n_dynamic);
    const char   *pointer = to ? to->pointer : at == 0 && !named ? in.pointer : NULL;
    if (!pointer || (is_dynamic && to && to->is_dynamic && n_dynamic > 1)) return;
    if (json_object_set_new(schema, "$ref", json_sprintf("#%s%s", pointer, named ? "" : fragment)) != 0)
        td_gr_fail(l->b, TD_ENOMEM, "out of memory for a schema");
    else if (is_dynamic)
        json_object_del(schema, key);
}

/* A child's pointer: `%` is escaped, too, because references are URIs. */
static void walk_child(linker *l, json_t *child, const char *pointer, const char *step, resource in, unsigned depth) {
    size_t room = strlen(pointer) + 3 * strlen(step) + 2, n = strlen(pointer);
    char  *to = malloc(room);
    if (!to) {
        td_gr_fail(l->b, TD_ENOMEM, "out of memory for a schema");
        return;
    }
    memcpy(to, pointer, n);
    to[n++] = '/';
    for (; *step; step++) {
        const char *escaped = *step == '~' ? "~0" : *step == '/' ? "~1" : *step == '%' ? "%25" : NULL;
        n += (size_t)snprintf(to + n, room - n, escaped ? "%s" : "%.1s", escaped ? escaped : step);
    }
    to[n] = 0;
    walk(l, child, to, in, depth);
    free(to);
}

/* All schemas in the value of a keyword, whose pointer this is. */
static void walk_value(linker *l, const td_keyword *keyword, json_t *value, const char *pointer, resource in,
                       unsigned depth) {
    const char *name = NULL;
    json_t     *child;
    size_t      i;
    char        number[24];
    if (json_is_array(value) && keyword->holds != TD_HOLDS_MAP) {
        json_array_foreach(value, i, child) {
            snprintf(number, sizeof number, "%zu", i);
            walk_child(l, child, pointer, number, in, depth);
        }
    } else if (keyword->holds == TD_HOLDS_MAP) {
        json_object_foreach(value, name, child) walk_child(l, child, pointer, name, in, depth);
    } else {
        walk(l, value, pointer, in, depth);
    }
}

static void name_schema(linker *l, const json_t *schema, const char *pointer, resource in) {
    const char *anchor = json_string_value(json_object_get(schema, "$anchor"));
    const char *dynamic = json_string_value(json_object_get(schema, "$dynamicAnchor"));
    if (anchor) add_target(l, in.uri, anchor, pointer, false);
    if (dynamic) add_target(l, in.uri, dynamic, pointer, true);
}

static void walk(linker *l, json_t *schema, const char *pointer, resource in, unsigned depth) {
    const char *id = json_string_value(json_object_get(schema, "$id")), *key = NULL;
    char        uri[URI_MAX], path[URI_MAX];
    json_t     *value;
    void       *next;
    if (depth > DEPTH_MAX || !json_is_object(schema) || l->b->status != TD_OK) return;
    if (id && id[0] == '#' && !l->rewrites) add_target(l, in.uri, id + 1, pointer, false); /* draft 6 and 7 */
    if (id && id[0] != '#' && join(in.uri, id, strcspn(id, "#"), uri)) {
        in = (resource){uri, pointer};
        if (!l->rewrites) add_target(l, uri, NULL, pointer, false);
    }
    if (l->rewrites) {
        rewrite(l, schema, "$ref", in);
        rewrite(l, schema, "$dynamicRef", in);
    } else {
        name_schema(l, schema, pointer, in);
    }
    json_object_foreach_safe(schema, next, key, value) {
        const td_keyword *keyword = td_keyword_of(key);
        if (keyword->holds == TD_HOLDS_NONE) continue;
        if (snprintf(path, sizeof path, "%s/%s", pointer, key) >= (int)sizeof path) continue;
        walk_value(l, keyword, value, path, in, depth + 1);
    }
}

void td_schema_link(td_gr_builder *b, json_t *root) {
    linker l = {.b = b};
    walk(&l, root, "", (resource){"", ""}, 0);
    l.rewrites = true;
    walk(&l, root, "", (resource){"", ""}, 0);
    for (size_t i = 0; i < l.n; i++) {
        free(l.targets[i].uri);
        free(l.targets[i].name);
        free(l.targets[i].pointer);
    }
    free(l.targets);
}

/* ---- pointers ---- */

/* Read one step of a pointer into `name`, unescaped, %XX too. @return what is behind it. */
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

json_t *td_schema_resolve(td_gr_builder *b, json_t *root, const char *reference) {
    json_t     *at = root;
    const char *p = reference + 1;
    char        name[512];
    if (reference[0] != '#' || (*p && *p != '/')) {
        td_gr_fail(b, TD_ENOTSUP, "'$ref': '%.100s' is not in the schema; references to other documents are not followed",
                   reference);
        return NULL;
    }
    while (*p && at) {
        p = pointer_step(p + 1, name, sizeof name);
        char *end;
        long  i = strtol(name, &end, 10);
        at = json_is_array(at) ? (*name && !*end && i >= 0 ? json_array_get(at, (size_t)i) : NULL)
                               : json_object_get(at, name);
    }
    if (!at) td_gr_fail(b, TD_EINVAL, "'$ref': '%.100s' points to nothing", reference);
    return at;
}
