/* The table of the compiled 16-bit attention kernels, best first. */
#include "npu/host/kernels/attn16.h"

const td_attn16 *const td_attn16_tables[] = {
#if defined(__x86_64__)
    &td_attn16_avx512vnni, &td_attn16_avxvnni, &td_attn16_avx2,
#endif
    &td_attn16_scalar, NULL,
};

const td_attn16 *td_attn16_select(uint32_t features) {
    const td_attn16 *const *t = td_attn16_tables;
    while ((features & (*t)->needs) != (*t)->needs) t++; /* the scalar table needs nothing */
    return *t;
}
