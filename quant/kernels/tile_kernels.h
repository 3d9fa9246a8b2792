/* What the kernels' files share, and the kernels of weights in groups. */
#ifndef TD_QUANT_KERNELS_TILE_KERNELS_H
#define TD_QUANT_KERNELS_TILE_KERNELS_H

#include <string.h>

#include "core/cpu.h"
#include "quant/tile_gemm.h"

extern const td_tile_layout td_int4g_16x4, td_int4g_32x4, td_fp4g_16x4, td_fp4g_32x4;
extern const td_gemm_kernel td_int4g_scalar, td_int4g_avx2, td_int4g_avxvnni, td_int4g_avx512vnni, td_int4g_amx;
extern const td_gemm_kernel td_fp4g_scalar, td_fp4g_avx2, td_fp4g_avxvnni, td_fp4g_avx512vnni, td_fp4g_amx;

static inline uint32_t load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Bytes ahead of a pass over a tile that weights are brought to L2, and from there to L1; a tile is followed by the tile that is read next. */
#define PREFETCH_FAR 8192
#define PREFETCH_NEAR 1024

#endif
