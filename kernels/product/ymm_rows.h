/*
 * The inner loop of products with codes of 4 bits on AVX2: up to 6 rows of activations times two vectors of 8 outputs, as
 * text.
 *
 * vpmaddubsw multiplies 32 pairs of bytes. Its sums of two are added in int16 over a chunk of k, within which they cannot
 * overflow: 32 with codes in [0, 15] (8 * 15 * 127 * 2 = 30480), 16 with codes in [0, 32]. Then vpmaddwd widens them into
 * int32 sums that rest in memory, so that the 12 int16 ones have registers. Weights are packed codes, or bytes that the
 * caller has made of a block of them (td_ymm_unpack), which stays in L1 for all passes over it. Bytes save a tenth of the
 * loop's work, which is worth their stores from TD_YMM_UNPACK_M rows on. Written out because gcc 12 keeps some sums of such
 * a loop in memory.
 *
 * ymm0 .. 11 are the sums in int16, row r's 2r and 2r + 1; ymm12 and 13 the codes of low and of high nibbles; ymm14 the
 * broadcast.
 */
#ifndef TD_KERNELS_PRODUCT_YMM_ROWS_H
#define TD_KERNELS_PRODUCT_YMM_ROWS_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/product/tile_kernels.h"

#define TD_YMM_ROWS_MAX 6
#define TD_YMM_UNPACK_M 25
#define TD_YMM_BLOCK_K 512              /* 8 KB of bytes */
#define TD_YMM_BLOCK_ROWS ((size_t)120) /* whose sums rest in memory together, 7.5 KB */

/** A product of whole chunks. Each of a chunk's steps takes 4 bytes of each row and 32 of packed weights, or 64 of bytes. */
typedef struct {
    const int8_t  *x; /* the rows' */
    size_t         stride;
    const uint8_t *w;                 /* 32-byte aligned */
    size_t         far;               /* bytes ahead that packed weights are fetched into L2; into L1 it is PREFETCH_NEAR */
    const char    *ahead;             /* with bytes: what is fetched into L2, a line each chunk */
    size_t         chunks;            /* > 0 */
    __m256i        mask, ones, table; /* bytes of 15; int16 of 1; what the nibbles stand for, where that is not themselves */
} td_ymm_product;

/* One row at `at` bytes behind its pointer, in a chunk's first step and in the others. a, b: its sums. */
#define TD_YMM_FIRST(at, x, a, b)                                                \
    "vpbroadcastd " at "+" x ", %%ymm14\n\tvpmaddubsw %%ymm14, %%ymm12, %%ymm" a \
    "\n\t"                                                                       \
    "vpmaddubsw %%ymm14, %%ymm13, %%ymm" b "\n\t"
#define TD_YMM_NEXT(at, x, a, b)                                                                    \
    "vpbroadcastd " at "+" x                                                                        \
    ", %%ymm14\n\tvpmaddubsw %%ymm14, %%ymm12, %%ymm15\n\tvpmaddubsw %%ymm14, %%ymm13, %%ymm14\n\t" \
    "vpaddw %%ymm15, %%ymm" a ", %%ymm" a "\n\tvpaddw %%ymm14, %%ymm" b ", %%ymm" b "\n\t"
#define TD_YMM_ROWS_1(op, at) op(at, "0(%[x0])", "0", "1")
#define TD_YMM_ROWS_2(op, at) TD_YMM_ROWS_1(op, at) op(at, "0(%[x0],%[stride])", "2", "3")
#define TD_YMM_ROWS_3(op, at) TD_YMM_ROWS_2(op, at) op(at, "0(%[x0],%[stride],2)", "4", "5")
#define TD_YMM_ROWS_4(op, at) TD_YMM_ROWS_3(op, at) op(at, "0(%[x3])", "6", "7")
#define TD_YMM_ROWS_5(op, at) TD_YMM_ROWS_4(op, at) op(at, "0(%[x3],%[stride])", "8", "9")
#define TD_YMM_ROWS_6(op, at) TD_YMM_ROWS_5(op, at) op(at, "0(%[x3],%[stride],2)", "10", "11")

/* A chunk's end. */
#define TD_YMM_WIDEN(i)                                                                         \
    "vpmaddwd %[ones], %%ymm" i ", %%ymm" i "\n\tvpaddd 32*" i "(%[sums]), %%ymm" i ", %%ymm" i \
    "\n\t"                                                                                      \
    "vmovdqa %%ymm" i ", 32*" i "(%[sums])\n\t"
