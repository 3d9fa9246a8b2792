/*
 * The inner loop of integer products on AVX-512: up to 14 rows of activations times two vectors of weights, as text.
 *
 * Rows go two at a time, the second `stride` bytes behind the first. The first is broadcast by the multiplications
 * themselves, the second once for both: a broadcast of its own costs an instruction, an embedded one a load, and neither
 * should be the narrow place. Four steps share their counting. Written out because gcc 12 keeps some accumulators of such a
 * loop in memory, and because instructions count while the core's other hyperthread is busy.
 *
 * zmm0 .. 27 are the sums, row r's 2r and 2r + 1; zmm28 and 29 the weights, 30 the broadcast, 31 is the includer's.
 */
#ifndef TD_KERNELS_VEC_ZMM_ROWS_H
#define TD_KERNELS_VEC_ZMM_ROWS_H

#include <immintrin.h>
#include <stddef.h>

#define TD_ZMM_ROWS_MAX 14

/** A number that a macro names, as the text of an instruction. */
#define TD_ZMM_NUMBER(n) TD_ZMM_NUMBER_(n)
#define TD_ZMM_NUMBER_(n) #n

/** A product: fours + more times four steps, then `ones` single ones; a step takes 4 bytes of each row. */
typedef struct {
    const char *x; /* the rows' */
    size_t      stride;
    const char *w;
    size_t      w1;    /* from a step's first vector of weights to its second, where the includer's steps use it */
    const char *ahead; /* what the steps prefetch, moving on by `ahead_step` each; `next` once `fours` are over */
    const char *next;
    size_t      ahead_step, fours, more, ones;
} td_zmm_product;

/* Single steps of one or two rows at `at`, a text, bytes behind the rows' pointers. */
#define TD_ZMM_ONE(op, at, x, a, b) \
    op " " at "(%[" x "])%{1to16%}, %%zmm28, %%zmm" a "\n\t" op " " at "(%[" x "])%{1to16%}, %%zmm29, %%zmm" b "\n\t"
#define TD_ZMM_TWO(op, at, x, a, b, c, d)                                                 \
    "vpbroadcastd " at "(%[" x "],%[stride]), %%zmm30\n\t" TD_ZMM_ONE(op, at, x, a, b) op \
        " %%zmm30, %%zmm28, %%zmm" c "\n\t" op " %%zmm30, %%zmm29, %%zmm" d "\n\t"
#define TD_ZMM_ROWS_1(op, at) TD_ZMM_ONE(op, at, "x0", "0", "1")
#define TD_ZMM_ROWS_2(op, at) TD_ZMM_TWO(op, at, "x0", "0", "1", "2", "3")
#define TD_ZMM_ROWS_3(op, at) TD_ZMM_ROWS_2(op, at) TD_ZMM_ONE(op, at, "x1", "4", "5")
#define TD_ZMM_ROWS_4(op, at) TD_ZMM_ROWS_2(op, at) TD_ZMM_TWO(op, at, "x1", "4", "5", "6", "7")
#define TD_ZMM_ROWS_5(op, at) TD_ZMM_ROWS_4(op, at) TD_ZMM_ONE(op, at, "x2", "8", "9")
#define TD_ZMM_ROWS_6(op, at) TD_ZMM_ROWS_4(op, at) TD_ZMM_TWO(op, at, "x2", "8", "9", "10", "11")
#define TD_ZMM_ROWS_7(op, at) TD_ZMM_ROWS_6(op, at) TD_ZMM_ONE(op, at, "x3", "12", "13")
#define TD_ZMM_ROWS_8(op, at) TD_ZMM_ROWS_6(op, at) TD_ZMM_TWO(op, at, "x3", "12", "13", "14", "15")
#define TD_ZMM_ROWS_9(op, at) TD_ZMM_ROWS_8(op, at) TD_ZMM_ONE(op, at, "x4", "16", "17")
#define TD_ZMM_ROWS_10(op, at) TD_ZMM_ROWS_8(op, at) TD_ZMM_TWO(op, at, "x4", "16", "17", "18", "19")
#define TD_ZMM_ROWS_11(op, at) TD_ZMM_ROWS_10(op, at) TD_ZMM_ONE(op, at, "x5", "20", "21")
#define TD_ZMM_ROWS_12(op, at) TD_ZMM_ROWS_10(op, at) TD_ZMM_TWO(op, at, "x5", "20", "21", "22", "23")
#define TD_ZMM_ROWS_13(op, at) TD_ZMM_ROWS_12(op, at) TD_ZMM_ONE(op, at, "x6", "24", "25")
#define TD_ZMM_ROWS_14(op, at) TD_ZMM_ROWS_12(op, at) TD_ZMM_TWO(op, at, "x6", "24", "25", "26", "27")

