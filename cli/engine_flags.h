/* The flags of td_engine_options, in one table for every command that loads a model or plans its threads. */
#ifndef TD_CLI_ENGINE_FLAGS_H
#define TD_CLI_ENGINE_FLAGS_H

#include "cli/flags.h"

/** The most rows that the table may have: the size of an array for td_flag_group.given. */
#define TD_ENGINE_FLAGS_MAX 64

/** The rows of one command. @param in the command's bit, TD_IN_… @param o initialised with td_engine_options_init; must live
 * as long as the group. */
td_flag_group td_engine_flags(unsigned in, td_engine_options *o);

/** Call it after parsing: sets options that follow from other options. */
void td_engine_flags_settle(td_engine_options *o);

#endif
