/* Reads --kv-store-config: the names of Mooncake's connectors for other engines, and a few of our own. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_file.h"
#include "core/files/json_text.h"
#include "scale/kv_store.h"
#include "scale/listen_address.h"

#define FILE_BYTES_MAX 65536
#define SIZE_MAX_BYTES ((uint64_t)1 << 40)
#define WAIT_MS_MAX 600000

static td_status take_text(const char *key, const json_t *v, char out[TD_KV_STORE_TEXT_MAX], td_error *err) {
    size_t n = json_string_length(v);
    if (!json_is_string(v) || strlen(json_string_value(v)) != n) return td_fail(err, TD_EINVAL, "%s must be a text", key);
    if (n >= TD_KV_STORE_TEXT_MAX)
        return td_fail(err, TD_EINVAL, "%s has more than %d bytes", key, TD_KV_STORE_TEXT_MAX - 1);
    memcpy(out, json_string_value(v), n + 1);
    return TD_OK;
}

/* Reads a size in bytes: a number, or a text like "4GB". */
static td_status take_size(const char *key, const json_t *v, uint64_t *out, td_error *err) {
    static const struct {
        const char *name;
        unsigned    shift;
    } UNITS[] = {{"", 0}, {"B", 0}, {"KB", 10}, {"MB", 20}, {"GB", 30}};
    const char        *text = json_string_value(v);
    char              *end = NULL;
    unsigned long long n = 0;
    if (json_is_integer(v) && json_integer_value(v) >= 0) n = (unsigned long long)json_integer_value(v);
    if (text && *text >= '0' && *text <= '9') n = strtoull(text, &end, 10);
    const char *unit = end ? end : "";
    size_t      u = 0;
    while (u < sizeof UNITS / sizeof UNITS[0] && strcmp(unit, UNITS[u].name)) u++;
    bool is_size = end || (json_is_integer(v) && json_integer_value(v) >= 0);
    if (!is_size || u == sizeof UNITS / sizeof UNITS[0] || n > SIZE_MAX_BYTES >> UNITS[u].shift)
        return td_fail(err, TD_EINVAL, "%s must be a number of bytes up to 1 TB, like 1073741824 or \"1GB\"", key);
    *out = (uint64_t)n << UNITS[u].shift;
    return TD_OK;
}

static td_status take_wait(const char *key, const json_t *v, uint32_t *out, td_error *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > WAIT_MS_MAX)
        return td_fail(err, TD_EINVAL, "%s must be a whole number from 1 to %d", key, WAIT_MS_MAX);
    *out = (uint32_t)json_integer_value(v);
    return TD_OK;
}

static td_status take_protocol(const json_t *v, char out[TD_KV_STORE_TEXT_MAX], td_error *err) {
    TD_TRY(take_text("protocol", v, out, err));
    if (strcmp(out, "tcp") != 0 && strcmp(out, "rdma") != 0)
        return td_fail(err, TD_ENOTSUP, "protocol '%s' is not there: give \"tcp\" or \"rdma\"", out);
    return TD_OK;
}

static td_status take_member(const char *key, const json_t *v, td_kv_store_config *c, td_error *err) {
    const struct {
        const char *key;
        char       *text;
    } TEXTS[] = {{"library", c->library},
                 {"master_server_address", c->master_server_address},
                 {"local_hostname", c->local_hostname},
                 {"listen_address", c->listen_address},
                 {"metadata_server", c->metadata_server},
                 {"device_name", c->device_name}};
    const struct {
        const char *key;
        uint64_t   *bytes;
    } SIZES[] = {{"global_segment_size", &c->global_segment_size},
                 {"local_buffer_size", &c->local_buffer_size},
                 {"page_buffer_size", &c->page_buffer_size}};
    for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++)
        if (!strcmp(key, TEXTS[i].key)) return take_text(key, v, TEXTS[i].text, err);
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++)
        if (!strcmp(key, SIZES[i].key)) return take_size(key, v, SIZES[i].bytes, err);
    if (!strcmp(key, "protocol")) return take_protocol(v, c->protocol, err);
    if (!strcmp(key, "max_wait_ms")) return take_wait(key, v, &c->max_wait_ms, err);
    return td_fail(
        err, TD_EINVAL,
        "there is no '%.40s'; there are master_server_address, global_segment_size, local_hostname, listen_address, "
        "library, metadata_server, protocol, device_name, local_buffer_size, page_buffer_size and max_wait_ms",
        key);
}

/* Without listen_address, the server listens where other hosts reach it: at local_hostname. */
static td_status settle_listen_address(td_kv_store_config *c, td_error *err) {
    td_listen_address a;
    bool              given = c->listen_address[0] != 0;
    if (!given) memcpy(c->listen_address, c->local_hostname, sizeof c->listen_address);
    if (td_listen_address_parse(c->listen_address, &a)) return TD_OK;
    if (given) return td_fail(err, TD_EINVAL, "listen_address must be an address of this host, like \"10.0.0.2\"");
    return td_fail(err, TD_EINVAL,
                   "local_hostname is a name: say in listen_address at which address of this host to listen; \"0.0.0.0\" "
                   "for all of them");
}

static td_status take_object(const json_t *root, td_kv_store_config *c, td_error *err) {
    const char *key;
    json_t     *v;
    if (!json_is_object(root)) return td_fail(err, TD_EINVAL, "it must be a JSON object");
    const json_t *master = json_object_get(root, "master_server_address");
    if (!master || (json_is_string(master) && !json_string_length(master)))
        return td_fail(err, TD_EINVAL, "master_server_address is missing: where mooncake_master is, as HOST:PORT");
    if (!json_object_get(root, "global_segment_size"))
        return td_fail(err, TD_EINVAL,
                       "global_segment_size is missing: the memory of this host that the store may use, like \"4GB\"; 0: "
                       "none");
    json_object_foreach((json_t *)root, key, v) TD_TRY(take_member(key, v, c, err));
    return settle_listen_address(c, err);
}

static td_status parse(const char *json, size_t len, td_kv_store_config *out, td_error *err) {
    json_t      *root = NULL;
    json_error_t why;
    *out = (td_kv_store_config){.library = "libmooncake_store.so",
                                .local_hostname = "127.0.0.1",
                                .metadata_server = "P2PHANDSHAKE",
                                .protocol = "tcp",
                                .local_buffer_size = (uint64_t)16 << 20,
                                .page_buffer_size = (uint64_t)256 << 20,
                                .max_wait_ms = 2000};
    td_status st = td_json_load(json, len, JSON_REJECT_DUPLICATES, &root, &why);
    if (st != TD_OK)
        st = td_fail(err, st == TD_EFORMAT ? TD_EINVAL : st, "it is not JSON: %s", why.text);
    else
        st = take_object(root, out, err);
    json_decref(root);
    return st;
}

td_status td_kv_store_config_read(const char *path, td_kv_store_config *out, td_error *err) {
    char  *text;
    size_t len;
    TD_TRY(td_file_read(path, FILE_BYTES_MAX, &text, &len, err));
    td_status st = parse(text, len, out, err);
    free(text);
    return st == TD_OK ? st : td_fail_within(err, "%s", path);
}
