/*
 * Stop strings over a growing text. Text that could be the beginning of a stop string is held back until it is decided.
 *
 * The match is the one whose end comes first, and of those the longest, so it does not depend on how the text was cut into
 * tokens. Pieces are whole characters, and a stop string begins with one, so what is let out is whole characters too.
 */
#ifndef TD_ENGINE_REQUESTS_STREAM_TEXT_H
#define TD_ENGINE_REQUESTS_STREAM_TEXT_H

#include "tandem.h"

#define TD_STOP_BYTES_MAX 1024 /* of one stop string */

typedef struct {
    char    *stop[TD_STOP_MAX]; /* [n_stop] copies */
    size_t   stop_len[TD_STOP_MAX];
    uint32_t n_stop;
    bool     include_stop; /* leave the stop string in the text */
    char    *buf;          /* what was let out by the last call, then what is held back */
    size_t   out_len, len, capacity;
} td_stream_text;

/** Copies the stop strings: at most TD_STOP_MAX, each 1..TD_STOP_BYTES_MAX bytes and beginning with a whole character. */
TD_NODISCARD td_status td_stream_text_open(td_stream_text *s, const char *const *stop, size_t n_stop, bool include_stop,
                                           td_error *err);
void                   td_stream_text_close(td_stream_text *s);

/**
 * Add text. Allocates only when a piece is longer than any before.
 * @param armed false: the piece is let out unseen (and what was held with it): no stop string may begin in it.
 * @param out   receives the text that is let out, valid until the next call.
 * @param match receives the number of the stop string that ended the text, or -1. After a match nothing more may be added.
 */
TD_NODISCARD td_status td_stream_text_add(td_stream_text *s, const char *text, size_t len, bool armed, const char **out,
                                          size_t *out_len, int *match);

/**
 * The text ends here without a match: *out is what the last add let out, then what is held back, then tail (what the
 * detokeniser still had). No stop string is looked for in the tail.
 */
TD_NODISCARD td_status td_stream_text_finish(td_stream_text *s, const char *tail, size_t len, const char **out,
                                             size_t *out_len);

#endif
