/* Big memory: weights, KV and scratch. mmap, transparent huge pages, bound to a NUMA node. The token path allocates nothing.
 */
#ifndef TD_CORE_MEMORY_MEM_H
#define TD_CORE_MEMORY_MEM_H

#include "tandem.h"

#define TD_NODE_ANY UINT32_MAX
#define TD_NODE_SPREAD (UINT32_MAX - 1) /* page by page over all NUMA nodes with cores */
#define TD_CACHE_LINE 64
#define TD_FILE_BLOCK \
    ((size_t)4096) /* what files past the page cache are read and written by, and our own files are laid out by, on every \
                      machine */

/** Of the system's pages: 4 KiB, on aarch64 also 16 or 64. What is mapped, protected, placed or given back is whole pages of
 * this size. */
size_t td_page_bytes(void);

/** Of its huge pages: 2 MiB with pages of 4 KiB, 512 MiB with those of 64. */
size_t td_huge_page_bytes(void);

/**
 * Zeroed, page-aligned; huge pages where the system gives them. On NUMA node `node` while there is room on it, else near it;
 * TD_NODE_SPREAD; TD_NODE_ANY: where it is touched first.
 */
TD_NODISCARD td_status td_mem_map(size_t bytes, uint32_t node, void **out, td_error *err);
void                   td_mem_unmap(void *p, size_t bytes); /* NULL is fine */
bool                   td_mem_places(uint32_t node);        /* whether `node` makes a difference: there is more than one */

/** A file in memory as it lies on disk: the page cache's own pages, read-only, in huge pages where system and file system
 * have them. */
typedef struct {
    const char *base; /* NULL: none */
    size_t      bytes;
} td_file_map;

/**
 * Map a whole file. Its pages are read when they are touched. A file that somebody makes shorter afterwards raises SIGBUS where it is
 * touched beyond its new end, so what is mapped must not change as long as it is.
 * @return TD_ENOTFOUND, TD_EIO (also where the file system cannot map), TD_EFORMAT (empty, or no regular file).
 */
TD_NODISCARD td_status td_file_map_open(td_file_map *m, const char *path, td_error *err);
void                   td_file_map_close(td_file_map *m); /* one that is not open is fine */

static inline size_t td_div_up(size_t n, size_t by) {
    return (n + by - 1) / by;
}
static inline size_t td_round_up(size_t n, size_t to) {
    return td_div_up(n, to) * to;
}

/** *out = a * b; false on overflow. */
static inline bool td_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

/** A bump arena over one mapping: filled at start-up, freed whole. */
typedef struct {
    char  *base;
    size_t size, used;
} td_arena;

TD_NODISCARD td_status td_arena_open(td_arena *a, size_t bytes, uint32_t node, td_error *err);
void                  *td_arena_take(td_arena *a, size_t bytes); /* 64-byte aligned, zeroed; NULL when the arena is full */
void                   td_arena_close(td_arena *a);

#endif
