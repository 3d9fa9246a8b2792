/*
 * Device memory with an address that the host cannot touch, and pinned memory. Memory that is given out holds noise. It ends
 * where a page ends, as far as its alignment lets it, and nothing lies behind: an operation that goes on there ends the
 * process.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/standins/parts/standin_parts.h"

static standin_memory **pieces; /* by address */
static size_t           n_pieces, room;

#define PAGE 4096u
#define ALIGNMENT 512u /* of what is given out: what both vendors promise */

static size_t pages(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/** How much of the first page lies before it. */
static size_t before(size_t bytes) {
    return (pages(bytes) - bytes) / ALIGNMENT * ALIGNMENT;
}

/** The first piece behind `at`; the one before may hold it. */
static size_t behind(const char *at) {
    size_t lo = 0, hi = n_pieces;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (pieces[mid]->given <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

standin_memory *standin_memory_of(const void *at, size_t bytes) {
    size_t i = behind(at);
    if (!i) return NULL;
    standin_memory *m = pieces[i - 1];
    size_t          offset = (size_t)((const char *)at - m->given);
    return offset <= m->bytes && bytes <= m->bytes - offset ? m : NULL;
}

standin_memory *standin_memory_of_real(const void *real, size_t bytes) {
    for (size_t i = 0; i < n_pieces; i++) {
        size_t offset = (size_t)((const char *)real - pieces[i]->real);
        if (offset <= pieces[i]->bytes && bytes <= pieces[i]->bytes - offset) return pieces[i];
    }
    return NULL;
}

void *standin_real(const void *at, size_t bytes, const char *what) {
    STANDIN_LOCKED;
    standin_memory *m = standin_memory_of(at, bytes);
    if (!m)
        standin_refuse(STANDIN_DOCUMENTS.free_device, "%s uses %zu bytes at %p, which are in no live memory of a device",
                       what, bytes, at);
    return m->real + ((const char *)at - m->given);
}

size_t standin_memory_room(void) {
    size_t all = standin_setting("TD_STANDIN_MEMORY", (size_t)2 << 30), others = standin_setting("TD_STANDIN_OTHERS", 0);
    return all > others ? all - others : 0;
}

size_t standin_memory_bytes(int32_t device) {
    size_t bytes = 0;
    for (size_t i = 0; i < n_pieces; i++)
        if (pieces[i]->device == device) bytes += pieces[i]->bytes;
    return bytes;
}

/** Under the lock. */
static void insert(standin_memory *m) {
    static uint64_t last_id;
    size_t          at = behind(m->given);
    m->id = ++last_id;
    if (n_pieces == room) {
        room = room ? room * 2 : 64;
        pieces = realloc(pieces, room * sizeof *pieces);
    }
    memmove(pieces + at + 1, pieces + at, (n_pieces++ - at) * sizeof *pieces);
    pieces[at] = m;
}

bool standin_memory_add(int32_t device, size_t bytes, void **out, char why[256]) {
    size_t limit = standin_memory_room(), mapped = pages(bytes);
    *out = NULL;
    standin_lock();
    size_t used = standin_memory_bytes(device);
    standin_unlock();
    if (device >= 0 && (used > limit || bytes > limit - used)) {
        snprintf(why, 256, "device %d has %zu bytes, %zu are taken: %zu more do not fit", device, limit, used, bytes);
        return false;
    }
    const int       flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    standin_memory *m = calloc(1, sizeof *m);
    char           *real = mmap(NULL, mapped + PAGE, PROT_NONE, flags, -1, 0);
    char           *given = device < 0 ? real : mmap(NULL, mapped + PAGE, PROT_NONE, flags, -1, 0);
    if (!m || real == MAP_FAILED || given == MAP_FAILED || mprotect(real, mapped, PROT_READ | PROT_WRITE) != 0) {
        snprintf(why, 256, "%zu bytes cannot be mapped: %s", bytes, strerror(errno));
        return false;
    }
    real += before(bytes);
    given += before(bytes);
    /* Noise at both ends only: touching all pages of a large cache would be for nothing. */
    memset(real, 0xa5, bytes < 8192 ? bytes : 8192);
    if (bytes > 8192) memset(real + bytes - 4096, 0xa5, 4096);
    *m = (standin_memory){.given = given, .real = real, .bytes = bytes, .device = device};
    standin_lock();
    insert(m);
    standin_unlock();
    *out = given;
    return true;
}

bool standin_memory_adopt(void *at, size_t bytes) {
    char *from = at;
    STANDIN_LOCKED;
    size_t i = behind(from + bytes - 1);
    bool   is_free = !i || pieces[i - 1]->given + pieces[i - 1]->bytes <= from;
    if (is_free) {
        standin_memory *m = calloc(1, sizeof *m);
        *m = (standin_memory){.given = from, .real = from, .bytes = bytes, .device = -1, .adopted = true};
        insert(m);
    }
    return is_free;
}

void standin_memory_remove(void *at, bool pinned) {
    const char *document = pinned ? STANDIN_DOCUMENTS.free_pinned : STANDIN_DOCUMENTS.free_device;
    standin_lock();
    size_t          i = behind(at);
    standin_memory *m = i ? pieces[i - 1] : NULL;
    if (!m || m->given != at || (m->device < 0) != pinned)
        standin_refuse(document, "%p is freed and is not the beginning of %s memory", at, pinned ? "pinned" : "device");
    if (m->in_flight)
        standin_refuse(document, "%p is freed while operations that use it are enqueued: freeing does not wait for them",
                       at);
    if (m->in_graphs)
        standin_refuse(STANDIN_DOCUMENTS.graph_memory,
                       "%p is freed while a capture uses it: its memory has to live until the capture is destroyed", at);
    memmove(pieces + i - 1, pieces + i, (--n_pieces - (i - 1)) * sizeof *pieces);
    standin_unlock();
    if (!m->adopted)
        munmap(m->real - before(m->bytes), pages(m->bytes)); /* what is behind, and a device address is never given out
                                                            again, so that a stale one is always found */
    standin_history_free(m->history);
    standin_history_free(m->run_history);
    free(m);
}
