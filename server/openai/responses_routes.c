/* Stored responses: GET and DELETE of /v1/responses/{id}, its input items, and /cancel, which is refused. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "server/answer/answer.h"
#include "server/openai/responses.h"
#include "server/server_state.h"

#define ITEMS_DEFAULT 20
#define ITEMS_MAX 100

/* The id in a path that may go on with a word. @return false: the rest of the path is something else. */
static bool split_path(const char *rest, const char *word, char id[TD_RESPONSE_ID_MAX]) {
    size_t      n = strcspn(rest, "/");
    const char *after = rest[n] ? rest + n + 1 : NULL;
    if (n == 0 || n >= TD_RESPONSE_ID_MAX || (word ? !after || strcmp(after, word) != 0 : after != NULL)) return false;
    memcpy(id, rest, n);
    id[n] = 0;
    return true;
}

static enum MHD_Result answer_not_found(td_call *c) {
    td_api_error err;
    td_api_fail(&err, 404, "not_found", "There is no '%.200s' among the responses that are kept here.", c->rest);
    return td_answer_error(c, &err);
}

static td_status query(const td_call *c, const char *name, const char **value) {
    *value = MHD_lookup_connection_value(c->connection, MHD_GET_ARGUMENT_KIND, name);
    return *value ? TD_OK : TD_ENOTFOUND;
}

/* ---- the list of items ---- */

typedef struct {
    size_t      limit;
    bool        ascending;
    const char *after; /* the list begins behind the item of this id; NULL: at the beginning */
} page;

static td_status read_page(const td_call *c, page *p, td_api_error *err) {
    const char *v;
    *p = (page){.limit = ITEMS_DEFAULT};
    if (query(c, "limit", &v) == TD_OK) {
        char *end;
        p->limit = strtoul(v, &end, 10);
        if (strspn(v, "0123456789") == 0 || *end || p->limit < 1 || p->limit > ITEMS_MAX)
            return td_api_bad(err, "limit", "'limit' must be between 1 and %d.", ITEMS_MAX);
    }
    if (query(c, "order", &v) == TD_OK) {
        if (strcmp(v, "asc") != 0 && strcmp(v, "desc") != 0)
            return td_api_bad(err, "order", "'order' must be 'asc' or 'desc'.");
        p->ascending = !strcmp(v, "asc");
    }
    if (query(c, "after", &v) == TD_OK) p->after = v;
    return TD_OK;
}

/* All that the response was made from: the conversation before it, then its own input. NULL: memory is short. */
static json_t *items_of(const td_stored_response *r, td_api_error *err) {
    json_t      *items = json_array(), *input;
    json_error_t why;
    if (items && td_response_history(r->previous, items, err) == TD_OK &&
        td_json_load(r->input, r->input_len, JSON_ALLOW_NUL, &input, &why) == TD_OK) {
        int bad = json_array_extend(items, input);
        json_decref(input);
        if (!bad) return items;
    }
    json_decref(items);
    if (!*err->message) td_api_no_memory(err);
    return NULL;
}

static const json_t *item_at(const json_t *items, size_t i, const page *p) {
    return json_array_get(items, p->ascending ? i : json_array_size(items) - 1 - i);
}

static const char *id_of(const json_t *item) {
    return json_string_value(json_object_get(item, "id"));
}

static td_status write_page(const json_t *items, const page *p, td_jbuf *b, td_api_error *err) {
    size_t n = json_array_size(items), from = 0;
    if (p->after) {
        while (from < n && strcmp(id_of(item_at(items, from, p)), p->after) != 0) from++;
        if (from++ == n) return td_api_bad(err, "after", "'after' is of no item of this response.");
    }
    size_t end = n - from < p->limit ? n : from + p->limit;
    td_jw_open(b, '{');
    td_jw_member_str(b, "object", "list");
    td_jw_key(b, "data");
    td_jw_open(b, '[');
    for (size_t i = from; i < end; i++) {
        char *json = td_json_dump(item_at(items, i, p), JSON_COMPACT | JSON_REAL_PRECISION(17));
        td_jw_raw(b, json ? json : "", json ? strlen(json) : 0);
        b->failed = b->failed || !json;
        free(json);
    }
    td_jw_close(b, ']');
    td_jw_member_str(b, "first_id", from < end ? id_of(item_at(items, from, p)) : NULL);
    td_jw_member_str(b, "last_id", from < end ? id_of(item_at(items, end - 1, p)) : NULL);
    td_jw_member_bool(b, "has_more", end < n);
    td_jw_close(b, '}');
    return TD_OK;
}

static enum MHD_Result answer_items(td_call *c, const td_stored_response *r) {
    page         p;
    td_api_error err = {0};
    td_jbuf      b = {0};
    json_t      *items = read_page(c, &p, &err) == TD_OK ? items_of(r, &err) : NULL;
    td_status    st = items ? write_page(items, &p, &b, &err) : TD_EINVAL;
    json_decref(items);
    if (st == TD_OK) return td_answer_json(c, 200, &b);
    td_jbuf_free(&b);
    return td_answer_error(c, &err);
}

/* ---- routes ---- */

static enum MHD_Result answer_response(td_call *c, const td_stored_response *r) {
    const char  *stream;
    td_api_error err;
    td_jbuf      b = {0};
    if (query(c, "stream", &stream) == TD_OK && strcmp(stream, "false") != 0) {
        td_api_bad(&err, "stream", "'stream' is not supported here: the response is finished.");
        return td_answer_error(c, &err);
    }
    td_jbuf_put(&b, r->text, r->text_len);
    return td_answer_json(c, 200, &b);
}

enum MHD_Result td_route_get_response(td_call *c) {
    char                id[TD_RESPONSE_ID_MAX];
    td_response_store  *store = &c->server->responses;
    bool                items = split_path(c->rest, "input_items", id);
    td_stored_response *r = items || split_path(c->rest, NULL, id) ? td_response_store_find(store, id) : NULL;
    if (!r) return answer_not_found(c);
    enum MHD_Result result = items ? answer_items(c, r) : answer_response(c, r);
    td_response_store_release(store, r);
    return result;
}

enum MHD_Result td_route_delete_response(td_call *c) {
    char    id[TD_RESPONSE_ID_MAX];
    td_jbuf b = {0};
    if (!split_path(c->rest, NULL, id) || !td_response_store_delete(&c->server->responses, id)) return answer_not_found(c);
    td_jw_open(&b, '{');
    td_jw_member_str(&b, "id", id);
    td_jw_member_str(&b, "object", "response.deleted");
    td_jw_member_bool(&b, "deleted", true);
    td_jw_close(&b, '}');
    return td_answer_json(c, 200, &b);
}

/* Always an error: only a response in the background could be cancelled, and those that are kept are finished. */
enum MHD_Result td_route_cancel_response(td_call *c) {
    char                id[TD_RESPONSE_ID_MAX];
    td_response_store  *store = &c->server->responses;
    td_stored_response *r = split_path(c->rest, "cancel", id) ? td_response_store_find(store, id) : NULL;
    td_api_error        err;
    if (!r) return answer_not_found(c);
    td_response_store_release(store, r);
    td_api_bad(&err, NULL, "This response is finished; one that still runs ends with its connection, or by /abort_request.");
    return td_answer_error(c, &err);
}
