#include "engine/kv/kv_pages.h"

#include <assert.h>
#include <stdlib.h>

#include "core/error.h"

td_status td_kv_pages_open(td_kv_pages *p, uint32_t n_pages, td_error *err) {
    *p = (td_kv_pages){.n_pages = n_pages, .n_free = n_pages};
    p->free_list = calloc(n_pages, sizeof *p->free_list);
    p->refs = calloc(n_pages, sizeof *p->refs);
    if (!p->free_list || !p->refs) {
        td_kv_pages_close(p);
        return td_fail(err, TD_ENOMEM, "out of memory for the list of %u KV pages", n_pages);
    }
    for (uint32_t i = 0; i < n_pages; i++) p->free_list[i] = n_pages - 1 - i;
    return TD_OK;
}

void td_kv_pages_close(td_kv_pages *p) {
    free(p->free_list);
    free(p->refs);
    *p = (td_kv_pages){0};
}

bool td_kv_pages_take(td_kv_pages *p, uint32_t *pages, uint32_t n) {
    if (n > p->n_free) return false;
    for (uint32_t i = 0; i < n; i++) {
        pages[i] = p->free_list[--p->n_free];
        assert(p->refs[pages[i]] == 0);
        p->refs[pages[i]] = 1;
    }
    return true;
}

void td_kv_pages_share(td_kv_pages *p, uint32_t page) {
    assert(page < p->n_pages && p->refs[page] > 0);
    p->refs[page]++;
}

void td_kv_pages_drop(td_kv_pages *p, uint32_t page) {
    assert(page < p->n_pages && p->refs[page] > 0);
    if (--p->refs[page] == 0) p->free_list[p->n_free++] = page;
}
