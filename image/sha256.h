/* SHA-256 (FIPS 180-4): names of pictures that nobody can make two of. */
#ifndef TD_IMAGE_SHA256_H
#define TD_IMAGE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define TD_SHA256_BYTES 32

typedef struct {
    uint32_t state[8];
    uint8_t  block[64]; /* what has come of the block under way */
    uint64_t n;         /* bytes that have come */
} td_sha256;

/** Begin; add n bytes, any number of times; write the hash. Not to be used after its end. */
void td_sha256_begin(td_sha256 *s);
void td_sha256_add(td_sha256 *s, const void *bytes, size_t n);
void td_sha256_end(td_sha256 *s, uint8_t out[TD_SHA256_BYTES]);

#endif
