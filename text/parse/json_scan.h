/*
 * Finds where a JSON object or array that comes byte by byte ends. Some texts that are no JSON are recognised on the way;
 * whether the whole is JSON, a parser has to say.
 */
#ifndef TD_TEXT_PARSE_JSON_SCAN_H
#define TD_TEXT_PARSE_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#define TD_JSON_DEPTH_MAX 256

typedef enum { TD_JSON_MORE, TD_JSON_ENDS, TD_JSON_BAD } td_json_verdict;

/** Zero-initialise. */
typedef struct {
    uint32_t depth; /* open brackets */
    bool     in_string, escaped;
    uint64_t is_object[TD_JSON_DEPTH_MAX / 64]; /* a bit per open bracket */
} td_json_scan;

/** Add a byte, the first one '{' or '['. @return TD_JSON_ENDS with the bracket that closes the first one. */
td_json_verdict td_json_scan_byte(td_json_scan *s, char c);

#endif
