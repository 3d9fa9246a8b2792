/* Reads --kv-events-config: SGLang's names, with the values that are supported here. */
#include <string.h>

#include "core/error.h"
#include "core/files/json_text.h"
#include "scale/kv_events.h"

static td_status take_text(const char *key, const json_t *v, char out[TD_KV_TEXT_MAX], td_error *err) {
    size_t n = json_string_length(v);
    if (!json_is_string(v) || strlen(json_string_value(v)) != n) return td_fail(err, TD_EINVAL, "%s must be a text", key);
    if (n >= TD_KV_TEXT_MAX) return td_fail(err, TD_EINVAL, "%s has more than %d bytes", key, TD_KV_TEXT_MAX - 1);
    memcpy(out, json_string_value(v), n + 1);
    return TD_OK;
}

static td_status take_endpoint(const char *key, const json_t *v, char out[TD_KV_TEXT_MAX], td_error *err) {
    TD_TRY(take_text(key, v, out, err));
    if (strncmp(out, "tcp://", 6) != 0 && strncmp(out, "ipc://", 6) != 0)
        return td_fail(err, TD_EINVAL, "%s '%s' is no address to bind: give tcp://ADDRESS:PORT or ipc://PATH", key, out);
    return TD_OK;
}

static td_status take_count(const char *key, const json_t *v, uint32_t *out, td_error *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > TD_KV_BUFFER_STEPS_MAX)
        return td_fail(err, TD_EINVAL, "%s must be a whole number from 1 to %d", key, TD_KV_BUFFER_STEPS_MAX);
    *out = (uint32_t)json_integer_value(v);
    return TD_OK;
}

static td_status take_publisher(const json_t *v, bool *on, td_error *err) {
    const char *name = json_string_value(v);
    if (!name || (strcmp(name, "zmq") != 0 && strcmp(name, "null") != 0))
        return td_fail(err, TD_EINVAL, "publisher must be \"zmq\", or \"null\" for none");
    *on = !strcmp(name, "zmq");
    return TD_OK;
}

static td_status take_member(const char *key, const json_t *v, td_kv_events_config *c, td_error *err) {
    if (!strcmp(key, "publisher")) return take_publisher(v, &c->on, err);
    if (!strcmp(key, "endpoint")) return take_endpoint(key, v, c->endpoint, err);
    if (!strcmp(key, "replay_endpoint")) return json_is_null(v) ? TD_OK : take_endpoint(key, v, c->replay_endpoint, err);
    if (!strcmp(key, "topic")) return take_text(key, v, c->topic, err);
    if (!strcmp(key, "buffer_steps")) return take_count(key, v, &c->buffer_steps, err);
    if (!strcmp(key, "hwm")) return take_count(key, v, &c->hwm, err);
    if (!strcmp(key, "max_queue_size"))
        return td_fail(err, TD_ENOTSUP, "max_queue_size is not there: nothing queues here but the state of each KV page");
    return td_fail(err, TD_EINVAL,
                   "there is no '%.40s'; there are publisher, endpoint, replay_endpoint, topic, buffer_steps and hwm", key);
}

static td_status take_object(const json_t *root, td_kv_events_config *c, td_error *err) {
    const char *key;
    json_t     *v;
    if (!json_is_object(root)) return td_fail(err, TD_EINVAL, "it must be a JSON object");
    if (!json_object_get(root, "publisher"))
        return td_fail(err, TD_EINVAL, "publisher is missing: \"zmq\", or \"null\" for none");
    json_object_foreach((json_t *)root, key, v) TD_TRY(take_member(key, v, c, err));
    return TD_OK;
}

td_status td_kv_events_config_parse(const char *json, td_kv_events_config *out, td_error *err) {
    json_t      *root = NULL;
    json_error_t why;
    *out = (td_kv_events_config){.endpoint = "tcp://127.0.0.1:5557", .buffer_steps = 10000, .hwm = 10000};
    td_status st = td_json_load(json, strlen(json), JSON_REJECT_DUPLICATES, &root, &why);
    if (st != TD_OK)
        st = td_fail(err, st == TD_EFORMAT ? TD_EINVAL : st, "it is not JSON: %s", why.text);
    else
        st = take_object(root, out, err);
    json_decref(root);
    return st;
}
