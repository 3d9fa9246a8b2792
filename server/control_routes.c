/* Routes that steer the server: its health, ending requests early, emptying the prefix cache. */
#include <string.h>

#include "server/answer/answer.h"
#include "server/request/json_fields.h"
#include "server/server_state.h"

enum MHD_Result td_route_health(td_call *c) {
    static const char *const name[] = {[TD_SERVER_STARTING] = "starting",
                                       [TD_SERVER_READY] = "ready",
                                       [TD_SERVER_DRAINING] = "draining",
                                       [TD_SERVER_STOPPING] = "stopping"};
    td_server               *s = c->server;
    td_server_phase          phase = td_phase(s);
    bool     stalled = phase == TD_SERVER_READY && atomic_load_explicit(&s->watcher.stalled, memory_order_relaxed);
    td_error why = {0};
    bool     lost = phase == TD_SERVER_READY && td_engine_is_lost(s->engine, &why);
    td_jbuf  b = {0};
    td_jw_open(&b, '{');
    td_jw_member_str(&b, "status", lost ? "lost" : stalled ? "stalled" : name[phase]);
    if (stalled && !lost) td_watchdog_describe(&s->watcher, why.text, sizeof why.text);
    if (lost || stalled) td_jw_member_str(&b, "message", why.text);
    td_jw_close(&b, '}');
    return td_answer_json(c, phase == TD_SERVER_READY && !stalled && !lost ? 200 : 503, &b);
}

/* {"rid": string} or {"abort_all": true}: *rid is NULL for all. */
static td_status parse_abort(const json_t *root, const char **rid, td_api_error *err) {
    const json_t *id = json_object_get(root, "rid"), *all = json_object_get(root, "abort_all");
    *rid = NULL;
    if (all && !json_is_null(all) && !json_is_boolean(all))
        return td_api_bad(err, "abort_all", "'abort_all' must be true or false.");
    if (id && !json_is_null(id) && !td_api_is_c_string(id))
        return td_api_bad(err, "rid", "'rid' must be a string, without a NUL.");
    if (json_is_true(all)) return TD_OK;
    if (!json_is_string(id))
        return td_api_bad(err, "rid", "'rid' is missing; to end every request, give 'abort_all': true.");
    *rid = json_string_value(id);
    return TD_OK;
}

/* Ends the requests with this id (NULL: all), but not the server's own probe. @return how many. */
static uint32_t end_early(td_watcher *w, const char *rid) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_slots; i++) {
        td_generation *g = td_watched(w, i);
        if (!g) continue;
        if (!g->req.api->internal && (!rid || !strcmp(rid, g->id))) n += td_generation_end_early(g);
        td_generation_unref(g);
    }
    return n;
}

enum MHD_Result td_route_abort_request(td_call *c) {
    const char  *rid;
    td_api_error err;
    td_jbuf      b = {0};
    json_t      *root = td_api_load(c->body.data, c->body.len, &err);
    if (!root || parse_abort(root, &rid, &err) != TD_OK) {
        json_decref(root);
        return td_answer_error(c, &err);
    }
    td_jw_open(&b, '{');
    td_jw_member_int(&b, "aborted", end_early(&c->server->watcher, rid));
    td_jw_close(&b, '}');
    json_decref(root);
    return td_answer_json(c, 200, &b);
}

enum MHD_Result td_route_flush_cache(td_call *c) {
    td_jbuf b = {0};
    td_engine_flush_cache(c->server->engine);
    td_jbuf_puts(&b, "Cache flushed.\n");
    return td_answer_text(c, 200, "text/plain; charset=utf-8", &b);
}
