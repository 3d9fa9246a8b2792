#include "core/math/rng.h"

void td_philox(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]) {
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++) out[i] = c[i];
}

uint64_t td_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint32_t v[4];
    td_philox(seed, stream, counter, v);
    return (uint64_t)v[1] << 32 | v[0];
}

double td_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
    return (double)(td_rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}
