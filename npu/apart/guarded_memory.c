#include "npu/apart/guarded_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/error.h"
#include "core/memory/mem.h"

void td_regions_open(td_regions *r) {
    *r = (td_regions){0};
    pthread_mutex_init(&r->lock, NULL);
}

static void unmap(const td_region *region) {
    if (region->adopted) return;
    if (region->given != region->real) munmap(region->given, td_round_up(region->bytes, td_page_bytes()));
    td_mem_unmap(region->real, region->bytes);
}

void td_regions_close(td_regions *r) {
    for (size_t i = 0; i < r->n; i++) unmap(&r->regions[i]);
    free(r->regions);
    pthread_mutex_destroy(&r->lock);
}

/* The first piece that begins behind p; the one before may hold it. Under the lock. */
static size_t first_behind(const td_regions *r, const char *p) {
    size_t first = 0, end = r->n;
    while (first < end) {
        size_t mid = first + (end - first) / 2;
        if (r->regions[mid].given <= p)
            first = mid + 1;
        else
            end = mid;
    }
    return first;
}

static bool make_room(td_regions *r) {
    if (r->n < r->room) return true;
    size_t     room = r->room ? r->room * 2 : 64;
    td_region *regions = realloc(r->regions, room * sizeof *regions);
    if (!regions) return false;
    r->regions = regions;
    r->room = room;
    return true;
}

static td_status map(size_t bytes, uint32_t node, bool shared, td_region *out, td_error *err) {
    void *real;
    *out = (td_region){.bytes = bytes};
    TD_TRY(td_mem_map(bytes, node, &real, err));
    void *given = shared ? real
                         : mmap(NULL, td_round_up(bytes, td_page_bytes()), PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (given == MAP_FAILED) {
        td_mem_unmap(real, bytes);
        return td_fail(err, TD_ENOMEM, "cannot reserve %zu bytes of addresses: %s", bytes, strerror(errno));
    }
    out->given = given;
    out->real = real;
    return TD_OK;
}

static td_status insert(td_regions *r, const td_region *region, td_error *err) {
    pthread_mutex_lock(&r->lock);
    bool ok = make_room(r);
    if (ok) {
        size_t at = first_behind(r, region->given);
        memmove(r->regions + at + 1, r->regions + at, (r->n++ - at) * sizeof *r->regions);
        r->regions[at] = *region;
        r->bytes += region->bytes;
    }
    pthread_mutex_unlock(&r->lock);
    return ok ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for the list of device memory");
}

td_status td_regions_add(td_regions *r, size_t bytes, uint32_t node, bool shared, void **out, td_error *err) {
    td_region region;
    *out = NULL;
    TD_TRY(map(bytes, node, shared, &region, err));
    td_status st = insert(r, &region, err);
    if (st == TD_OK)
        *out = region.given;
    else
        unmap(&region);
    return st;
}

td_status td_regions_adopt(td_regions *r, void *p, size_t bytes, td_error *err) {
    return insert(r, &(td_region){.given = p, .real = p, .bytes = bytes, .adopted = true}, err);
}

bool td_regions_remove(td_regions *r, void *given) {
    td_region region = {0};
    pthread_mutex_lock(&r->lock);
    size_t at = first_behind(r, given);
    bool   found = at > 0 && r->regions[at - 1].given == given;
    if (found) {
        region = r->regions[--at];
        memmove(r->regions + at, r->regions + at + 1, (--r->n - at) * sizeof *r->regions);
        r->bytes -= region.bytes;
    }
    pthread_mutex_unlock(&r->lock);
    if (found) unmap(&region);
    return found;
}

void *td_regions_find(td_regions *r, const void *given, size_t bytes) {
    const char *p = given;
    void       *real = NULL;
    pthread_mutex_lock(&r->lock);
    size_t at = first_behind(r, p);
    if (at > 0) {
        const td_region *region = &r->regions[at - 1];
        size_t           offset = (size_t)(p - region->given);
        if (offset <= region->bytes && bytes <= region->bytes - offset) real = region->real + offset;
    }
    pthread_mutex_unlock(&r->lock);
    return real;
}

size_t td_regions_bytes(td_regions *r) {
    pthread_mutex_lock(&r->lock);
    size_t bytes = r->bytes;
    pthread_mutex_unlock(&r->lock);
    return bytes;
}
