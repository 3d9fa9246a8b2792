#include "server/answer/answer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "server/connection/library_errors.h"

#define PIECE_BYTES 16384 /* that libmicrohttpd asks for at once */

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

/* Called by libmicrohttpd when the socket takes more. */
static ssize_t read_piece(void *call, uint64_t pos, char *to, size_t max) {
    td_call *c = call;
    td_connection_takes(c->socket, pos);
    return c->read(c, to, max);
}

static enum MHD_Result answer(td_call *c, int http, const char *content_type, struct MHD_Response *r) {
    const td_header headers[] = {{"Content-Type", content_type},
                                 {"WWW-Authenticate", http == 401 ? "Bearer" : NULL},
                                 {"Allow", http == 405 ? c->allow : NULL},
                                 {"Retry-After", http == 503 ? "1" : NULL}};
    td_connection_takes(c->socket, 0);
    return td_answer_response(c, http, r, headers, sizeof headers / sizeof *headers);
}

enum MHD_Result td_answer_pieces(td_call *c, int http, const char *content_type, uint64_t size,
                                 ssize_t (*read)(td_call *c, char *to, size_t max)) {
    c->read = read;
    return answer(c, http, content_type, MHD_create_response_from_callback(size, PIECE_BYTES, read_piece, c, NULL));
}

static ssize_t read_reply(td_call *c, char *to, size_t max) {
    return (ssize_t)td_jbuf_take(&c->reply, &c->sent, to, max);
}

/* A text that the budget counts stays with the call until it is sent. */
static enum MHD_Result answer_large(td_call *c, int http, const char *content_type, td_jbuf *text) {
    if (text != &c->reply) {
        td_jbuf_free(&c->reply);
        c->reply = *text;
        *text = (td_jbuf){0};
    }
    td_jbuf *b = &c->reply;
    char    *fitted = realloc(b->data, b->len);
    if (fitted) b->data = fitted;
    b->hold.budget = c->answers;
    if (td_answer_hold_set(&b->hold, b->len)) return td_answer_pieces(c, http, content_type, b->len, read_reply);
    td_api_error err;
    td_answer_no_room(&err, &b->hold, b->len);
    td_jbuf_free(b);
    return td_answer_error(c, &err);
}

static enum MHD_Result answer_small(td_call *c, int http, const char *content_type, td_jbuf *text) {
    struct MHD_Response *r = text->len ? MHD_create_response_from_buffer(text->len, text->data, MHD_RESPMEM_MUST_FREE)
                                       : MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    if (r && text->len) text->data = NULL; /* the response's */
    td_jbuf_free(text);
    return answer(c, http, content_type, r);
}

td_status td_answer_no_room(td_api_error *err, const td_answer_hold *h, size_t bytes) {
    size_t mib = h->budget->max >> 20;
    atomic_fetch_add_explicit(&h->budget->refused, 1, memory_order_relaxed);
    if (!td_answer_hold_could(h, bytes))
        return td_api_fail(err, 400, "answer_too_large", "The answer takes more than the %zu MiB of --max-answers-mib.",
                           mib);
    return td_api_fail(err, 503, "answers_full",
                       "Clients have not taken their answers yet, which fill the %zu MiB of --max-answers-mib.", mib);
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
    return answer_small(c, err->http, "application/json", &b);
}

enum MHD_Result td_answer_text(td_call *c, int http, const char *content_type, td_jbuf *text) {
    if (text->failed) {
        td_api_error err;
        if (text->refused)
            td_answer_no_room(&err, &text->hold, text->refused);
        else
            td_api_no_memory(&err);
        td_jbuf_free(text);
        return td_answer_error(c, &err);
    }
    return (text->len > TD_ANSWER_FREE ? answer_large : answer_small)(c, http, content_type, text);
}

enum MHD_Result td_answer_json(td_call *c, int http, td_jbuf *json) {
    return td_answer_text(c, http, "application/json", json);
}
