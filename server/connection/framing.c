#include "server/connection/framing.h"

#include <string.h>
#include <strings.h>

#include "server/connection/connections.h"

typedef struct {
    const char *line;     /* where the next line has to begin, if all before it end in CR LF */
    bool        bad_line; /* one does not, or has a CR in it */
    unsigned    hosts, lengths, codings;
    bool        bad_name, encoded;
    const char *coding;
} framing;

static bool is_token(const char *name, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i], letter = c | 32;
        if (!(letter >= 'a' && letter <= 'z') && !(c >= '0' && c <= '9') && (!c || !strchr("!#$%&'*+-.^_`|~", c)))
            return false;
    }
    return n > 0;
}

static enum MHD_Result look(void *cls, enum MHD_ValueKind kind, const char *name, size_t n, const char *value,
                            size_t value_n) {
    framing *f = cls;
    (void)kind;
    f->bad_line = f->bad_line || name != f->line || (value && memchr(value, '\r', value_n));
    f->line = value ? value + value_n + 2 : NULL;
    f->bad_name = f->bad_name || !is_token(name, n);
    f->hosts += !strcasecmp(name, "Host");
    f->lengths += !strcasecmp(name, "Content-Length");
    f->encoded = f->encoded || (!strcasecmp(name, "Content-Encoding") && strcasecmp(value ? value : "", "identity") != 0);
    if (!strcasecmp(name, "Transfer-Encoding")) {
        f->codings++;
        f->coding = value;
    }
    return MHD_YES;
}

void *td_note_uri(void *cls, const char *uri, struct MHD_Connection *connection) {
    td_connection *c = td_connection_of(connection);
    (void)cls;
    if (!c) return NULL;
    c->uri = c->uri_end = uri;
    bool in_path = true;
    c->path_has_nul = false;
    for (; (unsigned char)*c->uri_end > ' ' && *c->uri_end != 0x7f; c->uri_end++) {
        in_path = in_path && *c->uri_end != '?';
        c->path_has_nul = c->path_has_nul || (in_path && !strncmp(c->uri_end, "%00", 3));
    }
    return NULL;
}

/* Whether exactly one space lies on either side of the URI. libmicrohttpd accepts more spaces, takes some into the URI, and
 * ends method and URI at a NUL. Method, URI and version lie in one line of its buffer. */
static bool first_line_good(const td_connection *c, const char *method, const char *version) {
    size_t n = strlen(method);
    return c && is_token(method, n) && c->uri == method + n + 1 && c->uri_end + 1 == version;
}

/* The empty line that ends the head. libmicrohttpd puts NULs in place of all ends of lines, so lengths alone tell of
 * them. */
static bool head_ends_at(struct MHD_Connection *connection, const char *method, const char *line) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    return info && line + 2 == method + info->header_size;
}

td_status td_check_framing(struct MHD_Connection *connection, const char *method, const char *version, td_api_error *err) {
    framing f = {.line = version + strlen(version) + 2};
    bool    old = !strcmp(version, "HTTP/1.0");
    if (!first_line_good(td_connection_of(connection), method, version))
        return td_api_bad(err, NULL,
                          "The request's first line is not a method, a path and a version with one space between.");
    if (td_connection_of(connection)->path_has_nul) return td_api_bad(err, NULL, "The request's path has a NUL in it.");
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, look, &f);
    if (f.bad_line || !head_ends_at(connection, method, f.line))
        return td_api_bad(
            err, NULL, "A line of the request's head does not end in CR LF, has a CR in it, or goes on in the next line.");
    if (f.bad_name) return td_api_bad(err, NULL, "A header's name is empty or has a character that names do not have.");
    if (f.hosts > 1 || (f.hosts == 0 && !old)) return td_api_bad(err, NULL, "The request must have one 'Host' header.");
    if (f.lengths > 1) return td_api_bad(err, NULL, "The request has more than one 'Content-Length' header.");
    if (f.encoded)
        return td_api_fail(err, 415, "unsupported_media_type", "A body must come as it is, without a 'Content-Encoding'.");
    if (f.codings == 0) return TD_OK;
    if (f.lengths || old)
        return td_api_bad(err, NULL, "'Transfer-Encoding' does not go with 'Content-Length', nor with HTTP/1.0.");
    if (f.codings > 1 || !f.coding || strcasecmp(f.coding, "chunked") != 0)
        return td_api_fail(err, 501, "not_implemented", "The only 'Transfer-Encoding' here is 'chunked'.");
    return TD_OK;
}