#define TD_YMM_WIDEN_1 TD_YMM_WIDEN("0") TD_YMM_WIDEN("1")
#define TD_YMM_WIDEN_2 TD_YMM_WIDEN_1 TD_YMM_WIDEN("2") TD_YMM_WIDEN("3")
#define TD_YMM_WIDEN_3 TD_YMM_WIDEN_2 TD_YMM_WIDEN("4") TD_YMM_WIDEN("5")
#define TD_YMM_WIDEN_4 TD_YMM_WIDEN_3 TD_YMM_WIDEN("6") TD_YMM_WIDEN("7")
#define TD_YMM_WIDEN_5 TD_YMM_WIDEN_4 TD_YMM_WIDEN("8") TD_YMM_WIDEN("9")
#define TD_YMM_WIDEN_6 TD_YMM_WIDEN_5 TD_YMM_WIDEN("10") TD_YMM_WIDEN("11")

/* How the weights of step "i" come into ymm12 and ymm13: packed codes in [0, 15], packed codes by the table, bytes. */
#define TD_YMM_NIBBLES(i)                                                                   \
    "vmovdqa 32*" i                                                                         \
    "(%[w]), %%ymm13\n\tvpand %[mask], %%ymm13, %%ymm12\n\tvpsrlw $4, %%ymm13, %%ymm13\n\t" \
    "vpand %[mask], %%ymm13, %%ymm13\n\t"
#define TD_YMM_TABLE(i) \
    TD_YMM_NIBBLES(i)   \
    "vmovdqa %[table], %%ymm14\n\tvpshufb %%ymm12, %%ymm14, %%ymm12\n\tvpshufb %%ymm13, %%ymm14, %%ymm13\n\t"
#define TD_YMM_BYTES(i) "vmovdqa 64*" i "(%[w]), %%ymm12\n\tvmovdqa 64*" i "+32(%[w]), %%ymm13\n\t"

/* Packed weights fetch a line with every other step, bytes one at a chunk's end. */
#define TD_YMM_FETCH_NIBBLES(i) "prefetcht1 32*" i "(%[w],%[far])\n\tprefetcht0 32*" i "+%c[near](%[w])\n\t"
#define TD_YMM_FETCH_TABLE(i) TD_YMM_FETCH_NIBBLES(i)
#define TD_YMM_FETCH_BYTES(i)
#define TD_YMM_END_NIBBLES
#define TD_YMM_END_TABLE
#define TD_YMM_END_BYTES "prefetcht1 (%[ahead])\n\tadd $64, %[ahead]\n\t"
#define TD_YMM_STEP_BYTES_NIBBLES "32"
#define TD_YMM_STEP_BYTES_TABLE "32"
#define TD_YMM_STEP_BYTES_BYTES "64"

/* Two steps from "i" and "j" on, k bytes "at" and "next" behind the rows' pointers. */
#define TD_YMM_TWO(rows, codes, op, i, at, j, next)                                        \
    TD_YMM_FETCH_##codes(i) TD_YMM_##codes(i) TD_YMM_ROWS_##rows(op, at) TD_YMM_##codes(j) \
        TD_YMM_ROWS_##rows(TD_YMM_NEXT, next)
#define TD_YMM_CHUNK_16(rows, codes) \
    TD_YMM_TWO(rows, codes, TD_YMM_FIRST, "0", "0", "1", "4") TD_YMM_TWO(rows, codes, TD_YMM_NEXT, "2", "8", "3", "12")
#define TD_YMM_CHUNK_32(rows, codes) \
    TD_YMM_CHUNK_16(rows, codes)     \
    TD_YMM_TWO(rows, codes, TD_YMM_NEXT, "4", "16", "5", "20") TD_YMM_TWO(rows, codes, TD_YMM_NEXT, "6", "24", "7", "28")

/* All chunks. Behind each the pointers go on: a row's by the chunk's k, the weights' by a step for each four of them. */
/* clang-format off */
#define TD_YMM_GO_ON(codes, chunk)                               \
    "add $" TD_YMM_STEP_BYTES_##codes "*" #chunk "/4, %[w]\n\t"  \
    "add $" #chunk ", %[x0]\n\tadd $" #chunk ", %[x3]\n\t"       \
    "sub $1, %[count]\n\tjnz 1b"
