#include "server/connection/library_errors.h"

#include <dlfcn.h>
#include <pthread.h>

#include "server/connection/connections.h"

static enum MHD_Result (*queue_response)(struct MHD_Connection *, unsigned, struct MHD_Response *);

static void find_queue_response(void) {
    *(void **)&queue_response = dlsym(RTLD_NEXT, "MHD_queue_response");
}

enum MHD_Result td_queue_response(struct MHD_Connection *connection, unsigned http, struct MHD_Response *response) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_queue_response);
    return queue_response ? queue_response(connection, http, response) : MHD_NO;
}

static void describe(td_api_error *err, unsigned http) {
    static const struct {
        unsigned    http;
        const char *code, *sentence;
    } ERRORS[] = {
        {MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large",
         "The length of the body, or of a chunk of it, is no number that this server can count to."},
        {MHD_HTTP_URI_TOO_LONG, "headers_too_large", "The request's first line is larger than this server takes."},
        {MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large",
         "The request's path and headers are larger than this server takes."},
        {MHD_HTTP_HTTP_VERSION_NOT_SUPPORTED, "http_version_not_supported", "This server speaks HTTP/1.1 and HTTP/1.0."},
        {MHD_HTTP_INTERNAL_SERVER_ERROR, "internal_error", "The request could not be read."},
    };
    td_api_bad(err, NULL, "The request is not HTTP/1.1: its first line, a header, a length or a chunk is malformed.");
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].http == http) td_api_fail(err, (int)http, ERRORS[i].code, "%s", ERRORS[i].sentence);
}

/* Called by libmicrohttpd. The JSON goes straight to the socket, because libmicrohttpd does not send after every error
 * (0.9.75: too many arguments in the path). Its own page goes to a socket that is shut by then. */
enum MHD_Result MHD_queue_response(struct MHD_Connection *connection, unsigned http, struct MHD_Response *page) {
    td_connection *c = td_connection_of(connection);
    td_api_error   err;
    describe(&err, http);
    if (c) td_connection_refuse(c, &err);
    return td_queue_response(connection, http, page);
}
