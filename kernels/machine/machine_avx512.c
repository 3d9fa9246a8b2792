/* What the machine can do at most, and checksums: AVX-512. */
#include <immintrin.h>

#define CHECKSUM td_checksum_avx512
#include "kernels/machine/checksum_body.inc"

#include "core/machine/cpu.h"
#include "kernels/machine/peak_chains.h"
#include "kernels/vec/fetch.h"

/** Where results go that nobody wants, so that what made them stays. */
static _Thread_local volatile int sink;

void td_read_avx512(const char *p, size_t bytes) {
    __m512i s[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i < bytes; i += 256)
        for (size_t j = 0; j < 4; j++) {
            fetch_l1(p + i + 64 * j + 4096);
            s[j] = _mm512_xor_si512(s[j], _mm512_load_si512(p + i + 64 * j));
        }
    sink = _mm512_reduce_add_epi32(_mm512_xor_si512(_mm512_xor_si512(s[0], s[1]), _mm512_xor_si512(s[2], s[3])));
}

ZMM_PEAK(td_f32_peak_avx512, "vfmadd231ps", 16 * 2)
static ZMM_PEAK(bf16_peak, "vdpbf16ps", 32 * 2)

    double td_bf16_peak_avx512(void) {
    return td_cpu_features() & TD_CPU_AVX512BF16 ? bf16_peak() : 0;
}
