/*
 * Memory with two addresses: one that upper layers hold and nobody can touch (PROT_NONE), one where it is.
 *
 * DESIGN. Every piece is mapped twice as address space: a guard without access, whose address is given out, and the memory
 * itself. A read or write through the address that was given out ends the process where it happens, on any thread, at any
 * time. Thread-safe.
 */
#ifndef TD_NPU_APART_GUARDED_MEMORY_H
#define TD_NPU_APART_GUARDED_MEMORY_H

#include <pthread.h>

#include "tandem.h"

typedef struct {
    char  *given; /* the address that is given out */
    char  *real;  /* where it is; equal to given for memory that both sides reach */
    size_t bytes;
    bool   adopted; /* the caller's */
} td_region;

typedef struct {
    pthread_mutex_t lock;
    td_region      *regions; /* [n] by address */
    size_t          n, room;
    size_t          bytes; /* of all */
} td_regions;

void td_regions_open(td_regions *r);
void td_regions_close(td_regions *r);

/** Zeroed memory behind a guard, or with `shared` without one. @param node as td_mem_map's. */
TD_NODISCARD td_status td_regions_add(td_regions *r, size_t bytes, uint32_t node, bool shared, void **out, td_error *err);
/** Memory of the caller's, without a guard; it stays the caller's. */
TD_NODISCARD td_status td_regions_adopt(td_regions *r, void *p, size_t bytes, td_error *err);
/** Give a piece back. @return false: it is none of them. */
bool td_regions_remove(td_regions *r, void *given);
/** Where `bytes` bytes from `given` on are. @return NULL: they are not of one piece. */
void  *td_regions_find(td_regions *r, const void *given, size_t bytes);
size_t td_regions_bytes(td_regions *r);

#endif
