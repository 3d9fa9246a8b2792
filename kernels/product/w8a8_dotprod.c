/* W8A8, NEON with `sdot`. */
#include "kernels/vec/dot_neon.h"

#include "kernels/product/w8a8_neon_body.inc"

const td_w8a8_kernel td_w8a8_dotprod = {
    .name = "w8a8_dotprod_5x16", .mr = MR, .nr = NR, .pack = pack, .run = run_tiles,
};
