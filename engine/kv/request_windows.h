/*
 * Which window pages a request holds (window_pages.h): those of its pages from the window before the last border that it has
 * passed, to the last one that a step writes. That border may be where its next turn begins.
 *
 * Engine thread only.
 */
#ifndef TD_ENGINE_KV_REQUEST_WINDOWS_H
#define TD_ENGINE_KV_REQUEST_WINDOWS_H

#include "engine/kv/window_pages.h"

typedef struct {
    uint32_t *table;      /* [capacity of the request's pages] the caller's; TD_NO_PAGE where it holds none */
    uint32_t  first, end; /* it holds those of its pages first .. end - 1 */
    uint32_t  begun;      /* pages that it began behind */
    uint32_t  branch;     /* pages that another prompt has in common with this one: it may begin there; or 0 */
} td_request_windows;

/** Hold what rows behind the first n pages read, which td_window_pages_reach has said is there.
 * @param found the cache has so many pages of the prompt: if more than n, the prompt goes its own way behind them. */
void td_request_windows_begin(td_request_windows *r, td_window_pages *w, const uint32_t *pages, uint32_t n, uint32_t found);

/** Have window pages for the tokens up to end - 1. */
void td_request_windows_extend(td_request_windows *r, td_window_pages *w, const uint32_t *pages, uint32_t end);

/** The cache has given the request another page i when it was published. */
void td_request_windows_replaced(td_request_windows *r, td_window_pages *w, uint32_t i, uint32_t page);

/** So many tokens are computed, of which n_prompt are the prompt: give back what lies behind the window. */
void td_request_windows_pass(td_request_windows *r, td_window_pages *w, uint32_t n_computed, uint32_t n_prompt);

/** Give up all. */
void td_request_windows_end(td_request_windows *r, td_window_pages *w);

#endif
