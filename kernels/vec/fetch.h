/* Bring the cache line at an address nearer before it is read; any address may be given. One line of instruction text each:
 * prefetcht0 and prefetcht1, prfm pldl1keep and pldl2keep. */
#ifndef TD_KERNELS_VEC_FETCH_H
#define TD_KERNELS_VEC_FETCH_H

static inline __attribute__((always_inline)) void fetch_l1(const void *p) {
    __builtin_prefetch(p, 0, 3);
}

/** Past the L1, for what is read later. */
static inline __attribute__((always_inline)) void fetch_l2(const void *p) {
    __builtin_prefetch(p, 0, 2);
}

#endif
