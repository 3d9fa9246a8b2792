/* Filling a layer with random weights. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/math/rng.h"
#include "cpu_experts/expert_state.h"

typedef struct {
    const expert_layout *layout;
    td_expert_format     format;
    uint32_t             layer;
    uint64_t             seed;
} random_source;

/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators"), one stream per row: fast, and the
   same weights for every kernel and shard count. */
static inline uint64_t next_random(uint64_t *s) {
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * 2685821657736338717u;
}

/* Eight codes of [-7, 7] from the low nibbles of eight bytes. */
static inline uint64_t random_codes(uint64_t r) {
    uint64_t u = r & 0x0f0f0f0f0f0f0f0fu;
    uint64_t zero = ~(u | u >> 1 | u >> 2 | u >> 3) & 0x0101010101010101u;
    uint64_t code = (u | zero) ^ 0x0808080808080808u;   /* 4-bit two's complement of u - 8 */
    return code | (code & 0x0808080808080808u) * 0x1eu; /* its sign in the upper nibble */
}

static void random_bf16(uint64_t *state, float rms, size_t cols, td_bf16 *out) {
    uint64_t exponent = (td_bf16)(td_f32_to_bf16(rms / 1.5f) & 0x7f80u);
    for (size_t i = 0; i < cols; i += 4) { /* random sign and mantissa: magnitudes in [1, 2) of the exponent */
        uint64_t bits = (next_random(state) & 0x807f807f807f807fu) | exponent * 0x0001000100010001u;
        memcpy(out + i, &bits, (cols - i < 4 ? cols - i : 4) * sizeof *out);
    }
}

/* Codes of [-7, 7], or odd ones of [-127, 127]. @return their rms. */
static float random_ints(uint64_t *state, bool int8, size_t cols, int8_t *out) {
    for (size_t i = 0; i < cols; i += 16) {
        uint64_t bits = next_random(state), codes[2] = {random_codes(bits), random_codes(bits >> 4)};
        if (int8) codes[0] = bits | 0x0101010101010101u, codes[1] = next_random(state) | 0x0101010101010101u;
        memcpy(out + i, codes, cols - i < 16 ? cols - i : 16);
    }
    return int8 ? 73.9f : 4.3f;
}

static bool random_rows(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, size_t k,
                        const td_gemm_weights *out, void *tmp, uint32_t worker) {
    const random_source *src = ctx;
    size_t               cols = expert_matrix_cols(src->layout, m), element = td_gemm_element((td_product)src->format);
    float                rms = 1.0f / sqrtf((float)cols); /* keeps the size of activations */
    (void)tmp;
    (void)worker;
    for (size_t r = 0; r < n; r++) {
        uint64_t state = td_rng_u64(src->seed, (uint64_t)src->layer << 32 | expert, (uint64_t)m << 32 | (row + r)) | 1u;
        char    *codes = (char *)out->rows + r * k * element;
        memset(codes + cols * element, 0, (k - cols) * element);
        if (src->format == TD_EXPERT_BF16) {
            random_bf16(&state, rms, cols, (td_bf16 *)codes);
            continue;
        }
        float scale = rms / random_ints(&state, src->format == TD_EXPERT_INT8C, cols, (int8_t *)codes);
        if (src->format == TD_EXPERT_FP4G) { /* every code of e2m1, their rms 2.93; scales of 1 */
            size_t n_groups = k / src->layout->groups.size;
            for (size_t i = 0; i < cols; i++) codes[i] &= 15;
            for (size_t g = 0; g < n_groups; g++) out->scale[r * n_groups + g] = 1;
            out->factor[r] = rms / 2.93f;
            continue;
        }
        if (src->format == TD_EXPERT_INT4G) {
            size_t n_groups = k / src->layout->groups.size;
            for (size_t i = 0; i < k; i++) codes[i] = (char)(codes[i] + 8);
            for (size_t g = 0; g < n_groups; g++)
                out->scale[r * n_groups + g] = td_bf16_to_f32((td_bf16)(td_f32_to_bf16(scale) & 0xfff8u)); /* f16 too */
        } else {
            out->scale[r] = scale;
        }
    }
    return true;
}

static bool random_bias(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, float *out) {
    const random_source *src = ctx;
    for (size_t r = 0; r < n; r++)
        out[r] =
            (float)td_rng_uniform(src->seed + 1, (uint64_t)src->layer << 32 | expert, (uint64_t)m << 32 | (row + r)) - 0.5f;
    return true;
}

td_status td_experts_fill_layer(td_experts *x, uint32_t layer, uint64_t seed, td_error *err) {
    if (layer >= x->config.n_layers) return td_fail(err, TD_EINVAL, "MoE layer %u of %u", layer, x->config.n_layers);
    random_source src = {&x->layout, x->config.format, layer, seed};
    return td_expert_pack_layer(x, layer, random_rows, random_bias, &src, err);
}
