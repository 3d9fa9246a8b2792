/* Rows of activations as `smmla` takes them: eight k of two rows beside each other. */
#ifndef TD_KERNELS_VEC_MMLA_PAIRS_H
#define TD_KERNELS_VEC_MMLA_PAIRS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MMLA static inline __attribute__((always_inline))

#define MMLA_STEP 16 /* k of a step: two runs of eight */
#define MMLA_PAIRS_MAX 6

/* A step of each pair of rows. It goes through general registers into these words and comes back as vectors, on the units
 * for loads and stores. Bringing two rows together in vector registers would take the units that `smmla` waits for.
 */
typedef struct {
    uint64_t run[2][MMLA_PAIRS_MAX][2];
} mmla_step;

/* Moves the rows on. The empty instructions keep a compiler from doing this with vectors, and from one index for all rows,
 * which would make two loads of each. */
MMLA void mmla_put_pair(mmla_step *to, int p, const int8_t **a, const int8_t **b) {
    uint64_t x[2], y[2];
    memcpy(x, *a, sizeof x);
    memcpy(y, *b, sizeof y);
    *a += MMLA_STEP, *b += MMLA_STEP;
    __asm__("" : "+r"(x[0]), "+r"(x[1]), "+r"(y[0]), "+r"(y[1]), "+r"(*a), "+r"(*b));
    to->run[0][p][0] = x[0], to->run[0][p][1] = y[0];
    to->run[1][p][0] = x[1], to->run[1][p][1] = y[1];
}

/* After the last pair: what was put there is read from there. */
#define mmla_put_done(step) __asm__("" : "+m"(step))

#endif
