#include "engine/kv/window_pages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define NONE TD_NO_PAGE

/* ---- idle ones --------------------------------------------------------------------------------- */

static void idle_add_newest(td_window_pages *w, uint32_t i) {
    w->newer[i] = NONE;
    w->older[i] = w->newest;
    *(w->newest == NONE ? &w->oldest : &w->newer[w->newest]) = i;
    w->newest = i;
    w->n_idle++;
}

static void idle_add_oldest(td_window_pages *w, uint32_t i) {
    w->older[i] = NONE;
    w->newer[i] = w->oldest;
    *(w->oldest == NONE ? &w->newest : &w->older[w->oldest]) = i;
    w->oldest = i;
    w->n_idle++;
}

static void idle_remove(td_window_pages *w, uint32_t i) {
    *(w->newer[i] == NONE ? &w->newest : &w->older[w->newer[i]]) = w->older[i];
    *(w->older[i] == NONE ? &w->oldest : &w->newer[w->older[i]]) = w->newer[i];
    w->n_idle--;
}

static void release(td_window_pages *w, uint32_t i) {
    w->of_page[w->page[i]] = NONE;
    w->page[i] = NONE;
    w->free_list[w->n_free++] = i;
}

/* Free the page's window page, if it is idle. One that requests hold is free when they drop it. */
static void forget(td_window_pages *w, uint32_t page) {
    const uint32_t i = w->of_page[page];
    if (i == NONE || w->refs[i]) return;
    idle_remove(w, i);
    release(w, i);
}

/* ---- what the prefix cache tells --------------------------------------------------------------- */

static td_status cache_opens(void *user, uint32_t n_pages, uint32_t page_tokens, td_error *err) {
    (void)page_tokens;
    td_window_pages *w = user;
    w->n_pages = n_pages;
    w->of_page = malloc(n_pages * sizeof *w->of_page);
    if (!w->of_page) return td_fail(err, TD_ENOMEM, "out of memory for the windows of %u pages", n_pages);
    memset(w->of_page, 0xff, n_pages * sizeof *w->of_page); /* NONE */
    return TD_OK;
}

static void page_came(void *user, uint32_t page, uint32_t parent, const uint32_t *tokens) {
    (void)user, (void)page, (void)parent, (void)tokens;
}

static void page_left(void *user, uint32_t page) {
    forget(user, page);
}

static void cache_emptied(void *user) {
    td_window_pages *w = user;
    for (uint32_t page = 0; page < w->n_pages; page++) forget(w, page);
}

/* ---- life -------------------------------------------------------------------------------------- */

td_status td_window_pages_open(td_window_pages *w, uint32_t n, uint32_t window, td_prefix_cache *cache, td_error *err) {
    *w = (td_window_pages){.n = n,
                           .n_free = n,
                           .window = window,
                           .page = malloc(n * sizeof *w->page),
                           .refs = calloc(n, sizeof *w->refs),
                           .newer = calloc(n, sizeof *w->newer),
                           .older = calloc(n, sizeof *w->older),
                           .free_list = calloc(n, sizeof *w->free_list),
                           .newest = NONE,
                           .oldest = NONE,
                           .cache = cache,
                           .listener = {cache_opens, page_came, page_left, cache_emptied, w, .images = true}};
    if (!w->page || !w->refs || !w->newer || !w->older || !w->free_list) {
        td_window_pages_close(w);
        return td_fail(err, TD_ENOMEM, "out of memory for the list of %u pages of windows", n);
    }
    memset(w->page, 0xff, n * sizeof *w->page); /* NONE */
    for (uint32_t i = 0; i < n; i++) w->free_list[i] = n - 1 - i;
    td_status st = td_prefix_cache_listen(cache, &w->listener, err);
    if (st != TD_OK) td_window_pages_close(w);
    return st;
}

void td_window_pages_close(td_window_pages *w) {
    free(w->of_page);
    free(w->page);
    free(w->refs);
    free(w->newer);
    free(w->older);
    free(w->free_list);
    *w = (td_window_pages){0};
}

/* ---- use --------------------------------------------------------------------------------------- */

uint32_t td_window_pages_take(td_window_pages *w, uint32_t page) {
    assert(w->of_page[page] == NONE && (w->n_free || w->n_idle));
    if (!w->n_free) {
        forget(w, w->page[w->oldest]);
        w->evictions++;
    }
    const uint32_t i = w->free_list[--w->n_free];
    w->of_page[page] = i;
    w->page[i] = page;
    w->refs[i] = 1;
    return i;
}

uint32_t td_window_pages_hold(td_window_pages *w, uint32_t page) {
    const uint32_t i = w->of_page[page];
    assert(i != NONE);
    if (!w->refs[i]++) idle_remove(w, i);
    return i;
}

void td_window_pages_drop(td_window_pages *w, uint32_t i, bool useful) {
    assert(i < w->n && w->refs[i] > 0);
    if (--w->refs[i]) return;
    if (!td_prefix_cache_holds(w->cache, w->page[i]))
        release(w, i);
    else if (useful)
        idle_add_newest(w, i);
    else
        idle_add_oldest(w, i);
}

uint32_t td_window_pages_move(td_window_pages *w, uint32_t i, uint32_t to_page) {
    if (w->of_page[to_page] != NONE) {
        td_window_pages_drop(w, i, false);
        return td_window_pages_hold(w, to_page);
    }
    w->of_page[w->page[i]] = NONE;
    w->of_page[to_page] = i;
    w->page[i] = to_page;
    return i;
}

uint32_t td_window_pages_reach(const td_window_pages *w, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = n; i > 0 && i > td_window_pages_first(w, n); i--)
        if (w->of_page[pages[i - 1]] == NONE) n = i - 1; /* the window before page i - 1 is next */
    return n;
}
