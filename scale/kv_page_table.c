#include "scale/kv_page_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"

#define NONE UINT32_MAX

struct td_kv_page {
    uint64_t hash, parent_hash; /* of the tokens that the page holds */
    uint64_t told_hash;         /* hash under which subscribers know the page */
    uint32_t older, newer;      /* in the list of pages held */
    uint32_t next_left;
    bool     has_parent;
    bool     is_held;
    bool     is_told; /* subscribers know the page, and told_hash == hash */
};

td_status td_kv_page_table_open(td_kv_page_table *t, uint32_t n_pages, uint32_t page_tokens, int event_fd, td_error *err) {
    *t = (td_kv_page_table){.n_pages = n_pages,
                            .page_tokens = page_tokens,
                            .event_fd = event_fd,
                            .oldest = NONE,
                            .newest = NONE,
                            .to_tell = NONE,
                            .first_left = NONE,
                            .last_left = NONE,
                            .clear = true};
    t->pages = calloc(n_pages, sizeof *t->pages);
    t->tokens = calloc(n_pages, page_tokens * sizeof *t->tokens);
    if (!t->pages || !t->tokens) {
        free(t->pages);
        free(t->tokens);
        *t = (td_kv_page_table){0};
        return td_fail(err, TD_ENOMEM, "out of memory for the KV events of %u pages", n_pages);
    }
    pthread_mutex_init(&t->lock, NULL);
    return TD_OK;
}

void td_kv_page_table_close(td_kv_page_table *t) {
    if (!t->pages) return;
    pthread_mutex_destroy(&t->lock);
    free(t->pages);
    free(t->tokens);
    *t = (td_kv_page_table){0};
}

uint64_t td_kv_page_hash(const uint64_t *parent, const uint32_t *tokens, uint32_t n) {
    uint64_t local = XXH3_64bits(tokens, n * sizeof *tokens);
    if (!parent) return local;
    const uint64_t both[2] = {*parent, local};
    return XXH3_64bits(both, sizeof both);
}

/* ---- the engine's side ---- */

/* Unlocks, and wakes the publisher unless that was done already. */
static void unlock_and_ring(td_kv_page_table *t) {
    bool ring = !t->rung;
    t->rung = true;
    pthread_mutex_unlock(&t->lock);
    const uint64_t one = 1;
    if (ring && write(t->event_fd, &one, sizeof one) != sizeof one)
        assert(false); /* cannot fail: the counter goes to 2^64 */
}

static uint32_t *tokens_of(const td_kv_page_table *t, uint32_t page) {
    return t->tokens + (size_t)page * t->page_tokens;
}

void td_kv_page_table_store(td_kv_page_table *t, uint32_t page, uint32_t parent, const uint32_t *tokens) {
    td_kv_page *p = &t->pages[page], *before = parent == NONE ? NULL : &t->pages[parent];
    pthread_mutex_lock(&t->lock);
    assert(!p->is_held && !p->is_told && (!before || before->is_held));
    memcpy(tokens_of(t, page), tokens, t->page_tokens * sizeof *tokens);
    p->has_parent = before != NULL;
    p->parent_hash = before ? before->hash : 0;
    p->hash = td_kv_page_hash(before ? &before->hash : NULL, tokens, t->page_tokens);
    p->is_held = true;
    p->older = t->newest;
    p->newer = NONE;
    *(t->newest == NONE ? &t->oldest : &t->pages[t->newest].newer) = page;
    t->newest = page;
    if (t->to_tell == NONE) t->to_tell = page;
    unlock_and_ring(t);
}

static void unlink_held(td_kv_page_table *t, uint32_t page) {
    td_kv_page *p = &t->pages[page];
    if (t->to_tell == page) t->to_tell = p->newer;
    *(p->older == NONE ? &t->oldest : &t->pages[p->older].newer) = p->newer;
    *(p->newer == NONE ? &t->newest : &t->pages[p->newer].older) = p->older;
    p->is_held = false;
}

static void append_left(td_kv_page_table *t, uint32_t page) {
    t->pages[page].next_left = NONE;
    *(t->last_left == NONE ? &t->first_left : &t->pages[t->last_left].next_left) = page;
    t->last_left = page;
}

void td_kv_page_table_remove(td_kv_page_table *t, uint32_t page) {
    td_kv_page *p = &t->pages[page];
    pthread_mutex_lock(&t->lock);
    assert(p->is_held);
    unlink_held(t, page);
    if (p->is_told) append_left(t, page);
    p->is_told = false;
    unlock_and_ring(t);
}

/* Takes back everything that was told: the next change begins with "cleared". */
static void take_all_back(td_kv_page_table *t) {
    for (uint32_t i = 0; i < t->n_pages; i++) t->pages[i].is_told = false;
    t->first_left = t->last_left = NONE;
    t->clear = true;
}

void td_kv_page_table_clear(td_kv_page_table *t) {
    pthread_mutex_lock(&t->lock);
    take_all_back(t);
    for (uint32_t i = 0; i < t->n_pages; i++) t->pages[i].is_held = false;
    t->oldest = t->newest = t->to_tell = NONE;
    unlock_and_ring(t);
}

/* ---- the publisher's side ---- */

bool td_kv_page_table_take(td_kv_page_table *t, td_kv_change *out) {
    out->n_removed = out->n_stored = 0;
    pthread_mutex_lock(&t->lock);
    out->cleared = t->clear;
    t->clear = false;
    for (; t->first_left != NONE && out->n_removed < TD_KV_CHANGE_PAGES; t->first_left = t->pages[t->first_left].next_left)
        out->removed[out->n_removed++] = t->pages[t->first_left].told_hash;
    if (t->first_left == NONE) {
        t->last_left = NONE;
        for (; t->to_tell != NONE && out->n_stored < TD_KV_CHANGE_PAGES; t->to_tell = t->pages[t->to_tell].newer) {
            td_kv_page *p = &t->pages[t->to_tell];
            memcpy(out->tokens + (size_t)out->n_stored * t->page_tokens, tokens_of(t, t->to_tell),
                   t->page_tokens * sizeof *t->tokens);
            out->stored[out->n_stored++] = (td_kv_stored){p->hash, p->parent_hash, p->has_parent};
            p->told_hash = p->hash;
            p->is_told = true;
        }
    }
    bool any = out->cleared || out->n_removed || out->n_stored;
    t->rung = any;
    pthread_mutex_unlock(&t->lock);
    return any;
}

void td_kv_page_table_restate(td_kv_page_table *t) {
    pthread_mutex_lock(&t->lock);
    take_all_back(t);
    t->to_tell = t->oldest;
    pthread_mutex_unlock(&t->lock);
}
