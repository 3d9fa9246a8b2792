/* Commands end with this: output that could not be written is an error, not a success with less text. */
#ifndef TD_CLI_STANDARD_OUTPUT_H
#define TD_CLI_STANDARD_OUTPUT_H

/** Write what is left of standard output. @param command "tandem eval". @return 0; 1 when some of it could not be written,
 * which is told. */
int td_standard_output_end(const char *command);

#endif
