/* int8 per channel: the kernels of all instruction sets. */
#include "kernels/vec/vec.h"

#if TD_FOR_SCALAR

/* The reference, one multiply-add at a time. */
#include "kernels/product/gemm_end.inc"

#define TILES td_int8c_16x4
#define NR 16

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    const float *scale = a->tile;
    for (size_t r = 0; r < a->m; r++) {
        const uint8_t *w = (const uint8_t *)(scale + NR);
        const int8_t  *x = a->rows[r].x;
        int32_t        acc[NR] = {0};
        float          values[NR];
        for (size_t g = 0; g < a->k; g += 4)
            for (size_t j = 0; j < NR; j++)
                for (size_t b = 0; b < 4; b++) acc[j] += (*w++ - 128) * x[g + b];
        for (size_t j = 0; j < NR; j++) values[j] = (float)acc[j] * scale[j] * a->rows[r].scale;
        end_rows(a, r, 1, NR, values);
    }
}

TD_TILE_KERNEL(int8c, "1x16", .mr = 1);

#elif TD_FOR_AMX

/* Tiles of weights as they lie. */
#define TILES td_int8c_32x4
#define INT4 false
#define ROWS_MAX 512
#define OFFSET 128
#define FEWER td_int8c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

TD_GEMM_KERNEL(int8c, "32x32", .mr = PAIR, .rows = TILE_ROWS_BEST, .run = run);

#else

/* ---- some rows times a tile's codes, by set -------------------------------------------------- */

/*
 * Each set has
 *   TILES, SHAPE   the layout of the tiles, and the full register tile in the kernel's name
 *   MR, NR         the full register tile
 *   OFFSET         what its sums exceed the true ones by, per unit of the row's sum
 *   AHEAD, NEAR    how far ahead of a single register tile of rows codes are brought to L2, and from there to L1, in bytes
 *   ROWS_TOGETHER  what heights of register tiles are multiples of
 *   tile(acc, w, k4, x, ldx, rows, ahead, step)  the sums of `rows` rows and one tile's codes. It prefetches from `ahead`,
 *                  moving on by `step` bytes with every four k
 *   ROWS_TILE(rows)  calls it for 1 .. MR rows: TILE(rows), or, where it wants a constant, a switch of TILE_CASE(1) ..
 *                  TILE_CASE(MR)
 */
#include "kernels/product/int8_scale.inc"

#define TILE(rows) tile(acc, w, k4, x, ldx, rows, ahead, step)
#define TILE_CASE(rows) \
    case rows:          \
        TILE(rows);     \
        break;

#if TD_FOR_AVX2

/*
 * Few rows by vpmaddubsw, many of several tiles by Winograd's inner product, which needs half the multiplications.
 *
 * vpmaddubsw saturates its sums of two at int16, but |w| * (x with the sign of w) cannot reach that: |w| <= 128 and |x| <=
 * 127, so a pair is at most 2 * 128 * 127 = 32512. The activations are never -128, so their sign can be changed exactly.
 */
#define TILES td_int8c_16x4
#define SHAPE "4x16"
#define MR 4 /* 8 sums, two vectors of codes and of magnitudes, ones, broadcast */
#define NR 16
#define OFFSET 0
#define ROWS_TOGETHER 1
#define AHEAD 4096 /* bytes ahead that are brought to L2 */
#define NEAR 1024  /* and from there to L1 */

typedef struct {
    __m256i code, abs;
} weights;

VEC __m256i load_codes(const uint8_t *at) {
    return _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)at), _mm256_set1_epi8(-128));
}

VEC weights load_weights(const uint8_t *at) {
    weights w = {.code = load_codes(at)};
    w.abs = _mm256_abs_epi8(w.code); /* -128 becomes 128, unsigned */
    return w;
}

VEC vi dot(vi acc, weights w, vi x) {
    __m256i pairs = _mm256_maddubs_epi16(w.abs, _mm256_sign_epi8((__m256i)x, w.code));
    return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#define ROWS_TILE(rows) \
    switch (rows) { TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) }

#elif TD_FOR_AVXVNNI

/* As AVX512-VNNI's, with 256-bit vectors. */
#define TILES td_int8c_16x4
#define SHAPE "6x16"
#define MR 6 /* 12 sums, two vectors of weights, broadcast */
#define NR 16
#define OFFSET 128
#define ROWS_TOGETHER 1
#define AHEAD 4096 /* bytes ahead that are brought to L2 */
#define NEAR 1024  /* and from there to L1 */

