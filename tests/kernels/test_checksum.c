/* Checksums by all threads, and by the code of every instruction set, compared with the definition as the xxhash library
 * computes it. */

#include <xxhash.h>

#include "core/math/rng.h"
#include "kernels/machine/checksum.h"
#include "tests/kernels/kernel_tables.h"
#include "tests/td_test.h"

#define SEED 31415u
#define PIECE ((size_t)2 << 20)

static unsigned char *noise(size_t bytes) {
    unsigned char *p = malloc(bytes);
    assert_non_null(p);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t v = td_rng_u64(SEED, 0, i);
        memcpy(p + i, &v, 8);
    }
    return p;
}

TEST(every_copy_is_xxh3) {
    FREED unsigned char *p = noise(70000);
    for (size_t bytes = 1; bytes < 70000 - 3; bytes += 1 + bytes / 7)
        for (size_t at = 0; at < 3; at++) {
            uint64_t want = XXH3_64bits(p + at, bytes);
            EACH_TABLE(t, checksum) assert_int_equal(t->checksum(p + at, bytes), want);
        }
}

static uint64_t by_definition(const unsigned char *p, size_t bytes) {
    uint64_t hash[16];
    size_t   n = 0;
    for (size_t at = 0; at < bytes; at += PIECE) hash[n++] = XXH3_64bits(p + at, bytes - at < PIECE ? bytes - at : PIECE);
    return XXH3_64bits(hash, n * sizeof *hash);
}

TEST(spans_are_hashed_in_pieces) {
    size_t                 all = 9 * PIECE + 4321;
    FREED unsigned char   *p = noise(all);
    const td_checksum_span spans[] = {{p, all}, {p + 64, PIECE}, {p + 1, 1}, {p + 4096, PIECE + 1}, {p, 4 * PIECE}};
    enum { N = sizeof spans / sizeof *spans };
    for (uint32_t workers = 1; workers <= 3; workers++) {
        td_worker_place places[3];
        td_pool        *pool;
        uint64_t        hash[N];
        for (uint32_t i = 0; i < workers; i++) places[i] = (td_worker_place){.cpu = TD_CPU_ANY, .node = UINT32_MAX};
        OK(td_pool_create(places, workers, &pool, NULL));
        OK(td_checksums(pool, spans, N, hash, NULL));
        for (size_t i = 0; i < N; i++) assert_int_equal(hash[i], by_definition(spans[i].data, spans[i].bytes));
        td_pool_destroy(pool);
    }
}

int main(void) {
    printf("seed %u\n", SEED);
    return tests_run();
}
