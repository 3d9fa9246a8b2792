/*
 * The flags of `tandem launch_server`: one table (flags.c) that parses the command line and --config files, prints --help
 * and writes docs/flags.md.
 */
#ifndef TD_CLI_FLAGS_H
#define TD_CLI_FLAGS_H

#include <stdio.h>

#include "core/log.h"
#include "server/json_writer.h"
#include "server/server.h"
#include "tandem.h"

/** What the flags say. Strings point into argv or are owned by `strings`. */
typedef struct {
    td_engine_options engine;
    td_server_options server;
    const char       *config;
    const char       *log_level, *log_format;
    const char       *trace; /* file, or NULL */
    double            shutdown_grace_s;
    bool              skip_warmup;
    bool              check; /* only check the flags */
    bool              help, help_markdown;

    char   **strings; /* values read from a config file */
    size_t   n_strings;
    uint8_t *given; /* per row of the table: how it was set */
} td_launch_options;

/**
 * Defaults, then the file of --config, then the command line. @param argv as of main, argv[0] is the subcommand.
 * @return TD_OK; TD_EINVAL or TD_ENOTSUP with one sentence that names the flag. Free with td_launch_options_free either way.
 */
TD_NODISCARD td_status td_flags_parse(int argc, char **argv, td_launch_options *o, td_error *err);
void                   td_launch_options_free(td_launch_options *o);

void td_flags_print_help(FILE *f);
void td_flags_print_markdown(FILE *f);

/** The flags that were given as a JSON object, without secrets. */
void td_flags_write_json(const td_launch_options *o, td_jbuf *b);

/* ---- flags_config.c ---- */

/** @param key index into td_config_read's keys. @param value valid during the call. */
typedef td_status (*td_config_fn)(void *user, size_t key, const char *value, td_error *err);

/**
 * Call fn for every "key: value" of a YAML file (64 KiB at most) that holds one flat mapping of scalars, in the order of keys.
 * In the file, a key's '-' may all be '_'; fn is called twice for a key that is there in both spellings.
 * @param keys [n_keys] distinct names. @return TD_EINVAL, TD_EFORMAT or fn's status: the sentence begins with the path, and with
 * the line where libcyaml knows it. Nothing is printed.
 */
TD_NODISCARD td_status td_config_read(const char *path, const char *const *keys, size_t n_keys, td_config_fn fn, void *user,
                                      td_error *err);

#endif
