#include "server/request/hidden_text.h"

#include <string.h>

#include "core/error.h"
#include "server/api/json_writer.h"

/* U+FDD0 + i, i < 32, in UTF-8: EF B7 90 + i. */
#define FIRST "\xef\xb7\x90"
#define N_NONCHARACTERS 32

static void look_at(td_hidden_text *h, const char *s, size_t len) {
    h->occurs = h->occurs || memmem(s, len, h->marker, h->marker_len);
    for (const char *at = s, *end = s + len; (at = memmem(at, (size_t)(end - at), FIRST, 2)) && end - at > 2; at += 2) {
        unsigned i = (unsigned char)at[2] - (unsigned char)FIRST[2];
        if (i < N_NONCHARACTERS) h->taken |= (uint32_t)1 << i;
    }
}

void td_hidden_look(td_hidden_text *h, const json_t *v) {
    const char   *key;
    const json_t *value;
    size_t        i;
    if (json_is_string(v)) look_at(h, json_string_value(v), json_string_length(v));
    json_array_foreach(v, i, value) td_hidden_look(h, value);
    json_object_foreach((json_t *)v, key, value) {
        look_at(h, key, strlen(key));
        td_hidden_look(h, value);
    }
}

td_status td_hidden_choose(td_hidden_text *h, td_error *err) {
    unsigned i = 0;
    while (i < N_NONCHARACTERS && h->taken & (uint32_t)1 << i) i++;
    if (i == N_NONCHARACTERS)
        return td_fail(err, TD_EINVAL, "the messages have all noncharacters U+FDD0 to U+FDEF, and '%.*s' too.",
                       (int)h->marker_len, h->marker);
    memcpy(h->stands, FIRST, sizeof h->stands);
    h->stands[2] = (char)(h->stands[2] + (char)i);
    return TD_OK;
}

/* Append s with the marker hidden. */
static void put_hidden(const td_hidden_text *h, td_jbuf *b, const char *s, size_t len) {
    for (const char *at; (at = memmem(s, len, h->marker, h->marker_len));) {
        td_jbuf_put(b, s, (size_t)(at - s));
        td_jbuf_puts(b, h->stands);
        len -= (size_t)(at - s) + h->marker_len;
        s = at + h->marker_len;
    }
    td_jbuf_put(b, s, len);
}

static td_status replace_string(const td_hidden_text *h, json_t **string) {
    const char *s = json_string_value(*string);
    size_t      len = json_string_length(*string);
    td_jbuf     b = {0};
    if (!memmem(s, len, h->marker, h->marker_len)) return TD_OK;
    put_hidden(h, &b, s, len);
    json_t *hidden = b.failed ? NULL : json_stringn_nocheck(b.data, b.len);
    td_jbuf_free(&b);
    if (!hidden) return TD_ENOMEM;
    json_decref(*string);
    *string = hidden;
    return TD_OK;
}

static td_status replace_items(const td_hidden_text *h, json_t *array) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        json_t   *item = json_incref(json_array_get(array, i));
        td_status st = td_hidden_replace(h, &item);
        if (json_array_set_new(array, i, item) != 0) st = TD_ENOMEM;
        TD_TRY(st);
    }
    return TD_OK;
}

/* Add a member to an object, with the marker hidden in its name and value. */
static td_status put_member(const td_hidden_text *h, json_t *object, const char *key, json_t *value) {
    json_t   *v = json_incref(value);
    td_jbuf   name = {0};
    td_status st = td_hidden_replace(h, &v);
    put_hidden(h, &name, key, strlen(key));
    td_jbuf_put(&name, "", 1);
    if (name.failed || json_object_set_nocheck(object, name.data, v) != 0) st = TD_ENOMEM;
    json_decref(v);
    td_jbuf_free(&name);
    return st;
}

static td_status replace_members(const td_hidden_text *h, json_t *object) {
    json_t     *before = json_copy(object), *value; /* of the same order */
    const char *key;
    td_status   st = before ? TD_OK : TD_ENOMEM;
    if (before) json_object_clear(object);
    json_object_foreach(before, key, value) if (st == TD_OK) st = put_member(h, object, key, value);
    json_decref(before);
    return st;
}

td_status td_hidden_replace(const td_hidden_text *h, json_t **value) {
    if (json_is_string(*value)) return replace_string(h, value);
    if (json_is_array(*value)) return replace_items(h, *value);
    return json_is_object(*value) ? replace_members(h, *value) : TD_OK;
}