#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#include "kernels/product/vnni_dot.inc"

#define ROWS_TILE(rows) \
    switch (rows) { TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6) }

#elif TD_FOR_AVX512VNNI

/*
 * vpdpbusd multiplies unsigned by signed bytes: the weights are stored as w + 128, so a sum is
 * too large by 128 * sum(x), which is known per row of x. Products of four are added without saturation.
 */
#include "kernels/vec/zmm_rows.h"

#define TILES td_int8c_32x4
#define SHAPE "14x32"
#define MR 14
#define NR 32
#define OFFSET 128
#define ROWS_TOGETHER 1
#define AHEAD 8192 /* bytes ahead of a single pass that are brought to L2 */
#define NEAR 3072  /* and from there to L1 */

#define LOAD(i)                                                                                                       \
    "vmovdqu64 128*" i "(%[w]), %%zmm28\n\tvmovdqu64 128*" i                                                          \
    "+64(%[w]), %%zmm29\n\t"                                                                                          \
    "prefetcht1 (%[ahead])\n\tprefetcht1 (%[ahead],%[w1])\n\tadd %[step], %[ahead]\n\t" /* at full step: two lines */ \
    "prefetcht0 128*" i "+" TD_ZMM_NUMBER(NEAR) "(%[w])\n\tprefetcht0 128*" i "+64+" TD_ZMM_NUMBER(NEAR) "(%[w])\n\t"
#define CASE(rows) TD_ZMM_CASE(rows, "vpdpbusd", "", LOAD, "128", p, (__m512i *)(void *)out)

static void tile(int32_t *out, const uint8_t *w, size_t k4, const int8_t *x, size_t ldx, size_t rows, const uint8_t *ahead,
                 size_t step) {
    td_zmm_product p = {.x = (const char *)x,
                        .stride = ldx,
                        .w = (const char *)w,
                        .w1 = step / 2,
                        .ahead = (const char *)ahead,
                        .ahead_step = step,
                        .fours = k4 / 4,
                        .ones = k4 % 4};
    p.next = p.ahead + p.fours * 4 * step;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
    }
}

#define ROWS_TILE(rows) TILE(rows)

#elif TD_FOR_NEON || TD_FOR_DOTPROD

/*
 * Weights lie in tiles as signed codes. A vector of them holds four k of four outputs, and `sdot` by an element multiplies
 * them with any four of the 16 k that one load of a row of activations brings. Five rows take 20 sums, 5 vectors of
 * activations and 4 of weights of the 32 registers; one row has two chains for each sum, which hide the latency of `sdot`.
 */
#include "kernels/vec/dot_neon.h"

#define TILES td_int8c_16x4s
#define SHAPE "5x16"
#define MR 5
#define NR 16
#define OFFSET 0
#define ROWS_TOGETHER 1
#define AHEAD PREFETCH_FAR
#define STEP 16 /* k of a vector of activations */

#define FOUR_K(w, lane, sum_of_r)                                                                                    \
    {                                                                                                                \
        const int8x16_t w0 = vld1q_s8(w), w1 = vld1q_s8((w) + 16), w2 = vld1q_s8((w) + 32), w3 = vld1q_s8((w) + 48); \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++) {                                                     \
            vi *s = sum_of_r;                                                                                        \
            s[0] = dot(s[0], w0, x[r], lane);                                                                        \
            s[1] = dot(s[1], w1, x[r], lane);                                                                        \
            s[2] = dot(s[2], w2, x[r], lane);                                                                        \
            s[3] = dot(s[3], w3, x[r], lane);                                                                        \
        }                                                                                                            \
    }

