/* The end of every command that prints: output that could not be written makes the command fail. */
#ifndef TD_CLI_STANDARD_OUTPUT_H
#define TD_CLI_STANDARD_OUTPUT_H

/** Flush standard output. @param command begins the error message: "tandem eval". @return 0; 1 after an error message when
 * some of the output could not be written. */
int td_standard_output_end(const char *command);

#endif
