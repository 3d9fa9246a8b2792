/* Answers that are known in full: JSON, text, errors; and the headers that every answer carries. */
#ifndef TD_SERVER_ANSWER_ANSWER_H
#define TD_SERVER_ANSWER_ANSWER_H

#include "server/connection/call.h"

/** Answer with a JSON document; takes the buffer. A failed buffer becomes a 500. */
enum MHD_Result td_answer_json(td_call *c, int http, td_jbuf *json);
enum MHD_Result td_answer_text(td_call *c, int http, const char *content_type, td_jbuf *text);
enum MHD_Result td_answer_error(td_call *c, const td_api_error *err);

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
