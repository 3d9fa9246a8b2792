/*
 * Exchange of KV pages with a store that several engines share: pages computed here go out, pages of others come in.
 *
 * DESIGN. Out: a page that comes into the prefix cache is copied to memory of the store, which sends it when it likes.
 * In: where a request's prompt goes on behind the pages that the cache has, the store is asked for the pages that follow,
 * before the request is admitted. The request waits, in the waiting list and without pages of its own, until the store has
 * no more of them or its time is over. What comes is put into the prefix cache, between steps, as a page that nobody holds.
 * Then the request is admitted as any other: it finds in the cache what is there, and computes the rest. So a page from the
 * store can be evicted like all others, a request that waits holds no room, and nothing depends on whether the store
 * answers.
 *
 * A request looks once before it is admitted, and again only after a retraction. Requests whose next page is already looked
 * for wait with the one that looks.
 *
 * A page's key is a hash of the page's tokens and the key of the page before; of a first page, the engine's fingerprint
 * (page_fingerprint.h). Pages at and behind an image stay here: an image's key is this engine's own. Engine thread only; nothing is allocated after open.
 */
#ifndef TD_ENGINE_KV_PAGE_EXCHANGE_H
#define TD_ENGINE_KV_PAGE_EXCHANGE_H

#include "engine/kv/prefix_cache.h"
#include "engine/requests/request.h"
#include "model/model.h"

#define TD_LOOKUPS_MAX 16 /* lookups open at the same time */

typedef struct {
    td_request *request;  /* NULL: the place is free */
    void       *handle;   /* the store's */
    uint32_t    next;     /* index of the request's page that comes next */
    td_page_key next_key; /* key of the first page asked for: requests that need the same page wait */
    double      deadline_s;
} td_page_lookup;

typedef struct {
    const td_page_store *store; /* NULL: there is none, and then only `store` is set */
    td_model            *model;
    td_prefix_cache     *cache;
    td_cache_listener    listener;
    td_page_key          root;   /* the fingerprint */
    td_page_key         *keys;   /* [pages of the cache] key of each page that it holds */
    td_page_key         *wanted; /* [max_pages] scratch: the keys that a new lookup asks for */
    uint32_t             max_pages;
    td_page_lookup       lookups[TD_LOOKUPS_MAX];
    bool                 landing; /* the page being published came from the store: it is not sent back */
} td_page_exchange;

/**
 * Open the store, and listen to the cache.
 * @param store, model, cache borrowed. @param f what the store is told; its fingerprint is set.
 */
TD_NODISCARD td_status td_page_exchange_open(td_page_exchange *x, const td_page_store *store, const td_page_format *f,
                                             td_model *model, td_prefix_cache *cache, td_error *err);
void                   td_page_exchange_close(td_page_exchange *x); /* and the store; x may be all zero */

/** Put pages that have come into the cache, and end lookups that are over or late. Between steps. */
void td_page_exchange_take_in(td_page_exchange *x);

/**
 * Whether a waiting request has to wait for the store. Begins a lookup if there was none since the request last ran.
 * @param n_found pages of the request that the cache has. @param n_wanted pages that it could take from the cache.
 */
bool td_page_exchange_waits(td_page_exchange *x, td_request *r, uint32_t n_found, uint32_t n_wanted);

void td_page_exchange_left(td_page_exchange *x, const td_request *r); /* r waits no more */
void td_page_exchange_flush(td_page_exchange *x);                     /* end all lookups: their pages do not come in */

/** When the first open lookup is late; 0: there is none. */
double td_page_exchange_deadline(const td_page_exchange *x);

/** The key of a page whose tokens follow those of the page with key `parent`. */
td_page_key td_page_key_next(td_page_key parent, const uint32_t *tokens);

#endif
