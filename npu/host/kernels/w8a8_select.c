/* The table of the compiled W8A8 kernels, best first. */
#include "npu/host/kernels/w8a8.h"

const td_w8a8_kernel *const td_w8a8_kernels[] = {
#if defined(__x86_64__)
    &td_w8a8_amx, &td_w8a8_avx512vnni, &td_w8a8_avxvnni, &td_w8a8_avx2,
#endif
    &td_w8a8_scalar, NULL,
};

const td_w8a8_kernel *td_w8a8_select(uint32_t features) {
    const td_w8a8_kernel *const *k = td_w8a8_kernels;
    while ((features & (*k)->needs) != (*k)->needs) k++; /* the scalar kernel needs nothing */
    return *k;
}