VEC void tile(int32_t *out, const uint8_t *codes, size_t k4, const int8_t *rows_x, size_t ldx, const int rows,
              const uint8_t *ahead, size_t step) {
    const int8_t *w = (const int8_t *)codes, *from[MR];
    vi            sum[MR][4], odd[4] = {vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0)};
    const size_t  near = PREFETCH_NEAR;
    int8x16_t     x[MR];
    size_t        k = 0;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        from[r] = rows_x + (size_t)r * ldx;
        sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vi_set1(0);
    }
    for (; k + STEP <= 4 * k4; k += STEP, w += STEP * NR, ahead += STEP / 4 * step) {
        for (size_t line = 0; line < STEP * NR; line += 64) fetch_l1(w + line + near);
        for (size_t line = 0; line < STEP / 4; line++) fetch_l2(ahead + line * step);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) x[r] = vld1q_s8(from[r] + k);
        FOUR_K(w, 0, sum[r])
        FOUR_K(w + 64, 1, rows == 1 ? odd : sum[r])
        FOUR_K(w + 128, 2, sum[r])
        FOUR_K(w + 192, 3, rows == 1 ? odd : sum[r])
    }
    for (; k < 4 * k4; k += 4, w += 4 * NR) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            x[r] = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(const void *)(from[r] + k)));
        FOUR_K(w, 0, sum[r])
    }
    if (rows == 1)
        for (int i = 0; i < 4; i++) sum[0][i] += odd[i];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 4; i++) vi_storeu(out + r * NR + LANES * i, sum[r][i]);
}

#define ROWS_TILE(rows) \
    switch (rows) { TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) }

#else /* I8MM, SVE256 */

/* `smmla`: product/mmla_rows.inc has the loop, and why it is shaped so. */
#if TD_FOR_I8MM
#include "kernels/vec/mmla_i8mm.h"
#define SHAPE "6x16"
#else
#include "kernels/vec/mmla_sve256.h"
#define SHAPE "12x16"
#endif

#define TILES td_int8c_16x8s
#define OFFSET 0
#define AHEAD PREFETCH_FAR
#define ROWS_TOGETHER 2
#define RUN_BYTES 128

#define multiply_run(w, x, sum, pairs)                                                              \
    _Pragma("GCC unroll 8") for (int v = 0; v < SUMS; v++) {                                        \
        const mmla_codes codes = mmla_load_codes((w) + v * 8 * MMLA_OUTPUTS);                       \
        _Pragma("GCC unroll 8") for (int p = 0; p < (pairs); p++) mmla_add(sum[p][v], x[p], codes); \
    }

#include "kernels/product/mmla_rows.inc"

/* A constant number of pairs. */
VEC void tile(int32_t *out, const uint8_t *codes, size_t k4, const int8_t *rows_x, size_t ldx, size_t rows,
              const uint8_t *ahead, size_t step, const int pairs) {
    int32_t   sums[MR * NR] __attribute__((aligned(64)));
    row_pairs from;
    for (size_t i = 0; i < 2 * (size_t)pairs; i++) from.row[i] = rows_x + (i < rows ? i : rows - 1) * ldx;
    pairs_times_tile(sums, &from, (const int8_t *)codes, 4 * k4, (const char *)ahead, STEP / 4 * step, PREFETCH_NEAR, pairs);
    for (size_t r = 0; r < rows; r++)
        for (size_t q = 0; q < NR / 4; q++)
            vst1q_s32(out + r * NR + 4 * q, row_of_quad(sums + r / 2 * 2 * NR + 8 * q, r % 2));
}

#define PAIR_CASE(n)                                    \
    case n:                                             \
        tile(acc, w, k4, x, ldx, rows, ahead, step, n); \
        break;
#define ROWS_TILE(rows) \
    switch ((rows + 1) / 2) { MMLA_EACH_PAIRS(PAIR_CASE) }

#endif

#if TD_FOR_AVX2 || TD_FOR_AVXVNNI
/* Two vectors of outputs times up to MR rows: dot(acc, w, x) adds four products of the dword lanes to acc[i], w a vector of
 * codes made ready once, by load_weights(at). */
VEC void tile(int32_t *out, const uint8_t *w, size_t k4, const int8_t *rows_x, size_t ldx, const int rows,
              const uint8_t *ahead, size_t step) {
    const int8_t *x[MR];
    vi            sum[MR][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        x[r] = rows_x + (size_t)r * ldx;
        __asm__("" : "+r"(x[r])); /* a register each, so that one index serves all */
        sum[r][0] = sum[r][1] = vi_set1(0);
    }
    for (size_t at = 0; at < 4 * k4; at += 4, w += 4 * NR, ahead += step) {
        weights w0 = load_weights(w), w1 = load_weights(w + 4 * LANES);
        fetch_l2(ahead);
        fetch_l1(w + NEAR);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vi v = vi_set1((int32_t)load32(x[r] + at));
            sum[r][0] = dot(sum[r][0], w0, v);
            sum[r][1] = dot(sum[r][1], w1, v);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        *(vi *)(out + r * NR) = sum[r][0];
        *(vi *)(out + r * NR + LANES) = sum[r][1];
    }
}
#endif

