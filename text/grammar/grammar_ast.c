#include "text/grammar/grammar_ast.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define BYTES_MAX ((size_t)4 << 20)
#define WARNINGS_MAX 1000 /* bytes, about */

void td_gr_open(td_gr_builder *b, td_error *err) {
    *b = (td_gr_builder){.err = err};
    td_gr_never(b); /* node 0 */
}

void td_gr_close(td_gr_builder *b) {
    for (size_t i = 0; i < b->n_rules; i++) free(b->rules[i].name);
    free(b->nodes);
    free(b->links);
    free(b->bytes);
    free(b->rules);
    free(b->name_index);
    free(b->warnings);
    *b = (td_gr_builder){0};
}

uint32_t td_gr_fail(td_gr_builder *b, td_status status, const char *fmt, ...) {
    if (b->status != TD_OK) return 0;
    char    text[TD_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    b->status = td_fail(b->err, status, "%s", text);
    return 0;
}

void td_gr_warn(td_gr_builder *b, const char *fmt, ...) {
    char    text[TD_ERROR_TEXT_MAX];
    size_t  have = b->warnings ? strlen(b->warnings) : 0;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0 || have > WARNINGS_MAX || (b->warnings && strstr(b->warnings, text))) return;
    char *grown = realloc(b->warnings, have + sizeof text + 3);
    if (!grown) return; /* whoever runs out of memory here does so soon after where it is an error */
    snprintf(grown + have, sizeof text + 3, "%s%s", have ? ", " : "", text);
    b->warnings = grown;
}

/* Room for n more items of a pool. */
static bool reserve(td_gr_builder *b, void **pool, size_t *room, size_t have, size_t n, size_t item, size_t limit) {
    if (b->status != TD_OK) return false;
    if (n > limit || have > limit - n) {
        td_gr_fail(b, TD_EINVAL, "the grammar is too large");
        return false;
    }
    if (have + n <= *room) return true;
    size_t grown = *room ? *room : 64;
    while (grown < have + n) grown *= 2;
    void *p = realloc(*pool, grown * item);
    if (!p) {
        td_gr_fail(b, TD_ENOMEM, "out of memory for a grammar");
        return false;
    }
    *pool = p;
    *room = grown;
    return true;
}

static uint32_t add_node(td_gr_builder *b, td_gr_node node) {
    if (node.depth > TD_GR_DEPTH_MAX)
        return td_gr_fail(b, TD_EINVAL, "the grammar is nested more than %d levels deep", TD_GR_DEPTH_MAX);
    if (!reserve(b, (void **)&b->nodes, &b->nodes_room, b->n_nodes, 1, sizeof *b->nodes, TD_GR_NODES_MAX)) return 0;
    b->nodes[b->n_nodes] = node;
    return (uint32_t)b->n_nodes++;
}

uint32_t td_gr_never(td_gr_builder *b) {
    return b->n_nodes ? 0 : add_node(b, (td_gr_node){.kind = TD_GR_NEVER});
}

uint32_t td_gr_empty(td_gr_builder *b) {
    return add_node(b, (td_gr_node){.kind = TD_GR_EMPTY});
}

uint32_t td_gr_byte(td_gr_builder *b, uint8_t lo, uint8_t hi) {
    return add_node(b, (td_gr_node){.kind = TD_GR_BYTE, .lo = lo, .hi = hi});
}

uint32_t td_gr_text(td_gr_builder *b, const char *text, size_t len) {
    if (len == 0) return td_gr_empty(b);
    if (!reserve(b, (void **)&b->bytes, &b->bytes_room, b->n_bytes, len, 1, BYTES_MAX)) return 0;
    memcpy(b->bytes + b->n_bytes, text, len);
    uint32_t at = add_node(b, (td_gr_node){.kind = TD_GR_BYTES, .first = (uint32_t)b->n_bytes, .n = (uint32_t)len});
    b->n_bytes += len;
    return at;
}

static uint32_t add_parent(td_gr_builder *b, td_gr_node node, const uint32_t *children, size_t n) {
    if (!reserve(b, (void **)&b->links, &b->links_room, b->n_links, n, sizeof *b->links, 4 * (size_t)TD_GR_NODES_MAX))
        return 0;
    node.first = (uint32_t)b->n_links;
    node.n = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        uint16_t depth = td_gr_is_child((td_gr_kind)node.kind, i) ? (uint16_t)(b->nodes[children[i]].depth + 1) : 0;
        if (depth > node.depth) node.depth = depth;
        b->links[b->n_links++] = children[i];
    }
    return add_node(b, node);
}

