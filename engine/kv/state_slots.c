#include "engine/kv/state_slots.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "npu/npu.h"

#define NO_PAGE UINT32_MAX

/* ---- what the prefix cache tells --------------------------------------------------------------- */

static td_status cache_opens(void *user, uint32_t n_pages, uint32_t page_tokens, td_error *err) {
    (void)page_tokens;
    td_state_slots *s = user;
    s->n_pages = n_pages;
    s->of_page = malloc(n_pages * sizeof *s->of_page);
    if (!s->of_page) return td_fail(err, TD_ENOMEM, "out of memory for the snapshots of %u pages", n_pages);
    memset(s->of_page, 0xff, n_pages * sizeof *s->of_page); /* TD_STATE_NONE */
    return TD_OK;
}

static void page_came(void *user, uint32_t page, uint32_t parent, const uint32_t *tokens) {
    (void)user, (void)page, (void)parent, (void)tokens;
}

static void page_left(void *user, uint32_t page) {
    td_state_slots_forget(user, page);
}

static void cache_emptied(void *user) {
    td_state_slots *s = user;
    for (uint32_t page = 0; page < s->n_pages; page++) td_state_slots_forget(s, page);
}

/* ---- life -------------------------------------------------------------------------------------- */

td_status td_state_slots_open(td_state_slots *s, uint32_t n, uint32_t n_open, td_prefix_cache *cache, td_error *err) {
    *s = (td_state_slots){.n = n,
                          .n_free = n,
                          .n_open = n_open,
                          .free_list = calloc(n, sizeof *s->free_list),
                          .refs = calloc(n, sizeof *s->refs),
                          .page = malloc(n * sizeof *s->page),
                          .used = calloc(n, sizeof *s->used),
                          .open = calloc(n_open, sizeof *s->open),
                          .listener = {cache_opens, page_came, page_left, cache_emptied, s, .images = true}};
    if (!s->free_list || !s->refs || !s->page || !s->used || !s->open) {
        td_state_slots_close(s);
        return td_fail(err, TD_ENOMEM, "out of memory for the list of %u states", n);
    }
    memset(s->page, 0xff, n * sizeof *s->page); /* NO_PAGE */
    for (uint32_t i = 0; i < n; i++) s->free_list[i] = n - 1 - i;
    for (uint32_t i = 0; i < n_open; i++) s->open[i] = n_open - 1 - i;
    td_status st = td_prefix_cache_listen(cache, &s->listener, err);
    if (st != TD_OK) td_state_slots_close(s);
    return st;
}

void td_state_slots_close(td_state_slots *s) {
    free(s->free_list);
    free(s->refs);
    free(s->page);
    free(s->used);
    free(s->of_page);
    free(s->open);
    *s = (td_state_slots){0};
}

/* ---- slots ------------------------------------------------------------------------------------- */

/* The snapshot that was of use longest ago among those that only their pages own. */
static uint32_t least_useful(const td_state_slots *s) {
    uint32_t least = TD_STATE_NONE;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->page[i] != NO_PAGE && s->refs[i] == 1 && (least == TD_STATE_NONE || s->used[i] < s->used[least])) least = i;
    return least;
}

bool td_state_slots_can_take(const td_state_slots *s) {
    return s->n_free || least_useful(s) != TD_STATE_NONE;
}

uint32_t td_state_slots_take(td_state_slots *s) {
    if (!s->n_free) {
        uint32_t slot = least_useful(s);
        if (slot == TD_STATE_NONE) return TD_STATE_NONE;
        td_state_slots_forget(s, s->page[slot]);
        s->evictions++;
    }
    uint32_t slot = s->free_list[--s->n_free];
    assert(s->refs[slot] == 0);
    s->refs[slot] = 1;
    return slot;
}

void td_state_slots_share(td_state_slots *s, uint32_t slot) {
    assert(slot < s->n && s->refs[slot] > 0);
    s->refs[slot]++;
}

void td_state_slots_drop(td_state_slots *s, uint32_t slot) {
    assert(slot < s->n && s->refs[slot] > 0);
    if (--s->refs[slot] == 0) s->free_list[s->n_free++] = slot;
}

/* ---- snapshots --------------------------------------------------------------------------------- */

uint32_t td_state_slots_find(td_state_slots *s, uint32_t page) {
    uint32_t slot = s->of_page[page];
    if (slot != TD_STATE_NONE) s->used[slot] = ++s->events;
    return slot;
}

uint32_t td_state_slots_before(const td_state_slots *s, const uint32_t *pages, uint32_t n) {
    while (n > 0 && s->of_page[pages[n - 1]] == TD_STATE_NONE) n--;
    return n;
}

void td_state_slots_keep(td_state_slots *s, uint32_t slot, uint32_t page) {
    if (s->of_page[page] != TD_STATE_NONE) return;
    assert(s->page[slot] == NO_PAGE);
    td_state_slots_share(s, slot);
    s->of_page[page] = slot;
    s->page[slot] = page;
    s->used[slot] = ++s->events;
    s->n_snapshots++;
}

void td_state_slots_forget(td_state_slots *s, uint32_t page) {
    uint32_t slot = s->of_page[page];
    if (slot == TD_STATE_NONE) return;
    s->of_page[page] = TD_STATE_NONE;
    s->page[slot] = NO_PAGE;
    s->n_snapshots--;
    td_state_slots_drop(s, slot);
}

void td_state_slots_give_up(td_state_slots *s, uint32_t page) {
    uint32_t slot = s->of_page[page];
    if (slot != TD_STATE_NONE && s->refs[slot] == 1) td_state_slots_forget(s, page);
}
