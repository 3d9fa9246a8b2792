#include "core/mem.h"

#include <errno.h>
#include <numa.h>
#include <string.h>
#include <sys/mman.h>

#include "core/error.h"

#define HUGE_BYTES ((size_t)2 << 20)

td_status td_mem_map(size_t bytes, uint32_t node, void **out, td_error *err) {
    *out = NULL;
    if (bytes == 0) bytes = TD_PAGE_BYTES;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return td_fail(err, TD_ENOMEM, "cannot map %zu MiB of memory: %s", bytes >> 20, strerror(errno));
    if (bytes >= HUGE_BYTES) madvise(p, bytes, MADV_HUGEPAGE); /* a hint: without huge pages it is only slower */
    if (node != TD_NODE_ANY && numa_available() >= 0 && numa_max_node() > 0) numa_tonode_memory(p, bytes, (int)node);
    *out = p;
    return TD_OK;
}

void td_mem_unmap(void *p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : TD_PAGE_BYTES);
}

td_status td_arena_open(td_arena *a, size_t bytes, uint32_t node, td_error *err) {
    void *p;
    *a = (td_arena){0};
    TD_TRY(td_mem_map(bytes, node, &p, err));
    *a = (td_arena){.base = p, .size = bytes};
    return TD_OK;
}

void *td_arena_take(td_arena *a, size_t bytes) {
    size_t at = td_round_up(a->used, TD_CACHE_LINE);
    if (at > a->size || bytes > a->size - at) return NULL;
    a->used = at + bytes;
    return a->base + at;
}

void td_arena_close(td_arena *a) {
    td_mem_unmap(a->base, a->size);
    *a = (td_arena){0};
}
