/* Reading the JSON files of a model folder: bounded, strict, with sentences that name the file. */
#ifndef TD_CORE_FILES_JSON_FILE_H
#define TD_CORE_FILES_JSON_FILE_H

#include <jansson.h>

#include "tandem.h"

/**
 * Parse text as one JSON object; duplicate keys are refused, nesting is bounded by jansson.
 * @return TD_EFORMAT with the line of the defect. *out is the caller's (json_decref).
 */
TD_NODISCARD td_status td_json_parse(const char *text, size_t len, json_t **out, td_error *err);

/**
 * Read and parse a file of at most max_bytes. Sentences begin with the path.
 * @return TD_ENOTFOUND when there is no such file; TD_EIO, TD_ENOMEM, TD_EFORMAT.
 */
TD_NODISCARD td_status td_json_read(const char *path, size_t max_bytes, json_t **out, td_error *err);

/** Read a whole file of at most max_bytes; *out is malloc'd, terminated by a zero byte that *len leaves out. As
 * td_json_read. */
TD_NODISCARD td_status td_file_read(const char *path, size_t max_bytes, char **out, size_t *len, td_error *err);

#endif
