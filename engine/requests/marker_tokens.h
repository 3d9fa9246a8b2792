/*
 * The tokens of a vocabulary that matter to the markers around a model's reasoning. They are found by looking at every token
 * once. The lists are immutable, and requests share them by reference counts.
 */
#ifndef TD_ENGINE_REQUESTS_MARKER_TOKENS_H
#define TD_ENGINE_REQUESTS_MARKER_TOKENS_H

#include <stdatomic.h>

#include "tandem.h"

/** A token and where in a marker it begins. */
typedef struct {
    uint32_t id;
    uint32_t from;
} td_marker_token;

typedef struct {
    const char      *open, *close; /* the markers; static */
    size_t           open_len, close_len;
    td_marker_token *opening; /* [n_opening] the token's bytes are those of `open` at `from` */
    td_marker_token *beyond;  /* [n_beyond] behind close[0 .. from) the token completes `close` and goes on; from 0:
                                 the token contains all of `close` and goes on */
    size_t           n_opening, n_beyond;
    atomic_uint      refs; /* acq_rel: the last owner frees */
} td_marker_tokens;

/**
 * Make the lists from a tokenizer's tokens with ids below vocab, special ones included. One reference, the caller's; tok is
 * not kept. Takes some milliseconds.
 * @param open, close static strings of 1 .. TD_MARKER_BYTES_MAX bytes. @return TD_ENOMEM.
 */
TD_NODISCARD td_status td_marker_tokens_make(const td_tokenizer *tok, uint32_t vocab, const char *open, const char *close,
                                             td_marker_tokens **out);
td_marker_tokens      *td_marker_tokens_hold(td_marker_tokens *t);
void                   td_marker_tokens_release(td_marker_tokens *t); /* t may be NULL */

#endif
