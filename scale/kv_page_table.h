/*
 * A table of the pages that the prefix cache holds, and of what subscribers do not know yet.
 *
 * DESIGN. The engine's thread reports that a page was stored or removed, or that all were cleared; the publisher takes
 * changes when it has time. Between the two is a state per KV page, not a queue that could fill up. So a publisher that is
 * late costs the engine neither memory nor time. A page that came and went meanwhile is never told, and of several contents
 * that a page had meanwhile only the last is told.
 *
 * The pages that the cache holds are in one list, in the order in which they were stored. A parent is stored before its
 * children and leaves after them, so the order also has parents first. `to_tell` is the first page of the list that was not
 * told; all after it were not told either. Pages that were told and have left are in a second list, with the hash that was
 * told. Pages that left are told before pages that came: when the same tokens move to another page, subscribers end up
 * knowing that they are cached.
 *
 * There is one lock. The engine holds it while it copies one page's tokens, the publisher while it copies a change. event_fd
 * becomes readable when there is something to take.
 */
#ifndef TD_SCALE_KV_PAGE_TABLE_H
#define TD_SCALE_KV_PAGE_TABLE_H

#include <pthread.h>

#include "tandem.h"

#define TD_KV_CHANGE_PAGES 16 /* the most stored pages, and the most removed pages, in a change */

typedef struct {
    uint64_t hash, parent_hash;
    bool     has_parent;
} td_kv_stored;

/** One change. Its parts are told in this order: cleared, removed, stored. */
typedef struct {
    bool         cleared;
    uint32_t     n_removed, n_stored;
    uint64_t     removed[TD_KV_CHANGE_PAGES];
    td_kv_stored stored[TD_KV_CHANGE_PAGES];
    uint32_t    *tokens; /* [TD_KV_CHANGE_PAGES, page_tokens] of the stored pages; memory of the caller */
} td_kv_change;

typedef struct td_kv_page td_kv_page;

typedef struct {
    uint32_t        n_pages, page_tokens;
    int             event_fd;                /* borrowed */
    td_kv_page     *pages;                   /* [n_pages] */
    uint32_t       *tokens;                  /* [n_pages, page_tokens] of the pages that are held */
    pthread_mutex_t lock;                    /* guards the fields below, pages and tokens */
    uint32_t        oldest, newest, to_tell; /* list of the pages that are held */
    uint32_t        first_left, last_left;   /* list of the pages that were told and have left */
    bool            clear;                   /* "cleared" is still to be told */
    bool            rung;                    /* event_fd is readable, or the publisher is at work */
} td_kv_page_table;

/** @param event_fd a non-blocking eventfd, borrowed. The first change that is taken says "cleared". */
TD_NODISCARD td_status td_kv_page_table_open(td_kv_page_table *t, uint32_t n_pages, uint32_t page_tokens, int event_fd,
                                             td_error *err);
void                   td_kv_page_table_close(td_kv_page_table *t);

/* The engine's side, with the arguments of td_cache_listener. */
void td_kv_page_table_store(td_kv_page_table *t, uint32_t page, uint32_t parent, const uint32_t *tokens);
void td_kv_page_table_remove(td_kv_page_table *t, uint32_t page);
void td_kv_page_table_clear(td_kv_page_table *t);

/** The publisher's side: take the next change. @return false if there is none; the next one will make event_fd readable. */
bool td_kv_page_table_take(td_kv_page_table *t, td_kv_change *out);

/** Have everything told again: the next change begins with "cleared". */
void td_kv_page_table_restate(td_kv_page_table *t);

/**
 * The hash of a page and all pages before it (Mooncake RFC 1527, seed 0). With local = XXH3(tokens, little-endian), the
 * first page's hash is local, and every other page's is XXH3(parent's hash | local). @param parent NULL for the first page.
 */
uint64_t td_kv_page_hash(const uint64_t *parent, const uint32_t *tokens, uint32_t n);

#endif
