/* What libmicrohttpd calls for each request; cls is the td_server, *state the request's td_call. */
#ifndef TD_SERVER_HTTP_REQUEST_H
#define TD_SERVER_HTTP_REQUEST_H

#include <microhttpd.h>

/** Called once with the headers, then with pieces of the body, then without any; and again after a resume. */
enum MHD_Result td_on_request(void *cls, struct MHD_Connection *connection, const char *uri, const char *method,
                              const char *version, const char *data, size_t *data_size, void **state);

/** The answer was sent, or the connection broke. */
void td_on_completed(void *cls, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode how);

#endif
