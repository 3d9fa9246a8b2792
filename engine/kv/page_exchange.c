#include "engine/kv/page_exchange.h"

#include <assert.h>
#include <stdlib.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/log/log.h"
#include "npu/npu.h"

#define NONE UINT32_MAX

td_page_key td_page_key_next(td_page_key parent, const uint32_t *tokens) {
    XXH128_hash_t local = XXH3_128bits(tokens, TD_KV_PAGE * sizeof *tokens);
    uint64_t      both[4] = {parent.low, parent.high, local.low64, local.high64};
    XXH128_hash_t h = XXH3_128bits(both, sizeof both);
    return (td_page_key){h.low64, h.high64};
}

static bool same_key(td_page_key a, td_page_key b) {
    return a.low == b.low && a.high == b.high;
}

/* ---- out ------------------------------------------------------------------------------------- */

static void send(td_page_exchange *x, uint32_t page, td_page_key parent, const uint32_t *tokens) {
    td_page_name name = {.key = x->keys[page], .parent = parent, .tokens = tokens};
    void        *memory = x->store->put(x->store->user, &name);
    if (!memory) return;
    td_status st = td_model_read_page(x->model, page, memory);
    if (st != TD_OK) td_warn("a KV page cannot be copied from the device (%s): it is not sent", td_status_text(st));
    x->store->put_end(x->store->user, memory, st == TD_OK);
}

static td_status listen_open(void *user, uint32_t n_pages, uint32_t page_tokens, td_error *err) {
    td_page_exchange *x = user;
    assert(page_tokens == TD_KV_PAGE);
    x->keys = calloc(n_pages, sizeof *x->keys);
    return x->keys ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the keys of %u pages", n_pages);
}

static void listen_stored(void *user, uint32_t page, uint32_t parent, const uint32_t *tokens) {
    td_page_exchange *x = user;
    td_page_key       before = parent == NONE ? x->root : x->keys[parent];
    x->keys[page] = td_page_key_next(before, tokens);
    if (!x->landing) send(x, page, before, tokens);
}

static void listen_removed(void *user, uint32_t page) {
    (void)user;
    (void)page;
}

static void listen_cleared(void *user) {
    (void)user;
}

/* ---- in -------------------------------------------------------------------------------------- */

static void end_lookup(td_page_exchange *x, td_page_lookup *l, bool late) {
    x->store->end(x->store->user, l->handle, late);
    *l = (td_page_lookup){0};
}

/* Put bytes into the cache as page l->next of the request, whose earlier pages are held. @return false: no room, or the copy
 * failed. */
static bool land(td_page_exchange *x, td_page_lookup *l, const void *bytes) {
    td_request *r = l->request;
    uint32_t   *page = &r->pages[l->next];
    if (!td_prefix_cache_take(x->cache, page, 1)) return false;
    td_status st = td_model_write_page(x->model, *page, bytes);
    if (st != TD_OK) {
        td_warn("a KV page cannot be copied to the device (%s): it is computed", td_status_text(st));
        td_prefix_cache_drop(x->cache, *page);
        return false;
    }
    x->landing = true;
    td_prefix_cache_publish(x->cache, r->keys, l->next, l->next + 1, r->pages);
    x->landing = false;
    l->next++;
    return true;
}

/* Put in all pages of a lookup that have come. A waiting request holds no pages, so r->pages is scratch here. @return false:
 * the lookup is over. */
static bool land_all(td_page_exchange *x, td_page_lookup *l) {
    td_request    *r = l->request;
    const void    *bytes;
    td_pages_state state = x->store->next(x->store->user, l->handle, &bytes);
    if (state != TD_PAGES_HERE) return state == TD_PAGES_COMING;
    uint32_t n = td_prefix_cache_match(x->cache, r->keys, l->next, r->pages);
    bool     ok = n == l->next; /* else one of them was evicted meanwhile, and those behind it are of no use */
    while (ok && state == TD_PAGES_HERE) {
        ok = land(x, l, bytes);
        x->store->taken(x->store->user, l->handle);
        if (ok) state = x->store->next(x->store->user, l->handle, &bytes);
        if (ok) n++;
    }
    while (n) td_prefix_cache_drop(x->cache, r->pages[--n]);
    return ok && state == TD_PAGES_COMING;
}

