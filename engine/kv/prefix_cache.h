/*
 * The prefix cache: pages of earlier requests, found again by the tokens that are in them.
 *
 * DESIGN. A radix tree whose edges are whole pages: a node is one page of TD_KV_PAGE tokens, and its parent is the page that
 * holds the tokens before. This is SGLang's RadixAttention (arXiv 2312.07104) with the radix of a page, so that a page is
 * never split. A page has at most one node, so node i describes page i, and nothing is allocated after open. Children are
 * found through one hash table over (parent, tokens); tokens are compared in full.
 *
 * Here and in the names of this file, a token of an image is the image's key (engine/images/image_cache.h).
 *
 * The cache is one owner of each page that it holds. A page without another owner is idle, and idle pages are the ones that
 * may be evicted, the one that became idle first before the others. A request owns a path from the root, and pages are
 * dropped from the end of the path to its beginning, so a parent becomes idle after its children. What is evicted is
 * therefore always a leaf.
 *
 * What may be published: rows whose KV a later request would compute to the same bits. Engine thread only.
 */
#ifndef TD_ENGINE_KV_PREFIX_CACHE_H
#define TD_ENGINE_KV_PREFIX_CACHE_H

#include "engine/kv/kv_pages.h"

#define TD_CACHE_LISTENERS_MAX 3

typedef struct td_prefix_node td_prefix_node;

typedef struct {
    td_kv_pages    *pages;
    bool            on;                     /* off: nothing is ever published, so nothing is found */
    td_prefix_node *nodes;                  /* [n_pages] */
    uint32_t       *tokens;                 /* [n_pages, TD_KV_PAGE] of the nodes */
    uint32_t       *buckets;                /* [n_buckets] first node of each chain */
    uint32_t        n_buckets;              /* a power of two */
    uint32_t        newest, oldest, n_idle; /* the list of idle pages, by when they became idle */
    uint64_t        evictions;              /* pages, since open */

    const td_cache_listener *listeners[TD_CACHE_LISTENERS_MAX]; /* [n_listeners] told of pages that come and go */
    uint32_t                 n_listeners;
} td_prefix_cache;

/** @param pages borrowed; from here on its pages are taken and dropped through the cache. */
TD_NODISCARD td_status td_prefix_cache_open(td_prefix_cache *c, td_kv_pages *pages, bool on, td_error *err);
void                   td_prefix_cache_close(td_prefix_cache *c);

/** Add a listener and open it, before anything is in the cache. At most TD_CACHE_LISTENERS_MAX. @param listener borrowed. */
TD_NODISCARD td_status td_prefix_cache_listen(td_prefix_cache *c, const td_cache_listener *listener, td_error *err);

/** Whether the page is in the cache. */
bool td_prefix_cache_holds(const td_prefix_cache *c, uint32_t page);

/** Pages that can be had: free ones, and idle ones. */
static inline uint32_t td_prefix_cache_available(const td_prefix_cache *c) {
    return c->pages->n_free + c->n_idle;
}

/** Take n pages with one owner each, evicting as many as it takes, or none of them. @return false when fewer can be had. */
bool td_prefix_cache_take(td_prefix_cache *c, uint32_t *pages, uint32_t n);

/** One owner less. Drop the pages of a sequence from the last to the first. */
void td_prefix_cache_drop(td_prefix_cache *c, uint32_t page);

/**
 * The longest run of cached pages that begins tokens[0 .. max_pages * TD_KV_PAGE).
 * @param pages receives them, with one owner more each. @return how many.
 */
uint32_t td_prefix_cache_match(td_prefix_cache *c, const uint32_t *tokens, uint32_t max_pages, uint32_t *pages);

/**
 * Publish pages[begin .. end) of a sequence whose tokens[0 .. end * TD_KV_PAGE) have been computed; those before begin came
 * from the cache or were published before. Where the cache has the same tokens already, the sequence gets the cache's page,
 * whose content is the same, and its own is dropped.
 */
void td_prefix_cache_publish(td_prefix_cache *c, const uint32_t *tokens, uint32_t begin, uint32_t end, uint32_t *pages);

/** Forget everything. Pages of running requests stay theirs, but must not be published any more. */
void td_prefix_cache_flush(td_prefix_cache *c);

#endif
