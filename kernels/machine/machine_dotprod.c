/* What the machine can do at most: `sdot`. */
#include "kernels/machine/machine_loops.h"
#include "kernels/machine/peak_chains_neon.h"

NEON_PEAK(td_int8_peak_dotprod, "sdot", ".4s", ", v30.16b, v31.16b\n\t", 16 * 2)
