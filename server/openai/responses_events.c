#include "server/openai/responses_events.h"

#include <stdlib.h>

#define STREAM_BLOCK 16384 /* bytes libmicrohttpd asks for at once */

/* One connection that has the events. */
typedef struct {
    td_event_reader    reader;
    td_background_job *job; /* a reference */
} stream;

static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max) {
    stream *s = cls;
    (void)pos;
    return td_event_log_read(&s->reader, to, max);
}

/* Called by libmicrohttpd when the answer is sent, or its connection has ended. */
static void free_stream(void *cls) {
    stream *s = cls;
    td_event_log_close(&s->reader);
    td_background_release(s->job);
    free(s);
}

static stream *stream_open(td_call *c, td_background_job *job, const uint64_t *after, td_api_error *err) {
    uint64_t n_events;
    stream  *s = calloc(1, sizeof *s);
    if (!s) {
        td_api_no_memory(err);
        return NULL;
    }
    s->reader.connection = c->connection;
    s->reader.fd = c->socket->fd;
    td_status st = td_event_log_open(&job->log, &s->reader, after, &n_events);
    if (st == TD_OK) {
        s->job = td_background_ref(job);
        return s;
    }
    free(s);
    if (st == TD_EINVAL)
        td_api_bad(err, "starting_after", "'starting_after' is %llu, but this response has only %llu events so far.",
                   (unsigned long long)*after, (unsigned long long)n_events);
    else
        td_api_bad(err, "stream", "The events of this response are not kept: there was no room for them.");
    return NULL;
}

enum MHD_Result td_answer_events(td_call *c, td_background_job *job, const uint64_t *after) {
    const td_header headers[] = {{"Content-Type", "text/event-stream; charset=utf-8"},
                                 {"X-Accel-Buffering", "no"}}; /* proxies must not collect chunks */
    td_api_error    err;
    stream         *s = stream_open(c, job, after, &err);
    if (!s) return td_answer_error(c, &err);
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, s, free_stream);
    if (!r) free_stream(s);
    return td_answer_response(c, 200, r, headers, 2);
}
