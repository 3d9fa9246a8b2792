/*
 * int8 products, AVX2: few rows by vpmaddubsw, many of several tiles by Winograd's inner product, which needs half the
 * multiplications.
 *
 * vpmaddubsw saturates its sums of two at int16, but |w| * (x with the sign of w) cannot reach that: |w| <= 128 and |x| <=
 * 127, so a pair is at most 2 * 128 * 127 = 32512. The activations are never -128, so their sign can be changed exactly.
 */
#include "kernels/vec/vec_avx2.h"

#include "kernels/product/tile_kernels.h"

#define TILES td_int8c_16x4
#define MR 4 /* 8 sums, two vectors of codes and of magnitudes, ones, broadcast */
#define NR 16
#define OFFSET 0
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

#include "kernels/product/int8_rows.inc"

#define ROWS_TILE(rows) \
    switch (rows) { TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) }
#include "kernels/product/int8_body.inc"

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

const td_gemm_kernel td_int8c_avx2 = {.name = "int8c_avx2_4x16", .tiles = &TILES, .mr = MR, .run = run};
