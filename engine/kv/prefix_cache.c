#include "engine/kv/prefix_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/memory/mem.h"
#include "engine/images/image_cache.h"
#include "npu/npu.h"

#define NONE UINT32_MAX /* no page: the root, or the end of a list */
#define PAGE_TOKEN_BYTES (TD_KV_PAGE * sizeof(uint32_t))

struct td_prefix_node {
    uint32_t parent;
    uint32_t chain;        /* the next node in its bucket */
    uint32_t newer, older; /* in the list of idle pages */
    bool     cached;
    bool     images; /* keys of images are in the page, or in one before it */
};

td_status td_prefix_cache_open(td_prefix_cache *c, td_kv_pages *pages, bool on, td_error *err) {
    *c = (td_prefix_cache){.pages = pages, .on = on, .newest = NONE, .oldest = NONE, .n_buckets = 1};
    while (c->n_buckets < pages->n_pages && c->n_buckets < UINT32_MAX / 2) c->n_buckets *= 2;
    c->nodes = calloc(pages->n_pages, sizeof *c->nodes);
    c->tokens = calloc(pages->n_pages, PAGE_TOKEN_BYTES);
    c->buckets = malloc(c->n_buckets * sizeof *c->buckets);
    if (!c->nodes || !c->tokens || !c->buckets) {
        td_prefix_cache_close(c);
        return td_fail(err, TD_ENOMEM, "out of memory for the prefix cache of %u pages", pages->n_pages);
    }
    memset(c->buckets, 0xff, c->n_buckets * sizeof *c->buckets); /* NONE */
    return TD_OK;
}

td_status td_prefix_cache_listen(td_prefix_cache *c, const td_cache_listener *listener, td_error *err) {
    assert(c->n_listeners < TD_CACHE_LISTENERS_MAX);
    c->listeners[c->n_listeners++] = listener;
    return listener->open(listener->user, c->pages->n_pages, TD_KV_PAGE, err);
}

void td_prefix_cache_close(td_prefix_cache *c) {
    free(c->nodes);
    free(c->tokens);
    free(c->buckets);
    *c = (td_prefix_cache){0};
}

/* ---- the tree -------------------------------------------------------------------------------- */

static const uint32_t *tokens_of(const td_prefix_cache *c, uint32_t page) {
    return c->tokens + (size_t)page * TD_KV_PAGE;
}

static uint32_t *bucket_of(const td_prefix_cache *c, uint32_t parent, const uint32_t *tokens) {
    return &c->buckets[XXH3_64bits_withSeed(tokens, PAGE_TOKEN_BYTES, parent) & (c->n_buckets - 1)];
}

static uint32_t find_child(const td_prefix_cache *c, uint32_t parent, const uint32_t *tokens) {
    uint32_t page = *bucket_of(c, parent, tokens);
    while (page != NONE && (c->nodes[page].parent != parent || memcmp(tokens_of(c, page), tokens, PAGE_TOKEN_BYTES)))
        page = c->nodes[page].chain;
    return page;
}

static bool has_image(const uint32_t *tokens) {
    uint32_t any = 0;
    for (uint32_t i = 0; i < TD_KV_PAGE; i++) any |= tokens[i];
    return any >= TD_IMAGE_KEY;
}

static void link_node(td_prefix_cache *c, uint32_t page, uint32_t parent, const uint32_t *tokens) {
    uint32_t *bucket = bucket_of(c, parent, tokens);
    memcpy(c->tokens + (size_t)page * TD_KV_PAGE, tokens, PAGE_TOKEN_BYTES);
    const bool images = (parent != NONE && c->nodes[parent].images) || has_image(tokens);
    c->nodes[page] = (td_prefix_node){.parent = parent, .chain = *bucket, .cached = true, .images = images};
    *bucket = page;
}

static void unlink_node(td_prefix_cache *c, uint32_t page) {
    td_prefix_node *node = &c->nodes[page];
    uint32_t       *at = bucket_of(c, node->parent, tokens_of(c, page));
    while (*at != page) at = &c->nodes[*at].chain;
    *at = node->chain;
    node->cached = false;
}

/* ---- idle pages ------------------------------------------------------------------------------ */

