/* int4 per channel: the kernels of all instruction sets. */
#include "kernels/vec/vec.h"

#if TD_FOR_SCALAR

/* The reference: the tile layout of the 256-bit kernels, one multiply-add at a time. */
#include "kernels/product/gemm_end.inc"

#define TILES td_int4c_16x4
#define HALF 8

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    const float   *scale = a->tile;
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof *scale;
    for (size_t r = 0; r < a->m; r++) {
        const int8_t *x = a->rows[r].x;
        int32_t       acc[2 * HALF] = {0};
        for (size_t g = 0; g < a->k; g += 4)
            for (size_t i = 0; i < HALF; i++)
                for (size_t b = 0; b < 4; b++) {
                    uint8_t both = w[g * HALF + i * 4 + b];
                    acc[i] += (both & 15) * x[g + b];
                    acc[HALF + i] += (both >> 4) * x[g + b];
                }
        float values[2 * HALF];
        for (size_t i = 0; i < 2 * HALF; i++) values[i] = (float)(acc[i] - 8 * a->rows[r].sum) * scale[i] * a->rows[r].scale;
        end_rows(a, r, 1, 2 * HALF, values);
    }
}

TD_TILE_KERNEL(int4c, "1x16", .mr = 1);

#elif TD_FOR_AVX2

/* A block's int32 sums rest in memory between the passes over it, and become values there. */
#include "kernels/product/gemm_end.inc"
#include "kernels/product/ymm_rows.h"

#define TILES td_int4c_16x4
#define HALF 8

static void multiply_packed(const td_ymm_product *p, size_t m, float *sums) {
    switch (m) { TD_YMM_CASES(NIBBLES, 32, p, sums) }
}

static void multiply_bytes(const td_ymm_product *p, size_t m, float *sums) {
    switch (m) { TD_YMM_CASES(BYTES, 32, p, sums) }
}

static void finish(const td_gemm_args *a, float *sums) {
    const float *scale = a->tile;
    for (size_t r = 0; r < a->m; r++)
        for (size_t h = 0; h < 2; h++) {
            float *values = sums + r * 2 * HALF + h * HALF;
            vf     y = vf_of_vi(vi_load(values) - vi_set1(8 * a->rows[r].sum)) * vf_load(scale + h * HALF);
            vf_store(values, y * vf_set1(a->rows[r].scale));
        }
    end_rows(a, 0, a->m, 2 * HALF, sums);
}

static void run_block(const td_gemm_args *a) {
    uint8_t      bytes[2 * HALF * TD_YMM_BLOCK_K] __attribute__((aligned(64)));
    float        sums[TD_YMM_BLOCK_ROWS * 2 * HALF] __attribute__((aligned(64)));
    const bool   packed = a->m < TD_YMM_UNPACK_M;
    const size_t n_passes = (a->m + TD_YMM_ROWS_MAX - 1) / TD_YMM_ROWS_MAX, block = packed ? a->k : TD_YMM_BLOCK_K,
                 size = td_tile_bytes(&TILES, a->k, NULL);
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float), *next = a->next ? a->next : a->tile;
    td_ymm_product p = td_ymm_rows(a);
    memset(sums, 0, a->m * 2 * HALF * sizeof *sums);
    for (size_t k0 = 0, k; k0 < a->k; k0 += k, w += k * HALF, next += k * HALF) {
        k = a->k - k0 < block ? a->k - k0 : block;
        p.chunks = k / 32;
        p.w = packed ? w : bytes;
        if (!packed) td_ymm_unpack(&p, w, k / 4, false, bytes);
        for (size_t r = 0, pass = 0, m; pass < n_passes; pass++, r += m) {
            m = td_ymm_pass_rows(a->m - r, n_passes - pass);
            p.x = (const int8_t *)a->rows[r].x + k0;
            /* The first of several passes fetches the next tile; with bytes the first few passes do. */
            p.far = n_passes == 1 ? PREFETCH_FAR : pass == 0 ? size : PREFETCH_NEAR;
            p.ahead = td_ymm_share(bytes, next, k * HALF, pass * p.chunks);
            (packed ? multiply_packed : multiply_bytes)(&p, m, sums + r * 2 * HALF);
        }
    }
    finish(a, sums);
}

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    td_ymm_each_block(a, run_block);
}

