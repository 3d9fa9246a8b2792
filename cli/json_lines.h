/* Commands that answer each line of standard input with one JSON object a line. */
#ifndef TD_CLI_JSON_LINES_H
#define TD_CLI_JSON_LINES_H

#include <jansson.h>
#include <stddef.h>

#include "tandem.h"

/** Answer one line, which is given without its newline. @return a malloc'd JSON object without line breaks; or NULL with the
 * reason in err, which stays empty when memory is short. */
typedef char *(*td_json_answer)(void *ctx, const char *line, size_t len, td_error *err);

/** The text of a JSON value, malloc'd. Takes the reference. NULL for NULL, and when memory is short. */
char *td_json_answer_of(json_t *answer);

/**
 * Answer every line of standard input on standard output. A line without an answer gets {"error": the reason}. Each answer
 * is flushed before the next line is read, unless it goes to a regular file.
 * @param command begins messages about the streams: "tandem tokenize".
 * @return the exit status: 0; 1 when a line had no answer, or when reading or writing failed.
 */
int td_json_lines(const char *command, td_json_answer answer, void *ctx);

#endif
