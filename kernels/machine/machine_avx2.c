/* What the machine can do at most, and checksums: AVX2 + FMA. */
#include <immintrin.h>

#define CHECKSUM td_checksum_avx2
#include "kernels/machine/checksum_body.inc"

#include "kernels/machine/peak_chains.h"
#include "kernels/vec/fetch.h"

/** Where results go that nobody wants, so that what made them stays. */
static _Thread_local volatile int sink;

void td_read_avx2(const char *p, size_t bytes) {
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t i = 0; i < bytes; i += 128) {
        fetch_l1(p + i + 4096);
        fetch_l1(p + i + 4096 + 64);
        for (size_t j = 0; j < 4; j++) s[j] = _mm256_xor_si256(s[j], _mm256_load_si256((const __m256i *)(p + i + 32 * j)));
    }
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    sink = _mm256_extract_epi32(s[0], 0) ^ _mm256_extract_epi32(s[0], 5);
}

/* AVX2's way: a product of pairs and a sum in int16. What widens the sums comes on top, as seldom as a kernel can arrange.
 */
YMM_PEAK(td_int8_peak_avx2, "vpmaddubsw %%ymm14, %%ymm14, %%ymm15\nvpaddw %%ymm14, %%ymm15, ", 32 * 2)
YMM_PEAK(td_f32_peak_avx2, "vfmadd231ps %%ymm14, %%ymm14, ", 8 * 2)