void td_page_exchange_take_in(td_page_exchange *x) {
    if (!x->store) return;
    for (td_page_lookup *l = x->lookups; l < x->lookups + TD_LOOKUPS_MAX; l++) {
        if (!l->request) continue;
        bool goes_on = land_all(x, l), late = goes_on && td_now_s() >= l->deadline_s;
        if (late) td_debug("request %llu waits no longer for KV pages", (unsigned long long)l->request->number);
        if (!goes_on || late) end_lookup(x, l, late);
    }
}

static td_page_lookup *find(td_page_exchange *x, const td_request *r) {
    td_page_lookup *l = x->lookups;
    while (l < x->lookups + TD_LOOKUPS_MAX && l->request != r) l++;
    return l < x->lookups + TD_LOOKUPS_MAX ? l : NULL;
}

static bool is_looked_for(const td_page_exchange *x, td_page_key key) {
    for (uint32_t i = 0; i < TD_LOOKUPS_MAX; i++)
        if (x->lookups[i].request && same_key(x->lookups[i].next_key, key)) return true;
    return false;
}

bool td_page_exchange_waits(td_page_exchange *x, td_request *r, uint32_t n_found, uint32_t n_wanted) {
    if (!x->store) return false;
    if (find(x, r)) return true;
    const uint32_t before_images = td_request_images_first(&r->images) / TD_KV_PAGE;
    if (n_wanted > before_images) n_wanted = before_images;
    if (r->looked_up || n_found >= n_wanted) return false;
    const uint32_t *tokens = r->tokens + (size_t)n_found * TD_KV_PAGE;
    td_page_key     parent = n_found ? x->keys[r->pages[n_found - 1]] : x->root, key = parent;
    uint32_t        n = n_wanted - n_found;
    td_page_lookup *l = find(x, NULL);
    if (!l) return true; /* all lookups are taken: wait until one ends */
    if (is_looked_for(x, td_page_key_next(parent, tokens))) return true;
    assert(n <= x->max_pages);
    for (uint32_t i = 0; i < n; i++) x->wanted[i] = key = td_page_key_next(key, tokens + (size_t)i * TD_KV_PAGE);
    void *handle = x->store->look(x->store->user, parent, x->wanted, tokens, n);
    r->looked_up = true;
    if (!handle) return false;
    *l = (td_page_lookup){r, handle, n_found, x->wanted[0], td_now_s() + x->store->wait_s};
    return true;
}

void td_page_exchange_left(td_page_exchange *x, const td_request *r) {
    td_page_lookup *l = x->store ? find(x, r) : NULL;
    if (l) end_lookup(x, l, false);
}

void td_page_exchange_flush(td_page_exchange *x) {
    if (!x->store) return;
    for (td_page_lookup *l = x->lookups; l < x->lookups + TD_LOOKUPS_MAX; l++)
        if (l->request) end_lookup(x, l, false);
}

double td_page_exchange_deadline(const td_page_exchange *x) {
    double first = 0;
    for (uint32_t i = 0; i < TD_LOOKUPS_MAX; i++)
        if (x->lookups[i].request && (first == 0 || x->lookups[i].deadline_s < first)) first = x->lookups[i].deadline_s;
    return first;
}

/* ---- life ------------------------------------------------------------------------------------ */

td_status td_page_exchange_open(td_page_exchange *x, const td_page_store *store, const td_page_format *f, td_model *model,
                                td_prefix_cache *cache, td_error *err) {
    *x = (td_page_exchange){.model = model, .cache = cache, .root = f->fingerprint, .max_pages = f->max_pages};
    x->listener = (td_cache_listener){listen_open, listen_stored, listen_removed, listen_cleared, x, false};
    x->wanted = calloc(f->max_pages, sizeof *x->wanted);
    if (!x->wanted) return td_fail(err, TD_ENOMEM, "out of memory for the keys of %u pages", f->max_pages);
    TD_TRY(store->open(store->user, f, err));
    x->store = store;
    return td_prefix_cache_listen(cache, &x->listener, err);
}

void td_page_exchange_close(td_page_exchange *x) {
    td_page_exchange_flush(x);
    if (x->store) x->store->close(x->store->user);
    free(x->keys);
    free(x->wanted);
    x->keys = x->wanted = NULL;
    x->store = NULL;
}
