/* move_pages(2) without a target reports each page's node. */
#include "core/memory/page_nodes.h"

#include <numaif.h>

#include "core/memory/mem.h"

#define SAMPLES 256

size_t td_pages_on_node(const void *p, size_t bytes, uint32_t node, size_t *n_known) {
    void  *page[SAMPLES];
    int    where[SAMPLES];
    size_t n_pages = bytes / td_page_bytes(), n = n_pages < SAMPLES ? n_pages : SAMPLES, n_on = 0;
    *n_known = 0;
    if (n == 0) return 0;
    for (size_t i = 0; i < n; i++) page[i] = (char *)(uintptr_t)p + n_pages * i / n * td_page_bytes();
    if (move_pages(0, n, page, NULL, where, 0) != 0) return 0;
    for (size_t i = 0; i < n; i++) {
        *n_known += where[i] >= 0; /* negative: not present */
        n_on += where[i] >= 0 && (uint32_t)where[i] == node;
    }
    return n_on;
}