/* clang-format off */
#define TD_ZMM_SUMS(_)                                                                                                                 \
    _("0") _("1") _("2") _("3") _("4") _("5") _("6") _("7") _("8") _("9") _("10") _("11") _("12") _("13") _("14") _("15") _("16") _("17") \
    _("18") _("19") _("20") _("21") _("22") _("23") _("24") _("25") _("26") _("27")
/* clang-format on */
#define TD_ZMM_CLEAR(i) "vpxord %%zmm" i ", %%zmm" i ", %%zmm" i "\n\t"
#define TD_ZMM_STORE(i) "vmovdqa64 %%zmm" i ", 64*" i "(%[count])\n\t"

#define TD_ZMM_ADVANCE(x_bytes, w_bytes)                                                                        \
    "add $" w_bytes ", %[w]\n\tadd $" x_bytes ", %[x0]\n\tadd $" x_bytes ", %[x1]\n\tadd $" x_bytes             \
    ", %[x2]\n\tadd $" x_bytes ", %[x3]\n\tadd $" x_bytes ", %[x4]\n\tadd $" x_bytes ", %[x5]\n\tadd $" x_bytes \
    ", %[x6]\n\tsub $1, %[count]\n\t"

/**
 * A case of a switch over the number of rows: sums[28] (__m512i, aligned) := the product p (td_zmm_product, whose w, ahead
 * and more change). before: text in front of the loop. load(i): loads the weights of step "i" of four into zmm28 and zmm29,
 * and prefetches. w_bytes: of a step; the text of a number.
 */
#define TD_ZMM_CASE(rows, op, before, load, w_bytes, p, sums)                                                                                \
    case rows: {                                                                                                                             \
        const char *x0 = (p).x, *x1 = x0 + 2 * (p).stride, *x2 = x1 + 2 * (p).stride, *x3 = x2 + 2 * (p).stride,                             \
                   *x4 = x3 + 2 * (p).stride, *x5 = x4 + 2 * (p).stride, *x6 = x5 + 2 * (p).stride;                                          \
        __m512i *to = (sums);                                                                                                                \
        size_t   count = (p).fours;                                                                                                          \
        __asm__ volatile(TD_ZMM_SUMS(TD_ZMM_CLEAR) before                                                                                  \
                         "test %[count], %[count]\n\tjz 2f\n"                                                                              \
                         "1:\n\t"                                                                                                          \
                         load("0") TD_ZMM_ROWS_##rows(op, "0") load("1") TD_ZMM_ROWS_##rows(op, "4")                                       \
                         load("2") TD_ZMM_ROWS_##rows(op, "8") load("3") TD_ZMM_ROWS_##rows(op, "12")                                      \
                         TD_ZMM_ADVANCE("16", "4*" w_bytes) "jnz 1b\n"                                                                     \
                         "2:\n\tmov %[next], %[ahead]\n\tmov %[more], %[count]\n\tmovq $0, %[more]\n\ttest %[count], %[count]\n\tjnz 1b\n\t" \
                         "mov %[ones], %[count]\n\ttest %[count], %[count]\n\tjz 4f\n"                                                     \
                         "3:\n\t"                                                                                                          \
                         load("0") TD_ZMM_ROWS_##rows(op, "0") TD_ZMM_ADVANCE("4", w_bytes) "jnz 3b\n"                                     \
                         "4:\n\tmov %[to], %[count]\n\t" TD_ZMM_SUMS(TD_ZMM_STORE)                                                         \
                         : [w] "+r"((p).w), [ahead] "+r"((p).ahead), [count] "+r"(count), [x0] "+r"(x0), [x1] "+r"(x1), [x2] "+r"(x2),     \
                           [x3] "+r"(x3), [x4] "+r"(x4), [x5] "+r"(x5), [x6] "+r"(x6), [more] "+m"((p).more)                             \
                         : [stride] "r"((p).stride), [w1] "r"((p).w1), [step] "m"((p).ahead_step), [next] "m"((p).next),                   \
                           [ones] "m"((p).ones), [to] "m"(to)                                                                              \
                         : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",        \
                           "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22",      \
                           "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"); \
        break;                                                                                                                               \
    }

#endif
