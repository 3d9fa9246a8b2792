/*
 * Pages of the KV cache: which are free, and how many owners each of the others has. A page holds TD_KV_PAGE tokens of every
 * layer. Reference counts let several sequences share a page of a common prefix. Engine thread only.
 */
#ifndef TD_ENGINE_KV_KV_PAGES_H
#define TD_ENGINE_KV_KV_PAGES_H

#include "tandem.h"

typedef struct {
    uint32_t  n_pages, n_free;
    uint32_t *free_list; /* [n_pages] a stack: the page freed last is taken first, while it is still in the caches */
    uint32_t *refs;      /* [n_pages] owners; 0: free */
} td_kv_pages;

TD_NODISCARD td_status td_kv_pages_open(td_kv_pages *p, uint32_t n_pages, td_error *err);
void                   td_kv_pages_close(td_kv_pages *p);

/** Take n pages with one owner each, or none of them. @return false when fewer are free. */
bool td_kv_pages_take(td_kv_pages *p, uint32_t *pages, uint32_t n);

void td_kv_pages_share(td_kv_pages *p, uint32_t page); /* one owner more */
void td_kv_pages_drop(td_kv_pages *p, uint32_t page);  /* one owner less; the last one frees the page */

static inline uint32_t td_kv_pages_used(const td_kv_pages *p) {
    return p->n_pages - p->n_free;
}

#endif