/* clang-format on */
#define TD_YMM_LOOP(rows, codes, chunk) \
    "1:\n\t" TD_YMM_CHUNK_##chunk(rows, codes) TD_YMM_WIDEN_##rows TD_YMM_END_##codes TD_YMM_GO_ON(codes, chunk)

/**
 * A case of a switch over the number of rows: to[2 * rows] (int32 [8] each, 32-byte aligned) += the product p.
 * codes: NIBBLES, TABLE or BYTES; chunk: 32 or 16.
 */
#define TD_YMM_CASE(rows, codes, chunk, p, to)                                                                             \
    case rows: {                                                                                                           \
        const int8_t  *x0 = (p)->x, *x3 = x0 + 3 * (p)->stride;                                                            \
        const uint8_t *w = (p)->w;                                                                                         \
        const char    *ahead = (p)->ahead;                                                                                 \
        size_t         count = (p)->chunks;                                                                                \
        __asm__ volatile(TD_YMM_LOOP(rows, codes, chunk)                                                                   \
                         : [w] "+r"(w), [x0] "+r"(x0), [x3] "+r"(x3), [count] "+r"(count), [ahead] "+r"(ahead)             \
                         : [sums] "r"(to), [stride] "r"((p)->stride), [far] "r"((p)->far), [near] "i"(PREFETCH_NEAR),      \
                           [mask] "m"((p)->mask), [ones] "m"((p)->ones), [table] "m"((p)->table)                           \
                         : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                           "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                          \
        break;                                                                                                             \
    }
/* clang-format off */
#define TD_YMM_CASES(codes, chunk, p, to)                                                                                                 \
    TD_YMM_CASE(1, codes, chunk, p, to) TD_YMM_CASE(2, codes, chunk, p, to) TD_YMM_CASE(3, codes, chunk, p, to)                              \
    TD_YMM_CASE(4, codes, chunk, p, to) TD_YMM_CASE(5, codes, chunk, p, to) TD_YMM_CASE(6, codes, chunk, p, to)
/* clang-format on */

/** What a call's rows bring to its products. */
static inline td_ymm_product td_ymm_rows(const td_gemm_args *a) {
    const char *x = a->rows[0].x;
    return (td_ymm_product){.stride = a->m > 1 ? (size_t)((const char *)a->rows[1].x - x) : 0,
                            .mask = _mm256_set1_epi8(15),
                            .ones = _mm256_set1_epi16(1)};
}

/** Packed codes of `steps` steps to bytes[64 * steps] (aligned to 32), those of the table where there is one. */
INLINED void td_ymm_unpack(const td_ymm_product *p, const uint8_t *w, size_t steps, bool table, uint8_t *bytes) {
    for (size_t i = 0; i < steps; i++, w += 32, bytes += 64) {
        fetch_l1(w + PREFETCH_NEAR);
        __m256i both = _mm256_load_si256((const __m256i *)w), low = _mm256_and_si256(both, p->mask),
                high = _mm256_and_si256(_mm256_srli_epi16(both, 4), p->mask);
        _mm256_store_si256((__m256i *)bytes, table ? _mm256_shuffle_epi8(p->table, low) : low);
        _mm256_store_si256((__m256i *)(bytes + 32), table ? _mm256_shuffle_epi8(p->table, high) : high);
    }
}

/** Where a pass over bytes begins to fetch n others, `next`, after passes of so many chunks. Later passes fetch what is in
 * L1 already. */
static inline const char *td_ymm_share(const uint8_t *bytes, const uint8_t *next, size_t n, size_t chunks) {
    return (const char *)(chunks * 64 < n ? next + chunks * 64 : bytes);
}

/** Rows of the next of so many passes over `left` rows: of equal height. */
static inline size_t td_ymm_pass_rows(size_t left, size_t passes) {
    return (left + passes - 1) / passes;
}

/** The rows of a call in equal blocks of at most TD_YMM_BLOCK_ROWS. */
static inline void td_ymm_each_block(const td_gemm_args *a, void (*run_block)(const td_gemm_args *)) {
    for (size_t r = 0, left = (a->m + TD_YMM_BLOCK_ROWS - 1) / TD_YMM_BLOCK_ROWS, m; left > 0; left--, r += m) {
        m = td_ymm_pass_rows(a->m - r, left);
        td_gemm_args block = rows_of(a, r, m);
        run_block(&block);
    }
}

#endif