TD_TILE_KERNEL(int4c, "6x16", .mr = TD_YMM_ROWS_MAX);

#elif TD_FOR_AVXVNNI || TD_FOR_AVX512VNNI

/*
 * vpdpbusd: one load of codes feeds two of them per row of activations. One multiplies the low nibbles, the other whole
 * bytes, low + 16 * high: so the high nibbles need no instruction before the end.
 */
#include "kernels/product/gemm_end.inc"

#define FAR_BYTES 8192  /* ahead of a single pass over a tile that weights are fetched into L2, across the tile's end */
#define NEAR_BYTES 2048 /* and from there into L1 */
#define HALF LANES
#if TD_FOR_AVXVNNI
#define TILES td_int4c_16x4
#define SHAPE "6x16"
#define VPDPBUSD "%{vex%} vpdpbusd" /* not the form of AVX512-VNNI */
#define MR 6                        /* 12 accumulators, the codes, their low nibbles, mask, broadcast */
#define ROW_CASES ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6)
#else
#include "kernels/vec/zmm_rows.h"

#define TILES td_int4c_32x4
#define SHAPE "14x32"
#define VPDPBUSD "vpdpbusd"
#define MR 14 /* 28 accumulators, the codes, their low nibbles, mask, broadcast */
/* clang-format off */
#define ROW_CASES                                                                                  \
    ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5) ROW_CASE(6) ROW_CASE(7) ROW_CASE(8) ROW_CASE(9) \
    ROW_CASE(10) ROW_CASE(11) ROW_CASE(12) ROW_CASE(13) ROW_CASE(14)
/* clang-format on */
#endif
#include "kernels/product/vnni_dot.inc"

/* What a pass over the tile fetches into L2: `step` bytes for every 4 * HALF of its own. After the tile's end comes `next`.
 */
typedef struct {
    const char *at, *end, *next;
    size_t      step;
} fetch;

VEC fetch advance(fetch f, size_t bytes) {
    f.at += bytes;
    if (f.at >= f.end) f.at = f.next, f.end = (const char *)UINTPTR_MAX;
    return f;
}

/* The values of row r. low: sums of the low nibbles; both: of whole bytes. */
VEC void scale_row(const td_gemm_args *a, size_t r, vi low, vi both, float *values) {
    const float *scale = a->tile;
    const vi     correction = vi_set1(8 * a->rows[r].sum);
    const vf     row_scale = vf_set1(a->rows[r].scale);
    vf_store(values, vf_of_vi(low - correction) * vf_load(scale) * row_scale);
    vf_store(values + HALF, vf_of_vi(((both - low) >> 4) - correction) * vf_load(scale + HALF) * row_scale);
}

/* One row: bound by the stream of weights; four chains hide the latency of vpdpbusd. */
static void stream(const td_gemm_args *a, size_t r, fetch f) {
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float);
    const int8_t  *x = a->rows[r].x;
    const vi       nibble = vi_set1(0x0f0f0f0f);
    vi             low[4], both[4];
    float          values[2 * HALF];
    for (int c = 0; c < 4; c++) low[c] = both[c] = vi_set1(0);
    for (size_t g = 0; g < a->k; g += 16, w += 16 * HALF) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const uint8_t *at = w + c * 4 * HALF;
            if (c * 4 * HALF % 64 == 0) {
                fetch_l2(f.at + c * 4 * HALF);
                fetch_l1(at + NEAR_BYTES);
            }
            vi two = vi_load(at), v = vi_set1((int32_t)load32(x + g + 4 * c));
            low[c] = dot(low[c], two & nibble, v);
            both[c] = dot(both[c], two, v);
        }
        f = advance(f, 16 * HALF);
    }
    scale_row(a, r, (low[0] + low[1]) + (low[2] + low[3]), (both[0] + both[1]) + (both[2] + both[3]), values);
    end_rows(a, r, 1, 2 * HALF, values);
}

