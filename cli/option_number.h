/* Numbers on a command line. */
#ifndef TD_CLI_OPTION_NUMBER_H
#define TD_CLI_OPTION_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/** A number from 1 to max. @return false, and a sentence is on stderr: the exit status is 2. */
bool td_option_number(const char *command, const char *option, const char *text, uint64_t max, uint64_t *out);

#endif
