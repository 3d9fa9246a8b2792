#include "engine/requests/stream_text.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define INITIAL_CAPACITY 2048

td_status td_stream_text_open(td_stream_text *s, const char *const *stop, size_t n_stop, bool include_stop, td_error *err) {
    *s = (td_stream_text){.include_stop = include_stop, .capacity = INITIAL_CAPACITY};
    if (n_stop > TD_STOP_MAX)
        return td_fail(err, TD_EINVAL, "stop: %zu strings given, at most %d are allowed", n_stop, TD_STOP_MAX);
    for (size_t i = 0; i < n_stop; i++) {
        size_t len = strlen(stop[i]);
        if (len == 0) return td_fail(err, TD_EINVAL, "stop: a stop string is empty");
        if (len > TD_STOP_BYTES_MAX)
            return td_fail(err, TD_EINVAL, "stop: a stop string is longer than %d bytes", TD_STOP_BYTES_MAX);
        if ((stop[i][0] & 0xc0) == 0x80) return td_fail(err, TD_EINVAL, "stop: a stop string is not UTF-8");
    }
    s->buf = malloc(s->capacity);
    for (size_t i = 0; s->buf && i < n_stop; i++) {
        s->stop_len[i] = strlen(stop[i]);
        s->stop[i] = strdup(stop[i]);
        s->n_stop++;
    }
    bool complete = s->buf != NULL;
    for (uint32_t i = 0; i < s->n_stop; i++) complete &= s->stop[i] != NULL;
    if (complete) return TD_OK;
    td_stream_text_close(s);
    return td_fail(err, TD_ENOMEM, "out of memory for a request");
}

void td_stream_text_close(td_stream_text *s) {
    for (uint32_t i = 0; i < s->n_stop; i++) free(s->stop[i]);
    free(s->buf);
    *s = (td_stream_text){0};
}

/* The match that ends first in buf[0..len), looking for ends beyond `seen`: its number, with *end; or -1. */
static int find_stop(const td_stream_text *s, size_t seen, size_t *end) {
    int best = -1;
    for (uint32_t i = 0; i < s->n_stop; i++) {
        size_t      n = s->stop_len[i], from = seen + 1 > n ? seen + 1 - n : 0;
        const char *at = memmem(s->buf + from, s->len - from, s->stop[i], n);
        if (!at) continue;
        size_t e = (size_t)(at - s->buf) + n;
        if (best < 0 || e < *end || (e == *end && n > s->stop_len[best])) {
            best = (int)i;
            *end = e;
        }
    }
    return best;
}

/* The longest end of the text that is the beginning of a stop string. */
static size_t undecided(const td_stream_text *s) {
    size_t hold = 0;
    for (uint32_t i = 0; i < s->n_stop; i++) {
        size_t k = s->stop_len[i] - 1 < s->len ? s->stop_len[i] - 1 : s->len;
        while (k > hold && memcmp(s->buf + s->len - k, s->stop[i], k) != 0) k--;
        if (k > hold) hold = k;
    }
    return hold;
}

static td_status append(td_stream_text *s, const char *text, size_t len) {
    if (len > s->capacity - s->len) {
        size_t capacity = s->len + len;
        char  *buf = capacity < len ? NULL : realloc(s->buf, capacity);
        if (!buf) return TD_ENOMEM;
        s->buf = buf;
        s->capacity = capacity;
    }
    if (len) memcpy(s->buf + s->len, text, len);
    s->len += len;
    return TD_OK;
}

td_status td_stream_text_add(td_stream_text *s, const char *text, size_t len, bool armed, const char **out, size_t *out_len,
                             int *match) {
    memmove(s->buf, s->buf + s->out_len, s->len - s->out_len); /* what is out is forgotten */
    s->len -= s->out_len;
    s->out_len = 0;
    size_t seen = s->len, end = 0;
    TD_TRY(append(s, text, len));
    *match = armed ? find_stop(s, seen, &end) : -1;
    if (*match >= 0)
        s->out_len = s->len = s->include_stop ? end : end - s->stop_len[*match];
    else
        s->out_len = s->len - (armed ? undecided(s) : 0);
    *out = s->buf;
    *out_len = s->out_len;
    return TD_OK;
}

td_status td_stream_text_finish(td_stream_text *s, const char *tail, size_t len, const char **out, size_t *out_len) {
    TD_TRY(append(s, tail, len));
    *out = s->buf;
    *out_len = s->out_len = s->len;
    return TD_OK;
}