#if TD_FOR_AVX512VNNI
/* Bytes of two codes in zmm29, the low ones alone in zmm28. */
#define LOAD(i) \
    "vmovdqa64 64*" i "(%[w]), %%zmm29\n\tprefetcht1 (%[ahead])\n\tprefetcht0 64*" i "+" TD_ZMM_NUMBER(NEAR_BYTES) "(%[w])\n\t" \
    "add %[step], %[ahead]\n\tvpandd %%zmm31, %%zmm29, %%zmm28\n\t"
#define ROW_CASE(n) TD_ZMM_CASE(n, VPDPBUSD, "vpbroadcastd %k[w1], %%zmm31\n\t", LOAD, "64", p, (__m512i *)sum[0])

/* Inlined: `f`, stored as four words for a call, would be loaded as one vector, which waits until all stores before it are
 * done. */
VEC void rows_times_tile(const td_gemm_args *a, size_t r0, fetch f, size_t m) {
    vi             sum[MR][2];
    float          values[MR][2 * HALF];
    td_zmm_product p = {.x = a->rows[r0].x,
                        .stride = (size_t)((const char *)a->rows[1].x - (const char *)a->rows[0].x),
                        .w = (const char *)a->tile + 2 * HALF * sizeof(float),
                        .w1 = 0x0f0f0f0f,
                        .ahead = f.at,
                        .next = f.next,
                        .ahead_step = f.step,
                        .fours = a->k / 16};
    size_t         left = (size_t)(f.end - f.at); /* up to the tile's end */
    if (left < p.fours * 4 * f.step) {
        size_t before = left / (4 * f.step);
        p.more = p.fours - before;
        p.fours = before;
    }
    switch (m) { ROW_CASES }
    for (size_t r = 0; r < m; r++) scale_row(a, r0 + r, sum[r][0], sum[r][1], values[r]);
    end_rows(a, r0, m, 2 * HALF, values[0]);
}
#else
/* m is a constant after inlining. */
VEC void constant_rows_times_tile(const td_gemm_args *a, size_t r0, fetch f, const int m) {
    const uint8_t *w = (const uint8_t *)a->tile + 2 * HALF * sizeof(float);
    const vi       nibble = vi_set1(0x0f0f0f0f);
    const int8_t  *x[MR];
    vi             low[MR], both[MR];
    float          values[MR][2 * HALF];
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) {
        x[r] = a->rows[r0 + r].x;
        low[r] = both[r] = vi_set1(0);
    }
    for (size_t g = 0; g < a->k; g += 4, w += 4 * HALF) {
        fetch_l2(f.at);
        fetch_l1(w + NEAR_BYTES);
        f = advance(f, f.step);
        vi two = vi_load(w), lo = two & nibble;
#pragma GCC unroll 16
        for (int r = 0; r < m; r++) {
            vi v = vi_set1((int32_t)load32(x[r] + g));
            low[r] = dot(low[r], lo, v);
            both[r] = dot(both[r], two, v);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < m; r++) scale_row(a, r0 + r, low[r], both[r], values[r]);
    end_rows(a, r0, (size_t)m, 2 * HALF, values[0]);
}

#define ROW_CASE(n)                            \
    case n:                                    \
        constant_rows_times_tile(a, r0, f, n); \
        break;

VEC void rows_times_tile(const td_gemm_args *a, size_t r0, fetch f, size_t m) {
    switch (m) { ROW_CASES }
}
#endif

