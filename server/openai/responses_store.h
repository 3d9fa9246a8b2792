/*
 * Finished responses, kept so that a later request can go on from one (previous_response_id) or fetch it. Bounded by their
 * number and by their bytes; the least recently used goes.
 *
 * A response holds the one that it went on from, so a conversation is kept once, however many responses it has. One that was
 * deleted, or had to go, is no longer found, but lives as long as a later one needs it, and its bytes count as long as it
 * lives.
 *
 * Threads: any. `lock` guards the lists, the counts and all references; it is held for a search of the list, never while a
 * text is copied or parsed. What a reference points to does not change.
 */
#ifndef TD_SERVER_OPENAI_RESPONSES_STORE_H
#define TD_SERVER_OPENAI_RESPONSES_STORE_H

#include <pthread.h>

#include "tandem.h"

#define TD_RESPONSE_ID_MAX 64 /* bytes with the NUL */

typedef struct td_stored_response td_stored_response;
struct td_stored_response {
    char                id[TD_RESPONSE_ID_MAX];
    td_stored_response *previous; /* a reference; NULL: it begins a conversation */
    char               *input;    /* [input_len] JSON: the list of the request's items; owned */
    size_t              input_len;
    char               *text; /* [text_len] JSON: the response; owned */
    size_t              text_len;
    size_t              output, output_len; /* where in the text the list of its items is */
    bool                background;         /* it was made in the background */

    /* the store's */
    uint32_t            refs; /* the list's, callers', and of responses that went on from it */
    td_stored_response *newer, *older;
};

typedef struct td_response_store {
    pthread_mutex_t     lock;
    uint32_t            n_max; /* 0: nothing is kept */
    size_t              bytes_max;
    uint32_t            n; /* that can be found */
    size_t              bytes;
    td_stored_response *newest, *oldest; /* by use */
} td_response_store;

void td_response_store_init(td_response_store *s, uint32_t n_max, size_t bytes_max);
/** All references but the list's must have been released. */
void td_response_store_close(td_response_store *s);

/** Keep a copy of *r. Its reference `previous` and its malloc'd texts are taken over. @return TD_ENOMEM: it is not kept. */
TD_NODISCARD td_status td_response_store_put(td_response_store *s, const td_stored_response *r);

/** A reference to a response, which is the most recently used now; NULL: it is not there. */
td_stored_response *td_response_store_find(td_response_store *s, const char *id);
void                td_response_store_release(td_response_store *s, td_stored_response *r); /* NULL: nothing */

/** @return false: it is not there. */
bool td_response_store_delete(td_response_store *s, const char *id);

#endif
