/*
 * Appends JSON (and plain text) to a growing buffer. A value or key that follows another one gets a comma before it. An
 * allocation that fails sets `failed`, and everything after is dropped: check once, at the end.
 */
#ifndef TD_SERVER_API_JSON_WRITER_H
#define TD_SERVER_API_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/api/answer_budget.h"
#include "tandem.h"

/** Zero-initialise, but for the hold's budget where the buffer is to count as an answer. data is not terminated. */
typedef struct {
    char          *data;
    size_t         len, room;
    bool           failed;
    size_t         refused; /* failed, because the budget had no room for so many bytes; 0: it had */
    char           before;  /* the byte before data[0], which was taken already; 0: there is none */
    td_answer_hold hold;    /* of `room` bytes */
} td_jbuf;

/** Free the data. The buffer is as new, with the same budget. */
void td_jbuf_free(td_jbuf *b);

/** Copy bytes from *taken on, max at most; *taken moves behind them. @return how many. */
size_t td_jbuf_take(const td_jbuf *b, size_t *taken, char *to, size_t max);

/** All its bytes were taken: empty the buffer, and go on behind them. */
void td_jbuf_taken(td_jbuf *b);

/* Plain bytes. */
void td_jbuf_put(td_jbuf *b, const void *bytes, size_t n);
void td_jbuf_puts(td_jbuf *b, const char *s);
void td_jbuf_printf(td_jbuf *b, const char *fmt, ...) TD_PRINTF(2, 3);

/* JSON. */
void td_jw_open(td_jbuf *b, char bracket);  /* '{' or '[' */
void td_jw_close(td_jbuf *b, char bracket); /* '}' or ']' */
void td_jw_key(td_jbuf *b, const char *key);
void td_jw_text(td_jbuf *b, const char *s, size_t n);  /* what is not UTF-8 becomes U+FFFD */
void td_jw_chars(td_jbuf *b, const char *s, size_t n); /* the same without quotes: a part of a text, of whole characters */
void td_jw_str(td_jbuf *b, const char *s);             /* NULL: null */
void td_jw_int(td_jbuf *b, int64_t v);
void td_jw_real(td_jbuf *b, double v, int digits); /* not finite: null */
void td_jw_bool(td_jbuf *b, bool v);
void td_jw_null(td_jbuf *b);
void td_jw_raw(td_jbuf *b, const char *json, size_t n); /* a whole JSON value */

bool td_jw_is_utf8(const char *s, size_t n);

/* "key": value */
void td_jw_member_str(td_jbuf *b, const char *key, const char *s);
void td_jw_member_int(td_jbuf *b, const char *key, int64_t v);
void td_jw_member_bool(td_jbuf *b, const char *key, bool v);
void td_jw_member_null(td_jbuf *b, const char *key);

#endif
