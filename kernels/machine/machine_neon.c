/* What the machine can do at most: NEON. */
#include <arm_neon.h>

#include "kernels/machine/machine_loops.h"
#include "kernels/machine/peak_chains_neon.h"

#define AHEAD_BYTES 4096

/** Where results go that nobody wants, so that what made them stays. */
static _Thread_local volatile int sink;

void td_read_neon(const char *p, size_t bytes) {
    const uint8_t *from = (const uint8_t *)p;
    uint8x16_t     s[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
    for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(from + i + AHEAD_BYTES);
        for (size_t j = 0; j < 4; j++) s[j] = veorq_u8(s[j], vld1q_u8(from + i + 16 * j));
    }
    sink = vgetq_lane_s32(vreinterpretq_s32_u8(veorq_u8(veorq_u8(s[0], s[1]), veorq_u8(s[2], s[3]))), 0);
}

/* NEON's way: products in int16. What widens the sums comes on top, as seldom as a kernel can arrange. */
NEON_PEAK(td_int8_peak_neon, "smlal", ".8h", ", v30.8b, v31.8b\n\t", 8 * 2)
NEON_PEAK(td_f32_peak_neon, "fmla", ".4s", ", v30.4s, v31.4s\n\t", 4 * 2)
