/* The CUDA kernels of four-bit weights in groups have the bits of the host's reference kernels, for every kind of group. */
#include "cuda_rig.h"

#include "core/math/small_float.h"
#include "core/memory/mem.h"
#include "kernels/kernels.h"
#include "kernels/rows/convert.h"
#include "npu/cuda/cuda_pack.h"
#include "tests/td_test.h"

CUDA_KERNEL(td_int4_linear_8);
CUDA_KERNEL(td_int4_linear_16);
CUDA_KERNEL(td_fp4_linear_8);
CUDA_KERNEL(td_fp4_linear_16);

#define ROWS_MAX 20

static float scale_value(const void *scale, td_dtype dtype, size_t i) {
    float v;
    if (dtype == TD_DT_F8_E4M3) return td_e4m3_to_f32(((const uint8_t *)scale)[i]);
    if (dtype == TD_DT_F8_E8M0) return td_e8m0_to_f32(((const uint8_t *)scale)[i]);
    td_to_f32(dtype, (const char *)scale + i * td_dtype_bytes(dtype), 1, &v);
    return v;
}

/* What the host's kernel makes of rows of codes [rows, ldx] and weights as a checkpoint has them. */
static void host_product(td_product product, td_gemm_groups groups, size_t n, size_t k, const uint8_t *codes,
                         const void *scale, const uint8_t *zero, const float *factor, size_t rows, const int8_t *x,
                         size_t ldx, const float *x_scale, const float *bias, float *out) {
    const td_gemm_kernel *kernel = td_kernels_scalar.product[product];
    const size_t          nr = kernel->tiles->nr, kp = td_round_up(k, kernel->tiles->kr), tiles = cuda_up(n, nr),
                 of_k = k / groups.size, padded = kp / groups.size, bytes = td_tile_bytes(kernel->tiles, kp, &groups);
    FREED char    *packed = aligned_alloc(64, tiles * bytes);
    FREED float   *tile_scale = malloc(nr * padded * sizeof(float));
    FREED uint8_t *tile_codes = malloc(nr * kp), *tile_zero = malloc(nr * padded);
    FREED float   *tile_factor = malloc(nr * sizeof(float));
    FREED int8_t  *xp = aligned_alloc(64, td_round_up(rows * kp, 64));
    FREED int32_t *group_sum = malloc(rows * padded * sizeof(int32_t));
    td_gemm_row    row[ROWS_MAX];
    for (size_t t = 0; t < tiles; t++) {
        memset(tile_codes, product == TD_PRODUCT_INT4G ? 8 : 0, nr * kp), memset(tile_zero, 8, nr * padded);
        memset(tile_scale, 0, nr * padded * sizeof(float)), memset(tile_factor, 0, nr * sizeof(float));
        for (size_t i = 0; i < nr && t * nr + i < n; i++) {
            const size_t o = t * nr + i;
            memcpy(tile_codes + i * kp, codes + o * k, k);
            for (size_t g = 0; g < of_k; g++)
                tile_scale[i * padded + g] = scale_value(scale, groups.scale_dtype, o * of_k + g);
            if (zero) memcpy(tile_zero + i * padded, zero + o * of_k, of_k);
            if (factor) tile_factor[i] = factor[o];
        }
        td_tile_pack(kernel->tiles, packed + t * bytes, &(td_gemm_weights){tile_codes, tile_scale, tile_zero, tile_factor},
                     kp, &groups);
    }
    memset(xp, 0, rows * kp);
    for (size_t i = 0; i < rows; i++) {
        memcpy(xp + i * kp, x + i * ldx, k);
        td_group_sums_i8(xp + i * kp, kp, groups.size, group_sum + i * padded);
        row[i] = WITH(td_gemm_row, .x = xp + i * kp, .scale = x_scale[i], .sum = td_sum_codes_i8(xp + i * kp, kp),
                      .group_sum = group_sum + i * padded);
    }
    kernel->run(&WITH(td_gemm_args, .tile = packed, .n_tiles = tiles, .k = kp, .m = rows, .rows = row, .groups = groups,
                      .end = {.n = n, .bias = bias, .out = out, .ld = n, .dtype = TD_DT_F32}));
}

/* Scales that are positive and of ordinary size, in their own type. */
static void put_scale(rnd *r, void *scale, td_dtype dtype, size_t i) {
    float v = (rnd_real(r) + 1.25f) / 16;
    switch (dtype) {
        case TD_DT_BF16: ((td_bf16 *)scale)[i] = td_f32_to_bf16(v); break;
        case TD_DT_F16:
            ((uint16_t *)scale)[i] =
                (uint16_t)(rnd_range(r, 0, 9) ? rnd_range(r, 9 << 10, 14 << 10) : rnd_range(r, 1, 1023));
            break;
        case TD_DT_F8_E4M3: ((uint8_t *)scale)[i] = (uint8_t)rnd_range(r, 0, 0x7e); break;
        case TD_DT_F8_E8M0: ((uint8_t *)scale)[i] = (uint8_t)rnd_range(r, 117, 130); break;
        default: ((float *)scale)[i] = v;
    }
}

