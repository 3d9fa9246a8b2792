/* Responses that are kept, or run in the background: GET and DELETE of /v1/responses/{id}, its input items, and /cancel. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "server/answer/answer.h"
#include "server/openai/responses.h"
#include "server/openai/responses_events.h"
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

/* ---- a kept response, as it was ---- */

struct td_kept_answer {
    td_response_store  *store;
    td_stored_response *response; /* a reference */
    td_answer_hold      hold;     /* of the response, which may have left the store */
    size_t              sent;
};

void td_kept_answer_free(td_kept_answer *a) {
    if (!a) return;
    td_answer_hold_set(&a->hold, 0);
    td_response_store_release(a->store, a->response);
    free(a);
}

static ssize_t read_kept(td_call *c, char *to, size_t max) {
    td_kept_answer           *a = c->kept;
    const td_stored_response *r = a->response;
    size_t                    n = r->text_len - a->sent < max ? r->text_len - a->sent : max;
    memcpy(to, r->text + a->sent, n);
    a->sent += n;
    return (ssize_t)n;
}

/* Answer with a response's own text; takes the reference. */
static enum MHD_Result answer_response(td_call *c, td_stored_response *r) {
    td_response_store *store = &c->server->responses;
    td_api_error       err;
    c->kept = malloc(sizeof *c->kept);
    if (!c->kept) {
        td_response_store_release(store, r);
        td_api_no_memory(&err);
        return td_answer_error(c, &err);
    }
    *c->kept = (td_kept_answer){.store = store, .response = r, .hold.budget = c->answers};
    if (td_answer_hold_set(&c->kept->hold, r->text_len))
        return td_answer_pieces(c, 200, "application/json", r->text_len, read_kept);
    td_answer_no_room(&err, &c->kept->hold, r->text_len);
    return td_answer_error(c, &err);
}

/* ---- routes ---- */

typedef struct {
    bool            streams; /* the events are wanted */
    const uint64_t *after;   /* behind the one of this number; NULL: from the beginning */
    uint64_t        number;
} get_options;

static td_status read_get(const td_call *c, get_options *o, td_api_error *err) {
    const char *stream, *after, *obfuscation;
    char       *end;
    *o = (get_options){0};
    if (query(c, "stream", &stream) == TD_OK) {
        if (strcmp(stream, "true") != 0 && strcmp(stream, "false") != 0)
            return td_api_bad(err, "stream", "'stream' must be 'true' or 'false'.");
        o->streams = !strcmp(stream, "true");
    }
    if (query(c, "include_obfuscation", &obfuscation) == TD_OK && strcmp(obfuscation, "false") != 0)
        return td_api_bad(err, "include_obfuscation", "'include_obfuscation' is not supported.");
    if (query(c, "starting_after", &after) != TD_OK) return TD_OK;
    errno = 0;
    o->number = strtoull(after, &end, 10);
    o->after = &o->number;
    if (strspn(after, "0123456789") == 0 || *end || errno)
        return td_api_bad(err, "starting_after", "'starting_after' must be the 'sequence_number' of an event.");
    if (!o->streams) return td_api_bad(err, "starting_after", "'starting_after' needs 'stream=true'.");
    return TD_OK;
}

static enum MHD_Result answer_no_events(td_call *c, bool background) {
    td_api_error err;
    if (background)
        td_api_bad(&err, "stream",
                   "The events of this response are not kept: it was not created with 'stream', its end is too long ago, or "
                   "there was no room.");
    else
        td_api_bad(&err, "stream", "'stream' is for responses that were created with 'background'; this one was not.");
    return td_answer_error(c, &err);
}

/* What there is to say of a response's job. @return whether something was; else the response is the store's. */
static bool answer_of_job(td_call *c, td_background_job *job, const get_options *o, bool items, enum MHD_Result *result) {
    td_jbuf now = {.hold.budget = c->answers};
    if (o->streams && !items && job->streams) {
        *result = td_answer_events(c, job, o->after);
        return true;
    }
    if (!td_background_write(job, &now)) return false;
    if (!o->streams && !items) {
        *result = td_answer_json(c, 200, &now);
        return true;
    }
    td_jbuf_free(&now);
    td_api_error err;
    td_api_bad(&err, NULL, "The items of a response can be listed when it has ended.");
    *result = items ? td_answer_error(c, &err) : answer_no_events(c, true);
    return true;
}

static enum MHD_Result answer_kept(td_call *c, const char *id, const get_options *o, bool items) {
    td_response_store  *store = &c->server->responses;
    td_stored_response *r = td_response_store_find(store, id);
    if (!r) return answer_not_found(c);
    if (!items && !o->streams) return answer_response(c, r);
    enum MHD_Result result = items ? answer_items(c, r) : answer_no_events(c, r->background);
    td_response_store_release(store, r);
    return result;
}

enum MHD_Result td_route_get_response(td_call *c) {
    char            id[TD_RESPONSE_ID_MAX];
    get_options     o;
    td_api_error    err;
    bool            items = split_path(c->rest, "input_items", id), answered;
    enum MHD_Result result;
    if (!items && !split_path(c->rest, NULL, id)) return answer_not_found(c);
    if (read_get(c, &o, &err) != TD_OK) return td_answer_error(c, &err);
    td_background_job *job = td_background_find(&c->server->background, id);
    answered = job && answer_of_job(c, job, &o, items, &result);
    if (job) td_background_release(job);
    return answered ? result : answer_kept(c, id, &o, items);
}

enum MHD_Result td_route_delete_response(td_call *c) {
    char    id[TD_RESPONSE_ID_MAX];
    td_jbuf b = {0};
    if (!split_path(c->rest, NULL, id)) return answer_not_found(c);
    td_background_job *job = td_background_find(&c->server->background, id);
    if (job) td_background_forget(job);
    bool there = td_response_store_delete(&c->server->responses, id) || job;
    if (job) td_background_release(job);
    if (!there) return answer_not_found(c);
    td_jw_open(&b, '{');
    td_jw_member_str(&b, "id", id);
    td_jw_member_str(&b, "object", "response.deleted");
    td_jw_member_bool(&b, "deleted", true);
    td_jw_close(&b, '}');
    return td_answer_json(c, 200, &b);
}

/* A response that has ended stays as it is. */
enum MHD_Result td_route_cancel_response(td_call *c) {
    char               id[TD_RESPONSE_ID_MAX];
    td_response_store *store = &c->server->responses;
    td_api_error       err;
    if (!split_path(c->rest, "cancel", id)) return answer_not_found(c);
    td_background_job *job = td_background_find(&c->server->background, id);
    if (job) {
        td_background_cancel(job);
        td_background_release(job);
    }
    td_stored_response *r = td_response_store_find(store, id);
    if (!r) return answer_not_found(c);
    if (r->background) return answer_response(c, r);
    td_response_store_release(store, r);
    td_api_bad(
        &err, NULL,
        "Only responses that were created with 'background' can be cancelled; others end with their connection, or by "
        "/abort_request.");
    return td_answer_error(c, &err);
}
