/*
 * Pages of layers with a sliding window: which are free, whose tokens each of the others has, and who reads them.
 *
 * DESIGN. Layers that read the last tokens alone have pages of their own, fewer than there are pages of KV. A page of KV has
 * a window page while its tokens are computed and until the windows of all its requests have passed it
 * (request_windows.h). After that the window page is idle, if its page is in the prefix cache: a prompt may begin behind a
 * cached page only where the window before is still there. An idle window page is taken away when another is needed. Those
 * at borders where prompts are likely to begin go last, the one that was of use longest ago first; what a window has just
 * passed goes before all of these.
 *
 * There are so many window pages (td_window_cost, model/memory_plan.h) that requests never wait for one. Engine thread only;
 * nothing is allocated after open.
 */
#ifndef TD_ENGINE_KV_WINDOW_PAGES_H
#define TD_ENGINE_KV_WINDOW_PAGES_H

#include "engine/kv/prefix_cache.h"
#include "model/step_rows.h"

typedef struct {
    uint32_t  n, n_pages, window; /* window: the longest, in tokens; at least 1 */
    uint32_t *of_page;            /* [n_pages] the page's window page, or TD_NO_PAGE */
    uint32_t *page;               /* [n] whose it is; TD_NO_PAGE: it is free */
    uint32_t *refs;               /* [n] requests that hold it; 0: it is idle or free */
    uint32_t *newer, *older;      /* [n] in the list of idle ones */
    uint32_t *free_list;          /* [n] a stack */
    uint32_t  n_free, n_idle, newest, oldest;
    uint64_t  evictions; /* since open: idle ones that were needed */

    const td_prefix_cache *cache;
    td_cache_listener      listener; /* of the cache: a page that leaves it takes its window page with it */
} td_window_pages;

/** Open and listen to the cache. @param n window pages, at most one for each page. @param cache borrowed. */
TD_NODISCARD td_status td_window_pages_open(td_window_pages *w, uint32_t n, uint32_t window, td_prefix_cache *cache,
                                            td_error *err);
void                   td_window_pages_close(td_window_pages *w); /* one that is not open is fine */

/** A window page for a page that has none, with one owner. */
uint32_t td_window_pages_take(td_window_pages *w, uint32_t page);

/** One owner more of the window page that the page has. @return it */
uint32_t td_window_pages_hold(td_window_pages *w, uint32_t page);

/** One owner less. The last one leaves it idle if its page is cached, else free. @param useful a prompt may begin behind it */
void td_window_pages_drop(td_window_pages *w, uint32_t window_page, bool useful);

/** A page was published, and the cache had another with the same tokens: so the owner of its window page has that one's
 * instead, which is the same one if it had none. @return it */
uint32_t td_window_pages_move(td_window_pages *w, uint32_t window_page, uint32_t to_page);

/** The first page of a sequence that rows behind n of its pages read. */
static inline uint32_t td_window_pages_first(const td_window_pages *w, uint32_t n) {
    const uint32_t tokens = n * TD_KV_PAGE;
    return tokens >= w->window ? (tokens - w->window + 1) / TD_KV_PAGE : 0;
}

/** The most of a sequence's first n pages behind which it can go on: their last ones have window pages. @param pages [n] */
uint32_t td_window_pages_reach(const td_window_pages *w, const uint32_t *pages, uint32_t n);

/** Those that requests hold. */
static inline uint32_t td_window_pages_used(const td_window_pages *w) {
    return w->n - w->n_free - w->n_idle;
}

#endif
