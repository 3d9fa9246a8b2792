/* Filling a layer with weights that were rounded elsewhere. */
#include <math.h>

#include "core/error.h"
#include "cpu_experts/expert_state.h"

typedef struct {
    const expert_layout   *layout;
    td_expert_format       format;
    const td_expert_codes *experts;
} code_source;

/* One code per byte in every format; int4g's are unsigned with zeros of 8, which pack_matrix has set. */
static bool rows_of_codes(const void *ctx, size_t expert, td_expert_matrix m, size_t row, size_t n, size_t k,
                          const td_gemm_weights *out, void *tmp, uint32_t worker) {
    (void)tmp;
    (void)worker;
    const code_source *src = ctx;
    bool               grouped = src->format == TD_EXPERT_INT4G, ok = true;
    size_t             cols = expert_matrix_cols(src->layout, m), size = src->layout->groups.size;
    size_t n_scales = grouped ? (cols + size - 1) / size : 1, room = grouped ? k / size : 1; /* of a row: given, taken */
    int    zero = grouped ? 8 : 0;
    for (size_t r = 0; r < n; r++) {
        const int8_t *codes = src->experts[expert].codes[m] + (row + r) * cols;
        const float  *scale = src->experts[expert].scale[m] + (row + r) * n_scales;
        int8_t       *to = (int8_t *)out->rows + r * k;
        for (size_t i = 0; i < cols; i++) to[i] = (int8_t)(codes[i] + zero);
        memset(to + cols, zero, k - cols);
        for (size_t g = 0; g < room; g++) {
            float s = g < n_scales ? scale[g] : 0;
            ok = ok && isfinite(s);
            out->scale[r * room + g] = s;
        }
    }
    return ok;
}

td_status td_experts_load_codes(td_experts *x, uint32_t layer, const td_expert_codes *experts, td_error *err) {
    if (layer >= x->config.n_layers) return td_fail(err, TD_EINVAL, "MoE layer %u of %u", layer, x->config.n_layers);
    if (x->config.format != TD_EXPERT_INT4C && x->config.format != TD_EXPERT_INT8C && x->config.format != TD_EXPERT_INT4G)
        return td_fail(err, TD_EINVAL, "only experts in integers are made of codes");
    code_source src = {&x->layout, x->config.format, experts};
    return td_expert_pack_layer(x, layer, rows_of_codes, NULL, &src, err);
}