uint32_t td_gr_repeat(td_gr_builder *b, uint32_t child, uint32_t min, uint32_t max) {
    if (min == 1 && max == 1) return child;
    return add_parent(b, (td_gr_node){.kind = TD_GR_REPEAT, .min = min, .max = max}, &child, 1);
}

uint32_t td_gr_optional(td_gr_builder *b, uint32_t child) {
    return td_gr_repeat(b, child, 0, 1);
}

uint32_t td_gr_pair(td_gr_builder *b, td_gr_kind kind, uint32_t x, uint32_t y) {
    return add_parent(b, (td_gr_node){.kind = (uint8_t)kind}, (const uint32_t[]){x, y}, 2);
}

uint32_t td_gr_use(td_gr_builder *b, uint32_t rule) {
    return add_node(b, (td_gr_node){.kind = TD_GR_RULE, .first = rule});
}

void td_gr_add(td_gr_builder *b, td_gr_items *list, uint32_t node) {
    if (reserve(b, (void **)&list->at, &list->room, list->n, 1, sizeof *list->at, 2 * (size_t)TD_GR_NODES_MAX))
        list->at[list->n++] = node;
}

void td_gr_items_free(td_gr_items *list) {
    free(list->at);
    *list = (td_gr_items){0};
}

uint32_t td_gr_of(td_gr_builder *b, td_gr_kind kind, td_gr_items *list) {
    uint32_t node;
    if (list->n == 1 && kind != TD_GR_LIST)
        node = list->at[0];
    else if (list->n == 0)
        node = kind == TD_GR_SEQ ? td_gr_empty(b) : td_gr_never(b);
    else
        node = add_parent(b, (td_gr_node){.kind = (uint8_t)kind}, list->at, list->n);
    list->n = 0;
    return b->status == TD_OK ? node : 0;
}

void td_gr_add_edge_of(td_gr_builder *b, td_gr_items *list, uint32_t node, uint32_t from, uint32_t to) {
    td_gr_add(b, list, node);
    td_gr_add(b, list, from);
    td_gr_add(b, list, to);
}

uint32_t td_gr_graph(td_gr_builder *b, uint32_t n_states, td_gr_items *list) {
    uint32_t node = list->n ? add_parent(b, (td_gr_node){.kind = TD_GR_GRAPH, .min = n_states}, list->at, list->n) : 0;
    list->n = 0;
    return node;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static size_t name_hash(const char *name, size_t len) {
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < len; i++) h = (h ^ (uint8_t)name[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

static uint32_t add_rule(td_gr_builder *b, const char *name, size_t len) {
    if (!reserve(b, (void **)&b->rules, &b->rules_room, b->n_rules, 1, sizeof *b->rules, TD_GR_RULES_MAX)) return 0;
    char *copy = malloc(len + 1);
    if (!copy) return td_gr_fail(b, TD_ENOMEM, "out of memory for a grammar");
    memcpy(copy, name, len);
    copy[len] = 0;
    b->rules[b->n_rules] = (td_gr_rule){copy, UINT32_MAX};
    return (uint32_t)b->n_rules++;
}

static void index_name(td_gr_builder *b, uint32_t rule) {
    const char *name = b->rules[rule].name;
    size_t      i = name_hash(name, strlen(name)) & (b->name_slots - 1);
    while (b->name_index[i]) i = (i + 1) & (b->name_slots - 1);
    b->name_index[i] = rule + 1;
}

uint32_t td_gr_rule_named(td_gr_builder *b, const char *name, size_t len) {
    if (b->status != TD_OK) return 0;
    if (!b->name_index) {
        b->name_slots = 2 * (size_t)TD_GR_RULES_MAX;
        b->name_index = calloc(b->name_slots, sizeof *b->name_index);
        if (!b->name_index) return td_gr_fail(b, TD_ENOMEM, "out of memory for a grammar");
    }
    for (size_t i = name_hash(name, len) & (b->name_slots - 1); b->name_index[i]; i = (i + 1) & (b->name_slots - 1)) {
        uint32_t    rule = b->name_index[i] - 1;
        const char *other = b->rules[rule].name;
        if (strlen(other) == len && memcmp(other, name, len) == 0) return rule;
    }
    uint32_t rule = add_rule(b, name, len);
    if (b->status == TD_OK) index_name(b, rule);
    return rule;
}

uint32_t td_gr_rule_new(td_gr_builder *b, const char *what) {
    return add_rule(b, what, strlen(what));
}

void td_gr_define(td_gr_builder *b, uint32_t rule, uint32_t body) {
    if (b->status == TD_OK) b->rules[rule].body = body;
}
