/* XXH3-64 of a piece of memory: the same function, compiled per instruction set. */
#ifndef TD_CORE_CHECKSUM_PIECES_H
#define TD_CORE_CHECKSUM_PIECES_H

#include <stddef.h>
#include <stdint.h>

uint64_t td_checksum_piece_plain(const void *data, size_t bytes);
#if defined(__x86_64__)
uint64_t td_checksum_piece_avx2(const void *data, size_t bytes);
uint64_t td_checksum_piece_avx512(const void *data, size_t bytes);
#endif

#endif
