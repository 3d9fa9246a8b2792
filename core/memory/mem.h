/* Large memory for weights, KV and scratch: mmap with transparent huge pages, placed on a NUMA node. */
#ifndef TD_CORE_MEMORY_MEM_H
#define TD_CORE_MEMORY_MEM_H

#include "tandem.h"

#define TD_NODE_ANY UINT32_MAX
#define TD_NODE_SPREAD (UINT32_MAX - 1) /* page by page over all NUMA nodes with cores */
#define TD_CACHE_LINE 64
/* The unit of reads and writes past the page cache, and of the layout of Tandem's own files, on every machine. */
#define TD_FILE_BLOCK ((size_t)4096)

/** Size of the system's pages: 4 KiB; on aarch64 also 16 or 64 KiB. Memory is mapped, protected, placed and given back in
 * whole pages. */
size_t td_page_bytes(void);

/** Size of the system's huge pages: 2 MiB with pages of 4 KiB, 512 MiB with pages of 64 KiB. */
size_t td_huge_page_bytes(void);

/**
 * Map memory: zeroed, page-aligned, in huge pages if the system gives them.
 * @param node a NUMA node: the memory lies there while there is room, else near it; or TD_NODE_SPREAD; or TD_NODE_ANY: each
 * page lies where it is touched first.
 */
TD_NODISCARD td_status td_mem_map(size_t bytes, uint32_t node, void **out, td_error *err);
void                   td_mem_unmap(void *p, size_t bytes); /* NULL is fine */
bool                   td_mem_places(uint32_t node); /* whether `node` makes a difference: the machine has several nodes */

/** A file in memory as it lies on disk: the page cache's own pages, read-only, in huge pages where system and file system
 * have them. */
typedef struct {
    const char *base; /* NULL: none */
    size_t      bytes;
} td_file_map;

/**
 * Map a whole file. Its pages are read when they are touched. If the file becomes shorter, touching it beyond its new end
 * raises SIGBUS, so a file must not change while it is mapped.
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
