/*
 * Multiply-adds from registers: what a set of instructions can do at most. A macro makes a function of one instruction.
 */
#ifndef TD_KERNELS_MACHINE_PEAK_CHAINS_H
#define TD_KERNELS_MACHINE_PEAK_CHAINS_H

#define PEAK_LOOPS 100000

/*
 * Independent chains in named registers: a compiler is free to spill what intrinsics leave to it. 12 or 24 chains cover four
 * or five cycles of latency on two ports. The registers hold zeros, or small numbers that stay small.
 */
#define TWELVE(op, v, x)                                                                                               \
    op v "0" x op v "1" x op v "2" x op v "3" x op v "4" x op v "5" x op v "6" x op v "7" x op v "8" x op v "9" x op v \
         "10" x op                                                                                                   v "11" x
#define MORE(op, v, x)                                                                                               \
    op v "12" x op v "13" x op v "16" x op v "17" x op v "18" x op v "19" x op v "20" x op v "21" x op v "22" x op v \
         "23" x op v "24" x op v "25" x

/* name(): run `op` on every register, and tell the operations: `ops` for an instruction. */
#define ZMM_PEAK(name, op, ops)                                                                                         \
    double name(void) {                                                                                                 \
        for (int loop = 0; loop < PEAK_LOOPS; loop++)                                                                   \
            __asm__ volatile("vpxord %%zmm14, %%zmm14, %%zmm14\n" TWELVE(op " %%zmm14, %%zmm14, ", "%%zmm", "\n")       \
                                 MORE(op " %%zmm14, %%zmm14, ", "%%zmm", "\n")::                                        \
                                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",  \
                                       "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm16", "xmm17", "xmm18", "xmm19", \
                                       "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25");                           \
        return 24.0 * PEAK_LOOPS * (ops);                                                                               \
    }
#define YMM_PEAK(name, op, ops)                                                                                             \
    double name(void) {                                                                                                     \
        for (int loop = 0; loop < PEAK_LOOPS; loop++)                                                                       \
            __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n" TWELVE(op, "%%ymm", "\n")::                                \
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                                   "xmm11", "xmm14", "xmm15");                                                              \
        return 12.0 * PEAK_LOOPS * (ops);                                                                                   \
    }

#endif
