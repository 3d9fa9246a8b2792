/* Commands that answer each line of standard input with one JSON object a line. */
#ifndef TD_CLI_JSON_LINES_H
#define TD_CLI_JSON_LINES_H

#include <jansson.h>
#include <stddef.h>

#include "tandem.h"

/** The answer to a line, given without its newline: a JSON object, malloc'd, without line breaks; or NULL with the reason in
 * err, which no memory may leave empty. */
typedef char *(*td_json_answer)(void *ctx, const char *line, size_t len, td_error *err);

/** An answer's text; takes the reference. NULL for NULL, and when memory is short. */
char *td_json_answer_of(json_t *answer);

/**
 * Answer every line of standard input on standard output; where there is no answer, with {"error": the reason}. Each answer
 * is flushed before the next line is read, unless it goes to a regular file.
 * @param command  for messages about the streams, "tandem tokenize".
 * @return the exit status: 0; 1 when a line had no answer, or when reading or writing failed.
 */
int td_json_lines(const char *command, td_json_answer answer, void *ctx);

#endif
