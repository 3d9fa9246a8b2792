/* --config: a YAML file of one flat mapping, flag names to scalars. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "cli/flags.h"
#include "core/error.h"

#define CONFIG_EVENTS_MAX 4096 /* a file of flags is short: more is not one */

typedef struct {
    yaml_parser_t parser;
    const char   *path;
} config_file;

static td_status next_event(config_file *f, yaml_event_t *event, td_error *err) {
    if (yaml_parser_parse(&f->parser, event)) return TD_OK;
    return td_fail(err, TD_EFORMAT, "%s, line %zu: not valid YAML: %s", f->path, f->parser.problem_mark.line + 1,
                   f->parser.problem ? f->parser.problem : "cannot be read");
}

/* "key" was read: the next event must be its scalar. */
static td_status read_value(config_file *f, const yaml_event_t *key, td_config_fn fn, void *user, td_error *err) {
    yaml_event_t value;
    const char  *name = (const char *)key->data.scalar.value;
    TD_TRY(next_event(f, &value, err));
    td_status st;
    if (value.type != YAML_SCALAR_EVENT) {
        st = td_fail(err, TD_EINVAL, "%s, line %zu: '%.60s' must have a plain value, not a list or a mapping", f->path,
                     value.start_mark.line + 1, name);
    } else {
        st = fn(user, name, (const char *)value.data.scalar.value, err);
        if (st != TD_OK) td_fail_within(err, "%s, line %zu", f->path, key->start_mark.line + 1);
    }
    yaml_event_delete(&value);
    return st;
}

static td_status read_document(config_file *f, td_config_fn fn, void *user, td_error *err) {
    bool in_mapping = false, ended = false;
    for (int n = 0; n < CONFIG_EVENTS_MAX; n++) {
        yaml_event_t event;
        td_status    st = TD_OK;
        TD_TRY(next_event(f, &event, err));
        size_t line = event.start_mark.line + 1;
        switch (event.type) {
            case YAML_STREAM_START_EVENT:
            case YAML_DOCUMENT_END_EVENT: break;
            case YAML_DOCUMENT_START_EVENT:
                if (ended) st = td_fail(err, TD_EINVAL, "%s, line %zu: a second document; one is expected", f->path, line);
                break;
            case YAML_MAPPING_START_EVENT:
                if (in_mapping)
                    st = td_fail(err, TD_EINVAL, "%s, line %zu: a key must be the name of a flag", f->path, line);
                in_mapping = true;
                break;
            case YAML_MAPPING_END_EVENT:
                in_mapping = false;
                ended = true;
                break;
            case YAML_SCALAR_EVENT:
                if (in_mapping)
                    st = read_value(f, &event, fn, user, err);
                else if (event.data.scalar.length > 0)
                    st = td_fail(err, TD_EINVAL, "%s, line %zu: lines of 'flag: value' are expected", f->path, line);
                break;
            case YAML_STREAM_END_EVENT: yaml_event_delete(&event); return TD_OK;
            default: st = td_fail(err, TD_EINVAL, "%s, line %zu: lines of 'flag: value' are expected", f->path, line);
        }
        yaml_event_delete(&event);
        TD_TRY(st);
    }
    return td_fail(err, TD_EINVAL, "%s has too many entries for a file of flags", f->path);
}

td_status td_config_read(const char *path, td_config_fn fn, void *user, td_error *err) {
    config_file f = {.path = path};
    FILE       *in = fopen(path, "rb");
    if (!in) return td_fail(err, TD_ENOTFOUND, "--config: %s cannot be opened: %m", path);
    if (!yaml_parser_initialize(&f.parser)) {
        fclose(in);
        return td_fail(err, TD_ENOMEM, "out of memory");
    }
    yaml_parser_set_input_file(&f.parser, in);
    td_status st = read_document(&f, fn, user, err);
    yaml_parser_delete(&f.parser);
    fclose(in);
    return st;
}