/* ---- the loops over tiles and rows, of these sets -------------------------------------------- */

/*
 * Weights come from memory. With one register tile of rows they are read once, and prefetched some lines ahead. With more,
 * the later ones find them in L2, and the first few prefetch the next tile's meanwhile, each its share.
 */

#define SHARES_MAX 8

/* A tile's codes, what is read after them, and the rows. */
typedef struct {
    const uint8_t *w, *next;
    size_t         k4;
    const int8_t  *x;
    size_t         ldx, m, parts, shares; /* the rows are cut into so many parts, of which so many prefetch */
} tile_product;

static inline tile_product product_of(const td_gemm_args *a) {
    const size_t parts = (a->m + MR - 1) / MR;
    return (tile_product){.w = (const uint8_t *)a->tile + NR * sizeof(float),
                          .next = (const uint8_t *)(a->next ? a->next : a->tile) + NR * sizeof(float),
                          .k4 = a->k / 4,
                          .x = a->rows[0].x,
                          .ldx = a->m > 1 ? (size_t)((const char *)a->rows[1].x - (const char *)a->rows[0].x) : 0,
                          .m = a->m,
                          .parts = parts,
                          .shares = parts < SHARES_MAX ? parts : SHARES_MAX};
}

/* Of equal height, as far as rows that belong together let them. */
static inline size_t part_begin(const tile_product *p, size_t i) {
    size_t begin = (p->m * i / p->parts + ROWS_TOGETHER - 1) / ROWS_TOGETHER * ROWS_TOGETHER;
    return begin < p->m ? begin : p->m;
}

/* Part i of the rows times the tile. */
VEC void multiply_part(const tile_product *p, size_t i, int32_t *acc) {
    const size_t   begin = part_begin(p, i), rows = part_begin(p, i + 1) - begin, k4 = p->k4, ldx = p->ldx;
    const int8_t  *x = p->x + begin * ldx;
    const uint8_t *w = p->w, *ahead = p->parts == 1 ? w + AHEAD : i < p->shares ? p->next + k4 * 4 * NR / p->shares * i : w;
    const size_t   step = i < p->shares ? 4 * NR / p->shares : 0;
    ROWS_TILE(rows);
}

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    int32_t            acc[MR * NR] __attribute__((aligned(64)));
    float              values[MR * NR] __attribute__((aligned(64)));
    const tile_product p = product_of(a);
    for (size_t i = 0; i < p.parts; i++) {
        const size_t row = part_begin(&p, i), rows = part_begin(&p, i + 1) - row;
        multiply_part(&p, i, acc);
        for (size_t r = 0; r < rows; r++) scale_row(a, row + r, acc + r * NR, NR, OFFSET, values + r * NR);
        end_rows(a, row, rows, NR, values);
    }
}

static void run_tiles(const td_gemm_args *a) {
    each_tile(a, &TILES, run_tile);
}

#if TD_FOR_AVX2

/* ---- many rows on AVX2 ----------------------------------------------------------------------- */

/*
 * Many rows (Winograd, A New Algorithm for Inner Product, 1968). For neighbouring k
 *   x0 w0 + x1 w1 = (x0 + w1) (x1 + w0) - x0 x1 - w0 w1
 * of which the last two products are summed once for a row and once for an output. Sums of two bytes are int16, and vpmaddwd
 * multiplies 16: 32 products are three additions, which have four ports, and one multiplication, which has two. With
 * vpmaddubsw they are a sign, an addition and two multiplications, and additions on the multiplications' ports cost time.
 *
 * Rows and weights are widened to int16 in blocks of k: rows once for GROUP tiles, a tile once for all rows, which then go
 * by four at a time.
 */
#define MANY 16 /* rows from which that pays */
#define ROWS_MAX 96
#define GROUP 8     /* tiles */
#define GROUP_MIN 6 /* of which widening 16 rows pays */
#define BLOCK 512   /* k: a tile's block takes half of L1 */
#define STEPS (BLOCK / 4)

/* A block: all int16 but the sums. */
typedef struct {
    __m256i w[STEPS][2][2];           /* one tile's w1 w3 of eight outputs, their w0 w2; those of the other eight */
    __m256i w_pairs[2];               /* sums of w0 w1 + w2 w3 of each output */
    int32_t x[ROWS_MAX][2][STEPS];    /* x0 x2 of each step; x1 x3 */
    int32_t x_pairs[ROWS_MAX];        /* sums of x0 x1 + x2 x3 */
    __m256i sums[GROUP][ROWS_MAX][2]; /* [tile][row][16 outputs], over the blocks so far */
} winograd;

