#include "server/answer/answer.h"

#include <string.h>
#include <sys/socket.h>

#include "server/connection/library_errors.h"

/* The client has closed its sending half. When that came together with the request, libmicrohttpd (0.9.75, edge-triggered
 * epoll) does not see it and would keep the connection until it is idle for too long, while the client waits for its end. */
static bool client_sends_no_more(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *ci = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    char                            byte;
    return ci && recv(ci->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static bool has_header(const td_header *headers, size_t n, const char *name) {
    while (n > 0 && strcmp(headers[n - 1].name, name) != 0) n--;
    return n > 0;
}

enum MHD_Result td_answer_response(td_call *c, int http, struct MHD_Response *r, const td_header *headers, size_t n) {
    const char     *cors = c->cors_origin;
    bool            last = c->last || c->socket->reserve || client_sends_no_more(c->connection);
    const td_header common[] = {{"Connection", last ? "close" : NULL},
                                {"X-Content-Type-Options", "nosniff"},
                                {"Cache-Control", "no-store"},
                                {"Access-Control-Allow-Origin", cors},
                                {"Vary", cors ? "Origin, Access-Control-Request-Headers" : NULL}};
    size_t          n_common = sizeof common / sizeof *common;
    if (!r) return MHD_NO;
    enum MHD_Result result = MHD_YES;
    for (size_t i = 0; i < n + n_common && result == MHD_YES; i++) {
        const td_header *h = i < n ? &headers[i] : &common[i - n];
        bool             given = i >= n && has_header(headers, n, h->name);
        if (h->value && !given) result = MHD_add_response_header(r, h->name, h->value);
    }
    if (result == MHD_YES) result = td_queue_response(c->connection, (unsigned)http, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result answer(td_call *c, int http, const char *content_type, td_jbuf *body) {
    struct MHD_Response *r = body->len ? MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE)
                                       : MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    if (!r || !body->len) td_jbuf_free(body);
    *body = (td_jbuf){0};
    const td_header headers[] = {{"Content-Type", content_type},
                                 {"WWW-Authenticate", http == 401 ? "Bearer" : NULL},
                                 {"Allow", http == 405 ? c->allow : NULL},
                                 {"Retry-After", http == 503 ? "1" : NULL}};
    return td_answer_response(c, http, r, headers, sizeof headers / sizeof *headers);
}

enum MHD_Result td_answer_error(td_call *c, const td_api_error *err) {
    td_jbuf b = {0};
    if (c->api)
        c->api->write_error(&b, err);
    else
        td_api_error_write(&b, err);
    if (b.failed) {
        td_jbuf_free(&b);
        return MHD_NO;
    }
    return answer(c, err->http, "application/json", &b);
}

enum MHD_Result td_answer_text(td_call *c, int http, const char *content_type, td_jbuf *text) {
    if (text->failed) {
        td_api_error err;
        td_jbuf_free(text);
        td_api_no_memory(&err);
        return td_answer_error(c, &err);
    }
    return answer(c, http, content_type, text);
}

enum MHD_Result td_answer_json(td_call *c, int http, td_jbuf *json) {
    return td_answer_text(c, http, "application/json", json);
}
