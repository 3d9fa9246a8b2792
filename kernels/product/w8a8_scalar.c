/* W8A8 in plain C: the reference for every other kernel. */
#include "kernels/product/w8a8_common.h"

#define NR 16

static void pack(void *panel, const int8_t *q, size_t ldq, size_t nr_valid, size_t k) {
    w8a8_pack(panel, q, ldq, nr_valid, k, NR, 0);
}

static void run(const td_w8a8_args *a) {
    size_t k4 = (a->k + 3) / 4;
    for (size_t p = a->panel_begin; p < a->panel_end; p++) {
        const int8_t *panel = (const int8_t *)a->w + p * k4 * 4 * NR;
        for (size_t i = 0; i < a->m; i++) {
            _Alignas(64) int32_t acc[NR] = {0};
            for (size_t kk = 0; kk < k4; kk++)
                for (size_t j = 0; j < NR; j++)
                    for (size_t t = 0; t < 4; t++) acc[j] += panel[(kk * NR + j) * 4 + t] * a->x[i * a->ldx + kk * 4 + t];
            w8a8_store(a, acc, i, 1, p * NR, NR, 0);
        }
    }
}

const td_w8a8_kernel td_w8a8_scalar = {.name = "w8a8_scalar_1x16", .mr = 1, .nr = NR, .pack = pack, .run = run};