VEC __m256i evens(__m256i bytes) {
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
}
VEC __m256i odds(__m256i bytes) {
    return _mm256_srai_epi16(bytes, 8);
}

/* Steps go in pairs: the last one's second may be zeros, here and in widen_row. */
static void widen_tile(winograd *v, const uint8_t *w, size_t steps) {
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t s = 0; s < steps; s++)
        for (int h = 0; h < 2; h++) {
            __m256i bytes = load_codes(w + s * 4 * NR + h * 32), odd = odds(bytes), even = evens(bytes);
            v->w[s][h][0] = odd;
            v->w[s][h][1] = even;
            sum[h] = _mm256_add_epi32(sum[h], _mm256_madd_epi16(odd, even));
        }
    if (steps % 2) memset(v->w[steps], 0, sizeof v->w[steps]);
    memcpy(v->w_pairs, sum, sizeof sum);
}

/* Eight steps of a row. @return their products x0 x1. */
VEC __m256i widen_steps(winograd *v, size_t row, size_t step, __m256i bytes) {
    __m256i odd = odds(bytes), even = evens(bytes);
    _mm256_storeu_si256((__m256i *)(v->x[row][0] + step), even);
    _mm256_storeu_si256((__m256i *)(v->x[row][1] + step), odd);
    return _mm256_madd_epi16(odd, even);
}

static void widen_row(winograd *v, size_t row, const int8_t *x, size_t steps) {
    static const int32_t SEEN[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    __m256i              sum = _mm256_setzero_si256();
    size_t               s = 0;
    for (; s + 8 <= steps; s += 8)
        sum = _mm256_add_epi32(sum, widen_steps(v, row, s, _mm256_loadu_si256((const __m256i *)(x + s * 4))));
    if (s < steps) {
        __m256i seen = _mm256_loadu_si256((const __m256i *)(SEEN + 8 - (steps - s)));
        sum = _mm256_add_epi32(
            sum, widen_steps(v, row, s, _mm256_maskload_epi32((const int32_t *)(const void *)(x + s * 4), seen)));
    }
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1)),
            two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    v->x_pairs[row] = _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}

/* ymm8 .. 11 weights, 12 and 13 a row's, 14 and 15 sums */
#define W_STEP(s)                                                                             \
    "vmovdqa 128*" s "(%[w]), %%ymm8\n\tvmovdqa 128*" s "+32(%[w]), %%ymm9\n\tvmovdqa 128*" s \
    "+64(%[w]), %%ymm10\n\t"                                                                  \
    "vmovdqa 128*" s "+96(%[w]), %%ymm11\n\t"
#define ROW_STEP(s, row, a, b)                                                                                         \
    "vpbroadcastd 8*" row "*%c[steps]+4*" s "(%[x]), %%ymm12\n\tvpbroadcastd 8*" row "*%c[steps]+4*%c[steps]+4*" s     \
    "(%[x]), %%ymm13\n\t"                                                                                              \
    "vpaddw %%ymm12, %%ymm8, %%ymm14\n\tvpaddw %%ymm13, %%ymm9, %%ymm15\n\tvpaddw %%ymm12, %%ymm10, %%ymm12\n\t"       \
    "vpaddw %%ymm13, %%ymm11, %%ymm13\n\tvpmaddwd %%ymm14, %%ymm15, %%ymm14\n\tvpmaddwd %%ymm12, %%ymm13, %%ymm12\n\t" \
    "vpaddd %%ymm14, %[" a "], %[" a "]\n\tvpaddd %%ymm12, %[" b "], %[" b "]\n\t"
#define TILE_STEP(s) \
    W_STEP(s)        \
    ROW_STEP(s, "0", "s0", "s1") ROW_STEP(s, "1", "s2", "s3") ROW_STEP(s, "2", "s4", "s5") ROW_STEP(s, "3", "s6", "s7")

/* sums [MR][2] += rows `row` .. row + MR times the tile. It prefetches from `ahead`, moving on by `step` bytes with every
 * two steps. */
