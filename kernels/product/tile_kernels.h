/* The kernels of tiles and their layouts, and what the kernels' files share. */
#ifndef TD_KERNELS_PRODUCT_TILE_KERNELS_H
#define TD_KERNELS_PRODUCT_TILE_KERNELS_H

#include <string.h>

#include "core/machine/cpu.h"
#include "kernels/product/tile_gemm.h"
#include "kernels/this_set.h"
#include "kernels/vec/fetch.h"

extern const td_gemm_kernel td_int4c_scalar, td_int4c_avx2, td_int4c_avxvnni, td_int4c_avx512vnni, td_int4c_amx;
extern const td_gemm_kernel td_int4c_neon, td_int4c_dotprod, td_int8c_neon, td_int8c_dotprod, td_int4g_neon,
    td_int4g_dotprod, td_fp4g_neon, td_fp4g_dotprod, td_bf16_neon;
extern const td_gemm_kernel td_int4c_i8mm, td_int4c_sve256, td_int8c_i8mm, td_int8c_sve256, td_int4g_i8mm, td_fp4g_i8mm;
extern const td_gemm_kernel td_int8c_scalar, td_int8c_avx2, td_int8c_avxvnni, td_int8c_avx512vnni, td_int8c_amx;
extern const td_gemm_kernel td_int4g_scalar, td_int4g_avx2, td_int4g_avxvnni, td_int4g_avx512vnni, td_int4g_amx;
extern const td_gemm_kernel td_fp4g_scalar, td_fp4g_avx2, td_fp4g_avxvnni, td_fp4g_avx512vnni, td_fp4g_amx;
extern const td_gemm_kernel td_bf16_scalar, td_bf16_avx2, td_bf16_avx512;

/* The kernel of a format for the set that a file is compiled for: td_int4c_avx2, named "int4c_avx2_6x16". TILES is its
 * layout. */
#define TD_GEMM_KERNEL(format, tile, ...) \
    const td_gemm_kernel TD_OF_SET(format) = {.name = #format "_" TD_SET_NAME "_" tile, .tiles = &TILES, __VA_ARGS__}

/* Inlined into each caller, so that an argument which is a constant there is one in the function. */
#define INLINED static inline __attribute__((always_inline))

static inline uint32_t load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Bytes ahead of a pass over a tile that weights are brought to L2, and from there to L1; a tile is followed by the tile
 * that is read next. */
#if defined(__aarch64__) /* where cores differ more */
#define PREFETCH_FAR (td_cpu_prefetch_here().far_bytes)
#define PREFETCH_NEAR (td_cpu_prefetch_here().near_bytes) /* outside of loops */
#else
#define PREFETCH_FAR TD_CPU_PREFETCH_FAR
#define PREFETCH_NEAR TD_CPU_PREFETCH_NEAR
#endif

/* Rows r0 .. r0 + m of a call. */
static inline td_gemm_args rows_of(const td_gemm_args *a, size_t r0, size_t m) {
    td_gemm_args b = *a;
    b.rows += r0;
    b.m = m;
    if (b.end.gate) b.end.gate += r0 * b.end.ld_gate;
    if (b.end.sums) b.end.sums += r0, b.end.weight += r0;
    if (b.end.out) b.end.out = (char *)b.end.out + r0 * b.end.ld * td_dtype_bytes(b.end.dtype);
    return b;
}

/* The tiles of a call one after the other, for kernels of single ones: run_tile is not inlined, or gcc copies it for the
 * last. */
static inline void each_tile(const td_gemm_args *a, const td_tile_layout *tiles, void (*run_tile)(const td_gemm_args *)) {
    const size_t bytes = td_tile_bytes(tiles, a->k, &a->groups);
    td_gemm_args one = *a;
    for (size_t t = a->n_tiles; t > 0; t--, one.tile = (const char *)one.tile + bytes, one.end.column += tiles->nr) {
        one.next = t > 1 ? (const char *)one.tile + bytes : a->next;
        run_tile(&one);
    }
}

/* The kernel of a file whose run_tile() takes one tile. */
#define TD_TILE_KERNEL(format, tile, ...)    \
    static void run(const td_gemm_args *a) { \
        each_tile(a, &TILES, run_tile);      \
    }                                        \
    TD_GEMM_KERNEL(format, tile, .run = run, __VA_ARGS__)

#endif
