/* NEON_PEAK(name, arrangement, operation, ops): multiply-adds from registers on aarch64, in 24 independent chains; `ops`
 * operations for an instruction. */
#ifndef TD_KERNELS_MACHINE_PEAK_CHAINS_NEON_H
#define TD_KERNELS_MACHINE_PEAK_CHAINS_NEON_H

#define PEAK_LOOPS 100000

/* In named registers, as a compiler is free to spill what intrinsics leave to it; v30 and v31 are multiplied. */
#define EIGHT(op, to, from, a, b, c, d, e, f, g, h)                                                                      \
    op " v" #a to from op " v" #b to from op " v" #c to from op " v" #d to from op " v" #e to from op " v" #f to from op \
       " v" #g to from op " v" #h to from
#define NEON_PEAK(name, op, to, from, ops)                                                                                  \
    double name(void) {                                                                                                     \
        for (int loop = 0; loop < PEAK_LOOPS; loop++)                                                                       \
            __asm__ volatile(                                                                                               \
                "movi v30.16b, #0\n\tmovi v31.16b, #0\n\t" EIGHT(op, to, from, 0, 1, 2, 3, 4, 5, 6, 7)                      \
                    EIGHT(op, to, from, 8, 9, 10, 11, 12, 13, 14, 15) EIGHT(op, to, from, 16, 17, 18, 19, 20, 21, 22, 23):: \
                        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",    \
                          "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v30", "v31");                     \
        return 24.0 * PEAK_LOOPS * (ops);                                                                                   \
    }

#endif
