/*
 * The hash of a piece, to be included by one file per instruction set, which defines TD_CHECKSUM_PIECE as the function's name.
 *
 * The library's own copy of XXH3 is compiled for SSE2 and prefetches 384 bytes ahead. Compiled here for wider vectors, and with blocks fetched
 * further ahead, it comes near the memory's speed.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/checksum_pieces.h"

#define BLOCK_BYTES ((size_t)1024)
#define AHEAD_BYTES ((size_t)8192)

uint64_t TD_CHECKSUM_PIECE(const void *data, size_t bytes) {
    const char   *p = data;
    XXH3_state_t  state;
    XXH3_64bits_reset(&state);
    for (size_t at = 0, block; at < bytes; at += block) {
        block = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        for (size_t line = 0; line < BLOCK_BYTES && at + AHEAD_BYTES + line < bytes; line += 64) __builtin_prefetch(p + at + AHEAD_BYTES + line);
        XXH3_64bits_update(&state, p + at, block);
    }
    return XXH3_64bits_digest(&state);
}
