#include "server/request/json_fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/json_text.h"

#define VALUES_MAX (2 << 20) /* in a body; a value of two bytes takes 40 when it is parsed, an empty object 200 */
#define EXACT_REAL_MAX 9007199254740992.0 /* 2^53: up to here every whole number is a double */

/* How many values a body of JSON has at most, about: each but the first has a comma or an opening bracket before it. */
static size_t count_values(const char *body, size_t len) {
    size_t n = 1;
    bool   in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = body[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string)
            n += c == ',' || c == '[' || c == '{';
    }
    return n;
}

json_t *td_api_load(const char *body, size_t len, td_api_error *err) {
    json_error_t je;
    if (len == 0) {
        td_api_bad(err, NULL, "The request has no body; a JSON object is expected.");
        return NULL;
    }
    if (count_values(body, len) > VALUES_MAX) {
        td_api_bad(err, NULL, "The body has more than %d values; each takes many times its bytes.", VALUES_MAX);
        return NULL;
    }
    json_t   *root;
    td_status st = td_json_load(body, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &root, &je);
    if (st == TD_ENOMEM) {
        td_api_no_memory(err);
        return NULL;
    }
    if (st != TD_OK && json_error_code(&je) == json_error_numeric_overflow) {
        td_api_bad(
            err, NULL,
            "A number in the body is out of range; integers, a 'seed' too, go from -2^63 to 2^63 - 1 (line %d, column %d).",
            je.line, je.column);
        return NULL;
    }
    if (st != TD_OK) {
        td_api_bad(err, NULL, "The body is not valid JSON: %s (line %d, column %d).", je.text, je.line, je.column);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        td_api_bad(err, NULL, "The body must be a JSON object.");
        return NULL;
    }
    return root;
}

bool td_api_is_on(const json_t *v) {
    if (!v) return false;
    switch (json_typeof(v)) {
        case JSON_NULL:
        case JSON_FALSE: return false;
        case JSON_STRING: return json_string_length(v) > 0;
        case JSON_ARRAY: return json_array_size(v) > 0;
        case JSON_OBJECT: return json_object_size(v) > 0;
        case JSON_INTEGER:
        case JSON_REAL: return json_number_value(v) != 0;
        default: return true;
    }
}

bool td_api_is_c_string(const json_t *v) {
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

bool td_api_integer(const json_t *v, json_int_t *to) {
    double x = json_real_value(v);
    bool   whole = json_is_real(v) && fabs(x) <= EXACT_REAL_MAX && x == floor(x);
    if (!json_is_integer(v) && !whole) return false;
    *to = whole ? (json_int_t)x : json_integer_value(v);
    return true;
}

td_status td_api_read_bool(const json_t *root, const char *name, bool *to, td_api_error *err) {
    const json_t *v = json_object_get(root, name);
    if (!td_api_is_set(v)) return TD_OK;
    if (!json_is_boolean(v)) return td_api_bad(err, name, "'%s' must be true or false.", name);
    *to = json_is_true(v);
    return TD_OK;
}

td_status td_api_parse_ids(const json_t *array, const char *param, size_t n_max, uint32_t vocab_size, uint32_t **ids,
                           size_t *n_ids, td_api_error *err) {
    size_t n = json_array_size(array);
    if (!json_is_array(array)) return td_api_bad(err, param, "'%s' must be a list of token ids.", param);
    if (n > n_max) return td_api_bad(err, param, "'%s' has %zu token ids; at most %zu are allowed.", param, n, n_max);
    uint32_t *to = malloc((n ? n : 1) * sizeof *to);
    if (!to) return td_api_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= (json_int_t)vocab_size) {
            free(to);
            return td_api_bad(err, param, "'%s' at position %zu must be a token id, an integer from 0 to %u.", param, i,
                              vocab_size - 1);
        }
        to[i] = (uint32_t)json_integer_value(v);
    }
    *ids = to;
    *n_ids = n;
    return TD_OK;
}