static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    /* Equal register tiles: 16 rows are 8 + 8, not 14 + 2. Several passes over a tile share the fetching of the next. */
    size_t      n_passes = (a->m + MR - 1) / MR, bytes = td_tile_bytes(&TILES, a->k, NULL);
    const char *tile = a->tile, *next = a->next ? a->next : tile; /* which is in the caches: fetching it does nothing */
    for (size_t r = 0, pass = 0; pass < n_passes; pass++) {
        size_t m = (a->m - r + n_passes - pass - 1) / (n_passes - pass);
        fetch  f = {.at = next + bytes / n_passes * pass, .end = (const char *)UINTPTR_MAX, .step = 4 * HALF / n_passes};
        if (n_passes == 1 && FAR_BYTES < bytes)
            f = (fetch){.at = tile + FAR_BYTES, .end = tile + bytes, .next = next, .step = 4 * HALF};
        if (m > 1)
            rows_times_tile(a, r, f, m);
        else
            stream(a, r, f);
        r += m;
    }
}

TD_TILE_KERNEL(int4c, SHAPE, .mr = MR);

#elif TD_FOR_AMX

/* Nibbles become bytes once for all rows. */
#define TILES td_int4c_32x4
#define INT4 true
#define ROWS_MAX 256
#define OFFSET 8
#define FEWER td_int4c_avx512vnni
#include "kernels/product/channel_amx_body.inc"

TD_GEMM_KERNEL(int4c, "32x32", .mr = PAIR, .rows = TILE_ROWS_BEST, .run = run);

#elif TD_FOR_NEON || TD_FOR_DOTPROD

/*
 * Why it is shaped so. x86 multiplies a byte of two codes whole. `sdot` takes signed bytes on both sides, so here such a
 * byte must be right as a signed one. A tile of the layout 16x4s holds code + 8 in the low nibble and the code itself, in
 * two's complement, in the high one. A byte is then worth 16 * high + low + 8, and two sums, of whole bytes and of high
 * nibbles alone, give both codes' sums. Unpacking costs one arithmetic shift, a ninth of the vector instructions with four
 * rows. Masking the low nibbles with `and` instead would take both of TaiShan V110's pipes. `sdot` by an element multiplies
 * a vector of four rows of weights times four k with any four of the sixteen k that one load of a row of activations brings:
 * no instruction spreads activations. Five rows take 20 sums, 5 vectors of activations and 4 of weights of the 32 registers.
 * One row is bound by the weights' stream: two chains for each sum hide the latency of `sdot`.
 */
#include "kernels/product/gemm_end.inc"
#include "kernels/vec/dot_neon.h"

#define TILES td_int4c_16x4s
#define NR 16
#define MR 5
#define STEP 16 /* k of a vector of activations */
#define STEP_BYTES (STEP * NR / 2)

/* The sums of a row: of high nibbles, rows 8..15 of the tile, and of whole bytes: 16 times these, and rows 0..7. */
typedef struct {
    int32x4_t high[2], both[2];
} sums;

INLINED void scale_row(const td_gemm_args *a, size_t r, const sums *s, float *values) {
    const float      *scale = a->tile;
    const int32x4_t   correction = vdupq_n_s32(8 * a->rows[r].sum);
    const float32x4_t row_scale = vdupq_n_f32(a->rows[r].scale);
    for (int h = 0; h < 2; h++) {
        float32x4_t low = vcvtq_f32_s32(vsubq_s32(vsubq_s32(s->both[h], vshlq_n_s32(s->high[h], 4)), correction)),
                    high = vcvtq_f32_s32(s->high[h]);
        vst1q_f32(values + 4 * h, vmulq_f32(vmulq_f32(low, vld1q_f32(scale + 4 * h)), row_scale));
        vst1q_f32(values + 8 + 4 * h, vmulq_f32(vmulq_f32(high, vld1q_f32(scale + 8 + 4 * h)), row_scale));
    }
}

