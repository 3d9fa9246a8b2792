/* 16-bit attention in plain C: the reference, and what runs where no better tier is compiled. */
#include <math.h>
#include <stdbool.h>

#include "core/mem.h"
#include "kernels/attention/attn16.h"

#define OP static inline __attribute__((always_inline))
#define EACH for (int l = 0; l < 16; l++)

typedef struct {
    float l[16];
} vf;
typedef struct {
    int16_t l[16];
} vi;
typedef struct {
    td_bf16 l[32];
} vp;

OP vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
OP void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }

#define LANEWISE(name, params, expression) \
    OP vf name params {                    \
        vf to;                             \
        EACH to.l[l] = expression;         \
        return to;                         \
    }
LANEWISE(vf_load_int16, (const int16_t *p), p[l])
LANEWISE(vf_set, (float f), f)
LANEWISE(vf_add, (vf a, vf b), a.l[l] + b.l[l])
LANEWISE(vf_sub, (vf a, vf b), a.l[l] - b.l[l])
LANEWISE(vf_mul, (vf a, vf b), a.l[l] * b.l[l])
LANEWISE(vf_div, (vf a, vf b), a.l[l] / b.l[l])
LANEWISE(vf_fma, (vf a, vf b, vf c), a.l[l] * b.l[l] + c.l[l])
LANEWISE(vf_max, (vf a, vf b), a.l[l] > b.l[l] ? a.l[l] : b.l[l])
LANEWISE(vf_absmax, (vf a, vf b), fabsf(b.l[l]) > a.l[l] ? fabsf(b.l[l]) : a.l[l])
LANEWISE(vf_min, (vf a, vf b), a.l[l] < b.l[l] ? a.l[l] : b.l[l])
LANEWISE(vf_seen, (vf v, const int32_t *seen, int32_t j, vf other), seen[l] > j ? v.l[l] : other.l[l])
LANEWISE(vp_even, (vp p), td_bf16_to_f32(p.l[2 * l]))
LANEWISE(vp_odd, (vp p), td_bf16_to_f32(p.l[2 * l + 1]))

OP float vf_lanes_sum(vf v) {
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++) v.l[l] += v.l[l + half];
    return v.l[0];
}
OP float vf_lanes_max(vf v) {
    for (int l = 1; l < 16; l++) v.l[0] = v.l[l] > v.l[0] ? v.l[l] : v.l[0];
    return v.l[0];
}

OP vf vf_ldexp(vf v, vf t) {
    EACH {
        uint32_t bits, power;
        memcpy(&bits, &v.l[l], sizeof bits);
        memcpy(&power, &t.l[l], sizeof power);
        bits += power << 23;
        memcpy(&v.l[l], &bits, sizeof bits);
    }
    return v;
}

/* The product of two floats is exact in double, so this is one rounding, as a fused multiply-add to SHIFT gives it. */
OP vi vi_round(vf x, vf inverse) {
    vi v;
    EACH {
        double d = rint((double)x.l[l] * (double)inverse.l[l]);
        v.l[l] = d >= -32768 && d <= 32767 ? (int16_t)d : 0;
    }
    return v;
}
OP void vi_store(int16_t *p, vi v) { memcpy(p, &v, sizeof v); }
OP void vi_store_pairs(int32_t *p, vi a, vi b) {
    EACH {
        int16_t two[2] = {a.l[l], b.l[l]};
        memcpy(p + l, two, sizeof two);
    }
}

OP vp vp_load(const void *p) {
    vp v;
    memcpy(&v, p, sizeof v);
    return v;
}
OP void vp_store_join(int16_t *p, vi even, vi odd) {
    EACH p[2 * l] = even.l[l], p[2 * l + 1] = odd.l[l];
}

static void pair(const int16_t *a, const int16_t *b, size_t n, int16_t *out, size_t panel_stride) {
    for (size_t c = 0; c < td_round_up(n, 32); c++) {
        int16_t *to = out + (c / 32 * 2 + c / 4 % 2) * panel_stride + (c % 32 / 8 * 4 + c % 4) * 2;
        to[0] = a[c];
        to[1] = b ? b[c] : 0;
    }
}

static void transpose(int32_t *dst, size_t ld_dst, const int32_t *src, size_t ld_src, size_t rows, size_t cols) {
    for (size_t c = 0; c < cols; c++)
        for (size_t r = 0; r < td_round_up(rows, 16); r++) dst[c * ld_dst + r] = r < rows ? src[r * ld_src + c] : 0;
}

static void gemm(const td_attn16_gemm *g) {
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            const int16_t *a = g->a + i * g->lda, *b = g->b + j;
            size_t         panel = j / 16, lane = j % 16, next = g->ldb, step = 2 * g->ldb; /* to the other of a pair; to the next pair */
            int32_t        sum = 0;
            if (g->ldb == 0) {
                if (g->crossed) panel = j / 32 * 2 + j / 4 % 2, lane = j % 32 / 8 * 4 + j % 4;
                b = g->b + panel * g->panel_stride + lane * 2, next = 1, step = 32;
            }
            for (size_t k = 0; k < g->pairs; k++) sum += a[2 * k] * b[k * step] + a[2 * k + 1] * b[k * step + next];
            float *c = g->c + i * g->ldc + j, scale = g->column ? g->scale[i] * g->column[j] : g->scale[i];
            *c = g->keep ? fmaf((float)sum, scale, *c * g->keep[i]) : (float)sum * scale;
        }
}

#include "kernels/attention/attn16_body.inc"

const td_attn16 td_attn16_scalar = {.name = "attn16_scalar", ATTN16_MEMBERS};
