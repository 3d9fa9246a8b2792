/*
 * libcyaml reads the mapping into an array of strings, one per spelling of a key. Its log, which would go to stderr, becomes
 * the sentence of the error.
 */
#include "core/files/yaml_pairs.h"

#include <cyaml/cyaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/json_file.h"

/* ---- the schema ---- */

/* Each key twice: as it is named, and with '_' for '-'. Field i takes key i / 2. */
typedef struct {
    size_t                n_fields;
    cyaml_schema_field_t *fields; /* [n_fields], then one without a key */
    char                 *names;  /* the second spellings, one after another */
} pair_schema;

static td_status make_schema(pair_schema *s, const char *const *keys, size_t n_keys, td_error *err) {
    size_t bytes = 0;
    for (size_t i = 0; i < n_keys; i++) bytes += strlen(keys[i]) + 1;
    s->n_fields = 2 * n_keys;
    s->fields = calloc(s->n_fields + 1, sizeof *s->fields);
    s->names = malloc(bytes + 1);
    if (!s->fields || !s->names) return td_fail(err, TD_ENOMEM, "out of memory");

    char *name = s->names;
    for (size_t i = 0; i < s->n_fields; i++) {
        const char *key = keys[i / 2];
        if (i % 2) {
            strcpy(name, key);
            for (char *c = name; (c = strchr(c, '-')); c++) *c = '_';
            key = name;
            name += strlen(name) + 1;
        }
        s->fields[i] = (cyaml_schema_field_t){
            .key = key,
            .data_offset = (uint32_t)(i * sizeof(char *)),
            .value = {.type = CYAML_STRING,
                      .flags = CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER,
                      .data_size = sizeof(char *),
                      .string = {.min = 0, .max = TD_YAML_PAIRS_BYTES_MAX}},
        };
    }
    return TD_OK;
}

/* ---- what libcyaml says ---- */

typedef struct {
    char   detail[80]; /* of its first error: the key, or what is wrong with the YAML */
    char   field[80];  /* the key it was at; "" outside of any */
    size_t line;       /* the line it was at; 0: none yet */
    bool   warned;
} pair_report;

/* libcyaml logs one error as "Load: what: detail\n", then a backtrace of "  in mapping field 'key' (line: 3, column: 1)\n".
 */
static void listen(cyaml_log_t level, void *user, const char *format, va_list args) {
    pair_report *r = user;
    char         text[256];
    vsnprintf(text, sizeof text, format, args);
    size_t end = strlen(text);
    while (end && text[end - 1] == '\n') text[--end] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    if (level == CYAML_LOG_WARNING) r->warned = true;
    if (sscanf(text, " in mapping field '%79[^']' (line: %zu", r->field, &r->line) == 2) return;
    if (sscanf(text, " in mapping (line: %zu", &r->line) == 1) return;
    const char *what = strstr(text, ": "), *detail = what ? strstr(what + 2, ": ") : NULL;
    if (detail && !r->detail[0]) snprintf(r->detail, sizeof r->detail, "%s", detail + 2);
}

static td_status refuse(const td_yaml_words *w, const char *path, cyaml_err_t e, const pair_report *r, td_error *err) {
    td_status st = TD_EINVAL;
    switch (e) {
        case CYAML_ERR_OOM:
        case CYAML_ERR_LIBYAML_PARSER_INIT: return td_fail(err, TD_ENOMEM, "out of memory");
        case CYAML_ERR_LIBYAML_PARSER: st = td_fail(err, TD_EFORMAT, "not valid YAML: %s", r->detail); break;
        case CYAML_ERR_INVALID_KEY:
            st = td_fail(err, st, "there is no %s '%s'; %s lists them", w->noun, r->detail, w->list);
            break;
        case CYAML_ERR_UNEXPECTED_EVENT: st = td_fail(err, st, "'%s' is there twice", r->detail); break;
        case CYAML_ERR_ALIAS: st = td_fail(err, st, "a %s must have a plain value, not an alias", w->noun); break;
        default:
            if (e == CYAML_ERR_INVALID_VALUE && r->field[0])
                st = td_fail(err, st, "'%s' must have a plain value, not a list or a mapping", r->field);
            else
                st = td_fail(err, st, "lines of '%s: value' are expected", w->noun);
    }
    /* libcyaml knows the last line whose key or value it took, which may be the one before the mistake. */
    if (r->line)
        td_fail_within(err, "%s, near line %zu", path, r->line);
    else
        td_fail_within(err, "%s", path);
    return st;
}

/* ---- the file ---- */

static td_status parse(const td_yaml_words *w, const char *path, const char *text, size_t len, const pair_schema *s,
                       td_yaml_pair_fn fn, void *user, td_error *err) {
    pair_report          report = {0};
    const cyaml_config_t config = {.log_fn = listen,
                                   .log_ctx = &report,
                                   .mem_fn = cyaml_mem,
                                   .log_level = CYAML_LOG_WARNING,
                                   .flags = CYAML_CFG_NO_ALIAS};
    /* POINTER_NULL: a document without content is a file without pairs. */
    const cyaml_schema_value_t top = {.type = CYAML_MAPPING,
                                      .flags = CYAML_FLAG_POINTER_NULL,
                                      .data_size = (uint32_t)(s->n_fields * sizeof(char *)),
                                      .mapping = {.fields = s->fields}};
    cyaml_data_t              *data = NULL;
    cyaml_err_t                e = cyaml_load_data((const uint8_t *)text, len, &config, &top, &data, NULL);
    if (e != CYAML_OK) return refuse(w, path, e, &report, err);

    td_status st = TD_OK;
    if (report.warned) /* the one warning there is */
        st = td_fail(err, TD_EINVAL, "%s: a second document; one is expected", path);
    char **values = data;
    for (size_t i = 0; st == TD_OK && values && i < s->n_fields; i++) {
        if (!values[i]) continue;
        st = fn(user, i / 2, values[i], err);
        if (st != TD_OK) td_fail_within(err, "%s", path);
    }
    cyaml_free(&config, &top, data, 0);
    return st;
}

td_status td_yaml_pairs_parse(const td_yaml_words *w, const char *path, const char *text, size_t len,
                              const char *const *keys, size_t n_keys, td_yaml_pair_fn fn, void *user, td_error *err) {
    pair_schema s = {0};
    td_status   st = make_schema(&s, keys, n_keys, err);
    if (st == TD_OK) st = parse(w, path, text, len, &s, fn, user, err);
    free(s.fields);
    free(s.names);
    return st;
}

td_status td_yaml_pairs_read(const td_yaml_words *w, const char *path, const char *const *keys, size_t n_keys,
                             td_yaml_pair_fn fn, void *user, td_error *err) {
    size_t len;
    char  *text;
    if (td_file_read(path, TD_YAML_PAIRS_BYTES_MAX, &text, &len, err) != TD_OK) return td_fail_within(err, "--%s", w->flag);
    td_status st = td_yaml_pairs_parse(w, path, text, len, keys, n_keys, fn, user, err);
    free(text);
    return st;
}
