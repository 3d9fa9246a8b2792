/* Test buffers that end exactly where an inaccessible page begins: reading or writing one byte too far is a crash. */
#ifndef TD_TESTS_GUARD_PAGE_H
#define TD_TESTS_GUARD_PAGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    void  *data; /* [bytes], filled with 0xa5 */
    void  *map;
    size_t map_bytes;
} guarded;

static inline guarded guard_alloc(size_t bytes) {
    size_t  page = 4096, body = (bytes + page - 1) / page * page;
    guarded g = {.map_bytes = body + page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect((char *)g.map + body, page, PROT_NONE)) {
        perror("guard_alloc");
        exit(1);
    }
    g.data = (char *)g.map + body - bytes;
    memset(g.map, 0xa5, body);
    return g;
}

static inline void guard_free(guarded *g) {
    munmap(g->map, g->map_bytes);
    *g = (guarded){0};
}

#endif