static bool is_idle(const td_prefix_cache *c, uint32_t page) {
    return c->nodes[page].cached && c->pages->refs[page] == 1;
}

static void idle_add(td_prefix_cache *c, uint32_t page) {
    c->nodes[page].newer = NONE;
    c->nodes[page].older = c->newest;
    *(c->newest == NONE ? &c->oldest : &c->nodes[c->newest].newer) = page;
    c->newest = page;
    c->n_idle++;
}

static void idle_remove(td_prefix_cache *c, uint32_t page) {
    const td_prefix_node *node = &c->nodes[page];
    *(node->newer == NONE ? &c->newest : &c->nodes[node->newer].older) = node->older;
    *(node->older == NONE ? &c->oldest : &c->nodes[node->older].newer) = node->newer;
    c->n_idle--;
}

/* The cache gives up a page; it is free when nobody else owns it. */
static void forget(td_prefix_cache *c, uint32_t page) {
    if (is_idle(c, page)) idle_remove(c, page);
    unlink_node(c, page);
    td_kv_pages_drop(c->pages, page);
}

static void share(td_prefix_cache *c, uint32_t page) {
    if (is_idle(c, page)) idle_remove(c, page);
    td_kv_pages_share(c->pages, page);
}

/* Whether listener i is told of a page. */
static bool hears_of(const td_prefix_cache *c, uint32_t i, uint32_t page) {
    return c->listeners[i]->images || !c->nodes[page].images;
}

/* ---- use ------------------------------------------------------------------------------------- */

bool td_prefix_cache_take(td_prefix_cache *c, uint32_t *pages, uint32_t n) {
    if (n > td_prefix_cache_available(c)) return false;
    for (; c->pages->n_free < n; c->evictions++) {
        uint32_t page = c->oldest;
        forget(c, page);
        for (uint32_t i = 0; i < c->n_listeners; i++)
            if (hears_of(c, i, page)) c->listeners[i]->removed(c->listeners[i]->user, page);
    }
    return td_kv_pages_take(c->pages, pages, n);
}

void td_prefix_cache_drop(td_prefix_cache *c, uint32_t page) {
    td_kv_pages_drop(c->pages, page);
    if (is_idle(c, page)) idle_add(c, page);
}

bool td_prefix_cache_holds(const td_prefix_cache *c, uint32_t page) {
    return c->nodes[page].cached;
}

uint32_t td_prefix_cache_match(td_prefix_cache *c, const uint32_t *tokens, uint32_t max_pages, uint32_t *pages) {
    uint32_t n = 0;
    for (uint32_t page = NONE; n < max_pages; n++) {
        page = find_child(c, page, tokens + (size_t)n * TD_KV_PAGE);
        if (page == NONE) break;
        share(c, page);
        pages[n] = page;
    }
    return n;
}

void td_prefix_cache_publish(td_prefix_cache *c, const uint32_t *tokens, uint32_t begin, uint32_t end, uint32_t *pages) {
    if (!c->on) return;
    assert(begin == 0 || c->nodes[pages[begin - 1]].cached);
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t *page_tokens = tokens + (size_t)i * TD_KV_PAGE;
        uint32_t        parent = i ? pages[i - 1] : NONE, same = find_child(c, parent, page_tokens);
        if (same == NONE) {
            link_node(c, pages[i], parent, page_tokens);
            td_kv_pages_share(c->pages, pages[i]);
            for (uint32_t k = 0; k < c->n_listeners; k++)
                if (hears_of(c, k, pages[i])) c->listeners[k]->stored(c->listeners[k]->user, pages[i], parent, page_tokens);
        } else if (same != pages[i]) {
            share(c, same);
            assert(!c->nodes[pages[i]].cached);
            td_kv_pages_drop(c->pages, pages[i]);
            pages[i] = same;
        }
    }
}

void td_prefix_cache_flush(td_prefix_cache *c) {
    for (uint32_t page = 0; page < c->pages->n_pages; page++)
        if (c->nodes[page].cached) forget(c, page);
    for (uint32_t i = 0; i < c->n_listeners; i++) c->listeners[i]->cleared(c->listeners[i]->user);
}
