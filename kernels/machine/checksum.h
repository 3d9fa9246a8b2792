/* Checksums of large memory, by all threads of a pool and about as fast as it can be read. */
#ifndef TD_KERNELS_MACHINE_CHECKSUM_H
#define TD_KERNELS_MACHINE_CHECKSUM_H

#include "core/threads/pool.h"

typedef struct {
    const void *data;
    size_t      bytes; /* > 0 */
} td_checksum_span;

/**
 * hash[i] = XXH3-64 of the XXH3-64 (8 bytes each, little-endian) of span i's pieces of 2 MiB, the last one shorter. Part of
 * file formats.
 * @param pool  the caller is its worker 0; NULL: by the caller alone. @param hash [n] written. @return TD_ENOMEM.
 */
TD_NODISCARD td_status td_checksums(td_pool *pool, const td_checksum_span *spans, size_t n, uint64_t *hash, td_error *err);

#endif
