#include "image/sha256.h"

#include <string.h>

/* FIPS 180-4, 4.2.2: of the cube roots of the first 64 primes, 32 bits behind the point. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
/* 5.3.3: the same of the square roots of the first 8. */
static const uint32_t BEGIN[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static uint32_t read_word(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void write_word(uint8_t *p, uint32_t x) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(x >> (24 - 8 * i));
}

/* 6.2.2, for one block. */
static void compress(uint32_t state[8], const uint8_t block[64]) {
    uint32_t w[64];
    for (int t = 0; t < 16; t++) w[t] = read_word(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        const uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[t - 7] + (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t++) {
        const uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + K[t] + w[t];
        const uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void td_sha256_begin(td_sha256 *s) {
    memcpy(s->state, BEGIN, sizeof s->state);
    s->n = 0;
}

void td_sha256_add(td_sha256 *s, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    const size_t   have = s->n % 64;
    s->n += n;
    if (have) {
        const size_t part = n < 64 - have ? n : 64 - have;
        memcpy(s->block + have, p, part);
        if (have + part < 64) return;
        compress(s->state, s->block);
        p += part, n -= part;
    }
    for (; n >= 64; p += 64, n -= 64) compress(s->state, p);
    if (n) memcpy(s->block, p, n);
}

void td_sha256_end(td_sha256 *s, uint8_t out[TD_SHA256_BYTES]) {
    static const uint8_t PADDING[64] = {0x80};
    const uint64_t       bits = s->n * 8;
    uint8_t              length[8];
    td_sha256_add(s, PADDING, 1 + (119 - s->n % 64) % 64); /* up to 8 bytes before a block's end */
    write_word(length, (uint32_t)(bits >> 32));
    write_word(length + 4, (uint32_t)bits);
    td_sha256_add(s, length, 8);
    for (int i = 0; i < 8; i++) write_word(out + 4 * i, s->state[i]);
}
