/*
 * Compiled grammars by their source, so that requests that repeat a schema share one grammar and what its masks have found.
 * The least recently used goes when there is no room. Any thread.
 */
#ifndef TD_SERVER_REQUEST_GRAMMAR_CACHE_H
#define TD_SERVER_REQUEST_GRAMMAR_CACHE_H

#include <pthread.h>

#include "tandem.h"

#define TD_GRAMMAR_CACHE_MAX 16

typedef struct {
    td_grammar     *grammar; /* a reference; NULL: free */
    td_grammar_kind kind;
    char           *source; /* owned */
    size_t          len;
    uint64_t        used; /* larger: later */
} td_grammar_entry;

typedef struct {
    pthread_mutex_t  lock;
    td_grammar_entry entries[TD_GRAMMAR_CACHE_MAX];
    uint64_t         uses;
} td_grammar_cache;

void td_grammar_cache_init(td_grammar_cache *c);
void td_grammar_cache_close(td_grammar_cache *c);

/** The grammar of a source, a reference; NULL: it is not kept. */
td_grammar *td_grammar_cache_find(td_grammar_cache *c, td_grammar_kind kind, const char *source, size_t len);

/** The grammar of a source, compiled on this thread unless it is there. @param out a reference. @return as
 * td_grammar_compile. */
TD_NODISCARD td_status td_grammar_cache_get(td_grammar_cache *c, td_grammar_kind kind, const char *source, size_t len,
                                            td_grammar **out, td_error *err);

#endif
