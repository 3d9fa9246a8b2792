/*
 * What the prefix cache holds, and what of that is still to be told.
 *
 * DESIGN. The engine's thread says stored, removed and cleared; the publisher takes changes when it comes to it. Between the
 * two is no queue that could run full, but a state per KV page, so a publisher that is late costs neither memory nor time of
 * the engine: a page that came and went meanwhile is never told, and of a hundred tenants of a page the last one is.
 *
 * The pages that the cache holds are in one list, in the order in which they were stored. A parent is stored before its
 * children and leaves after them, so the order also has parents first. `to_tell` is the first page of the list that was not
 * told; all after it were not told either. Pages that were told and have left are in a second list, with the hash that was
 * told. Leaving is told before coming: when the same tokens move to another page, the last word is that they are there.
 *
 * One lock, held for as long as it takes to copy one page (engine), or a change (publisher). The event_fd becomes readable
 * when there is something to take.
 */
#ifndef TD_SCALE_KV_PAGE_TABLE_H
#define TD_SCALE_KV_PAGE_TABLE_H

#include <pthread.h>

#include "tandem.h"

#define TD_KV_CHANGE_PAGES 16 /* that came, and that left, in a change at most */

typedef struct {
    uint64_t hash, parent_hash;
    bool     has_parent;
} td_kv_stored;

/** To be told in this order: cleared, removed, stored. */
typedef struct {
    bool         cleared;
    uint32_t     n_removed, n_stored;
    uint64_t     removed[TD_KV_CHANGE_PAGES];
    td_kv_stored stored[TD_KV_CHANGE_PAGES];
    uint32_t    *tokens; /* [TD_KV_CHANGE_PAGES, page_tokens] of stored; the caller's */
} td_kv_change;

typedef struct td_kv_page td_kv_page;

typedef struct {
    uint32_t        n_pages, page_tokens;
    int             event_fd;                /* borrowed */
    td_kv_page     *pages;                   /* [n_pages] */
    uint32_t       *tokens;                  /* [n_pages, page_tokens] of pages that are held */
    pthread_mutex_t lock;                    /* guards what follows, pages and tokens */
    uint32_t        oldest, newest, to_tell; /* of the list of pages held */
    uint32_t        first_left, last_left;   /* of the list of pages that left */
    bool            clear;                   /* is to be told */
    bool            rung;                    /* event_fd is readable, or the publisher is at work */
} td_kv_page_table;

/** @param event_fd an eventfd that does not block; borrowed. The first change that is taken says "cleared". */
TD_NODISCARD td_status td_kv_page_table_open(td_kv_page_table *t, uint32_t n_pages, uint32_t page_tokens, int event_fd,
                                             td_error *err);
void                   td_kv_page_table_close(td_kv_page_table *t);

/* The engine's side: as td_cache_listener has them. */
void td_kv_page_table_store(td_kv_page_table *t, uint32_t page, uint32_t parent, const uint32_t *tokens);
void td_kv_page_table_remove(td_kv_page_table *t, uint32_t page);
void td_kv_page_table_clear(td_kv_page_table *t);

/** The publisher's side. @return false: nothing is to be told, and the next change will ring event_fd. */
bool td_kv_page_table_take(td_kv_page_table *t, td_kv_change *out);

/** Tell everything again: the next change begins with "cleared". */
void td_kv_page_table_restate(td_kv_page_table *t);

/**
 * The hash of a page and all before it: with local = XXH3(tokens, little-endian), the first page's is local, each other's
 * XXH3(parent's hash | local) (Mooncake RFC 1527, seed 0). @param parent NULL: there is none.
 */
uint64_t td_kv_page_hash(const uint64_t *parent, const uint32_t *tokens, uint32_t n);

#endif
