/* The flags of td_engine_options, in one table for every command that loads a model or plans its threads. */
#ifndef TD_CLI_ENGINE_FLAGS_H
#define TD_CLI_ENGINE_FLAGS_H

#include "cli/flags.h"

/** The most rows the table may have: room for td_flag_group's given. */
#define TD_ENGINE_FLAGS_MAX 64

/** The rows that a command has (TD_IN_…), for these options: they were initialised with td_engine_options_init, and live as
 * long. */
td_flag_group td_engine_flags(unsigned in, td_engine_options *o);

/** After parsing: what one flag means for another. */
void td_engine_flags_settle(td_engine_options *o);

#endif
