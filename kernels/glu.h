/* The gated linear unit between an MLP's matrices: what its gate g and its up u become. */
#ifndef TD_KERNELS_GLU_H
#define TD_KERNELS_GLU_H

#include <math.h>
#include <stdbool.h>

/**
 * (u' + up_add) * g' / (1 + exp(-alpha * g')),  g' = min(g, limit),  u' = min(max(u, -limit), limit).
 * All 0: u * silu(g). gpt-oss: alpha 1.702, limit 7, up_add 1. DeepSeek-V4 and GLM-5.3: limit 10 alone.
 */
typedef struct {
    float alpha;  /* 0: 1 */
    float limit;  /* 0: none */
    float up_add; /* to u' */
} td_glu;

static inline bool td_glu_is_silu(const td_glu *p) {
    return p->alpha == 0 && p->limit == 0 && p->up_add == 0;
}

/** The same with numbers in place of the 0s that stand for one. */
static inline td_glu td_glu_in_full(const td_glu *p) {
    return (td_glu){p->alpha != 0 ? p->alpha : 1, p->limit != 0 ? p->limit : INFINITY, p->up_add};
}

#endif
