/* The flags of `tandem launch_server`: the engine's, the server's and its own, from the command line and a --config file. */
#ifndef TD_CLI_LAUNCH_FLAGS_H
#define TD_CLI_LAUNCH_FLAGS_H

#include <stdio.h>

#include "cli/engine_flags.h"
#include "scale/kv_events.h"
#include "scale/kv_store.h"
#include "server/server.h"

#define TD_LAUNCH_FLAGS_MAX 40 /* rows of launch_server's own table at most */

/** The values of the flags. Strings point into argv, are static, or are owned by `strings`. It must not be moved, because
 * the groups point into it. */
typedef struct {
    td_engine_options   engine;
    td_server_options   server;
    td_kv_events_config kv_events;         /* read from kv_events_config */
    bool                has_kv_store;      /* kv_store is not "none" */
    td_kv_store_config  kv_store_settings; /* read from the file kv_store_config, if there is a store */
    const char         *config;
    const char         *log_level, *log_format;
    const char         *trace;            /* path of the trace file, or NULL */
    const char         *kv_events_config; /* JSON, or NULL */
    const char         *kv_store;         /* the store's name, or "none" */
    const char         *kv_store_config;  /* path of its settings' file, or NULL */
    double              shutdown_delay_s, shutdown_grace_s;
    bool                skip_warmup;
    bool                check; /* check the flags and the model's folder, and exit */
    td_flag_help        help;
    bool                help_markdown;

    td_flag_strings strings;                       /* the values that were read from a --config file, and lists of words */
    uint8_t         given[2][TD_ENGINE_FLAGS_MAX]; /* TD_GIVEN_… for each row of the two tables */
    td_flag_group   groups[2];
    td_flag_command command;
} td_launch_options;

/**
 * Set the defaults, then what the --config file says, then what the command line says.
 * @param argv main's arguments from the subcommand on: argv[0] is its name.
 * @return TD_OK; TD_EINVAL or TD_ENOTSUP with one sentence that names the flag. Free with td_launch_options_free either way.
 */
TD_NODISCARD td_status td_launch_flags_parse(int argc, char **argv, td_launch_options *o, td_error *err);
void                   td_launch_options_free(td_launch_options *o);

/** Print the tables of docs/flags.md. */
void td_launch_flags_print_markdown(const td_launch_options *o, FILE *f);

#endif