INLINED void fetch_step(const int8_t *w, size_t far, size_t near) {
    for (size_t line = 0; line < STEP_BYTES; line += 64) {
        fetch_l2(w + line + far);
        fetch_l1(w + line + near);
    }
}

/* Four k of m rows: lane is a constant, and m after inlining. */
#define FOUR_K(lane, s_of_r)                                                               \
    {                                                                                      \
        const int8x16_t b0 = vld1q_s8(w + 2 * STEP * (lane)), h0 = vshrq_n_s8(b0, 4),      \
                        b1 = vld1q_s8(w + 2 * STEP * (lane) + 16), h1 = vshrq_n_s8(b1, 4); \
        _Pragma("GCC unroll 8") for (int r = 0; r < m; r++) {                              \
            sums *s = &s_of_r;                                                             \
            s->high[0] = dot(s->high[0], h0, x[r], lane);                                  \
            s->both[0] = dot(s->both[0], b0, x[r], lane);                                  \
        }                                                                                  \
        _Pragma("GCC unroll 8") for (int r = 0; r < m; r++) {                              \
            sums *s = &s_of_r;                                                             \
            s->high[1] = dot(s->high[1], h1, x[r], lane);                                  \
            s->both[1] = dot(s->both[1], b1, x[r], lane);                                  \
        }                                                                                  \
    }

/* far: how far ahead of a pass memory is brought to L2. */
INLINED void rows_times_tile(const td_gemm_args *a, size_t r0, size_t far, const int m) {
    const int8_t *w = (const int8_t *)a->tile + NR * sizeof(float), *from[MR];
    const size_t  near = PREFETCH_NEAR;
    sums          sum[MR], odd = {0};
    float         values[MR][NR];
#pragma GCC unroll 8
    for (int r = 0; r < m; r++) {
        from[r] = a->rows[r0 + r].x;
        sum[r] = (sums){0};
    }
    for (size_t k = 0; k < a->k; k += STEP, w += STEP_BYTES) {
        int8x16_t x[MR];
        fetch_step(w, far, near);
#pragma GCC unroll 8
        for (int r = 0; r < m; r++) x[r] = vld1q_s8(from[r] + k);
        FOUR_K(0, sum[r])
        FOUR_K(1, *(m == 1 ? &odd : &sum[r]))
        FOUR_K(2, sum[r])
        FOUR_K(3, *(m == 1 ? &odd : &sum[r]))
    }
    if (m == 1)
        for (int h = 0; h < 2; h++) {
            sum[0].high[h] = vaddq_s32(sum[0].high[h], odd.high[h]);
            sum[0].both[h] = vaddq_s32(sum[0].both[h], odd.both[h]);
        }
#pragma GCC unroll 8
    for (int r = 0; r < m; r++) scale_row(a, r0 + r, &sum[r], values[r]);
    end_rows(a, r0, (size_t)m, NR, values[0]);
}

#define ROW_CASES ROW_CASE(1) ROW_CASE(2) ROW_CASE(3) ROW_CASE(4) ROW_CASE(5)
#define TILE_BYTES(a) td_tile_bytes(&TILES, (a)->k, NULL)
#include "kernels/product/row_tiles.inc"

TD_TILE_KERNEL(int4c, "5x16", .mr = MR);

#else /* I8MM, SVE256 */

/*
 * `smmla` (product/mmla_rows.inc has the loop, and why it is shaped so). Bytes of two codes are multiplied whole, as by
 * `sdot` above. A tile of the layout 16x8s holds code + 8 in the low nibble and the code itself in the high one, and one
 * shift makes the high ones ready.
 */
#include "kernels/product/gemm_end.inc"
#if TD_FOR_I8MM
#include "kernels/vec/mmla_i8mm.h"
#define SHAPE "6x16"
#else
#include "kernels/vec/mmla_sve256.h"
#define SHAPE "12x16"
#endif

