/* Answers that are known in full: JSON, text, errors; and the headers that every answer carries. */
#ifndef TD_SERVER_ANSWER_ANSWER_H
#define TD_SERVER_ANSWER_ANSWER_H

#include "server/connection/call.h"

/** Answer with a JSON document; takes the buffer. One that failed becomes a 500, or says that there is no room for it. */
enum MHD_Result td_answer_json(td_call *c, int http, td_jbuf *json);
enum MHD_Result td_answer_text(td_call *c, int http, const char *content_type, td_jbuf *text);
enum MHD_Result td_answer_error(td_call *c, const td_api_error *err);

/**
 * Answer with JSON that is made as the client takes it: read writes the next bytes, at most max, to `to`, and returns how
 * many they are, MHD_CONTENT_READER_END_OF_STREAM, or MHD_CONTENT_READER_END_WITH_ERROR. @param size MHD_SIZE_UNKNOWN: not
 * known before.
 */
enum MHD_Result td_answer_pieces(td_call *c, int http, const char *content_type, uint64_t size,
                                 ssize_t (*read)(td_call *c, char *to, size_t max));

/** err: there is no room for an answer of so many bytes, now (a 503) or ever (a 400). @return TD_EINVAL. */
td_status td_answer_no_room(td_api_error *err, const td_answer_hold *h, size_t bytes);

typedef struct {
    const char *name, *value; /* value NULL: left out */
} td_header;

/**
 * Queue a response with the given headers, and with those of every answer's headers that are not among them. Takes the
 * response (NULL: there was no memory).
 * @return MHD_NO when memory is short: the connection ends, rather than with an answer that lacks a header.
 */
enum MHD_Result td_answer_response(td_call *c, int http, struct MHD_Response *r, const td_header *headers, size_t n);

#endif
