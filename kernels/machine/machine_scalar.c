/* What the machine can do at most, and checksums: plain loops, and what the compiler makes of them. */
#define CHECKSUM td_checksum_scalar
#include "kernels/machine/checksum_body.inc"

#include <string.h>

#define PLAIN_VALUES 4096 /* in the first level of the cache */
#define PLAIN_LOOPS 500

/** Where results go that nobody wants, so that what made them stays. */
static _Thread_local volatile int sink;

void td_read_scalar(const char *p, size_t bytes) {
    uint64_t s = 0, v;
    for (size_t i = 0; i < bytes; i += 8) {
        memcpy(&v, p + i, 8);
        s ^= v;
    }
    sink = (int)s;
}

double td_int8_peak_scalar(void) {
    static const int8_t x[PLAIN_VALUES], y[PLAIN_VALUES];
    for (int loop = 0; loop < PLAIN_LOOPS; loop++) {
        const int8_t *a = x, *b = y;
        int32_t       sum = 0;
        __asm__ volatile("" : "+r"(a), "+r"(b));
        for (size_t i = 0; i < PLAIN_VALUES; i++) sum += a[i] * b[i];
        sink = sum;
    }
    return 2.0 * PLAIN_LOOPS * PLAIN_VALUES;
}

double td_f32_peak_scalar(void) {
    static const float x[PLAIN_VALUES], y[PLAIN_VALUES];
    for (int loop = 0; loop < PLAIN_LOOPS; loop++) {
        const float *a = x, *b = y;
        float        sum[16] = {0};
        __asm__ volatile("" : "+r"(a), "+r"(b));
        for (size_t i = 0; i < PLAIN_VALUES; i += 16)
            for (size_t j = 0; j < 16; j++) sum[j] += a[i + j] * b[i + j];
        for (size_t j = 1; j < 16; j++) sum[0] += sum[j];
        sink = (int)sum[0];
    }
    return 2.0 * PLAIN_LOOPS * PLAIN_VALUES;
}

double td_bf16_peak_none(void) {
    return 0;
}
