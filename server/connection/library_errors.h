/*
 * Makes libmicrohttpd's own errors JSON, like all others.
 *
 * libmicrohttpd answers what it cannot parse by itself, with a page of HTML, and has no hook for that. But its answers go
 * through its public MHD_queue_response, and a function of the program comes before one of a shared library (ld.so(8)). So
 * this module defines that function: the library's own answers arrive there and are written as JSON. The server's answers go
 * to the library by td_queue_response. A libmicrohttpd linked with -Bsymbolic-functions bypasses this, and keeps its pages.
 */
#ifndef TD_SERVER_CONNECTION_LIBRARY_ERRORS_H
#define TD_SERVER_CONNECTION_LIBRARY_ERRORS_H

#include <microhttpd.h>

/** libmicrohttpd's MHD_queue_response: all that the server answers goes through here. */
enum MHD_Result td_queue_response(struct MHD_Connection *connection, unsigned http, struct MHD_Response *response);

#endif