TEST(products) {
    rnd r = rnd_open("cuda groups");
    static const struct {
        td_gemm_groups groups;
        uint32_t       kind;
        bool           is_e2m1;
    } cases[] = {
        {{32, TD_DT_F32, false}, TD_CUDA_SCALE_F32, false},     {{32, TD_DT_F16, true}, TD_CUDA_SCALE_F16, false},
        {{64, TD_DT_BF16, true}, TD_CUDA_SCALE_BF16, false},    {{128, TD_DT_F16, true}, TD_CUDA_SCALE_F16, false},
        {{128, TD_DT_BF16, false}, TD_CUDA_SCALE_BF16, false},  {{32, TD_DT_F8_E8M0, false}, TD_CUDA_SCALE_E8M0, true},
        {{16, TD_DT_F8_E4M3, false}, TD_CUDA_SCALE_E4M3, true},
    };
    for (int round = 0; round < 3; round++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            const td_gemm_groups groups = cases[c].groups;
            uint32_t             n = (uint32_t)rnd_range(&r, 1, 50), size = groups.size,
                     k = size * (uint32_t)rnd_range(&r, 1, round ? 12 : 2600 / size),
                     rows = (uint32_t)rnd_range(&r, 1, ROWS_MAX), ldx = (k + 127) / 128 * 128, one = 1;
            size_t         n_groups = (size_t)n * (k / size), row_bytes = td_cuda_packed_bytes(k);
            FREED uint8_t *codes = malloc((size_t)n * k), *zero = malloc(n_groups);
            FREED float   *factor = malloc(n * sizeof(float)), *bias = rnd_array(&r, n, 1),
                        *want = malloc((size_t)rows * n * sizeof(float));
            cuda_buf nb = cuda_word(rows), x = cuda_alloc((size_t)rows * ldx), x_scale = cuda_alloc(rows * 4),
                     packed = cuda_alloc(n * row_bytes), scale = cuda_alloc(n_groups * td_dtype_bytes(groups.scale_dtype)),
                     out = cuda_alloc((size_t)rows * n * 4);
            for (size_t i = 0; i < (size_t)n * k; i++) codes[i] = (uint8_t)rnd_range(&r, 0, 15);
            for (size_t i = 0; i < n_groups; i++)
                zero[i] = (uint8_t)rnd_range(&r, 0, 15), put_scale(&r, scale.p, groups.scale_dtype, i);
            for (size_t i = 0; i < n; i++) {
                factor[i] = rnd_real(&r) + 2;
                td_cuda_pack_codes(codes + i * k, k, cases[c].is_e2m1, (uint8_t *)packed.p + i * row_bytes);
            }
            memset(x.p, 0, x.bytes);
            for (size_t i = 0; i < rows; i++) {
                ((float *)x_scale.p)[i] = rnd_real(&r) / 127;
                for (size_t j = 0; j < k; j++) ((int8_t *)x.p)[i * ldx + j] = (int8_t)((int)rnd_range(&r, 0, 254) - 127);
            }
            cuda_buf       zb = cuda_copy(zero, n_groups), fb = cuda_copy(factor, n * 4), bb = cuda_copy(bias, n * 4);
            bool           biased = round & 1;
            const bool     many = size >= 32 && rnd_range(&r, 0, 1);
            td_cuda_launch grid =
                cuda_grid(cuda_up(rows, many ? 16 : 8), cuda_up(n, TD_CUDA_TILE_N), 1, TD_CUDA_LINEAR_THREADS, 0);
            host_product(cases[c].is_e2m1 ? TD_PRODUCT_FP4G : TD_PRODUCT_INT4G, groups, n, k, codes, scale.p,
                         groups.zero_points ? zero : NULL, cases[c].is_e2m1 ? factor : NULL, rows, x.p, ldx, x_scale.p,
                         biased ? bias : NULL, want);
            if (cases[c].is_e2m1)
                cuda_run(many ? &td_cuda_kernel_td_fp4_linear_16 : &td_cuda_kernel_td_fp4_linear_8, grid, CUDA_OUT(out),
                         CUDA_ARGS(&nb.p, &x.p, &ldx, &x_scale.p, &packed.p, &scale.p, &cases[c].kind, &fb.p,
                                   biased ? &bb.p : CUDA_NULL, &n, &k, &size, &out.p, &one));
            else
                cuda_run(many ? &td_cuda_kernel_td_int4_linear_16 : &td_cuda_kernel_td_int4_linear_8, grid, CUDA_OUT(out),
                         CUDA_ARGS(&nb.p, &x.p, &ldx, &x_scale.p, &packed.p, &scale.p, &cases[c].kind,
                                   groups.zero_points ? &zb.p : CUDA_NULL, biased ? &bb.p : CUDA_NULL, &n, &k, &size, &out.p,
                                   &one));
            for (size_t i = 0; i < (size_t)rows * n; i++)
                if (memcmp((float *)out.p + i, want + i, 4) != 0)
                    fail_msg("case %zu, n %u, k %u: element %zu is %g, not %g", c, n, k, i, (double)((float *)out.p)[i],
                             (double)want[i]);
            CUDA_FREE(nb, x, x_scale, packed, scale, out, zb, fb, bb);
        }
}
