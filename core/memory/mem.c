#include "core/memory/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

#define HUGE_DEFAULT_BYTES ((size_t)2 << 20) /* where the system does not tell */

#define NODES_MAX 1024 /* the kernel's largest configuration */
#define WORD_BITS (8 * sizeof(unsigned long))

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static bool           g_several;                       /* the machine has several nodes; else there is nothing to choose */
static unsigned long  g_spread[NODES_MAX / WORD_BITS]; /* nodes with memory and cores that this process may use */

static void find_nodes(void) {
    if (numa_available() < 0 || numa_max_node() == 0) return;
    struct bitmask *memory = numa_get_mems_allowed(), *cpus = numa_allocate_cpumask();
    for (uint32_t node = 0; node < NODES_MAX && node <= (uint32_t)numa_max_node(); node++)
        if (numa_bitmask_isbitset(memory, node) && numa_node_to_cpus((int)node, cpus) == 0 && numa_bitmask_weight(cpus) > 0)
            g_spread[node / WORD_BITS] |= 1ul << node % WORD_BITS;
    numa_free_cpumask(cpus);
    numa_free_nodemask(memory);
    g_several = true;
}

bool td_mem_places(uint32_t node) {
    pthread_once(&g_once, find_nodes);
    return g_several && (node < NODES_MAX || node == TD_NODE_SPREAD);
}

/* Place memory on a node: preferred, not bound, since with bound memory a full node would get the process killed. If the
 * system refuses, that only costs speed. */
static void place(void *p, size_t bytes, uint32_t node) {
    unsigned long one[NODES_MAX / WORD_BITS] = {0};
    if (!td_mem_places(node)) return;
    if (node == TD_NODE_SPREAD) {
        mbind(p, bytes, MPOL_INTERLEAVE, g_spread, NODES_MAX + 1, 0);
        return;
    }
    one[node / WORD_BITS] = 1ul << node % WORD_BITS;
    mbind(p, bytes, MPOL_PREFERRED, one, NODES_MAX + 1, 0);
}

size_t td_page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t         g_huge;
static pthread_once_t g_huge_once = PTHREAD_ONCE_INIT;

static void find_huge(void) {
    char  text[32] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "re");
    if (f) {
        if (!fgets(text, sizeof text, f)) text[0] = 0;
        fclose(f);
    }
    unsigned long long told = strtoull(text, NULL, 10);
    g_huge = told && told % td_page_bytes() == 0 ? (size_t)told : HUGE_DEFAULT_BYTES;
}

size_t td_huge_page_bytes(void) {
    pthread_once(&g_huge_once, find_huge);
    return g_huge;
}

td_status td_mem_map(size_t bytes, uint32_t node, void **out, td_error *err) {
    *out = NULL;
    if (bytes == 0) bytes = td_page_bytes();
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return td_fail(err, TD_ENOMEM, "cannot map %zu MiB of memory: %s", bytes >> 20, strerror(errno));
    if (bytes >= td_huge_page_bytes()) madvise(p, bytes, MADV_HUGEPAGE); /* a hint: without huge pages it is only slower */
    place(p, bytes, node);
    *out = p;
    return TD_OK;
}

void td_mem_unmap(void *p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : td_page_bytes());
}

static td_status map_whole(td_file_map *m, int fd, const char *path, td_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return td_fail(err, TD_EIO, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size == 0) return td_fail(err, TD_EFORMAT, "%s is empty or not a regular file", path);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return td_fail(err, TD_EIO, "cannot map %s: %s", path, strerror(errno));
    madvise(p, (size_t)st.st_size, MADV_HUGEPAGE); /* a hint; it also makes the kernel read 2 MiB at a time */
    *m = (td_file_map){p, (size_t)st.st_size};
    return TD_OK;
}

td_status td_file_map_open(td_file_map *m, const char *path, td_error *err) {
    *m = (td_file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO's opening would wait */
    if (fd < 0) return td_fail(err, errno == ENOENT ? TD_ENOTFOUND : TD_EIO, "cannot open %s: %s", path, strerror(errno));
    td_status st = map_whole(m, fd, path, err);
    close(fd);
    return st;
}

void td_file_map_close(td_file_map *m) {
    if (m->base) munmap((void *)m->base, m->bytes);
    *m = (td_file_map){0};
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