#define TILES td_int4c_16x8s
#define RUN_BYTES 64

#define QUAD_VECTORS (4 / MMLA_OUTPUTS) /* of four outputs' codes */

/* sum[p]: of whole bytes and of high nibbles alone, by four outputs in turn. */
#define multiply_run(w, x, sum, pairs)                                                                             \
    _Pragma("GCC unroll 8") for (int v = 0; v < 2 * QUAD_VECTORS; v++) {                                           \
        const int        at = v / QUAD_VECTORS * 2 * QUAD_VECTORS + v % QUAD_VECTORS;                              \
        const mmla_codes both = mmla_load_codes((w) + v * 8 * MMLA_OUTPUTS), high = mmla_high(both);               \
        _Pragma("GCC unroll 8") for (int p = 0; p < (pairs); p++) mmla_add(sum[p][at], x[p], both);                \
        _Pragma("GCC unroll 8") for (int p = 0; p < (pairs); p++) mmla_add(sum[p][at + QUAD_VECTORS], x[p], high); \
    }

#include "kernels/product/mmla_rows.inc"

/* A row's values from its pair's sums; i: which of the two it is. */
MMLA void scale_row(const td_gemm_args *a, size_t r, const int32_t *sums, int i, float *values) {
    const float      *scale = a->tile;
    const int32x4_t   correction = vdupq_n_s32(8 * a->rows[r].sum);
    const float32x4_t row_scale = vdupq_n_f32(a->rows[r].scale);
    for (int h = 0; h < 2; h++) {
        int32x4_t   both = row_of_quad(sums + 2 * h * 8, i), of_high = row_of_quad(sums + (2 * h + 1) * 8, i);
        float32x4_t low = vcvtq_f32_s32(vsubq_s32(vsubq_s32(both, vshlq_n_s32(of_high, 4)), correction)),
                    high = vcvtq_f32_s32(of_high);
        vst1q_f32(values + 4 * h, vmulq_f32(vmulq_f32(low, vld1q_f32(scale + 4 * h)), row_scale));
        vst1q_f32(values + 8 + 4 * h, vmulq_f32(vmulq_f32(high, vld1q_f32(scale + 8 + 4 * h)), row_scale));
    }
}

#define PAIR_CASE(n)                                                                           \
    case n:                                                                                    \
        pairs_times_tile(sums, &rows, w, a->k, (const char *)w + far, 2 * RUN_BYTES, near, n); \
        break;

/* The rows of a call in passes of equally many pairs. Of several passes over a tile the first fetches the next. */
static __attribute__((noinline)) void run_tile(const td_gemm_args *a) {
    int32_t       sums[MR * NR] __attribute__((aligned(64)));
    float         values[MR * NR];
    const int8_t *w = (const int8_t *)a->tile + NR * sizeof(float);
    size_t        left = (a->m + 1) / 2, n_passes = (left + MMLA_PAIRS - 1) / MMLA_PAIRS, near = PREFETCH_NEAR,
           far = n_passes == 1 ? PREFETCH_FAR : td_tile_bytes(&TILES, a->k, NULL);
    for (size_t r0 = 0, pairs; n_passes > 0; n_passes--, left -= pairs, r0 += 2 * pairs, far = near) {
        pairs = (left + n_passes - 1) / n_passes;
        const size_t    m = r0 + 2 * pairs < a->m ? 2 * pairs : a->m - r0;
        const row_pairs rows = pairs_of(a->rows + r0, m);
        switch (pairs) { MMLA_EACH_PAIRS(PAIR_CASE) }
        for (size_t i = 0; i < m; i++) scale_row(a, r0 + i, sums + i / 2 * 2 * NR, i % 2, values + i * NR);
        end_rows(a, r0, m, NR, values);
    }
}

TD_TILE_KERNEL(int4c, SHAPE, .mr = MR);

#endif