static void winograd_part(const winograd *v, size_t row, __m256i (*sums)[2], size_t steps, const uint8_t *ahead,
                          size_t step) {
    __m256i     s[MR][2];
    const char *w = (const char *)v->w, *x = (const char *)v->x[row];
    size_t      count = (steps + 1) / 2;
    for (int i = 0; i < MR; i++)
        for (int h = 0; h < 2; h++)
            s[i][h] = _mm256_sub_epi32(sums[i][h], _mm256_add_epi32(v->w_pairs[h], _mm256_set1_epi32(v->x_pairs[row + i])));
    __asm__ volatile("1:\n\tprefetcht1 (%[ahead])\n\tadd %[step], %[ahead]\n\t" TILE_STEP("0")
                         TILE_STEP("1") "add $256, %[w]\n\tadd $8, %[x]\n\tsub $1, %[count]\n\tjnz 1b"
                     : [w] "+r"(w), [x] "+r"(x), [ahead] "+r"(ahead), [count] "+r"(count), [s0] "+x"(s[0][0]),
                       [s1] "+x"(s[0][1]), [s2] "+x"(s[1][0]), [s3] "+x"(s[1][1]), [s4] "+x"(s[2][0]), [s5] "+x"(s[2][1]),
                       [s6] "+x"(s[3][0]), [s7] "+x"(s[3][1])
                     : [step] "r"(step), [steps] "i"(STEPS)
                     : "cc", "memory", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    for (int i = 0; i < MR; i++)
        for (int h = 0; h < 2; h++) sums[i][h] = s[i][h];
}

/* `n` tiles from the call's first on. */
static void winograd_group(winograd *v, const td_gemm_args *a, size_t n) {
    const tile_product p = product_of(a);
    const size_t       tile_bytes = td_tile_bytes(&TILES, a->k, NULL);
    const uint8_t     *w = p.w;
    for (size_t g = 0; g < n; g++) memset(v->sums[g], 0, p.parts * MR * sizeof v->sums[g][0]);
    for (size_t done = 0, steps; done < p.k4; done += steps, w += steps * 4 * NR) {
        steps = p.k4 - done < STEPS ? p.k4 - done : STEPS;
        for (size_t r = 0; r < p.parts * MR; r++) /* where the last part is not full, the last row again */
            widen_row(v, r, p.x + (r < a->m ? r : a->m - 1) * p.ldx + done * 4, steps);
        for (size_t g = 0; g < n; g++) {
            const uint8_t *now = w + g * tile_bytes, *next = now + steps * 4 * NR; /* after all else the next group */
            if (g + 1 < n)
                next = now + tile_bytes;
            else if (done + steps < p.k4)
                next = w + steps * 4 * NR;
            widen_tile(v, now, steps);
            for (size_t t = 0; t < p.parts; t++)
                winograd_part(v, t * MR, v->sums[g] + t * MR, steps,
                              t < p.shares ? next + t * (steps * 4 * NR / p.shares) : now,
                              t < p.shares ? 8 * NR / p.shares : 0);
        }
    }
    td_gemm_args one = *a;
    for (size_t g = 0; g < n; g++, one.tile = (const char *)one.tile + tile_bytes, one.end.column += NR) {
        float *values = (float *)v->sums[g]; /* in place */
        for (size_t r = 0; r < a->m; r++) scale_row(&one, r, (const int32_t *)v->sums[g][r], NR, OFFSET, values + r * NR);
        end_rows(&one, 0, a->m, NR, values);
    }
}

static void run(const td_gemm_args *a) {
    winograd v;
    if (a->m < MANY || a->n_tiles < GROUP_MIN) {
        run_tiles(a);
        return;
    }
    td_gemm_args group = *a;
    for (size_t left = a->n_tiles, n; left > 0; left -= n, group.end.column += n * NR) {
        n = left < GROUP ? left : GROUP;
        for (size_t first = 0, parts = (a->m + ROWS_MAX - 1) / ROWS_MAX, rows; first < a->m; first += rows, parts--) {
            rows = ((a->m - first + parts - 1) / parts + MR - 1) / MR * MR;
            if (rows > a->m - first) rows = a->m - first;
            td_gemm_args block = rows_of(&group, first, rows);
            winograd_group(&v, &block, n);
        }
        group.tile = (const char *)group.tile + n * td_tile_bytes(&TILES, a->k, NULL);
    }
}

TD_GEMM_KERNEL(int8c, SHAPE, .mr = MR, .run = run);

#else

TD_GEMM_KERNEL(int8c, SHAPE, .mr = MR, .run = run_tiles);

#endif

#endif
