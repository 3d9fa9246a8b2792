/* Tiles of weights in groups: their size, packer and unpacker. */
#include "kernels/product/group_layout.h"
#include "kernels/product/tile_kernels.h"

static size_t tile_bytes(size_t nr, size_t k, const td_gemm_groups *groups) {
    return head_bytes(nr, k, groups) + TO_LINE(k / block_k(groups) * block_bytes(nr, groups));
}

/* A value of the type, to where it lies. */
static inline void put_scale(float scale, td_dtype dtype, uint8_t *at) {
    td_bf16 bits = dtype == TD_DT_F16 ? td_f32_to_f16(scale) : td_f32_to_bf16(scale);
    switch (dtype) {
        case TD_DT_F8_E8M0: *at = td_f32_to_e8m0_floor(scale); break;
        case TD_DT_F8_E4M3: *at = td_f32_to_e4m3(scale); break;
        case TD_DT_F32: memcpy(at, &scale, sizeof scale); break;
        default: memcpy(at, &bits, sizeof bits);
    }
}

/* run and flip as in td_tile_layout; run is a constant where this is inlined. */
INLINED void pack_as(size_t run, uint32_t flip, size_t nr, void *tile, const td_gemm_weights *w, size_t k,
                     const td_gemm_groups *groups) {
    const size_t   half = nr / 2;
    const uint8_t *low_rows = w->rows, *high_rows = low_rows + half * k;
    const size_t   size = groups->size, n = k / size;
    uint8_t       *zero = tile, *out = zero + head_bytes(nr, k, groups);
    memset(tile, 0, tile_bytes(nr, k, groups));
    if (has_factors(groups)) memcpy(tile, w->factor, nr * sizeof *w->factor);
    for (size_t g = 0; g < n && groups->zero_points; g++)
        for (size_t i = 0; i < half; i++) *zero++ = (uint8_t)(w->zero[i * n + g] | w->zero[(half + i) * n + g] << 4);
    for (size_t k0 = 0, end; k0 < k; k0 = end) {
        end = k0 + block_k(groups);
        for (size_t g = k0 / size; g < end / size; g++)
            for (size_t i = 0; i < nr; i++, out += td_dtype_bytes(groups->scale_dtype))
                put_scale(w->scale[i * n + g], groups->scale_dtype, out);
        for (size_t j0 = k0; j0 < end; j0 += run)
            for (size_t at = 0; at < half * run; at += 4, out += 4) {
                const size_t i = at / run, j = j0 + at % run;
                uint32_t     both = load32(low_rows + i * k + j) | (load32(high_rows + i * k + j) ^ flip) << 4;
                memcpy(out, &both, 4);
            }
    }
}

INLINED void unpack_as(size_t run, uint32_t flip, size_t nr, const void *tile, td_gemm_weights *w, size_t k,
                       const td_gemm_groups *groups) {
    const size_t   half = nr / 2;
    uint8_t       *low_rows = w->rows, *high_rows = low_rows + half * k;
    const size_t   size = groups->size, n = k / size;
    const uint8_t *zero = tile, *in = zero + head_bytes(nr, k, groups);
    if (has_factors(groups)) memcpy(w->factor, tile, nr * sizeof *w->factor);
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0; i < half; i++) {
            uint8_t both = groups->zero_points ? *zero++ : 0x88;
            w->zero[i * n + g] = both & 15;
            w->zero[(half + i) * n + g] = both >> 4;
        }
    for (size_t k0 = 0, end; k0 < k; k0 = end) {
        end = k0 + block_k(groups);
        for (size_t g = k0 / size; g < end / size; g++, in += nr * td_dtype_bytes(groups->scale_dtype))
            for (size_t i = 0; i < nr; i++) w->scale[i * n + g] = scale_at(in, i, groups->scale_dtype);
        for (size_t j0 = k0; j0 < end; j0 += run)
            for (size_t at = 0; at < half * run; at += 4, in += 4) {
                const size_t i = at / run, j = j0 + at % run;
                uint32_t     both = load32(in), low = both & 0x0f0f0f0fu, high = (both >> 4 & 0x0f0f0f0fu) ^ flip;
                memcpy(low_rows + i * k + j, &low, 4);
                memcpy(high_rows + i * k + j, &high, 4);
            }
    }
}

#define UNSIGNED 0u
#define HIGH_SIGNED 0x08080808u

#include "kernels/product/layout_runs.inc"

const td_tile_layout td_int4g_16x4 = {.name = "int4g_16x4", .nr = 16, .kr = 128, .run = 4, .flip = UNSIGNED, FUNCTIONS};
const td_tile_layout td_int4g_32x4 = {.name = "int4g_32x4", .nr = 32, .kr = 128, .run = 4, .flip = UNSIGNED, FUNCTIONS};
const td_tile_layout td_int4g_16x4s = {.name = "int4g_16x4s", .nr = 16, .kr = 128, .run = 4, .flip = HIGH_SIGNED, FUNCTIONS};
const td_tile_layout td_int4g_16x8s = {.name = "int4g_16x8s", .nr = 16, .kr = 128, .run = 8, .flip = HIGH_SIGNED, FUNCTIONS};
const td_tile_layout td_fp4g_16x4 = {.name = "fp4g_16x4", .nr = 16, .kr = 128, .run = 4, .flip = UNSIGNED, FUNCTIONS};
const td_tile_layout td_fp4g_32x4 = {.name = "fp4g_32x4", .nr = 32, .kr = 128, .run = 4, .flip = UNSIGNED, FUNCTIONS};
const td_tile_layout td_fp4g_16x8 = {.name = "fp4g_16x8", .nr = 16, .kr = 128, .run = 8, .flip = UNSIGNED, FUNCTIONS};
