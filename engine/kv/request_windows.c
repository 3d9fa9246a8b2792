#include "engine/kv/request_windows.h"

#include <assert.h>

void td_request_windows_begin(td_request_windows *r, td_window_pages *w, const uint32_t *pages, uint32_t n, uint32_t found) {
    r->first = td_window_pages_first(w, n);
    r->end = r->begun = n;
    r->branch = found > n ? found : 0;
    for (uint32_t i = 0; i < n; i++) r->table[i] = i < r->first ? TD_NO_PAGE : td_window_pages_hold(w, pages[i]);
}

void td_request_windows_extend(td_request_windows *r, td_window_pages *w, const uint32_t *pages, uint32_t end) {
    for (; (uint64_t)r->end * TD_KV_PAGE < end; r->end++) r->table[r->end] = td_window_pages_take(w, pages[r->end]);
}

void td_request_windows_replaced(td_request_windows *r, td_window_pages *w, uint32_t i, uint32_t page) {
    assert(i >= r->first && i < r->end);
    r->table[i] = td_window_pages_move(w, r->table[i], page);
}

static bool lies_before(const td_window_pages *w, uint32_t i, uint32_t border) {
    return i < border && i >= td_window_pages_first(w, border);
}

/* Whether another prompt may well begin where page i is read. It may where this one has begun and where others go their own
 * way; a retry or a next turn begins at the last borders of the prompt. */
static bool is_useful(const td_request_windows *r, const td_window_pages *w, uint32_t i, uint32_t n_prompt) {
    return i < r->begun || lies_before(w, i, r->branch) || lies_before(w, i, (n_prompt - 1) / TD_KV_PAGE) ||
           lies_before(w, i, n_prompt / TD_KV_PAGE);
}

void td_request_windows_pass(td_request_windows *r, td_window_pages *w, uint32_t n_computed, uint32_t n_prompt) {
    for (const uint32_t first = td_window_pages_first(w, n_computed / TD_KV_PAGE); r->first < first; r->first++) {
        td_window_pages_drop(w, r->table[r->first], is_useful(r, w, r->first, n_prompt));
        r->table[r->first] = TD_NO_PAGE;
    }
}

void td_request_windows_end(td_request_windows *r, td_window_pages *w) {
    while (r->end > r->first) td_window_pages_drop(w, r->table[--r->end], true);
    r->first = r->end = r->begun = r->branch = 0;
}
