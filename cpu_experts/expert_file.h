/* The header page of a packed expert file. Little-endian; the fields are a file format: change TD_PACKED_VERSION with them.
 */
#ifndef TD_CPU_EXPERTS_EXPERT_FILE_H
#define TD_CPU_EXPERTS_EXPERT_FILE_H

#include "cpu_experts/expert_state.h"

#define TD_PACKED_MAGIC "TDEXPERT"
#define TD_PACKED_VERSION 2
#define TD_PACKED_BIAS 1u /* every expert's tiles are followed by biases */

typedef struct {
    char     magic[8];
    uint32_t version;
    uint32_t header_bytes; /* TD_FILE_BLOCK: the first shard starts there */
    char     layout[16];   /* of the kernel's tiles, NUL-padded */
    char     kernel[64];   /* that packed it; for people */
    /** td_expert_format. int4g and fp4g also have groups: size in bits 8-15, scale_dtype in 16-23, zero_points in 24. */
    uint32_t format;
    uint32_t layer, n_experts, hidden, inter;
    uint32_t nr, kr; /* rows of a tile, padding of k */
    uint32_t n_shards;
    uint32_t flags;         /* TD_PACKED_BIAS, or 0 */
    uint64_t source_hash;   /* of the checkpoint */
    uint64_t repacked_from; /* header_hash of the file this one was repacked from; 0: packed from the checkpoint */
    uint64_t payload_bytes; /* of all shards */
    uint64_t shard_bytes[TD_POOL_SUBPOOLS_MAX]; /* whole pages, one after the other */
    uint64_t shard_hash[TD_POOL_SUBPOOLS_MAX];  /* kernels/machine/checksum.h */
    uint64_t header_hash;                       /* XXH3-64 of the page with this field 0 */
} td_packed_header;

_Static_assert(sizeof(td_packed_header) <= TD_FILE_BLOCK, "the header fits its page");

#endif
